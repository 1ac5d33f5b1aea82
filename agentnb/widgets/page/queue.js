// The queued messages that have not been delivered yet. Each can be withdrawn.

import { allow, button, el } from "./text.js";

export class Queue {
  /**
   * @param {Store} store
   * @param {(answer: Done) => void} answered
   */
  constructor(store, answered) {
    this.store = store;
    this.answered = answered;
    this.rows = /** @type {HTMLLIElement[]} */ ([]);
    this.listed = ""; // what is shown
    this.el = el("ul", { class: "agentnb-queue", "aria-label": "Messages not delivered yet", hidden: true });
  }

  update() {
    const queued = this.store.model.get("status")?.queued ?? [],
      key = JSON.stringify(queued);
    if (key !== this.listed) {
      this.listed = key;
      const at = this.rows.findIndex((row) => row.contains(document.activeElement));
      this.rows = queued.map((one) => this.row(one));
      this.el.replaceChildren(...this.rows);
      if (at >= 0) this.rows[Math.min(at, this.rows.length - 1)]?.querySelector("button")?.focus();
    }
    for (const row of this.rows) for (const back of row.querySelectorAll("button")) allow(back, this.store);
    this.el.hidden = !queued.length;
  }

  /** @param {Status["queued"][number]} one */
  row(one) {
    const back = button(
      "Withdraw",
      () => this.store.ask({ type: "withdraw", digest: one.digest }, (answer) => this.answered(answer)),
      { class: "agentnb-link", "aria-label": `Withdraw: ${one.text}` },
    );
    const kind = one.queue === "follow_up" ? "follow up" : one.queue;
    return el(
      "li",
      {},
      el("span", { class: "agentnb-dim", text: `${kind}, not delivered yet` }),
      el("span", { class: "agentnb-queued-text", text: one.text }),
      back,
    );
  }
}
