// The strip: lanes for loops, model, calls and the person, and a ruler of the turns, to scale. It is the scrubber of every
// panel: dragging the playhead shows the run as it was at that moment, also while it runs; "Live" returns to the newest.

import { button, duration, el, fit, number, say, svg, unique, visible } from "./text.js";
import { Range } from "./range.js";
import { END, Joined, Lanes, placeOf, timeAt, turnsOf, upTo } from "./lanes.js";

const DEEP = 15, // the height of a lane, of which the first begins at TOP
  TOP = 3,
  BAR = 9,
  RULER = 21;
const EDGE = 16, // pixels that are free at the right of the axis
  NARROW = 480; // a narrower strip has no names of lanes
const NEAR = 6, // pixels between two lines of the ruler, or two marks, at least
  LETTER = 7.2, // the width of a letter, about
  REACH = 5; // pixels around a mark in which a click means its event
const PACE_OF_LANES = 100, // milliseconds between two drawings while no event comes,
  IDLE_SHARE = 10, // and the multiple of the time that a drawing takes
  LAYS_FOR = 6; // milliseconds in which the lanes are laid out: those of a long run take several such times
/** @type {Record<string, string>} */
const LANE_NAMES = { loops: "loops", model: "model", calls: "calls", you: "you" };
/** @type {Record<string, string>} */
const WORDS = {
  run_start: "started",
  model_start: "asked",
  model_end: "answered",
  model_error: "failed",
  call_proposed: "proposed",
  approval_request: "asks you",
  approval_decision: "decided",
  call_start: "started",
  call_end: "ended",
};

