// The timeline: a row for each span that took time, to scale. Spans that are open grow.

import { count, duration, el, fit, say, visible } from "./text.js";
import { List } from "./list.js";
import { worked } from "./spans.js";

const TICKS = 5; // ticks on the scale, about
const GROWS = 250; // milliseconds between two drawings while no event comes
const NAMED = 3; // spans that a call has waited for, at most
const GROUPS = { loop: "run", model: "model", call: "call", pause: "approval" }; // the colour of each kind
const SPOKEN = { loop: "loop", model: "model", call: "call", pause: "run" };

/**
 * The times between which the timeline is drawn, the current time and the run's beginning, in seconds.
 * @typedef {{ from: number, to: number, now: number, began: number }} Frame
 */

export class Timeline {
  /**
   * @param {Store} store
   * @param {(at: number) => void} go shows the event of this number
   */
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.selected = /** @type {Span | null} */ (null);
    this.rows = /** @type {Span[]} */ ([]); // in the order of their rows
    this.at = 0; // the time up to which it is drawn
    this.shown = { from: 0, to: 0, now: 0, began: 0 };
    this.timer = this.frame = 0;
    /** @type {List<Bar>} */
    this.list = new List(this, { label: "Timeline, in order of start", around: 8 });
    this.scale = el(
      "select",
      { class: "agentnb-select", "aria-label": "Scale of the timeline" },
      el("option", { value: "", text: "whole run" }),
      el("option", { value: "view", text: "visible rows" }),
    );
    this.count = el("span", { class: "agentnb-dim agentnb-amount" });
    /**
     * @param {string} kind
     * @param {string} words
     */
    const sign = (kind, words) =>
      el("span", { class: "agentnb-sign" }, el("span", { class: "agentnb-stretch", "data-kind": kind }), words);
    const legend = el(
      "span",
      { class: "agentnb-legend agentnb-dim", "aria-hidden": "true" },
      sign("loop", "loop"),
      sign("model", "model"),
      sign("call", "call"),
      sign("wait", "waits for you"),
      sign("open", "waits for others"),
    );
    this.ticks = el("div", { class: "agentnb-ticks", "aria-hidden": "true" });
    this.axis = el("div", { class: "agentnb-axis" }, el("span"), this.ticks);
    this.el = el(
      "div",
      { class: "agentnb-events agentnb-timeline", role: "group", "aria-label": "Timeline" },
      el("div", { class: "agentnb-filter" }, this.scale, this.count, legend, this.list.latest),
      this.axis,
      this.list.el,
    );
    this.scale.addEventListener("change", () => this.draw());
    this.draw();
  }

  update() {
    this.draw();
  }

  draw() {
    this.rows = this.store.spans.order();
    this.list.draw();
    const { length } = this.rows,
      { began, last } = this.store.spans;
    say(this.list.empty, length ? "" : this.store.nothing("rows"));
    this.axis.hidden = !length;
    say(this.count, `${count(length, "row")}, ${duration(Math.max(0, this.at - began))}`);
    clearTimeout(this.timer);
    // Draw in a frame: the browser reports scrolling before it, so a person who has just left the end is not taken back.
    const grow = () => {
      this.frame = requestAnimationFrame(() => this.isSeen() && this.draw());
    };
    if (this.at > last) this.timer = setTimeout(grow, GROWS);
  }

  length() {
    return this.rows.length;
  }

  chosen() {
    return this.selected ? this.rows.indexOf(this.selected) : -1;
  }

  /**
   * @param {number} start
   * @param {number} end
   */
  begin(start, end) {
    const { began } = this.store.spans;
    this.at = this.store.until();
    const [from, to] = this.scope(this.rows.slice(start, end), this.at);
    this.shown = { from, to, now: this.at, began };
    this.drawTicks(from - began, to - began);
  }

  /** @param {string} id */
  make(id) {
    return new Bar(id);
  }

  /**
   * @param {Bar} bar
   * @param {number} index
   */
  show(bar, index) {
    bar.show(this.rows[index], this.shown, this.store);
    return index;
  }

  isSeen() {
    return this.el.isConnected && this.el.getClientRects().length > 0;
  }

  /**
   * @param {Span[]} seen
   * @param {number} now
   * @returns {[from: number, to: number]}
   */
  scope(seen, now) {
    const { began } = this.store.spans;
    // The visible spans, without loops, which last as long as everything in them.
    const inner = seen.filter((span) => span.kind !== "loop");
    if (!this.scale.value || !inner.length) return [began, Math.max(now, began + 0.001)];
    const from = Math.min(...inner.map((span) => span.opened)),
      to = Math.max(...inner.map((span) => span.ended ?? now));
    return [from, Math.max(to, from + 0.001)];
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  drawTicks(from, to) {
    const step = niceStep((to - from) / TICKS),
      first = Math.ceil(from / step - 1e-9),
      ticks = [];
    for (let i = first; i * step <= to && ticks.length < 3 * TICKS; i++) ticks.push(i * step);
    const marks = fit(this.ticks, ticks.length, () => el("span", { class: "agentnb-tick" }));
    ticks.forEach((tick, i) => {
      say(marks[i], tick ? `+${tickWords(tick, step)}` : "0");
      marks[i].style.left = `${(100 * (tick - from)) / (to - from)}%`;
    });
  }

  /**
   * @param {number} index
   * @param {HTMLElement} target
   */
  press(index, target) {
    this.selected = this.rows[index];
    const { stretch } = target.dataset,
      { position, intervals } = this.rows[index];
    this.go(stretch === undefined ? position : intervals[Number(stretch)].position);
  }

  /** @param {number} index */
  choose(index) {
    this.selected = this.rows[index];
    this.list.reveal(index);
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  key({ key }) {
    if (key !== "Enter" || !this.selected) return false;
    this.go(this.selected.position);
    return true;
  }

  dispose() {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
  }
}

class Bar {
  /** @param {string} id */
  constructor(id) {
    this.name = el("span", { class: "agentnb-thing" });
    this.took = el("span", { class: "agentnb-took" });
    this.open = el("span", { class: "agentnb-open" });
    this.track = el("span", { class: "agentnb-track" }, this.open);
    this.stretches = /** @type {HTMLElement[]} */ ([]);
    this.el = el("div", { class: "agentnb-row", role: "option", id }, this.name, " ", this.took, this.track);
  }

  /**
   * @param {Span} span
   * @param {Frame} frame
   * @param {Store} store
   */
  show(span, frame, store) {
    const { el: node } = this,
      end = span.ended ?? frame.now;
    node.dataset.group = span.failed ? "error" : GROUPS[span.kind];
    node.dataset.kind = span.kind;
    say(this.name, span.name);
    this.name.style.paddingLeft = `${Math.min(6, span.depth) * 12}px`;
    say(this.took, awaits(span) ? "waits" : duration(lasted(span, end)));
    place(this.open, span.opened, end, frame);
    this.open.hidden = span.kind === "loop";
    while (this.stretches.length > span.intervals.length) this.stretches.pop()?.remove();
    while (this.stretches.length < span.intervals.length) {
      const part = el("span", { class: "agentnb-stretch", "data-stretch": this.stretches.length });
      this.stretches.push(part);
      this.track.append(part);
    }
    span.intervals.forEach((interval, i) => {
      const part = this.stretches[i];
      part.dataset.kind = interval.kind === "wait" ? "wait" : span.kind;
      part.classList.toggle("agentnb-going", interval.end === null);
      place(part, interval.start, interval.end ?? frame.now, frame);
    });
    const label = visible(spoken(span, end, frame, store));
    if (node.getAttribute("aria-label") !== label) {
      node.setAttribute("aria-label", label);
      node.title = label;
    }
  }
}

/**
 * The duration of a span: of a call and of a request the time that it ran, without its waits.
 * @param {Span} span
 * @param {number} end
 */
function lasted(span, end) {
  return span.kind === "call" || span.kind === "model" ? worked(span, end) : Math.max(0, end - span.opened);
}

/**
 * Whether a call waits for a person now.
 * @param {Span} span
 */
function awaits({ kind, intervals }) {
  const last = intervals.at(-1);
  return kind === "call" && last?.kind === "wait" && last.end === null;
}

/**
 * @param {HTMLElement} part
 * @param {number} start
 * @param {number} end
 * @param {Frame} frame
 */
function place(part, start, end, { from, to }) {
  const left = Math.max(0, (start - from) / (to - from)),
    right = Math.min(1, (end - from) / (to - from));
  part.style.display = right < 0 || left > 1 ? "none" : "";
  part.style.left = `min(${100 * left}%, 100% - 2px)`;
  part.style.width = `max(2px, ${100 * Math.max(0, right - left)}%)`;
}

/**
 * @param {Span} span
 * @param {number} end
 * @param {Frame} frame
 * @param {Store} store
 */
function spoken(span, end, { began }, store) {
  const waited = span.intervals
    .filter(({ kind }) => kind === "wait")
    .reduce((sum, part) => sum + (part.end ?? end) - part.start, 0);
  return [
    `${SPOKEN[span.kind]} ${span.name} ${awaits(span) ? "waits" : duration(lasted(span, end))}`, // the visible words first
    span.path && span.kind !== "loop" ? `in ${span.path}` : "",
    `from +${duration(Math.max(0, span.opened - began))}`,
    span.ended === null ? "not ended" : "",
    waited && span.kind === "call" ? `waiting for you ${duration(waited)}` : "",
    ...(span.kind === "call" ? waitedFor(span, end, store) : []),
    span.failed ? "failed" : "",
    span.kind === "model" && span.calls ? count(span.calls, "call") : "",
  ]
    .filter(Boolean)
    .join(", ");
}

/**
 * List what a call waited for before it resumed, and how long. A call that has not begun waits for the other running calls.
 * @param {Span} span
 * @param {number} end
 * @param {Store} store
 */
function waitedFor(span, end, { rows, spans }) {
  const waits = [];
  for (const { after, since, start } of span.intervals)
    if (after !== null) waits.push(`waiting for ${spans.of(rows[after])?.name ?? rows[after]?.type ?? "others"} ${duration(Math.max(0, start - since))}`);
  if (span.ended !== null || span.intervals.length) return waits.slice(0, NAMED);
  const others = spans.othersRunning(span, NAMED);
  return others.length ? [`waiting for ${others.join(" and ")} ${duration(Math.max(0, end - span.opened))}`] : [];
}

/**
 * Return the distance between two ticks: a round number of seconds near the one given.
 * @param {number} rough
 */
export function niceStep(rough) {
  if (rough > 40) {
    const minutes = [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200].find((step) => step >= rough);
    return minutes ?? 86400 * Math.ceil(rough / 86400);
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return ([1, 2, 5].find((digit) => digit * power >= rough * 0.999) ?? 10) * power;
}

/**
 * Write a tick as exactly as the distance to the next one requires.
 * @param {number} tick seconds
 * @param {number} step seconds
 */
export function tickWords(tick, step) {
  if (step >= 60) return duration(tick);
  if (step < 0.001) return `${(tick * 1000).toFixed(2)} ms`;
  return step < 0.1 ? `${Math.round(tick * 1000)} ms` : `${tick.toFixed(step < 1 ? 1 : 0)} s`;
}
