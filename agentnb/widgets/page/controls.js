// The head of the panel: the run's status, the buttons that drive it, and the message box.

import { BUSY, GONE, button, el, enable, say } from "./text.js";
import { Breakpoints } from "./breakpoints.js";
import { Head } from "./head.js";
import { isEnter } from "./keys.js";

const PLAYING = "The run is playing. Pause it first.";
// The purpose of each button, and why it may be off.
const BUTTONS = [
  ["Step", "Run one step, then pause", PLAYING],
  ["Play", "Run until the end, a breakpoint or Pause", PLAYING],
  ["Pause", "Pause before the next step; requests and calls in flight finish first", "The run is not playing, or it is already pausing."],
  ["Cancel", "End the run permanently", "The run is being cancelled."],
  ["Snapshot", "Save the current state of the run, to continue from it later", ""],
  ["Fork", "Start another run from here; this run does not change", "The run has no events yet."],
  ["Steer", "The model receives the message at its next turn", ""],
  ["Follow up", "The model receives the message when it would otherwise stop", ""],
];

export class Controls {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.head = new Head(store, (answer) => this.showAnswer(answer));
    this.note = el("p", { class: "agentnb-note", role: "status" });
    this.breakpoints = new Breakpoints(store);
    this.snapshotName = el("input", {
      class: "agentnb-input agentnb-snapshot-name",
      type: "text",
      "aria-label": "Name of the snapshot (optional)",
      placeholder: "name",
    });
    this.forkAt = el("span", { class: "agentnb-dim agentnb-fork-at" });
    this.unit = el(
      "select",
      { class: "agentnb-select", "aria-label": "Unit of a step" },
      ...["event", "call", "turn", "phase"].map((unit) => el("option", { value: unit, text: unit })),
    );
    this.text = el("textarea", {
      class: "agentnb-input agentnb-said-to",
      rows: "1",
      "aria-label": "Message to the run",
      placeholder: "Message to the run",
      title: "Enter sends it with Steer, Shift+Enter starts a new line",
    });
    this.busy = new Set();
    this.buttons = Object.fromEntries(
      BUTTONS.map(([name, title]) => [name, button(name, () => this.press(name), { title })]),
    );
    this.text.addEventListener("keydown", (event) => {
      event.stopPropagation(); // the notebook has shortcuts on bare letters
      if (!isEnter(event) || event.shiftKey) return;
      event.preventDefault();
      this.press("Steer");
    });
    this.snapshotName.addEventListener("keydown", (event) => {
      if (isEnter(event)) this.press("Snapshot");
      event.stopPropagation();
    });
    const { Step, Play, Pause, Cancel, Snapshot, Fork } = this.buttons;
    this.fork = el("span", { class: "agentnb-fork", hidden: true }, Fork, this.forkAt);
    this.el = el(
      "div",
      { class: "agentnb-top" },
      this.head.el,
      this.head.where,
      el(
        "div",
        { class: "agentnb-bar" },
        el(
          "div",
          { class: "agentnb-set" },
          el("span", { class: "agentnb-joined" }, Step, this.unit),
          Play,
          Pause,
          Cancel,
          el("span", { class: "agentnb-joined" }, Snapshot, this.snapshotName),
          this.fork,
          this.breakpoints.toggle,
        ),
        el("div", { class: "agentnb-set agentnb-talk" }, this.text, this.buttons.Steer, this.buttons["Follow up"]),
      ),
      ...this.head.below,
      this.note,
      this.breakpoints.el,
    );
    this.update();
  }

  /** @param {string} name */
  press(name) {
    const talking = name === "Steer" || name === "Follow up";
    const text = this.text.value;
    if (this.busy.has(name) || (talking && !text.trim())) return;
    this.busy.add(name);
    this.update();
    const more = {
      unit: this.unit.value,
      text: talking ? text : "",
      name: this.snapshotName.value,
      at: this.store.selected?.seq,
    };
    this.store.ask({ type: "control", action: name, ...more }, (answer) => {
      this.busy.delete(name);
      this.showAnswer(answer);
      if (talking && answer.ok && this.text.value === text) this.text.value = "";
      if (name === "Snapshot" && answer.ok && this.snapshotName.value === more.name) this.snapshotName.value = "";
      this.update();
    });
  }

  /** @param {Done} answer */
  showAnswer(answer) {
    say(this.note, answer.ok ? (answer.note ?? "") : answer.error);
    this.note.classList.toggle("agentnb-bad", !answer.ok);
  }

  /** @param {News} [what] */
  update(what) {
    if (what === "breakpoints") return this.breakpoints.update();
    this.head.update();
    const status = this.store.model.get("status") ?? {};
    for (const [name, , why] of BUTTONS) {
      const control = this.buttons[name],
        off = this.store.gone ? GONE : this.busy.has(name) ? BUSY : status.over ? "The run has ended." : why;
      enable(control, status.can?.[name] && !this.busy.has(name) && !this.store.gone, off);
      control.classList.toggle("agentnb-busy", this.busy.has(name));
    }
    this.text.readOnly = !status.can?.Steer || this.store.gone;
    this.text.disabled = this.text.readOnly && !this.text.value; // typed text can still be copied
    this.fork.hidden = status.can?.Fork === undefined;
    say(this.forkAt, this.store.selected ? `at #${this.store.selected.seq}` : "at the newest event");
    return undefined;
  }
}
