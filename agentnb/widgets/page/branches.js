// The branches of the run: what each is called, where it departs and how it ended, with what a person can do with it.

import { button, count, el, fitParts, say } from "./text.js";
import { isEnter } from "./keys.js";
import { icon } from "./icons.js";

const NEWEST = 3; // branches that are listed; the others follow on demand

export class Branches {
  /**
   * @param {Store} store
   * @param {{ open: (branch: BranchState) => void, compare: (branch: BranchState) => void }} acts
   */
  constructor(store, acts) {
    this.store = store;
    this.acts = acts;
    this.whole = false;
    this.lines = /** @type {BranchLine[]} */ ([]);
    this.list = el("ul", { class: "agentnb-branch-list", "aria-label": "Branches" });
    this.more = button("", () => this.toggle(), { class: "agentnb-link agentnb-more-branches", hidden: true });
    this.el = el("div", { class: "agentnb-branches", hidden: true }, this.list, this.more);
    this.update();
  }

  toggle() {
    this.whole = !this.whole;
    this.update();
  }

  update() {
    const all = this.store.model.get("branches") ?? [],
      shown = this.whole ? all : all.slice(-NEWEST);
    this.el.hidden = !all.length;
    fitParts(this.lines, this.list, shown.length, () => new BranchLine(this.store, this.acts));
    this.lines.forEach((line, i) => line.show(shown[i]));
    this.more.hidden = all.length <= NEWEST;
    this.more.setAttribute("aria-expanded", String(this.whole));
    say(this.more, this.whole ? "show the newest three only" : `and ${all.length - NEWEST} more`);
  }
}

class BranchLine {
  /**
   * @param {Store} store
   * @param {{ open: (branch: BranchState) => void, compare: (branch: BranchState) => void }} acts
   */
  constructor(store, acts) {
    this.store = store;
    this.branch = /** @type {BranchState | null} */ (null);
    /** @param {(branch: BranchState) => void} act */
    const on = (act) => () => {
      if (this.branch) act(this.branch);
    };
    this.name = el("b", { class: "agentnb-isolated agentnb-cut" });
    this.words = el("span", { class: "agentnb-dim" });
    this.field = el("input", { class: "agentnb-input", type: "text", "aria-label": "New name of the branch", maxlength: "80", hidden: true });
    this.error = el("span", { class: "agentnb-error", role: "alert" });
    this.open = button("Open", on(acts.open), { class: "agentnb-link" });
    this.compare = button("Compare", on(acts.compare), { class: "agentnb-link" });
    this.rename = button("Rename", () => this.begin(), { class: "agentnb-link" });
    this.el = el("li", { class: "agentnb-branch" }, icon("fork"), this.name, this.field, this.words, this.open, this.compare, this.rename, this.error);
    this.field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (isEnter(event)) this.end(true);
      else if (event.key === "Escape") this.end(false);
      else return;
      event.preventDefault();
    });
    this.field.addEventListener("blur", () => this.end(false));
  }

  /** @param {BranchState} branch */
  show(branch) {
    if (branch.id !== this.branch?.id) say(this.error, "");
    this.branch = branch;
    say(this.name, branch.name);
    this.name.title = branch.name;
    say(this.words, `from #${branch.at} \u00b7 ${branch.outcome}`);
    this.words.title = count(branch.events, "event");
    this.el.dataset.waits = String(branch.waiting > 0);
    for (const [control, words] of /** @type {[HTMLElement, string][]} */ ([[this.open, "Open"], [this.compare, "Compare"], [this.rename, "Rename"]]))
      control.setAttribute("aria-label", `${words} ${branch.name}`);
  }

  begin() {
    this.field.value = this.branch?.name ?? "";
    this.field.hidden = false;
    this.name.hidden = true;
    this.field.focus();
    this.field.select();
  }

  /** @param {boolean} keep */
  end(keep) {
    if (this.field.hidden || !this.branch) return;
    const { id, name } = this.branch,
      given = this.field.value.trim(),
      hadFocus = this.field === document.activeElement;
    this.name.hidden = false;
    if (hadFocus) this.rename.focus();
    this.field.hidden = true;
    say(this.error, "");
    if (!keep || given === name) return;
    this.store.ask({ type: "rename", id, name: given }, (answer) => say(this.error, answer.ok ? "" : answer.error));
  }
}
