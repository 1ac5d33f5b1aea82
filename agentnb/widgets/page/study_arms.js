// The arms of a study: how many of the runs of each have ended and how, and the share of an outcome with its interval, all
// on one axis.

import { count, duration, el, number, say, svg } from "./text.js";

const AXIS_WIDE = 150, // pixels of the axis of the shares
  AXIS_HIGH = 20,
  AXIS_SIDE = 6;
export const percent = (/** @type {number} */ share) => `${Math.round(share * 100)}%`;

export class Arms {
  /**
   * @param {import("./study_store.js").StudyStore} store
   * @param {() => void} changed called when the user has chosen another outcome, whose share is then shown
   */
  constructor(store, changed) {
    this.store = store;
    this.chosen = 0; // the outcome whose share is shown
    this.drawn = "";
    this.which = el("select", { class: "agentnb-select agentnb-arms-which", "aria-label": "Outcome whose share is shown" });
    this.which.addEventListener("change", () => {
      this.chosen = Number(this.which.value);
      this.update();
      changed();
    });
    this.body = el("tbody");
    this.top = el("tr");
    this.table = el("table", { class: "agentnb-arms", "aria-label": "Arms" }, el("thead", {}, this.top), this.body);
    this.verdict = el("p", { class: "agentnb-arms-verdict", hidden: true });
    this.el = el("div", { class: "agentnb-arms-place", tabindex: "0", role: "region", "aria-label": "Sums of the arms", hidden: true }, this.table, this.verdict);
  }

  // The outcome whose share is shown; empty if several runs have none in common.
  outcome() {
    return this.store.head().outcomes?.[this.chosen] ?? "";
  }

  update() {
    const { arms = [], outcomes = [], differences = [] } = this.store.head(),
      news = JSON.stringify([arms, outcomes, differences, this.chosen]);
    if (news === this.drawn) return;
    this.drawn = news;
    this.el.hidden = !arms.some(({ ended }) => ended);
    if (this.chosen >= outcomes.length) this.chosen = 0;
    const hadFocus = document.activeElement === this.which;
    this.which.replaceChildren(...outcomes.map((text, i) => el("option", { value: String(i), text: `ends with “${text}”` })));
    this.which.value = String(this.chosen);
    const has = outcomes.length > 0;
    this.top.replaceChildren(
      ...["arm", "runs"].map((text) => el("th", { scope: "col", text })),
      ...(has ? [el("th", { scope: "col" }, this.which), el("th", { scope: "col", class: "agentnb-arms-axis" }, axisEnds())] : []),
      ...(has ? [el("th", { scope: "col", class: "agentnb-arms-range", text: "95%" })] : []),
      ...FIGURES.filter(([, key]) => hasFigure(arms, key)).map(([text]) => el("th", { scope: "col", class: "agentnb-arms-number", text, title: ARM_TITLES[text] })),
    );
    this.body.replaceChildren(...arms.map((arm) => this.row(arm, has)));
    this.tell(differences[this.chosen]);
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
          el("td", {}, el("b", { text: percent(share) }), el("span", { class: "agentnb-dim agentnb-arms-of", text: `${number(amount)} of ${number(arm.ended)}` })),
          el("td", { class: "agentnb-arms-axis" }, drawnInterval(share, low, high)),
          el("td", { class: "agentnb-dim agentnb-arms-range", text: `${percent(low)} to ${percent(high)}` }),
        ]
      : [el("td", { colspan: "2", class: "agentnb-dim", text: "none has ended" }), el("td", { class: "agentnb-arms-range" })];
    const { arms = [] } = this.store.head(),
      figures = FIGURES.filter(([, key]) => hasFigure(arms, key)).map(([, key, words]) => ({ text: arm[key] === null ? "" : words(arm[key]), within: halfWidth(arm, key) }));
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { class: "agentnb-cut agentnb-isolated agentnb-arms-name", text: arm.name, title: arm.name })),
      el("td", {}, ...runsOfArm(arm)),
      ...(has ? shares : []),
      ...figures.map(({ text, within: size }) => el("td", { class: "agentnb-arms-number", text }, size ? el("span", { class: "agentnb-dim", text: ` \u00b1 ${size}` }) : null)),
    );
  }

  /**
   * The difference of two arms, in words.
   * @param {[difference: number, low: number, high: number] | undefined} found
   */
  tell(found) {
    this.verdict.hidden = !found;
    if (!found) return;
    const isMore = found[0] >= 0,
      bounds = isMore ? [found[1], found[2]] : [-found[2], -found[1]],
      [from, to] = bounds.map((share) => String(Math.round(100 * share)).replace("-", "\u2212"));
    this.verdict.replaceChildren(
      "The difference is ",
      el("b", { text: count(Math.round(100 * Math.abs(found[0])), "point") }),
      `, ${from} to ${to} (95%, Newcombe)${bounds[0] <= 0 ? ": it may be chance." : "."}`,
    );
  }
}

/** @type {[name: string, key: "turns" | "tokens" | "seconds" | "waited", words: (value: number) => string][]} */
const FIGURES = [
  ["turns", "turns", (value) => value.toFixed(1)],
  ["tokens", "tokens", number],
  ["time", "seconds", duration],
  ["your wait", "waited", duration],
];
/**
 * Half the width of the interval of a mean, in words.
 * @param {StudyArm} arm
 * @param {string} figure
 */
function halfWidth({ turns_within: turns, tokens_within: tokens }, figure) {
  if (figure === "turns" && turns !== null) return turns.toFixed(1);
  return figure === "tokens" && tokens !== null ? number(Math.round(tokens)) : "";
}
/**
 * @param {StudyArm[]} arms
 * @param {"turns" | "tokens" | "seconds" | "waited"} figure
 */
const hasFigure = (arms, figure) => arms.some((arm) => arm[figure]);
/** @type {Record<string, string>} */
const ARM_TITLES = { turns: "Requests to models: the mean, and its interval of 95%", tokens: "Tokens: the mean, and its interval of 95%", time: "Time of a run, median", "your wait": "Time that you were waited for, median of the runs that asked" };

/** @param {StudyArm} arm */
function runsOfArm({ runs, counts }) {
  const parts = [el("span", { text: `${number((counts.done ?? 0))} of ${number(runs)}` })];
  for (const [status, kind, words] of [["waiting", "person", "for you"], ["paused", "person", "paused"], ["failed", "call", "failed"], ["running", "model", "running"]]) {
    const many = counts[status];
    if (!many) continue;
    parts.push(el("span", { class: "agentnb-arms-other" }, el("i", { class: "agentnb-glyph", "data-kind": kind, "data-status": status === "failed" ? status : null, "aria-hidden": "true" }), `${number(many)} ${words}`));
  }
  return parts;
}

// The ends of the axis.
function axisEnds() {
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
export function drawnInterval(share, low, high) {
  const x = (/** @type {number} */ of) => (AXIS_SIDE + of * (AXIS_WIDE - 2 * AXIS_SIDE)).toFixed(1),
    middle = AXIS_HIGH / 2;
  return svg(
    "svg",
    { class: "agentnb-interval", width: AXIS_WIDE, height: AXIS_HIGH, "aria-hidden": "true" },
    svg("path", { class: "agentnb-interval-axis", d: `M${AXIS_SIDE} ${middle}H${AXIS_WIDE - AXIS_SIDE}` }),
    svg("path", { class: "agentnb-interval-range", d: `M${x(low)} ${middle}H${x(high)}M${x(low)} ${middle - 4}v8M${x(high)} ${middle - 4}v8` }),
    svg("circle", { cx: x(share), cy: middle, r: 4.5 }),
  );
}
