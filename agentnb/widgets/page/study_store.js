// What the page knows of a study: its rows, and which of them are shown, in which order. Without elements: the grid draws it.

import { Store } from "./store.js";
import { number } from "./text.js";

/** @typedef {{ kind: "group", key: string, name: string, rows: StudyRow[] } | { kind: "run", key: string, row: StudyRow }} StudyLine */
/** @typedef {"start" | "run" | "outcome" | "turns" | "calls" | "tokens" | "seconds" | "waited"} SortKey */

/** A store whose model is a study: its messages bring rows of runs. */
export class StudyStore extends Store {
  /** @param {Model} model */
  constructor(model) {
    super(model);
    this.runs = new Runs();
    this.remembers = {
      "": "no",
      arguments: "these arguments, in this run",
      tool: "this tool, in this run",
      "study arguments": "these arguments, in all runs",
      "study tool": "this tool, in all runs",
    };
    this.change = 0; // of the kernel, up to which the rows are here
    model.on("change:study", () => {
      this.alive();
      this.notify("study");
    });
  }

  // The rows that came after a change that this page has. The constructor of the store asks first, before there is one.
  sync() {
    this.syncing = Date.now();
    this.send({ type: "sync", have: this.change ?? 0 });
  }

  /** @param {FromKernel} message */
  receive(message) {
    if (message.type !== "population") return super.receive(message);
    this.alive();
    if (message.after > this.change) return this.sync(); // a batch was lost
    if (message.change <= this.change) return undefined; // it came twice: another page has asked for it
    this.change = message.change;
    this.runs.put(JSON.parse(message.rows));
    return this.notify("rows");
  }

  head() {
    return /** @type {StudyHead} */ (this.model.get("study") ?? {});
  }
}

/** The rows of the runs, and the lines that are shown of them: sorted, filtered and in groups. */
export class Runs {
  constructor() {
    this.rows = /** @type {StudyRow[]} */ ([]); // by number; a row that has not arrived is missing
    this.lines = /** @type {StudyLine[]} */ ([]);
    this.shown = 0; // the number of runs that fit the filter
    this.group = "arm";
    this.sort = /** @type {SortKey} */ ("start");
    this.down = false;
    this.filter = "";
    this.said = { text: "", runs: /** @type {Set<number>} */ (new Set()) }; // the runs in which a text was said, as the kernel has found
    this.folded = /** @type {Set<string>} */ (new Set());
    this.texts = /** @type {Map<StudyRow, string>} */ (new Map()); // what the filter searches
  }

  /** @param {StudyRow[]} rows */
  put(rows) {
    for (const row of rows) {
      this.texts.delete(this.rows[row.n]);
      this.rows[row.n] = row;
    }
  }

  /**
   * Make the lines anew.
   * @param {StudyHead} head
   */
  arrange(head) {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean),
      said = this.said.text === this.filter.trim() ? this.said.runs : new Set(),
      found = this.rows.filter((row) => row && (words.every((word) => this.text(row, head).includes(word)) || said.has(row.n)));
    this.shown = found.length;
    found.sort(this.order(head));
    const groups = /** @type {Map<string, Extract<StudyLine, { kind: "group" }>>} */ (new Map());
    if (this.group) {
      for (const row of found) {
        const name = groupOf(row, head, this.group),
          group = groups.get(name) ?? { kind: "group", key: `group ${name}`, name, rows: [] };
        groups.set(name, group);
        group.rows.push(row);
      }
    }
    const listed = [...groups.values()];
    // Arms and inputs have an order of their own; outcomes come by how frequent they are.
    if (this.group === "outcome") listed.sort((a, b) => b.rows.length - a.rows.length);
    else {
      const placed = listed.map((group) => ({ group, place: group.rows.reduce((least, row) => Math.min(least, this.group === "input" ? row.input : row.arm), Infinity) }));
      placed.sort((a, b) => a.place - b.place);
      listed.splice(0, listed.length, ...placed.map(({ group }) => group));
    }
    /** @type {(row: StudyRow) => StudyLine} */
    const line = (row) => ({ kind: "run", key: `run ${row.n}`, row });
    this.lines = this.group ? listed.flatMap((group) => [group, ...(this.folded.has(group.key) ? [] : group.rows.map(line))]) : found.map(line);
  }

  /**
   * @param {StudyRow} row
   * @param {StudyHead} head
   */
  text(row, head) {
    const text = this.texts.get(row) ?? [nameOf(row, head), row.outcome, row.kind, head.inputs?.[row.input] ?? ""].join(" ").toLowerCase();
    this.texts.set(row, text);
    return text;
  }

  /**
   * @param {StudyHead} head
   * @returns {(a: StudyRow, b: StudyRow) => number}
   */
  order(head) {
    const { sort, down } = this,
      sign = down ? -1 : 1;
    if (sort === "start") return (a, b) => sign * (a.n - b.n);
    if (sort === "outcome") return (a, b) => sign * a.outcome.localeCompare(b.outcome) || a.n - b.n;
    if (sort === "run") return (a, b) => sign * nameOf(a, head).localeCompare(nameOf(b, head), "en", { numeric: true }) || a.n - b.n;
    return (a, b) => sign * (a[sort] - b[sort]) || a.n - b.n;
  }

  /**
   * Sort by a column. The same column again reverses the order; figures begin with the largest.
   * @param {SortKey} key
   */
  sortBy(key) {
    if (key === this.sort) this.down = !this.down;
    else {
      this.sort = key;
      this.down = !["start", "run", "outcome"].includes(key);
    }
  }
}

/**
 * @param {StudyRow} row
 * @param {StudyHead} head
 */
export const armOf = ({ arm }, head) => (Object.keys(head.factors ?? {}).length ? head.arms?.[arm]?.name : undefined) ?? "run";

/**
 * The number of a run in its arm: its repeat, after its input if there are several.
 * @param {StudyRow} row
 * @param {StudyHead} head
 */
export const numberOf = ({ input, repeat }, head) => (head.steps ? `\u00b7 ${repeat}` : (head.inputs?.length ?? 1) > 1 ? `${input}.${repeat}` : String(repeat));

/**
 * The name of a run: its arm and its number.
 * @param {StudyRow} row
 * @param {StudyHead} head
 */
export const nameOf = (row, head) => `${armOf(row, head)} ${numberOf(row, head)}`;

/**
 * What may divide the runs into groups, and how each is called.
 * @param {StudyHead} head
 * @returns {[key: string, words: string][]}
 */
export function groupings(head) {
  const factors = Object.keys(head.factors ?? {});
  return [
    ...((head.arms?.length ?? 0) > 1 ? [/** @type {[string, string]} */ (["arm", head.steps ? "by step" : "by arm"])] : []),
    ...(factors.length > 1 ? factors.map((name) => /** @type {[string, string]} */ ([`factor ${name}`, `by ${name}`])) : []),
    ...((head.inputs?.length ?? 0) > 1 ? [/** @type {[string, string]} */ (["input", "by input"])] : []),
    ["outcome", "by outcome"],
    ["", "not grouped"],
  ];
}

/**
 * @param {StudyRow} row
 * @param {StudyHead} head
 * @param {string} by
 */
function groupOf(row, head, by) {
  if (by === "arm") return armOf(row, head);
  if (by === "input") return `${number(row.input)}: ${head.inputs?.[row.input] ?? ""}`;
  if (by === "outcome") return row.outcome || "no outcome yet";
  const factor = by.slice("factor ".length);
  return `${factor} ${head.factors?.[factor]?.[row.arm] ?? ""}`;
}
