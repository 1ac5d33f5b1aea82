// Compare: the run and one of its branches side by side. What both have in common is one folded line; then there are pairs of
// rows, and what differs is marked on the side of the branch. The kernel aligns them (views/compare.py).

import { button, count, el, number, say } from "./text.js";
import { icon } from "./icons.js";

const ANEW_AFTER = 1000, // milliseconds between two comparisons while a branch runs,
  ANEW_SHARE = 10; // and the multiple of the time that a comparison takes

export class Compare {
  /**
   * @param {Store} store
   * @param {(branch: BranchState) => void} open
   */
  constructor(store, open) {
    this.store = store;
    this.open = open;
    this.id = ""; // of the branch
    this.events = -1; // how many it had when it was compared
    this.when = this.cost = 0;
    this.timer = 0;
    this.asking = false;
    this.unfolded = false;
    this.onlyDiffering = false;
    this.opened = /** @type {Set<number>} */ (new Set()); // the first of equal rows that are shown
    this.wholes = /** @type {Map<string, ComparedPart[]>} */ (new Map()); // by the numbers of the rows that are shown whole
    this.data = /** @type {Comparison | null} */ (null);
    this.which = el("select", { class: "agentnb-select", "aria-label": "Branch to compare with" });
    this.which.addEventListener("change", () => this.choose(this.which.value));
    this.error = el("p", { class: "agentnb-empty", role: "status", hidden: true });
    this.table = el("div", { class: "agentnb-compare", role: "table" });
    this.counted = el("span", { class: "agentnb-dim agentnb-cut" });
    this.only = button("Only what differs", () => this.onlyWhatDiffers(), { "aria-pressed": "false", title: "Fold the rows that are equal in both" });
    this.el = el(
      "div",
      { class: "agentnb-compare-whole" },
      el("div", { class: "agentnb-compare-tools" }, this.only, this.counted),
      el("div", { class: "agentnb-compare-view", tabindex: "0" }, this.error, this.table),
    );
    // The sum takes the place of an event's details while the comparison is seen.
    this.name = el("b", { class: "agentnb-isolated agentnb-cut" });
    this.from = el("span", { class: "agentnb-dim agentnb-cut" });
    this.sum = el("table", { class: "agentnb-sum-table" });
    this.side = el(
      "section",
      { class: "agentnb-compare-side", "aria-label": "Sum of the comparison", hidden: true },
      el("div", { class: "agentnb-compare-head" }, icon("fork"), this.name, this.which, el("span", { class: "agentnb-push" }), this.from),
      el("div", { class: "agentnb-compare-sum", tabindex: "0" }, this.sum),
      el(
        "div",
        { class: "agentnb-compare-foot" },
        button("Open branch", () => this.openBranch(), { class: "agentnb-button agentnb-strong" }),
      ),
    );
  }

  branches() {
    return this.store.model.get("branches") ?? [];
  }

  branch() {
    return this.branches().find(({ id }) => id === this.id);
  }

  openBranch() {
    const branch = this.branch();
    if (branch) this.open(branch);
  }

  /** @param {string} id */
  choose(id) {
    if (id === this.id) return;
    this.id = id;
    this.events = -1;
    this.when = this.cost = 0;
    this.data = null;
    this.unfolded = false;
    this.opened.clear();
    this.wholes.clear();
    this.update();
  }

  onlyWhatDiffers() {
    this.onlyDiffering = !this.onlyDiffering;
    this.opened.clear();
    this.draw();
  }

  update() {
    const all = this.branches(),
      newest = all.at(-1);
    if (!newest) return;
    if (!this.branch()) {
      this.choose(newest.id);
      return;
    }
    this.name.hidden = all.length > 1;
    this.which.hidden = all.length < 2;
    const known = [...this.which.options].map(({ value, text }) => `${value} ${text}`).join("\n");
    if (known !== all.map(({ id, name }) => `${id} ${name}`).join("\n"))
      this.which.replaceChildren(
        ...all.map(({ id, name }) => {
          const option = el("option", { text: name });
          option.value = id;
          return option;
        }),
      );
    this.which.value = this.id;
    this.ask();
  }

  // Compare again if there are new events, but not too often.
  ask() {
    const branch = this.branch(),
      events = (branch?.events ?? 0) + this.store.all.length;
    if (!branch || events === this.events || this.asking || this.store.gone) return;
    const wait = this.when + Math.max(ANEW_AFTER, ANEW_SHARE * this.cost) - Date.now();
    if (wait > 0) {
      this.timer ||= setTimeout(() => {
        this.timer = 0;
        this.ask();
      }, wait);
      return;
    }
    const { id } = this;
    this.asking = true;
    this.when = Date.now();
    this.events = events;
    this.store.ask({ type: "compare", id }, (answer) => {
      this.asking = false;
      this.cost = Date.now() - this.when;
      if (this.id !== id) return this.ask();
      this.error.hidden = answer.ok;
      if (answer.ok) {
        this.data = answer.compared;
        for (const name of this.wholes.keys()) this.askWhole(name);
        this.draw();
      } else say(this.error, answer.error);
      return undefined;
    });
  }

