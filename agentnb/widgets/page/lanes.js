// The strip's lanes: when the models, the calls and the people of a run were busy, to scale on one axis. It is the same
// computation as in views/strip.py, which explains it; the page needs its own, because what is open grows with time.

const SQUEEZED = 0.5, // seconds in which nothing works, after which the axis is broken
  OF_PAUSE = 18,
  OF_WAIT = 58, // the widths of a break: of a pause, and of a wait for a person
  BREAKS = 0.5, // the share of the strip that breaks may take
  LEAST = 3, // the width of a bar
  TOUCHES = 1; // the distance up to which small bars are joined
const LANES = ["loops", "model", "calls", "you"];
export const END = 5; // what is left free at the right end

/** @typedef {[start: number, end: number]} Times */
/** @typedef {{ start: number, end: number, seconds: number, wait: boolean }} Break */
/** @typedef {"loops" | "model" | "calls" | "you"} Lane */

/**
 * The scale from seconds to pixels: even between its points, and broken where nothing works.
 * @typedef {{ times: number[], places: number[], breaks: Break[] }} Axis
 */

/** @typedef {{ until: number, width: number, squeezes?: boolean }} LayOut */
/** @typedef {(lane: Lane, start: number, end: number, span: Span, seconds: number, row: number, atOnce: number) => void} AddBar */

/**
 * A time in which something ran. `row` and `atOnce` are of calls that run at the same time.
 * @typedef {object} Bar
 * @property {Lane} lane
 * @property {number} start
 * @property {number} end
 * @property {Span} span
 * @property {number} seconds
 * @property {number} row
 * @property {number} atOnce
 * @property {boolean} wait
 * @property {boolean} failed
 */

// The intervals of one kind, by their start. Those at the same time are in the order of their spans.
class Intervals {
  constructor() {
    this.starts = /** @type {number[]} */ ([]);
    this.ends = /** @type {number[]} */ ([]);
    this.spans = /** @type {Span[]} */ ([]);
  }

  /**
   * @param {Span} span
   * @param {number} start
   * @param {number} end
   */
  add(span, start, end) {
    const { starts, ends, spans } = this;
    let at = starts.length;
    while (at && (starts[at - 1] > start || (starts[at - 1] === start && spans[at - 1].number > span.number))) at--;
    if (at === starts.length) {
      starts.push(start);
      ends.push(Math.max(start, end));
      spans.push(span);
    } else {
      starts.splice(at, 0, start);
      ends.splice(at, 0, Math.max(start, end));
      spans.splice(at, 0, span);
    }
  }

  clear() {
    this.starts.length = this.ends.length = this.spans.length = 0;
  }

  copy() {
    const copy = new Intervals();
    copy.starts = this.starts.slice();
    copy.ends = this.ends.slice();
    copy.spans = this.spans.slice();
    return copy;
  }

  // The times, also where they overlap. A call that a loop performs is no work of its own.
  times() {
    return this.starts.map((start, i) => /** @type {Times} */ ([start, this.ends[i]])).filter((_, i) => !this.spans[i].performed);
  }

  // The times without overlaps. A call that a loop performs is no work of its own.
  union() {
    const joined = /** @type {Times[]} */ ([]),
      { starts, ends, spans } = this;
    let last = /** @type {Times | null} */ (null);
    for (let i = 0; i < starts.length; i++) {
      if (spans[i].performed) continue;
      if (last && starts[i] <= last[1]) last[1] = Math.max(last[1], ends[i]);
      else joined.push((last = [starts[i], ends[i]]));
    }
    return joined;
  }

  /**
   * Give each interval a row, and the number of rows of what overlaps.
   * @param {(at: number, row: number, atOnce: number) => void} add
   */
  sideBySide(add) {
    const { starts, ends, spans } = this,
      group = /** @type {number[]} */ ([]),
      rows = /** @type {number[]} */ ([]),
      until = /** @type {number[]} */ ([]); // of each row
    let last = -Infinity;
    const close = () => {
      for (let i = 0; i < group.length; i++) add(group[i], rows[i], until.length);
      group.length = rows.length = until.length = 0;
      last = -Infinity;
    };
    for (let at = 0; at < starts.length; at++) {
      if (spans[at].performed) continue;
      if (group.length && starts[at] >= last) close();
      let row = 0;
      while (row < until.length && until[row] > starts[at]) row++;
      until[row] = ends[at];
      last = Math.max(last, ends[at]);
      group.push(at);
      rows.push(row);
    }
    close();
  }
}

export class Lanes {
  constructor() {
    this.scanned = 0; // rows
    this.models = new Intervals();
    this.calls = new Intervals();
    this.waits = new Intervals();
    this.loops = /** @type {Span[]} */ ([]); // those right inside the outermost
    this.marks = /** @type {{ kind: MarkKind, position: number, time: number }[]} */ ([]);
    this.inherited = 0; // events
  }

