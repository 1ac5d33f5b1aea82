// What an event is about: a call, a turn, a loop, a pause, a message, or the event alone; and how an event is mentioned
// in one line.

import { capital, el } from "./text.js";
import { inShort } from "./data.js";

const PEOPLE = new Set(["input", "steering", "follow_up"]); // the origins of a person's messages
const QUOTED = 120; // characters of a text that is quoted
/** @type {Record<string, SubjectKind>} */
const OF_SPANS = { call: "call", model: "turn", loop: "loop", pause: "pause" };

/** @typedef {"call" | "turn" | "loop" | "pause" | "message" | "event"} SubjectKind */

/**
 * The subject of an event. `rows` are all events about it until the shown moment, the oldest first.
 * @typedef {object} Subject
 * @property {SubjectKind} kind
 * @property {EventRow} row the event
 * @property {Span | undefined} span
 * @property {EventRow[]} rows
 */

export class Subjects {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.read = { rows: /** @type {EventRow[] | null} */ (null), anew: 0, span: /** @type {Span | null} */ (null), until: 0, found: /** @type {EventRow[]} */ ([]) };
  }

  /**
   * @param {EventRow} row
   * @returns {Subject}
   */
  of(row) {
    const span = this.store.rows[row.seq] === row ? this.store.spans.of(row) : undefined;
    if (span) return { kind: OF_SPANS[span.kind], row, span, rows: this.rowsOf(span) };
    return { kind: row.type === "message" ? "message" : "event", row, span, rows: [row] };
  }

  /**
   * The events of a span until the shown moment. They are looked for once: later ones are added.
   * @param {Span} span
   */
  rowsOf(span) {
    const { store, read } = this,
      { rows, anew } = store;
    if (read.span !== span || read.rows !== rows || read.anew !== anew)
      this.read = { rows, anew, span, until: span.position, found: [] };
    const { found } = this.read;
    let { until } = this.read;
    for (; until < rows.length; until++) {
      if (span.ended !== null && isLast(found.at(-1))) break;
      if (rows[until].span === span.number) found.push(rows[until]);
    }
    this.read.until = until;
    return found;
  }

  /**
   * What runs or waits now; else what was last.
   * @returns {EventRow | null}
   */
  current() {
    const { store } = this,
      { rows, spans } = store;
    const asked = store.isLive ? store.model.get("pending")?.find(({ event }) => event !== null && rows[event]) : undefined;
    if (asked) return rows[/** @type {number} */ (asked.event)];
    let open = /** @type {Span | null} */ (null);
    for (const span of spans.open) if (span.kind !== "loop" && span.intervals.length && rows[span.position]) open = span;
    if (open) return rows[open.position];
    for (let at = rows.length - 1; at >= Math.max(0, rows.length - 50); at--)
      if (rows[at].span !== undefined || rows[at].type === "message") return rows[at];
    return rows.at(-1) ?? null;
  }
}

/** @param {EventRow | undefined} row */
const isLast = (row) => row !== undefined && ["call_end", "model_end", "model_error", "run_resumed", "run_end"].includes(row.type);

/**
 * The message of an event, and its text.
 * @param {EventRow} row
 * @returns {string}
 */
export function messageText({ data }) {
  const content = data?.message?.content;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((block) => (typeof block === "string" ? block : (block?.text ?? JSON.stringify(block)))).join("\n");
}

/**
 * Whether a person has written a message.
 * @param {EventRow} row
 */
export const isByPerson = ({ data }) => data?.message?.role === "user" && PEOPLE.has(data.origin ?? "loop");

/** @typedef {{ kind: string, failed: boolean, words: string, code: boolean }} Mentioned */

/**
 * An event in one line.
 * @param {EventRow} row
 * @param {Spans} spans
 * @param {string} run the name of the run
 * @returns {Mentioned}
 */
export function mention(row, spans, run) {
  const { type, data, summary } = row,
    failed = row.group === "error",
    /** @type {(kind: string, words: string, code?: boolean) => Mentioned} */
    made = (kind, words, code = false) => ({ kind, failed, words, code });
  if (type === "model_end") {
    const said = messageText(row).trim().split("\n")[0],
      calls = (data?.message?.tool_calls ?? []).map((/** @type {{ name: string }} */ call) => call?.name).join(", ");
    if (said) return made("model", `\u201c${said.slice(0, QUOTED)}\u201d`);
    return made("model", calls ? `calls ${calls}` : summary);
  }
  if (type === "model_start" || type === "model_error") return made("model", type === "model_start" ? capital(spans.of(row)?.name ?? summary) : summary);
  if (type === "call_end") {
    const name = data?.name || spans.of(row)?.name || "",
      returned = !data || (data.outcome ?? "returned") === "returned";
    return made("call", data ? `${name} \u2192 ${returned ? inShort(data.result) : (data.outcome ?? "")}` : summary, true);
  }
  if (type === "approval_decision") return made(["human", "code"].includes(data?.by ?? "human") ? "decided" : "call", summary);
  if (type.startsWith("call_") || type === "approval_request") return made("call", summary, true);
  if (type === "message") {
    const said = messageText(row).trim().split("\n")[0];
    if (isByPerson(row)) return made("said", `You: ${said.slice(0, QUOTED)}`);
    return made("loop", said ? `${data?.message?.role === "user" ? "to the model" : (data?.message?.role ?? "")}: ${said.slice(0, QUOTED)}` : summary);
  }
  if (type === "run_start") return made("loop", `${row.path ? (spans.of(row)?.name ?? "The loop") : run} begins`);
  if (type === "run_end") return made("loop", summary);
  return made("loop", `${type.replaceAll("_", " ")}${summary ? `: ${summary}` : ""}`);
}

/**
 * Draw what is mentioned: the mark of its kind, and the words on one line.
 * @param {Mentioned} mentioned
 */
export const mentioned = ({ kind, failed, words, code }) => [
  el("i", { class: "agentnb-glyph", "data-kind": kind, "data-status": failed ? "failed" : null }),
  el(code ? "code" : "span", { class: "agentnb-cut agentnb-isolated", text: words }),
];
