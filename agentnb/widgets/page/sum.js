// What a run has cost, when it is over: its time, split into that of models, calls and the person, its tokens and its cost.

import { duration, el, fit, number, say } from "./text.js";

/** @type {[kind: string, name: string, seconds: (spans: Spans) => number, title?: string][]} */
const SPENT_ON = [
  ["model", "model", ({ spent }) => spent.model],
  ["call", "calls", ({ spent }) => spent.call],
  ["person", "you", ({ spent }) => spent.wait, "A person was asked"],
  ["pause", "paused", ({ paused }) => paused],
  ["pause", "idle", ({ idle }) => idle, "Nothing ran and nobody was asked, for example between two steps"],
];

export class Sum {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.total = el("b");
    this.split = el("span", { class: "agentnb-split", "aria-hidden": "true" });
    this.parts = SPENT_ON.map(([kind, name, , title]) => {
      const bar = el("i", { "data-kind": kind }),
        seconds = el("b");
      this.split.append(bar);
      return { bar, seconds, el: el("span", { title }, el("i", { class: "agentnb-glyph", "data-kind": kind, "aria-hidden": "true" }), ` ${name} `, seconds) };
    });
    this.usage = el("span", { class: "agentnb-sum-usage" });
    this.el = el(
      "div",
      { class: "agentnb-sum", role: "group", "aria-label": "Sum" },
      ...[this.total, this.split, ...this.parts.map((part) => part.el), el("span", { class: "agentnb-push" }), this.usage],
    );
  }

  update() {
    const { spans, rows } = this.store,
      took = rows.length ? spans.worked(this.store.until()) : 0,
      parts = SPENT_ON.map(([, , seconds]) => seconds(spans)),
      sum = parts.reduce((all, seconds) => all + seconds, 0.001);
    say(this.total, took > 0 ? duration(took) : "");
    this.parts.forEach((part, i) => {
      const seconds = parts[i];
      part.el.hidden = part.bar.hidden = !seconds;
      part.bar.style.flexGrow = String(Math.round((1000 * seconds) / sum));
      say(part.seconds, duration(seconds));
    });
    /** @type {Record<string, string>} */
    const words = { input_tokens: "tokens in", output_tokens: "out" },
      usage = Object.entries(this.store.status().usage ?? {}),
      figures = usage.map(([name, amount]) => (name === "cost" ? [`$${number(amount)}`, ""] : [number(amount), words[name] ?? name.replaceAll("_", " ")])),
      items = fit(this.usage, figures.length, () => el("span", {}, el("b"), " ", el("span")));
    figures.forEach((figure, i) => [...items[i].children].forEach((node, at) => say(node, figure[at])));
  }
}
