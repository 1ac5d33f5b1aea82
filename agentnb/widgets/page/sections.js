// The sections of the detail pane: what a call was given and returned, what a turn said and cost, why a loop ended. Each has
// a heading and what the events of the subject tell.

import { FORWARD } from "./recorded.js";
import { drawData, factsOf, rowsOf } from "./data.js";
import { whyItAsks } from "./asking.js";
import { isByPerson, mention, mentioned, messageText } from "./subject.js";
import { button, count, duration, el, number } from "./text.js";

const CAUSES = 5, // events in the list of causes
  EFFECTS = 4, // and of effects
  BACK = 20_000, // and for the messages of a request
  NEW_MESSAGES = 4, // of them, those that are shown
  ARRIVALS = 80; // marks in the picture of the times at which an answer came

// Events that tell nothing that the events around them do not tell.
const UNSAID = new Set(["phase_change", "state_update", "model_start", "call_start", "call_proposed", "approval_request", "run_resumed", "run_paused"]);

/** @typedef {import("./subject.js").Subject} Subject */
/** @typedef {(row: EventRow, field: string, part?: string) => { value: any, more: HTMLElement | null }} ValueOf */
/**
 * @typedef {object} Around
 * @property {Store} store
 * @property {(at: number) => void} go shows an event
 * @property {ValueOf} valueOf a field of an event, or a part of it, and a button that loads the rest of it if it is shortened
 * @property {(() => void) | null} toMessages shows all messages
 * @property {Question | undefined} question about the call, if a person is asked about it now
 */

/**
 * A heading with what is at its right.
 * @param {string} words
 * @param {...(Node | string | null)} right
 */
function heading(words, ...right) {
  const some = right.filter((one) => one !== null && one !== "");
  return el("h4", {}, el("span", { text: words }), some.length ? el("span", { class: "agentnb-right" }, ...some) : null);
}

/**
 * @param {string} words
 * @param {{ value: any, more: HTMLElement | null }} found
 * @returns {HTMLElement[]}
 */
function data(words, { value, more }) {
  if (value instanceof HTMLElement) return [heading(words, more), value];
  const rows = rowsOf(value);
  return [heading(words, rows ? count(rows, "row") : "", more), drawData(value)];
}

/**
 * The sections about a subject.
 * @param {Subject} subject
 * @param {Around} around
 * @returns {HTMLElement[]}
 */
export function sectionsOf(subject, around) {
  const { kind } = subject;
  if (kind === "call") return callSections(subject, around);
  if (kind === "turn") return turnSections(subject, around);
  if (kind === "loop") return loopSections(subject, around);
  if (kind === "pause") return pauseSections(subject);
  return kind === "message" ? messageSections(subject, around) : eventSections(subject, around);
}

/**
 * @param {Subject} subject
 * @param {Around} around
 */
function callSections(subject, around) {
  const { rows } = subject,
    { store, valueOf, question } = around,
    end = rows.findLast(({ type }) => type === "call_end"),
    sections = /** @type {HTMLElement[]} */ ([]);
  if (question) return whyItAsks(question, store.now());
  const input = inputOf(subject, around);
  const isError = Boolean(end && (end.data?.is_error || end.data?.error)),
    output = end ? (isError ? failure(end, valueOf) : data("Output", valueOf(end, "result"))) : [];
  // A table is what one wants to see of a call; the arguments are in its row, too.
  if (end && rowsOf(end.data?.result)) sections.push(...output, ...input);
  else if (end && !isError) sections.push(el("div", { class: "agentnb-in-and-out" }, el("div", {}, ...input), el("div", {}, ...output)));
  else sections.push(...input, ...output);
  const decisions = rows.filter(({ type }) => type === "approval_decision");
  if (decisions.length) sections.push(heading(decisions.length > 1 ? "Decisions" : "Decision"), ...decisions.flatMap((row) => decision(row)));
  const changed = decisions.findLast(({ data: made }) => made?.decision === "edit" || made?.decision === "replace"),
    asked = changed && rows.findLast(({ type, seq }) => type === "approval_request" && seq < changed.seq);
  if (asked) sections.push(...data(changed.data?.decision === "edit" ? "Before the edit" : `Asked about ${asked.data?.name}`, valueOf(asked, "arguments")));
  return sections;
}

/**
 * The arguments of a call.
 * @param {Subject} subject
 * @param {Around} around
 */
export function inputOf({ rows }, { valueOf }) {
  const given = rows.findLast(({ type, data: made }) => type === "call_start" || type === "approval_request" || (type === "approval_decision" && made?.arguments)),
    proposed = rows.findLast(({ type }) => type === "call_proposed");
  if (given) return data("Input", valueOf(given, "arguments"));
  return proposed ? data("Input", valueOf(proposed, "call", "arguments")) : [];
}

