// The call graphs: drawings that the kernel makes, in which the page marks each call's status. A drawing is replaced only
// if it has new calls or arrows; otherwise classes and the words in a box change. A list has the same data for screen readers.

import { el, fit, fitParts, say, visible } from "./text.js";
import { groupsOf, parse } from "./diagram.js";

const NO_GRAPH = "No loop of this run has a call graph. An ExecutionLoop has one: its calls read the results of other calls.";

export class Graphs {
  /**
   * @param {Store} store
   * @param {boolean} alone whether the panel has no other part
   */
  constructor(store, alone) {
    this.store = store;
    this.slots = /** @type {Graph[]} */ ([]);
    this.width = 0;
    this.empty = alone ? el("p", { class: "agentnb-empty", text: NO_GRAPH }) : null;
    this.el = el("div", { class: "agentnb-graphs", hidden: true }, this.empty);
    this.update();
  }

  update() {
    const graphs = this.store.model.get("graphs") ?? [],
      drawings = this.store.model.get("drawings") ?? [];
    fitParts(this.slots, this.el, graphs.length, () => new Graph());
    this.slots.forEach((slot, i) => slot.show(graphs[i], drawings[i] ?? ""));
    this.el.hidden = !graphs.length && !this.empty;
    if (this.empty) this.empty.hidden = graphs.length > 0;
    this.keepHeight();
  }

  // Keep the height: a smaller graph would move everything below it up, and the next one would move it down again.
  keepHeight() {
    const over = this.store.model.get("status")?.over,
      { width, height } = this.el.getBoundingClientRect();
    const kept = over || width !== this.width ? 0 : height; // a graph's height depends on the width
    this.width = width;
    this.el.style.minHeight = kept ? `${kept}px` : "";
  }
}

class Graph {
  constructor() {
    this.drawing = ""; // as it is shown
    this.path = el("span", { class: "agentnb-path" });
    this.heading = el("span", { class: "agentnb-graph-title" });
    this.notes = el("span", { class: "agentnb-dim" });
    this.image = el("div", { class: "agentnb-graph-drawn", role: "img", tabindex: "0" });
    this.list = el("ul", { class: "agentnb-spoken", "aria-label": "Calls" });
    this.more = el("p", { class: "agentnb-dim" });
    const head = el("div", { class: "agentnb-graph-head" }, this.path, this.heading, this.notes);
    this.el = el("div", { class: "agentnb-graph" }, head, this.image, this.list, this.more);
  }

  /**
   * @param {CallGraph} graph
   * @param {string} drawing
   */
  show(graph, drawing) {
    say(this.path, graph.path);
    say(this.heading, graph.heading);
    say(this.notes, graph.notes);
    say(this.more, graph.more);
    const name = visible(graph.name);
    if (this.image.getAttribute("aria-label") !== name) this.image.setAttribute("aria-label", name);
    if (this.drawing !== drawing) {
      this.drawing = drawing;
      this.image.replaceChildren(...parse(drawing));
    }
    this.mark(graph.calls);
    this.listCalls(graph.calls);
  }

  /** @param {CallGraph["calls"]} calls */
  mark(calls) {
    for (const group of groupsOf(this.image)) {
      const [kind, number] = (group.dataset.gid ?? "").split("-"),
        call = calls[Number(number)]; // an arrow looks like the call that it starts at
      if (!call) continue; // the drawing is older than the status of the calls
      const [status, words, sentence] = call;
      const [title, text] = [group.firstElementChild, group.lastElementChild]; // of a node
      if (kind === "node" && title) say(title, sentence);
      if (kind === "node" && text && group.dataset.standing !== status) say(text, words);
      group.setAttribute("class", `agentnb-${kind} agentnb-is-${status}`);
      group.dataset.standing = status;
    }
  }

  /** @param {CallGraph["calls"]} calls */
  listCalls(calls) {
    const items = fit(this.list, calls.length, () => el("li"));
    calls.forEach(([, , sentence], i) => say(items[i], sentence));
  }
}
