// The branches of the run: what each is called, where it departs and how it ended, with what a person can do with it. Below
// the strip each is a thin lane on the strip's axis, from where it departs; left of that is what it has inherited.

import { button, count, el, fitParts, say } from "./text.js";
import { isEnter } from "./keys.js";
import { icon } from "./icons.js";
import { END, placeOf } from "./lanes.js";

const NEWEST = 3; // branches that are listed; the others follow on demand
const LANE_HEIGHT = 22,
  LANE_MIDDLE = 11,
  ELBOW = 10, // pixels from where a branch departs to its first bar
  LANE_FROM = 480, // narrower panels have no lanes
  WORD_LETTER = 7.2, // pixels of a letter, about
  SIDES = 16; // pixels that the strip leaves free at its right

export class Branches {
  /**
   * @param {Store} store
   * @param {{ open: (branch: BranchState) => void, compare: (branch: BranchState) => void }} acts
   * @param {import("./strip.js").Strip | null} strip
   */
  constructor(store, acts, strip) {
    this.store = store;
    this.acts = acts;
    this.strip = strip;
    this.whole = false;
    this.lines = /** @type {BranchLine[]} */ ([]);
    this.list = el("ul", { class: "agentnb-branch-list", "aria-label": "Branches" });
    this.more = button("", () => this.toggle(), { class: "agentnb-link agentnb-more-branches", hidden: true });
    this.menu = new BranchMenu();
    this.el = el("div", { class: "agentnb-branches", hidden: true }, this.list, this.more, this.menu.el);
    this.list.addEventListener("contextmenu", (event) => {
      const target = /** @type {Element} */ (event.target),
        line = this.lines.find((one) => one.el.contains(target));
      if (!line || target.matches("input")) return;
      event.preventDefault();
      const { left, top } = this.el.getBoundingClientRect(),
        { clientX = 0, clientY = 0 } = event;
      this.menu.open(line, clientX - left, clientX ? clientY - top : line.el.offsetTop);
    });
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
    const lanes = this.strip && this.strip.width >= LANE_FROM ? this.strip : null;
    this.el.classList.toggle("agentnb-branch-lanes", Boolean(lanes));
    this.lines.forEach((line, i) => line.show(shown[i], lanes));
    this.more.hidden = all.length <= NEWEST;
    this.more.setAttribute("aria-expanded", String(this.whole));
    say(this.more, this.whole ? "show the newest three only" : `and ${all.length - NEWEST} more`);
  }
}

// The context menu of a branch: what its buttons do, which a lane shows only under the pointer.
class BranchMenu {
  constructor() {
    this.line = /** @type {BranchLine | null} */ (null);
    const item = { class: "agentnb-strip-menu-item", role: "menuitem", tabindex: "-1" };
    this.items = /** @type {const} */ (["Open", "Compare", "Rename"]).map((name) => button(name, () => this.choose(name), item));
    this.el = el("div", { class: "agentnb-strip-menu", role: "menu", "aria-label": "Branch", hidden: true }, ...this.items);
    this.el.addEventListener("keydown", (event) => this.key(event));
    this.el.addEventListener("focusout", ({ relatedTarget }) => {
      if (!this.el.contains(/** @type {Node | null} */ (relatedTarget))) this.el.hidden = true;
    });
  }

  /**
   * @param {BranchLine} line
   * @param {number} x
   * @param {number} y
   */
  open(line, x, y) {
    this.line = line;
    this.el.hidden = false;
    const { width } = /** @type {Element} */ (this.el.parentElement).getBoundingClientRect();
    this.el.style.left = `${Math.max(4, Math.min(x, width - this.el.offsetWidth - 4))}px`;
    this.el.style.top = `${y}px`;
    this.items[0].focus({ preventScroll: true });
  }

