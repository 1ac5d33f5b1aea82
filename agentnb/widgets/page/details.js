// One event in full, below the list.

import { button, el, number, say, visible } from "./text.js";

const CHAIN = 5; // events that led to this one, at most
const LED_TO = 4,
  FORWARD = 5000; // rows that are searched for the events it led to
const OF_CALLS = new Set(["call_proposed", "approval_request", "approval_decision", "call_start", "call_end"]);

export class Details {
  /**
   * @param {Store} store
   * @param {() => void} close
   * @param {(at: number) => void} go shows the event of this number
   */
  constructor(store, close, go) {
    this.store = store;
    this.go = go;
    this.row = /** @type {EventRow | null} */ (null);
    this.tool = ""; // the tool, if the event is about a call
    this.causes = /** @type {number[]} */ ([]);
    this.effects = /** @type {number[]} */ ([]);
    this.links = el("div", { class: "agentnb-links" });
    this.held = el("div", { class: "agentnb-held" });
    this.title = el("span", { class: "agentnb-details-title" });
    this.all = button("Show all", () => this.showAll(), { class: "agentnb-link", title: "All of its data as text" });
    this.what = button("What if\u2026", () => this.row && store.whatIf(this.row), {
      class: "agentnb-link",
      title: "Change something here, and see in a branch what follows (W)",
    });
    this.stop = button("Pause at such events", () => this.addBreakpoint(), { class: "agentnb-link", hidden: true });
    this.body = el("div", { class: "agentnb-details-body", tabindex: "0", "aria-label": "Data of the event" });
    this.el = el(
      "section",
      { class: "agentnb-details", "aria-label": "Event", hidden: true },
      el(
        "div",
        { class: "agentnb-details-bar" },
        this.title,
        this.all,
        this.what,
        this.stop,
        button("Close", close, { class: "agentnb-link", title: "Back to the list (Escape)" }),
      ),
      this.held,
      this.links,
      this.body,
    );
    this.el.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
    });
  }

  /** @param {EventRow | null} row */
  show(row) {
    this.row = row;
    this.store.select(row);
    this.el.hidden = !row;
    this.causes = this.effects = [];
    if (!row) return;
    this.link(row);
    this.offerBreakpoint(row);
    const clock = new Date(row.time * 1000).toLocaleTimeString("en", { hour12: false });
    say(
      this.title,
      [`#${row.seq}`, row.type, clock, row.path, row.phase && `phase ${row.phase}`].filter(Boolean).join(" \u00b7 "),
    );
    this.all.hidden = this.store.isFile || (!row.size && row.data !== undefined);
    this.what.hidden = this.store.isFile || this.store.all[row.seq] !== row; // the row is from a saved page
    const fields = Object.entries(row.data ?? { summary: row.summary }).flatMap(([name, value]) =>
      // A traceback has lines of its own.
      typeof value?.traceback === "string"
        ? [[name, `${value.type}: ${value.message}`], ["traceback", value.traceback]]
        : [[name, value]],
    );
    this.body.replaceChildren(
      ...fields.flatMap(([name, value]) => [
        el("div", { class: "agentnb-label-small", text: name }),
        el("pre", { text: typeof value === "string" ? value : JSON.stringify(value, null, 2) }),
      ]),
    );
    if (row.size)
      this.body.append(el("p", { class: "agentnb-dim", text: `Shortened; ${number(row.size)} bytes in all.` }));
    if (row.data === undefined && this.store.rows[row.seq] === row && !this.store.gone) this.showAll();
  }

  /**
   * Show an element above the data: a form about this event. Null takes it away.
   * @param {HTMLElement | null} form
   */
  hold(form) {
    const hadFocus = this.held.contains(document.activeElement);
    this.held.replaceChildren(...(form ? [form] : []));
    if (!form && hadFocus && !this.what.hidden) this.what.focus();
  }

  /**
   * Link the events that led to this one, the nearest first, and the events that it led to.
   * @param {EventRow} row
   */
  link(row) {
    const { rows } = this.store;
    this.links.hidden = rows[row.seq] !== row; // the row is from a saved page
    if (this.links.hidden) return;
    const causes = [],
      effects = [];
    for (let at = row.cause; at !== undefined && causes.length < CHAIN; at = rows[at].cause) causes.push(at);
    for (let at = row.seq + 1; at < Math.min(rows.length, row.seq + FORWARD) && effects.length < LED_TO; at++)
      if (rows[at].cause === row.seq) effects.push(at);
    this.causes = causes;
    this.effects = effects;
    /**
     * @param {string} words
     * @param {number[]} ats
     */
    const related = (words, ats) =>
      ats.length ? [el("span", { class: "agentnb-dim", text: words }), ...ats.map((at) => this.linkTo(at))] : [];
    const after = row.after === undefined ? [] : [row.after];
    this.links.replaceChildren(...related("Caused by", causes), ...related("Waited for", after), ...related("Led to", effects));
    if (!this.links.children.length) this.links.hidden = true;
  }

  /**
   * Offer a breakpoint for events like this one: of its type, and about the same tool.
   * @param {EventRow} row
   */
  offerBreakpoint(row) {
    const { model, spans } = this.store,
      span = spans.of(row);
    this.tool = span?.kind === "call" && OF_CALLS.has(row.type) ? span.name : "";
    const known = model.get("breakpoints")?.events?.includes(row.type);
    this.stop.hidden = !known || !model.get("parts")?.includes("controls") || Boolean(model.get("status")?.over);
    say(this.stop, "Pause at such events");
    this.stop.title = visible(`Add a breakpoint: every ${row.type}${this.tool ? ` of ${this.tool}` : ""}`);
  }

  addBreakpoint() {
    const { row } = this,
      tool = this.tool.replace(/[*?[]/g, "[$&]"); // a name, not a pattern
    if (!row) return;
    this.store.ask({ type: "breakpoint", do: "add", event: row.type, tool }, (answer) => {
      if (this.row === row) say(this.stop, answer.ok ? "Breakpoint added" : answer.error);
    });
  }

  /** @param {number} at */
  linkTo(at) {
    const row = this.store.rows[at];
    return button(`#${row.seq} ${row.type}`, () => this.go(at), {
      class: "agentnb-link",
      "data-group": row.group,
      title: row.summary,
    });
  }

  showAll() {
    const { row } = this;
    if (!row) return;
    this.store.ask({ type: "show", seq: row.seq }, (answer) => {
      if (this.row !== row) return;
      this.all.hidden = true;
      const rest =
        answer.length > answer.text.length
          ? `The first ${number(answer.text.length)} of ${number(answer.length)} characters; run.events[${row.seq}] has all.`
          : "";
      this.body.replaceChildren(el("pre", { text: answer.text }), el("p", { class: "agentnb-dim", text: rest }));
    });
  }
}