  /**
   * Note what the new events have ended or opened.
   * @param {EventRow[]} rows
   * @param {Spans} spans those after all of these rows
   */
  follow(rows, spans) {
    let reopened = false;
    for (; this.scanned < rows.length; this.scanned++) {
      const { mark, inherited, time, spans: changed } = rows[this.scanned];
      if (inherited) this.inherited = inherited;
      if (this.inherited && this.scanned === this.inherited) this.marks.push({ kind: "fork", position: this.scanned, time });
      if (mark) this.marks.push({ kind: mark, position: this.scanned, time });
      for (const { number, kind, intervals } of changed ?? []) {
        const span = spans.all[number];
        if (kind === "loop" && span.depth === 1) this.loops.push(span);
        for (const i in intervals) {
          const { start, end } = intervals[i];
          if (end) this.note(span, span.intervals[+i]);
          else if (start === undefined && end === null) reopened = true;
        }
      }
    }
    if (!reopened) return;
    // A call that is retried very often extends its last interval.
    for (const list of [this.models, this.calls, this.waits]) list.clear();
    this.loops = [];
    for (const span of spans.all) {
      if (span.kind === "loop" && span.depth === 1) this.loops.push(span);
      for (const interval of span.intervals) this.note(span, interval);
    }
  }

  /**
   * @param {Span} span
   * @param {Interval} interval
   */
  note(span, { kind, start, end }) {
    if (end !== null) this.of(span, kind)?.add(span, start, end);
  }

  /**
   * @param {Span} span
   * @param {"run" | "wait"} kind
   */
  of(span, kind) {
    if (kind === "wait") return span.kind === "call" ? this.waits : null;
    return span.kind === "model" ? this.models : span.kind === "call" ? this.calls : null;
  }

  /**
   * Lay out the lanes until a time. Each bar is given to `add`.
   * @param {Spans} spans
   * @param {LayOut} options
   * @param {AddBar} add
   */
  layOut(spans, options, add) {
    const steps = this.steps(spans, options, add);
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
    }
  }

  /**
   * The same in steps: of a long run each takes some milliseconds, and the page may draw between two of them. `follow` must
   * not be called until it is done.
   * @param {Spans} spans
   * @param {LayOut} options
   * @param {AddBar} add
   * @returns {Generator<undefined, { axis: Axis, lanes: Lane[], waited: number }>}
   */
  *steps(spans, { until, width, squeezes = true }, add) {
    const now = this.withOpen(spans, until),
      asked = now.waits.union(),
      models = squeezes ? now.models.union() : [];
    yield;
    const calls = squeezes ? now.calls.union() : [];
    yield;
    const idle = squeezes ? gaps(merged(models, calls), spans.began, until) : [],
      axis = makeAxis(idle, asked, spans.began, until, width);
    yield;
    /** @type {(lane: Lane, span: Span, start: number, end: number, row: number, atOnce: number) => void} */
    const put = (lane, span, start, end, row, atOnce) =>
      add(lane, placeOf(axis, start), placeOf(axis, end), span, end - start, row, atOnce);
    for (const span of this.loops) put("loops", span, span.opened, span.ended ?? until, 0, 1);
    for (const lane of /** @type {const} */ (["model", "calls"])) {
      const list = lane === "model" ? now.models : now.calls;
      list.sideBySide((at, row, atOnce) => put(lane, list.spans[at], list.starts[at], list.ends[at], row, atOnce));
      yield;
    }
    let first = 0;
    for (const [start, end] of asked) {
      while (now.waits.starts[first] < start) first++;
      put("you", now.waits.spans[first], start, end, 0, 1);
    }
    return { axis, lanes: this.lanes(), waited: asked.reduce((sum, [start, end]) => sum + end - start, 0) };
  }

  /** @returns {Lane[]} */
  lanes() {
    return [...(this.loops.length ? [/** @type {const} */ ("loops")] : []), "model", "calls", "you"];
  }

  /**
   * All intervals, also those that have not ended.
   * @param {Spans} spans
   * @param {number} until
   */
  withOpen(spans, until) {
    const now = { models: this.models, calls: this.calls, waits: this.waits };
    for (const span of spans.open) {
      const last = span.intervals.at(-1),
        list = last && last.end === null ? this.of(span, last.kind) : null;
      if (!last || !list) continue;
      const name = list === this.models ? "models" : list === this.calls ? "calls" : "waits";
      if (now[name] === list) now[name] = list.copy();
      now[name].add(span, last.start, until);
    }
    return now;
  }
}

/**
 * The turns on the ruler that are at least so many pixels apart.
 * @param {Span[]} requests
 * @param {Axis} axis
 * @param {number} apart
 */
export function turnsOf(requests, axis, apart = -Infinity) {
  const turns = [];
  let last = -Infinity;
  for (const { name, opened, position } of requests) {
    const x = placeOf(axis, opened);
    if (x < last + apart || name.includes(", attempt")) continue;
    turns.push({ x, label: labelOf(name), position });
    last = x;
  }
  return turns;
}

