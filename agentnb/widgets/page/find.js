// The field beside the tabs that searches the visible view. A view that filters by more than a text has a field of its own.

import { icon } from "./icons.js";
import { el } from "./text.js";

export class Find {
  constructor() {
    this.part = /** @type {Part | null} */ (null); // the visible view
    this.input = el("input", { class: "agentnb-find-input", type: "search", placeholder: "Find", "aria-label": "Find", title: "Find in this view (/)" });
    this.el = el("label", { class: "agentnb-find" }, icon("find"), this.input, el("kbd", { text: "/", "aria-hidden": "true" }));
    this.input.addEventListener("input", () => this.part?.find?.(this.input.value.trim()));
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.input.value) {
        this.input.value = "";
        this.part?.find?.("");
      } else if (event.key === "Escape") return; // the panel takes the focus
      event.stopPropagation(); // the notebook has shortcuts on bare letters
    });
  }

  /**
   * Search another view from now on.
   * @param {Part} part
   */
  turnTo(part) {
    if (this.part === part) return;
    this.part?.find?.("");
    this.part = part;
    this.el.hidden = !part.find;
    part.find?.(this.input.value.trim());
  }

  focus() {
    const field = this.part?.field ?? (this.el.hidden ? null : this.input);
    field?.focus();
    field?.select();
  }
}
