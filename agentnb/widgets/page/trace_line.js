// One row of the trace: what it is, how long it took, and its bar to scale.

import { capital, count, duration, el, fit, number, say, used, visible } from "./text.js";
import { placeOf } from "./lanes.js";
import { worked } from "./spans.js";

const MERGED = 300; // parts of a strip that are nearer to each other than this share of all that worked are one
const MOST = 1200; // parts of a strip
const LEAST_GIVEN = 24; // of the characters of a call's arguments, before its result is cut
const BRIEF = 0.0005; // seconds: what takes less is "<1 ms"
const DRAWING = "http://www.w3.org/2000/svg";

/** @typedef {import("./lanes.js").Axis} Axis */
/** @typedef {{ kind: string, start: number, end: number, open: boolean }} Piece a time in which something ran */
/** @typedef {{ count: number, at: number, pieces: Piece[] }} Strip */

// The scale of all bars: that of the strip, if the panel has one, which is broken where nothing works; otherwise it is even
// from the run's beginning to its end or to now.
export class Scale {
  /**
   * @param {Store} store
   * @param {Axis | null} axis
   */
  constructor(store, axis) {
    const { spans } = store;
    this.store = store;
    this.axis = axis;
    this.end = axis?.places.at(-1) ?? 0;
    this.now = store.until();
    this.began = spans.began;
    this.length = Math.max(0.001, this.now - spans.began);
    this.grows = this.now > spans.last; // whether time passes while no event comes
  }

  /**
   * Where a time is, from 0 to 1.
   * @param {number} time
   */
  place(time) {
    if (this.axis && this.end > 0) return placeOf(this.axis, time) / this.end;
    return Math.min(1, Math.max(0, (time - this.began) / this.length));
  }
}

/** What the trace knows of a row: whether it is folded, what is in progress in it, and whether a model is writing it. */
/** @typedef {{ isFolded?: boolean, said?: string, progress?: LiveLine["progress"], took?: string, isWritten?: boolean }} Extra */