export class Strip {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.lanes = new Lanes();
    /** @type {(axis: import("./lanes.js").Axis) => void} */
    this.laid = () => {}; // told the new axis, to which other parts draw
    this.squeezes = true; // whether times in which nothing works are short
    this.axis = /** @type {import("./lanes.js").Axis} */ ({ times: [0, 0], places: [0, 0], breaks: [] });
    this.gutter = 0;
    this.width = 0;
    this.foot = 0; // where the lanes end
    this.until = 0; // the time up to which they are drawn
    this.taken = 0; // the number of snapshots that are drawn
    this.numbers = /** @type {[label: string, x: number, y: number, kind: string][]} */ ([]); // of the turns
    this.due = this.cost = this.timer = this.frame = 0;
    this.steps = /** @type {ReturnType<Lanes["steps"]> | null} */ (null); // of the lanes that are being laid out
    this.dragged = /** @type {PointerEvent | null} */ (null); // the last move that is not applied
    this.names = svg("g", {});
    this.rule = svg("path", { class: "agentnb-strip-rule" });
    this.breaks = svg("path", { class: "agentnb-strip-break" });
    this.loops = [svg("path", { class: "agentnb-strip-loop" }), svg("path", { class: "agentnb-strip-loop agentnb-strip-other" })];
    this.bars = Object.fromEntries(["model", "call", "error"].map((kind) => [kind, svg("path", { class: `agentnb-strip-${kind}` })]));
    this.waits = svg("path", { class: "agentnb-strip-wait" });
    this.hatch = svg("path", { class: "agentnb-strip-hatch" });
    this.gaps = svg("path", { class: "agentnb-strip-gap" });
    this.people = svg("path", { class: "agentnb-strip-person" });
    this.marks = svg("path", { class: "agentnb-strip-mark" });
    this.forks = svg("path", { class: "agentnb-strip-elbow" });
    this.texts = svg("g", {});
    this.later = svg("rect", { class: "agentnb-strip-later", y: 1 });
    this.line = svg("line", { class: "agentnb-strip-line", y1: 0 });
    this.knob = svg("circle", { class: "agentnb-strip-knob", r: 4.5 });
    this.label = svg("rect", { class: "agentnb-strip-knob", height: 17, rx: 4 });
    this.where = svg("text", { class: "agentnb-strip-where", "text-anchor": "middle" });
    this.range = new Range(this);
    this.picture = svg(
      "svg",
      { "aria-hidden": "true" },
      ...[this.names, this.rule, this.breaks, ...this.loops, this.waits, this.hatch, this.gaps, ...Object.values(this.bars)],
      ...[this.people, this.texts, this.range.box, this.later, this.marks, this.forks, this.line, this.knob, this.label, this.where],
    );
    this.slider = el("div", { class: "agentnb-strip-slider", role: "slider", tabindex: "0", "aria-label": "Position", "data-lm-suppress-shortcuts": "true" });
    this.slider.append(this.picture);
    this.dot = el("span", { class: "agentnb-strip-dot" });
    this.liveText = el("span", { text: "Live" });
    this.live = el("button", { type: "button", class: "agentnb-strip-live", title: "Show what happens now (L)" }, this.dot, this.liveText);
    this.menu = new StripMenu(this);
    this.el = el("div", { class: "agentnb-strip" }, this.slider, this.live, this.menu.el, this.range.el);
    this.live.addEventListener("click", () => store.goLive());
    this.slider.addEventListener("keydown", (event) => this.key(event));
    this.slider.addEventListener("pointerdown", (event) => this.press(event));
    this.slider.addEventListener("pointermove", (event) => this.drag(event));
    this.slider.addEventListener("pointerup", () => {
      this.apply();
      if (this.range.isHeld) this.range.end();
    });
    this.slider.addEventListener("contextmenu", (event) => {
      event.preventDefault();
      this.menu.open(event.clientX ? event.clientX - this.el.getBoundingClientRect().left : this.headAt());
    });
  }

  /** @param {News} what */
  update(what) {
    if (what === "position" || what === "clock") this.place();
    else this.draw();
  }

  // Draw the lanes, but not more often than they can be drawn without effort.
  draw() {
    const { store, lanes } = this,
      wait = this.due - performance.now(),
      taken = store.model.get("status")?.snapshots?.length ?? 0,
      isDrawn = taken === this.taken && lanes.scanned === store.all.length && this.width === this.slider.clientWidth && this.until === store.end();
    if (isDrawn || (this.steps && this.width === this.slider.clientWidth)) this.place();
    else if (wait > 0) {
      this.timer ||= setTimeout(() => this.redraw(), wait);
      this.place();
    } else this.lay();
  }

  redraw() {
    this.timer = 0;
    // In a frame: the layout of the page is known there.
    this.frame = requestAnimationFrame(() => this.el.isConnected && this.lay());
  }

  dispose() {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.timer = 0;
    this.steps = null;
  }

  // Begin to lay out the lanes. Those of a short run are drawn at once.
  lay() {
    const { store, lanes } = this,
      { whole } = store,
      width = this.slider.clientWidth,
      until = store.end();
    this.dispose();
    if (!width) return;
    lanes.follow(store.all, whole);
    const names = lanes.lanes();
    this.gutter = width < NARROW ? 12 : names.length > 3 ? 64 : 60;
    this.width = width;
    this.until = until;
    this.taken = store.model.get("status")?.snapshots?.length ?? 0;
    this.foot = TOP + DEEP * names.length;
    this.cost = 0;
    const joined = new Joined(),
      options = { until, width: Math.max(1, width - EDGE - this.gutter) + END, squeezes: this.squeezes };
    this.steps = lanes.steps(whole, options, (lane, start, end, span, seconds, row, atOnce) => joined.add(lane, start, end, span, seconds, row, atOnce));
    this.layOn(joined);
  }

  /**
   * Lay out the lanes for some milliseconds, and draw them when that is done.
   * @param {Joined} joined their bars
   */
  layOn(joined) {
    const began = performance.now();
    let made = this.steps?.next().value;
    while (this.steps && !made && performance.now() - began < LAYS_FOR) made = this.steps.next().value;
    const isFirst = !this.cost;
    this.cost += performance.now() - began;
    if (!made) this.timer = setTimeout(() => this.layOn(joined), 0);
    else if (isFirst) this.drawLanes(made, joined);
    else this.frame = requestAnimationFrame(() => this.drawLanes(made, joined));
  }

  /**
   * @param {ReturnType<Lanes["layOut"]>} made
   * @param {Joined} joined
   */
  drawLanes({ axis, lanes: names }, { bars }) {
    const began = performance.now();
    this.steps = null;
    this.timer = 0;
    this.axis = axis;
    this.laid(axis);
    this.size(this.foot + RULER);
    this.drawNames(names);
    this.drawBars(bars, names);
    this.drawMarks(names);
    if (this.range.from !== null) this.range.draw();
    this.place();
    this.cost += performance.now() - began;
    // They are drawn again when it is time, and grow while the run goes on.
    const wait = IDLE_SHARE * this.cost;
    this.due = performance.now() + wait;
    if (this.until > this.store.whole.last) this.timer = setTimeout(() => this.redraw(), Math.max(PACE_OF_LANES, wait));
  }

  /** @param {number} height */
  size(height) {
    set(this.picture, { width: this.width, height, viewBox: `0 0 ${this.width} ${height}` });
    this.live.style.top = `${this.foot}px`;
  }

  /**
   * The names of the lanes, a line for each of them, and the lines and numbers of the turns.
   * @param {import("./lanes.js").Lane[]} lanes
   */
  drawNames(lanes) {
    const { store, axis, gutter, width, foot } = this,
      wide = width >= NARROW,
      names = wide ? [...lanes.map((lane) => LANE_NAMES[lane]), "turn"] : [];
    fitSvg(this.names, names.length).forEach((node, i) => text(node, names[i], 12, i < lanes.length ? TOP + DEEP * i + 11.5 : foot + 16));
    const lines = lanes.map((_, i) => `M${gutter} ${TOP + DEEP * i + 7.5}H${width - EDGE}`);
    const turns = turnsOf(store.whole.turns, axis, NEAR);
    set(this.rule, { d: `${lines.join("")}${turns.map(({ x }) => `M${round(gutter + x)} ${TOP}V${foot + 19}`).join("")}` });
    this.numbers = [];
    let free = -Infinity;
    turns.forEach(({ x, label }, i) => {
      const left = gutter + x + 4,
        right = left + LETTER * label.length,
        next = turns[i + 1] ? gutter + turns[i + 1].x : width;
      if (left < free || right + 2 > next) return;
      this.numbers.push([label, left, foot + 16, "turn"]);
      free = right + 4;
    });
  }

  /**
   * @param {import("./lanes.js").Bar[]} bars
   * @param {import("./lanes.js").Lane[]} lanes
   */
  drawBars(bars, lanes) {
    const { gutter } = this,
      /** @type {Record<string, string>} */
      shapes = { model: "", call: "", error: "" },
      loops = ["", ""],
      texts = [...this.numbers];
    let waits = "",
      hatch = "",
      gaps = "",
      many = 0,
      odd = 0;
    for (const bar of bars) {
      const x = gutter + bar.start,
        wide = Math.max(3, bar.end - bar.start),
        top = TOP + DEEP * lanes.indexOf(bar.lane);
      if (bar.lane === "loops") {
        loops[odd++ % 2] += box(x + 0.5, top + 1, Math.max(2, wide - 1), 13, 3);
        const name = cut(bar.span.name, wide - 12);
        if (name) texts.push([name, x + 6, top + 11.5, "loop"]);
      } else if (bar.wait) {
        const words = ago(bar.seconds),
          room = LETTER * words.length + 6;
        waits += box(x, top + 1, wide, 13, Math.min(3, wide / 2));
        for (let at = x + 4; at + 8 < x + wide && at < x + 600; at += 7) hatch += `M${round(at)} ${top + 14}l8-13`;
        if (wide < room + 4) continue;
        gaps += box(x + (wide - room) / 2, top + 2, room, 11, 0);
        texts.push([words, x + wide / 2, top + 12, "wait"]);
      } else {
        const rows = Math.min(3, bar.atOnce),
          space = [0, 0, 1, 0.8][rows],
          height = (BAR - space * (rows - 1)) / rows,
          y = top + 3 + (bar.row % rows) * (height + space);
        shapes[bar.failed ? "error" : bar.lane === "model" ? "model" : "call"] += box(x, y, wide, height, rows > 1 ? 1.5 : 2);
        if (bar.atOnce <= 3 || x < many) continue;
        const words = String(bar.atOnce); // more calls than rows
        if (wide > LETTER * words.length + 8) texts.push([words, x + 4, top + 12, "many"]);
        many = x + 40;
      }
    }
    for (const kind of Object.keys(shapes)) set(this.bars[kind], { d: shapes[kind] });
    this.loops.forEach((path, i) => set(path, { d: loops[i] }));
    set(this.waits, { d: waits });
    set(this.hatch, { d: hatch });
    set(this.gaps, { d: gaps });
    fitSvg(this.texts, texts.length).forEach((node, i) => {
      const [words, x, y, kind] = texts[i];
      text(node, words, x, y);
      set(node, { class: `agentnb-strip-text-${kind}`, "text-anchor": kind === "wait" ? "middle" : "start" });
    });
  }

  /** @param {import("./lanes.js").Lane[]} lanes */
  drawMarks(lanes) {
    const { axis, gutter, foot } = this,
      middle = TOP + DEEP * (lanes.length - 1) + 7.5;
    let people = "",
      marks = "",
      forks = "",
      breaks = "",
      last = -NEAR,
      stop = -NEAR;
    for (const { kind, time } of this.marked()) {
      const x = gutter + placeOf(axis, time);
      if (kind === "message" || kind === "decision") {
        if (x < last + 3) continue;
        people += `M${round(x)} ${middle - 5}l5 5l-5 5l-5-5z`;
        last = x;
      } else if (x >= stop + NEAR) {
        if (kind === "breakpoint") marks += `M${round(x - 3.5)} ${foot + 11.5}a3.5 3.5 0 1 1 7 0a3.5 3.5 0 1 1-7 0z`;
        else if (kind === "snapshot") marks += `M${round(x - 4)} ${foot + 6}h8v11l-4-3.5l-4 3.5z`;
        else forks += `M${round(x)} ${foot + 5}v6q0 4 4 4h5`;
        stop = x;
      }
    }
    let broken = -NEAR;
    for (const { start, end, wait } of axis.breaks) {
      const x = gutter + (start + end) / 2 - 2;
      if (wait || x < broken + NEAR) continue;
      breaks += `M${round(x)} 5l4 8l-4 8l4 8l-4 8l2 5`;
      broken = x;
    }
    set(this.people, { d: people });
    set(this.marks, { d: marks });
    set(this.forks, { d: forks });
    set(this.breaks, { d: breaks });
  }

  // The marks of the run's events, and its snapshots.
  marked() {
    const { all, model } = this.store,
      taken = (model.get("status")?.snapshots ?? []).filter((position) => all[position]);
    return [...this.lanes.marks, .../** @type {typeof this.lanes.marks} */ (taken.map((position) => ({ kind: "snapshot", position, time: all[position].time })))];
  }

  // -- the playhead

  // Put the playhead at the shown moment. What lies after it is drawn faintly.
  place() {
    const { store, foot, width } = this,
      { position, isLive, all } = store,
      last = store.recorded(),
      over = Boolean(store.model.get("status")?.over),
      atEnd = isLive || position >= last,
      row = all[position - 1];
    this.say(row, last, over);
    this.live.hidden = store.replays || (isLive && over) || !last;
    this.live.setAttribute("aria-pressed", String(isLive));
    say(this.liveText, over ? "End" : "Live");
    if (!width) return;
    if (this.range.follows && this.time() !== this.range.to) this.range.extend(this.time());
    const x = this.headAt(),
      hasHead = last > 0 && !(isLive && over);
    show(this.line, hasHead);
    show(this.knob, hasHead && atEnd);
    for (const part of [this.label, this.where, this.later]) show(part, hasHead && !atEnd);
    set(this.line, { x1: round(x), x2: round(x), y2: atEnd ? foot + 9 : foot + 5 });
    set(this.knob, { cx: round(x), cy: foot + 11 });
    if (hasHead && !atEnd) this.tellMoment(x, row);
  }

  /**
   * Write at the playhead which moment it shows.
   * @param {number} x
   * @param {EventRow | undefined} row
   */
  tellMoment(x, row) {
    const { store, foot, width } = this,
      words = row ? `#${row.seq} \u00b7 ${duration(Math.max(0, this.time() - store.whole.began))}` : "start",
      wide = LETTER * words.length + 14,
      room = this.live.hidden ? width : this.live.offsetLeft - 4,
      middle = Math.max(Math.min(x, room - wide / 2 - 1), wide / 2 + 1);
    set(this.later, { x: round(x + 1), width: Math.max(0, round(width - x - 1)), height: foot - 1 });
    set(this.label, { x: round(middle - wide / 2), y: foot + 3, width: round(wide) });
    text(this.where, words, middle, foot + 16);
  }

  // The time that is shown: that of the event, or later while a recording plays.
  time() {
    const { position, isLive, all, player, whole } = this.store;
    if (isLive) return this.store.end();
    const time = all[position - 1]?.time ?? whole.began;
    return player?.timer ? Math.max(time, player.clock) : time;
  }

  headAt() {
    return this.gutter + placeOf(this.axis, this.time());
  }

  /**
   * Tell the position in words. While the run goes on they stay the same, so that a screen reader does not read each event.
   * @param {EventRow | undefined} row
   * @param {number} last
   * @param {boolean} over
   */
  say(row, last, over) {
    const { store, slider } = this,
      { position, isLive } = store,
      turn = store.moment.root.turn,
      ended = position >= last && !store.replays ? (over ? "the end" : "live") : "";
    let words = last ? "before the first event" : store.replays ? "nothing is recorded" : "nothing has happened yet";
    if (row) {
      words = `event ${number(row.seq)} of ${number(last - 1)}, ${ended || this.happened(row)}`;
      if (turn && !ended) words += `, turn ${turn}`;
      if (position >= last && store.replays && !over) words += "; the recording ends before the end of the run";
    }
    if (isLive && store.model.get("status")?.lives && document.activeElement === slider) words = "live, at the newest event";
    set(slider, { "aria-valuemin": -1, "aria-valuemax": last - 1, "aria-valuenow": position - 1, "aria-valuetext": visible(words) });
  }

  /** @param {EventRow} row */
  happened(row) {
    const span = this.store.spans.of(row),
      word = WORDS[row.type];
    if (!span || !word) return row.type.replaceAll("_", " ");
    return `${span.kind === "model" ? "model" : span.name} ${word}`;
  }

  // -- moving it

  /** @param {number} position */
  go(position) {
    const { store } = this;
    store.player?.hold();
    store.goTo(position);
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    this.menu.close();
    this.slider.focus({ preventScroll: true });
    this.slider.setPointerCapture(event.pointerId);
    if (event.shiftKey && this.width) this.range.begin(this.timeUnder(event));
    this.dragged = event;
    this.apply();
    event.preventDefault(); // no selection of text
  }

  /** @param {PointerEvent} event */
  drag(event) {
    if (!this.slider.hasPointerCapture(event.pointerId)) return;
    if (!this.dragged) requestAnimationFrame(() => this.apply());
    this.dragged = event;
  }

  // Go to the moment under the pointer.
  apply() {
    const event = this.dragged;
    this.dragged = null;
    if (!event || !this.width) return;
    if (this.range.isHeld) {
      this.range.extend(this.timeUnder(event));
      return;
    }
    const { left } = this.slider.getBoundingClientRect(),
      to = this.positionAt(event.clientX - left - this.gutter);
    if (to !== this.store.position || !this.store.isLive) this.go(to);
  }

  /** @param {PointerEvent} event */
  timeUnder({ clientX }) {
    return timeAt(this.axis, clientX - this.slider.getBoundingClientRect().left - this.gutter);
  }

  /**
   * The position at a place on the axis: after the last event before it, or after that of a mark.
   * @param {number} x
   */
  positionAt(x) {
    const { all } = this.store,
      end = this.axis.places[this.axis.places.length - 1];
    if (x < -REACH) return 0;
    if (x >= end - 1) return this.store.recorded();
    const mark = this.marked().find(({ time }) => Math.abs(placeOf(this.axis, time) - x) <= REACH);
    if (mark) return mark.position + 1;
    const time = timeAt(this.axis, x + 1);
    let low = 0,
      high = all.length;
    while (low < high) {
      const half = (low + high) >> 1;
      if (all[half].time <= time) low = half + 1;
      else high = half;
    }
    return low;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { store, slider } = this,
      { key, shiftKey, altKey, ctrlKey, metaKey } = event,
      at = store.position;
    if (altKey || ctrlKey || metaKey) return;
    if (key === "ArrowLeft" || key === "ArrowDown") this.go(shiftKey ? this.turn(at, -1) : at - 1);
    else if (key === "ArrowRight" || key === "ArrowUp") this.go(shiftKey ? this.turn(at, 1) : at + 1);
    else if (key === "PageUp" || key === "PageDown") this.go(at + Math.ceil(store.recorded() / 10) * (key === "PageUp" ? 1 : -1));
    else if (key === "Home") this.go(0);
    else if (key === "End") this.go(store.recorded());
    else if (key === "l" || key === "L") store.goLive();
    else if (key === "Enter") store.select(store.rows[at - 1] ?? null);
    else if (key === "Escape" && this.range.clear()) slider.focus({ preventScroll: true });
    else if (key === "F10" || key === "ContextMenu") this.menu.open(this.headAt());
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * The position of the next turn, or of the one before.
   * @param {number} at
   * @param {1 | -1} by
   */
  turn(at, by) {
    const { whole } = this.store,
      begins = whole.turns.map(({ position }) => position + 1),
      index = by > 0 ? upTo(begins, at) : upTo(begins, at - 1) - 1;
    return begins[index] ?? (by > 0 ? this.store.recorded() : 0);
  }

  /** @param {boolean} squeezes */
  squeeze(squeezes) {
    this.squeezes = squeezes;
    this.lay();
  }
}

