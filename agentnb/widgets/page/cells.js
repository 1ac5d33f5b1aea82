// The editor of a table: records with the same fields. A changed cell shows what it was and what it is. The kernel gets the
// changed cells only, so every other value stays exactly as it was.

import { count, el, number, say, visible } from "./text.js";
import { isEnter } from "./keys.js";

export class Cells {
  /**
   * @param {WhatIfEditor} spec
   * @param {string} label
   * @param {() => void} changed
   */
  constructor({ columns = [], kinds = [], rows = [] }, label, changed) {
    this.columns = columns;
    this.kinds = kinds;
    this.rows = rows;
    this.changed = changed;
    this.typed = /** @type {Map<number, string>} */ (new Map()); // by the number of the cell
    this.at = 0; // the cell that Tab leads to
    this.input = /** @type {HTMLInputElement | null} */ (null);
    this.cells = rows.flatMap((row, r) =>
      row.map((text, c) => el("td", { tabindex: "-1", "data-kind": kinds[c], "data-cell": r * columns.length + c, text })),
    );
    const body = rows.map((_, r) => el("tr", {}, ...this.cells.slice(r * columns.length, (r + 1) * columns.length)));
    this.table = el(
      "table",
      { class: "agentnb-cells", role: "grid", "aria-label": label },
      el("thead", {}, el("tr", {}, ...columns.map((text, c) => el("th", { scope: "col", "data-kind": kinds[c], text })))),
      el("tbody", {}, ...body),
    );
    this.el = el("div", { class: "agentnb-cells-scroll" }, this.table);
    if (this.cells.length) this.cells[0].tabIndex = 0;
    this.table.addEventListener("click", ({ target }) => {
      const cell = this.cellOf(target);
      if (cell >= 0) this.edit(cell);
    });
    this.table.addEventListener("keydown", (event) => this.key(event));
  }

  focus() {
    (this.input ?? this.cells[this.at])?.focus();
  }

  /** @param {EventTarget | null} target */
  cellOf(target) {
    const cell = target instanceof Element ? target.closest("td") : null;
    return cell ? Number(cell.dataset.cell) : -1;
  }

  /** @param {number} cell */
  text(cell) {
    return this.typed.get(cell) ?? this.was(cell);
  }

  /** @param {number} cell */
  was(cell) {
    return this.rows[Math.floor(cell / this.columns.length)][cell % this.columns.length];
  }

  /** @param {number} to */
  go(to) {
    if (to < 0 || to >= this.cells.length) return;
    this.cells[this.at].tabIndex = -1;
    this.at = to;
    this.cells[to].tabIndex = 0;
    this.cells[to].focus();
  }

  /**
   * Edit a cell.
   * @param {number} cell
   * @param {string} [text] what a person has typed
   */
  edit(cell, text) {
    if (this.input) return;
    this.go(cell);
    const input = el("input", { class: "agentnb-cell-input", type: "text", spellcheck: "false", "aria-label": this.columns[cell % this.columns.length] });
    input.value = text ?? this.text(cell);
    this.input = input;
    this.cells[cell].replaceChildren(input);
    input.focus();
    if (text === undefined) input.select();
    // A panel that moves to another place on the page takes the focus away for a moment.
    const left = () => this.input === input && input.isConnected && !input.matches(":focus") && this.leave(true, false);
    input.addEventListener("blur", () => queueMicrotask(left));
    input.addEventListener("input", (event) => event.stopPropagation()); // it counts when it is complete
  }

  /**
   * End the editing of a cell.
   * @param {boolean} keep whether what was typed counts
   * @param {boolean} [stay] whether the cell gets the focus
   */
  leave(keep, stay = true) {
    const { input, at } = this;
    if (!input) return;
    this.input = null;
    if (keep) {
      if (input.value === this.was(at)) this.typed.delete(at);
      else this.typed.set(at, input.value);
    }
    this.draw(at);
    if (stay) this.cells[at].focus();
    this.changed();
  }

