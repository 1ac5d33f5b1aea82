// The strip of a run in miniature: all strips of a study are drawn to the same scale, by turn or by time. By time, only the
// seconds count in which something worked: a person who was waited for is a mark, however long it took.

import { duration, svg } from "./text.js";

const HEIGHT = 18,
  TOP = 5,
  BAR = 8, // pixels: the height of a bar, and where it begins
  LEAST = 2, // pixels: the width of a bar at least
  WIDEST_TURN = 66,
  TICK_EVERY = 44, // pixels between two numbers of the ruler, at least
  END = 8; // pixels that are left free for the last mark
const MODEL = 0,
  CALL = 1,
  QUESTION = 2,
  FAILURE = 3,
  FAILED_CALL = 4; // the kinds of marks (views/miniature.py)

/** @typedef {"turn" | "time"} Alignment */

/** The scale that all strips share. */
export class Scale {
  /**
   * @param {Iterable<StudyRow>} rows
   * @param {Alignment} by
   * @param {number} width
   */
  constructor(rows, by, width) {
    this.by = by;
    this.width = Math.max(0, width - END);
    let turns = 1,
      seconds = 0;
    const requests = [];
    for (const { strip } of rows) {
      for (let at = 0; at < strip.length; at += 4) {
        turns = Math.max(turns, strip[at + 1] + 1);
        seconds = Math.max(seconds, strip[at + 2] + Math.max(0, strip[at] === QUESTION ? 0 : strip[at + 3]));
        if (strip[at] === MODEL && strip[at + 3] > 0) requests.push(strip[at + 3]);
      }
    }
    requests.sort((a, b) => a - b);
    this.turns = turns;
    this.seconds = seconds || 1;
    this.longest = requests[Math.floor(requests.length * 0.95)] || 1; // of nearly all requests, so that one cannot flatten the others
    this.turn = Math.min(WIDEST_TURN, this.width / turns);
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
    return Array.from({ length: Math.floor(this.seconds / step) + 1 }, (_, i) => ({ at: i * step * this.second, text: i ? duration(i * step) : "0" }));
  }
}

export class MiniStrip {
  constructor() {
    this.paths = /** @type {Record<string, SVGElement>} */ ({});
    for (const name of ["model", "call", "open", "failed", "person", "asks", "error"]) this.paths[name] = svg("path", { class: `agentnb-mini-${name}` });
    this.el = svg("svg", { class: "agentnb-mini", height: HEIGHT, "aria-hidden": "true" }, ...Object.values(this.paths));
    this.drawn = /** @type {unknown[]} */ ([]);
  }

  /**
   * @param {StudyRow} row
   * @param {Scale} scale
   */
  show(row, scale) {
    if (this.drawn[0] === row && this.drawn[1] === scale) return;
    this.drawn = [row, scale];
    this.el.setAttribute("width", String(scale.width + END));
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
const box = (x, wide, y = TOP, high = BAR) => `M${x.toFixed(1)} ${y.toFixed(1)}h${wide.toFixed(1)}v${high.toFixed(1)}h${(-wide).toFixed(1)}z`;
/** @param {number} x */
const diamond = (x) => `M${x.toFixed(1)} 4.5l4.5 4.5-4.5 4.5-4.5-4.5z`;
/** @param {number} x */
const cross = (x) => `M${(x - 4).toFixed(1)} 5l8 8m0-8l-8 8`;

/**
 * @param {number[]} strip
 * @param {Scale} scale
 */
function byTime(strip, { second }) {
  /** @type {Record<string, string>} */
  const shapes = { model: "", call: "", open: "", failed: "", person: "", asks: "", error: "" };
  for (let at = 0; at < strip.length; at += 4) {
    const [kind, , start, seconds] = strip.slice(at, at + 4),
      x = start * second,
      wide = Math.max(LEAST, seconds * second);
    if (kind === QUESTION) shapes[seconds < 0 ? "asks" : "person"] += diamond(x);
    else if (kind === FAILURE) shapes.error += cross(x);
    else if (seconds < 0) shapes.open += box(x, 6);
    else if (kind === MODEL) shapes.model += box(x, wide);
    else shapes[kind === FAILED_CALL ? "failed" : "call"] += box(x, wide, TOP + 2, BAR - 4);
  }
  return shapes;
}

/**
 * @param {number[]} strip
 * @param {Scale} scale
 */
function byTurn(strip, { turn, longest }) {
  /** @type {Record<string, string>} */
  const shapes = { model: "", call: "", open: "", failed: "", person: "", asks: "", error: "" };
  const turns = /** @type {number[][][]} */ ([]);
  for (let at = 0; at < strip.length; at += 4) (turns[strip[at + 1]] ??= []).push(strip.slice(at, at + 4));
  turns.forEach((marks, number) => {
    const x = number * turn,
      models = marks.filter(([kind]) => kind === MODEL),
      calls = marks.filter(([kind]) => kind === CALL || kind === FAILED_CALL),
      room = 0.6 * turn,
      slot = room / Math.max(1, models.length);
    models.forEach(([, , , seconds], i) => {
      const wide = seconds < 0 ? slot * 0.4 : slot * Math.min(1, seconds / longest);
      shapes[seconds < 0 ? "open" : "model"] += box(x + i * slot, Math.max(LEAST, wide - (models.length > 1 ? 1 : 0)));
    });
    // Calls that were made in the same turn are on top of each other.
    const rows = Math.min(3, calls.length);
    calls.slice(0, 3).forEach(([kind, , , seconds], i) => {
      const high = (BAR - (rows - 1) * 1.2) / rows,
        look = seconds < 0 ? "open" : kind === FAILED_CALL ? "failed" : "call";
      shapes[look] += box(x + 0.64 * turn, Math.max(LEAST, Math.min(7, 0.14 * turn)), TOP + i * (high + 1.2), high);
    });
    for (const [kind, , , seconds] of marks) {
      if (kind === QUESTION) shapes[seconds < 0 ? "asks" : "person"] = (shapes[seconds < 0 ? "asks" : "person"] ?? "") + diamond(x + 0.86 * turn);
      else if (kind === FAILURE) shapes.error += cross(x + Math.max(LEAST, room / 2));
    }
  });
  return shapes;
}
