// Which events the list shows: by text, type, tool, loop, phase or error.

import { button, el, say } from "./text.js";
import { OUTERMOST, isIn, matches } from "./row.js";

const CHOICES = 200; // tools, and loops, that can be chosen at most; a text finds the others

/** @typedef {"type" | "tool" | "loop"} Choice */
/** @type {Record<Choice, string>} */
const CLASSES = { type: "agentnb-types", tool: "agentnb-tools", loop: "agentnb-loops" };

export class Filter {
  /**
   * @param {Store} store
   * @param {() => void} changed
   */
  constructor(store, changed) {
    this.store = store;
    this.counted = 0;
    this.onlyErrors = false;
    this.phases = /** @type {Map<string, string>} */ (new Map()); // by path: the phase of the loop after the rows that were noted
    this.phaseAt = /** @type {string[]} */ ([]); // by event: the phase of its loop
    /** @type {Record<Choice, Set<string>>} */
    this.known = { type: new Set(), tool: new Set(), loop: new Set() };
    this.query = el("input", {
      class: "agentnb-input",
      type: "search",
      placeholder: "Filter events",
      "aria-label": "Filter events",
    });
    /**
     * @param {Choice} name
     * @param {...HTMLOptionElement} options
     */
    const choice = (name, ...options) =>
      el("select", { class: `agentnb-select ${CLASSES[name]}`, "aria-label": `${name[0].toUpperCase()}${name.slice(1)} of event` }, ...options);
    this.type = choice("type", el("option", { value: "", text: "all types" }));
    this.tool = choice("tool", el("option", { value: "", text: "all tools" }));
    this.loop = choice(
      "loop",
      el("option", { value: "", text: "all loops" }),
      el("option", { value: OUTERMOST, text: "outermost" }),
    );
    this.tool.hidden = this.loop.hidden = true;
    this.errors = button("Errors", () => {
      this.press(!this.onlyErrors);
      changed();
    }, { title: "Show only failures" });
    this.press(false);
    this.phase = button("", () => {
      this.choosePhase("");
      changed();
      this.query.focus();
    }, { title: "Show the events of all phases", "aria-pressed": "true" });
    this.choosePhase("");
    this.parts = [this.query, this.type, this.tool, this.loop, this.errors, this.phase];
    this.query.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.query.value) return; // the panel takes the focus
      if (event.key === "Escape") {
        this.query.value = "";
        changed();
      }
      event.stopPropagation();
    });
    this.query.addEventListener("input", changed);
    for (const select of [this.type, this.tool, this.loop]) select.addEventListener("change", changed);
  }

  /** @param {boolean} only */
  press(only) {
    this.onlyErrors = only;
    this.errors.setAttribute("aria-pressed", String(only));
  }

  /** @param {string} phase */
  choosePhase(phase) {
    this.phase.dataset.chosen = phase;
    this.phase.hidden = !phase;
    say(this.phase, `phase ${phase}`);
  }

  isSet() {
    return Boolean(this.phase.dataset.chosen || this.query.value || this.type.value || this.tool.value || this.loop.value || this.onlyErrors);
  }

  clear() {
    for (const part of [this.query, this.type, this.tool, this.loop]) part.value = "";
    this.press(false);
    this.choosePhase("");
  }

  /**
   * There are fewer rows. The choices stay.
   * @param {EventRow[]} rows
   */
  shorten(rows) {
    this.counted = Math.min(this.counted, rows.length);
  }

  // Start again: the rows have been replaced.
  forget() {
    this.counted = 0;
    this.phases.clear();
    this.phaseAt = [];
    for (const name of /** @type {Choice[]} */ (["type", "tool", "loop"])) {
      this.known[name].clear();
      const options = [...this[name].options].filter((option) => option.dataset.seen);
      for (const option of options) option.remove();
    }
  }

  /**
   * Note the rows up to a number: the choices, and the phase of each.
   * @param {EventRow[]} rows
   * @param {number} until
   */
  note(rows, until) {
    for (; this.counted < until; this.counted++) {
      const row = rows[this.counted],
        tool = this.toolOf(row);
      if (row.phase) this.phases.set(row.path ?? "", row.phase);
      this.phaseAt[row.seq] = this.phases.get(row.path ?? "") ?? "";
      if (!this.known.type.has(row.type)) this.add("type", row.type);
      if (row.path && !this.known.loop.has(row.path)) this.add("loop", row.path);
      if (tool && !this.known.tool.has(tool)) this.add("tool", tool);
    }
  }

  /**
   * @param {Choice} name
   * @param {string} value
   */
  add(name, value) {
    const { [name]: known } = this.known;
    if (known.size >= CHOICES) return;
    const option = el("option", { text: value, "data-seen": true });
    option.value = value;
    known.add(value);
    const options = [...this[name].options];
    const after = name === "loop" ? null : options.find((other) => other.dataset.seen && other.value > value);
    this[name].insertBefore(option, after ?? null);
    this[name].hidden = false;
  }

  /** @param {EventRow} row */
  toolOf(row) {
    const span = this.store.spans.of(row);
    return span?.kind === "call" ? span.name : "";
  }

  /**
   * @param {EventRow} row
   * @param {string} query in lower case
   */
  passes(row, query) {
    const [type, tool, loop] = [this.type.value, this.tool.value, this.loop.value],
      phase = this.phase.dataset.chosen;
    if (phase && this.phaseAt[row.seq] !== phase) return false;
    if ((type && row.type !== type) || (loop && !isIn(row, loop)) || (tool && this.toolOf(row) !== tool)) return false;
    return (!this.onlyErrors || row.group === "error") && (!query || matches(row, query));
  }
}
