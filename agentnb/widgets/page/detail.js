// The detail pane: what the chosen event is about, in full: its input and output, why it happened and what it led to, the
// state of its loop, and the event as it was recorded. While none is chosen, it shows what runs or waits now.

import { Recorded } from "./recorded.js";
import { StateHere } from "./here.js";
import { Subjects, isByPerson } from "./subject.js";
import { arrivals, causeSections, inputOf, sectionsOf } from "./sections.js";
import { drawData } from "./data.js";
import { isTyping } from "./focus.js";
import { icon } from "./icons.js";
import { worked } from "./spans.js";
import { BUSY, GONE, IN_A_FILE, allow, button, capital, duration, el, enable, number, say, visible } from "./text.js";

const OF_CALLS = new Set(["call_proposed", "approval_request", "approval_decision", "call_start", "call_end"]);
const PAUSE_DETAIL = 120, // milliseconds between two drawings
  GOES_ON = 500; // milliseconds between two drawings of a time that passes
const BRIEF_CALL = 0.001; // seconds

export class Detail {
  /**
   * @param {Store} store
   * @param {object} options
   * @param {boolean} options.follows whether it shows what runs now while no event is chosen; otherwise it is hidden then
   * @param {() => Call | null} [options.asked] the call of several waiting ones that a person looks at
   * @param {() => void} options.left called when a person has closed it
   * @param {((phase: null) => void) | null} [options.toMessages] shows the messages
   */
  constructor(store, { follows, left, asked = () => null, toMessages = null }) {
    this.store = store;
    this.follows = follows;
    this.left = left;
    this.asked = asked;
    this.toMessages = toMessages && (() => toMessages(null));
    this.subjects = new Subjects(store);
    this.row = /** @type {EventRow | null} */ (null); // the shown event
    this.subject = /** @type {import("./subject.js").Subject | null} */ (null);
    this.shown = ""; // what the sections were made of
    this.whole = /** @type {Map<string, HTMLElement>} */ (new Map()); // by event and field: data that was loaded
    this.loaded = /** @type {Map<number, Record<string, any>>} */ (new Map()); // by event, the same
    this.stops = /** @type {EventRow | null} */ (null); // the event for which a breakpoint was added
    this.stale = false; // whether there is news since the last drawing
    this.timer = this.tick = 0;
    const go = (/** @type {number} */ at) => this.go(at);
    this.recorded = new Recorded(store, go);
    this.state = new StateHere(store);
    this.glyph = el("i", { class: "agentnb-glyph", "aria-hidden": "true" });
    this.name = el("b", { class: "agentnb-cut agentnb-isolated" });
    this.about = el("span", { class: "agentnb-dim agentnb-cut agentnb-detail-about" });
    this.took = el("span", { class: "agentnb-dim agentnb-fixed" });
    this.range = el("span", { class: "agentnb-dim agentnb-fixed" });
    this.close = el(
      "button",
      { type: "button", class: "agentnb-button agentnb-ghost agentnb-square agentnb-detail-close", "aria-label": "Close", title: "Close (Escape)", onclick: () => this.leave() },
      icon("cross"),
    );
    this.sections = el("div", { class: "agentnb-sections" });
    this.held = el("div", { class: "agentnb-held" });
    this.body = el("div", { class: "agentnb-detail-body", tabindex: "0", role: "group", "aria-label": "Data of the event" }, this.held, this.sections, this.state.el, this.recorded.el);
    this.nothing = el("p", { class: "agentnb-empty" });
    this.stop = /** @type {Control} */ (el(
      "button",
      { type: "button", class: "agentnb-button", onclick: () => this.breakHere() },
      icon("stop"),
      el("span", { text: "Break here" }),
      el("kbd", { text: "B", "aria-hidden": "true" }),
    ));
    this.what = el(
      "button",
      { type: "button", class: "agentnb-button agentnb-strong", onclick: () => this.whatIf(), title: "Change something here, and see in a branch what follows (W)" },
      icon("fork"),
      el("span", { text: "What if\u2026" }),
      el("kbd", { text: "W", "aria-hidden": "true" }),
    );
    this.note = el("p", { class: "agentnb-note agentnb-error", role: "alert" });
    this.off = el("p", { class: "agentnb-off" }); // why Approve is off
    // The decision about one of several calls. Edit and Reject unfold in its row, where the values and the reason are given.
    this.call = /** @type {Call | null} */ (null);
    this.approve = decides("Approve", "A", "Run the call (A)", () => this.call?.decide("approve"));
    this.approve.classList.add("agentnb-primary");
    this.edit = decides("Edit", "E", "Change the arguments before it runs (E)", () => this.call?.press(this.call.toggles.Edit));
    this.reject = decides("Reject", "R", "Do not run the call; the model is informed (R)", () => this.call?.press(this.call.rejects));
    this.reject.firstChild?.after(el("span", { class: "agentnb-dots", "aria-hidden": "true", text: "\u2026" }));
    this.foot = el("footer", { class: "agentnb-detail-foot" }, this.what, this.stop, this.approve, this.edit, this.reject);
    this.el = el(
      "section",
      { class: "agentnb-detail", "aria-label": "Detail", hidden: !follows },
      el("header", { class: "agentnb-detail-head" }, this.glyph, this.name, this.about, this.took, el("span", { class: "agentnb-push" }), this.range, this.close),
      this.nothing,
      this.body,
      this.note,
      this.off,
      this.foot,
    );
    this.el.addEventListener("keydown", (event) => this.key(event));
  }