// The context menu of the strip.
class StripMenu {
  /** @param {Strip} strip */
  constructor(strip) {
    this.strip = strip;
    const item = { class: "agentnb-strip-menu-item", tabindex: "-1" };
    this.real = button("Real time", () => this.choose(() => strip.squeeze(!strip.squeezes)), { ...item, role: "menuitemcheckbox", title: "Show waits and pauses to scale, too" });
    this.event = button("Show this event", () => this.choose(() => strip.store.select(strip.store.rows[strip.store.position - 1] ?? null)), { ...item, role: "menuitem" });
    this.measure = button("Measure from here", () => this.choose(() => strip.range.begin(strip.time(), { follows: true })), { ...item, role: "menuitem", title: "Sum up a range of time: from here to where the playhead is moved; or drag with Shift" });
    this.id = unique();
    this.el = el("div", { class: "agentnb-strip-menu", role: "menu", "aria-label": "Strip", hidden: true }, this.real, this.event, this.measure);
    this.el.addEventListener("keydown", (event) => this.key(event));
    this.el.addEventListener("focusout", ({ relatedTarget }) => {
      if (!this.el.contains(/** @type {Node | null} */ (relatedTarget))) this.close();
    });
  }

  /** @param {number} x */
  open(x) {
    this.real.setAttribute("aria-checked", String(!this.strip.squeezes));
    this.el.hidden = false;
    this.el.style.left = `${Math.max(4, Math.min(x, this.strip.width - this.el.offsetWidth - 4))}px`;
    this.el.style.top = `${this.strip.foot}px`;
    this.real.focus();
  }