  draw() {
    const { data } = this;
    if (!data) return;
    const [left, right] = data.names,
      focused = this.table.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.at : undefined;
    this.table.setAttribute("aria-label", `${left} and ${right}`);
    const fold = button("", () => this.toggle(), {
      class: "agentnb-button agentnb-ghost agentnb-fold",
      "aria-label": "The common part",
      "aria-expanded": String(this.unfolded),
      "data-at": "common",
    });
    fold.append(icon(this.unfolded ? "down" : "next"));
    this.only.setAttribute("aria-pressed", String(this.onlyDiffering));
    const differing = data.rows.filter(({ differs }) => differs).length + data.more;
    say(this.counted, differing ? `${count(differing, "row")} of ${number(data.same.length + data.rows.length + data.more)} ${differing === 1 ? "differs" : "differ"}` : "Nothing differs");
    this.table.replaceChildren(
      el(
        "div",
        { class: "agentnb-pair agentnb-pair-top", role: "row" },
        el("span", { role: "columnheader" }, el("span", { class: "agentnb-spoken", text: "what" })),
        el("b", { role: "columnheader", class: "agentnb-cut agentnb-isolated", text: left }),
        el("b", { role: "columnheader", class: "agentnb-cut agentnb-isolated", text: right }),
      ),
      el(
        "div",
        { class: "agentnb-pair agentnb-pair-same", role: "row" },
        el("span", { class: "agentnb-pair-key", role: "rowheader" }, data.same.length ? fold : el("span", { class: "agentnb-spoken", text: "common" })),
        el("span", { class: "agentnb-dim agentnb-both", role: "cell", "aria-colspan": "2", text: data.words }),
      ),
      ...(this.unfolded ? data.same.flatMap((row) => this.row(row, true)) : []),
      ...this.rows(data),
    );
    if (data.more)
      this.table.append(
        el(
          "div",
          { class: "agentnb-pair", role: "row" },
          el("span", { role: "rowheader" }),
          el("span", { class: "agentnb-dim agentnb-both", role: "cell", "aria-colspan": "2", text: `${number(data.more)} more rows; agentnb.analysis.diff(run, branch) has all.` }),
        ),
      );
    if (focused) /** @type {HTMLElement | null} */ (this.table.querySelector(`[data-at="${focused}"]`))?.focus({ preventScroll: true });
    say(this.name, right);
    this.name.title = right;
    say(this.from, data.at === null ? "" : `from ${left} at #${data.at}`);
    this.sum.setAttribute("aria-label", `Sums of ${left} and ${right}`);
    this.sum.replaceChildren(
      el("thead", {}, el("tr", {}, el("td"), el("th", { scope: "col", text: left }), el("th", { scope: "col", text: right }))),
      el(
        "tbody",
        {},
        ...data.sum.map((line) =>
          el(
            "tr",
            {},
            el("th", { scope: "row", text: line.name }),
            el("td", { text: line.left }),
            el("td", {}, line.differs ? el("mark", { text: line.right }) : document.createTextNode(line.right)),
          ),
        ),
      ),
    );
  }

  toggle() {
    this.unfolded = !this.unfolded;
    this.draw();
  }

  /**
   * The rows after the common part. If only what differs is shown, equal ones next to each other are one line.
   * @param {Comparison} data
   */
  rows({ rows, fork }) {
    const made = /** @type {HTMLElement[]} */ ([]);
    for (let at = 0; at < rows.length; at++) {
      let end = at;
      if (this.onlyDiffering) while (end < rows.length && !rows[end].differs) end++;
      if (end > at) {
        made.push(this.equal(at, end - at));
        if (this.opened.has(at)) for (let i = at; i < end; i++) made.push(...this.row(rows[i], true, i === fork));
        at = end - 1;
      } else made.push(...this.row(rows[at], false, at === fork));
    }
    return made;
  }

  /**
   * The line in the place of equal rows.
   * @param {number} at the first of them
   * @param {number} many
   */
  equal(at, many) {
    const isOpen = this.opened.has(at),
      unfold = button(
        count(many, "equal row"),
        () => {
          if (isOpen) this.opened.delete(at);
          else this.opened.add(at);
          this.draw();
        },
        { class: "agentnb-link", "aria-expanded": String(isOpen), "data-at": `equal ${at}` },
      );
    return el(
      "div",
      { class: "agentnb-pair agentnb-pair-same", role: "row" },
      el("span", { class: "agentnb-pair-key", role: "rowheader" }, el("span", { class: "agentnb-spoken", text: "equal" })),
      el("span", { class: "agentnb-both", role: "cell", "aria-colspan": "2" }, unfold),
    );
  }

