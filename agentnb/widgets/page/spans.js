// The spans of a run (loops, requests, calls, pauses), each with the intervals in which it waited or ran. The strip, the
// bars of the trace and the usage of a turn come from them. The kernel computes them (views/spans.py): each row says which spans its
// event has changed, and how. Here the changes are applied.

import { Past } from "./past.js";

const LINKS = new Set(["number", "parent", "turn", "intervals"]); // fields of a change that are no values of the span

/** @type {("alone" | "paused" | "idle")[]} */
const RESTS = ["alone", "paused", "idle"]; // in these seconds the agent does not work

export class Spans {
  /** @param {Past} past keeps what is changed */
  constructor(past = new Past(false)) {
    this.past = past;
    this.all = /** @type {Span[]} */ ([]); // by number
    this.turns = /** @type {Span[]} */ ([]); // the requests to a model
    this.open = /** @type {Set<Span>} */ (new Set());
    this.calls = /** @type {Map<string, Span>} */ (new Map()); // those that are open, by path and id
    this.spent = { model: 0, call: 0, wait: 0 }; // seconds; a wait is one for a decision
    this.alone = this.paused = this.idle = 0; // alone: a person was asked, and nothing ran; idle: nobody drove the run, as between two steps
    this.began = this.last = 0;
  }

  /**
   * Apply the changes of the next event.
   * @param {EventRow} row
   * @param {number} position
   */
  take(row, position) {
    const { past } = this;
    if (!position) past.set(this, "began", row.time);
    if (row.time > this.last) past.set(this, "last", row.time);
    if (row.spent) past.set(this, "spent", row.spent);
    for (const rest of RESTS) if (row[rest] !== undefined) past.set(this, rest, row[rest]);
    for (const change of row.spans ?? []) {
      const span = this.all[change.number] ?? this.add(change, position);
      for (const key in change) if (!LINKS.has(key)) past.set(span, key, change[/** @type {keyof SpanChange} */ (key)]);
      for (const i in change.intervals) this.setInterval(span, span.intervals[+i], change.intervals[i], position);
      if (change.kind === "model") past.push(this.turns, span);
      this.track(span);
    }
  }

  /**
   * Add the span that an event has opened.
   * @param {SpanChange} change
   * @param {number} position
   * @returns {Span}
   */
  add({ number, parent, turn }, position) {
    const outer = parent === undefined || parent === null ? null : this.all[parent];
    /** @type {Span} */
    const span = {
      number,
      position,
      parent: outer,
      turn: turn === undefined ? null : this.all[turn],
      kind: "call",
      name: "",
      path: "",
      opened: 0,
      ended: null,
      depth: 0,
      failed: false,
      performed: false,
      waited: 0,
      waits_since: null,
      call: undefined,
      calls: 0,
      call_time: 0,
      usage: {},
      intervals: [],
    };
    this.past.push(this.all, span);
    return span;
  }

  /**
   * @param {Span} span
   * @param {Interval | undefined} interval undefined for a new one
   * @param {Partial<Interval>} change
   * @param {number} position
   */
  setInterval(span, interval, change, position) {
    /** @type {Interval} */
    const opened = { kind: "run", start: 0, end: null, position, since: 0, after: null };
    if (!interval) this.past.push(span.intervals, Object.assign(opened, change));
    else for (const key in change) this.past.set(interval, key, change[/** @type {keyof Interval} */ (key)]);
  }

  /** @param {Span} span */
  track(span) {
    const { past } = this,
      isOpen = span.ended === null;
    past.hold(this.open, span, isOpen);
    if (span.kind !== "call") return;
    const key = `${span.path}\n${span.call}`,
      other = this.calls.get(key);
    if (isOpen) {
      if (other !== span) past.put(this.calls, key, span);
    } else if (other === span) past.put(this.calls, key, undefined);
  }

  /**
   * The seconds in which the agent worked until now.
   * @param {number} now
   */
  worked(now) {
    const waits = this.all[0] && this.all[0].waits_since !== null;
    return Math.max(0, (waits ? this.last : now) - this.began - this.alone - this.paused - this.idle);
  }

  /**
   * The span that an event belongs to.
   * @param {EventRow | undefined} row
   */
  of(row) {
    return row?.span === undefined ? undefined : this.all[row.span];
  }
}

/**
 * The seconds that a span ran until now, without the time that it waited.
 * @param {Span} span
 * @param {number} now
 */
export function worked({ intervals, waited, waits_since: since }, now) {
  const ran = intervals.filter(({ kind }) => kind === "run").reduce((sum, { start, end }) => sum + Math.max(0, (end ?? now) - start), 0);
  return Math.max(0, ran - waited - (since === null ? 0 : now - since));
}
