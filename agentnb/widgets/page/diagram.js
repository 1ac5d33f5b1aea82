// The state diagrams: the phases of the outermost loop, and below it the loops inside with path and phase, of which the
// kernel says which have a drawing. A phase is a button: its events can be listed, and the run can stop there.

import { Phase } from "./phase.js";
import { button, duration, el, fit, fitParts, number, say, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {(phase: HTMLButtonElement) => void} Press */

export class Diagram {
  /**
   * @param {Store} store
   * @param {((phase: string) => void) | null} show lists the events of a phase; null if the panel has no list
   */
  constructor(store, show) {
    this.store = store;
    this.phase = new Phase(store, show);
    this.press = this.phase.offers() ? (/** @type {HTMLButtonElement} */ pressed) => this.phase.open(pressed) : null;
    this.outermost = new Drawing("State diagram", "Phases", this.press);
    this.list = el("ul", { class: "agentnb-nested", "aria-label": "Loops inside", hidden: true });
    this.more = el("li", { class: "agentnb-dim" });
    this.slots = /** @type {Nested[]} */ ([]); // by position: the next loop uses the element of one that has ended, so nothing on the page moves
    this.el = el("div", { class: "agentnb-states" }, this.outermost.el, this.list, this.phase.el);
    this.update("diagram");
  }

  /** @param {News} what */
  update(what) {
    const { model } = this.store,
      status = this.store.status();
    if (what === "diagram") this.outermost.draw(model.get("diagram"));
    if (!["diagram", "tables", "status", "position"].includes(what)) return;
    this.outermost.image.dataset.phase = status.phase ?? "";
    this.outermost.mark(model.get("phases") ?? [], status.phase, status.path ?? [], {
      ...{ times: status.times, latest: status.latest, waits: status.sign === "waiting" && (this.store.isLive || this.store.replays) },
      seconds: this.seconds(this.store.moment.root),
    });
    this.updateNested(status, model.get("tables") ?? []);
  }

  /**
   * The seconds that a loop has spent in each of its phases, without its waits.
   * @param {import("./moment.js").Loop} loop
   * @returns {Record<string, number>}
   */
  seconds(loop) {
    const { store } = this;
    return Object.fromEntries(store.moment.phasesOf(loop, store.until()).map(({ name, seconds }) => [name, seconds]));
  }

  /**
   * @param {Status} status
   * @param {PhaseTable[]} tables
   */
  updateNested(status, tables) {
    const loops = status.nested ?? [];
    // A loop that ends is often followed by another: while the run continues the list never shrinks, so nothing below moves.
    if (status.over) this.list.style.minHeight = "";
    else if (this.slots.some((slot, i) => slot.table !== loops[i]?.table))
      this.list.style.minHeight = `${this.list.getBoundingClientRect().height}px`;
    fitParts(this.slots, this.list, loops.length, () => new Nested(this.press));
    this.slots.forEach((slot, i) => slot.show(loops[i], tables[loops[i].table]));
    if (status.more) {
      say(this.more, `and ${number(status.more)} more`);
      this.list.append(this.more);
    } else this.more.remove();
    this.list.hidden = !loops.length;
  }

  dispose() {
    this.phase.close();
  }
}

class Nested {
  /** @param {Press | null} press */
  constructor(press) {
    this.table = -1; // the index of the loop's table
    this.above = el("span", { class: "agentnb-nested-above" });
    this.leaf = el("span");
    this.path = el("span", { class: "agentnb-nested-path" }, this.above, this.leaf);
    this.phase = el("span", { class: "agentnb-nested-phase" });
    this.input = el("p", { class: "agentnb-nested-input" });
    this.drawing = new Drawing("", "", press);
    this.el = el(
      "li",
      { class: "agentnb-nested-loop" },
      el("p", { class: "agentnb-nested-head" }, this.path, this.phase),
      this.input,
      this.drawing.el,
    );
  }

  /**
   * @param {NestedLoop} loop
   * @param {PhaseTable | undefined} table
   */
  show(loop, table) {
    const { el: node } = this;
    this.table = loop.table;
    node.dataset.path = visible(loop.path);
    node.dataset.nestedPhase = visible(loop.phase);
    node.classList.toggle("agentnb-running", loop.running);
    const leaf = loop.path.lastIndexOf("/") + 1;
    say(this.above, loop.path.slice(0, leaf));
    say(this.leaf, loop.path.slice(leaf));
    node.title = visible(`${loop.path}: ${loop.input}`);
    say(this.phase, loop.running || !loop.ended ? loop.phase : `${loop.phase} (${loop.ended})`);
    say(this.input, loop.input);
    this.drawing.name(`Phases of ${loop.path}`, `Phases of ${loop.path}`);
    this.drawing.draw(table?.diagram ?? "");
    this.drawing.mark(table?.phases ?? [], loop.phase, loop.arrows, loop);
    this.drawing.el.hidden = !table;
  }
}

// The phases of a loop in a column, each a button, before the arrows that the kernel has drawn.
class Drawing {
  /**
   * @param {string} name
   * @param {string} phases the name of the list of phases
   * @param {Press | null} press called when a phase is pressed
   */
  constructor(name, phases, press) {
    this.press = press;
    this.source = "";
    this.marked = ""; // the data of the marks, as JSON
    this.image = el("div", { class: "agentnb-drawn", role: "img", "aria-label": name });
    this.list = el("ol", { class: "agentnb-phases", "aria-label": phases });
    this.el = el("div", { class: "agentnb-diagram" }, this.image, this.list);
  }

  /**
   * @param {string} name
   * @param {string} phases
   */
  name(name, phases) {
    for (const [node, words] of /** @type {[Element, string][]} */ ([[this.image, name], [this.list, phases]])) {
      const shown = visible(words);
      if (node.getAttribute("aria-label") !== shown) node.setAttribute("aria-label", shown);
    }
  }

  /** @param {string} source */
  draw(source) {
    if (this.source === source) return;
    this.source = source;
    this.image.replaceChildren(...parse(source));
    const drawn = this.image.querySelector("svg"),
      [left = "0", width = "92"] = (drawn?.getAttribute("data-column") ?? "").split(" ");
    this.el.style.setProperty("--left", `${parseFloat(left)}px`);
    this.el.style.setProperty("--drawn", `${parseFloat(drawn?.getAttribute("width") ?? "92")}px`);
    this.el.style.setProperty("--phase", `${parseFloat(width)}px`);
    this.marked = "";
  }

  /**
   * Mark the current phase, the arrows that were taken and how often, and the arrow that was taken last.
   * @param {string[]} phases
   * @param {string} phase
   * @param {Arrow[]} path
   * @param {{ times?: number[], latest?: number, waits?: boolean, seconds?: Record<string, number> }} counts
   */
  mark(phases, phase, path, { times = [], latest = -1, waits = false, seconds = {} }) {
    const signature = JSON.stringify([phases, phase, path, times, latest, waits, seconds]);
    if (this.marked === signature) return;
    this.marked = signature;
    const ends = path.map(([source, target]) => `${phases.indexOf(source)}-${phases.indexOf(target)}`),
      sentences = path.map(([source, target], i) => `${source} to ${target}${times[i] > 1 ? `, ${number(times[i])} times` : ""}`),
      taken = new Map(ends.map((end, i) => [end, i]));
    const way = sentences.length ? ` Taken: ${sentences.join("; ")}.` : "";
    this.image.setAttribute("aria-description", visible((this.image.querySelector("desc")?.textContent ?? "") + way));
    const leaves = new Set(); // the phases that lead to another one
    for (const group of groupsOf(this.image)) {
      const [kind, ...parts] = (group.dataset.gid ?? "").split("-"),
        arrow = taken.get(parts.join("-")); // its index, where it was taken
      leaves.add(Number(parts[0]));
      const been = arrow !== undefined;
      if (been && !group.classList.contains("agentnb-taken")) group.parentNode?.append(group); // above the arrows in the same lane
      group.classList.toggle("agentnb-taken", been);
      group.classList.toggle("agentnb-latest", been && arrow === latest);
      if (!been || kind !== "arrow") continue;
      const title = group.querySelector("title") ?? group.appendChild(document.createElementNS(SVG, "title"));
      say(title, sentences[arrow]);
    }
    const rows = fit(this.list, phases.length, () => this.row());
    rows.forEach((row, at) => {
      const [name, often, took] = /** @type {HTMLElement[]} */ ([...row.children]),
        entered = path.reduce((sum, [, target], i) => sum + (target === phases[at] ? (times[i] ?? 1) : 0), 0),
        isNow = phases[at] === phase;
      say(name, phases[at]);
      name.title = visible(phases[at]);
      const been = path.some((arrow) => arrow.includes(phases[at]));
      name.className = ["agentnb-phase", been && "agentnb-been", isNow && "agentnb-now", isNow && waits && "agentnb-asks"].filter(Boolean).join(" ");
      if (isNow) name.setAttribute("aria-current", "step");
      else name.removeAttribute("aria-current");
      const counts = entered > 0 && leaves.has(at); // neither the first phase nor the last is worth a figure
      say(often, counts ? `${number(entered)}\u00d7` : "");
      say(took, counts && seconds[phases[at]] ? duration(seconds[phases[at]]) : "");
    });
  }

  row() {
    const { press } = this,
      name = press ? button("", ({ currentTarget }) => press(currentTarget), { class: "agentnb-phase" }) : el("span", { class: "agentnb-phase" });
    return el("li", {}, name, el("span", { class: "agentnb-entered" }), el("span", { class: "agentnb-spent" }));
  }
}

/**
 * Return the nodes of a drawing: only shapes and text, with only the attributes that draw.
 * @param {string} source SVG, or nothing
 * @returns {SVGElement[]}
 */
export function parse(source) {
  if (!source) return [];
  const root = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
  /**
   * @param {Element} node
   * @returns {SVGElement | null}
   */
  const copy = (node) => {
    if (!["svg", "g", "path", "text", "title", "desc"].includes(node.localName)) return null;
    const made = document.createElementNS(SVG, node.localName);
    for (const name of ["viewBox", "width", "height", "class", "aria-hidden", "data-gid", "data-column", "d", "x", "y"]) {
      const value = node.getAttribute(name);
      if (value !== null) made.setAttribute(name, value);
    }
    if (["text", "title", "desc"].includes(node.localName)) made.textContent = visible(node.textContent);
    for (const child of node.children) made.append(...[copy(child)].filter((part) => part !== null));
    return made;
  };
  return [copy(root)].filter((part) => part !== null);
}

/**
 * Return the groups of a drawing that the kernel has named (`data-gid`).
 * @param {HTMLElement} node
 * @returns {NodeListOf<SVGElement>}
 */
export function groupsOf(node) {
  return node.querySelectorAll("[data-gid]");
}
