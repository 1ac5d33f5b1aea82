// The text that models were sending at a time of a recording: the answers in progress then, as far as they had come.
// An answer is recorded when it is complete, with the times at which its parts came.

const LINE = 1200; // characters of the text that are shown: its end
const KEPT = 50; // answers, at most

/** @typedef {{ signs: string[], timing: Timing, asked: boolean }} Answer */

export class Typed {
  /**
   * @param {Store} store
   * @param {() => void} changed
   */
  constructor(store, changed) {
    this.store = store;
    this.changed = changed; // called when the kernel has sent an answer
    this.answers = /** @type {Map<number, Answer>} */ (new Map()); // by event; an empty one while it is asked for
  }

  /**
   * The live text at a time, of answers whose event has not happened yet.
   * @param {number} time
   * @returns {LiveLine[]}
   */
  lines(time) {
    const lines = [];
    for (const { path, row, passed } of this.underWay(time)) {
      if (row.data && !(row.data.timing?.[0]?.[0] <= passed)) continue; // no text yet: the answer is not needed
      const { signs, timing } = this.answer(row),
        typed = timing.reduce((sum, [milliseconds, length]) => (milliseconds <= passed ? sum + length : sum), 0);
      if (typed) lines.push({ kind: "text", path, name: "", length: typed, text: signs.slice(Math.max(0, typed - LINE), typed).join("") });
    }
    return lines;
  }

  /**
   * The time at which the next part of a text comes.
   * @param {number} time
   */
  next(time) {
    let next = Infinity;
    for (const { row, passed } of this.underWay(time)) {
      if (row.data && !row.data.timing?.length) continue;
      const first = row.data?.timing[0],
        answer = first?.[0] > passed ? null : this.answer(row),
        later = answer ? answer.timing.find(([milliseconds]) => milliseconds > passed) : first;
      if (answer?.asked) return time; // unknown until the kernel answers
      if (later) next = Math.min(next, time + (later[0] - passed) / 1000);
    }
    return next;
  }

  /**
   * The answers in progress: each with its loop, the event that ends it, and the milliseconds since its request.
   * @param {number} time
   * @returns {Generator<{ path: string, row: EventRow, passed: number }>}
   */
  *underWay(time) {
    for (const span of this.store.spans.open) {
      const interval = span.kind === "model" ? span.intervals.at(-1) : null;
      if (!interval || interval.end !== null) continue;
      const row = this.end(span, interval.position);
      if (row?.type === "model_end") yield { path: span.path, row, passed: 1000 * (time - interval.start) };
    }
  }

  /**
   * The event that ended a request.
   * @param {Span} span
   * @param {number} from
   * @returns {EventRow | undefined}
   */
  end(span, from) {
    const { store } = this,
      { all } = store;
    if (span.endedBy?.from === from) return span.endedBy.row;
    let at = from + 1;
    while (at < all.length && all[at].span !== span.number) at++;
    const row = all[at];
    if (row || all.length >= store.total) span.endedBy = { from, row };
    return row;
  }

  /**
   * @param {EventRow} row
   * @returns {Answer}
   */
  answer(row) {
    const kept = this.answers.get(row.seq);
    if (kept) return kept;
    const content = row.size ? null : row.data?.message?.content,
      signs = Array.from(typeof content === "string" ? content : "");
    /** @type {Answer} */
    const made = { signs, timing: row.size ? [] : (row.data?.timing ?? []), asked: typeof content !== "string" };
    this.answers.set(row.seq, made);
    const [oldest] = this.answers.keys();
    if (this.answers.size > KEPT) this.answers.delete(oldest);
    if (made.asked)
      this.store.ask({ type: "typed", seq: row.seq }, ({ text, timing }) => {
        Object.assign(made, { signs: Array.from(text), timing, asked: false });
        this.changed();
      });
    return made;
  }
}
