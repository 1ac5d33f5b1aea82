// The table of the runs of a study, of which only the visible rows are drawn. One row has the focus of the table; the arrow
// keys move it, Enter opens its run, Space selects it.

import { icon } from "./icons.js";
import { MiniStrip, MiniScale } from "./miniature.js";
import { armOf, numberOf } from "./study_store.js";
import { count, duration, el, fitParts, number, say, unique } from "./text.js";

const RUN_ROW = 26, // pixels; study.css has the same heights
  RUNS_HEAD = 28,
  RUNS_AROUND = 6; // rows drawn above and below the visible ones
/** @type {[key: import("./study_store.js").SortKey | "", name: string, className: string][]} */
const RUN_COLUMNS = [
  ["run", "run", "agentnb-run-name"],
  ["", "input", "agentnb-run-input"],
  ["outcome", "outcome", "agentnb-run-outcome"],
  ["start", "", "agentnb-run-strip"],
  ["turns", "turns", "agentnb-run-number agentnb-run-turns"],
  ["calls", "calls", "agentnb-run-number agentnb-run-calls"],
  ["tokens", "tokens", "agentnb-run-number agentnb-run-tokens"],
  ["seconds", "time", "agentnb-run-number agentnb-run-time"],
  ["waited", "you", "agentnb-run-number agentnb-run-you"],
];
/** @type {Record<string, [kind: string, status: string]>} */
const RUN_GLYPHS = { waiting: ["person", ""], failed: ["call", "failed"], running: ["model", "running"] };
const RUN_SIGNS = /** @type {Record<string, string>} */ ({ done: "check", stopped: "stop", cancelled: "stop", interrupted: "stop", paused: "pause" });

export class StudyGrid {
  /**
   * @param {import("./study_store.js").StudyStore} store
   * @param {{ open: (row: StudyRow) => void, picked: () => void, sorted: () => void }} acts
   */
  constructor(store, acts) {
    this.store = store;
    this.acts = acts;
    this.picked = /** @type {Set<number>} */ (new Set());
    this.active = ""; // the key of the line that has the focus of the table
    this.scale = new MiniScale([], "turn", 0);
    this.by = /** @type {import("./miniature.js").Alignment} */ ("turn");
    this.pool = /** @type {RunRow[]} */ ([]);
    this.version = 0; // of what the rows show, apart from their lines
    this.counted = ""; // the outcome whose share is shown: its rows have a check
    this.id = unique();
    this.ruler = el("span", { class: "agentnb-run-ruler", "aria-hidden": "true" });
    this.heads = RUN_COLUMNS.map(([key, name, className]) => {
      const cell = el("span", { class: className, role: "columnheader" });
      if (key === "start") cell.append(el("span", { class: "agentnb-spoken", text: "strip" }), this.ruler);
      else if (key) cell.append(el("span", { class: "agentnb-run-sort", "data-sort": key, text: name, title: `Sort by ${name}` }));
      else say(cell, name);
      return cell;
    });
    this.header = el(
      "div",
      { class: "agentnb-run agentnb-run-head", role: "row", "aria-rowindex": "1" },
      el("span", { class: "agentnb-run-pick", role: "columnheader" }, el("span", { class: "agentnb-spoken", text: "selected" })),
      ...this.heads,
    );
    this.spacer = el("div", { class: "agentnb-runs-rows", role: "rowgroup" });
    this.empty = el("p", { class: "agentnb-empty", hidden: true });
    this.grid = el(
      "div",
      {
        class: "agentnb-runs",
        role: "treegrid",
        tabindex: "0",
        "aria-label": "Runs",
        "aria-multiselectable": "true",
        "data-lm-suppress-shortcuts": "true", // JupyterLab's, which would move to another cell
      },
      el("div", { role: "rowgroup", class: "agentnb-runs-head" }, this.header),
      this.spacer,
    );
    this.el = el("div", { class: "agentnb-runs-place" }, this.grid, this.empty);
    this.grid.addEventListener("scroll", () => this.draw(), { passive: true });
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener("click", (event) => this.press(event));
  }

