// A range of time on the strip, and its sums: what models, calls and a person took in it, and how many tokens. It is set by
// dragging with Shift, or from the menu of the strip, and cleared by Escape.

import { iconOnly } from "./icons.js";
import { count, duration, el, number, say, svg, visible } from "./text.js";
import { placeOf } from "./lanes.js";

const LEAST_RANGE = 3; // pixels; a shorter one is a click

export class Range {
  /** @param {import("./strip.js").Strip} strip */
  constructor(strip) {
    this.strip = strip;
    this.from = /** @type {number | null} */ (null); // seconds
    this.to = 0;
    this.isHeld = false; // whether a person drags it
    this.follows = false; // whether it extends to the playhead
    this.box = svg("rect", { class: "agentnb-strip-range", y: 1, visibility: "hidden" });
    this.words = el("span", { class: "agentnb-cut" });
    this.parts = ["model", "calls", "you", "paused"].map((name, i) => {
      const seconds = el("b"),
        glyph = el("i", { class: "agentnb-glyph", "data-kind": ["model", "call", "person", "pause"][i], "aria-hidden": "true" });
      return { seconds, el: el("span", { class: "agentnb-range-part" }, glyph, ` ${name} `, seconds) };
    });
    this.usage = el("span", { class: "agentnb-cut agentnb-dim" });
    this.el = el(
      "div",
      { class: "agentnb-range", role: "group", "aria-label": "Range", hidden: true },
      this.words,
      ...this.parts.map((part) => part.el),
      this.usage,
      el("span", { class: "agentnb-push" }),
      iconOnly("cross", "Clear the range", () => this.clear(), { title: "Clear the range (Esc)" }),
    );
  }

  /**
   * @param {number} time
   * @param {{ follows?: boolean }} [options]
   */
  begin(time, { follows = false } = {}) {
    this.from = this.to = time;
    this.follows = follows;
    this.isHeld = !follows;
    this.draw();
  }

  /** @param {number} time */
  extend(time) {
    if (this.from === null) return;
    this.to = time;
    this.draw();
  }

  // A person has let go.
  end() {
    const { axis } = this.strip;
    this.isHeld = false;
    if (this.from !== null && Math.abs(placeOf(axis, this.to) - placeOf(axis, this.from)) < LEAST_RANGE) this.clear();
  }

  // Returns whether there was a range.
  clear() {
    const was = this.from !== null;
    this.from = null;
    this.follows = this.isHeld = false;
    this.draw();
    return was;
  }

  draw() {
    const { strip, from, box } = this;
    box.setAttribute("visibility", from === null ? "hidden" : "visible");
    this.el.hidden = from === null;
    if (from === null) return;
    const [start, end] = [Math.min(from, this.to), Math.max(from, this.to)],
      x = strip.gutter + placeOf(strip.axis, start),
      wide = strip.gutter + placeOf(strip.axis, end) - x;
    for (const [name, value] of Object.entries({ x, width: Math.max(1, wide), height: Math.max(0, strip.foot - 1) })) box.setAttribute(name, value.toFixed(1));
    this.tell(start, end);
  }

  /**
   * @param {number} start
   * @param {number} end
   */
  tell(start, end) {
    const { all, whole } = this.strip.store,
      now = this.strip.lanes.withOpen(whole, Math.max(end, whole.last)),
      pauses = whole.all.filter(({ kind }) => kind === "pause").flatMap((span) => span.intervals.map(({ start: begin, end: over }) => /** @type {[number, number]} */ ([begin, over ?? end]))),
      // As in the sum of a run: calls side by side are counted each, waits side by side once.
      seconds = [now.models.times(), now.calls.times(), now.waits.union(), pauses].map((times) => within(times, start, end)),
      first = all.findIndex(({ time }) => time >= start),
      last = all.findLastIndex(({ time }) => time <= end);
    say(this.words, `${first >= 0 && last >= first ? `#${first} to #${last}, ` : ""}${duration(end - start)}:`);
    this.parts.forEach((part, i) => {
      part.el.hidden = !seconds[i] && i > 0;
      say(part.seconds, duration(seconds[i]));
    });
    const ended = whole.turns.filter(({ ended: at }) => at !== null && at >= start && at <= end),
      calls = whole.all.filter(({ kind, performed, intervals }) => kind === "call" && !performed && intervals.some((one) => one.kind === "run" && one.start <= end && (one.end ?? end) >= start)),
      [sent, received, cost] = ["input_tokens", "output_tokens", "cost"].map((name) => ended.reduce((sum, turn) => sum + (turn.usage?.[name] ?? 0), 0)),
      words = [
        ended.length ? count(ended.length, "answer") : "",
        calls.length ? count(calls.length, "call") : "",
        sent || received ? `${number(sent)} tokens in, ${number(received)} out` : "",
        cost ? `$${number(cost)}` : "",
      ];
    say(this.usage, words.filter(Boolean).join(" \u00b7 "));
    this.usage.title = visible(this.usage.textContent);
  }
}

/**
 * The seconds of some times that are in a range.
 * @param {[start: number, end: number][]} times
 * @param {number} from
 * @param {number} until
 */
export const within = (times, from, until) => times.reduce((sum, [start, end]) => sum + Math.max(0, Math.min(end, until) - Math.max(start, from)), 0);
