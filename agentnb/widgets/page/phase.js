// What a phase of the state diagram offers when it is pressed: its events, and a breakpoint.

import { GONE, button, el, enable, say } from "./text.js";

export class Phase {
  /**
   * @param {Store} store
   * @param {((phase: string) => void) | null} show lists the events of a phase; null if the panel has no list
   */
  constructor(store, show) {
    this.store = store;
    this.phase = "";
    this.pressed = /** @type {HTMLButtonElement | null} */ (null);
    const item = { class: "agentnb-button agentnb-ghost" };
    this.list = button("Show its events", () => {
      show?.(this.phase);
      this.close();
    }, { ...item, title: "List only the events of this phase" });
    this.stop = button("Break here", () => this.toggle(), { ...item, title: "Pause whenever a loop enters this phase" });
    this.list.hidden = !show;
    this.stop.hidden = !store.model.get("parts")?.includes("controls");
    this.el = el("div", { class: "agentnb-menu agentnb-phase-menu", role: "group", "aria-label": "Phase", hidden: true }, this.list, this.stop);
    this.el.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.close();
    });
    this.el.addEventListener("focusout", ({ relatedTarget }) => {
      if (relatedTarget instanceof Node && !this.el.contains(relatedTarget) && relatedTarget !== this.pressed) this.close();
    });
    /** @param {Event} event */
    this.elsewhere = ({ target }) => {
      if (target instanceof Node && !this.el.contains(target) && target !== this.pressed) this.close();
    };
  }

  // Whether there is anything to offer.
  offers() {
    return !this.list.hidden || !this.stop.hidden;
  }

  /** @param {HTMLButtonElement} pressed */
  open(pressed) {
    if (this.pressed === pressed) return this.close();
    this.close();
    this.phase = pressed.textContent;
    this.pressed = pressed;
    pressed.setAttribute("aria-expanded", "true");
    say(this.stop, this.breakpoint() ? "Do not break here" : "Break here");
    enable(this.stop, !this.store.gone && !this.store.model.get("status")?.over, this.store.gone ? GONE : "The run has ended.");
    this.el.hidden = false;
    const around = /** @type {HTMLElement} */ (this.el.offsetParent ?? this.el),
      place = pressed.getBoundingClientRect(),
      frame = around.getBoundingClientRect();
    this.el.style.top = `${Math.max(0, Math.min(place.bottom - frame.top + 4, frame.height - this.el.offsetHeight - 8))}px`;
    this.el.style.left = `${Math.max(4, Math.min(place.left - frame.left, frame.width - this.el.offsetWidth - 8))}px`;
    document.addEventListener("pointerdown", this.elsewhere, true);
    return this.el.querySelector("button")?.focus();
  }

  close() {
    document.removeEventListener("pointerdown", this.elsewhere, true);
    const inside = this.el.contains(document.activeElement);
    this.el.hidden = true;
    this.pressed?.removeAttribute("aria-expanded");
    if (inside) this.pressed?.focus();
    this.pressed = null;
  }

  // The breakpoint of the phase, if there is one.
  breakpoint() {
    return this.store.model.get("breakpoints")?.list?.find(({ label, enabled }) => enabled && label === `phase ${this.phase}`);
  }

  toggle() {
    const found = this.breakpoint();
    this.store.ask(
      found ? { type: "breakpoint", do: "remove", number: found.number } : { type: "breakpoint", do: "add", event: "", tool: "", phase: this.phase },
      () => {},
    );
    this.close();
  }
}
