// The arms of a study: how many of the runs of each have ended and how, and the share of an outcome with its interval, all
// on one axis.

import { duration, el, number, say, svg } from "./text.js";

const WIDE = 150, // pixels of the axis of the shares
  HIGH = 20,
  SIDE = 6;
const percent = (/** @type {number} */ share) => `${Math.round(share * 100)}%`;

export class Arms {
  /** @param {import("./study_store.js").StudyStore} store */
  constructor(store) {
    this.store = store;
    this.chosen = 0; // the outcome whose share is shown
    this.drawn = "";
    this.which = el("select", { class: "agentnb-select agentnb-arms-which", "aria-label": "Outcome whose share is shown" });
    this.which.addEventListener("change", () => {
      this.chosen = Number(this.which.value);
      this.update();
    });
    this.body = el("tbody");
    this.top = el("tr");
    this.table = el("table", { class: "agentnb-arms", "aria-label": "Arms" }, el("thead", {}, this.top), this.body);
    this.el = el("div", { class: "agentnb-arms-place", tabindex: "0", role: "region", "aria-label": "Sums of the arms", hidden: true }, this.table);
  }

  update() {
    const { arms = [], outcomes = [] } = this.store.head(),
      key = JSON.stringify([arms, outcomes, this.chosen]);
    if (key === this.drawn) return;
    this.drawn = key;
    this.el.hidden = !arms.some(({ ended }) => ended);
    if (this.chosen >= outcomes.length) this.chosen = 0;
    const hadFocus = document.activeElement === this.which;
    this.which.replaceChildren(...outcomes.map((text, i) => el("option", { value: String(i), text: `ends with “${text}”` })));
    this.which.value = String(this.chosen);
    const has = outcomes.length > 0;
    this.top.replaceChildren(
      ...["arm", "runs"].map((text) => el("th", { scope: "col", text })),
      ...(has ? [el("th", { scope: "col", colspan: "2" }, this.which), el("th", { scope: "col", class: "agentnb-arms-axis" }, axis())] : []),
      ...(has ? [el("th", { scope: "col", class: "agentnb-arms-range", text: "95%" })] : []),
      ...["turns", "tokens", "time", "you"].map((text) => el("th", { scope: "col", class: "agentnb-arms-number", text, title: TITLES[text] })),
    );
    this.body.replaceChildren(...arms.map((arm) => this.row(arm, has)));
    if (hadFocus) this.which.focus();
  }

  /**
   * @param {StudyArm} arm
   * @param {boolean} has whether there is an outcome
   */
  row(arm, has) {
    const [amount, low, high] = arm.shares[this.chosen] ?? [0, 0, 1],
      share = arm.ended ? amount / arm.ended : 0;
    const shares = arm.ended
      ? [
          el("td", {}, el("b", { text: percent(share) })),
          el("td", { class: "agentnb-dim", text: `${number(amount)} of ${number(arm.ended)}` }),
          el("td", { class: "agentnb-arms-axis" }, drawnInterval(share, low, high)),
          el("td", { class: "agentnb-dim agentnb-arms-range", text: `${percent(low)} to ${percent(high)}` }),
        ]
      : [el("td", { colspan: "3", class: "agentnb-dim", text: "none has ended" }), el("td", { class: "agentnb-arms-range" })];
    const figures = [
      arm.turns === null ? "" : arm.turns.toFixed(1),
      arm.tokens ? number(arm.tokens) : "",
      arm.seconds === null ? "" : duration(arm.seconds),
      arm.waited === null ? "" : duration(arm.waited),
    ];
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { class: "agentnb-cut agentnb-isolated agentnb-arms-name", text: arm.name, title: arm.name })),
      el("td", {}, ...counted(arm)),
      ...(has ? shares : []),
      ...figures.map((text) => el("td", { class: "agentnb-arms-number", text })),
    );
  }
}

/** @type {Record<string, string>} */
const TITLES = { turns: "Requests to models, on average", tokens: "Tokens, on average", time: "Time of a run, median", you: "Time that you were waited for, median of the runs that asked" };

/** @param {StudyArm} arm */
function counted({ runs, counts }) {
  const parts = [el("span", { text: `${number((counts.done ?? 0))} of ${number(runs)}` })];
  for (const [status, kind, words] of [["waiting", "person", "for you"], ["failed", "call", "failed"], ["running", "model", "running"]]) {
    const many = counts[status];
    if (!many) continue;
    parts.push(el("span", { class: "agentnb-arms-other" }, el("i", { class: "agentnb-glyph", "data-kind": kind, "data-status": status === "failed" ? status : null, "aria-hidden": "true" }), `${number(many)} ${words}`));
  }
  return parts;
}

// The ends of the axis.
function axis() {
  const node = el("span", { class: "agentnb-arms-ends" });
  for (const text of ["0", "100%"]) {
    const end = el("span");
    say(end, text);
    node.append(end);
  }
  return node;
}

/**
 * @param {number} share
 * @param {number} low
 * @param {number} high
 */
function drawnInterval(share, low, high) {
  const x = (/** @type {number} */ of) => (SIDE + of * (WIDE - 2 * SIDE)).toFixed(1),
    middle = HIGH / 2;
  return svg(
    "svg",
    { class: "agentnb-interval", width: WIDE, height: HIGH, "aria-hidden": "true" },
    svg("path", { class: "agentnb-interval-axis", d: `M${SIDE} ${middle}H${WIDE - SIDE}` }),
    svg("path", { class: "agentnb-interval-range", d: `M${x(low)} ${middle}H${x(high)}M${x(low)} ${middle - 4}v8M${x(high)} ${middle - 4}v8` }),
    svg("circle", { cx: x(share), cy: middle, r: 4.5 }),
  );
}
