// The things a run is made of, each with the times it was waiting and running: what a timeline has rows for, and what
// a turn has taken. The kernel says of each event which thing it is about; what the event does to it is in its type.

/** @type {Record<string, Thing["kind"]>} */
const KINDS = { run_start: "loop", model_start: "model", run_paused: "pause" };
/** @type {Record<string, Stretch["kind"]>} */
const BEGINS = { run_start: "run", model_start: "run", call_start: "run", approval_request: "wait", run_paused: "wait" };
const ENDS = new Set(["model_end", "model_error", "approval_decision", "call_end", "run_resumed", "run_end"]);
const STRETCHES = 60; // of one thing, a call that is tried again and again; later ones prolong the last

export class Trace {
  constructor() {
    this.things = /** @type {Thing[]} */ ([]);
    this.turns = /** @type {Turn[]} */ ([]); // the things that are requests to a model
    this.open = /** @type {Set<Thing>} */ (new Set());
    this.calls = /** @type {Map<string, Thing>} */ (new Map()); // those that are open, by path and id
    this.spent = { model: 0, call: 0, wait: 0 }; // seconds; of models and calls those at the same time are added up
    // When a person was waited for: one person, once, however many calls do so.
    this.waits = /** @type {{ start: number, end: number }[]} */ ([]);
    this.began = this.last = 0;
    this.lanes = /** @type {Map<string, Lane>} */ (new Map());
    this.outermost = /** @type {Lane} */ ({ things: [], above: null, head: null, depth: 0 });
    this.flat = /** @type {Thing[]} */ ([]);
    this.stale = false;
  }

  /**
   * Take the next event in.
   * @param {EventRow} row
   * @param {number} position
   * @param {EventRow[]} rows those before it, and itself
   */
  take(row, position, rows) {
    if (!position) this.began = row.time;
    this.last = Math.max(this.last, row.time);
    if (row.thing === undefined) return;
    const thing = (this.things[row.thing] ??= this.begin(row, position, rows));
    const stretch = thing.stretches.at(-1);
    const open = stretch && stretch.end === null;
    if (open && row.type === "approval_request" && row.data?.unknown) stretch.kind = "wait"; // since it was started: for how long it ran, nothing says
    else {
      if (open && (ENDS.has(row.type) || BEGINS[row.type])) this.stop(thing, stretch, row.time);
      if (BEGINS[row.type]) this.start(thing, BEGINS[row.type], row, position);
    }
    if (thing.kind === "call") this.noteCall(thing, row);
    if (row.group === "error") thing.failed = true;
    if (row.type === "model_end") thing.usage = row.data?.usage;
    if (row.type === "run_end") this.endLoop(row);
  }

  /**
   * @param {EventRow} row
   * @param {number} position
   * @param {EventRow[]} rows
   * @returns {Thing}
   */
  begin(row, position, rows) {
    const kind = KINDS[row.type] ?? "call",
      path = row.path ?? "",
      cause = row.cause === undefined ? undefined : rows[row.cause],
      above = cause?.thing === undefined ? undefined : this.things[cause.thing]; // what led to it
    const opened = kind === "call" && cause ? cause.time : row.time;
    /** @type {Thing} */
    const thing = { kind, name: row.name ?? row.type, path, position, opened, ended: null, stretches: [], failed: false, depth: 0 };
    if (kind === "loop" && above) above.performed = true; // by this loop, whose own calls and requests tell what it takes
    if (kind === "model") this.turns.push(Object.assign(thing, { calls: 0, callTime: 0 }));
    if (kind === "call") {
      thing.turn = above?.kind === "model" ? /** @type {Turn} */ (above) : null;
      if (thing.turn) thing.turn.calls++;
    }
    this.place(thing);
    this.open.add(thing);
    return thing;
  }

  /**
   * Each loop has a lane: its own row, and below it those of what happens in it.
   * @param {Thing} thing
   */
  place(thing) {
    const lane = this.lanes.get(thing.path),
      outer = this.lanes.get(thing.path.slice(0, Math.max(0, thing.path.lastIndexOf("/")))) ?? this.outermost;
    const home = thing.kind === "loop" ? (thing.path ? outer : this.outermost) : (lane ?? outer);
    thing.depth = home.depth;
    home.things.push(thing);
    if (thing.kind === "loop") {
      thing.lane = { things: [], above: home, head: thing, depth: thing.depth + 1 };
      this.lanes.set(thing.path, thing.lane);
    }
    if (this.isLast(home)) this.flat.push(thing);
    else this.stale = true;
  }

