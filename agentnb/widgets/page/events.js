// The list of events, of which only the rows in view are drawn; its filter; what is on its way; one event in full.

import { button, el, number, say, unique } from "./text.js";
import { Details } from "./details.js";
import { OUTERMOST, ROW, Row, isIn, matches } from "./row.js";

const OVERSCAN = 24; // rows drawn above and below what is in view
const SLICE = 3000; // rows filtered per frame
const PATHS = 200; // loops that can be chosen; the others are found by text

export class Events {
  constructor(store) {
    this.store = store;
    this.shown = null; // numbers of the rows that pass the filter; null: all of them
    this.scanned = 0;
    this.first = 0;
    this.follow = true;
    this.selected = -1; // a row's number
    this.types = new Map();
    this.paths = new Set();
    this.counted = 0;
    this.pool = [];
    this.id = unique();
    this.query = el("input", {
      class: "agentnb-input",
      type: "search",
      placeholder: "Filter events",
      "aria-label": "Filter events",
    });
    this.type = el(
      "select",
      { class: "agentnb-select", "aria-label": "Type of event" },
      el("option", { value: "", text: "all types" }),
    );
    this.loop = el(
      "select",
      { class: "agentnb-select agentnb-loops", "aria-label": "Loop of event", hidden: true },
      el("option", { value: "", text: "all loops" }),
      el("option", { value: OUTERMOST, text: "outermost" }),
    );
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
    });
    this.empty = el("p", { class: "agentnb-empty", text: "Nothing has happened yet." });
    this.log = el(
      "div",
      { class: "agentnb-log", role: "log", "aria-label": "Events", "aria-live": "off" },
      this.empty, // a list box has options in it and nothing else
      this.spacer,
    );
    this.live = el("div", { class: "agentnb-live", "aria-hidden": "true" });
    this.details = new Details(store, () => this.select(-1));
    this.el = el(
      "div",
      { class: "agentnb-events" },
      el("div", { class: "agentnb-filter" }, this.query, this.type, this.loop, this.count, this.latest),
      this.log,
      this.live,
      this.details.el,
    );
    const keep = (event) => event.stopPropagation();
    this.query.addEventListener("keydown", keep);
    this.query.addEventListener("input", () => this.refilter());
    this.type.addEventListener("change", () => this.refilter());
    this.loop.addEventListener("change", () => this.refilter());
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
    if (what === "live" || what === "status") this.drawLive();
    if (what === "live") return;
    // Until the kernel has answered: the last rows as they were saved with the page.
    if (!this.store.rows.length && what !== "rows") {
      const tail = JSON.parse(this.store.model.get("tail") || "[]");
      if (tail.length) this.old = tail;
    }
    if (this.old && this.store.rows.length) {
      // the kernel has answered: from here on its rows
      this.old = null;
      this.types.clear();
      this.counted = 0;
      this.select(-1);
      this.refilter();
    }
    this.countTypes();
    if (this.shown) this.scan();
    this.draw();
  }

  countTypes() {
    const rows = this.rows(),
      before = this.types.size;
    for (; this.counted < rows.length; this.counted++) {
      const { type, path } = rows[this.counted];
      this.types.set(type, (this.types.get(type) ?? 0) + 1);
      if (path && this.paths.size < PATHS && !this.paths.has(path)) this.addPath(path);
    }
    if (this.types.size === before) return;
    const chosen = this.type.value;
    this.type.replaceChildren(
      el("option", { value: "", text: "all types" }),
      ...[...this.types.keys()].sort().map((type) => el("option", { value: type, text: type })),
    );
    this.type.value = chosen;
  }

  addPath(path) {
    const option = el("option", { text: path });
    option.value = path;
    this.paths.add(path);
    this.loop.append(option);
    this.loop.hidden = false;
  }

  refilter() {
    this.shown = this.query.value || this.type.value || this.loop.value ? [] : null;
    this.scanned = 0;
    if (this.shown) this.scan();
    this.draw();
  }

  scan() {
    const rows = this.rows(),
      query = this.query.value.toLowerCase(),
      type = this.type.value,
      loop = this.loop.value;
    const end = Math.min(rows.length, this.scanned + SLICE);
    for (; this.scanned < end; this.scanned++) {
      const row = rows[this.scanned];
      if ((!type || row.type === type) && (!loop || isIn(row, loop)) && (!query || matches(row, query)))
        this.shown.push(this.scanned);
    }
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

  drawLive() {
    const over = this.store.model.get("status")?.over,
      lines = over ? [] : this.store.live;
    while (this.live.children.length > lines.length) this.live.lastChild.remove();
    lines.forEach((line, i) => {
      if (!this.live.children[i])
        this.live.append(
          el(
            "div",
            { class: "agentnb-line" },
            el("span", { class: "agentnb-line-kind" }),
            el("span", { class: "agentnb-line-text" }),
          ),
        );
      const [kind, text] = this.live.children[i].children;
      say(
        kind,
        [
          line.path,
          { text: "model", reasoning: "thinking", call: "call", tool: "tool", retry: "retry" }[line.kind] ?? line.kind,
          line.name,
        ]
          .filter(Boolean)
          .join(" "),
      );
      say(text, line.text.trimStart());
    });
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
}
