// Draws data of a run: records as a table, an object as names and values, everything else as text with its lines.

import { el, number } from "./text.js";

const MOST_ROWS = 200, // rows of a table, at most
  MOST_COLUMNS = 24, // and columns
  MOST_LEVELS = 3, // levels of objects that are drawn as names and values
  MOST_DECIMALS = 8, // that a number is filled up to
  IN_SHORT = 60; // characters of a value in short
const LEFT_OUT = /^\u2026 ([\d,]+) more items$/; // the last item of a list that the kernel has shortened (views/rows.py)

/**
 * @param {unknown} value
 * @returns {value is Record<string, unknown>}
 */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * The items of a list, and how many of them the kernel has left out.
 * @param {unknown[]} list
 */
function itemsOf(list) {
  const last = list.at(-1),
    left = typeof last === "string" ? LEFT_OUT.exec(last) : null;
  return left ? { items: list.slice(0, -1), left: Number(left[1].replaceAll(",", "")) } : { items: list, left: 0 };
}

/**
 * The records in a list, all of which are objects; null if it is another list.
 * @param {unknown} value
 */
function recordsOf(value) {
  if (!Array.isArray(value)) return null;
  const { items, left } = itemsOf(value);
  if (!items.length || !items.every((item) => isObject(item) && Object.keys(item).length > 0)) return null;
  return { records: /** @type {Record<string, unknown>[]} */ (items), left };
}

/**
 * How many rows a value has, if it is drawn as a table.
 * @param {unknown} value
 */
export function rowsOf(value) {
  const table = recordsOf(value);
  return table ? table.records.length + table.left : 0;
}

/**
 * @param {unknown} value
 * @returns {HTMLElement}
 */
export function drawData(value) {
  return drawnValue(value, 0);
}

/**
 * @param {unknown} value
 * @param {number} depth
 * @returns {HTMLElement}
 */
function drawnValue(value, depth) {
  if (value === null || value === undefined || value === "") return el("p", { class: "agentnb-dim", text: value === "" ? "An empty text." : "Nothing." });
  if (typeof value === "string") return el("pre", { text: value });
  const table = recordsOf(value);
  if (table && depth < MOST_LEVELS) return tableOf(table.records, table.left);
  if (isObject(value) && Object.keys(value).length && depth < MOST_LEVELS) return fieldsOf(Object.entries(value), depth);
  return el("pre", { text: inJson(value) });
}

/**
 * A list of names and values.
 * @param {[name: string, value: unknown][]} entries
 * @param {number} depth
 */
function fieldsOf(entries, depth) {
  return el(
    "dl",
    { class: "agentnb-fields" },
    ...entries.flatMap(([name, value]) => [
      el("dt", { text: name }),
      typeof value === "string" && value
        ? el("dd", { class: value.includes("\n") ? "agentnb-lines" : "", text: value })
        : isObject(value) || recordsOf(value)
          ? el("dd", {}, drawnValue(value, depth + 1))
          : el("dd", { text: inJson(value) }),
    ]),
  );
}

/**
 * A list of facts: names, and short values at the right.
 * @param {[name: string, value: string][]} facts
 */
export const factsOf = (facts) =>
  el("dl", { class: "agentnb-fields agentnb-list-of-facts" }, ...facts.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]));

/**
 * @param {Record<string, unknown>[]} records
 * @param {number} left how many more there are
 */
function tableOf(records, left) {
  const names = [...new Set(records.slice(0, MOST_ROWS).flatMap((record) => Object.keys(record)))],
    columns = names.slice(0, MOST_COLUMNS),
    missing = left + Math.max(0, records.length - MOST_ROWS),
    shown = records.slice(0, MOST_ROWS);
  const decimals = columns.map((name) => decimalsOf(shown.map((record) => record[name])));
  const notes = [
    missing ? `${number(missing)} more rows` : "",
    names.length > MOST_COLUMNS ? `${number(names.length - MOST_COLUMNS)} more columns` : "",
  ].filter(Boolean);
  return el(
    "div",
    { class: "agentnb-data", tabindex: "0", role: "group", "aria-label": "Table" }, // it scrolls sideways
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...columns.map((name, i) => el("th", { scope: "col", "data-number": String(decimals[i] >= 0), text: name, title: name })))),
      el(
        "tbody",
        {},
        ...shown.map((record) =>
          el("tr", {}, ...columns.map((name, i) => el("td", { "data-number": String(decimals[i] >= 0), text: inCell(record[name], decimals[i]) }))),
        ),
      ),
    ),
    notes.length ? el("p", { class: "agentnb-dim", text: `${notes.join(", ")}.` }) : null,
  );
}

/**
 * The decimals of the numbers in a column; -1 if it has other values.
 * @param {unknown[]} values
 */
function decimalsOf(values) {
  let most = -1;
  for (const value of values) {
    if (value === undefined || value === null) continue;
    if (typeof value !== "number") return -1;
    most = Math.max(most, /^-?\d+\.(\d+)$/.exec(String(value))?.[1].length ?? 0);
  }
  return most;
}

/**
 * @param {unknown} value
 * @param {number} decimals with which a number is written, so that the numbers of a column are under each other
 */
function inCell(value, decimals) {
  if (value === undefined || value === null) return "";
  if (typeof value === "number" && decimals > 0 && /^-?\d+(\.\d+)?$/.test(String(value))) return decimals > MOST_DECIMALS ? String(value) : value.toFixed(decimals);
  return typeof value === "string" ? value : inJson(value);
}

/**
 * A value as JSON: on one line if it fits there.
 * @param {unknown} value
 */
function inJson(value) {
  const line = JSON.stringify(value) ?? "";
  if (typeof value !== "object" || value === null) return line;
  const spaced = Array.isArray(value) && value.every((item) => typeof item !== "object") ? `[${value.map((item) => JSON.stringify(item)).join(", ")}]` : line;
  return spaced.length > 2 * IN_SHORT && spaced === line ? JSON.stringify(value, null, 2) : spaced;
}

/**
 * A value in a few words: how many rows a table has, the fields of an object, the first line of a text.
 * @param {unknown} value
 */
export function inShort(value) {
  if (value === null || value === undefined) return "nothing";
  const rows = rowsOf(value);
  if (rows) return rows === 1 ? "1 row" : `${number(rows)} rows`;
  const text =
    typeof value === "string"
      ? (value.trim().split("\n")[0] ?? "")
      : isObject(value)
        ? Object.entries(value).map(([name, part]) => `${name}=${JSON.stringify(part)}`).join(", ")
        : JSON.stringify(value);
  return text.length > IN_SHORT ? `${text.slice(0, IN_SHORT)}\u2026` : text;
}
