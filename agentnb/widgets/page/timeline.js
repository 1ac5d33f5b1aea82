// The timeline: a row for each thing that took time, to scale. Only the rows in view are drawn; what is open grows.

import { button, count, el, say, unique, visible } from "./text.js";
import { ROW } from "./row.js";
import { duration } from "./trace.js";

const AROUND = 8;
const TICKS = 5; // on the scale, about
const GROWS = 250; // milliseconds between two drawings while nothing happens but time
const SPOKEN = { loop: "loop", model: "model", call: "call", pause: "run" };

export class Timeline {
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.pool = [];
    this.follow = true;
    this.selected = null; // a thing
    this.id = unique();
    this.scale = el(
      "select",
      { class: "agentnb-select", "aria-label": "Scale of the timeline" },
      el("option", { value: "", text: "whole run" }),
      el("option", { value: "view", text: "what is in view" }),
    );
    this.count = el("span", { class: "agentnb-dim agentnb-amount" });
    this.latest = button(
      "Latest",
      () => {
        this.follow = true;
        this.draw();
      },
      { class: "agentnb-link" },
    );
    const sign = (kind, words) =>
      el("span", { class: "agentnb-sign" }, el("span", { class: "agentnb-stretch", "data-kind": kind }), words);
    const legend = el(
      "span",
      { class: "agentnb-legend agentnb-dim", "aria-hidden": "true" },
      ...[["loop", "loop"], ["model", "model"], ["call", "call"], ["wait", "waits for you"]].map((pair) => sign(...pair)),
    );
    this.ticks = el("div", { class: "agentnb-ticks", "aria-hidden": "true" });
    this.spacer = el("div", {
      class: "agentnb-spacer",
      role: "listbox",
      tabindex: "0",
      "aria-label": "Timeline, first begun first",
      "data-lm-suppress-shortcuts": "true",
    });
    this.empty = el("p", { class: "agentnb-empty", text: "Nothing has taken time yet." });
    this.log = el("div", { class: "agentnb-log" }, this.empty, this.spacer); // a list box has options in it and nothing else
    this.el = el(
      "div",
      { class: "agentnb-events agentnb-timeline", role: "group", "aria-label": "Timeline" },
      el("div", { class: "agentnb-filter" }, this.scale, this.count, legend, this.latest),
      el("div", { class: "agentnb-axis" }, el("span"), this.ticks),
      this.log,
    );
    this.scale.addEventListener("change", () => this.draw());
    this.log.addEventListener(
      "scroll",
      () => {
        this.follow = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - ROW / 2;
        this.draw();
      },
      { passive: true },
    );
    this.spacer.addEventListener("click", (event) => this.click(event));
    this.spacer.addEventListener("keydown", (event) => this.key(event));
    this.draw();
  }

  update() {
    this.draw();
  }

  // Time goes on for what is open while somebody drives the run; a recording's clock stands still.
  now() {
    const { trace, model, gone } = this.store,
      status = model.get("status") ?? {};
    const lives = trace.open.size && status.can?.Pause && !gone;
    return lives ? Math.max(trace.last, this.store.now()) : trace.last;
  }

  draw() {
    const things = this.store.trace.order(),
      height = `${things.length * ROW}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
    if (this.follow) this.log.scrollTop = things.length * ROW;
    const top = Math.floor(this.log.scrollTop / ROW),
      seen = Math.ceil((this.log.clientHeight || 280) / ROW);
    const start = Math.max(0, top - AROUND),
      end = Math.min(things.length, top + seen + AROUND);
    while (this.pool.length < end - start) {
      this.pool.push(new Bar(`agentnb-${this.id}-${this.pool.length}`));
      this.spacer.append(this.pool.at(-1).el);
    }
    while (this.pool.length > Math.max(0, end - start)) this.pool.pop().el.remove();
    const now = this.now(),
      [from, to] = this.span(things.slice(top, top + seen), now);
    const { began } = this.store.trace;
    this.pool.forEach((bar, i) =>
      bar.show(things[start + i], start + i, things.length, { from, to, now, began }, things[start + i] === this.selected),
    );
    this.drawTicks(from - began, to - began);
    const active = this.pool.find((bar) => bar.thing === this.selected);
    if (active) this.spacer.setAttribute("aria-activedescendant", active.el.id);
    else this.spacer.removeAttribute("aria-activedescendant");
    this.empty.hidden = things.length > 0;
    say(this.count, `${count(things.length, "row")}, ${duration(Math.max(0, now - began))}`);
    this.latest.hidden = this.follow || things.length * ROW <= this.log.clientHeight;
    clearTimeout(this.timer);
    if (now > this.store.trace.last) this.timer = setTimeout(() => this.isSeen() && this.draw(), GROWS);
  }

  isSeen() {
    return this.el.isConnected && this.el.getClientRects().length > 0;
  }

  span(seen, now) {
    const { began } = this.store.trace;
    // What is in view: without the loops, which last as long as everything in them.
    const inner = seen.filter((thing) => thing.kind !== "loop");
    if (!this.scale.value || !inner.length) return [began, Math.max(now, began + 0.001)];
    const from = Math.min(...inner.map((thing) => thing.opened)),
      to = Math.max(...inner.map((thing) => thing.ended ?? now));
    return [from, Math.max(to, from + 0.001)];
  }

  drawTicks(from, to) {
    const step = niceStep((to - from) / TICKS),
      first = Math.ceil(from / step - 1e-9),
      ticks = [];
    for (let i = first; i * step <= to && ticks.length < 3 * TICKS; i++) ticks.push(i * step);
    while (this.ticks.children.length > ticks.length) this.ticks.lastChild.remove();
    while (this.ticks.children.length < ticks.length) this.ticks.append(el("span", { class: "agentnb-tick" }));
    ticks.forEach((tick, i) => {
      say(this.ticks.children[i], tick ? `+${tickWords(tick, step)}` : "0");
      this.ticks.children[i].style.left = `${(100 * (tick - from)) / (to - from)}%`;
    });
  }

  click(event) {
    const row = event.target.closest("[data-row]");
    if (!row) return;
    this.selected = this.store.trace.order()[Number(row.dataset.row)];
    const stretch = event.target.dataset.stretch;
    this.go(stretch === undefined ? this.selected.position : this.selected.stretches[stretch].position);
  }

  key(event) {
    const things = this.store.trace.order(),
      at = this.selected ? things.indexOf(this.selected) : -1,
      page = Math.max(1, Math.floor(this.log.clientHeight / ROW) - 1),
      last = things.length - 1;
    if (event.key === "Enter" && this.selected) this.go(this.selected.position);
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? last : at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: last,
      Enter: at,
    }[event.key];
    if (to === undefined || last < 0 || (event.key === "Enter" && at < 0)) return;
    const chosen = Math.max(0, Math.min(last, to));
    this.selected = things[chosen];
    this.follow = chosen === last;
    const y = chosen * ROW;
    if (y < this.log.scrollTop) this.log.scrollTop = y;
    else if (y + ROW > this.log.scrollTop + this.log.clientHeight) this.log.scrollTop = y + ROW - this.log.clientHeight;
    this.draw();
    event.preventDefault();
    event.stopPropagation();
  }

  dispose() {
    clearTimeout(this.timer);
  }
}

class Bar {
  constructor(id) {
    this.name = el("span", { class: "agentnb-thing" });
    this.took = el("span", { class: "agentnb-took" });
    this.open = el("span", { class: "agentnb-open" });
    this.track = el("span", { class: "agentnb-track" }, this.open);
    this.stretches = [];
    this.el = el("div", { class: "agentnb-row", role: "option", id }, this.name, this.took, this.track);
  }

  show(thing, at, length, span, selected) {
    const { el: node } = this,
      end = thing.ended ?? span.now;
    this.thing = thing;
    node.dataset.row = at;
    node.dataset.group = thing.failed ? "error" : { pause: "approval", loop: "run" }[thing.kind] ?? thing.kind;
    node.dataset.kind = thing.kind;
    node.style.transform = `translateY(${at * ROW}px)`;
    say(this.name, thing.name);
    this.name.style.paddingLeft = `${Math.min(6, thing.depth) * 12}px`;
    say(this.took, duration(Math.max(0, end - thing.opened)));
    place(this.open, thing.opened, end, span);
    this.open.hidden = thing.kind === "loop";
    while (this.stretches.length > thing.stretches.length) this.stretches.pop().remove();
    while (this.stretches.length < thing.stretches.length) {
      this.stretches.push(el("span", { class: "agentnb-stretch", "data-stretch": this.stretches.length }));
      this.track.append(this.stretches.at(-1));
    }
    thing.stretches.forEach((stretch, i) => {
      const part = this.stretches[i];
      part.dataset.kind = stretch.kind === "wait" ? "wait" : thing.kind;
      part.classList.toggle("agentnb-going", stretch.end === null);
      place(part, stretch.start, stretch.end ?? span.now, span);
    });
    const told = visible(spoken(thing, end, span));
    if (node.getAttribute("aria-label") !== told) {
      node.setAttribute("aria-label", told);
      node.title = told;
    }
    node.setAttribute("aria-selected", String(selected));
    node.setAttribute("aria-posinset", at + 1);
    node.setAttribute("aria-setsize", length);
  }
}

function place(part, start, end, { from, to }) {
  const left = Math.max(0, (start - from) / (to - from)),
    right = Math.min(1, (end - from) / (to - from));
  part.style.display = right < 0 || left > 1 ? "none" : "";
  part.style.left = `min(${100 * left}%, 100% - 2px)`;
  part.style.width = `max(2px, ${100 * Math.max(0, right - left)}%)`;
}

function spoken(thing, end, { began }) {
  const waited = thing.stretches
    .filter(({ kind }) => kind === "wait")
    .reduce((sum, part) => sum + (part.end ?? end) - part.start, 0);
  return [
    `${SPOKEN[thing.kind]} ${thing.name}${thing.path && thing.kind !== "loop" ? ` in ${thing.path}` : ""}`,
    `from +${duration(Math.max(0, thing.opened - began))}`,
    thing.ended === null ? "not over" : duration(Math.max(0, end - thing.opened)),
    waited && thing.kind === "call" ? `waiting for you ${duration(waited)}` : "",
    thing.failed ? "failed" : "",
    thing.kind === "model" && thing.calls ? count(thing.calls, "call") : "",
  ]
    .filter(Boolean)
    .join(", ");
}

function niceStep(rough) {
  if (rough > 40) {
    const minutes = [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200].find((step) => step >= rough);
    return minutes ?? 86400 * Math.ceil(rough / 86400);
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999) * power;
}

function tickWords(tick, step) {
  if (step >= 60) return duration(tick);
  if (step < 0.001) return `${(tick * 1000).toFixed(2)} ms`;
  return step < 0.1 ? `${Math.round(tick * 1000)} ms` : `${tick.toFixed(step < 1 ? 1 : 0)} s`;
}