/** @param {EventRow} row */
function decision(row) {
  const { data: made, summary } = row,
    after = made?.seconds === undefined ? "" : ` after ${duration(made.seconds)}`,
    [glyph] = mentioned({ kind: made?.by === "human" || made?.by === "code" || !made?.by ? "person" : "loop", failed: false, words: "", code: false });
  return [el("p", { class: "agentnb-decided-by" }, glyph, el("span", { class: "agentnb-isolated", text: `${summary}${after}` }))];
}

/**
 * An error, with its traceback.
 * @param {EventRow} row
 * @param {ValueOf} valueOf
 */
function failure(row, valueOf) {
  const { error, result } = row.data ?? {},
    trace = valueOf(row, "error", "traceback"),
    words = error ? `${error.type}: ${error.message}` : typeof result === "string" ? result : "";
  return [
    heading("Error"),
    words ? el("pre", { class: "agentnb-failed", text: words }) : drawData(result ?? row.summary),
    ...(error?.traceback ? data("Traceback", trace) : []),
    ...(error?.details ? data("Details", valueOf(row, "error", "details")) : []),
  ];
}

/**
 * @param {Subject} subject
 * @param {Around} around
 */
function turnSections({ rows, span }, around) {
  const { store, valueOf, toMessages } = around,
    start = rows.findLast(({ type }) => type === "model_start"),
    end = rows.findLast(({ type }) => type === "model_end" || type === "model_error"),
    sections = /** @type {HTMLElement[]} */ (start ? received(start, store, toMessages) : []);
  if (end?.type === "model_error") {
    sections.push(...failure(end, valueOf));
    if (end.data?.partial) sections.push(...data("Text until then", valueOf(end, "partial")));
  } else if (end) sections.push(...said(end, around));
  else if (span) sections.push(...soFar(store, span));
  return [...sections, ...(start ? [heading("Model"), factsOf(modelFacts(start, end))] : [])];
}

/**
 * What a request had that the one before it did not have.
 * @param {EventRow} start
 * @param {Store} store
 * @param {(() => void) | null} toMessages
 */
function received(start, { rows }, toMessages) {
  const fresh = /** @type {EventRow[]} */ ([]);
  let messages = 0,
    isFresh = true;
  for (let at = start.seq - 1; at >= Math.max(0, start.seq - BACK); at--) {
    const row = rows[at];
    if ((row?.path ?? "") !== (start.path ?? "")) continue;
    if (row.type === "run_start") break;
    if (row.type === "model_end") isFresh = false;
    if (!["message", "call_end", "model_end"].includes(row.type)) continue;
    messages++;
    if (isFresh) fresh.unshift(row);
  }
  const words = `all ${count(messages, "message")}`,
    all = toMessages && messages ? button(words, toMessages, { class: "agentnb-link" }) : messages ? words : "";
  const left = fresh.length - NEW_MESSAGES;
  return [
    heading("Input", all),
    el(
      "ul",
      {},
      left > 0 ? el("li", { class: "agentnb-dim", text: `${number(left)} more, and` }) : null,
      ...fresh.slice(-NEW_MESSAGES).map((row) => {
        const [, words_] = mentioned(mention(row, /** @type {any} */ ({ of: () => undefined })));
        return el("li", { class: "agentnb-cut" }, words_);
      }),
    ),
  ];
}

/**
 * @param {EventRow} end
 * @param {Around} around
 */
function said(end, { valueOf }) {
  const message = end.data?.message ?? {},
    thoughts = (Array.isArray(message.reasoning) ? message.reasoning : []).map((/** @type {any} */ block) => block?.text ?? "").filter(Boolean),
    calls = Array.isArray(message.tool_calls) ? message.tool_calls : [],
    content = typeof message.content === "string" ? valueOf(end, "message", "content") : { value: messageText(end), more: null };
  const sections = [];
  if (thoughts.length) sections.push(heading("Reasoning", valueOf(end, "message", "reasoning").more), el("pre", { class: "agentnb-prose agentnb-dim", text: thoughts.join("\n") }));
  if (content.value) {
    const [head, ...rest] = data("Output", content);
    for (const node of rest) node.classList.add("agentnb-prose");
    sections.push(head, ...rest);
  }
  if (calls.length)
    sections.push(
      heading(content.value ? "Calls" : "Output", calls.length > 1 ? count(calls.length, "call") : ""),
      el("ul", {}, ...calls.map((/** @type {any} */ call) => el("li", {}, el("code", { class: "agentnb-call-made agentnb-cut", text: callLine(call) })))),
    );
  if (!content.value && !calls.length) sections.push(heading("Output"), drawData(message.content ?? null));
  return sections;
}

