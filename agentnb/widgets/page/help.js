// The keys of the panel: what each does, and the sheet that lists them.

import { iconOnly } from "./icons.js";
import { el } from "./text.js";

const KEY_NAMES = /** @type {[key: string, does: string, needs?: "kernel"][]} */ ([
  ["Space", "Play or pause"],
  ["S", "Step"],
  ["L", "Go to the newest event, and stay there"],
  ["/", "Find"],
  ["W", "What if: change something at the chosen event", "kernel"],
  ["B", "Break here: pause at such events", "kernel"],
  ["1 to 9", "The tabs"],
  ["Esc", "Close what is open; then leave to the panel"],
  ["\u2191 \u2193", "In a list: row"],
  ["\u2190 \u2192", "In a list: cause, effect"],
  ["Home End", "In a list: first, last"],
  ["Enter", "In the message box: Steer", "kernel"],
]);

export class Help {
  /** @param {boolean} isFile whether this is the panel in an exported file */
  constructor(isFile) {
    const keys = KEY_NAMES.filter((one) => !(isFile && one[2]));
    this.before = /** @type {Element | null} */ (null); // what had the focus
    this.done = iconOnly("cross", "Close", () => this.close());
    this.el = el(
      "section",
      { class: "agentnb-help", role: "dialog", "aria-label": "Keys", hidden: true },
      el("div", { class: "agentnb-help-head" }, el("b", { text: "Keys" }), el("span", { class: "agentnb-push" }), this.done),
      el("dl", {}, ...keys.flatMap(([key, does]) => [el("dt", {}, ...key.split(" ").map((one) => (one === "to" ? " to " : el("kbd", { text: one })))), el("dd", { text: does })])),
      el("p", { class: "agentnb-dim", text: "They work while the panel has the focus, but not in a field." }),
    );
  }

  open() {
    this.before = document.activeElement;
    this.el.hidden = false;
    this.done.focus();
  }

  close() {
    this.el.hidden = true;
    if (this.before instanceof HTMLElement) this.before.focus();
  }
}