/** @param {string} name of a request */
export const labelOf = (name) => name.replace(/^turn /, "").split(",", 1)[0];

/**
 * Merge two lists of times by their begin. They may overlap.
 * @param {Times[]} one
 * @param {Times[]} other
 */
function merged(one, other) {
  if (!one.length || !other.length) return one.length ? one : other;
  const all = /** @type {Times[]} */ ([]);
  let i = 0,
    j = 0;
  while (i < one.length && j < other.length) all.push(one[i][0] <= other[j][0] ? one[i++] : other[j++]);
  while (i < one.length) all.push(one[i++]);
  while (j < other.length) all.push(other[j++]);
  return all;
}

/**
 * The times of more than half a second in which nothing works.
 * @param {Times[]} work
 * @param {number} began
 * @param {number} until
 */
function gaps(work, began, until) {
  const found = /** @type {Times[]} */ ([]);
  let free = began;
  for (const [start, end] of [...work, [until, until]]) {
    if (start - free > SQUEEZED) found.push([free, start]);
    free = Math.max(free, end);
  }
  return found;
}

/**
 * @param {Times[]} idle
 * @param {Times[]} asked
 * @param {number} began
 * @param {number} until
 * @param {number} width
 * @returns {Axis}
 */
function makeAxis(idle, asked, began, until, width) {
  // A break in which a person was asked has room for the seconds.
  let near = 0;
  const waited = idle.map(([start, end]) => {
    while (near < asked.length && asked[near][1] <= start) near++;
    let overlap = 0;
    for (let at = near; at < asked.length && asked[at][0] <= end; at++)
      overlap += Math.max(0, Math.min(end, asked[at][1]) - Math.max(start, asked[at][0]));
    return overlap > SQUEEZED || overlap >= 0.9 * (end - start);
  });
  const sizes = waited.map((wait) => (wait ? OF_WAIT : OF_PAUSE)),
    broken = sizes.reduce((sum, size) => sum + size, 0),
    room = width - END,
    busy = Math.max(0, until - began) - idle.reduce((sum, [start, end]) => sum + end - start, 0);
  let shrink = broken ? Math.min(1, (BREAKS * room) / broken) : 1;
  if (busy <= 0 && broken) shrink = Math.min(shrink * 2, 1);
  const scale = busy > 0 ? (room - shrink * broken) / busy : 0;

  const times = [began],
    places = [0],
    breaks = /** @type {Break[]} */ ([]);
  idle.forEach(([start, end], i) => {
    const x = places[places.length - 1] + (start - times[times.length - 1]) * scale;
    breaks.push({ start: x, end: x + sizes[i] * shrink, seconds: end - start, wait: waited[i] });
    times.push(start, end);
    places.push(x, x + sizes[i] * shrink);
  });
  places.push(places[places.length - 1] + (until - times[times.length - 1]) * scale);
  times.push(until);
  return { times, places, breaks };
}

/**
 * The number of items, from the first, that are at most as large as a value.
 * @param {ArrayLike<number>} list in ascending order
 * @param {number} value
 */
export function upTo(list, value) {
  let low = 0,
    high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * @param {number} value
 * @param {number[]} from
 * @param {number[]} to
 */
function between(value, from, to) {
  const index = Math.min(Math.max(1, upTo(from, value)), from.length - 1),
    start = from[index - 1],
    end = from[index],
    share = end > start ? (value - start) / (end - start) : 0;
  return to[index - 1] + Math.min(1, Math.max(0, share)) * (to[index] - to[index - 1]);
}

/**
 * The place of a time on the axis.
 * @param {Axis} axis
 * @param {number} time
 */
export const placeOf = ({ times, places }, time) => between(time, times, places);

/**
 * The time at a place on the axis.
 * @param {Axis} axis
 * @param {number} place
 */
export const timeAt = ({ times, places }, place) => between(place, places, times);

// Joins small bars that touch each other: a run may have thousands.
export class Joined {
  constructor() {
    this.bars = /** @type {Bar[]} */ ([]);
    this.last = /** @type {Map<number, Bar>} */ (new Map());
  }

  /** @type {AddBar} */
  add(lane, start, until, span, seconds, row, atOnce) {
    const wait = lane === "you",
      failed = isFailed(lane, span),
      key = LANES.indexOf(lane) * 12 + (row % 3) * 4 + Number(failed) * 2 + Number(wait),
      last = this.last.get(key),
      end = Math.max(until, start + LEAST);
    if (last && start < last.end + TOUCHES && end - start < 2 * LEAST) last.end = Math.max(last.end, end);
    else {
      const bar = { lane, start, end, span, seconds, row, atOnce, wait, failed };
      this.last.set(key, bar);
      this.bars.push(bar);
    }
  }
}

/**
 * @param {Lane} lane
 * @param {Span} span
 */
export const isFailed = (lane, span) => span.failed && (lane === "model" || lane === "calls");