/** @param {{ name?: string, arguments?: unknown }} call */
function callLine(call) {
  const given = call?.arguments,
    isObject = typeof given === "object" && given !== null;
  return `${call?.name ?? ""}(${isObject ? Object.entries(given).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ") : JSON.stringify(given ?? "")})`;
}

/**
 * What a model has sent of its answer.
 * @param {Store} store
 * @param {Span} span
 */
function soFar(store, span) {
  const lines = store.live.filter(({ path, kind }) => (path ?? "") === span.path && kind !== "tool"),
    interval = span.intervals.at(-1);
  if (!lines.length || !interval) return [];
  const characters = lines.reduce((sum, { text }) => sum + text.length, 0),
    seconds = Math.max(0.001, store.until() - interval.start),
    tokens = Math.max(1, Math.round(characters / 4)); // a token is about four characters
  return [
    heading("So far"),
    factsOf([
      ["output", `\u2248${number(tokens)} tokens`],
      ["pace", `\u2248${number(Math.round(tokens / seconds))} a second`],
      ["asked", `${duration(seconds)} ago`],
    ]),
  ];
}

/**
 * @param {EventRow} start
 * @param {EventRow | undefined} end
 * @returns {[string, string][]}
 */
function modelFacts({ data: asked = {} }, end) {
  const answered = end?.data ?? {},
    usage = /** @type {Record<string, number>} */ (answered.usage ?? {}),
    model = answered.model ?? asked.model ?? "",
    facts = /** @type {[string, string][]} */ ([]);
  if (model) facts.push(["model", [asked.provider, model].filter(Boolean).join(" \u00b7 ")]);
  if (asked.attempt > 1) facts.push([asked.continues ? "continues" : "attempt", number(asked.attempt)]);
  for (const [name, amount] of Object.entries(usage)) facts.push([name.replaceAll("_", " "), name.startsWith("cost") ? `$${number(amount)}` : number(amount)]);
  const reason = answered.stop_reason;
  if (reason && reason !== "stop" && reason !== "tool_calls") facts.push(["cut off", String(reason)]);
  return facts;
}

/**
 * When the parts of an answer came: the time until the first, and a picture of all.
 * @param {Subject} subject
 * @returns {HTMLElement[]}
 */
export function arrivals({ kind, rows }) {
  const end = kind === "turn" ? rows.findLast(({ type }) => type === "model_end") : undefined,
    timing = /** @type {Timing} */ (Array.isArray(end?.data?.timing) ? end.data.timing.filter((/** @type {unknown} */ part) => Array.isArray(part)) : []);
  if (!timing.length) return [];
  const [first] = timing[0],
    [last] = timing[timing.length - 1],
    characters = timing.reduce((sum, [, length]) => sum + length, 0),
    seconds = (last - first) / 1000;
  const marks = new Set(timing.map(([milliseconds]) => Math.round((ARRIVALS * milliseconds) / Math.max(1, last))));
  const drawing = el("div", { class: "agentnb-arrivals", role: "img" });
  for (const at of marks) {
    const mark = el("i");
    mark.style.left = `${(100 * at) / ARRIVALS}%`;
    drawing.append(mark);
  }
  const words = `${count(timing.length, "part")}, the first after ${duration(first / 1000)}, the last after ${duration(last / 1000)}`;
  for (const name of ["aria-label", "title"]) drawing.setAttribute(name, words);
  const facts = /** @type {[string, string][]} */ ([["first after", duration(first / 1000)]]);
  if (timing.length > 1) facts.push(["last after", duration(last / 1000)], ["parts", number(timing.length)]);
  if (seconds > 0.01) facts.push(["pace", `\u2248${number(Math.round(characters / 4 / seconds))} tokens a second`]);
  return [heading("Timing"), factsOf(facts), ...(timing.length > 1 ? [drawing] : [])];
}

/**
 * @param {Subject} subject
 * @param {Around} around
 */
function loopSections({ rows }, { valueOf }) {
  const start = rows.find(({ type }) => type === "run_start"),
    end = rows.findLast(({ type }) => type === "run_end"),
    sections = start ? data("Input", valueOf(start, "input")) : [];
  if (end?.data?.error) sections.push(...failure(end, valueOf));
  if (end && end.data?.output !== undefined && end.data.output !== null) sections.push(...data("Output", valueOf(end, "output")));
  else if (end && !end.data?.error) sections.push(heading("Output"), drawData(end.data ? null : end.summary));
  return sections;
}

