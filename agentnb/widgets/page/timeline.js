// The timeline: a row for each thing that took time, to scale. What is open grows.

import { count, el, fit, say, visible } from "./text.js";
import { List } from "./list.js";
import { duration } from "./trace.js";

const TICKS = 5; // on the scale, about
const GROWS = 250; // milliseconds between two drawings while nothing happens but time
const NAMED = 3; // that a call is said to have waited for
const GROUPS = { loop: "run", model: "model", call: "call", pause: "approval" }; // the colour of each kind
const SPOKEN = { loop: "loop", model: "model", call: "call", pause: "run" };

/**
 * The times between which the timeline is drawn, the time now and the run's beginning, in seconds.
 * @typedef {{ from: number, to: number, now: number, began: number }} Span
 */

export class Timeline {
  /**
   * @param {Store} store
   * @param {(at: number) => void} go shows the event of this number
   */
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.selected = /** @type {Thing | null} */ (null);
    this.things = /** @type {Thing[]} */ ([]); // in the order of their rows
    this.at = 0; // until when it is drawn
    this.span = { from: 0, to: 0, now: 0, began: 0 };
    this.timer = this.frame = 0;
    /** @type {List<Bar>} */
    this.list = new List(this, { label: "Timeline, first begun first", around: 8 });
    this.scale = el(
      "select",
      { class: "agentnb-select", "aria-label": "Scale of the timeline" },
      el("option", { value: "", text: "whole run" }),
      el("option", { value: "view", text: "what is in view" }),
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
      sign("open", "for others"),
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
    this.things = this.store.trace.order();
    this.list.draw();
    const { length } = this.things,
      { began, last } = this.store.trace;
    say(this.list.empty, length ? "" : this.store.nothing("has taken time"));
    this.axis.hidden = !length;
    say(this.count, `${count(length, "row")}, ${duration(Math.max(0, this.at - began))}`);
    clearTimeout(this.timer);
    // In a frame, before which the browser tells of scrolling: who has just left the end is not taken back to it.
    const grow = () => {
      this.frame = requestAnimationFrame(() => this.isSeen() && this.draw());
    };
    if (this.at > last) this.timer = setTimeout(grow, GROWS);
  }

  length() {
    return this.things.length;
  }

  chosen() {
    return this.selected ? this.things.indexOf(this.selected) : -1;
  }

  /**
   * @param {number} start
   * @param {number} end
   */
  begin(start, end) {
    const { began } = this.store.trace;
    this.at = this.store.until();
    const [from, to] = this.scope(this.things.slice(start, end), this.at);
    this.span = { from, to, now: this.at, began };
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
    bar.show(this.things[index], this.span, this.store);
    return index;
  }

  isSeen() {
    return this.el.isConnected && this.el.getClientRects().length > 0;
  }

  /**
   * @param {Thing[]} seen
   * @param {number} now
   * @returns {[from: number, to: number]}
   */
  scope(seen, now) {
    const { began } = this.store.trace;
    // What is in view: without the loops, which last as long as everything in them.
    const inner = seen.filter((thing) => thing.kind !== "loop");
    if (!this.scale.value || !inner.length) return [began, Math.max(now, began + 0.001)];
    const from = Math.min(...inner.map((thing) => thing.opened)),
      to = Math.max(...inner.map((thing) => thing.ended ?? now));
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
    this.selected = this.things[index];
    const { stretch } = target.dataset,
      { position, stretches } = this.things[index];
    this.go(stretch === undefined ? position : stretches[Number(stretch)].position);
  }

