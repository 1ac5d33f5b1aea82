// The list of events, of which only the rows in view are drawn, and one event in full.

import { button, el, number, say, unique } from "./text.js";
import { Details } from "./details.js";
import { Filter } from "./filter.js";
import { ROW, Row } from "./row.js";

const OVERSCAN = 24; // rows drawn above and below what is in view
const SLICE = 3000; // rows filtered per frame

export class Events {
  constructor(store) {
    this.store = store;
    this.shown = null; // numbers of the rows that pass the filter; null: all of them
    this.scanned = 0;
    this.follow = true;
    this.selected = -1; // a row's number
    this.pool = [];
    this.id = unique();
    this.filter = new Filter(store, () => this.refilter());
    this.count = el("span", { class: "agentnb-dim agentnb-count" });
    this.latest = button(
      "Latest",
      () => {
        this.follow = true;
        this.draw();
      },
      { class: "agentnb-link" },
    );
    this.spacer = el("div", {
      class: "agentnb-spacer",
      role: "listbox",
      tabindex: "0",
      "aria-label": "Events, newest last",
      "data-lm-suppress-shortcuts": "true", // JupyterLab's, which would move to another cell
    });
    this.empty = el("p", { class: "agentnb-empty", text: "Nothing has happened yet." });
    this.log = el(
      "div",
      { class: "agentnb-log", role: "log", "aria-label": "Events", "aria-live": "off" },
      this.empty, // a list box has options in it and nothing else
      this.spacer,
    );
    this.details = new Details(store, () => this.select(-1), (at) => this.go(at));
    this.el = el(
      "div",
      { class: "agentnb-events" },
      el("div", { class: "agentnb-filter" }, ...this.filter.parts, this.count, this.latest),
      this.log,
      this.details.el,
    );
    this.log.addEventListener(
      "scroll",
      () => {
        this.follow = this.atEnd();
        this.draw();
      },
      { passive: true },
    );
    this.spacer.addEventListener("click", (event) => {
      const row = event.target.closest("[data-row]");
      if (row) this.select(Number(row.dataset.row));
    });
    this.spacer.addEventListener("keydown", (event) => this.key(event));
    this.update("rows");
  }

  length() {
    return this.shown ? this.shown.length : this.rows().length;
  }
  rows() {
    return this.store.rows.length || !this.old ? this.store.rows : this.old;
  }
  number(index) {
    return this.shown ? this.shown[index] : index;
  }
  index(number) {
    return this.shown ? this.shown.indexOf(number) : number;
  }
  // Of what is drawn: more may have come by the time the browser tells of our own scrolling.
  atEnd() {
    return this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - ROW / 2;
  }

  update(what) {
    // Until the kernel has answered: the last rows as they were saved with the page.
    if (!this.store.rows.length && what !== "rows") {
      const tail = JSON.parse(this.store.model.get("tail") || "[]");
      if (tail.length) this.old = tail;
    }
    if (this.old && this.store.rows.length) {
      // the kernel has answered: from here on its rows
      this.old = null;
      this.filter.forget();
      this.select(-1);
      this.refilter();
    }
    this.filter.note(this.rows());
    if (this.shown) this.scan();
    this.draw();
  }

  refilter() {
    this.shown = this.filter.isSet() ? [] : null;
    this.scanned = 0;
    if (this.shown) this.scan();
    this.draw();
  }

  scan() {
    const rows = this.rows(),
      query = this.filter.query.value.toLowerCase(),
      end = Math.min(rows.length, this.scanned + SLICE);
    for (; this.scanned < end; this.scanned++)
      if (this.filter.passes(rows[this.scanned], query)) this.shown.push(this.scanned);
    if (end < rows.length && !this.scanning) {
      this.scanning = requestAnimationFrame(() => {
        this.scanning = 0;
        if (this.shown) {
          this.scan();
          this.draw();
        }
      });
    }
  }

  draw() {
    const rows = this.rows(),
      length = this.length(),
      height = `${length * ROW}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
    if (this.follow && !this.atEnd()) this.log.scrollTop = length * ROW;
    const top = Math.floor(this.log.scrollTop / ROW);
    const start = Math.max(0, top - OVERSCAN);
    const end = Math.min(length, top + Math.ceil((this.log.clientHeight || 280) / ROW) + OVERSCAN);
    for (let i = this.pool.length; i < end - start; i++) {
      this.pool.push(new Row(this.id, i));
      this.spacer.append(this.pool[i].el);
    }
    const began = rows[0]?.time ?? 0;
    while (this.pool.length > Math.max(0, end - start)) this.pool.pop().el.remove();
    this.pool.forEach((row, i) => {
      const at = this.number(start + i);
      row.show(rows[at], at, start + i, length, began, at === this.selected);
    });
    const active = this.pool.find((row) => row.at === this.selected);
    if (active) this.spacer.setAttribute("aria-activedescendant", active.el.id);
    else this.spacer.removeAttribute("aria-activedescendant");
    this.empty.hidden = length > 0;
    say(this.empty, length ? "" : this.shown ? "No event fits the filter." : "Nothing has happened yet.");
    say(this.count, this.shown ? `${number(length)} of ${number(rows.length)}` : `${number(rows.length)} events`);
    this.latest.hidden = this.follow || length * ROW <= this.log.clientHeight;
  }

  key(event) {
    const at = this.selected >= 0 ? this.index(this.selected) : -1,
      page = Math.max(1, Math.floor(this.log.clientHeight / ROW) - 1),
      last = this.length() - 1;
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? last : at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: last,
    }[event.key];
    if (event.key === "Escape" && this.selected >= 0) this.select(-1);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const [cause, effect] = [this.details.causes[0], this.details.effects[0]];
      this.go((event.key === "ArrowLeft" ? cause : effect) ?? -1);
    }
    else if (to === undefined || last < 0) return;
    else this.select(this.number(Math.max(0, Math.min(last, to))));
    event.preventDefault();
    event.stopPropagation();
  }

  select(at) {
    this.selected = at;
    this.details.show(at >= 0 ? this.rows()[at] : null);
    if (at >= 0) {
      const y = this.index(at) * ROW;
      if (y < this.log.scrollTop) this.log.scrollTop = y;
      else if (y + ROW > this.log.scrollTop + this.log.clientHeight)
        this.log.scrollTop = y + ROW - this.log.clientHeight;
      this.follow = this.atEnd();
    } else if (this.details.el.contains(document.activeElement)) this.spacer.focus();
    this.draw();
  }

  // To an event, from wherever: it is shown, though the filter may not let it through.
  go(at) {
    if (at < 0 || at >= this.rows().length) return;
    if (this.shown && !this.filter.passes(this.rows()[at], this.filter.query.value.toLowerCase())) {
      this.filter.clear();
      this.refilter();
    }
    this.select(at);
    this.spacer.focus({ preventScroll: true });
  }
}
