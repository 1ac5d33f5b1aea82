// What the panel of a run that has not begun shows: how to begin, and the tools there are.

import { count, el, fit, say } from "./text.js";

const TOOLS_NAMED = 40; // tools, at most

export class Ready {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.words = el("span", { class: "agentnb-dim" });
    this.tools = el("ul", { class: "agentnb-ready-tools", "aria-label": "Tools" });
    this.el = el("div", { class: "agentnb-ready", hidden: true }, el("p", {}, el("b", { text: "Nothing has happened yet." }), " ", this.words), this.tools);
  }

  // Whether the run has not begun.
  isDue() {
    const { store } = this;
    return !store.replays && !store.total && !store.all.length && !store.gone && store.model.get("status")?.sign === "ready";
  }

  update() {
    this.el.hidden = !this.isDue();
    if (this.el.hidden) return;
    const tools = this.store.model.get("offered") ?? [],
      asks = tools.filter(([, asked]) => asked).length,
      words = tools.length ? ` ${count(tools.length, "tool")}, of which ${asks || "none"} ${asks === 1 ? "asks" : "ask"} before ${asks === 1 ? "it runs" : "they run"}:` : "";
    say(this.words, `Step through it, or play it to the first question.${tools.length ? words : ""}`);
    const items = fit(this.tools, Math.min(tools.length, TOOLS_NAMED), () => el("li", { class: "agentnb-badge" }, el("i", { class: "agentnb-glyph", "data-kind": "person", "aria-hidden": "true" }), el("code")));
    items.forEach((item, i) => {
      const [name, asked] = tools[i];
      item.dataset.kind = asked ? "person" : "";
      item.title = asked ? "It asks before it runs" : "";
      /** @type {HTMLElement} */ (item.firstElementChild).hidden = !asked;
      if (item.lastElementChild) say(item.lastElementChild, name);
    });
  }
}
