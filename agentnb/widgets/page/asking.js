// What a person who decides wants to know about a question besides its arguments. The detail pane shows it, too.

import { el, visible } from "./text.js";

/**
 * The minutes and seconds that are left until a question's deadline; empty without a deadline.
 * @param {Question} item
 * @param {number} now
 */
export function timeLeft({ deadline }, now) {
  if (!deadline) return "";
  const seconds = Math.round(deadline - now);
  if (seconds <= 0) return "time is up: the call is rejected";
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} left, then the call is rejected`;
}

/**
 * The badges of a question: that it asks, or may be done, and what its tool needs.
 * @param {Question} item
 */
export const badges = ({ unknown, needs, why }) => [
  el("span", {
    class: "agentnb-badge",
    "data-kind": "person",
    title: why,
    text: unknown ? "maybe done" : "asks you",
  }),
  ...(needs ?? []).map((need) => el("span", { class: "agentnb-badge", title: `The tool needs ${need}.`, text: need })),
];

/**
 * Why a call waits for a person and what its tool does, as headings and paragraphs.
 * @param {Question} item
 * @param {number} now
 */
export function whyItAsks(item, now) {
  const left = timeLeft(item, now),
    needs = (item.needs ?? []).map(visible);
  return [
    el("h4", { text: "Why it asks" }),
    el("p", { class: "agentnb-isolated", text: item.why }),
    el(
      "p",
      { class: "agentnb-dim" },
      ...(needs.length ? ["It needs ", el("b", { text: needs.join(", ") }), ". "] : []),
      left ? `${left}.` : "No deadline.",
    ),
    ...(item.description
      ? [el("h4", { text: "Tool" }), el("p", { class: "agentnb-isolated agentnb-own-view", text: item.description })]
      : []),
  ];
}