  dispose() {
    clearTimeout(this.timer);
    clearTimeout(this.tick);
  }

  /** @param {News} what */
  update(what) {
    if (what === "selected") {
      clearTimeout(this.timer);
      this.timer = 0;
    }
    this.stale = true;
    if (this.timer) return;
    // News that come at once are drawn together.
    this.timer = setTimeout(() => {
      this.timer = 0;
      if (this.stale) this.update("rows");
    }, PAUSE_DETAIL);
    this.draw();
    this.stale = false;
  }

  // -- what is shown

  draw() {
    const { store } = this,
      selected = this.chosen(),
      row = selected ?? (this.follows ? (this.focused() ?? this.subjects.current()) : null);
    this.el.hidden = !row && !this.follows;
    this.el.classList.toggle("agentnb-chosen", Boolean(selected));
    if (this.el.hidden) return;
    for (const part of [this.body, this.foot]) part.hidden = !row;
    this.nothing.hidden = Boolean(row);
    if (!row) {
      say(this.nothing, store.model.get("parts")?.length === 1 ? store.nothing("events") : ""); // other parts say it
      this.row = this.subject = null;
      this.shown = "";
      this.title(null);
      return;
    }
    if (this.row !== row) this.change(row);
    const subject = this.subjects.of(row);
    this.subject = subject;
    this.load(subject);
    this.title(subject);
    this.fill(subject);
    this.recorded.show(row, subject.kind === "event");
    this.state.show(row);
    this.offer(row, subject);
  }

  // The question that a person looks at among several.
  focused() {
    const event = this.store.isLive ? this.asked()?.item.event : null;
    return event === null || event === undefined ? null : (this.store.rows[event] ?? null);
  }

  // The chosen event, if it has happened by the shown moment.
  chosen() {
    const { selected, rows, all } = this.store;
    if (!selected) return null;
    return rows[selected.seq] === selected || all[selected.seq] !== selected ? selected : null;
  }

  /** @param {EventRow} row */
  change(row) {
    const before = this.row;
    this.row = row;
    if (before && this.subject?.rows.includes(row) && this.subject.rows.length > 1) return; // another event of the same
    this.whole.clear();
    this.loaded.clear();
    this.body.scrollTop = 0;
    say(this.note, "");
  }