  get runs() {
    return this.store.runs;
  }

  // There are other rows, or they are shown otherwise.
  update() {
    const head = this.store.head();
    this.runs.arrange(head);
    this.grid.classList.toggle("agentnb-with-inputs", (head.inputs?.length ?? 0) > 1);
    this.grid.classList.toggle("agentnb-no-tokens", !(head.arms ?? []).some(({ tokens }) => tokens));
    this.grid.classList.toggle("agentnb-no-waits", !(head.arms ?? []).some(({ waited }) => waited));
    this.measure();
    for (const [i, [key]] of RUN_COLUMNS.entries()) {
      const isSorted = key && key === this.runs.sort && key !== "start";
      if (isSorted) this.heads[i].setAttribute("aria-sort", this.runs.down ? "descending" : "ascending");
      else this.heads[i].removeAttribute("aria-sort");
    }
    this.grid.setAttribute("aria-rowcount", String(this.runs.lines.length + 1));
    this.spacer.style.height = `${this.runs.lines.length * RUN_ROW}px`;
    const total = head.runs ?? 0;
    this.empty.hidden = this.runs.lines.length > 0;
    say(this.empty, this.runs.filter ? `None of ${count(total, "run")} fits this text.` : "No runs yet.");
    this.redraw();
  }

  // The scale of the strips follows the rows that are shown, and the width of their column.
  measure() {
    const rows = this.runs.lines.flatMap((line) => (line.kind === "run" ? [line.row] : [])),
      { width } = this.heads[3].getBoundingClientRect();
    this.scale = new MiniScale(rows.length ? rows : this.runs.rows.filter(Boolean), this.by, Math.floor(width));
    this.ruler.replaceChildren(
      ...this.scale.ticks().map(({ at, text }) => {
        const tick = el("span", { text });
        tick.style.left = `${at.toFixed(1)}px`;
        return tick;
      }),
    );
  }