/**
 * @param {Subject} subject
 * @returns {HTMLElement[]}
 */
function pauseSections({ rows: [paused, resumed] }) {
  if (!paused) return [];
  const words = paused.data?.reason || (paused.data?.by === "step" ? "A step has ended." : "A pause was asked for.");
  return [heading("Why it paused"), el("p", { class: "agentnb-isolated", text: words }), ...(resumed ? [heading("Until"), el("p", { text: `#${resumed.seq}` })] : [])];
}

/**
 * @param {Subject} subject
 * @param {Around} around
 */
function messageSections({ row }, { valueOf }) {
  const isText = typeof row.data?.message?.content === "string",
    content = isText ? valueOf(row, "message", "content") : { value: messageText(row) || null, more: valueOf(row, "message").more };
  if (!row.data) return [heading("Text"), el("p", { class: "agentnb-isolated", text: row.summary })];
  const [head, ...rest] = data(isByPerson(row) ? "Text" : `Text (${row.data.message?.role ?? "message"})`, content);
  for (const node of rest) node.classList.add("agentnb-prose");
  return [head, ...rest];
}

/**
 * An event that is about no call, turn, loop or message.
 * @param {Subject} subject
 * @param {Around} around
 */
function eventSections({ row }, { valueOf }) {
  if (row.type === "state_update" && row.data) return data("Values", valueOf(row, "values"));
  return row.summary ? [el("p", { class: "agentnb-isolated", text: row.summary })] : [];
}

/**
 * The events that led to a subject, the newest first, and those that it led to.
 * @param {Subject} subject
 * @param {Around} around
 * @returns {HTMLElement[]}
 */
export function causeSections({ row, rows, span }, { store, go, question }) {
  const all = store.rows;
  if (all[row.seq] !== row) return []; // the row is from a saved page
  const own = new Set(rows.map(({ seq }) => seq)),
    isOwn = (/** @type {number} */ at) => own.has(at) || (span !== undefined && all[at]?.span === span.number),
    first = rows[0] ?? row;
  const causes = /** @type {number[]} */ ([]);
  for (let at = first.cause; at !== undefined && all[at] && causes.length < CAUSES; at = all[at].cause)
    if (!isOwn(at) && !UNSAID.has(all[at].type)) causes.push(at);
  const after = [...new Set(rows.flatMap((one) => (one.after === undefined || isOwn(one.after) || causes.includes(one.after) ? [] : [one.after])))];
  const effects = /** @type {number[]} */ ([]),
    spans = new Set(),
    end = Math.min(all.length, (rows.at(-1) ?? row).seq + FORWARD);
  for (let at = first.seq + 1; at < end && effects.length < EFFECTS; at++) {
    const { cause, span: of, type } = all[at];
    if (cause === undefined || !own.has(cause) || isOwn(at)) continue;
    if (of !== undefined ? spans.has(of) : UNSAID.has(type)) continue;
    if (of !== undefined) spans.add(of);
    effects.push(at);
  }
  /**
   * @param {string} words
   * @param {number[]} ats
   */
  const chain = (words, ats) => (ats.length ? [heading(words), el("ol", { class: "agentnb-chain" }, ...ats.map((at) => link(at)))] : []);
  /** @param {number} at */
  const link = (at) => {
    const cause = all[at],
      about = mention(endOf(cause, store), store.spans),
      path = cause.path && cause.path !== row.path ? `${cause.path.split("/").at(-1)}: ` : "";
    return el(
      "li",
      {},
      el(
        "button",
        { type: "button", class: "agentnb-event-link", onclick: () => go(at), title: `${cause.type}: ${cause.summary}` },
        el("span", { class: "agentnb-event-number", text: `#${at}` }),
        ...mentioned({ ...about, words: `${path}${about.words}` }),
      ),
    );
  };
  return [...chain(question ? "What led here" : "Why", causes), ...chain("Waited for", after), ...chain("Led to", effects)];
}

/**
 * The event that ended what an event began; the event itself if there is none yet.
 * @param {EventRow} row
 * @param {Store} store
 */
function endOf(row, { rows, spans }) {
  const span = spans.of(row);
  if (!span || span.ended === null || span.kind === "loop" || !UNSAID.has(row.type)) return row;
  for (let at = row.seq + 1; at < Math.min(rows.length, row.seq + FORWARD); at++)
    if (rows[at].span === span.number && ["call_end", "model_end", "model_error"].includes(rows[at].type)) return rows[at];
  return row;
}
