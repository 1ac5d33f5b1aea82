// The buttons that drive the run, in the head of the panel and in its menu.

import { BUSY, GONE, button, el, enable, say } from "./text.js";
import { Breakpoints } from "./breakpoints.js";
import { Composer } from "./composer.js";
import { Dock } from "./dock.js";
import { Exporting } from "./exporting.js";
import { Head } from "./head.js";
import { icon, iconButton } from "./icons.js";
import { isEnter } from "./keys.js";
import { Cancelling, Menu } from "./menu.js";
import { Notices } from "./notices.js";

const IS_PLAYING = "The run is playing. Pause it first.";
// What the one button that plays and pauses is now: its action, its name, its icon and its purpose.
const TO_PLAY = /** @type {const} */ (["Play", "Play", "play", "Run until the end, a breakpoint or Pause (Space)"]),
  TO_PAUSE = /** @type {const} */ (["Pause", "Pause", "pause", "Pause before the next step; requests and calls in flight finish first (Space)"]),
  TO_ASK_AGAIN = /** @type {const} */ (["Play", "Ask again", "play", "Send the request again (Space)"]),
  TO_REPLAY = /** @type {const} */ (["Replay", "Replay", "play", "Play the recorded events again, from the first one; nothing is executed (Space)"]);
// Why each button may be off.
const WHY_OFF = /** @type {const} */ ([
  ["Step", IS_PLAYING],
  ["Cancel", "The run is being cancelled."],
  ["Snapshot", ""],
  ["Fork", "The run has no events yet."],
]);

export class Controls {
  /**
   * @param {Store} store
   * @param {import("./help.js").Help} help
   * @param {(answered: (answer: Answers["replay"]) => void) => void} replay opens the replay of the run
   */
  constructor(store, help, replay) {
    this.store = store;
    this.replay = replay;
    this.head = new Head(store);
    this.notices = new Notices(store);
    this.composer = new Composer(store, (answer) => this.notices.answer(answer));
    this.breakpoints = new Breakpoints(store);
    this.busy = new Set();
    this.action = /** @type {typeof TO_PLAY | typeof TO_PAUSE | typeof TO_ASK_AGAIN | typeof TO_REPLAY} */ (TO_PLAY);
    this.unit = el(
      "select",
      { class: "agentnb-select", "aria-label": "Unit of a step" },
      ...["event", "call", "turn", "phase"].map((unit) => el("option", { value: unit, text: unit })),
    );
    this.step = iconButton("step", "Step", () => this.press("Step"), { title: "Run one step, then pause (S)" });
    this.playing = iconButton("play", "Play", () => this.press(this.action[0]), { title: TO_PLAY[3] });
    this.snapshotName = el("input", {
      class: "agentnb-input agentnb-snapshot-name",
      type: "text",
      "aria-label": "Name of the snapshot (optional)",
      placeholder: "name",
    });
    this.snapshotName.addEventListener("keydown", (event) => {
      if (isEnter(event)) this.press("Snapshot");
      if (event.key !== "Escape") event.stopPropagation();
    });
    const item = { class: "agentnb-button agentnb-ghost" };
    this.snapshot = button("Snapshot", () => this.press("Snapshot"), { ...item, title: "Save the current state of the run, to continue from it later" });
    this.fork = button("Fork", () => this.press("Fork"), { ...item, title: "Start another run from here; this run does not change" });
    this.forkAt = el("span", { class: "agentnb-dim" });
    this.forking = el("div", { class: "agentnb-menu-item", hidden: true }, icon("fork"), this.fork, this.forkAt);
    this.cancelling = new Cancelling(() => this.press("Cancel"));
    this.exporting = new Exporting(store, (answer) => this.notices.answer(answer));
    this.breakpoints.toggle.classList.add("agentnb-ghost");
    this.menu = new Menu(
      el("div", { class: "agentnb-menu-item" }, icon("ribbon"), this.snapshot, this.snapshotName),
      this.forking,
      el("div", { class: "agentnb-menu-item" }, icon("stop"), this.breakpoints.toggle),
      this.exporting.el,
      this.cancelling.el,
    );
    this.buttons = { Step: this.step, Cancel: this.cancelling.button, Snapshot: this.snapshot, Fork: this.fork };
    this.dock = new Dock();
    this.stepping = el("span", { class: "agentnb-joined" }, this.step, this.unit);
    this.head.actions.append(this.stepping, this.playing, this.dock.button, this.menu.toggle);
    this.menu.el.insertBefore(
      el("div", { class: "agentnb-menu-item" }, el("kbd", { text: "?", "aria-hidden": "true" }), button("Keys", () => {
        this.menu.close();
        help.open();
      }, { ...item, title: "The keys of the panel (?)" })),
      this.cancelling.el,
    );
    this.el = el("div", { class: "agentnb-top" }, this.head.el, this.menu.el, this.breakpoints.el);
    this.menu.take(this.el, this.stepping, this.composer.followUp);
    this.composer.followUp.addEventListener("click", () => this.menu.close());
    this.update();
  }