export class Line {
  /** @param {string} id empty for a line inside a row that has grown */
  constructor(id) {
    const cell = id ? "gridcell" : false;
    this.row = /** @type {TraceRow | null} */ (null);
    this.strips = /** @type {WeakMap<TraceRow, Strip>} */ (new WeakMap());
    this.number = el("span", { class: "agentnb-trace-number", role: cell });
    this.guides = el("span", { class: "agentnb-guides", "aria-hidden": "true" });
    this.mark = el("span", { class: "agentnb-fold", "aria-hidden": "true" }, chevron());
    this.glyph = el("span", { class: "agentnb-glyph" });
    this.lead = el("span", { class: "agentnb-lead agentnb-isolated" });
    this.tool = el("code", { class: "agentnb-called" });
    this.given = el("code", { class: "agentnb-given" });
    this.facts = el("span", { class: "agentnb-trace-facts" });
    this.result = el("code", { class: "agentnb-result" });
    this.text = el("span", { class: "agentnb-cut agentnb-isolated" });
    this.fill = el("span", { class: "agentnb-meter-fill" });
    this.meter = el("span", { class: "agentnb-meter", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, this.fill);
    this.badge = el("span", { class: "agentnb-badge" }, el("span", { class: "agentnb-glyph", "data-kind": "decided" }), el("span"));
    const parts = [this.lead, this.tool, this.given, this.facts, this.result, this.text, this.meter, this.badge];
    this.what = el("span", { class: "agentnb-what", role: cell }, this.guides, this.mark, this.glyph, ...parts);
    this.took = el("span", { class: "agentnb-took", role: cell });
    this.track = el("span", { class: "agentnb-track", role: cell });
    this.el = el("div", { class: "agentnb-trace-row", role: id ? "row" : false, id: id || null }, this.number, this.what, this.took, this.track);
  }

  /**
   * @param {TraceRow} row
   * @param {Scale} scale
   * @param {Extra} extra
   */
  show(row, scale, { isFolded = false, said = "", progress, took, isWritten = false }) {
    const { store } = scale,
      isLoop = row.kind === "loop" || row.kind === "pass",
      isCode = row.kind === "call" || (row.kind === "loop" && row.arguments !== "");
    say(this.number, isWritten ? "" : row.position);
    this.indent(row.depth);
    this.el.style.setProperty("--in", String(row.depth));
    this.mark.dataset.open = row.inside.length ? String(!isFolded) : "";
    this.glyph.dataset.kind = glyphOf(row);
    this.glyph.dataset.status = row.status;
    this.glyph.ariaLabel = row.status === "done" ? null : row.status;
    this.glyph.role = row.status === "done" ? null : "img";

    // What it is: a call as in code, anything else with the first line of its text.
    sayOrHide(this.lead, isCode ? "" : row.kind === "loop" || row.kind === "message" ? row.name : capital(row.name));
    sayOrHide(this.tool, isCode ? row.name : "");
    const given = isCode ? `(${row.arguments})` : "";
    sayOrHide(this.given, given);
    this.given.style.setProperty("--least", `${Math.min(given.length, LEAST_GIVEN)}ch`);
    const counts = [row.turns ? count(row.turns, "turn") : "", row.calls ? count(row.calls, "call") : ""].filter(Boolean).join(", ");
    const outcome = row.outcome === row.decided?.what ? "" : row.outcome; // the badge says it
    const cost = row.kind === "turn" ? used(store.spans.all[row.span ?? -1]?.usage) : [];
    sayOrHide(this.facts, [isLoop ? counts : "", ...cost, progress?.text ?? "", outcome].filter(Boolean).join(", "));
    sayOrHide(this.result, row.kind === "call" && row.status === "done" && row.result ? `→ ${row.result}` : "");
    sayOrHide(this.text, textOf(row, isFolded, said));
    this.text.classList.toggle("agentnb-bad", row.status === "failed");
    this.showProgress(row, progress);
    this.decide(row);

    say(this.took, took ?? tookOf(row, scale));
    const pieces = piecesOf(row, isFolded, scale, this.strips);
    this.draw(isWritten ? pieces.map((piece) => ({ ...piece, kind: "model" })) : pieces, scale);
    if (this.row !== row) this.el.title = "";
    this.row = row;
    const loop = store.all[row.position]?.path;
    this.lead.title = loop && row.kind === "loop" ? visible(loop) : "";
  }

  /** @param {number} depth */
  indent(depth) {
    const guides = fit(this.guides, depth, () => el("span", { class: "agentnb-guide" }));
    guides.forEach((guide, i) => guide.style.setProperty("--at", String(i)));
  }

  /**
   * @param {TraceRow} row
   * @param {LiveLine["progress"]} progress
   */
  showProgress(row, progress) {
    const share = progress?.share;
    this.meter.hidden = share === undefined;
    if (share === undefined) return;
    this.fill.style.width = `${100 * share}%`;
    this.meter.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    this.meter.setAttribute("aria-valuetext", visible(progress?.text));
    this.meter.setAttribute("aria-label", visible(row.name));
  }

  /** @param {TraceRow} row */
  decide({ decided }) {
    const isOver = decided && decided.what !== "withdrawn";
    this.badge.hidden = !isOver;
    if (!isOver) return;
    const [glyph, words] = /** @type {HTMLElement[]} */ ([...this.badge.children]);
    glyph.hidden = !decided.person;
    if (decided.person) this.badge.dataset.kind = "person";
    else delete this.badge.dataset.kind;
    say(words, decided.what);
    const after = decided.after === undefined ? "" : ` after ${duration(decided.after)}`,
      title = visible(`${decided.what} by ${decided.by}${after}${decided.reason ? `: ${decided.reason}` : ""}`);
    if (this.badge.title !== title) this.badge.title = title;
  }

  /**
   * @param {Piece[]} pieces
   * @param {Scale} scale
   */
  draw(pieces, scale) {
    const bars = fit(this.track, pieces.length, () => el("i"));
    pieces.forEach(({ kind, start, end, open }, i) => {
      const bar = bars[i],
        left = scale.place(start),
        right = scale.place(open ? Math.max(end, scale.now) : end);
      bar.dataset.kind = kind;
      bar.style.left = `min(${(100 * left).toFixed(2)}%, 100% - 3px)`;
      bar.style.width = `${(100 * Math.max(0, right - left)).toFixed(2)}%`;
    });
  }
}

/**
 * @param {HTMLElement} node
 * @param {string} text
 */
function sayOrHide(node, text) {
  node.hidden = !text;
  say(node, text);
}

function chevron() {
  const svg = document.createElementNS(DRAWING, "svg"),
    path = document.createElementNS(DRAWING, "path");
  svg.setAttribute("class", "agentnb-icon");
  svg.setAttribute("viewBox", "0 0 16 16");
  path.setAttribute("d", "M6 4l4 4-4 4");
  svg.append(path);
  return svg;
}

/**
 * The shape of a row's mark.
 * @param {TraceRow} row
 */
function glyphOf({ kind, status, person }) {
  if (status === "waiting") return "person";
  if (kind === "turn") return "model";
  if (kind === "message") return person ? "said" : "loop";
  return kind === "pass" ? "loop" : kind;
}

/**
 * The first line of what a row says. An answer that is only JSON is told by its calls.
 * @param {TraceRow} row
 * @param {boolean} isFolded
 * @param {string} said the beginning of the text that the model is writing
 */
function textOf(row, isFolded, said) {
  if (row.kind === "call" && row.status !== "failed") return "";
  if (row.kind === "loop" && isFolded && row.status === "done" && row.result) return row.result;
  if (row.kind === "turn" && row.inside.length && /^\s*[{[]/.test(row.text || said)) return "";
  if (row.kind === "call" && row.outcome === "rejected" && row.decided?.what === "rejected") return row.decided.reason ?? "";
  return row.text || said;
}

/**
 * @param {TraceRow} row
 * @param {Scale} scale
 */
function tookOf(row, { store, now }) {
  if (row.kind === "message" || row.kind === "answer") return "";
  if (row.status === "next") {
    const siblings = row.parent?.inside ?? [];
    return siblings[siblings.indexOf(row) - 1]?.status === "next" ? "" : "next";
  }
  if (row.status === "waiting" && row.kind === "call") return "waits";
  if (row.began !== undefined) return duration(Math.max(0, (row.ended ?? now) - row.began));
  const span = store.spans.all[row.loop ?? row.span ?? -1],
    hasRun = span?.intervals.some(({ kind }) => kind === "run"),
    seconds = span ? worked(span, now) : 0;
  if (!hasRun) return "";
  if (!seconds && row.status !== "running" && store.model.get("status")?.imported) return ""; // no time is known
  return seconds < BRIEF && row.status !== "running" ? "<1 ms" : (span.at_most ? "\u2264 " : "") + duration(seconds);
}

/**
 * The pieces of a row's bar. A folded row has those of all that is in it.
 * @param {TraceRow} row
 * @param {boolean} isFolded
 * @param {Scale} scale
 * @param {WeakMap<TraceRow, Strip>} strips
 * @returns {Piece[]}
 */
function piecesOf(row, isFolded, { store, now }, strips) {
  const { spans } = store;
  if (row.kind === "message") {
    const time = row.person ? store.all[row.position]?.time : undefined;
    return time === undefined ? [] : [{ kind: "dot", start: time, end: time, open: false }];
  }
  if (isFolded) return stripOf(row, store, now, strips);
  if (row.kind === "pass") return [{ kind: "loop", start: row.began ?? now, end: row.ended ?? now, open: row.ended === undefined }];
  if (row.kind === "loop") {
    const span = spans.all[row.loop ?? -1];
    return span ? [{ kind: "loop", start: span.opened, end: span.ended ?? now, open: span.ended === null }] : [];
  }
  return ownPieces(row, store, now);
}

/**
 * @param {TraceRow} row
 * @param {Store} store
 * @param {number} now
 * @returns {Piece[]}
 */
function ownPieces(row, { spans }, now) {
  const span = spans.all[row.span ?? -1],
    work = row.status === "failed" ? "error" : row.kind === "turn" ? "model" : "call";
  return (span?.intervals ?? []).map(({ kind, start, end }) => ({
    kind: kind === "wait" ? "wait" : work,
    start,
    end: end ?? now,
    open: end === null,
  }));
}

/**
 * The pieces of all turns and calls in a row. They are computed again if there are more of them, or if some still run.
 * @param {TraceRow} row
 * @param {Store} store
 * @param {number} now
 * @param {WeakMap<TraceRow, Strip>} strips
 */
function stripOf(row, store, now, strips) {
  const many = row.turns + row.calls,
    known = strips.get(row);
  if (known?.count === many && (known.at === Infinity || now - known.at < Math.min(1, many / 1000))) return known.pieces;
  const pieces = /** @type {Piece[]} */ ([]);
  /** @param {TraceRow} at */
  const gather = (at) => {
    if (at.kind === "turn" || at.kind === "call") pieces.push(...ownPieces(at, store, now));
    at.inside.forEach(gather);
  };
  gather(row);
  const merged = joined(pieces),
    isDone = row.status !== "running" && row.status !== "waiting" && !pieces.some(({ open }) => open);
  strips.set(row, { count: many, at: isDone ? Infinity : now, pieces: merged });
  return merged;
}

/**
 * Join pieces of the same kind that are near each other.
 * @param {Piece[]} pieces
 * @returns {Piece[]}
 */
export function joined(pieces) {
  const sorted = [...pieces].sort((one, other) => one.start - other.start),
    busy = sorted.reduce((sum, { kind, start, end }) => (kind === "wait" ? sum : sum + end - start), 0);
  let near = busy / MERGED,
    made = joinedWithin(sorted, near);
  while (made.length > MOST) made = joinedWithin(made, (near = Math.max(0.001, 2 * near)));
  return made;
}

/**
 * @param {Piece[]} pieces by their start
 * @param {number} near seconds
 */
function joinedWithin(pieces, near) {
  const last = /** @type {Map<string, Piece>} */ (new Map()),
    made = /** @type {Piece[]} */ ([]);
  for (const piece of pieces) {
    const before = last.get(piece.kind);
    if (before && piece.start - before.end <= near) {
      before.end = Math.max(before.end, piece.end);
      before.open ||= piece.open;
    } else {
      const kept = { ...piece };
      last.set(piece.kind, kept);
      made.push(kept);
    }
  }
  return made;
}

/**
 * About how many tokens a text has: a token is about four characters.
 * @param {number} characters
 */
export const tokensOf = (characters) => `\u2248${number(Math.max(1, Math.round(characters / 4)))} tokens`;
