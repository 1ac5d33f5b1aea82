// The run as it was at a moment: its spans, the rows of its trace, and of each loop the phases, transitions, turns, calls
// and tokens until then. It is folded from the rows, forwards and back, so a page can show any moment without asking the
// kernel.

import { Past } from "./past.js";
import { Spans } from "./spans.js";
import { TraceRows } from "./trace_rows.js";

const SHOWN = 12, // nested loops
  DRAWN = 2; // nested loops with a drawing; the same limits as in loops.py
const STRIDE = 200; // events between two looks at the clock

/**
 * One loop. `work` and `waits` count the spans in it, and in the loops inside it, that run and that wait for a person.
 * @typedef {object} Loop
 * @property {string} path
 * @property {string} name its design and its name, by which its drawing is found
 * @property {string} input
 * @property {number | undefined} call the number of the span of the call that it performs
 * @property {string} phase
 * @property {{ name: string, times: number, seconds: number }[]} phases those entered, in this order
 * @property {Arrow[]} arrows the transitions taken, in the order in which they were first taken
 * @property {number[]} times how often each was taken
 * @property {number} latest the index of the one taken last, or -1
 * @property {boolean} running
 * @property {string} ended
 * @property {number} turn
 * @property {number} calls
 * @property {Record<string, number>} usage of its own requests
 * @property {number} work
 * @property {number} waits
 * @property {number} since the time until which the seconds of its phase are counted
 * @property {Loop[]} inside
 */

export class Moment {
  /** @param {boolean} goesBack whether it can be moved back */
  constructor(goesBack) {
    this.past = new Past(goesBack);
    this.spans = new Spans(this.past);
    this.trace = new TraceRows(this.past);
    this.position = 0; // the number of events that are folded
    this.root = newLoop("", "", "", undefined);
    this.loops = /** @type {Map<string, Loop>} */ (new Map([["", this.root]])); // by path
    this.running = new Set([this.root]);
    this.requests = this.calls = 0; // of all loops
    this.known = /** @type {Map<number, boolean>} */ (new Map()); // the spans of the calls that were seen
    this.usage = /** @type {Record<string, number>} */ ({});
    this.paused = this.over = false;
  }

  /**
   * Move to a position, forwards or back. Returns whether it is there: it stops when the time is up.
   * @param {EventRow[]} rows
   * @param {number} position
   * @param {number} [until] as `performance.now` gives it
   */
  goTo(rows, position, until = Infinity) {
    if (this.position > position) this.trace.wentBack();
    for (let n = 1; this.position !== position; n++) {
      if (this.position < position) this.take(rows[this.position], rows);
      else {
        this.past.back();
        this.position--;
      }
      if (n % STRIDE === 0 && performance.now() > until) break;
    }
    return this.position === position;
  }

  /**
   * Apply the next event.
   * @param {EventRow} row
   * @param {EventRow[]} rows all rows until it, of which one may be its cause
   */
  take(row, rows) {
    const { past, spans } = this,
      changed = row.spans ?? [],
      before = changed.map(({ number }) => activity(spans.all[number]));
    // The data of early rows is dropped later. What is needed of it is kept.
    if (row.data?.own || row.data?.inherited) row.uncounted = true;
    if (row.idle !== undefined) for (const loop of this.running) this.settle(loop);
    spans.take(row, this.position);
    if (row.idle !== undefined) for (const loop of this.running) past.set(loop, "since", spans.last); // nothing ran since then
    this.trace.take(row, this.position);
    if (row.type === "run_start" && row.path) this.begin(row, rows);
    changed.forEach(({ number }, i) => this.count(spans.all[number], before[i], activity(spans.all[number])));
    const loop = this.loops.get(row.path ?? "");
    if (loop) this.follow(loop, row);
    past.end();
    this.position++;
  }

  /**
   * A loop begins. Of the others inside the same loop, only those that run are kept.
   * @param {EventRow} row
   * @param {EventRow[]} rows
   */
  begin({ path = "", summary, cause }, rows) {
    const { past } = this,
      [name] = summary.split(": ", 1),
      above = this.loops.get(path.slice(0, Math.max(0, path.lastIndexOf("/"))));
    if (!above) return;
    const loop = newLoop(path, name, summary.slice(name.length + 2), cause === undefined ? undefined : rows[cause]?.span);
    past.set(loop, "since", this.spans.last);
    past.put(this.loops, path, loop);
    past.hold(this.running, loop, true);
    past.set(above, "inside", [...above.inside.filter((other) => other.running && other.path !== path), loop]);
  }