  /** @param {import("./subject.js").Subject | null} subject */
  title(subject) {
    clearTimeout(this.tick);
    if (!subject) {
      this.glyph.hidden = true;
      for (const part of [this.name, this.about, this.took, this.range]) say(part, "");
      return;
    }
    const { row, rows, span, kind } = subject,
      { glyph, status, name, about } = this.describe(subject);
    this.glyph.hidden = false;
    this.glyph.dataset.kind = glyph;
    this.glyph.dataset.status = status;
    say(this.name, name);
    this.name.classList.toggle("agentnb-code", kind === "call");
    if (this.name.title !== visible(name)) this.name.title = visible(name);
    say(this.about, about);
    const isOpen = span && span.ended === null,
      seconds = span ? (kind === "pause" || kind === "loop" ? (span.ended ?? this.store.until()) - span.opened : worked(span, this.store.until())) : 0,
      hasRun = span && (kind !== "call" || span.intervals.some((interval) => interval.kind === "run"));
    const isUnknown = !seconds && !isOpen && this.store.model.get("status")?.imported;
    say(this.took, !hasRun || isUnknown ? "" : !isOpen && seconds < BRIEF_CALL ? "<1 ms" : (span.at_most ? "\u2264 " : "") + duration(seconds));
    const last = rows.at(-1)?.seq ?? row.seq,
      first = rows[0]?.seq ?? row.seq;
    say(this.range, last > first ? `#${first}\u2013${last}` : `#${first}`);
    if (isOpen && this.store.until() > this.store.spans.last) this.tick = setTimeout(() => this.subject && this.el.isConnected && this.title(this.subject), GOES_ON);
  }

  /**
   * The name of a subject, its mark, and how it is.
   * @param {import("./subject.js").Subject} subject
   */
  describe(subject) {
    const { row, rows, span, kind } = subject,
      loop = row.path ? `in ${row.path}` : "",
      isOpen = span && span.ended === null,
      failed = Boolean(span?.failed);
    /** @type {(glyph: string, status: string, name: string, ...about: string[]) => { glyph: string, status: string, name: string, about: string }} */
    const made = (glyph, status, name, ...about) => ({ glyph, status: failed || status === "failed" ? "failed" : status, name, about: about.filter(Boolean).join(" \u00b7 ") });
    if (kind === "call" && span) {
      const end = rows.findLast(({ type }) => type === "call_end"),
        outcome = end?.data?.outcome ?? "returned",
        waits = isOpen && span.intervals.at(-1)?.kind === "wait" && span.intervals.at(-1)?.end === null,
        asked = waits && rows.at(-1)?.type === "approval_request";
      if (asked) return made("person", "waiting", span.name, "waits for you", loop);
      return made("call", isOpen ? (waits ? "waiting" : "running") : "done", span.name, isOpen ? (waits ? "waits" : "running") : outcome === "returned" ? "" : outcome, loop);
    }
    if (kind === "turn" && span) {
      const writes = isOpen ? this.writes(span) : "";
      return made("model", isOpen ? "running" : "done", capital(span.name), failed ? "failed" : writes, loop);
    }
    if (kind === "loop" && span) {
      const reason = rows.findLast(({ type }) => type === "run_end")?.data?.reason;
      return made("loop", isOpen ? "running" : "done", row.path ? span.name : this.store.status().name, isOpen ? "running" : String(reason ?? "").replaceAll("_", " "), row.path ?? "");
    }
    if (kind === "pause") return made("loop", isOpen ? "waiting" : "done", isOpen ? "Paused" : "A pause", loop);
    if (kind === "message") {
      const role = row.data?.message?.role ?? "message";
      return isByPerson(row) ? made("said", "done", "You", loop) : made("loop", "done", role === "user" ? "To the model" : capital(role), loop);
    }
    const glyphs = /** @type {Record<string, string>} */ ({ model: "model", call: "call", approval: "decided", message: "said" });
    return made(glyphs[row.group] ?? "loop", row.group === "error" ? "failed" : "done", capital(row.type.replaceAll("_", " ")), loop);
  }

  /**
   * What a model is doing now.
   * @param {Span} span
   */
  writes({ path }) {
    const kinds = new Set(this.store.live.filter((line) => (line.path ?? "") === path).map(({ kind }) => kind));
    if (kinds.has("call")) return "writes a call";
    if (kinds.has("text")) return "writes";
    return kinds.has("reasoning") ? "thinks" : "runs";
  }