  close() {
    this.el.hidden = true;
  }

  /** @param {() => void} act */
  choose(act) {
    this.strip.slider.focus();
    this.close();
    act();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Escape" || event.key === "Tab") this.strip.slider.focus();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const items = [this.real, this.event, this.measure],
        at = items.findIndex((one) => one === document.activeElement);
      items[(at + (event.key === "ArrowDown" ? 1 : items.length - 1)) % items.length].focus();
    }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/**
 * Set attributes that have changed.
 * @param {Element} node
 * @param {Record<string, string | number>} attributes
 */
function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/**
 * @param {SVGElement} node
 * @param {boolean} shown
 */
function show(node, shown) {
  node.style.display = shown ? "" : "none";
}

/**
 * @param {Element} node
 * @param {string} words
 * @param {number} x
 * @param {number} y
 */
function text(node, words, x, y) {
  say(node, words);
  set(node, { x: round(x), y });
}

/**
 * Give a group as many texts as there are to show.
 * @param {SVGElement} group
 * @param {number} many
 */
function fitSvg(group, many) {
  return fit(/** @type {any} */ (group), many, () => /** @type {any} */ (svg("text", {})));
}

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;

/**
 * A box with round corners, as a path.
 * @param {number} x
 * @param {number} y
 * @param {number} wide
 * @param {number} high
 * @param {number} radius
 */
function box(x, y, wide, high, radius) {
  const r = Math.min(radius, wide / 2, high / 2),
    [w, h] = [round(wide - 2 * r), round(high - 2 * r)],
    corner = (/** @type {number} */ dx, /** @type {number} */ dy) => (r ? `a${r} ${r} 0 0 1 ${dx} ${dy}` : "");
  return `M${round(x + r)} ${round(y)}h${w}${corner(r, r)}v${h}${corner(-r, r)}h${-w}${corner(-r, -r)}v${-h}${corner(r, -r)}z`;
}

/**
 * The seconds of a wait, short.
 * @param {number} seconds
 */
const ago = (seconds) => (seconds >= 1 && seconds < 59.95 ? `${seconds.toFixed(1)} s` : duration(seconds));

/**
 * As much of a name as fits.
 * @param {string} name
 * @param {number} room pixels
 */
function cut(name, room) {
  const shown = visible(name),
    fits = Math.floor(room / LETTER);
  if (shown.length <= fits) return shown;
  return fits < 3 ? "" : `${shown.slice(0, fits - 1)}\u2026`;
}
