// The rows of the trace: a tree of loops, passes, turns, calls and messages. The kernel computes them (views/trace.py):
// each event's row says which rows of the trace it has added or changed, and how. Here the changes are applied.

export class TraceRows {
  /** @param {Past} past what is needed to go back to an earlier event */
  constructor(past) {
    this.past = past;
    this.all = /** @type {TraceRow[]} */ ([]); // by number
    this.outermost = /** @type {TraceRow[]} */ ([]);
    this.ofSpan = /** @type {TraceRow[]} */ ([]); // by the number of the span
    this.ofEvent = /** @type {Map<number, TraceRow>} */ (new Map()); // by the number of their first event
    this.shape = 0; // how often rows were moved or removed: otherwise each new one was only added
  }

  /**
   * Apply the changes of the next event.
   * @param {EventRow} row
   * @param {number} position
   */
  take({ trace }, position) {
    if (!trace) return;
    for (const { number, place, parent, ...fields } of trace) {
      const row = this.all[number] ?? this.add(number, position, parent);
      for (const name in fields) this.past.set(row, name, fields[/** @type {keyof typeof fields} */ (name)]);
      if (fields.span !== undefined) this.past.set(this.ofSpan, fields.span, row);
      if (fields.loop !== undefined) this.past.set(this.ofSpan, fields.loop, row);
      this.count(row);
      if (place !== undefined || fields.removed) this.move(row, place);
    }
  }

  // The rows are as they were at an earlier event.
  wentBack() {
    this.shape++;
  }

  /**
   * The row that an event belongs to.
   * @param {EventRow | null | undefined} event
   * @returns {TraceRow | undefined}
   */
  of(event) {
    if (!event) return undefined;
    return this.ofSpan[event.span ?? -1] ?? this.ofEvent.get(event.seq);
  }

  /** @param {TraceRow | null} row */
  inside(row) {
    return row ? row.inside : this.outermost;
  }

  /**
   * @param {number} number
   * @param {number} position
   * @param {number | undefined} parent
   * @returns {TraceRow}
   */
  add(number, position, parent) {
    const { past } = this,
      outer = parent === undefined ? null : this.all[parent];
    /** @type {TraceRow} */
    const row = {
      number,
      position,
      parent: outer,
      depth: outer ? outer.depth + 1 : 0,
      kind: "call",
      status: "next",
      name: "",
      text: "",
      arguments: "",
      result: "",
      outcome: "",
      person: false,
      removed: false,
      span: undefined,
      loop: undefined,
      decided: undefined,
      began: undefined,
      ended: undefined,
      inside: [],
      turns: 0,
      calls: 0,
      counted: "",
    };
    past.push(this.all, row);
    past.push(this.inside(outer), row);
    if (!this.ofEvent.has(position)) past.put(this.ofEvent, position, row);
    return row;
  }

  /**
   * Count a turn, or a call, in the rows around it.
   * @param {TraceRow} row
   */
  count(row) {
    const { past } = this,
      now = row.removed ? "" : row.kind === "turn" ? "turns" : row.kind === "call" ? "calls" : "",
      before = row.counted;
    if (now === before) return;
    past.set(row, "counted", now);
    for (let outer = row.parent; outer; outer = outer.parent) {
      if (before) past.set(outer, before, outer[before] - 1);
      if (now) past.set(outer, now, outer[now] + 1);
    }
  }

  /**
   * Move a row to another place in the row around it; without a place, take it out.
   * @param {TraceRow} row
   * @param {number | undefined} place
   */
  move(row, place) {
    const rest = this.inside(row.parent).filter((other) => other !== row);
    if (place !== undefined) rest.splice(place, 0, row);
    if (row.parent) this.past.set(row.parent, "inside", rest);
    else this.past.set(this, "outermost", rest);
    this.shape++;
  }
}
