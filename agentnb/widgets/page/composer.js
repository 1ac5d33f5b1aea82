// The message box below the trace, and the messages that the run has not taken yet. When the run is over, its place takes
// the sum.

import { BUSY, GONE, button, el, enable } from "./text.js";
import { isEnter } from "./keys.js";
import { Sum } from "./sum.js";

const QUEUES = /** @type {const} */ ([
  ["Steer", "The model receives the message at its next turn (Enter)"],
  ["Follow up", "The model receives the message when it would otherwise stop"],
]);

export class Composer {
  /**
   * @param {Store} store
   * @param {(answer: Done) => void} answered
   */
  constructor(store, answered) {
    this.store = store;
    this.answered = answered;
    this.busy = "";
    this.text = el("textarea", {
      class: "agentnb-input agentnb-said-to",
      rows: "1",
      "aria-label": "Message to the run",
      placeholder: "Message to the run",
      title: "Enter sends it with Steer, Shift+Enter starts a new line",
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return; // the panel takes the focus
      event.stopPropagation(); // the notebook has shortcuts on bare letters
      if (!isEnter(event) || event.shiftKey) return;
      event.preventDefault();
      this.send("Steer");
    });
    this.buttons = QUEUES.map(([name, title]) => button(name, () => this.send(name), { title }));
    this.buttons[0].append(el("kbd", { text: "\u21b5", "aria-hidden": "true" }));
    this.followUp = this.buttons[1]; // a narrow panel has it in its menu
    this.followUp.classList.add("agentnb-ghost");
    this.bar = el("div", { class: "agentnb-composer" }, this.text, ...this.buttons);
    this.sum = new Sum(store);
    this.el = el("div", {}, this.bar, this.sum.el);
  }

  /** @param {string} name */
  send(name) {
    const text = this.text.value;
    if (this.busy || !text.trim()) return;
    this.busy = name;
    this.update();
    this.store.ask({ type: "control", action: name, unit: "", text, name: "" }, (answer) => {
      this.busy = "";
      this.answered(answer);
      if (answer.ok && this.text.value === text) this.text.value = "";
      this.update();
    });
  }

  update() {
    const { store } = this,
      status = store.model.get("status") ?? {},
      over = status.over && !this.text.value; // typed text can still be copied
    this.bar.hidden = this.followUp.hidden = over;
    this.sum.el.hidden = !over;
    if (over) this.sum.update();
    this.text.readOnly = !status.can?.Steer || store.gone;
    this.text.disabled = this.text.readOnly && !this.text.value;
    QUEUES.forEach(([name], i) => {
      const off = store.gone ? GONE : this.busy ? BUSY : "The run has ended.";
      enable(this.buttons[i], status.can?.[name] && !this.busy && !store.gone, off);
      this.buttons[i].classList.toggle("agentnb-busy", this.busy === name);
    });
  }
}
