// Export: the kernel makes one HTML file of the run, and the page gets it in parts and gives it to the browser.

import { icon } from "./icons.js";
import { button, el, enable, GONE, BUSY } from "./text.js";

const REVOKE_AFTER = 60000; // milliseconds for which the browser may read the file

export class Exporting {
  /**
   * @param {Store} store
   * @param {(answer: Done) => void} tell shows the answer of the kernel
   */
  constructor(store, tell) {
    this.store = store;
    this.tell = tell;
    this.busy = false;
    this.button = button("Export", () => this.begin(), {
      class: "agentnb-button agentnb-ghost",
      title: "Download the run as one HTML file, which replays it without a kernel",
    });
    this.el = el("div", { class: "agentnb-menu-item" }, icon("save"), this.button, el("span", { class: "agentnb-dim", text: "as HTML" }));
  }

  update() {
    const { busy, store } = this;
    enable(this.button, !busy && !store.gone, store.gone ? GONE : BUSY);
    this.button.classList.toggle("agentnb-busy", busy);
  }

  begin() {
    if (this.busy) return;
    this.busy = true;
    this.update();
    this.ask("", []);
  }

  /**
   * Ask for the next part of the file; the first question makes the file.
   * @param {string} file
   * @param {string[]} parts those that have come
   */
  ask(file, parts) {
    this.store.ask({ type: "export", file, part: parts.length }, (answer) => {
      if (answer.ok) {
        parts.push(answer.text);
        if (parts.length < answer.parts) return this.ask(answer.file, parts);
        this.save(answer.name, parts);
      }
      this.busy = false;
      this.update();
      return this.tell(answer.ok ? { ok: true, note: `Downloaded ${answer.name}. From code: run.export_html("${answer.name}")` } : answer);
    });
  }

  /**
   * @param {string} name
   * @param {string[]} parts
   */
  save(name, parts) {
    const url = URL.createObjectURL(new Blob(parts, { type: "text/html" })),
      link = el("a", { href: url, download: name, hidden: true });
    this.el.append(link); // some front ends look for links on the page only
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), REVOKE_AFTER);
  }
}
