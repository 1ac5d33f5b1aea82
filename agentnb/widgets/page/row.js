// One row of the list of events, and which rows a filter lets through.

import { el, say } from "./text.js";

export const ROW = 22; // pixels; panel.css has the same height
export const OUTERMOST = "/"; // as the choice of a loop: no path is this

// A loop's events are its own and those of the loops inside it.
export function isIn(row, loop) {
  return loop === OUTERMOST ? !row.path : row.path === loop || Boolean(row.path?.startsWith(`${loop}/`));
}

export function matches(row, query) {
  if (`${row.type} ${row.path ?? ""} ${row.summary}`.toLowerCase().includes(query)) return true;
  return row.data !== undefined && JSON.stringify(row.data).toLowerCase().includes(query);
}

export class Row {
  constructor(id, i) {
    [this.seq, this.time, this.type, this.summary] = ["seq", "time", "type", "summary"].map((name) =>
      el("span", { class: `agentnb-${name}` }),
    );
    this.path = el("span", { class: "agentnb-path" });
    this.text = el("span");
    this.summary.append(this.path, this.text);
    this.el = el(
      "div",
      { class: "agentnb-row", role: "option", id: `agentnb-${id}-${i}` },
      this.seq,
      this.time,
      this.type,
      this.summary,
    );
  }

  show(row, at, index, length, began, selected) {
    this.at = at;
    const { el: node } = this;
    if (this.row !== row) {
      this.row = row;
      say(this.seq, row.seq);
      say(this.time, `+${(row.time - began).toFixed(2)}`);
      say(this.type, row.type);
      say(this.path, row.path ?? "");
      say(this.text, row.summary);
      node.dataset.group = row.group;
    }
    node.dataset.row = at;
    node.style.transform = `translateY(${index * ROW}px)`;
    node.setAttribute("aria-selected", String(selected));
    node.setAttribute("aria-posinset", index + 1);
    node.setAttribute("aria-setsize", length);
  }
}