  /** @param {number} at */
  draw(at) {
    const cell = this.cells[at],
      typed = this.typed.get(at);
    cell.classList.toggle("agentnb-typed", typed !== undefined);
    cell.setAttribute("aria-invalid", String(typed !== undefined && !this.isValid(at)));
    if (typed === undefined) say(cell, this.was(at));
    else cell.replaceChildren(el("s", { text: this.was(at) }), " ", el("ins", { text: typed }));
    const row = cell.parentElement;
    row?.classList.toggle("agentnb-row-changed", Boolean(row.querySelector(".agentnb-typed")));
  }

  /** @param {number} at */
  isValid(at) {
    if (this.kinds[at % this.columns.length] === "string") return true;
    try {
      JSON.parse(this.text(at));
      return true;
    } catch {
      return false;
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const wide = this.columns.length,
      { input, at } = this;
    if (input) {
      const enters = isEnter(event) && !event.ctrlKey && !event.metaKey;
      if (event.key === "Escape") this.leave(false);
      else if (enters || event.key === "Tab") {
        this.leave(true);
        this.go(enters ? at + wide : at + (event.shiftKey ? -1 : 1));
      } else if (isEnter(event)) return this.leave(true); // and the form runs the branch
      else return undefined;
      event.preventDefault();
      event.stopPropagation();
      return undefined;
    }
    /** @type {Record<string, number>} */
    const targets = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + wide,
      ArrowUp: at - wide,
      Home: at - (at % wide),
      End: at - (at % wide) + wide - 1,
    };
    const modified = event.ctrlKey || event.metaKey || event.altKey;
    if (targets[event.key] !== undefined) this.go(targets[event.key]);
    else if (modified) return undefined;
    else if (isEnter(event) || event.key === "F2") this.edit(at);
    else if (event.key === "Delete" || event.key === "Backspace") {
      this.typed.delete(at);
      this.draw(at);
      this.changed();
    } else if (event.key.length === 1 && event.key !== " ") this.edit(at, event.key);
    else return undefined;
    event.preventDefault();
    event.stopPropagation();
    return undefined;
  }

  words() {
    const { typed, rows, columns } = this,
      values = rows.length * columns.length;
    if (!typed.size) return `${count(rows.length, "row")}; nothing is changed yet`;
    const changed = [...new Set([...typed.keys()].map((cell) => Math.floor(cell / columns.length) + 1))].sort((a, b) => a - b),
      where = changed.length > 3 ? `in ${number(changed.length)} rows` : `row ${changed.join(", ")} of ${number(rows.length)}`;
    return `${number(typed.size)} of ${number(values)} values changed, ${where}`;
  }

  /** @returns {{ error: string } | WhatIfChange} */
  read() {
    this.leave(true);
    const bad = [...this.typed.keys()].find((cell) => !this.isValid(cell)),
      wide = this.columns.length;
    if (bad !== undefined) {
      this.go(bad);
      const where = `Row ${Math.floor(bad / wide) + 1}, ${this.columns[bad % wide]}`;
      return { error: `${where}: ${visible(this.text(bad))} is neither a number nor another JSON value.` };
    }
    if (!this.typed.size) return { error: "Nothing is changed yet." };
    return { cells: [...this.typed].map(([cell, text]) => [Math.floor(cell / wide), cell % wide, text]) };
  }

  // The records as JSON text, joined from texts, so that every digit of a number is kept.
  asJson() {
    this.leave(true, false);
    const { rows, columns, kinds } = this;
    const records = rows.map((row, r) => {
      const fields = row.map((_, c) => {
        const text = this.text(r * columns.length + c);
        return `${JSON.stringify(columns[c])}: ${kinds[c] === "string" ? JSON.stringify(text) : text}`;
      });
      return `  {${fields.join(", ")}}`;
    });
    return `[\n${records.join(",\n")}\n]`;
  }
}
