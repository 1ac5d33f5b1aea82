// The spans of a run (loops, requests, calls, pauses), each with the intervals in which it waited or ran. The rows of the
// timeline and the usage of a turn come from them. The kernel computes them (views/spans.py): each row says which spans its
// event has changed, and how. Here the changes are applied.

export class Spans {
  constructor() {
    this.all = /** @type {Span[]} */ ([]); // by number
    this.turns = /** @type {Span[]} */ ([]); // the requests to a model
    this.open = /** @type {Set<Span>} */ (new Set());
    this.calls = /** @type {Map<string, Span>} */ (new Map()); // those that are open, by path and id
    this.spent = { model: 0, call: 0, wait: 0 }; // seconds; a wait is one for a decision
    this.paused = 0;
    this.began = this.last = 0;
    this.roots = /** @type {Span[]} */ ([]);
    this.rows = /** @type {Span[]} */ ([]); // each loop is followed by the spans inside it
    this.stale = false; // whether the rows have to be put in order
  }

  /**
   * Apply the changes of the next event.
   * @param {EventRow} row
   * @param {number} position
   */
  take(row, position) {
    if (!position) this.began = row.time;
    this.last = Math.max(this.last, row.time);
    if (row.spent) this.spent = row.spent;
    this.paused = row.paused ?? this.paused;
    for (const { number, intervals, parent, turn, ...fields } of row.spans ?? []) {
      const span = (this.all[number] ??= this.add(number, position, parent, turn));
      Object.assign(span, fields);
      for (const [i, change] of Object.entries(intervals ?? {})) {
        /** @type {Interval} */
        const opened = { kind: "run", start: 0, end: null, position, since: 0, after: null };
        span.intervals[+i] = Object.assign(span.intervals[+i] ?? opened, change);
      }
      if (fields.kind === "model") this.turns.push(span);
      this.track(span);
    }
  }

  /**
   * @param {number} number
   * @param {number} position
   * @param {number | null | undefined} parent
   * @param {number | undefined} turn
   * @returns {Span}
   */
  add(number, position, parent, turn) {
    const outer = parent === undefined || parent === null ? null : this.all[parent];
    /** @type {Span} */
    const span = {
      ...{ number, position, parent: outer, turn: turn === undefined ? null : this.all[turn] },
      ...{ kind: "call", name: "", path: "", opened: 0, ended: null, depth: 0, failed: false, calls: 0, call_time: 0 },
      ...{ usage: {}, intervals: [], inside: [] },
    };
    this.inside(outer).push(span);
    // It is the last row, unless another row has come after its loop.
    let loop = outer;
    while (loop && this.inside(loop.parent).at(-1) === loop) loop = loop.parent;
    if (loop) this.stale = true;
    else this.rows.push(span);
    return span;
  }

  /** @param {Span | null} loop */
  inside(loop) {
    return loop ? loop.inside : this.roots;
  }

  /** @param {Span} span */
  track(span) {
    const key = `${span.path}\n${span.call}`;
    if (span.ended === null) {
      this.open.add(span);
      if (span.kind === "call") this.calls.set(key, span);
    } else {
      this.open.delete(span);
      if (this.calls.get(key) === span) this.calls.delete(key);
    }
  }

  // The spans in the order of their rows.
  order() {
    if (this.stale) {
      this.stale = false;
      /** @type {(spans: Span[]) => Span[]} */
      const flat = (spans) => spans.flatMap((span) => [span, ...flat(span.inside)]);
      this.rows = flat(this.roots);
    }
    return this.rows;
  }

  /**
   * The span that an event belongs to.
   * @param {EventRow | undefined} row
   */
  of(row) {
    return row?.span === undefined ? undefined : this.all[row.span];
  }

  /**
   * The names of the other spans that are open in the same loop.
   * @param {Span} span
   * @param {number} most
   */
  othersRunning(span, most) {
    const names = [];
    for (const other of this.open) {
      if (names.length === most) break;
      if (other.path === span.path && other !== span && other.kind !== "loop" && other.intervals.length) names.push(other.name);
    }
    return names;
  }
}

/**
 * The seconds that a span ran until now, without the time that it waited.
 * @param {Span} span
 * @param {number} now
 */
export function worked({ intervals }, now) {
  const ran = intervals.filter(({ kind }) => kind === "run");
  return ran.reduce((sum, { start, end }) => sum + Math.max(0, (end ?? now) - start), 0);
}
