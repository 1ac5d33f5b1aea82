// The strip of a run in miniature: all strips of a study are drawn to the same scale, by turn or by time. By time, only the
// seconds count in which something worked: a person who was waited for is a mark, however long it took.

import { duration, svg } from "./text.js";

const MINI_HEIGHT = 18,
  MINI_TOP = 5,
  MINI_BAR = 8, // pixels: the height of a bar, and where it begins
  MINI_LEAST = 2, // pixels: the width of a bar at least
  MINI_TURN = 66,
  MINI_WAIT = 26, // the width of a question that waits
  TICK_EVERY = 44, // pixels between two numbers of the ruler, at least
  MINI_END = 8; // pixels that are left free for the last mark
const IS_MODEL = 0,
  IS_CALL = 1,
  IS_QUESTION = 2,
  IS_FAILURE = 3,
  IS_FAILED_CALL = 4; // the kinds of marks (views/miniature.py)

/** @typedef {"turn" | "time"} Alignment */

/** The scale that all strips share. */
export class MiniScale {
  /**
   * @param {Iterable<StudyRow>} rows
   * @param {Alignment} by
   * @param {number} width
   */
  constructor(rows, by, width) {
    this.by = by;
    this.width = Math.max(0, width - MINI_END);
    let turns = 1,
      seconds = 0;
    const requests = [];
    for (const { strip } of rows) {
      for (let at = 0; at < strip.length; at += 4) {
        turns = Math.max(turns, strip[at + 1] + 1);
        seconds = Math.max(seconds, strip[at + 2] + Math.max(0, strip[at] === IS_QUESTION ? 0 : strip[at + 3]));
        if (strip[at] === IS_MODEL && strip[at + 3] > 0) requests.push(strip[at + 3]);
      }
    }
    requests.sort((a, b) => a - b);
    this.turns = turns;
    this.seconds = seconds || 1;
    this.longest = requests[Math.floor(requests.length * 0.95)] || 1; // of nearly all requests, so that one cannot flatten the others
    this.turn = Math.min(MINI_TURN, this.width / turns);
    this.second = this.width / this.seconds;
  }

  /**
   * The marks of the ruler.
   * @returns {{ at: number, text: string }[]}
   */
  ticks() {
    if (this.width < TICK_EVERY) return [];
    if (this.by === "turn") {
      const every = Math.max(1, Math.ceil(TICK_EVERY / this.turn));
      return Array.from({ length: Math.ceil(this.turns / every) }, (_, i) => ({ at: i * every * this.turn, text: String(i * every + 1) }));
    }
    const rough = (this.seconds * TICK_EVERY * 1.6) / this.width,
      power = 10 ** Math.floor(Math.log10(rough)),
      step = /** @type {number} */ ([1, 2, 5, 10].find((times) => times * power >= rough)) * power;
    const last = Math.floor((this.width - TICK_EVERY) / (step * this.second)); // its words have room
    return Array.from({ length: last + 1 }, (_, i) => ({ at: i * step * this.second, text: i ? duration(i * step) : "0" }));
  }
}

export class MiniStrip {
  constructor() {
    this.paths = /** @type {Record<string, SVGElement>} */ ({});
    for (const name of ["model", "call", "open", "failed", "person", "asks", "error"]) this.paths[name] = svg("path", { class: `agentnb-mini-${name}` });
    this.el = svg("svg", { class: "agentnb-mini", height: MINI_HEIGHT, "aria-hidden": "true" }, ...Object.values(this.paths));
    this.drawn = /** @type {unknown[]} */ ([]);
  }

  /**
   * @param {StudyRow} row
   * @param {MiniScale} scale
   */
  show(row, scale) {
    if (this.drawn[0] === row && this.drawn[1] === scale) return;
    this.drawn = [row, scale];
    this.el.setAttribute("width", String(scale.width + MINI_END));
    const shapes = scale.by === "turn" ? byTurn(row.strip, scale) : byTime(row.strip, scale);
    for (const [name, path] of Object.entries(this.paths)) path.setAttribute("d", shapes[name] ?? "");
  }
}

/**
 * @param {number} x
 * @param {number} wide
 * @param {number} [y]
 * @param {number} [high]
 */
