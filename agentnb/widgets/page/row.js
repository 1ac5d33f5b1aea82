// One row of the list of events, whether a row passes a filter, and where in it a text that was searched for is.

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

const CONTEXT = 16, // characters shown before and after a hit
  FAR = 48, // characters of a summary after which a hit may be cut off
  LEVELS = 12; // levels of an event's data that are searched for the field of a hit

/**
 * An expression that finds a text in any case.
 * @param {string} query
 */
const finder = (query) => new RegExp(query.replace(/[$()*+./?[\\\]^{|}]/g, "\\$&"), "giu");

/**
 * Make nodes of a text, in which each hit is marked.
 * @param {string} text
 * @param {string} query
 * @returns {HTMLElement[]}
 */
export function withMarks(text, query) {
  const made = [];
  let from = 0;
  for (const { 0: hit, index } of query ? text.matchAll(finder(query)) : []) {
    if (index > from) made.push(el("span", { text: text.slice(from, index) }));
    made.push(el("mark", { class: "agentnb-hit", text: hit }));
    from = index + hit.length;
  }
  if (from < text.length) made.push(el("span", { text: text.slice(from) }));
  return made;
}

/**
 * The beginning of a text, or the part of it around the first hit.
 * @param {string} text
 * @param {string} query
 * @param {number} far characters after which the beginning is left out
 */
export function around(text, query, far) {
  const { index = -1 } = finder(query).exec(text) ?? {},
    end = index + query.length + CONTEXT;
  if (index <= far) return text;
  return `\u2026${text.slice(index - CONTEXT, end)}${end < text.length ? "\u2026" : ""}`;
}

/**
 * The first field of an event's data that has a text, as the path to it, and its value as text.
 * @param {unknown} value
 * @param {string} query
 * @param {string[]} [path]
 * @returns {{ field: string, text: string } | null}
 */
export function fieldWith(value, query, path = []) {
  if (value === null || value === undefined || path.length > LEVELS) return null;
  const field = path.join(".");
  if (typeof value !== "object") return finder(query).test(String(value)) ? { field, text: String(value) } : null;
  for (const [name, inner] of Object.entries(value)) {
    if (!Array.isArray(value) && finder(query).test(name)) return { field: field || "fields", text: name };
    const found = fieldWith(inner, query, [...path, name]);
    if (found) return found;
  }
  return null;
}

export class Row {
  /** @param {string} id */
  constructor(id) {
    this.row = /** @type {EventRow | null} */ (null); // what is shown
    this.query = "";
    this.seq = el("span", { class: "agentnb-seq" });
    this.time = el("span", { class: "agentnb-time" });
    this.type = el("span", { class: "agentnb-type" });
    this.summary = el("span", { class: "agentnb-summary" });
    this.path = el("span", { class: "agentnb-path" });
    this.where = el("span", { class: "agentnb-where", hidden: true });
    this.text = el("span");
    this.summary.append(this.path, this.where, this.text);
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
   * @param {string} query what was searched for: it is marked
   */
  show(row, began, query) {
    if (this.row === row && this.query === query) return;
    this.row = row;
    this.query = query;
    say(this.seq, row.seq);
    say(this.time, `+${(row.time - began).toFixed(2)}`);
    this.el.dataset.group = row.group;
    this.where.replaceChildren();
    if (query) this.mark(row, query);
    else {
      for (const [node, text] of /** @type {const} */ ([[this.type, row.type], [this.path, row.path ?? ""], [this.text, row.summary]])) {
        if (node.firstElementChild) node.replaceChildren(); // hits were marked
        say(node, text);
      }
    }
  }

  /**
   * Show the row with its hits. If none is in its words, it tells the field that has one.
   * @param {EventRow} row
   * @param {string} query
   */
  mark(row, query) {
    const { type, path = "", summary, data } = row,
      isSeen = finder(query).test(`${type}\n${path}\n${summary}`),
      found = isSeen ? null : (fieldWith(data, query) ?? { field: "data", text: JSON.stringify(data ?? "") });
    this.type.replaceChildren(...withMarks(type, query));
    this.path.replaceChildren(...withMarks(path, query));
    this.text.replaceChildren(...withMarks(around(summary, query, FAR), query));
    this.where.hidden = !found;
    if (found) this.where.replaceChildren(el("span", { class: "agentnb-dim", text: `${found.field}: ` }), ...withMarks(around(found.text, query, 0), query));
  }
}
