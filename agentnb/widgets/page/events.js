// The list of events that pass the filter, and one event in full.

import { button, count, el, number, say } from "./text.js";
import { Filter } from "./filter.js";
import { List } from "./list.js";
import { causesOf, effectsOf } from "./recorded.js";
import { Row } from "./row.js";

const SLICE = 3000, // rows filtered per frame,
  NOTED = 20_000; // and rows noted for the choices of the filter

export class Events {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.shown = /** @type {number[] | null} */ (null); // numbers of the rows that pass the filter; null: all of them
    this.scanned = 0;
    this.scanning = 0; // the frame in which the scan continues
    this.began = 0;
    this.old = /** @type {EventRow[] | null} */ (null); // the rows of a saved page, until the kernel has answered
    this.anew = store.anew;
    this.selected = -1; // a row's number
    this.filter = new Filter(store, () => this.refilter());
    this.field = this.filter.query;
    this.count = el("span", { class: "agentnb-dim agentnb-count" });
    /** @type {List<Row>} */
    this.list = new List(this, {
      label: "Events, newest last",
      around: 24,
      attributes: { role: "log", "aria-label": "Events", "aria-live": "off" },
    });
    this.all = button("Show all events", () => this.showAll(), { class: "agentnb-link" });
    this.nothing = el("span");
    this.list.empty.append(this.nothing, " ", this.all);
    this.el = el(
      "div",
      { class: "agentnb-events" },
      el("div", { class: "agentnb-filter" }, ...this.filter.parts, this.count, this.list.latest),
      this.list.el,
    );
    this.update("rows");
  }

  length() {
    return this.shown ? this.shown.length : this.rows().length;
  }
  rows() {
    return this.store.rows.length || !this.old ? this.store.rows : this.old;
  }
  /** @param {number} index */
  number(index) {
    return this.shown ? this.shown[index] : index;
  }
  /** @param {number} at a row's number */
  index(at) {
    return this.shown ? this.shown.indexOf(at) : at;
  }
  chosen() {
    return this.selected >= 0 ? this.index(this.selected) : -1;
  }

  /** @param {News} what */
  update(what) {
    if (what === "selected") return this.follow();
    // Until the kernel has answered, the last rows are those saved with the page.
    if (!this.store.rows.length && what !== "rows" && !this.store.replays) {
      const tail = JSON.parse(this.store.model.get("tail") || "[]");
      if (tail.length) this.old = tail;
    }
    if (this.old && this.store.rows.length) {
      // The kernel has answered: use its rows.
      this.old = null;
      this.filter.forget();
      this.select(-1);
      this.refilter();
    }
    if (this.anew !== this.store.anew) {
      // An earlier moment is shown.
      this.anew = this.store.anew;
      if (this.selected >= this.rows().length) this.select(-1);
      this.filter.shorten(this.rows());
      this.refilter();
    }
    this.scan();
    this.list.more();
    this.showCount();
    return undefined;
  }

  // Another part has chosen an event.
  follow() {
    const { selected, rows } = this.store,
      at = selected?.seq ?? -1;
    if (selected && rows[at] !== selected) return;
    if (at !== this.selected) this.reveal(at);
  }

  refilter() {
    this.shown = this.filter.isSet() ? [] : null;
    this.scanned = 0;
    this.scan();
    this.draw();
  }

  showAll() {
    this.filter.clear();
    this.refilter();
    this.filter.query.focus();
  }

  /** @param {string} phase */
  showPhase(phase) {
    this.filter.clear();
    this.filter.choosePhase(phase);
    this.refilter();
    this.filter.query.focus();
  }

  // Note the new rows, and find those that pass the filter. Many rows take several frames.
  scan() {
    const rows = this.rows(),
      query = this.filter.query.value.toLowerCase();
    this.filter.note(rows, Math.min(rows.length, this.filter.counted + NOTED));
    const end = Math.min(this.filter.counted, this.scanned + SLICE);
    if (this.shown)
      for (; this.scanned < end; this.scanned++) if (this.filter.passes(rows[this.scanned], query)) this.shown.push(this.scanned);
    const isDone = this.filter.counted >= rows.length && (!this.shown || this.scanned >= rows.length);
    if (isDone || this.scanning) return;
    this.scanning = requestAnimationFrame(() => {
      this.scanning = 0;
      this.scan();
      if (this.shown) this.draw();
    });
  }

  draw() {
    this.list.draw();
    this.showCount();
  }

  showCount() {
    const rows = this.rows(),
      length = this.length();
    say(this.nothing, length ? "" : this.shown ? "No event matches the filter." : this.store.nothing("events"));
    this.all.hidden = !this.shown;
    say(this.count, this.shown ? `${number(length)} of ${number(rows.length)}` : count(rows.length, "event"));
  }

  begin() {
    this.began = this.rows()[0]?.time ?? 0;
  }

  /** @param {string} id */
  make(id) {
    return new Row(id);
  }

  /**
   * @param {Row} row
   * @param {number} index
   */
  show(row, index) {
    const at = this.number(index);
    row.show(this.rows()[at], this.began, this.filter.query.value.toLowerCase());
    return at;
  }

  /** @param {number} at */
  press(at) {
    this.select(at);
  }

  /** @param {number} index */
  choose(index) {
    this.select(this.number(index));
  }

  /** @param {KeyboardEvent} event */
  key({ key }) {
    const { selected } = this.store;
    if (key === "Escape" && this.selected >= 0) this.select(-1);
    else if (key === "ArrowLeft" || key === "ArrowRight") {
      const { rows } = this.store,
        related = key === "ArrowLeft" ? causesOf : effectsOf;
      if (selected && rows[selected.seq] === selected) this.go(related(rows, selected)[0] ?? -1);
    }
    else return false;
    return true;
  }

  /** @param {number} at */
  select(at) {
    this.selected = at;
    this.store.select(at >= 0 ? this.rows()[at] : null);
    if (at >= 0) this.list.reveal(this.index(at));
    this.draw();
  }

  /**
   * Go to an event. If the filter hides it, the filter is cleared.
   * @param {number} at
   */
  go(at) {
    if (at < 0 || at >= this.rows().length) return;
    this.reveal(at);
    this.list.spacer.focus({ preventScroll: true });
  }

  /** @param {number} at */
  reveal(at) {
    if (at >= 0 && this.shown && !this.filter.passes(this.rows()[at], this.filter.query.value.toLowerCase())) {
      this.filter.clear();
      this.refilter();
    }
    this.select(at);
  }
}