  /** @param {string} name the action */
  press(name) {
    if (this.busy.has(name)) return undefined;
    this.busy.add(name);
    this.update();
    if (name === "Replay")
      return this.replay((answer) => {
        this.busy.delete(name);
        this.notices.answer(answer.ok ? { ok: true } : answer);
        this.update();
      });
    const more = { unit: this.unit.value, text: "", name: this.snapshotName.value, at: this.store.selected?.seq };
    this.store.ask({ type: "control", action: name, ...more }, (answer) => {
      this.busy.delete(name);
      this.notices.answer(answer);
      if (name === "Snapshot" && answer.ok && this.snapshotName.value === more.name) this.snapshotName.value = "";
      this.update();
    });
    if (["Snapshot", "Fork", "Cancel"].includes(name)) this.menu.close();
    return undefined;
  }

  /** @param {News} [what] */
  update(what) {
    if (what === "breakpoints") this.breakpoints.update();
    const { store } = this,
      status = store.model.get("status") ?? {};
    this.head.update();
    this.notices.update();
    this.composer.update();
    this.exporting.update();
    this.drive(status);
    this.dock.update(Boolean(status.over));
    for (const [name, why] of WHY_OFF) {
      const control = this.buttons[name];
      enable(control, status.can?.[name] && !this.busy.has(name) && !store.gone, this.off(name, why));
      control.classList.toggle("agentnb-busy", this.busy.has(name));
    }
    this.cancelling.name(status.name ?? "");
    this.forking.hidden = status.can?.Fork === undefined;
    say(this.forkAt, store.selected ? `at #${store.selected.seq}` : "at the newest event");
  }

  /**
   * Give the button that plays and pauses the name of what it does now. It is filled when the run waits for it. A run that
   * is over cannot be stepped: it is replayed.
   * @param {Status} status
   */
  drive(status) {
    const fails = status.sign === "failed" && !status.over && !status.can?.Pause,
      [action, name, drawn, purpose] = (this.action = status.can?.Pause ? TO_PAUSE : status.over ? TO_REPLAY : fails ? TO_ASK_AGAIN : TO_PLAY),
      can = Boolean(status.over || status.can?.[action]) && !this.busy.has(action) && !this.store.gone,
      [picture, words] = this.playing.children;
    if (this.playing.dataset.does !== name) {
      this.playing.dataset.does = name;
      picture.replaceWith(icon(drawn));
      say(words, name);
      /** @type {Control} */ (this.playing).purpose = purpose;
    }
    this.stepping.hidden = Boolean(status.over);
    enable(this.playing, can, this.off(action, "The run is already pausing."));
    this.playing.classList.toggle("agentnb-primary", can && action === "Play" && !status.waiting);
    this.playing.classList.toggle("agentnb-busy", this.busy.has(action));
  }

  /**
   * Why a button is off.
   * @param {string} name
   * @param {string} why
   */
  off(name, why) {
    return this.store.gone ? GONE : this.busy.has(name) ? BUSY : this.store.model.get("status")?.over ? "The run has ended." : why;
  }

  // Press the button that plays and pauses, or Step, if it is on.
  play() {
    if (this.playing.getAttribute("aria-disabled") === "false") this.press(this.action[0]);
  }
  stepOnce() {
    if (this.step.getAttribute("aria-disabled") === "false") this.press("Step");
  }

  dispose() {
    this.head.dispose();
    this.menu.dispose();
  }
}
