// The run's usage: tokens, cost and time, in total and by turn. A turn is a request to a model with its calls.

import { worked } from "./spans.js";
import { button, duration, el, fit, number, say } from "./text.js";

const COLUMNS = 48; // the last turns, in the small chart
const LINES = 200; // turns in the table, at most
const PAUSE_USAGE = 250; // milliseconds between two drawings
const TIME_GOES = 1000; // milliseconds between two drawings of the time while no event comes
const EMPTY = "\u2013";

export class Usage {
  /**
   * @param {Store} store
   * @param {(at: number) => void} go shows the event of this number
   */
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.timer = this.tick = 0;
    this.stale = false;
    this.shown = ""; // the data of the table, as JSON
    this.facts = el("span", { class: "agentnb-usage-facts" });
    this.chart = el("span", { class: "agentnb-spark", "aria-hidden": "true" });
    this.table = el("div", { class: "agentnb-turns", hidden: true, tabindex: "0", role: "region", "aria-label": "Turns" });
    this.el = el(
      "section",
      { class: "agentnb-usage", "aria-label": "Tokens, cost and time" },
      el("div", { class: "agentnb-usage-bar" }, this.facts, this.chart),
      this.table,
    );
  }

  dispose() {
    clearTimeout(this.timer);
    clearTimeout(this.tick);
  }

  update() {
    this.stale = true;
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      if (this.stale) this.update();
    }, PAUSE_USAGE);
    this.draw();
    this.stale = false;
  }

  draw() {
    const { spans } = this.store,
      usage = this.store.status().usage ?? {};
    const { spent } = spans,
      until = this.store.until();
    const facts = [
      ["in all", until > spans.began ? duration(until - spans.began) : EMPTY],
      ["model", spent.model ? duration(spent.model) : ""],
      ["calls", spent.call ? duration(spent.call) : ""],
      ["waiting for you", spent.wait ? duration(spent.wait) : ""],
      ["paused", spans.paused ? duration(spans.paused) : ""],
      ["idle", spans.idle ? duration(spans.idle) : ""],
      ...Object.entries(usage).map(([name, amount]) => (name.startsWith("cost") ? [name.replaceAll("_", " "), money(amount)] : [name.replaceAll("_", " "), number(amount)])),
    ].filter(([, value]) => value);
    const fact = () => el("span", { class: "agentnb-fact" }, el("span", { class: "agentnb-dim" }), " ", el("b")),
      items = fit(this.facts, facts.length, fact);
    facts.forEach((words, i) => [...items[i].children].forEach((node, at) => say(node, words[at]))); // a name and a value
    clearTimeout(this.tick);
    if (until > spans.last) this.tick = setTimeout(() => this.el.isConnected && this.draw(), TIME_GOES);
    this.drawChart();
    if (!this.table.hidden) this.drawTable();
  }

  drawChart() {
    const turns = this.store.spans.turns.slice(-COLUMNS),
      weigh = turns.some((turn) => tokens(turn)) ? tokens : took,
      most = Math.max(1e-9, ...turns.map(weigh));
    this.table.hidden = !turns.length;
    this.chart.hidden = turns.length < 2;
    const bars = fit(this.chart, turns.length, () => el("span"));
    turns.forEach((turn, i) => {
      bars[i].style.height = `${Math.max(1, Math.round((16 * weigh(turn)) / most))}px`;
    });
    const what = weigh === took ? "seconds" : "tokens";
    if (this.chart.title !== what) this.chart.title = `${what} per turn, the last ${turns.length}`;
  }

  drawTable() {
    const { spans } = this.store,
      turns = spans.turns.slice(-LINES),
      names = [...new Set(turns.flatMap((turn) => Object.keys(turn.usage ?? {})))];
    const signature = JSON.stringify([spans.turns.length, names, turns.map((turn) => [turn.ended, turn.calls, turn.call_time])]);
    if (this.shown === signature) return;
    this.shown = signature;
    const head = ["Turn", "Model", "Calls", "In calls", ...names.map((name) => name.replaceAll("_", " "))];
    const left = spans.turns.length - turns.length;
    this.table.replaceChildren(
      el(
        "table",
        {},
        left ? el("caption", { text: `${number(left)} earlier turns are left out.` }) : null,
        el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { text, scope: "col" })))),
        el("tbody", {}, ...turns.map((turn) => this.line(turn, names))),
      ),
    );
  }

  /**
   * @param {Span} turn
   * @param {string[]} names
   */
  line(turn, names) {
    const cells = [
      turn.ended === null ? EMPTY : duration(took(turn)),
      turn.calls || EMPTY,
      turn.call_time ? duration(turn.call_time) : EMPTY,
      ...names.map((name) => {
        const amount = turn.usage?.[name];
        return amount === undefined ? EMPTY : name.startsWith("cost") ? money(amount) : number(amount);
      }),
    ];
    const name = [turn.path, turn.name].filter(Boolean).join(" \u203a ");
    const link = button(name, () => this.go(turn.position), { class: "agentnb-link" });
    return el("tr", {}, el("th", { scope: "row" }, link), ...cells.map((text) => el("td", { text })));
  }
}

/** @param {Span} turn */
function tokens(turn) {
  return Object.entries(turn.usage ?? {}).reduce((sum, [name, amount]) => sum + (name.endsWith("tokens") ? amount : 0), 0);
}

/** @param {Span} turn */
function took(turn) {
  return turn.ended === null ? 0 : worked(turn, turn.ended);
}

/** @param {number} amount */
function money(amount) {
  return `$${number(amount)}`;
}