  /**
   * @param {Loop} loop
   * @param {EventRow} row
   */
  follow(loop, { type, phase, span, spans, data, summary, uncounted }) {
    const { past } = this;
    if (phase) this.enter(loop, phase);
    if (type === "model_start") {
      const name = this.spans.all[span ?? -1]?.name ?? "";
      past.set(loop, "turn", Number(/^turn (\d+)/.exec(name)?.[1] ?? loop.turn));
      if (!name.includes(", attempt")) past.set(this, "requests", this.requests + 1);
    } else if (type === "model_end") {
      const usage = uncounted ? {} : (spans?.find(({ number }) => number === span)?.usage ?? {});
      past.set(loop, "usage", sum(loop.usage, usage));
      past.set(this, "usage", sum(this.usage, usage));
    } else if (type === "call_start" || type === "approval_request" || type === "call_end") {
      // A call counts once that a model has asked for, also if it does not run.
      if (span !== undefined && !this.known.has(span)) {
        past.put(this.known, span, true);
        if (!uncounted) {
          past.set(loop, "calls", loop.calls + 1);
          past.set(this, "calls", this.calls + 1);
        }
      }
    }
    if (type === "call_end") {
      for (const inner of loop.inside) if (inner.running && inner.call === span) this.stop(inner, data?.outcome ?? "");
    } else if (type === "run_end") {
      this.stop(loop, data?.reason ?? summary.split(": ", 1)[0]);
      if (loop === this.root) past.set(this, "over", true);
    }
  }

  /**
   * @param {Loop} loop
   * @param {string} phase
   */
  enter(loop, phase) {
    const { past } = this;
    if (loop.phase === phase) return;
    this.settle(loop);
    if (loop.phase) {
      let arrow = loop.arrows.findIndex(([source, target]) => source === loop.phase && target === phase);
      if (arrow < 0) {
        arrow = loop.arrows.length;
        past.push(loop.arrows, /** @type {Arrow} */ ([loop.phase, phase]));
        past.push(loop.times, 0);
      }
      past.set(loop.times, arrow, loop.times[arrow] + 1);
      past.set(loop, "latest", arrow);
    }
    past.set(loop, "phase", phase);
    let entered = loop.phases.find(({ name }) => name === phase);
    if (!entered) past.push(loop.phases, (entered = { name: phase, times: 0, seconds: 0 }));
    past.set(entered, "times", entered.times + 1);
  }

  /**
   * @param {Loop} loop
   * @param {string} reason
   */
  stop(loop, reason) {
    const { past } = this;
    this.settle(loop);
    past.set(loop, "running", false);
    past.hold(this.running, loop, false);
    past.set(loop, "ended", loop.ended || reason);
    for (const inner of loop.inside) if (inner.running) this.stop(inner, "");
  }

  /**
   * A span has begun or stopped to run or to wait: count it in its loop and in those around it.
   * @param {Span} span
   * @param {Activity} before
   * @param {Activity} now
   */
  count(span, before, now) {
    const { past } = this;
    if (before === now) return;
    if (before === "pause" || now === "pause") {
      for (const loop of this.running) this.settle(loop);
      past.set(this, "paused", now === "pause");
      return;
    }
    for (let { path } = span; ; path = path.slice(0, Math.max(0, path.lastIndexOf("/")))) {
      const loop = this.loops.get(path);
      if (loop) {
        this.settle(loop);
        past.set(loop, "work", loop.work + Number(now === "run") - Number(before === "run"));
        past.set(loop, "waits", loop.waits + Number(now === "wait") - Number(before === "wait"));
      }
      if (!path) return;
    }
  }

  /**
   * Add the seconds until now to those of a loop's phase.
   * @param {Loop} loop
   */
  settle(loop) {
    const passed = this.passed(loop, this.spans.last),
      phase = passed ? loop.phases.find(({ name }) => name === loop.phase) : undefined;
    if (phase) this.past.set(phase, "seconds", phase.seconds + passed);
    this.past.set(loop, "since", this.spans.last);
  }