  /** @param {import("./subject.js").Subject} subject */
  fill(subject) {
    const { store } = this,
      { row, rows, span, kind } = subject,
      question = this.question(rows);
    // While a model writes, how much it has written changes.
    const writes = kind === "turn" && span?.ended === null ? store.live.reduce((sum, { text }) => sum + text.length, 0) : 0,
      effects = store.rows.length < (rows.at(-1) ?? row).seq + 200 ? store.rows.length : -1; // what it led to comes soon
    const signature = JSON.stringify([row.seq, rows.length, span?.ended, store.anew, question?.digest, writes, effects, this.whole.size, this.loaded.size, store.gone, row.data === undefined]);
    if (signature === this.shown) return;
    this.shown = signature;
    const around = {
      store,
      question,
      go: (/** @type {number} */ at) => this.go(at),
      toMessages: this.toMessages,
      /** @type {import("./sections.js").ValueOf} */
      valueOf: (of, field, part) => this.valueOf(of, field, part),
    };
    const whole = { ...subject, row: this.complete(row), rows: rows.map((one) => this.complete(one)) };
    const made = [...sectionsOf(whole, around), ...causeSections(subject, around), ...arrivals(whole), ...(question ? inputOf(whole, around) : [])];
    const hadFocus = this.sections.contains(document.activeElement);
    this.sections.replaceChildren(...made);
    if (hadFocus) this.body.focus({ preventScroll: true });
  }

  /**
   * The question about a call that a person has not answered yet.
   * @param {EventRow[]} rows
   */
  question(rows) {
    const last = rows.at(-1);
    if (last?.type !== "approval_request" || !this.store.isLive) return undefined;
    return this.store.model.get("pending")?.find(({ event, path }) => event === last.seq && (path ?? "") === (last.path ?? ""));
  }

  // -- data that the page does not have

  /**
   * A row with its data, if that was loaded.
   * @param {EventRow} row
   * @returns {EventRow}
   */
  complete(row) {
    const data = this.loaded.get(row.seq);
    return data ? { ...row, data, cut: undefined } : row;
  }

  /**
   * Load the data of early events, which the page has dropped.
   * @param {import("./subject.js").Subject} subject
   */
  load({ kind, rows }) {
    const { store } = this;
    if (kind === "event" || store.gone) return;
    const missing = rows.filter((row) => row.data === undefined && !this.loaded.has(row.seq) && store.rows[row.seq] === row).slice(-8);
    for (const row of missing) {
      this.loaded.set(row.seq, { summary: row.summary });
      store.ask({ type: "show", seq: row.seq }, ({ text, length }) => {
        if (!this.loaded.has(row.seq)) return;
        try {
          if (text.length === length) this.loaded.set(row.seq, JSON.parse(text));
        } catch {
          return; // not the data of an event: its summary is shown
        }
        this.shown = "";
        this.draw();
      });
    }
  }

  /**
   * A field of an event, or a part of it, and a button that loads the rest of it if it is shortened.
   * @param {EventRow} row
   * @param {string} field
   * @param {string} [part]
   */
  valueOf(row, field, part) {
    const names = part === undefined ? [field] : [field, part],
      key = JSON.stringify([row.seq, ...names]),
      whole = this.whole.get(key);
    if (whole) return { value: whole, more: null };
    const value = part === undefined ? row.data?.[field] : row.data?.[field]?.[part];
    if (!row.cut?.includes(field)) return { value, more: null };
    const more = button("Show all", () => this.showAll(row, names, key), { class: "agentnb-link", title: "It is shortened here: load all of it" });
    enable(more, !this.store.gone && !this.store.isFile, this.store.isFile ? IN_A_FILE : GONE);
    return { value, more };
  }

  /**
   * @param {EventRow} row
   * @param {string[]} names
   * @param {string} key
   */
  showAll(row, names, key) {
    if (this.store.gone || this.store.isFile) return;
    this.store.ask({ type: "show", seq: row.seq, field: names }, ({ text, length, json }) => {
      if (!this.subject?.rows.some(({ seq }) => seq === row.seq)) return;
      const isWhole = text.length === length,
        drawn = isWhole && json ? drawData(JSON.parse(text)) : el("pre", { text });
      const rest = isWhole ? null : el("p", { class: "agentnb-dim", text: `The first ${number(text.length)} of ${number(length)} characters; run.events[${row.seq}] has all.` });
      this.whole.set(key, el("div", {}, drawn, rest));
      this.draw();
    });
  }

  // -- the foot

