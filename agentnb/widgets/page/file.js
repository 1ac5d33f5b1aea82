// The panel in an exported file. There is no kernel: the model answers the page's questions from the file's data.

import { render } from "./panel.js";

/** @typedef {{ path: string, begun: number | null, note: string }} LoopInFile */
/** @typedef {{ traits: Partial<Traits>, loops: LoopInFile[], ends: string }} FileHead */

const UNITS = ["call", "turn", "phase"]; // the bits of `ends`, in this order
const NO_RESULT = "no result yet"; // as in transcript.py

/** @implements {Model} */
export class FileModel {
  /** @param {string} text a line of JSON with the head, then lines with rows */
  constructor(text) {
    const [head, ...batches] = text.trimEnd().split("\n"),
      { traits, loops, ends } = /** @type {FileHead} */ (JSON.parse(head));
    this.batches = batches;
    this.starts = /** @type {number[]} */ ([]); // the number of the first event of each batch
    this.loops = loops.map((loop) => ({ ...loop, messages: /** @type {[at: number, message: ShownMessage][]} */ ([]) }));
    this.states = /** @type {Map<string, [seq: number, change: StateChange | null][]>} */ (new Map()); // by path; null: a loop begins
    this.ends = ends;
    this.traits = /** @type {Traits} */ ({
      ...{ pending: [], tools: {}, decisions: {}, breakpoints: {}, graphs: [], drawings: [], tail: "[]", branches: [], file: true },
      ...traits,
    });
    this.position = this.traits.total;
    this.moves = 0;
    this.sent = 0; // events that the page has
    this.tell = /** @type {(message: FromKernel) => void} */ (() => {});
  }

  /**
   * @template {keyof Traits} Name
   * @param {Name} name
   * @returns {Traits[Name]}
   */
  get(name) {
    return this.traits[name];
  }

  /**
   * @param {string} name
   * @param {(message: any) => void} handler
   */
  on(name, handler) {
    if (name === "msg:custom") this.tell = handler;
  }

  /** @param {ToKernel} message */
  send(message) {
    if (message.type === "sync") setTimeout(() => this.deliver(), 0);
    else if ("token" in message) queueMicrotask(() => this.answer(message));
  }

  // Send the next batch of rows. The page draws between two of them.
  deliver() {
    const at = this.starts.length,
      text = this.batches[at];
    if (text === undefined) return;
    this.starts.push(this.sent);
    const rows = /** @type {EventRow[]} */ (JSON.parse(text));
    for (const { seq, type, path = "", state } of rows) {
      const changes = this.states.get(path) ?? [];
      this.states.set(path, changes);
      if (type === "run_start") changes.push([seq, null]);
      if (state) changes.push([seq, state]);
    }
    for (const { seq, said } of rows) for (const [loop, message] of said ?? []) this.loops[loop].messages.push([seq, message]);
    this.tell({ type: "events", from: this.sent, total: this.traits.total, now: Date.now() / 1000, rows: text });
    this.sent += rows.length;
    setTimeout(() => this.deliver(), 0);
  }

  /** @param {any} message */
  answer(message) {
    const { token } = message;
    if (message.type === "ping") this.tell({ type: "pong", token, now: Date.now() / 1000 });
    if (message.type === "position") this.tell({ type: "moved", token, place: this.move(message) });
    if (message.type === "show") this.tell({ type: "shown", token, ...this.show(message.seq) });
    if (message.type === "typed") this.tell({ type: "typed", token, ...this.typed(message.seq) });
    if (message.type === "state") this.tell({ type: "state", token, ok: true, ...this.state(message) });
    if (message.type === "messages") this.tell({ type: "messages", token, ...this.messages(message) });
  }

  /**
   * Move to a position, and on to the end of the next unit.
   * @param {Questions["position"]} to
   * @returns {Place}
   */
  move({ position, unit }) {
    const bit = unit ? 1 << UNITS.indexOf(unit) : 0;
    this.position = position;
    while (bit && this.position < this.ends.length) if (Number(this.ends[this.position++]) & bit) break;
    this.moves++;
    return [this.position, this.moves];
  }

  /**
   * The state of a loop after so many events: what they have changed, one after the other.
   * @param {Questions["state"]} question
   */
  state({ path, position }) {
    let [facts, values] = /** @type {[Record<string, string | number>, Record<string, unknown>]} */ ([{}, {}]);
    for (const [seq, change] of this.states.get(path) ?? []) {
      if (seq >= position) break;
      if (!change) [facts, values] = [{}, {}];
      Object.assign(facts, change?.facts);
      Object.assign(values, change?.values);
    }
    for (const all of [facts, values]) for (const name in all) if (all[name] === null) delete all[name];
    return { facts, values };
  }

  /**
   * The row of an event as the file has it. The page does not keep the data of early rows of a long run.
   * @param {number} seq
   * @returns {EventRow | undefined}
   */
  row(seq) {
    const batch = this.starts.findLastIndex((start) => start <= seq);
    return batch < 0 ? undefined : JSON.parse(this.batches[batch])[seq - this.starts[batch]];
  }

  /**
   * @param {number} seq
   * @returns {Answers["show"]}
   */
  show(seq) {
    const { seq: number, time, type, path, phase, data } = this.row(seq) ?? /** @type {EventRow} */ ({}),
      text = JSON.stringify({ seq: number, time, type, path, phase, ...data }, null, 2);
    return { text, length: text.length, json: true };
  }

  /**
   * @param {number} seq
   * @returns {Answers["typed"]}
   */
  typed(seq) {
    const { message, timing } = this.row(seq)?.data ?? {},
      content = message?.content ?? "",
      blocks = Array.isArray(content) ? content : [{ text: content }];
    return { text: blocks.map(({ text }) => text ?? "").join(""), timing: timing ?? [] };
  }

  /**
   * The messages of a loop until the position. A call that ended later has no result yet.
   * @param {Questions["messages"]} question
   * @returns {Answers["messages"]}
   */
  messages({ path, begun, last }) {
    const loop = this.loops.find((one) => one.path === path && one.begun === begun),
      all = loop?.messages ?? [],
      next = all.find(([at]) => at >= this.position),
      total = next ? next[1].place : all.length ? all[all.length - 1][1].place + 1 : 0,
      left = Math.max(0, total - last);
    const messages = all
      .filter(([at, { place }]) => at < this.position && place >= left)
      .map(([, message]) => ({ ...message, calls: message.calls.map((call) => this.callNow(call)) }));
    return { total, left, note: loop?.note ?? "", messages };
  }

  /**
   * @param {ShownCall} call
   * @returns {ShownCall}
   */
  callNow(call) {
    if (call.position < this.position) return call;
    return { ...call, words: NO_RESULT, returned: "", decision: "", result: "", failed: false, position: -1 };
  }
}

const place = document.getElementById("here"),
  { agentnbFile } = /** @type {{ agentnbFile?: string }} */ (globalThis);
if (place && agentnbFile !== undefined) render({ model: new FileModel(agentnbFile), el: place });