  /**
   * The seconds that a loop has spent in its phase since they were last added: none while it only waits.
   * @param {Loop} loop
   * @param {number} now
   */
  passed({ running, work, waits, since }, now) {
    const waiting = !running || (work <= 0 && (waits > 0 || this.paused));
    return waiting || !since ? 0 : Math.max(0, now - since);
  }

  /**
   * The phases that a loop has entered, in this order, with how often and for how many seconds without waits.
   * @param {Loop} loop
   * @param {number} now
   */
  phasesOf(loop, now) {
    return loop.phases.map((phase) => ({
      ...phase,
      seconds: phase.seconds + (phase.name === loop.phase ? this.passed(loop, now) : 0),
    }));
  }

  /**
   * The nested loops that are shown: those that run, or else the last one, each followed by its own.
   * @param {Loop} [loop]
   * @returns {Loop[]}
   */
  nested(loop = this.root) {
    const running = loop.inside.filter((inner) => inner.running);
    return (running.length ? running : loop.inside.slice(-1)).flatMap((inner) => [inner, ...this.nested(inner)]);
  }

  /**
   * The state of the run at this moment, with what the kernel alone knows (`now`) as it is now.
   * @param {Status} now
   * @param {string[]} phases those of the outermost loop
   * @param {PhaseTable[]} tables
   * @returns {Status}
   */
  status(now, phases, tables) {
    const { root, position, over, paused } = this,
      nested = this.nested(),
      drawn = drawings(nested.slice(0, SHOWN), tables);
    return {
      ...now,
      standing: position ? now.standing : "not started",
      phase: root.phase || phases[0] || "",
      path: [...root.arrows],
      times: [...root.times],
      latest: root.latest,
      nested: nested.slice(0, SHOWN).map((loop) => ({
        ...{ path: loop.path, input: loop.input, phase: loop.phase, arrows: [...loop.arrows], times: [...loop.times] },
        ...{ latest: loop.latest, running: loop.running, ended: loop.ended.replaceAll("_", " "), table: drawn.get(loop) ?? -1 },
      })),
      more: Math.max(0, nested.length - SHOWN),
      ...{ over, lives: position > 0 && !over && !paused, turn: root.turn, requests: this.requests, calls: this.calls },
      ...{ usage: this.usage, problem: "", paused_for: "", position, queued: [] },
    };
  }
}

/**
 * @param {string} path
 * @param {string} name
 * @param {string} input
 * @param {number | undefined} call
 * @returns {Loop}
 */
function newLoop(path, name, input, call) {
  return {
    ...{ path, name, input, call, phase: "", phases: [], arrows: [], times: [], latest: -1, running: true, ended: "" },
    ...{ turn: 0, calls: 0, usage: {}, work: 0, waits: 0, since: 0, inside: [] },
  };
}

/** @typedef {"run" | "wait" | "pause" | ""} Activity */

/**
 * What a span does now. A call that a loop performs is what that loop does.
 * @param {Span | undefined} span
 * @returns {Activity}
 */
function activity(span) {
  const last = span?.intervals.at(-1);
  if (!span || !last || last.end !== null || span.kind === "loop") return "";
  if (span.kind === "pause") return "pause";
  return last.kind === "wait" ? "wait" : span.performed ? "" : "run";
}

/**
 * @param {Record<string, number>} one
 * @param {Record<string, number>} other
 */
function sum(one, other) {
  const added = { ...one };
  for (const name in other) added[name] = (added[name] ?? 0) + other[name];
  return added;
}

/**
 * The indexes of the tables to draw; of loops with the same table side by side, only the first is drawn.
 * @param {Loop[]} loops
 * @param {PhaseTable[]} tables
 */
function drawings(loops, tables) {
  const chosen = /** @type {Map<string, [Loop, number]>} */ (new Map());
  for (const loop of loops) {
    const table = tables.findIndex(({ loops: names }) => names.includes(loop.name)),
      key = `${loop.path.slice(0, Math.max(0, loop.path.lastIndexOf("/")))}\n${table}`;
    if (table >= 0 && !chosen.has(key)) chosen.set(key, [loop, table]);
  }
  return new Map([...chosen.values()].slice(0, DRAWN));
}