  /**
   * Whether what comes to this lane comes last of all.
   * @param {Lane} lane
   */
  isLast(lane) {
    for (; lane.above; lane = lane.above) {
      const { things } = lane.above;
      if (things[things.length - 1] !== lane.head) return false;
    }
    return true;
  }

  // The things in the order of their rows.
  order() {
    if (!this.stale) return this.flat;
    this.stale = false;
    const flat = /** @type {Thing[]} */ ([]);
    /** @param {Lane} lane */
    const add = (lane) => {
      for (const thing of lane.things) {
        flat.push(thing);
        if (thing.lane) add(thing.lane);
      }
    };
    add(this.outermost);
    return (this.flat = flat);
  }

  /**
   * What is called so that this event is about.
   * @param {EventRow | undefined} row
   */
  nameAt(row) {
    const thing = row?.thing === undefined ? undefined : this.things[row.thing];
    return thing?.name ?? row?.type ?? "others";
  }

  /**
   * What runs or waits in the same loop, by name.
   * @param {Thing} thing
   * @param {number} most
   */
  beside(thing, most) {
    const names = [];
    for (const other of this.open) {
      if (names.length === most) break;
      if (other.path === thing.path && other !== thing && other.kind !== "loop" && other.stretches.length) names.push(other.name);
    }
    return names;
  }

  /**
   * @param {Thing} thing
   * @param {Stretch["kind"]} kind
   * @param {EventRow} row
   * @param {number} position
   */
  start(thing, kind, row, position) {
    const last = thing.stretches.at(-1),
      since = last?.end ?? thing.opened; // `after`: the event that it had to wait for since then
    if (last && thing.stretches.length >= STRETCHES) last.end = null;
    else thing.stretches.push({ kind, start: row.time, end: null, position, since, after: row.after });
    thing.ended = null;
    this.open.add(thing);
  }

  /**
   * @param {Thing} thing
   * @param {Stretch} stretch
   * @param {number} time
   */
  stop(thing, stretch, time) {
    stretch.end = time;
    const spent = Math.max(0, time - stretch.start),
      what = stretch.kind === "wait" ? "wait" : thing.performed ? "loop" : thing.kind;
    if (what === "wait") this.countWait(stretch.start, Math.max(time, stretch.start));
    else if (what === "model" || what === "call") this.spent[what] += spent;
    if (what === "call" && thing.turn) thing.turn.callTime += spent;
    if (thing.kind !== "call") this.close(thing, time);
  }

  /**
   * Adds a time in which somebody was waited for, but for what of it is counted already.
   * @param {number} start
   * @param {number} end
   */
  countWait(start, end) {
    for (let earlier = this.waits.at(-1); earlier && earlier.end >= start; earlier = this.waits.at(-1)) {
      this.waits.pop();
      this.spent.wait -= earlier.end - earlier.start;
      start = Math.min(start, earlier.start);
      end = Math.max(end, earlier.end);
    }
    this.waits.push({ start, end });
    this.spent.wait += end - start;
  }

  /**
   * @param {Thing} thing
   * @param {number} time
   */
  close(thing, time) {
    thing.ended = time;
    this.open.delete(thing);
  }

  /**
   * @param {Thing} thing
   * @param {EventRow} row
   */
  noteCall(thing, row) {
    const id = row.data?.call_id ?? row.data?.call?.id,
      key = `${thing.path}\n${id}`;
    if (row.type === "call_end") {
      this.close(thing, row.time);
      this.calls.delete(key);
    } else this.calls.set(key, thing);
  }

  /**
   * A loop that ends leaves nothing open that is in it.
   * @param {EventRow} row
   */
  endLoop(row) {
    const path = row.path ?? "";
    for (const thing of this.open)
      if (!path || thing.path === path || thing.path.startsWith(`${path}/`)) {
        const stretch = thing.stretches.at(-1);
        if (stretch && stretch.end === null) this.stop(thing, stretch, row.time);
        this.close(thing, row.time);
      }
  }
}

/**
 * A time as a person reads it.
 * @param {number} seconds
 */
export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.floor(seconds + 0.5); // rounded before it is divided: 119.9 s are two minutes, not one
  /** @param {number} amount */
  const two = (amount) => String(Math.floor(amount)).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
}
