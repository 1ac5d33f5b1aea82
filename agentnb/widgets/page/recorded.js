// One event as it was recorded: all of its fields, the events that led to it, and those that it led to.

import { button, el, number, say } from "./text.js";

const CHAIN = 5; // events that led to this one, at most
const LED_TO = 4; // events that it led to, at most
export const FORWARD = 5000; // rows that are searched for those

/**
 * The numbers of the events that led to an event, the nearest first.
 * @param {EventRow[]} rows
 * @param {EventRow} row
 */
export function causesOf(rows, row) {
  const causes = [];
  for (let at = row.cause; at !== undefined && causes.length < CHAIN; at = rows[at].cause) causes.push(at);
  return causes;
}

/**
 * The numbers of the events that an event led to.
 * @param {EventRow[]} rows
 * @param {EventRow} row
 */
export function effectsOf(rows, row) {
  const effects = [];
  for (let at = row.seq + 1; at < Math.min(rows.length, row.seq + FORWARD) && effects.length < LED_TO; at++)
    if (rows[at].cause === row.seq) effects.push(at);
  return effects;
}

export class Recorded {
  /**
   * @param {Store} store
   * @param {(at: number) => void} go shows the event of this number
   */
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.row = /** @type {EventRow | null} */ (null);
    this.opened = false; // whether it was opened here, and not by a person
    this.title = el("span");
    this.about = el("p", { class: "agentnb-dim agentnb-isolated" });
    this.links = el("div", { class: "agentnb-links" });
    this.all = button("Show all", () => this.showAll(), { class: "agentnb-link", title: "All of its data as text" });
    this.body = el("div", { class: "agentnb-recorded-body" });
    this.el = el(
      "details",
      { class: "agentnb-recorded" },
      el("summary", {}, this.title),
      this.about,
      this.links,
      this.body,
      this.all,
    );
    this.el.addEventListener("toggle", () => this.el.open && this.draw());
  }

  /**
   * @param {EventRow} row
   * @param {boolean} isOpen whether nothing else tells about it
   */
  show(row, isOpen) {
    const isNew = this.row !== row;
    this.row = row;
    say(this.title, `Event #${row.seq}, as recorded`);
    if (isOpen && !this.el.open) this.opened = this.el.open = true;
    else if (!isOpen && this.opened) this.opened = this.el.open = false;
    if (this.el.open) this.draw(isNew);
  }

  draw(isNew = true) {
    const { row } = this;
    if (!row) return;
    this.link(row);
    if (!isNew) return;
    const clock = new Date(row.time * 1000).toLocaleTimeString("en", { hour12: false });
    say(this.about, [row.type, clock, row.path, row.phase && `phase ${row.phase}`].filter(Boolean).join(" \u00b7 "));
    this.all.hidden = this.store.isFile || (!row.size && row.data !== undefined);
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
   * Link the events that led to this one, the nearest first, and the events that it led to.
   * @param {EventRow} row
   */
  link(row) {
    const { rows } = this.store;
    this.links.hidden = rows[row.seq] !== row; // the row is from a saved page
    if (this.links.hidden) return;
    /**
     * @param {string} words
     * @param {number[]} ats
     */
    const related = (words, ats) =>
      ats.length ? [el("span", { class: "agentnb-dim", text: words }), ...ats.map((at) => this.linkTo(at))] : [];
    const after = row.after === undefined ? [] : [row.after],
      links = [...related("Caused by", causesOf(rows, row)), ...related("Waited for", after), ...related("Led to", effectsOf(rows, row))];
    this.links.hidden = !links.length;
    if (links.map(({ textContent }) => textContent).join() === [...this.links.children].map(({ textContent }) => textContent).join()) return;
    this.links.replaceChildren(...links);
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
