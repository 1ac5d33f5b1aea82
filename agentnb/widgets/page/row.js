// One row of the list of events, and which rows a filter lets through.

import { el, say } from "./text.js";

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
  constructor(id) {
    [this.seq, this.time, this.type, this.summary] = ["seq", "time", "type", "summary"].map((name) =>
      el("span", { class: `agentnb-${name}` }),
    );
    this.path = el("span", { class: "agentnb-path" });
    this.text = el("span");
    this.summary.append(this.path, this.text);
    this.el = el(
      "div",
      { class: "agentnb-row", role: "option", id },
      this.seq,
      this.time,
      this.type,
      this.summary,
    );
  }

  show(row, began) {
    if (this.row === row) return;
    this.row = row;
    say(this.seq, row.seq);
    say(this.time, `+${(row.time - began).toFixed(2)}`);
    say(this.type, row.type);
    say(this.path, row.path ?? "");
    say(this.text, row.summary);
    this.el.dataset.group = row.group;
  }
}