  /**
   * @param {EventRow} row
   * @param {import("./subject.js").Subject} subject
   */
  offer(row, { span, kind }) {
    const { store } = this,
      { model } = store,
      tool = kind === "call" && span && OF_CALLS.has(row.type) ? span.name : "",
      known = model.get("breakpoints")?.events?.includes(row.type),
      over = model.get("status")?.over,
      isRecorded = store.all[row.seq] === row; // and not a row of a saved page
    const asked = this.asked(),
      held = this.foot.contains(document.activeElement);
    this.call = asked && asked.item.event === row.seq && store.isLive && !store.replays ? asked : null;
    for (const control of [this.approve, this.edit, this.reject]) control.hidden = !this.call;
    this.what.hidden = Boolean(this.call);
    const unread = this.call?.unread() ?? "";
    say(this.off, unread);
    if (this.call) {
      allow(this.approve, store, !this.call.busy && !unread, this.call.busy ? BUSY : unread);
      for (const control of [this.edit, this.reject]) allow(control, store, !this.call.busy, BUSY);
    }
    const what = `every ${row.type}${tool ? ` of ${tool}` : ""}`;
    this.stop.hidden = Boolean(this.call) || (!store.replays && !model.get("parts")?.includes("controls"));
    this.stop.purpose = visible(`Add a breakpoint: ${what} (B)`);
    const why = store.gone ? GONE : store.replays ? "A recording does not run." : over ? "The run has ended." : known ? "" : `A run cannot pause at ${row.type}.`;
    enable(this.stop, !why, why);
    say(this.stop.children[1], this.stops === row ? "Breakpoint added" : "Break here");
    const whyNot = store.gone ? GONE : isRecorded ? "" : "The kernel has not sent this event yet.";
    enable(this.what, !whyNot, whyNot);
    this.foot.hidden = store.isFile || (this.stop.hidden && this.what.hidden && !this.call);
    if (held && !this.foot.contains(document.activeElement)) this.body.focus({ preventScroll: true }); // the button is gone
  }

  breakHere() {
    const { row, subject } = this;
    if (!row || !subject || this.stop.getAttribute("aria-disabled") === "true" || this.stop.hidden) return;
    const { kind, span } = subject,
      tool = kind === "call" && span && OF_CALLS.has(row.type) ? span.name : "";
    this.store.breakAt(row.type, tool, (answer) => {
      say(this.note, answer.ok ? "" : answer.error);
      if (answer.ok) this.stops = row;
      this.draw();
    });
  }

  whatIf() {
    const { row, store } = this;
    if (row && this.what.getAttribute("aria-disabled") !== "true") store.whatIf(row);
  }

  /**
   * Show an element above the data: a form about this event. Null takes it away.
   * @param {HTMLElement | null} form
   */
  hold(form) {
    const hadFocus = this.held.contains(document.activeElement);
    this.held.replaceChildren(...(form ? [form] : []));
    if (form) this.body.scrollTop = 0;
    if (!form && hadFocus) this.what.focus();
  }

  // -- what a person does

  /** @param {number} at */
  go(at) {
    const row = this.store.rows[at];
    if (row) this.store.select(row);
  }

  leave() {
    const hadFocus = this.el.contains(document.activeElement);
    this.store.select(null);
    if (hadFocus) this.left();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const control = { a: this.approve, e: this.edit, r: this.reject }[event.key.toLowerCase()];
    if (control && this.call && !isTyping(/** @type {Element} */ (event.target)) && !event.repeat && !event.ctrlKey && !event.metaKey && !event.altKey) {
      if (control.getAttribute("aria-disabled") !== "true") control.click();
      event.preventDefault();
      return;
    }
    if (event.key !== "Escape" || event.defaultPrevented || !this.store.selected) return;
    this.leave();
    event.preventDefault();
    event.stopPropagation();
  }
}

/**
 * Make a button that decides about a call, with its key.
 * @param {string} name
 * @param {string} key
 * @param {string} title
 * @param {() => void} act
 */
function decides(name, key, title, act) {
  const made = button(name, act, { title, "aria-keyshortcuts": key, hidden: true });
  made.append(el("kbd", { "aria-hidden": "true", text: key }));
  return made;
}