const miniBar = (x, wide, y = MINI_TOP, high = MINI_BAR) => `M${x.toFixed(1)} ${y.toFixed(1)}h${wide.toFixed(1)}v${high.toFixed(1)}h${(-wide).toFixed(1)}z`;
/** @param {number} x */
const miniDiamond = (x) => `M${x.toFixed(1)} 4.5l4.5 4.5-4.5 4.5-4.5-4.5z`;
/**
 * A question that waits, as a box if there is room for it.
 * @param {number} x
 * @param {number} room
 */
const miniWait = (x, room) => (room < MINI_WAIT ? miniDiamond(x) : `M${(x - 4).toFixed(1)} 3.5h${MINI_WAIT}v11h-${MINI_WAIT}z`);
/** @param {number} x */
const miniCross = (x) => `M${(x - 4).toFixed(1)} 5l8 8m0-8l-8 8`;

/**
 * @param {number[]} strip
 * @param {MiniScale} scale
 */
function byTime(strip, { second }) {
  /** @type {Record<string, string>} */
  const shapes = { model: "", call: "", open: "", failed: "", person: "", asks: "", error: "" };
  for (let at = 0; at < strip.length; at += 4) {
    const [kind, , start, seconds] = strip.slice(at, at + 4),
      x = start * second,
      wide = Math.max(MINI_LEAST, seconds * second);
    if (kind === IS_QUESTION && seconds < 0) shapes.asks += miniWait(x, MINI_WAIT);
    else if (kind === IS_QUESTION) shapes.person += miniDiamond(x);
    else if (kind === IS_FAILURE) shapes.error += miniCross(x);
    else if (seconds < 0) shapes.open += miniBar(x, 6);
    else if (kind === IS_MODEL) shapes.model += miniBar(x, wide);
    else shapes[kind === IS_FAILED_CALL ? "failed" : "call"] += miniBar(x, wide, MINI_TOP + 2, MINI_BAR - 4);
  }
  return shapes;
}

/**
 * @param {number[]} strip
 * @param {MiniScale} scale
 */
function byTurn(strip, { turn, longest }) {
  /** @type {Record<string, string>} */
  const shapes = { model: "", call: "", open: "", failed: "", person: "", asks: "", error: "" };
  const turns = /** @type {number[][][]} */ ([]);
  for (let at = 0; at < strip.length; at += 4) (turns[strip[at + 1]] ??= []).push(strip.slice(at, at + 4));
  turns.forEach((marks, number) => {
    const x = number * turn,
      models = marks.filter(([kind]) => kind === IS_MODEL),
      calls = marks.filter(([kind]) => kind === IS_CALL || kind === IS_FAILED_CALL),
      room = 0.6 * turn,
      slot = room / Math.max(1, models.length);
    models.forEach(([, , , seconds], i) => {
      const wide = seconds < 0 ? slot * 0.4 : slot * Math.min(1, seconds / longest);
      shapes[seconds < 0 ? "open" : "model"] += miniBar(x + i * slot, Math.max(MINI_LEAST, wide - (models.length > 1 ? 1 : 0)));
    });
    // Calls that were made in the same turn are on top of each other.
    const rows = Math.min(3, calls.length);
    calls.slice(0, 3).forEach(([kind, , , seconds], i) => {
      const high = (MINI_BAR - (rows - 1) * 1.2) / rows,
        look = seconds < 0 ? "open" : kind === IS_FAILED_CALL ? "failed" : "call";
      shapes[look] += miniBar(x + 0.64 * turn, Math.max(MINI_LEAST, Math.min(7, 0.14 * turn)), MINI_TOP + i * (high + 1.2), high);
    });
    for (const [kind, , , seconds] of marks) {
      if (kind === IS_QUESTION && seconds < 0) shapes.asks += miniWait(x + 0.86 * turn, 0.6 * turn);
      else if (kind === IS_QUESTION) shapes.person += miniDiamond(x + 0.86 * turn);
      else if (kind === IS_FAILURE) shapes.error += miniCross(x + Math.max(MINI_LEAST, room / 2));
    }
  });
  return shapes;
}
