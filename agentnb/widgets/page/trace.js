// The things a run is made of, each with the times it was waiting and running: what a timeline has rows for, and what
// a turn has taken. The kernel says of each event which thing it is about; what the event does to it is in its type.

const KINDS = { run_start: "loop", model_start: "model", run_paused: "pause" };
const BEGINS = { run_start: "run", model_start: "run", call_start: "run", approval_request: "wait", run_paused: "wait" };
const ENDS = new Set(["model_end", "model_error", "approval_decision", "call_end", "run_resumed", "run_end"]);
const STRETCHES = 60; // of one thing, a call that is tried again and again; later ones prolong the last

export class Trace {
  constructor() {
    this.things = [];
    this.turns = []; // the things that are requests to a model
    this.open = new Set();
    this.calls = new Map(); // those that are open, by path and id
    this.spent = { model: 0, call: 0, wait: 0 }; // seconds; of models and calls those at the same time are added up
    this.waits = []; // when a person was waited for: one person, once, however many calls do so
    this.began = this.last = 0;
    this.lanes = new Map();
    this.outermost = { things: [], above: null };
    this.flat = [];
    this.stale = false;
  }

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

  begin(row, position, rows) {
    const kind = KINDS[row.type] ?? "call",
      path = row.path ?? "",
      cause = rows[row.cause];
    const opened = kind === "call" && cause ? cause.time : row.time;
    const thing = { kind, name: row.name ?? row.type, path, position, opened, ended: null, stretches: [], failed: false };
    const above = kind === "loop" && cause ? this.things[cause.thing] : null;
    if (above) above.performed = true; // by this loop, whose own calls and requests tell what it takes
    if (kind === "model") this.turns.push(Object.assign(thing, { calls: 0, callTime: 0 }));
    if (kind === "call") {
      thing.turn = cause && this.things[cause.thing]?.kind === "model" ? this.things[cause.thing] : null;
      if (thing.turn) thing.turn.calls++;
    }
    this.place(thing);
    this.open.add(thing);
    return thing;
  }

  // Each loop has a lane: its own row, and below it those of what happens in it.
  place(thing) {
    const lane = this.lanes.get(thing.path),
      outer = this.lanes.get(thing.path.slice(0, Math.max(0, thing.path.lastIndexOf("/")))) ?? this.outermost;
    const home = thing.kind === "loop" ? (thing.path ? outer : this.outermost) : (lane ?? outer);
    thing.depth = home.depth ?? 0;
    home.things.push(thing);
    if (thing.kind === "loop") {
      thing.lane = { things: [], above: home, head: thing, depth: thing.depth + 1 };
      this.lanes.set(thing.path, thing.lane);
    }
    if (this.isLast(home)) this.flat.push(thing);
    else this.stale = true;
  }

  // Whether what comes to this lane comes last of all.
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
    const flat = [],
      add = (lane) => {
        for (const thing of lane.things) {
          flat.push(thing);
          if (thing.lane) add(thing.lane);
        }
      };
    add(this.outermost);
    return (this.flat = flat);
  }

  // What is called so that this event is about.
  nameAt(row) {
    return this.things[row?.thing]?.name ?? row?.type ?? "others";
  }

  // What runs or waits in the same loop, by name.
  beside(thing, most) {
    const names = [];
    for (const other of this.open) {
      if (names.length === most) break;
      if (other.path === thing.path && other !== thing && other.kind !== "loop" && other.stretches.length) names.push(other.name);
    }
    return names;
  }

  start(thing, kind, row, position) {
    const since = thing.stretches.at(-1)?.end ?? thing.opened; // `after`: the event that it had to wait for since then
    if (thing.stretches.length < STRETCHES) thing.stretches.push({ kind, start: row.time, end: null, position, since, after: row.after });
    else thing.stretches.at(-1).end = null;
    thing.ended = null;
    this.open.add(thing);
  }

  stop(thing, stretch, time) {
    stretch.end = time;
    const spent = Math.max(0, time - stretch.start),
      what = stretch.kind === "wait" ? "wait" : thing.performed ? "loop" : thing.kind;
    if (what === "wait") this.countWait(stretch.start, Math.max(time, stretch.start));
    else if (what in this.spent) this.spent[what] += spent;
    if (what === "call" && thing.turn) thing.turn.callTime += spent;
    if (thing.kind !== "call") this.close(thing, time);
  }

  // Adds a time in which somebody was waited for, but for what of it is counted already.
  countWait(start, end) {
    while (this.waits.length && this.waits.at(-1).end >= start) {
      const earlier = this.waits.pop();
      this.spent.wait -= earlier.end - earlier.start;
      start = Math.min(start, earlier.start);
      end = Math.max(end, earlier.end);
    }
    this.waits.push({ start, end });
    this.spent.wait += end - start;
  }

  close(thing, time) {
    thing.ended = time;
    this.open.delete(thing);
  }

  noteCall(thing, row) {
    const id = row.data?.call_id ?? row.data?.call?.id,
      key = `${thing.path}\n${id}`;
    if (row.type === "call_end") {
      this.close(thing, row.time);
      this.calls.delete(key);
    } else this.calls.set(key, thing);
  }

  // A loop that ends leaves nothing open that is in it.
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

export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.floor(seconds + 0.5); // rounded before it is divided: 119.9 s are two minutes, not one
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
}
