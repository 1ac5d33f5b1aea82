// What models were saying at a moment of a recording: the answers that were under way then, as far as they had come.
// An answer is recorded when it is complete, with how much of its text had come when.

const LINE = 1200; // characters of what is being said: its end
const KEPT = 50; // answers; those of a long recording come and go

/** @typedef {{ signs: string[], timing: Timing, asked: boolean }} Answer */

export class Typed {
  /**
   * @param {Store} store
   * @param {() => void} changed
   */
  constructor(store, changed) {
    this.store = store;
    this.changed = changed; // called when an answer has come from the kernel
    this.answers = /** @type {Map<number, Answer>} */ (new Map()); // by event; an empty one while it is asked for
  }

  /**
   * The lines of live text behind the events that have happened, at a time.
   * @param {number} time
   * @returns {LiveLine[]}
   */
  lines(time) {
    const lines = [];
    for (const { path, row, passed } of this.underWay(time)) {
      if (row.data && !(row.data.timing?.[0]?.[0] <= passed)) continue; // nothing yet: it need not be asked for
      const { signs, timing } = this.answer(row),
        typed = timing.reduce((sum, [milliseconds, length]) => (milliseconds <= passed ? sum + length : sum), 0);
      if (typed) lines.push({ kind: "text", path, name: "", text: signs.slice(Math.max(0, typed - LINE), typed).join("") });
    }
    return lines;
  }

  /**
   * When the next piece of text comes.
   * @param {number} time
   */
  next(time) {
    let next = Infinity;
    for (const { row, passed } of this.underWay(time)) {
      if (row.data && !row.data.timing?.length) continue;
      const first = row.data?.timing[0],
        answer = first?.[0] > passed ? null : this.answer(row),
        later = answer ? answer.timing.find(([milliseconds]) => milliseconds > passed) : first;
      if (answer?.asked) return time; // nobody knows yet
      if (later) next = Math.min(next, time + (later[0] - passed) / 1000);
    }
    return next;
  }

  /**
   * The answers that are under way: each with its loop, the event that ends it, and the milliseconds that have passed.
   * @param {number} time
   * @returns {Generator<{ path: string, row: EventRow, passed: number }>}
   */
  *underWay(time) {
    for (const thing of this.store.trace.open) {
      const stretch = thing.kind === "model" ? thing.stretches.at(-1) : null;
      if (!stretch || stretch.end !== null) continue;
      const row = this.end(thing, stretch.position);
      if (row?.type === "model_end") yield { path: thing.path, row, passed: 1000 * (time - stretch.start) };
    }
  }

  /**
   * The event with which a request ended.
   * @param {Thing} thing
   * @param {number} from
   * @returns {EventRow | undefined}
   */
  end(thing, from) {
    const { store } = this,
      { all } = store,
      number = all[thing.position].thing;
    if (thing.endedBy?.from === from) return thing.endedBy.row;
    let at = from + 1;
    while (at < all.length && all[at].thing !== number) at++;
    const row = all[at];
    if (row || all.length >= store.total) thing.endedBy = { from, row };
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