  // A row of the pool keeps its line while that is near the visible ones: to scroll draws only what has come into sight.
  draw() {
    const { lines } = this.runs,
      top = Math.floor(this.grid.scrollTop / RUN_ROW),
      seen = Math.ceil((this.grid.clientHeight || 280) / RUN_ROW),
      size = Math.min(lines.length, seen + 2 * RUNS_AROUND),
      start = Math.max(0, Math.min(top - RUNS_AROUND, lines.length - size)),
      head = this.store.head();
    if (this.pool.length !== size) this.version++;
    fitParts(this.pool, this.spacer, size, (at) => new RunRow(`agentnb-${this.id}-${at}`));
    for (let index = start; index < start + size; index++) {
      const row = this.pool[index % size];
      if (row.index !== index || row.version !== this.version) row.show(lines[index], index, this, head);
    }
    const active = this.pool.find((row) => row.line?.key === this.active);
    if (active) this.grid.setAttribute("aria-activedescendant", active.el.id);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  redraw() {
    this.version++;
    this.draw();
  }

  at() {
    return this.runs.lines.findIndex(({ key }) => key === this.active);
  }

  /** @param {number} to */
  go(to) {
    const { lines } = this.runs,
      line = lines[Math.max(0, Math.min(lines.length - 1, to))];
    if (!line) return;
    this.active = line.key;
    const y = lines.indexOf(line) * RUN_ROW;
    if (y < this.grid.scrollTop) this.grid.scrollTop = y;
    else if (y + RUN_ROW + RUNS_HEAD > this.grid.scrollTop + this.grid.clientHeight) this.grid.scrollTop = y + RUN_ROW + RUNS_HEAD - this.grid.clientHeight;
    this.redraw();
  }

  /**
   * Scroll so that a line is the first that is seen.
   * @param {string} key
   */
  show(key) {
    this.grid.scrollTop = this.runs.lines.findIndex((line) => line.key === key) * RUN_ROW;
    this.draw();
  }

  /** @param {import("./study_store.js").StudyLine} line */
  fold(line) {
    if (line.kind !== "group") return;
    if (!this.runs.folded.delete(line.key)) this.runs.folded.add(line.key);
    this.update();
  }

  /** @param {StudyRow} row */
  pick({ n }) {
    if (!this.picked.delete(n)) this.picked.add(n);
    this.redraw();
    this.acts.picked();
  }

  /** @param {MouseEvent} event */
  press(event) {
    const target = /** @type {HTMLElement} */ (event.target),
      sort = /** @type {HTMLElement | null} */ (target.closest("[data-sort]")),
      node = target.closest(".agentnb-run"),
      row = this.pool.find(({ el: one }) => one === node);
    if (sort) {
      this.runs.sortBy(/** @type {import("./study_store.js").SortKey} */ (sort.dataset.sort));
      this.acts.sorted();
      return;
    }
    if (!row?.line) return;
    this.active = row.line.key;
    if (row.line.kind === "group") this.fold(row.line);
    else if (target.closest(".agentnb-run-pick")) this.pick(row.line.row);
    else this.acts.open(row.line.row);
    this.redraw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.at(),
      { lines } = this.runs,
      line = lines[at],
      page = Math.max(1, Math.floor((this.grid.clientHeight - RUNS_HEAD) / RUN_ROW) - 1);
    /** @type {Record<string, number>} */
    const targets = { ArrowDown: at + 1, ArrowUp: at < 0 ? lines.length - 1 : at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: lines.length - 1 };
    if (targets[event.key] !== undefined) this.go(targets[event.key]);
    else if (!line) return;
    else if (event.key === "Enter" && line.kind === "run") {
      if (!event.repeat) this.acts.open(line.row);
    } else if (event.key === " " && line.kind === "run") this.pick(line.row);
    else if ((event.key === "Enter" || event.key === " ") && line.kind === "group") this.fold(line);
    else if (event.key === "ArrowLeft" && line.kind === "run") this.go(lines.findLastIndex((one, i) => i < at && one.kind === "group"));
    else if (line.kind === "group" && event.key === (this.runs.folded.has(line.key) ? "ArrowRight" : "ArrowLeft")) this.fold(line);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/** A row: of a run, or the heading of a group. */
class RunRow {
  /** @param {string} id */
  constructor(id) {
    this.line = /** @type {import("./study_store.js").StudyLine | null} */ (null);
    this.index = -1;
    this.version = -1;
    this.strip = new MiniStrip();
    this.box = el("span", { class: "agentnb-run-box", "aria-hidden": "true" });
    this.box.append(icon("check"));
    this.name = el("span", { class: "agentnb-cut agentnb-isolated" });
    this.which = el("span");
    this.input = el("span", { class: "agentnb-cut agentnb-isolated" });
    this.mark = el("span", { class: "agentnb-run-mark", "aria-hidden": "true" });
    this.outcome = el("span", { class: "agentnb-cut agentnb-isolated" });
    this.marked = "none";
    const cells = { name: [this.name, this.which], input: [this.input], outcome: [this.mark, this.outcome], strip: [this.strip.el] };
    this.numbers = [0, 1, 2, 3, 4].map(() => el("span"));
    const inside = [cells.name, cells.input, cells.outcome, cells.strip, ...this.numbers.map((node) => [node])];
    this.cells = [
      el("span", { class: "agentnb-run-pick", role: "gridcell" }, this.box),
      ...RUN_COLUMNS.map(([, , className], i) => {
        const cell = el("span", { class: className, role: "gridcell" });
        cell.append(...inside[i]);
        return cell;
      }),
    ];
    this.folded = icon("down");
    this.group = el("b", { class: "agentnb-cut agentnb-isolated" });
    this.sums = el("span", { class: "agentnb-dim agentnb-cut" });
    this.heading = el("span", { class: "agentnb-run-group", role: "gridcell" });
    this.heading.append(this.folded, this.group, this.sums);
    this.el = el("div", { class: "agentnb-run", role: "row", id }, ...this.cells, this.heading);
  }

  /**
   * @param {import("./study_store.js").StudyLine} line
   * @param {number} index
   * @param {StudyGrid} grid
   * @param {StudyHead} head
   */
  show(line, index, grid, head) {
    const isRun = line.kind === "run";
    this.line = line;
    this.index = index;
    this.version = grid.version;
    this.el.style.transform = `translateY(${index * RUN_ROW}px)`;
    this.el.setAttribute("aria-rowindex", String(index + 2));
    this.el.setAttribute("aria-level", isRun && grid.runs.group ? "2" : "1");
    this.el.classList.toggle("agentnb-active", line.key === grid.active);
    this.el.classList.toggle("agentnb-run-heading", !isRun);
    for (const cell of this.cells) cell.hidden = !isRun;
    this.heading.hidden = isRun;
    if (!isRun) {
      this.el.setAttribute("aria-expanded", String(!grid.runs.folded.has(line.key)));
      this.el.removeAttribute("aria-selected");
      say(this.group, line.name);
      say(this.sums, sumsOf(line.rows, grid.runs.group === "outcome" ? "" : grid.counted));
      return;
    }
    const { row } = line;
    this.el.removeAttribute("aria-expanded");
    this.el.setAttribute("aria-selected", String(grid.picked.has(row.n)));
    say(this.name, armOf(row, head));
    say(this.which, numberOf(row, head));
    say(this.input, head.inputs?.[row.input] ?? "");
    this.el.dataset.kind = row.kind;
    const isOther = row.kind === "done" && Boolean(grid.counted) && row.outcome !== grid.counted,
      mark = isOther ? "other" : row.kind;
    if (this.marked !== mark) {
      this.marked = mark;
      const [kind, status] = RUN_GLYPHS[mark] ?? ["", ""];
      this.mark.replaceChildren(...(kind ? [el("i", { class: "agentnb-glyph", "data-kind": kind, "data-status": status || null })] : RUN_SIGNS[mark] ? [icon(RUN_SIGNS[mark])] : []));
      this.outcome.classList.toggle("agentnb-dim", isOther);
    }
    say(this.outcome, row.outcome);
    if (this.outcome.title !== row.outcome) this.outcome.title = this.outcome.textContent ?? "";
    this.strip.show(row, grid.scale);
    const has = row.began > 0,
      figures = [number(row.turns), number(row.calls), row.tokens ? number(row.tokens) : "", duration(row.seconds), row.waited ? duration(row.waited) : ""];
    this.numbers.forEach((node, i) => say(node, has ? figures[i] : ""));
  }
}

/**
 * The sums of a group in words.
 * @param {StudyRow[]} rows
 * @param {string} counted the outcome whose share is shown
 */
function sumsOf(rows, counted) {
  const by = /** @type {Map<string, number>} */ (new Map());
  for (const { kind } of rows) by.set(kind, (by.get(kind) ?? 0) + 1);
  if (by.size === 1 && rows.length === 1) return "1 run";
  const ended = rows.filter(({ kind }) => kind === "done" || kind === "stopped" || kind === "failed"),
    words = [...by].map(([kind, many]) => `${number(many)} ${kind === "waiting" ? (many === 1 ? "waits for you" : "wait for you") : kind}`);
  if (counted && ended.length) words.push(`${number(ended.filter(({ outcome }) => outcome === counted).length)} of ${number(ended.length)} end with \u201c${counted}\u201d`);
  return `${count(rows.length, "run")}: ${words.join(", ")}`;
}
