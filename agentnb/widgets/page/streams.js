// What is in progress, in the rows of the trace: the text and the calls that models are writing, and the progress that
// running calls report. A row grows while its text comes, to a few lines, which follow their end.

import { el, fitParts, say } from "./text.js";
import { Line, tokensOf } from "./trace_line.js";

/** What a model writes: of a call its arguments, as far as they have come. */
/** @typedef {{ text: LiveLine | undefined, calls: LiveLine[] }} Writing */

export class Streams {
  /** @param {import("./trace.js").Trace} trace */
  constructor(trace) {
    this.trace = trace;
    this.writing = /** @type {Map<number, Writing>} */ (new Map()); // by the row of the turn
    this.progress = /** @type {Map<number, LiveLine["progress"]>} */ (new Map()); // by the row of the call
    this.boxes = /** @type {Map<number, Box>} */ (new Map()); // by the row of the turn
  }

  update() {
    const { trace } = this,
      { store } = trace,
      over = store.model.get("status")?.over;
    this.writing.clear();
    this.progress.clear();
    for (const line of over ? [] : store.live) {
      if (line.kind === "tool") {
        const row = store.trace.ofSpan[store.spans.calls.get(`${line.path}\n${line.name}`)?.number ?? -1];
        if (row) this.progress.set(row.number, line.progress);
        continue;
      }
      const turn = this.turnAt(line.path);
      if (!turn) continue;
      const writing = this.writing.get(turn.number) ?? { text: undefined, calls: [] };
      if (line.kind === "call") writing.calls.push(line);
      else if (line.text.trim()) writing.text = line; // reasoning comes before the text
      this.writing.set(turn.number, writing);
    }
    for (const [number, { text, calls }] of this.writing) {
      if (!text && !calls.length) continue;
      const box = this.boxes.get(number) ?? new Box();
      this.boxes.set(number, box);
      trace.grow(`stream ${number}`, number, box.el, { under: calls.length > 0, kind: "stream" });
    }
    for (const number of this.boxes.keys()) {
      const writing = this.writing.get(number);
      if (writing?.text || writing?.calls.length) continue;
      this.boxes.delete(number);
      trace.shrink(`stream ${number}`);
    }
  }

  /**
   * The row of the request that runs in a loop.
   * @param {string} path
   */
  turnAt(path) {
    const { store } = this.trace;
    for (const span of store.spans.open) if (span.kind === "model" && span.path === path) return store.trace.ofSpan[span.number];
    return undefined;
  }

  /**
   * What is in progress in a row.
   * @param {TraceRow} row
   */
  of({ number }) {
    const writing = this.writing.get(number),
      text = writing?.text?.text ?? "";
    return {
      said: text.trim().split("\n", 1)[0].slice(0, 160),
      progress: this.progress.get(number),
      took: writing ? "" : undefined, // the box says how much has come
    };
  }

  /** @param {import("./trace_line.js").Scale} scale */
  draw(scale) {
    const { store } = this.trace;
    for (const [number, box] of this.boxes) {
      const row = store.trace.all[number],
        writing = this.writing.get(number);
      if (row && writing) box.show(row, writing, scale);
    }
  }
}

// A row that has grown: a line as in a row, and the end of the text below it.
class Box {
  constructor() {
    this.lines = /** @type {Line[]} */ ([]);
    this.heads = el("div");
    this.words = el("span");
    this.caret = el("span", { class: "agentnb-caret", "aria-hidden": "true" });
    this.text = el("pre", { class: "agentnb-stream-text", tabindex: "-1" }, this.words, this.caret);
    this.el = el("div", { class: "agentnb-stream" }, this.heads, this.text);
    this.follow = true;
    this.text.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.text;
      this.follow = scrollTop + clientHeight >= scrollHeight - 4;
    });
  }

  /**
   * @param {TraceRow} row
   * @param {Writing} writing
   * @param {import("./trace_line.js").Scale} scale
   */
  show(row, { text, calls }, scale) {
    const written = calls.map(({ name, text: given }) => ({ name, ...readArguments(given) })),
      last = written.at(-1);
    this.el.style.setProperty("--in", String(row.depth + (last ? 1 : 0)));
    fitParts(this.lines, this.heads, Math.max(1, calls.length), () => new Line(""));
    const [first] = this.lines,
      line = calls.at(-1) ?? text,
      took = tokensOf(line?.length ?? line?.text.length ?? 0);
    if (last)
      written.forEach(({ name, head }, i) => {
        const own = { ...row, kind: /** @type {const} */ ("call"), depth: row.depth + 1, name: name || "…", arguments: head, inside: [], decided: undefined };
        this.lines[i].show(own, scale, { took: i === calls.length - 1 ? took : "", isWritten: true });
      });
    else first.show({ ...row, kind: "turn", inside: [] }, scale, { took, said: text?.kind === "text" ? "" : (text?.kind ?? "") });
    say(this.words, last ? last.body : (text?.text.trimStart() ?? ""));
    this.text.hidden = last ? !last.body : false;
    if (this.follow) this.text.scrollTop = this.text.scrollHeight;
  }
}

/**
 * Read the arguments of a call that is not complete: those before the last as in a line, and of the last its text.
 * @param {string} given the beginning of a JSON object, or the end of a long one
 * @returns {{ head: string, body: string }}
 */
export function readArguments(given) {
  const text = given.trimStart();
  if (!text.startsWith("{")) return { head: "…", body: unescaped(text) };
  const done = [];
  let rest = text.slice(1);
  for (;;) {
    const pair = /^[\s,]*"((?:[^"\\]|\\.)*)"\s*:\s*([^]*)$/.exec(rest);
    if (!pair) return { head: done.join(", "), body: "" };
    const [, name, value] = pair,
      complete = value.startsWith('"') ? /^"(?:[^"\\]|\\.)*"/.exec(value) : /^(?:[^"[{,}\s]+(?=[,}\s])|\[[^[\]{}]*\])/.exec(value);
    if (complete && !(value.startsWith('"') && complete[0].includes("\\n"))) {
      done.push(`${name}=${complete[0]}`);
      rest = value.slice(complete[0].length);
    } else {
      const head = [...done, `${name}=…`].join(", ");
      return { head, body: value.startsWith('"') ? unescaped(value.slice(1)) : value };
    }
  }
}

const ESCAPES = /** @type {Record<string, string>} */ ({ n: "\n", t: "\t", r: "", b: "", f: "" });

/**
 * The text of a JSON string, up to its end if it has come.
 * @param {string} text
 */
function unescaped(text) {
  const [string] = /^(?:[^"\\]|\\.)*/s.exec(text) ?? [""];
  return string.replace(/\\(u[0-9a-fA-F]{4}|.)/gs, (_, sign) =>
    sign.length > 1 ? String.fromCharCode(parseInt(sign.slice(1), 16)) : (ESCAPES[sign] ?? sign),
  );
}