  /** @param {number} index */
  choose(index) {
    this.selected = this.things[index];
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
   * @param {Thing} thing
   * @param {Span} span
   * @param {Store} store
   */
  show(thing, span, store) {
    const { el: node } = this,
      end = thing.ended ?? span.now;
    node.dataset.group = thing.failed ? "error" : GROUPS[thing.kind];
    node.dataset.kind = thing.kind;
    say(this.name, thing.name);
    this.name.style.paddingLeft = `${Math.min(6, thing.depth) * 12}px`;
    say(this.took, duration(Math.max(0, end - thing.opened)));
    place(this.open, thing.opened, end, span);
    this.open.hidden = thing.kind === "loop";
    while (this.stretches.length > thing.stretches.length) this.stretches.pop()?.remove();
    while (this.stretches.length < thing.stretches.length) {
      const part = el("span", { class: "agentnb-stretch", "data-stretch": this.stretches.length });
      this.stretches.push(part);
      this.track.append(part);
    }
    thing.stretches.forEach((stretch, i) => {
      const part = this.stretches[i];
      part.dataset.kind = stretch.kind === "wait" ? "wait" : thing.kind;
      part.classList.toggle("agentnb-going", stretch.end === null);
      place(part, stretch.start, stretch.end ?? span.now, span);
    });
    const told = visible(spoken(thing, end, span, store));
    if (node.getAttribute("aria-label") !== told) {
      node.setAttribute("aria-label", told);
      node.title = told;
    }
  }
}

/**
 * @param {HTMLElement} part
 * @param {number} start
 * @param {number} end
 * @param {Span} span
 */
function place(part, start, end, { from, to }) {
  const left = Math.max(0, (start - from) / (to - from)),
    right = Math.min(1, (end - from) / (to - from));
  part.style.display = right < 0 || left > 1 ? "none" : "";
  part.style.left = `min(${100 * left}%, 100% - 2px)`;
  part.style.width = `max(2px, ${100 * Math.max(0, right - left)}%)`;
}

/**
 * @param {Thing} thing
 * @param {number} end
 * @param {Span} span
 * @param {Store} store
 */
function spoken(thing, end, { began }, store) {
  const waited = thing.stretches
    .filter(({ kind }) => kind === "wait")
    .reduce((sum, part) => sum + (part.end ?? end) - part.start, 0);
  return [
    `${SPOKEN[thing.kind]} ${thing.name} ${duration(Math.max(0, end - thing.opened))}`, // as it is read, and then the rest
    thing.path && thing.kind !== "loop" ? `in ${thing.path}` : "",
    `from +${duration(Math.max(0, thing.opened - began))}`,
    thing.ended === null ? "not over" : "",
    waited && thing.kind === "call" ? `waiting for you ${duration(waited)}` : "",
    ...(thing.kind === "call" ? waitedFor(thing, end, store) : []),
    thing.failed ? "failed" : "",
    thing.kind === "model" && thing.calls ? count(thing.calls, "call") : "",
  ]
    .filter(Boolean)
    .join(", ");
}

/**
 * Whom a call waited for before it went on, and how long; one that has not begun waits for what runs beside it.
 * @param {Thing} thing
 * @param {number} end
 * @param {Store} store
 */
function waitedFor(thing, end, { rows, trace }) {
  const told = [];
  for (const { after, since, start } of thing.stretches)
    if (after !== undefined) told.push(`waiting for ${trace.nameAt(rows[after])} ${duration(Math.max(0, start - since))}`);
  if (thing.ended !== null || thing.stretches.length) return told.slice(0, NAMED);
  const beside = trace.beside(thing, NAMED);
  return beside.length ? [`waiting for ${beside.join(" and ")} ${duration(Math.max(0, end - thing.opened))}`] : [];
}

/** @param {number} rough */
function niceStep(rough) {
  if (rough > 40) {
    const minutes = [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200].find((step) => step >= rough);
    return minutes ?? 86400 * Math.ceil(rough / 86400);
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return ([1, 2, 5].find((digit) => digit * power >= rough * 0.999) ?? 10) * power;
}

/**
 * @param {number} tick
 * @param {number} step
 */
function tickWords(tick, step) {
  if (step >= 60) return duration(tick);
  if (step < 0.001) return `${(tick * 1000).toFixed(2)} ms`;
  return step < 0.1 ? `${Math.round(tick * 1000)} ms` : `${tick.toFixed(step < 1 ? 1 : 0)} s`;
}
