// The position in a recording: a slider over its events, buttons, and playing at the original pace or faster. The page
// moves at once; the kernel follows, with one request at a time.

import { GONE, button, duration, el, enable, number, say, unique } from "./text.js";
import { Head } from "./head.js";
import { Notices } from "./notices.js";
import { SILENCE } from "./player.js";

const SPEEDS = [["1", "original speed"], ["4", "4 times faster"], ["20", "20 times faster"], ["0", "without pauses"]];
const AT_END = "This is the end of the recording.",
  AT_BEGINNING = "This is the beginning of the recording.",
  DEPARTED = "Here the loop decides differently than in the recording.";

export class Position {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.player = /** @type {import("./player.js").Player} */ (store.player); // only a recording has this part
    this.departure = ""; // the departure that is shown, as JSON
    this.slider = el("input", { class: "agentnb-position", type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Position" });
    this.where = el("span", { class: "agentnb-dim agentnb-position-where" });
    this.speed = el(
      "select",
      { class: "agentnb-select", "aria-label": "Speed", title: `Pauses of more than ${SILENCE} seconds are shortened to ${SILENCE} seconds` },
      ...SPEEDS.map(([value, text]) => el("option", { value, text })),
    );
    /**
     * @param {string} name
     * @param {string} title
     * @param {() => number} by gives the position
     */
    const go = (name, title, by) => button(name, () => this.go(by()), { title });
    this.first = go("First", "Before the first event", () => 0);
    this.back = go("Back", "Back by one event", () => store.position - 1);
    this.play = button("Play", () => this.player.toggle(), { title: "Play the events at the selected speed; at the end, start again" });
    this.forward = go("Forward", "Forward by one event", () => store.position + 1);
    this.last = go("Last", "After the last event", () => store.recorded());
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook's own keys
    this.speed.addEventListener("change", () => {
      this.player.speed = Number(this.speed.value);
      store.notify("position");
    });
    this.head = new Head(store);
    this.notices = new Notices(store);
    this.departs = el("section", { class: "agentnb-departs", role: "status", "aria-label": "Difference from the recording", hidden: true });
    this.el = el(
      "div",
      { class: "agentnb-top" },
      this.head.el,
      el(
        "div",
        { class: "agentnb-bar agentnb-positions", role: "group", "aria-label": "Position in the recording" },
        el("span", { class: "agentnb-set" }, this.first, this.back, this.play, this.forward, this.last, this.speed),
        this.where,
        this.slider,
      ),
      this.departs,
    );
    this.update();
  }

  dispose() {
    this.head.dispose();
  }

  /** @param {number} position */
  go(position) {
    this.player.hold();
    this.store.goTo(position);
  }

  update() {
    const { store, slider } = this,
      last = store.recorded(),
      at = store.position,
      status = store.model.get("status") ?? {},
      departs = status.diverged?.seq === at ? status.diverged : null;
    this.head.update();
    this.notices.update();
    if (Number(slider.max) !== last) slider.max = String(last);
    if (Number(slider.value) !== at) slider.value = String(at);
    slider.disabled = store.gone;
    this.showPosition(at, last, status);
    const back = at > 0 && !store.gone,
      on = !departs && !store.gone,
      ahead = store.gone ? GONE : departs ? DEPARTED : AT_END;
    for (const control of [this.first, this.back]) enable(control, back, store.gone ? GONE : AT_BEGINNING);
    for (const control of [this.forward, this.last]) enable(control, on && at < last, ahead);
    enable(this.play, (on && last > 0) || Boolean(this.player.timer), ahead);
    say(this.play, this.player.timer ? "Pause" : "Play");
    if (this.speed.value !== String(this.player.speed)) this.speed.value = String(this.player.speed);
    this.depart(departs);
  }

  /**
   * Describe the slider's position in words.
   * @param {number} at
   * @param {number} last
   * @param {Status} status
   */
  showPosition(at, last, status) {
    const { all } = this.store,
      row = all[at - 1],
      clock = this.player.clock,
      passed = duration(Math.max(0, clock - (all[0]?.time ?? clock))),
      unfinished = last > 0 && at === last && status.position === at && !status.over ? "; the recording ends before the end of the run" : "";
    const text = row ? `${number(at)} of ${number(last)}, +${passed}` : last ? `before the first of ${number(last)}` : "nothing is recorded";
    say(this.where, text);
    this.slider.setAttribute("aria-valuetext", (row ? `${text}, ${row.type.replaceAll("_", " ")}` : text) + unfinished);
    this.where.title = unfinished.slice(2);
  }

  /**
   * Where the loop's event differs from the recorded one, show both, side by side.
   * @param {Departure | null} departs
   */
  depart(departs) {
    const signature = JSON.stringify(departs);
    if (this.departure === signature) return;
    this.departure = signature;
    this.departs.hidden = !departs;
    this.departs.replaceChildren();
    if (!departs) return;
    /**
     * @param {string} words
     * @param {DepartureSide} side
     */
    const side = (words, { type, text }) => {
      const id = `agentnb-${unique()}`;
      return el(
        "div",
        { class: "agentnb-departs-side", role: "group", "aria-labelledby": id },
        el("p", { id }, el("span", { class: "agentnb-dim", text: words }), " ", el("code", { text: type })),
        text ? el("pre", { text, tabindex: "0", role: "region", "aria-labelledby": id }) : null,
      );
    };
    this.departs.append(
      el(
        "p",
        { class: "agentnb-departs-words" },
        departs.path ? el("span", { class: "agentnb-path", text: departs.path }) : null,
        `Event ${number(departs.seq)} is not what the loop does now.`,
      ),
      el("div", { class: "agentnb-departs-sides" }, side("recorded", departs.recorded), side("now", departs.expected)),
    );
  }
}
