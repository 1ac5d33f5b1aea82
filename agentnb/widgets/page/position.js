// Where a recording is looked at: a slider over its events, buttons, and playing at the pace it had or faster. What is
// in the page is moved at once; the kernel follows, with one question on its way at a time.

import { GONE, button, el, enable, number, say, visible } from "./text.js";
import { duration } from "./trace.js";

const SPEEDS = [["1", "as it was"], ["4", "4 times faster"], ["20", "20 times faster"], ["0", "without pauses"]];
const LONGEST = 3; // seconds: of a pause that is played; a person may have thought for an hour
const AT_ONCE = 30; // events a second, without pauses
const LINE = 1200; // characters of what is being said: its end

export class Position {
  constructor(store) {
    this.store = store;
    this.slider = el("input", { class: "agentnb-position", type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Position" });
    this.name = el("strong", { class: "agentnb-name" });
    this.loop = el("span", { class: "agentnb-dim" });
    this.chip = el("span", { class: "agentnb-chip" });
    this.where = el("span", { class: "agentnb-dim agentnb-position-where" });
    this.speed = el(
      "select",
      { class: "agentnb-select", "aria-label": "Speed" },
      ...SPEEDS.map(([value, text]) => el("option", { value, text })),
    );
    const go = (name, title, by) => button(name, () => this.go(by()), { title });
    this.first = go("First", "Before the first event", () => 0);
    this.back = go("Back", "Back by one event", () => store.position - 1);
    this.play = button("Play", () => this.toggle(), { title: "Go through the events as they came" });
    this.forward = go("Forward", "On by one event", () => store.position + 1);
    this.last = go("Last", "Behind the last event", () => store.recorded());
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook's own keys
    this.asked = el("ul", { class: "agentnb-asked", "aria-label": "Waited for a decision", hidden: true });
    this.el = el(
      "div",
      { class: "agentnb-top" },
      el("div", { class: "agentnb-head" }, el("div", { class: "agentnb-title" }, this.name, this.loop), this.chip),
      el(
        "div",
        { class: "agentnb-bar agentnb-positions", role: "group", "aria-label": "Position in the recording" },
        el("span", { class: "agentnb-set" }, this.first, this.back, this.play, this.forward, this.last, this.speed),
        this.slider,
        this.where,
      ),
      this.asked,
    );
    this.update();
  }

  go(position) {
    this.stop();
    this.store.goTo(position);
  }

  update() {
    const { store, slider } = this,
      last = store.recorded(),
      at = store.position,
      status = store.model.get("status") ?? {};
    say(this.name, status.run || status.id);
    say(this.loop, `${status.loop}, recorded`);
    say(this.chip, status.standing);
    this.chip.dataset.standing = visible(status.standing);
    if (Number(slider.max) !== last) slider.max = last;
    if (Number(slider.value) !== at) slider.value = at;
    const row = store.all[at - 1],
      told = row ? `${number(at)} of ${number(last)}, +${duration(Math.max(0, row.time - store.all[0].time))}` : `before the first of ${number(last)}`;
    slider.setAttribute("aria-valuetext", row ? `${told}, ${row.type.replaceAll("_", " ")}` : told);
    say(this.where, told);
    for (const [control, can] of [[this.first, at > 0], [this.back, at > 0], [this.forward, at < last], [this.last, at < last]])
      enable(control, can, at > 0 ? "This is the end of the recording." : "This is its beginning.");
    this.ask(store.model.get("pending") ?? []);
    enable(this.play, at < last || Boolean(this.timer), store.gone ? GONE : "This is the end of the recording.");
    say(this.play, this.timer ? "Pause" : "Play");
  }

  // What the person was asked at that moment. It was decided then; a fork decides otherwise.
  ask(items) {
    const signature = JSON.stringify(items.map(({ id, digest }) => [id, digest]));
    if (this.told === signature) return;
    this.told = signature;
    this.asked.replaceChildren(
      ...items.map(({ path, name, arguments: given, why }) =>
        el(
          "li",
          {},
          el("span", { class: "agentnb-path", text: path }),
          el("strong", { text: name }),
          el("code", { class: "agentnb-brief", text: given.replace(/\s+/g, " ") }),
          el("span", { class: "agentnb-dim", text: why }),
        ),
      ),
    );
    this.asked.hidden = !items.length;
  }

  toggle() {
    if (this.timer) this.stop();
    else this.next();
    this.update();
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.store.speak([]);
  }

  // The next event comes after the pause there was before it; what a model said comes as it was typed meanwhile.
  next() {
    const { store } = this,
      rows = store.all,
      at = store.position,
      row = rows[at];
    if (!row) {
      this.stop();
      return this.update();
    }
    const speed = Number(this.speed.value),
      pause = at && speed ? Math.min(LONGEST, Math.max(0, row.time - rows[at - 1].time)) / speed : 1 / AT_ONCE;
    this.began = performance.now();
    this.until = this.began + 1000 * pause;
    const tick = () => {
      const left = this.until - performance.now();
      if (left > 0) {
        this.type(row, rows[at - 1], speed);
        this.timer = setTimeout(tick, Math.min(left, 50));
        return;
      }
      store.speak([]);
      store.goTo(at + 1);
      this.next();
      this.update();
    };
    this.timer = setTimeout(tick, 0);
  }

  type(row, before, speed) {
    const { data } = row,
      text = data?.message?.content;
    if (row.type !== "model_end" || !speed || typeof text !== "string" || !data.timing?.length) return;
    const whole = 1000 * Math.max(0, row.time - (before?.time ?? row.time)),
      share = (performance.now() - this.began) / Math.max(1, this.until - this.began);
    let typed = 0;
    for (const [milliseconds, characters] of data.timing) if (milliseconds <= share * whole) typed += characters;
    const said = text.slice(0, typed);
    this.store.speak(said ? [{ kind: "text", path: row.path ?? "", name: "", text: said.slice(-LINE), length: typed }] : []);
  }

  dispose() {
    clearTimeout(this.timer);
  }
}
