// One row of the list of events, and whether a row passes a filter.

import { el, say } from "./text.js";

export const OUTERMOST = "/"; // the choice of the outermost loop; no loop has this path

/**
 * Whether an event belongs to a loop, or to a loop inside it.
 * @param {EventRow} row
 * @param {string} loop a path, or OUTERMOST
 */
export function isIn(row, loop) {
  return loop === OUTERMOST ? !row.path : row.path === loop || Boolean(row.path?.startsWith(`${loop}/`));
}

/**
 * Whether a text is in an event's type, path, summary or data.
 * @param {EventRow} row
 * @param {string} query in lower case
 */
export function matches(row, query) {
  if (`${row.type} ${row.path ?? ""} ${row.summary}`.toLowerCase().includes(query)) return true;
  return row.data !== undefined && JSON.stringify(row.data).toLowerCase().includes(query);
}

export class Row {
  /** @param {string} id */
  constructor(id) {
    this.row = /** @type {EventRow | null} */ (null); // what is shown
    this.seq = el("span", { class: "agentnb-seq" });
    this.time = el("span", { class: "agentnb-time" });
    this.type = el("span", { class: "agentnb-type" });
    this.summary = el("span", { class: "agentnb-summary" });
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

  /**
   * @param {EventRow} row
   * @param {number} began
   */
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
