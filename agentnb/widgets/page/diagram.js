// The state diagram: the kernel's drawing, restyled as the run goes on.

import { el, visible } from "./text.js";

export class Diagram {
  constructor(store) {
    this.store = store;
    this.box = el("div", { class: "agentnb-diagram", role: "img", "aria-label": "State diagram" });
    this.el = el("div", { class: "agentnb-side" }, this.box);
    this.update("diagram");
  }

  update(what) {
    const { model } = this.store,
      status = model.get("status") ?? {};
    if (what === "diagram") {
      this.box.replaceChildren(...drawing(model.get("diagram")));
      this.box.setAttribute("aria-description", this.box.querySelector("desc")?.textContent ?? "");
    }
    if (what !== "diagram" && what !== "status") return;
    const phases = model.get("phases") ?? [],
      now = phases.indexOf(status.phase);
    const taken = new Set(
      (status.path ?? []).map(([source, target]) => `${phases.indexOf(source)}-${phases.indexOf(target)}`),
    );
    const first = this.box.querySelector("[data-gid^=phase]");
    this.box.dataset.phase = status.phase ?? "";
    for (const group of this.box.querySelectorAll("[data-gid]")) {
      const [kind, ...ends] = group.dataset.gid.split("-");
      group.classList.toggle("agentnb-now", (kind === "phase" || kind === "label") && Number(ends[0]) === now);
      const been = (kind === "arrow" || kind === "head") && taken.has(ends.join("-"));
      if (been && !group.classList.contains("agentnb-taken")) group.parentNode.insertBefore(group, first); // over those it shares a lane with
      group.classList.toggle("agentnb-taken", been);
    }
  }
}

function drawing(source) {
  if (!source) return [];
  const root = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
  const copy = (node) => {
    // only shapes and text, only attributes that draw
    if (!["svg", "g", "path", "text", "title", "desc"].includes(node.localName)) return null;
    const made = document.createElementNS("http://www.w3.org/2000/svg", node.localName);
    for (const name of ["viewBox", "width", "height", "class", "aria-hidden", "data-gid", "d", "x", "y"])
      if (node.hasAttribute(name)) made.setAttribute(name, node.getAttribute(name));
    if (["text", "title", "desc"].includes(node.localName)) made.textContent = visible(node.textContent);
    for (const child of node.children) made.append(...[copy(child)].filter(Boolean));
    return made;
  };
  return [copy(root)].filter(Boolean);
}
