// What is in progress: the text and the calls that a model sends, and the progress of running calls.

import { el, fit, fitParts, say } from "./text.js";

const NO_PROGRESS = "No running call reports its progress. A tool reports it through its argument `progress`.";
/** @type {Record<string, string>} */
const LINE_KINDS = { text: "model", reasoning: "thinking", call: "call", tool: "tool", retry: "retry" };

export class Live {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.el = el("div", { class: "agentnb-live", "aria-hidden": "true" });
  }

  update() {
    const over = this.store.model.get("status")?.over,
      lines = over ? [] : this.store.live.filter((line) => !line.progress);
    const made = fit(this.el, lines.length, () =>
      el(
        "div",
        { class: "agentnb-line" },
        el("span", { class: "agentnb-line-kind" }),
        el("span", { class: "agentnb-line-text" }),
      ),
    );
    lines.forEach((line, i) => {
      const [kind, text] = made[i].children;
      say(kind, [line.path, LINE_KINDS[line.kind] ?? line.kind, line.name].filter(Boolean).join(" "));
      say(text, line.text.trimStart());
    });
  }
}

// Running calls that report progress: as a bar if it is a share of something, otherwise as text.
export class Progress {
  /**
   * @param {Store} store
   * @param {boolean} alone whether the panel has no other part
   */
  constructor(store, alone) {
    this.store = store;
    this.slots = /** @type {Running[]} */ ([]);
    this.empty = el("p", { class: "agentnb-empty", text: NO_PROGRESS, hidden: !alone });
    this.list = el("ul", { class: "agentnb-progress", "aria-label": "Progress", hidden: true });
    this.el = el("div", {}, this.empty, this.list);
    this.alone = alone;
  }

  update() {
    const over = this.store.model.get("status")?.over,
      lines = over ? [] : this.store.live.filter((line) => line.progress !== undefined);
    fitParts(this.slots, this.list, lines.length, () => new Running());
    lines.forEach((line, i) => this.slots[i].show(line, this.store.spans.calls.get(`${line.path}\n${line.name}`)));
    this.list.hidden = !lines.length;
    this.empty.hidden = !this.alone || lines.length > 0;
  }
}

class Running {
  constructor() {
    this.path = el("span", { class: "agentnb-path" });
    this.name = el("span");
    this.bar = el("span", { class: "agentnb-meter", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 });
    this.fill = el("span", { class: "agentnb-meter-fill" });
    this.bar.append(this.fill);
    this.text = el("span", { class: "agentnb-progress-text" });
    this.el = el("li", {}, el("span", { class: "agentnb-progress-call" }, this.path, this.name), this.bar, this.text);
  }

  /**
   * @param {LiveLine} line
   * @param {Span | undefined} call
   */
  show(line, call) {
    const { share, text } = line.progress ?? { text: "" },
      name = call?.name ?? line.name;
    say(this.path, line.path);
    say(this.name, name);
    say(this.text, text);
    this.bar.hidden = share === undefined;
    this.text.classList.toggle("agentnb-wide", share === undefined);
    if (share === undefined) return;
    const percent = Math.round(100 * share);
    this.fill.style.width = `${100 * share}%`;
    this.bar.setAttribute("aria-valuenow", String(percent));
    this.bar.setAttribute("aria-valuetext", this.text.textContent || `${percent} %`);
    this.bar.setAttribute("aria-label", this.name.textContent);
  }
}
