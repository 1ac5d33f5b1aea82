// The controls of a recording: a step back, a step of some unit, and playing at the recorded pace or faster. The strip
// moves to any position. The page moves at once; the kernel follows, with one request at a time.

import { GONE, el, enable, number, say, unique } from "./text.js";
import { Exporting } from "./exporting.js";
import { Head } from "./head.js";
import { icon, iconButton, iconOnly } from "./icons.js";
import { Menu } from "./menu.js";
import { Notices } from "./notices.js";
import { SILENCE } from "./player.js";

const SPEEDS = [["1", "1\u00d7"], ["4", "4\u00d7"], ["20", "20\u00d7"], ["0", "without pauses"]];
const AT_END = "This is the end of the recording.",
  AT_BEGINNING = "This is the beginning of the recording.",
  DEPARTED = "Here the loop decides differently than in the recording.";

export class ReplayControls {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.player = /** @type {import("./player.js").Player} */ (store.player); // only a recording has this part
    this.departure = ""; // the departure that is shown, as JSON
    /**
     * @param {string} label
     * @param {string} title
     * @param {[value: string, text: string][]} options
     */
    const choice = (label, title, options) =>
      el("select", { class: "agentnb-select", "aria-label": label, title }, ...options.map(([value, text]) => el("option", { value, text })));
    this.unit = choice("Unit of a step", "", ["event", "call", "turn", "phase"].map((unit) => [unit, unit]));
    this.speed = choice("Speed", `Pauses of more than ${SILENCE} seconds are shortened to ${SILENCE} seconds`, /** @type {[string, string][]} */ (SPEEDS));
    this.back = iconOnly("back", "Back one event", () => this.go(store.position - 1), { title: "Back one event (\u2190)" });
    this.step = iconButton("step", "Step", () => this.forward(), { title: "Go to the end of the next event, call, turn or phase (S)" });
    this.play = iconButton("play", "Play", () => this.player.toggle(), { title: "Play the events at the selected speed; at the end, start again (Space)" });
    this.speed.classList.add("agentnb-speed");
    this.speed.addEventListener("change", () => {
      this.player.speed = Number(this.speed.value);
      store.notify("position");
    });
    this.head = new Head(store);
    this.notices = new Notices(store);
    this.exporting = store.isFile ? null : new Exporting(store, (answer) => this.notices.answer(answer));
    this.menu = new Menu(this.exporting?.el ?? null);
    this.menu.toggle.title = this.exporting ? "Export" : "Step";
    if (store.isFile) this.menu.toggle.classList.add("agentnb-only-narrow");
    this.departs = el("section", { class: "agentnb-departs", role: "status", "aria-label": "Difference from the recording", hidden: true });
    this.stepping = el("span", { class: "agentnb-joined" }, this.step, this.unit);
    this.head.actions.append(this.back, this.stepping, this.play, this.speed, this.menu.toggle);
    this.el = el("div", { class: "agentnb-top" }, this.head.el, this.menu.el, this.departs);
    this.menu.take(this.el, this.stepping);
    this.update();
  }

  /** @param {number} position */
  go(position) {
    this.player.hold();
    this.store.goTo(position);
  }

  forward() {
    this.player.hold();
    this.store.step(this.unit.value);
  }

  update() {
    const { store } = this,
      last = store.recorded(),
      at = store.position,
      status = store.model.get("status") ?? {},
      departs = status.diverged?.seq === at ? status.diverged : null;
    this.head.update();
    this.notices.update();
    this.exporting?.update();
    const on = !departs && !store.gone,
      ahead = store.gone ? GONE : departs ? DEPARTED : AT_END;
    enable(this.back, at > 0, AT_BEGINNING);
    enable(this.step, on && at < last, ahead);
    enable(this.play, (on && last > 0) || Boolean(this.player.timer), ahead);
    this.namePlay(this.player.timer ? "Pause" : "Play");
    if (this.speed.value !== String(this.player.speed)) this.speed.value = String(this.player.speed);
    this.depart(departs);
  }

  /** @param {"Play" | "Pause"} name */
  namePlay(name) {
    const [picture, words] = this.play.children;
    if (words.textContent === name) return;
    picture.replaceWith(icon(name.toLowerCase()));
    say(words, name);
  }

  dispose() {
    this.head.dispose();
    this.menu.dispose();
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