  /** @param {"Open" | "Compare" | "Rename"} name */
  choose(name) {
    const { line } = this;
    line?.open.focus({ preventScroll: true }); // a button that is on the page when the menu is closed
    this.el.hidden = true;
    if (name === "Open") line?.open.click();
    else if (name === "Compare") line?.compare.click();
    else line?.rename.click();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const at = this.items.findIndex((one) => one === document.activeElement),
      by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" || event.key === "Tab") this.line?.open.focus({ preventScroll: true });
    else if (by) this.items[(at + by + this.items.length) % this.items.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
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
    this.lane = new BranchStretch();
    this.label = el("span", { class: "agentnb-branch-label" }, icon("fork"), this.name, this.field, this.words);
    this.acts = el("span", { class: "agentnb-branch-acts" }, this.open, this.compare, this.rename);
    this.el = el("li", { class: "agentnb-branch" }, this.lane.el, this.label, this.acts, this.error);
    this.field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (isEnter(event)) this.end(true);
      else if (event.key === "Escape") this.end(false);
      else return;
      event.preventDefault();
    });
    this.field.addEventListener("blur", () => this.end(false));
  }

  /**
   * @param {BranchState} branch
   * @param {import("./strip.js").Strip | null} strip
   */
  show(branch, strip) {
    if (branch.id !== this.branch?.id) say(this.error, "");
    this.branch = branch;
    say(this.name, branch.name);
    this.name.title = branch.name;
    say(this.words, `from #${branch.at} \u00b7 ${branch.outcome}`);
    this.words.title = count(branch.events, "event");
    this.el.dataset.waits = String(branch.waiting > 0);
    for (const [control, words] of /** @type {[HTMLElement, string][]} */ ([[this.open, "Open"], [this.compare, "Compare"], [this.rename, "Rename"]]))
      control.setAttribute("aria-label", `${words} ${branch.name}`);
    this.lane.el.toggleAttribute("hidden", !strip);
    if (strip) this.lane.show(branch, strip, this.label);
    else this.label.removeAttribute("style");
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

// The lane of a branch, on the strip's axis.
class BranchStretch {
  constructor() {
    this.inherited = drawn("path", "agentnb-branch-inherited");
    this.elbow = drawn("path", "agentnb-branch-elbow");
    this.model = drawn("path", "agentnb-branch-model");
    this.call = drawn("path", "agentnb-branch-call");
    this.el = drawn("svg", "agentnb-branch-lane");
    this.el.setAttribute("aria-hidden", "true");
    this.el.append(this.inherited, this.elbow, this.model, this.call);
  }

  /**
   * @param {BranchState} branch
   * @param {import("./strip.js").Strip} strip
   * @param {HTMLElement} label
   */
  show({ name, outcome, began, bars }, { axis, gutter, width }, label) {
    const departs = gutter + placeOf(axis, began),
      first = departs + ELBOW,
      end = width - SIDES,
      seconds = Math.max(0, ...bars.map(([, , until]) => until - began)),
      scale = Math.min(scaleOf(axis), Math.max(1, end - first) / Math.max(seconds, 1e-9));
    const shapes = { model: "", call: "" };
    for (const [kind, from, until] of bars) {
      const x = Math.min(first + (from - began) * scale, end - 3),
        wide = Math.max(3, (until - from) * scale);
      shapes[kind] += `M${x.toFixed(1)} ${LANE_MIDDLE - 3.5}h${wide.toFixed(1)}v7h${(-wide).toFixed(1)}z`;
    }
    this.el.setAttribute("width", String(width));
    this.el.setAttribute("height", String(LANE_HEIGHT));
    this.inherited.setAttribute("d", `M${gutter} ${LANE_MIDDLE}H${Math.max(gutter, departs - 4).toFixed(1)}`);
    this.elbow.setAttribute("d", `M${departs.toFixed(1)} 0V${LANE_MIDDLE - 4}q0 4 4 4h${ELBOW - 4}`);
    this.model.setAttribute("d", shapes.model);
    this.call.setAttribute("d", shapes.call);
    // The words stand after the bars if there is room, otherwise before them, otherwise at the end over them.
    const after = Math.min(end, first + seconds * scale + 10),
      needed = WORD_LETTER * (name.length + outcome.length + 12);
    if (end - after >= needed) Object.assign(label.style, { left: `${after}px`, right: "8px", justifyContent: "flex-start" });
    else {
      const right = departs - gutter - 12 >= needed ? width - departs + 10 : SIDES;
      Object.assign(label.style, { left: `${gutter}px`, right: `${right}px`, justifyContent: "flex-end" });
    }
  }
}

/**
 * @param {string} tag
 * @param {string} name
 */
function drawn(tag, name) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  node.setAttribute("class", name);
  return node;
}

/**
 * The pixels of a second where the axis is not broken.
 * @param {import("./lanes.js").Axis} axis
 */
function scaleOf({ times, places, breaks }) {
  const broken = breaks.reduce((sum, { start, end }) => sum + end - start, 0),
    idle = breaks.reduce((sum, { seconds }) => sum + seconds, 0);
  const seconds = (times.at(-1) ?? 0) - times[0] - idle,
    room = (places.at(-1) ?? 0) - END - broken;
  return seconds > 0 && room > 0 ? room / seconds : 1;
}