  /**
   * A row, and below it all of its values if it is open.
   * @param {ComparedRow} row
   * @param {boolean} isSame
   * @param {boolean} [isFork]
   * @returns {HTMLElement[]}
   */
  row(row, isSame, isFork = false) {
    const kind = row.kind === "message" ? (row.person ? "person" : "loop") : row.kind === "turn" ? "model" : row.kind,
      name = row.numbers.join(" "),
      isOpen = this.wholes.has(name),
      lead = row.kind === "answer" ? "Answer" : row.lead,
      key = button("", () => this.unfold(row), { class: "agentnb-pair-key", "aria-expanded": String(isOpen), title: "Show all of it", "data-at": name });
    if (isFork) key.append(icon("fork"));
    else key.append(el("i", { class: "agentnb-glyph", "data-kind": kind, "data-status": row.failed ? "failed" : null }));
    key.append(lead ? el("span", { class: "agentnb-cut", text: lead }) : el("span", { class: "agentnb-spoken", text: row.kind }));
    const [leftWaits, rightWaits] = row.waits,
      lacks = row.later ? "not yet" : "not here",
      cells = [this.cell(row.left, { row, lacks, waits: leftWaits }), this.cell(row.right, { row, lacks, waits: rightWaits, isBranch: true })],
      node = el("div", { class: "agentnb-pair agentnb-pair-row", role: "row" }, el("span", { role: "rowheader" }, key), ...cells);
    node.addEventListener("click", ({ target }) => {
      if (!(/** @type {Element} */ (target).closest("button")) && !getSelection()?.toString()) this.unfold(row);
    });
    node.style.setProperty("--in", String(Math.min(row.depth, 6)));
    node.classList.toggle("agentnb-pair-common", isSame);
    node.classList.toggle("agentnb-pair-fork", isFork);
    return [node, ...(this.wholes.get(name) ?? []).map((part) => this.part(part))];
  }

  /**
   * One value of a row, all of it.
   * @param {ComparedPart} part
   */
  part({ name, left, right }) {
    const cells = [left, right].map((text) =>
      el(
        "div",
        { role: "cell", class: "agentnb-pair-whole", tabindex: text ? "0" : null },
        text ? el("pre", {}, ...marked(text)) : el("span", { class: "agentnb-dim", text: "none" }),
      ),
    );
    return el("div", { class: "agentnb-pair agentnb-pair-part", role: "row" }, el("span", { class: "agentnb-dim agentnb-cut", role: "rowheader", text: name }), ...cells);
  }

  /**
   * Show all of a row, or its beginning again.
   * @param {ComparedRow} row
   */
  unfold({ numbers }) {
    const name = numbers.join(" ");
    if (this.wholes.delete(name)) {
      this.draw();
      return;
    }
    this.askWhole(name);
  }

  /** @param {string} name the numbers of a row */
  askWhole(name) {
    const { id } = this,
      numbers = /** @type {ComparedRow["numbers"]} */ (name.split(" ").map((part) => (part ? Number(part) : null)));
    this.store.ask({ type: "whole", id, numbers }, (answer) => {
      if (id !== this.id) return;
      this.error.hidden = answer.ok;
      if (answer.ok) this.wholes.set(name, answer.whole);
      else say(this.error, answer.error);
      this.draw();
    });
  }

  /**
   * @param {ComparedText | null} parts
   * @param {{ row: ComparedRow, lacks: string, waits: boolean, isBranch?: boolean }} about
   */
  cell(parts, { row, lacks, waits, isBranch = false }) {
    if (!parts) return el("span", { class: "agentnb-dim", role: "cell", text: lacks });
    const text = el(row.code ? "code" : "span", { class: "agentnb-pair-text agentnb-isolated" }, ...marked(parts));
    if (!waits) {
      text.setAttribute("role", "cell");
      return text;
    }
    return el(
      "span",
      { role: "cell", class: "agentnb-pair-waits" },
      el("span", {}, el("i", { class: "agentnb-glyph", "data-kind": "person", "aria-hidden": "true" }), " ", el("b", { text: "waits for you: " }), text),
      isBranch ? button("Open branch", () => this.openBranch(), { class: "agentnb-link", title: "Open the branch, to decide" }) : null,
    );
  }
}

/** @param {ComparedText} parts */
const marked = (parts) => parts.map(([text, differs]) => el(differs ? "mark" : "span", { text }));
