// A list box with rows of equal height, of which only the visible ones are drawn. It follows
// its end until a person scrolls up. Its owner knows the rows, and which of them is chosen.

import { button, el, fitParts, unique } from "./text.js";

const ROW = 24; // pixels; events.css has the same height
const FEW = 6; // rows: as many as one turn of the wheel shows
const PACE = 100; // milliseconds between two drawings when rows come too fast to be read

/**
 * @typedef {{ el: HTMLElement }} ListRow
 */

/**
 * The owner of a list, which knows its rows.
 * @template {ListRow} Part
 * @typedef {object} Owner
 * @property {() => number} length
 * @property {() => number} chosen the index of the chosen row, or -1
 * @property {(id: string) => Part} make makes an empty row
 * @property {(start: number, end: number) => void} begin called before rows are drawn, with the range in view
 * @property {(row: Part, index: number) => number} show fills a row with the data at the index, and returns its number
 * @property {() => void} draw draws the list, and the parts next to it
 * @property {(index: number) => void} choose by key
 * @property {(number: number, target: HTMLElement) => void} press by a click on the row of this number
 * @property {(event: KeyboardEvent) => boolean} key handles the keys of the owner; returns true if this was one of them
 */

/** @template {ListRow} Part */
export class List {
  /**
   * @param {Owner<Part>} owner
   * @param {{ label: string, around: number, attributes?: Record<string, string> }} options
   */
  constructor(owner, { label, around, attributes = {} }) {
    this.owner = owner;
    this.around = around; // rows drawn above and below the visible ones, for a person who scrolls
    this.follow = true;
    this.drawnAt = 0;
    this.drawn = { length: 0, seen: 0, when: 0 }; // at the last drawing: the numbers of rows and of visible rows, the time
    this.pool = /** @type {Part[]} */ ([]);
    this.timer = 0;
    this.id = unique();
    this.latest = button("Latest", () => this.toEnd(), { class: "agentnb-link", title: "Go to the end and stay there" });
    this.spacer = el("div", {
      class: "agentnb-spacer",
      role: "listbox",
      tabindex: "0",
      "aria-label": label,
      "data-lm-suppress-shortcuts": "true", // JupyterLab's, which would move to another cell
    });
    this.empty = el("p", { class: "agentnb-empty" });
    this.el = el("div", { class: "agentnb-log", ...attributes }, this.empty, this.spacer); // a list box may contain only options
    this.el.addEventListener(
      "scroll",
      () => {
        if (this.el.scrollTop === this.drawnAt) return; // our own scrolling: the rows are drawn already
        this.follow = this.atEnd();
        owner.draw();
      },
      { passive: true },
    );
    this.spacer.addEventListener("click", (event) => {
      const target = /** @type {HTMLElement} */ (event.target),
        row = /** @type {HTMLElement | null} */ (target.closest("[data-row]"));
      if (row) owner.press(Number(row.dataset.row), target);
    });
    this.spacer.addEventListener("keydown", (event) => this.key(event));
  }

  // Whether the last drawn row is visible. There may be more rows by the time the browser reports our own scrolling.
  atEnd() {
    return this.el.scrollTop + this.el.clientHeight >= this.el.scrollHeight - ROW / 2;
  }

  toEnd() {
    this.follow = true;
    this.owner.draw();
  }

  // There are more rows. If each batch has more rows than fit in the list, only some of the batches are drawn.
  more() {
    const { length, seen, when } = this.drawn,
      flooded = this.follow && length > 0 && this.owner.length() - length >= seen,
      wait = flooded ? when + PACE - performance.now() : 0;
    if (wait <= 0) this.draw();
    else this.timer ||= setTimeout(() => this.owner.draw(), wait);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = 0;
    const length = this.owner.length(),
      height = `${length * ROW}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
    if (this.follow && !this.atEnd()) this.el.scrollTop = length * ROW;
    this.drawnAt = this.el.scrollTop;
    const top = Math.floor(this.drawnAt / ROW),
      seen = Math.ceil((this.el.clientHeight || 280) / ROW);
    this.drawn = { length, seen, when: performance.now() };
    const around = this.follow ? Math.min(FEW, this.around) : this.around; // at the end, each batch changes all rows
    const start = Math.max(0, top - around),
      end = Math.min(length, top + seen + around);
    fitParts(this.pool, this.spacer, Math.max(0, end - start), (at) => this.owner.make(`agentnb-${this.id}-${at}`));
    this.owner.begin(top, top + seen);
    const chosen = this.owner.chosen();
    this.pool.forEach((row, i) => this.show(row, start + i, length, start + i === chosen));
    const active = this.pool[chosen - start];
    if (active) this.spacer.setAttribute("aria-activedescendant", active.el.id);
    else this.spacer.removeAttribute("aria-activedescendant");
    this.empty.hidden = length > 0;
    this.latest.hidden = this.follow || length * ROW <= this.el.clientHeight;
  }

  /**
   * @param {Part} row
   * @param {number} index
   * @param {number} length
   * @param {boolean} chosen
   */
  show(row, index, length, chosen) {
    const { el: node } = row;
    node.dataset.row = String(this.owner.show(row, index));
    node.style.transform = `translateY(${index * ROW}px)`;
    node.setAttribute("aria-selected", String(chosen));
    node.setAttribute("aria-posinset", String(index + 1));
    node.setAttribute("aria-setsize", String(length));
  }

  /**
   * Scroll until this row is visible.
   * @param {number} index
   */
  reveal(index) {
    const y = index * ROW;
    if (y < this.el.scrollTop) this.el.scrollTop = y;
    else if (y + ROW > this.el.scrollTop + this.el.clientHeight) this.el.scrollTop = y + ROW - this.el.clientHeight;
    this.follow = this.atEnd();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const at = this.owner.chosen(),
      page = Math.max(1, Math.floor(this.el.clientHeight / ROW) - 1),
      last = this.owner.length() - 1;
    /** @type {Record<string, number>} */
    const targets = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? last : at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: last,
    };
    const to = targets[event.key];
    if (!this.owner.key(event)) {
      if (to === undefined || last < 0) return;
      this.owner.choose(Math.max(0, Math.min(last, to)));
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
