// The state diagrams: drawings that the kernel makes and the page marks as the run continues. The outermost loop has one;
// the loops inside are listed below it with path and phase, and the kernel says which of them have a drawing.

import { el, fitParts, number, say, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

export class Diagram {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.outermost = new Drawing("State diagram");
    this.list = el("ul", { class: "agentnb-nested", "aria-label": "Loops inside", hidden: true });
    this.more = el("li", { class: "agentnb-dim" });
    this.slots = /** @type {Nested[]} */ ([]); // by position: the next loop uses the element of one that has ended, so nothing on the page moves
    this.el = el("div", { class: "agentnb-side" }, this.outermost.el, this.list);
    this.update("diagram");
  }

  /** @param {News} what */
  update(what) {
    const { model } = this.store,
      status = this.store.status();
    if (what === "diagram") this.outermost.draw(model.get("diagram"));
    if (!["diagram", "tables", "status", "position"].includes(what)) return;
    this.outermost.el.dataset.phase = status.phase ?? "";
    this.outermost.mark(model.get("phases") ?? [], status.phase, status.path ?? [], status);
    this.updateNested(status, model.get("tables") ?? []);
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
    fitParts(this.slots, this.list, loops.length, () => new Nested());
    this.slots.forEach((slot, i) => slot.show(loops[i], tables[loops[i].table]));
    if (status.more) {
      say(this.more, `and ${number(status.more)} more`);
      this.list.append(this.more);
    } else this.more.remove();
    this.list.hidden = !loops.length;
  }
}

class Nested {
  constructor() {
    this.table = -1; // the index of the loop's table
    this.above = el("span", { class: "agentnb-nested-above" });
    this.leaf = el("span");
    this.path = el("span", { class: "agentnb-nested-path" }, this.above, this.leaf);
    this.phase = el("span", { class: "agentnb-nested-phase" });
    this.input = el("p", { class: "agentnb-nested-input" });
    this.drawing = new Drawing("");
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
    this.drawing.name(`Phases of ${loop.path}`);
    this.drawing.draw(table?.diagram ?? "");
    this.drawing.mark(table?.phases ?? [], loop.phase, loop.arrows, loop);
    this.drawing.el.hidden = !table;
  }
}

class Drawing {
  /** @param {string} name */
  constructor(name) {
    this.source = "";
    this.marked = ""; // the data of the marks, as JSON
    this.el = el("div", { class: "agentnb-diagram", role: "img", "aria-label": name });
  }

  /** @param {string} name */
  name(name) {
    const shown = visible(name);
    if (this.el.getAttribute("aria-label") !== shown) this.el.setAttribute("aria-label", shown);
  }

  /** @param {string} source */
  draw(source) {
    if (this.source === source) return;
    this.source = source;
    this.el.replaceChildren(...parse(source));
    this.marked = "";
  }

  /**
   * Mark the current phase, the arrows that were taken and how often, and the arrow that was taken last.
   * @param {string[]} phases
   * @param {string} phase
   * @param {Arrow[]} path
   * @param {{ times?: number[], latest?: number }} counts
   */
  mark(phases, phase, path, { times = [], latest = -1 }) {
    const signature = JSON.stringify([phases, phase, path, times, latest]);
    if (this.marked === signature) return;
    this.marked = signature;
    const now = phases.indexOf(phase),
      ends = path.map(([source, target]) => `${phases.indexOf(source)}-${phases.indexOf(target)}`),
      sentences = path.map(([source, target], i) => `${source} to ${target}${times[i] > 1 ? `, ${number(times[i])} times` : ""}`),
      taken = new Map(ends.map((end, i) => [end, i]));
    const way = sentences.length ? ` Taken: ${sentences.join("; ")}.` : "";
    this.el.setAttribute("aria-description", visible((this.el.querySelector("desc")?.textContent ?? "") + way));
    const first = this.el.querySelector("[data-gid^=phase]");
    for (const group of groupsOf(this.el)) {
      const [kind, ...parts] = (group.dataset.gid ?? "").split("-"),
        arrow = taken.get(parts.join("-")); // its index, where it was taken
      group.classList.toggle("agentnb-now", (kind === "phase" || kind === "label") && Number(parts[0]) === now);
      const been = (kind === "arrow" || kind === "head") && arrow !== undefined;
      if (been && !group.classList.contains("agentnb-taken")) group.parentNode?.insertBefore(group, first); // above the arrows in the same lane
      group.classList.toggle("agentnb-taken", been);
      if (!been) continue;
      group.classList.toggle("agentnb-latest", arrow === latest);
      if (kind !== "arrow") continue;
      const title = group.querySelector("title") ?? group.appendChild(document.createElementNS(SVG, "title"));
      say(title, sentences[arrow]);
    }
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
    for (const name of ["viewBox", "width", "height", "class", "aria-hidden", "data-gid", "d", "x", "y"]) {
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
