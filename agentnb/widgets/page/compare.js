// Compare: the run and one of its branches side by side. What both have in common is one folded line; then there are pairs of
// rows, and what differs is marked on the side of the branch. The kernel aligns them (views/compare.py).

import { button, el, number, say } from "./text.js";
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
    this.data = /** @type {Comparison | null} */ (null);
    this.which = el("select", { class: "agentnb-select", "aria-label": "Branch to compare with" });
    this.which.addEventListener("change", () => this.choose(this.which.value));
    this.error = el("p", { class: "agentnb-empty", role: "status", hidden: true });
    this.table = el("div", { class: "agentnb-compare", role: "table" });
    this.el = el("div", { class: "agentnb-compare-view", tabindex: "0" }, this.error, this.table);
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
    this.update();
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
        this.draw();
      } else say(this.error, answer.error);
      return undefined;
    });
  }

  draw() {
    const { data } = this;
    if (!data) return;
    const [left, right] = data.names,
      hadFocus = this.table.contains(document.activeElement);
    this.table.setAttribute("aria-label", `${left} and ${right}`);
    const fold = button("", () => this.toggle(), {
      class: "agentnb-button agentnb-ghost agentnb-fold",
      "aria-label": "The common part",
      "aria-expanded": String(this.unfolded),
    });
    fold.append(icon(this.unfolded ? "down" : "next"));
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
      ...(this.unfolded ? data.same.map((row) => this.row(row, true)) : []),
      ...data.rows.map((row, i) => this.row(row, false, i === data.fork)),
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
    if (hadFocus) fold.focus();
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
   * @param {ComparedRow} row
   * @param {boolean} isSame
   * @param {boolean} [isFork]
   */
  row(row, isSame, isFork = false) {
    const kind = row.kind === "message" ? (row.person ? "person" : "loop") : row.kind === "turn" ? "model" : row.kind,
      key = el("span", { class: "agentnb-pair-key", role: "rowheader" });
    if (isFork) key.append(icon("fork"));
    else key.append(el("i", { class: "agentnb-glyph", "data-kind": kind, "data-status": row.failed ? "failed" : null }));
    const lead = row.kind === "answer" ? "Answer" : row.lead;
    key.append(lead ? el("span", { class: "agentnb-cut", text: lead }) : el("span", { class: "agentnb-spoken", text: row.kind }));
    const node = el("div", { class: "agentnb-pair", role: "row" }, key, this.cell(row.left, row.code), this.cell(row.right, row.code));
    node.style.setProperty("--in", String(Math.min(row.depth, 6)));
    node.classList.toggle("agentnb-pair-common", isSame);
    node.classList.toggle("agentnb-pair-fork", isFork);
    return node;
  }

  /**
   * @param {[text: string, differs: boolean][] | null} parts
   * @param {boolean} code
   */
  cell(parts, code) {
    if (!parts) return el("span", { class: "agentnb-dim", role: "cell", text: "not here" });
    const inner = parts.map(([text, differs]) => el(differs ? "mark" : "span", { text })),
      title = parts.map(([text]) => text).join("");
    return el(code ? "code" : "span", { class: "agentnb-cut agentnb-isolated", role: "cell", title }, ...inner);
  }
}
