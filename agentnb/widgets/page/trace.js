// The trace: the run as a tree of loops, turns and calls, each a row from its start to its end, with its bar to scale. Only
// the visible rows are drawn. A row may grow: while a model writes, its text is in its row, and other parts of the panel
// put a form there. The list follows its end until a person scrolls up.

import { IN_A_FILE, button, el, unique, say, visible } from "./text.js";
import { Line, Scale } from "./trace_line.js";
import { Streams } from "./streams.js";

const HEIGHT = 26; // pixels; trace.css has the same height
const AROUND = 6; // rows drawn above and below the visible ones
const FLOODED = 100; // milliseconds between two drawings when rows come too fast to be read
const TICKS_EVERY = 250; // milliseconds between two drawings while no event comes
const NOTE_FOR = 4000; // milliseconds for which a note is shown

/**
 * What is shown in the place of a row, or under it. `height` is that of its last drawing.
 * @typedef {object} Grown
 * @property {number} number the row
 * @property {boolean} under
 * @property {HTMLElement} node
 * @property {number} height
 * @property {boolean} isShown
 */

export class Trace {
  /**
   * @param {Store} store
   * @param {(at: number) => void} go shows the event of this number
   */
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.chosen = -1; // the number of a row
    this.folded = /** @type {Set<number>} */ (new Set());
    this.query = ""; // in lower case
    this.found = /** @type {Set<number>} */ (new Set()); // the rows that match it
    this.order = /** @type {TraceRow[]} */ ([]); // the rows to show, from top to bottom
    this.places = /** @type {Map<number, number>} */ (new Map()); // by the number of a row: its index in this order
    this.read = { rows: /** @type {TraceRows | null} */ (null), shape: -1, length: 0 }; // what the order was made of
    this.grown = /** @type {Map<string, Grown>} */ (new Map());
    this.known = 0; // how many rows there were at the last drawing: later ones fade in
    this.follow = true;
    this.drawnAt = 0; // pixels
    this.asks = /** @type {import("./approvals.js").InSight | null} */ (null); // keeps the question in sight
    this.drawn = { length: 0, seen: 0, when: 0 };
    this.pool = /** @type {Line[]} */ ([]);
    this.timer = this.frame = this.noted = 0;
    this.selected = store.selected; // the event for which a row was chosen
    this.id = unique();
    this.axis = /** @type {import("./lanes.js").Axis | null} */ (null); // the strip's
    this.drawnAxis = this.axis;
    this.streams = new Streams(this);
    this.grid = el("div", {
      class: "agentnb-trace-grid",
      role: "treegrid",
      tabindex: "0",
      "aria-label": "Trace",
      "data-lm-suppress-shortcuts": "true", // JupyterLab's, which would move to another cell
    });
    this.empty = el("p", { class: "agentnb-trace-empty" });
    this.scroller = el("div", { class: "agentnb-trace-scroll" }, this.empty, this.grid);
    this.latest = button("Latest", () => this.toEnd(), { class: "agentnb-trace-latest", title: "Go to the end and stay there (End)" });
    this.note = el("p", { class: "agentnb-trace-note", role: "status", hidden: true });
    this.el = el("div", { class: "agentnb-trace" }, this.scroller, this.latest, this.note);
    this.sized = new ResizeObserver(() => this.drawSoon());
    this.scroller.addEventListener(
      "scroll",
      () => {
        if (this.scroller.scrollTop === this.drawnAt) return; // our own scrolling: the rows are drawn already
        this.follow = this.atEnd();
        this.draw();
      },
      { passive: true },
    );
    this.grid.addEventListener("click", (event) => this.click(event));
    this.grid.addEventListener("keydown", (event) => this.key(event));
  }

  update() {
    this.followSelected();
    this.streams.update();
    this.more();
  }

  // Another part may have chosen an event.
  followSelected() {
    const { selected, trace } = this.store;
    if (selected === this.selected) return;
    this.selected = selected;
    if (selected && trace.all[this.chosen]?.position === selected.seq) return;
    const row = trace.of(selected);
    this.chosen = row?.number ?? -1;
    if (row) this.reveal(row.number);
  }

  // -- rows that grow

  /**
   * Show an element in the place of a row, or under it, as long as the row is there. It is as high as it needs to be, but
   * not higher than the list. The rows around it are unfolded.
   * @param {string} key names it; another element with this key is replaced
   * @param {number} number the number of the row
   * @param {HTMLElement} element
   * @param {{ under?: boolean, kind?: string }} [options] kind: for the style sheet
   */
  grow(key, number, element, { under = false, kind = "" } = {}) {
    const known = this.grown.get(key);
    if (known?.number === number && known.under === under && known.node.contains(element)) return;
    this.shrink(key);
    const cell = el("div", { class: "agentnb-grown", role: "gridcell", "data-kind": kind }, element),
      node = el("div", { class: "agentnb-grown-row", role: "row", id: `agentnb-${this.id}-${unique()}` }, cell);
    this.grown.set(key, { number, under, node, height: 0, isShown: false });
    this.sized.observe(cell);
    this.grid.append(node);
    for (let row = this.store.trace.all[number]?.parent; row; row = row.parent) if (this.folded.delete(row.number)) this.reorder();
    this.drawSoon();
  }

  /** @param {string} key */
  shrink(key) {
    const grown = this.grown.get(key);
    if (!grown) return;
    const hadFocus = grown.node.contains(document.activeElement);
    this.grown.delete(key);
    if (grown.node.firstElementChild) this.sized.unobserve(grown.node.firstElementChild);
    grown.node.remove();
    if (hadFocus) this.grid.focus({ preventScroll: true });
    this.drawSoon();
  }

  /**
   * The row of an event: for `grow` and `reveal`.
   * @param {number} position
   */
  rowOf(position) {
    return this.store.trace.of(this.store.all[position])?.number ?? -1;
  }

  // -- what is shown, in which order

  reorder() {
    this.read.rows = null;
  }

  // Bring the order of the rows up to date. Usually there are only new rows, at the end.
  arrange() {
    const { trace } = this.store,
      { read, order, places } = this;
    if (read.rows !== trace || read.shape !== trace.shape || read.length > trace.all.length || this.query) {
      order.length = 0;
      places.clear();
      this.found.clear();
      if (this.query) this.search(trace.outermost);
      this.list(trace.outermost);
    } else
      for (let at = read.length; at < trace.all.length; at++) {
        const row = trace.all[at];
        if (this.isFolded(row)) continue;
        if (!isAtEnd(row, order.at(-1))) {
          this.reorder();
          this.arrange();
          return;
        }
        places.set(row.number, order.length);
        order.push(row);
      }
    this.read = { rows: trace, shape: trace.shape, length: trace.all.length };
  }

  /** @param {TraceRow[]} rows */
  list(rows) {
    for (const row of rows) {
      if (this.query && !this.found.has(row.number)) continue;
      this.places.set(row.number, this.order.length);
      this.order.push(row);
      if (this.query || !this.folded.has(row.number)) this.list(row.inside);
    }
  }

  /**
   * Note the rows that match the query, and those around them.
   * @param {TraceRow[]} rows
   * @returns {boolean} whether there are any
   */
  search(rows) {
    let any = false;
    for (const row of rows) {
      const within = this.search(row.inside);
      if (!within && !this.matches(row)) continue;
      this.found.add(row.number);
      any = true;
    }
    return any;
  }

  /** @param {TraceRow} row */
  matches({ name, arguments: given, result, text, outcome, decided }) {
    return [name, given, result, text, outcome, decided?.what ?? ""].join("\n").toLowerCase().includes(this.query);
  }

  /**
   * Show only the rows with this text, and those around them.
   * @param {string} query
   */
  find(query) {
    this.query = query.trim().toLowerCase();
    this.reorder();
    this.draw();
  }

  /**
   * Whether a row around this one is folded.
   * @param {TraceRow} row
   */
  isFolded(row) {
    for (let outer = row.parent; outer; outer = outer.parent) if (this.folded.has(outer.number)) return true;
    return false;
  }

  // -- drawing

  // There are more rows. If each batch has more rows than fit in the list, only some of the batches are drawn.
  more() {
    const { length, seen, when } = this.drawn,
      flooded = this.follow && length > 0 && this.store.trace.all.length - length >= seen,
      wait = flooded ? when + FLOODED - performance.now() : 0;
    if (wait <= 0) this.draw();
    else this.timer ||= setTimeout(() => this.draw(), wait);
  }

  // Draw in a frame: the browser reports scrolling before it, so a person who has just left the end is not taken back.
  drawSoon() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (this.isSeen()) this.draw();
    });
  }

  /**
   * Draw the bars to this scale. The strip changes it after the rows were drawn, or before.
   * @param {import("./lanes.js").Axis} axis
   */
  follows(axis) {
    this.axis = axis;
    requestAnimationFrame(() => {
      if (this.axis !== this.drawnAxis && this.isSeen()) this.draw();
    });
  }

  isSeen() {
    return this.el.isConnected && this.el.getClientRects().length > 0;
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.arrange();
    const { store, scroller } = this,
      { length } = this.order,
      room = scroller.clientHeight || 280;
    this.grid.style.setProperty("--room", `${room}px`);
    const asked = this.asks?.find(),
      layout = this.layOut();
    // The spacer is as high as all rows.
    const height = `${layout.height}px`;
    if (this.grid.style.height !== height) this.grid.style.height = height;
    if (this.follow && !this.atEnd()) scroller.scrollTop = layout.height;
    if (asked) this.asks?.keep(asked, layout.top);
    this.drawnAt = scroller.scrollTop;
    this.drawn = { length: store.trace.all.length, seen: Math.ceil(room / HEIGHT), when: performance.now() };
    const start = Math.max(0, layout.indexAt(this.drawnAt) - AROUND),
      end = Math.min(length, layout.indexAt(this.drawnAt + room) + 1 + AROUND),
      lines = /** @type {number[]} */ ([]);
    for (let index = start; index < end; index++) if (!layout.isReplaced(index)) lines.push(index);
    this.fit(lines.length);
    const scale = new Scale(store, this.axis);
    this.drawnAxis = this.axis;
    this.pool.forEach((line, i) => this.show(line, lines[i], layout.top(lines[i]), scale));
    this.place(layout);
    this.sort();
    this.streams.draw(scale);
    this.known = store.trace.all.length;
    this.point();
    say(this.empty, length ? "" : this.query ? "No row has this text." : store.rows.length ? "No turn or call yet." : store.nothing("rows").replace(/^No rows/, "Nothing has happened"));
    this.empty.hidden = length > 0;
    this.grid.setAttribute("aria-rowcount", String(length));
    const formIsOpen = [...this.grown.values()].some(({ under, isShown }) => under && isShown);
    this.latest.hidden = this.follow || layout.height <= room || formIsOpen; // it would cover the form's words
    if (scale.grows) this.timer = setTimeout(() => this.drawSoon(), TICKS_EVERY);
  }

  // Where each row is: below the rows before it, of which some have grown.
  layOut() {
    const extras = /** @type {Map<number, { more: number, replaced: boolean }>} */ (new Map());
    for (const grown of this.grown.values()) {
      const index = this.places.get(grown.number);
      grown.isShown = index !== undefined;
      grown.node.hidden = index === undefined;
      if (index === undefined) continue;
      grown.height = grown.node.offsetHeight;
      const extra = extras.get(index) ?? { more: 0, replaced: false };
      extra.more += grown.height - (grown.under || extra.replaced ? 0 : HEIGHT);
      extra.replaced ||= !grown.under;
      extras.set(index, extra);
    }
    const sorted = [...extras].sort(([one], [other]) => one - other);
    /** @param {number} index */
    const top = (index) => sorted.reduce((sum, [at, { more }]) => (at < index ? sum + more : sum), index * HEIGHT);
    /** @param {number} y */
    const indexAt = (y) => {
      let passed = 0;
      for (const [at, { more }] of sorted) {
        if (y < at * HEIGHT + passed) break;
        if (y < (at + 1) * HEIGHT + passed + more) return at;
        passed += more;
      }
      return Math.max(0, Math.floor((y - passed) / HEIGHT));
    };
    return {
      top,
      indexAt,
      height: top(this.order.length),
      /** @param {number} index */
      isReplaced: (index) => extras.get(index)?.replaced ?? false,
    };
  }

  /** @param {number} many */
  fit(many) {
    while (this.pool.length > many) this.pool.pop()?.el.remove();
    while (this.pool.length < many) {
      const line = new Line(`agentnb-${this.id}-${this.pool.length}`);
      this.pool.push(line);
      this.grid.append(line.el);
    }
  }

  /**
   * @param {Line} line
   * @param {number} index
   * @param {number} top
   * @param {Scale} scale
   */
  show(line, index, top, scale) {
    const row = this.order[index],
      { el: node } = line;
    node.style.transform = `translateY(${top}px)`;
    node.dataset.row = String(row.number);
    node.classList.toggle("agentnb-new", row.number >= this.known && this.known > 0);
    this.describe(node, row, index);
    line.show(row, scale, { isFolded: this.folded.has(row.number) && !this.query, ...this.streams.of(row) });
  }

  /**
   * Set the attributes of a row for assistive technology.
   * @param {HTMLElement} node
   * @param {TraceRow} row
   * @param {number} index
   */
  describe(node, row, index) {
    const attributes = {
      "aria-level": String(row.depth + 1),
      "aria-rowindex": String(index + 1),
      "aria-selected": String(row.number === this.chosen),
      "aria-expanded": row.inside.length ? String(Boolean(this.query) || !this.folded.has(row.number)) : null,
    };
    for (const [name, value] of Object.entries(attributes))
      if (value === null) node.removeAttribute(name);
      else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    node.classList.toggle("agentnb-found", Boolean(this.query) && this.matches(row));
  }

  /** @param {ReturnType<Trace["layOut"]>} layout */
  place({ top }) {
    const below = /** @type {Map<number, number>} */ (new Map()); // by index: where the next one goes
    const entries = [...this.grown.values()].sort((one, other) => Number(one.under) - Number(other.under));
    for (const { number, under, node, height, isShown } of entries) {
      const index = this.places.get(number);
      if (!isShown || index === undefined) continue;
      const y = below.get(index) ?? top(index) + (under ? HEIGHT : 0);
      below.set(index, y + height);
      node.style.transform = `translateY(${y}px)`;
      node.dataset.row = String(number);
      node.dataset.top = String(y);
      this.describe(node, this.order[index], index);
      if (under) node.setAttribute("aria-level", String(this.order[index].depth + 2));
      if (under) node.removeAttribute("aria-expanded");
    }
  }

  // Put the rows into the order in which they are seen. What has grown is not moved: it may have the focus.
  sort() {
    if (!this.grown.size) return;
    /** @param {HTMLElement} node */
    const top = (node) => Number(/\((-?[\d.]+)px/.exec(node.style.transform)?.[1] ?? 0);
    const grown = new Set([...this.grown.values()].map(({ node }) => node)),
      nodes = [...this.pool.map(({ el: node }) => node), ...[...grown].filter((node) => !node.hidden)];
    nodes.sort((one, other) => top(one) - top(other));
    let at = this.grid.firstElementChild;
    for (const node of nodes) {
      while (at && at !== node && (grown.has(node) || (grown.has(/** @type {HTMLElement} */ (at)) && at.hasAttribute("hidden")))) {
        const next = at.nextElementSibling;
        if (!grown.has(/** @type {HTMLElement} */ (at))) this.grid.append(at); // it is put into its place in its turn
        at = next;
      }
      if (at === node) at = at.nextElementSibling;
      else this.grid.insertBefore(node, at);
    }
  }

  // Say which row is the current one.
  point() {
    const replaced = [...this.grown.values()].find(({ number, under, isShown }) => isShown && !under && number === this.chosen),
      id = replaced?.node.id ?? this.pool.find(({ el: node }) => Number(node.dataset.row) === this.chosen)?.el.id;
    if (id) this.grid.setAttribute("aria-activedescendant", id);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  // -- scrolling

  // Whether the last drawn row is visible. There may be more rows by the time the browser reports our own scrolling.
  atEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    return scrollTop + clientHeight >= scrollHeight - HEIGHT / 2;
  }

  toEnd() {
    this.follow = true;
    this.draw();
  }

  /**
   * Scroll until a row is visible. The rows around it are unfolded.
   * @param {number} number
   */
  reveal(number) {
    for (let row = this.store.trace.all[number]?.parent; row; row = row.parent) if (this.folded.delete(row.number)) this.reorder();
    this.arrange();
    const index = this.places.get(number);
    if (index === undefined) return;
    const { top } = this.layOut(),
      from = top(index),
      to = top(index + 1),
      { scroller } = this;
    // A row in sight changes nothing: if the list follows its end, it does so with the rows that have just come, too.
    if (from >= scroller.scrollTop && to <= scroller.scrollTop + scroller.clientHeight) return;
    scroller.scrollTop = from < scroller.scrollTop ? from : Math.min(from, to - scroller.clientHeight);
    this.follow = this.atEnd();
  }

  /**
   * Show the details of an event under its row.
   * @param {number} number the number of the row
   * @param {HTMLElement} details
   */
  detail(number, details) {
    const known = this.grown.get("detail");
    if (known?.number === number && known.node.contains(details)) return;
    this.grow("detail", number, details, { under: true, kind: "detail" });
    this.draw(); // there is room for it now
    this.reveal(number);
  }

  // -- what a person does

  /** @param {MouseEvent} event */
  click(event) {
    const target = /** @type {HTMLElement} */ (event.target),
      node = /** @type {HTMLElement | null} */ (target.closest("[data-row]")),
      row = node ? this.store.trace.all[Number(node.dataset.row)] : undefined;
    if (!node || !row || (node.classList.contains("agentnb-grown-row") && !target.closest(".agentnb-trace-row"))) return;
    if (target.closest(".agentnb-fold") && row.inside.length) this.fold(row, !this.folded.has(row.number));
    else this.choose(row);
  }

  /**
   * @param {TraceRow} row
   * @param {boolean} isFolded
   */
  fold(row, isFolded) {
    if (isFolded) this.folded.add(row.number);
    else this.folded.delete(row.number);
    this.follow = false; // the row stays where it is
    this.reorder();
    this.draw();
    this.follow = this.atEnd();
  }

  /** @param {TraceRow} row */
  choose(row) {
    this.chosen = row.number;
    this.reveal(row.number);
    this.selected = this.store.all[row.position] ?? null;
    this.store.select(this.selected);
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.target !== this.grid) {
      // The focus is in a form: Escape leaves it.
      if (event.key !== "Escape" || event.defaultPrevented) return;
      this.grid.focus({ preventScroll: true });
    } else if (event.ctrlKey || event.metaKey || event.altKey || !this.press(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * @param {string} key
   * @returns {boolean} whether it is one of the trace's
   */
  press(key) {
    const { order, places } = this,
      at = places.get(this.chosen) ?? -1,
      last = order.length - 1,
      row = at < 0 ? undefined : order[at],
      page = Math.max(1, Math.floor(this.scroller.clientHeight / HEIGHT) - 1);
    /** @type {Record<string, number>} */
    const targets = { ArrowDown: at + 1, ArrowUp: at < 0 ? last : at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: last };
    const to = targets[key];
    if (to !== undefined) {
      if (last >= 0) this.choose(order[Math.max(0, Math.min(last, to))]);
      if (key === "End") this.toEnd();
    } else if (key === "ArrowLeft" || key === "ArrowRight") {
      if (row) this.turn(row, key === "ArrowRight");
    } else if (key === "Enter") {
      if (row) this.open(row);
    } else if (!row) return false;
    else if (key === "w" || key === "W") this.whatIf(row);
    else if (key === "b" || key === "B") this.breakAt(row);
    else if (key === "c" || key === "C") this.copy(row);
    else return false;
    return true;
  }

  /**
   * Unfold a row or go to the first one inside, or fold it or go to the one around it.
   * @param {TraceRow} row
   * @param {boolean} inwards
   */
  turn(row, inwards) {
    const isOpen = row.inside.length > 0 && (Boolean(this.query) || !this.folded.has(row.number));
    if (inwards) {
      if (!isOpen && row.inside.length) this.fold(row, false);
      else if (isOpen) this.choose(this.order[(this.places.get(row.number) ?? 0) + 1]);
    } else if (isOpen && !this.query) this.fold(row, true);
    else if (row.parent) this.choose(row.parent);
  }

  /**
   * Go into what has grown in a row, or show its event.
   * @param {TraceRow} row
   */
  open(row) {
    const grown = [...this.grown].find(([key, { number, isShown }]) => isShown && number === row.number && key !== "detail")?.[1],
      field = /** @type {HTMLElement | null | undefined} */ (grown?.node.querySelector("button, input, select, textarea, summary, [tabindex]"));
    if (field) field.focus();
    else this.go(row.position);
  }

  /**
   * Ask what would have happened without what this row did.
   * @param {TraceRow} row
   */
  whatIf(row) {
    if (this.store.isFile) this.tell(IN_A_FILE);
    else this.store.whatIf(this.store.all[row.position]);
  }

  /**
   * Pause the run at events like the first one of a row.
   * @param {TraceRow} row
   */
  breakAt(row) {
    const { store } = this,
      { type } = store.all[row.position],
      tool = row.kind === "call" ? row.name : "";
    if (store.isFile) this.tell(IN_A_FILE);
    else if (!store.model.get("breakpoints")?.events?.includes(type)) this.tell("Nothing pauses at such events.");
    else
      store.breakAt(type, tool, (answer) => {
        this.tell(answer.ok ? `Breakpoint added: every ${type}${tool ? ` of ${tool}` : ""}` : answer.error);
      });
  }

  /**
   * Copy the code that has the event of a row.
   * @param {TraceRow} row
   */
  copy(row) {
    const code = `run.events[${row.position}]`;
    const { clipboard } = navigator;
    if (!clipboard) this.tell(code);
    else
      clipboard.writeText(code).then(
        () => this.tell(`Copied: ${code}`),
        () => this.tell(code),
      );
  }

  /** @param {string} words */
  tell(words) {
    clearTimeout(this.noted);
    say(this.note, visible(words));
    this.note.hidden = false;
    this.noted = setTimeout(() => {
      this.note.hidden = true;
    }, NOTE_FOR);
  }

  dispose() {
    clearTimeout(this.timer);
    clearTimeout(this.noted);
    cancelAnimationFrame(this.frame);
    this.sized.disconnect();
  }
}

/**
 * Whether a new row comes after the row that was the last: it is in this row, or in one around it.
 * @param {TraceRow} row
 * @param {TraceRow | undefined} last
 */
function isAtEnd({ parent }, last) {
  if (!parent) return true;
  for (let at = last ?? null; at; at = at.parent) if (at === parent) return true;
  return false;
}
