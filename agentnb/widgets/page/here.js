// The state that a loop had right after an event. The kernel folds it from the events, when a person wants to see it.

import { drawData, factsOf } from "./data.js";
import { GONE, el, number, say } from "./text.js";

export class StateHere {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.row = /** @type {EventRow | null} */ (null);
    this.asked = /** @type {EventRow | null} */ (null); // the event whose state was asked for last
    this.busy = false;
    this.phase = el("span", { class: "agentnb-right" });
    this.body = el("div");
    this.el = el("details", { class: "agentnb-state-here" }, el("summary", {}, el("span", { text: "State here" }), this.phase), this.body);
    this.el.addEventListener("toggle", () => this.ask());
  }

  /** @param {EventRow} row */
  show(row) {
    if (this.row !== row) this.row = row;
    this.el.hidden = this.store.all[row.seq] !== row; // the row is from a saved page
    say(this.phase, row.phase ?? "");
    this.ask();
  }

  ask() {
    const { row, store } = this;
    if (!row || !this.el.open || this.busy || this.asked === row) return;
    if (store.gone) {
      this.body.replaceChildren(el("p", { class: "agentnb-dim", text: GONE }));
      return;
    }
    this.busy = true;
    this.asked = row;
    store.ask({ type: "state", path: row.path ?? "", position: row.seq + 1 }, (answer) => {
      this.busy = false;
      if (!answer.ok) this.body.replaceChildren(el("p", { class: "agentnb-error", text: answer.error }));
      else this.draw(answer);
      this.ask(); // another event may be shown by now
    });
  }

  /** @param {{ facts: Record<string, string | number>, values: Record<string, unknown> }} state */
  draw({ facts, values }) {
    this.body.replaceChildren(
      factsOf(Object.entries(facts).map(([name, value]) => [name, typeof value === "number" ? number(value) : value])),
      ...(Object.keys(values).length ? [el("h4", {}, el("span", { text: "Values" })), drawData(values)] : []),
    );
  }
}
