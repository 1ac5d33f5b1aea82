// The menu of the panel: what is needed now and then. Ending the run is apart, and asks first.

import { iconOnly } from "./icons.js";
import { button, el, say, unique } from "./text.js";

const ROOM_FOR_ALL = 480; // pixels: a narrower panel keeps in its menu what it has no room for

export class Menu {
  /**
   * @param {...(HTMLElement | null)} items
   */
  constructor(...items) {
    this.taken = /** @type {{ node: HTMLElement, item: HTMLElement, home: Comment }[]} */ ([]); // what a narrow panel has here
    this.sized = new ResizeObserver(([{ contentRect }]) => this.fit(contentRect.width));
    this.el = el("div", { class: "agentnb-menu", role: "group", "aria-label": "More", id: `agentnb-${unique()}`, hidden: true }, ...items);
    this.toggle = iconOnly("more", "More", () => this.show(Boolean(this.el.hidden)), {
      "aria-expanded": "false",
      "aria-controls": this.el.id,
      title: "Snapshot, Fork, Breakpoints, Export, Cancel",
    });
    this.el.addEventListener("keydown", (event) => this.key(event));
    for (const node of [this.el, this.toggle])
      node.addEventListener("focusout", (event) => {
        const { relatedTarget } = /** @type {FocusEvent} */ (event);
        if (relatedTarget instanceof Node && !this.holds(relatedTarget)) this.show(false);
      });
    /** @param {Event} event */
    this.elsewhere = ({ target }) => {
      if (!this.holds(/** @type {Node} */ (target))) this.show(false);
    };
  }

  /**
   * Keep elements in the menu while the panel is narrow. They are where they should be in a wide one.
   * @param {HTMLElement} panel an element as wide as the panel
   * @param {...HTMLElement} nodes
   */
  take(panel, ...nodes) {
    for (const node of nodes.reverse()) {
      const home = document.createComment(""),
        item = el("div", { class: "agentnb-menu-item", hidden: true });
      node.before(home);
      this.el.prepend(item);
      this.taken.push({ node, item, home });
    }
    this.sized.observe(panel);
  }

  /** @param {number} width */
  fit(width) {
    if (!width) return; // it has no layout
    for (const { node, item, home } of this.taken) {
      const isNarrow = width < ROOM_FOR_ALL;
      if (item.hidden === !isNarrow) continue;
      item.hidden = !isNarrow;
      if (isNarrow) item.append(node);
      else home.after(node);
    }
  }

  dispose() {
    this.show(false);
    this.sized.disconnect();
  }

  /** @param {Node} node */
  holds(node) {
    return this.el.contains(node) || this.toggle.contains(node);
  }

  /** @param {boolean} shown */
  show(shown) {
    if (this.el.hidden === !shown) return;
    this.el.hidden = !shown;
    this.toggle.setAttribute("aria-expanded", String(shown));
    if (shown) document.addEventListener("pointerdown", this.elsewhere, true);
    else document.removeEventListener("pointerdown", this.elsewhere, true);
    if (shown) this.el.querySelector("button")?.focus();
  }

  close() {
    const inside = this.el.contains(document.activeElement);
    this.show(false);
    if (inside) this.toggle.focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.close();
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const buttons = [...this.el.querySelectorAll("button")].filter((one) => one.getClientRects().length),
      at = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement)),
      by = event.key === "ArrowDown" ? 1 : -1;
    buttons[(at + by + buttons.length) % buttons.length]?.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}

// The button that ends the run. It asks whether that is meant.
export class Cancelling {
  /** @param {() => void} cancel */
  constructor(cancel) {
    this.button = button("Cancel", () => this.ask(true), { class: "agentnb-button agentnb-ghost agentnb-danger", title: "End the run permanently" });
    this.words = el("p", {}, el("b", { class: "agentnb-isolated" }), el("span", { text: " It ends for good." }));
    this.sure = button("Cancel run", () => {
      this.ask(false);
      cancel();
    }, { class: "agentnb-button agentnb-danger" });
    this.asking = el(
      "div",
      { class: "agentnb-cancelling", role: "group", "aria-label": "Cancel the run", hidden: true },
      this.words,
      el("div", { class: "agentnb-set" }, this.sure, button("Keep it", () => this.ask(false, true))),
    );
    this.asking.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.ask(false, true);
    });
    this.el = el("div", { class: "agentnb-apart" }, this.button, this.asking);
  }

  /**
   * @param {boolean} asks
   * @param {boolean} [back] whether the focus goes back to the button
   */
  ask(asks, back = false) {
    this.asking.hidden = !asks;
    this.button.hidden = asks;
    if (asks) this.sure.focus();
    if (back) this.button.focus();
  }

  /** @param {string} name */
  name(name) {
    if (this.words.firstChild) say(this.words.firstChild, `Cancel ${name}?`);
  }
}
