// The panel of a study: its sums, its arms, and a row for each run. A run opens in the place of the table; two that are
// selected are compared there.

import { Approvals } from "./approvals.js";
import { Arms } from "./study_arms.js";
import { Compare } from "./compare.js";
import { keepFocus } from "./focus.js";
import { icon } from "./icons.js";
import { keepKeys } from "./keys.js";
import { resizable } from "./size.js";
import { StudyGrid } from "./study_grid.js";
import { Steps } from "./study_steps.js";
import { groupings, nameOf } from "./study_store.js";
import { Tabs } from "./tabs.js";
import { button, count, duration, el, enable, number, say } from "./text.js";

/** @type {[import("./study_store.js").SortKey, string][]} */
const RUN_SORTS = [["start", "by start"], ["run", "by run"], ["outcome", "by outcome"], ["turns", "by turns"], ["calls", "by calls"], ["tokens", "by tokens"], ["seconds", "by time"], ["waited", "by wait"]];
/** @type {[import("./miniature.js").Alignment, string][]} */
const RUN_ALIGNMENTS = [["turn", "strips by turn"], ["time", "strips by time"]];
const DRIVES = {
  Start: "Start the runs",
  Cancel: "Cancel the runs that are active, and start no others; they can be continued later",
  Continue: "Start the runs that have not ended, each from its last event",
  "Retry failed": "Run those again that have failed",
};
/** @type {Record<string, string>} */
const STUDY_ICONS = { ready: "ring", running: "", waiting: "", failed: "cross", done: "check", stopped: "square" };

const SEARCHED_FROM = 2, // letters of a text that is searched in what was said
  TYPED_AFTER = 250; // milliseconds without another letter, after which it is searched

export class StudyPanel {
  /**
   * @param {import("./study_store.js").StudyStore} store
   * @param {Model} model
   * @param {(answer: Extract<Opened, { ok: true }>, words: { name: string, about: string }, root: HTMLElement, leave: () => void) => { store: import("./store.js").Store, dispose: () => void }} showInside
   */
  constructor(store, model, showInside) {
    this.store = store;
    this.showInside = showInside;
    this.inside = /** @type {{ store: import("./store.js").Store, dispose: () => void } | null} */ (null);
    this.news = /** @type {Set<News>} */ (new Set());
    this.frame = 0;
    this.typing = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
    this.root = el("div", { class: "agentnb agentnb-panel agentnb-framed agentnb-study mathjax_ignore tex2jax_ignore", role: "group", "aria-label": "Study" });
    keepFocus(this.root);
    keepKeys(this.root);

    // The head.
    this.marked = "";
    this.mark = el("span", { class: "agentnb-state-mark", "aria-hidden": "true" });
    this.word = el("span", { class: "agentnb-state-word", role: "status" });
    this.state = el("span", { class: "agentnb-state" }, this.mark, this.word);
    this.name = el("strong", { class: "agentnb-name agentnb-cut agentnb-isolated" });
    this.about = el("span", { class: "agentnb-about-run agentnb-dim agentnb-cut" });
    this.facts = el("span", { class: "agentnb-facts agentnb-dim" });
    this.task = el("span", { class: "agentnb-cut agentnb-isolated agentnb-question-line" });
    this.asked = el("div", { class: "agentnb-question", hidden: true }, el("div", { class: "agentnb-question-bar" }, el("i", { class: "agentnb-glyph", "data-kind": "person", "aria-hidden": "true" }), this.task));
    this.toInbox = button("Open inbox", () => this.openInbox(), { class: "agentnb-button", hidden: true, title: "Show the questions of all runs" });
    this.acting = false;
    this.drive = button("Start", () => this.act(), { class: "agentnb-button", hidden: true });
    const push = () => el("span", { class: "agentnb-push" });
    const header = el(
      "div",
      { class: "agentnb-top" },
      el("header", { class: "agentnb-head" }, el("div", { class: "agentnb-head-line" }, this.state, this.name, this.about, push(), this.facts, this.toInbox, this.drive), this.asked),
    );
    this.trouble = el("p", { class: "agentnb-trouble", role: "status" });
    this.gone = el("div", { class: "agentnb-notice agentnb-bad", hidden: true }, icon("cross"), this.trouble);
    this.note = el("p", { class: "agentnb-note agentnb-told agentnb-study-note agentnb-bad", role: "alert" });

    // The bar of the table.
    this.grid = new StudyGrid(store, { open: (row) => this.open(row), picked: () => this.tell(), sorted: () => this.rearrange() });
    this.arms = new Arms(store, () => this.count());
    this.steps = store.head().steps ? new Steps(store, { open: (at) => this.openAt(at), list: (at) => this.list(at) }) : null;
    this.total = el("b");
    this.group = this.choice("Group", (value) => {
      store.runs.group = value;
      this.rearrange();
    });
    this.sort = this.choice("Sort", (value) => {
      store.runs.sortBy(/** @type {import("./study_store.js").SortKey} */ (value));
      this.rearrange();
    });
    this.align = this.choice("Align", (value) => {
      this.grid.by = value === "time" ? "time" : "turn";
      this.rearrange();
    });
    this.turn = button("", () => this.reverse(), { class: "agentnb-button agentnb-ghost agentnb-square", "aria-label": "Reverse the order", title: "Reverse the order" });
    fillSelect(this.sort.select, RUN_SORTS);
    fillSelect(this.align.select, RUN_ALIGNMENTS);
    this.picks = el("span", { class: "agentnb-dim" });
    this.compares = button("Compare 2", () => this.compare(), { class: "agentnb-button agentnb-strong", title: "Show the two selected runs side by side" });
    this.clear = button("Clear", () => this.unpick(), { class: "agentnb-link", title: "Select no run" });
    this.chosen = el("span", { class: "agentnb-set", hidden: true }, this.picks, this.clear, this.compares);
    this.field = el("input", { class: "agentnb-find-input", type: "search", placeholder: "Find in all runs", "aria-label": "Find in all runs", title: "Show the runs with this text in their name, input or outcome, or in which it was said (/)" });
    this.field.addEventListener("input", () => {
      store.runs.filter = this.field.value;
      this.rearrange();
      this.searchSoon();
    });
    this.field.addEventListener("keydown", (event) => this.fieldKey(event));
    const find = el("label", { class: "agentnb-find" }, icon("find"), this.field, el("kbd", { text: "/", "aria-hidden": "true" }));
    const bar = el("div", { class: "agentnb-study-bar" }, this.total, this.group.el, this.sort.el, this.turn, this.align.el, push(), this.chosen, find);

    // The runs and the inbox are tabs. The inbox alone has no table.
    const parts = model.get("parts") ?? [];
    this.approvals = new Approvals(store, true);
    this.table = /** @type {Part} */ ({ el: el("div", { class: "agentnb-study-runs" }, (this.steps ?? this.arms).el, bar, this.note, this.grid.el), update: () => {} });
    this.tabs = parts.includes("runs") ? new Tabs([["Runs", this.table], ["Inbox", this.approvals]], () => this.turned()) : null;
    if (this.tabs) this.tabs.list.setAttribute("aria-label", "Views of the study");
    const shown = this.tabs ? [this.tabs.el, ...this.tabs.views.map(({ panel }) => panel)] : [el("div", { class: "agentnb-inbox" }, this.approvals.el)];
    for (const view of this.tabs?.views ?? []) view.panel.classList.toggle("agentnb-inbox", view.part === this.approvals);
    this.root.append(header, this.gone, el("div", { class: "agentnb-study-main" }, ...shown), resizable(this.root));
    this.root.append(el("style", { text: `[data-agentnb-copy="${model.get("key")}"] { display: none; }` })); // the copy in the notebook file
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.unview = store.view((what) => this.view(what));
    this.sized = new ResizeObserver(() => this.view("view"));
    this.sized.observe(this.grid.grid);
    this.view("study");
  }

  /**
   * @param {string} name
   * @param {(value: string) => void} chosen
   */
  choice(name, chosen) {
    const select = el("select", { "aria-label": name });
    select.addEventListener("change", () => chosen(select.value));
    return { select, el: el("label", { class: "agentnb-pick-one agentnb-bare" }, select, icon("down")) };
  }

  // -- drawing: news is only noted; the panel is drawn once a frame

  /** @param {News} what */
  view(what) {
    this.news.add(what);
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const { store, news } = this;
    say(this.trouble, store.trouble);
    this.gone.hidden = !store.trouble;
    this.root.classList.toggle("agentnb-gone", store.gone);
    if (news.has("study") || news.has("kernel")) this.showHead();
    if (this.steps) {
      if (news.has("study") || news.has("view")) this.steps.update();
    } else if (news.has("study")) {
      this.arms.update();
      this.count();
    }
    if (news.has("rows") || news.has("study") || news.has("view")) this.grid.update();
    for (const what of /** @type {News[]} */ (["pending", "tools", "decisions"])) if (news.has(what) || news.has("kernel")) this.approvals.update(what);
    if (news.has("view")) this.approvals.update("pending"); // their rows are measured when they are seen
    this.tell();
    news.clear();
  }

  showHead() {
    const { store } = this,
      head = store.head(),
      sign = store.gone ? "failed" : head.sign;
    this.state.dataset.sign = sign;
    if (this.marked !== sign) {
      this.marked = sign;
      const kind = sign === "waiting" ? "person" : "";
      this.mark.replaceChildren(STUDY_ICONS[sign] ? icon(STUDY_ICONS[sign]) : el("i", { class: kind ? "agentnb-glyph" : "agentnb-ring", "data-kind": kind || null }));
    }
    say(this.word, store.gone ? "kernel gone" : head.words);
    say(this.name, head.name);
    const { arms = [], inputs = [], counts = {} } = head;
    const grid = head.steps
      ? [`${count(arms.length, "step")} of ${head.steps.run}`, count(head.repeats ?? 1, "sample")]
      : [count(arms.length, "arm"), count(inputs.length, "input"), count(head.repeats ?? 1, "repeat")];
    say(this.about, [grid.join(", "), ...(head.loops ?? [])].join(" · "));
    const others = ["running", "paused", "failed", "interrupted", "cancelled"].filter((status) => counts[status]).map((status) => `${number(counts[status])} ${status}`);
    say(this.facts, [`${number(counts.done ?? 0)} of ${number(head.runs ?? 0)} done`, ...others, ...(head.seconds ? [duration(head.seconds)] : [])].join(" · "));
    this.offer(head.can);
    this.asked.hidden = inputs.length !== 1;
    say(this.task, inputs[0] ?? "");
    const groups = groupings(head);
    if (this.group.select.length !== groups.length) fillSelect(this.group.select, groups);
    if (!groups.some(([value]) => value === store.runs.group)) store.runs.group = "";
    this.group.select.value = store.runs.group;
  }

  // Sorting, grouping and filtering change the table at once, not with the next frame: a key may follow.
  rearrange() {
    this.grid.update();
    this.tell();
  }

  tell() {
    const { runs } = this.store,
      { size } = this.grid.picked;
    say(this.total, runs.filter ? `${number(runs.shown)} of ${count(this.store.head().runs ?? 0, "run")}` : count(this.store.head().runs ?? 0, "run"));
    this.sort.select.value = runs.sort;
    this.turn.replaceChildren(icon(runs.down ? "down" : "up"));
    const waiting = this.store.model.get("status")?.waiting ?? 0;
    this.tabs?.tell(this.table, runs.rows.length);
    this.tabs?.tell(this.approvals, waiting);
    this.toInbox.hidden = !waiting || !this.tabs || this.tabs.isSeen(this.approvals);
    this.chosen.hidden = !size;
    say(this.picks, `${size} selected`);
    enable(this.compares, size === 2 && !this.store.gone, this.store.gone ? "The kernel is gone." : "Select two runs to compare them.");
  }

  // The rows of the outcome whose share is shown are marked.
  count() {
    const outcome = this.arms.outcome();
    if (this.grid.counted === outcome) return;
    this.grid.counted = outcome;
    this.grid.redraw();
  }

  /**
   * Name the button that drives the study for what it does now.
   * @param {StudyHead["can"]} can
   */
  offer(can) {
    const { drive, store } = this;
    drive.hidden = !can;
    say(drive, can);
    drive.classList.toggle("agentnb-primary", can === "Start");
    drive.title = can ? DRIVES[can] : "";
    /** @type {Control} */ (drive).purpose = drive.title;
    enable(drive, !this.acting && !store.gone, store.gone ? "The kernel is gone." : "In progress.");
  }

  // -- what a person does

  act() {
    const action = this.store.head().can;
    if (this.acting || !action) return;
    this.acting = true;
    say(this.note, "");
    this.offer(action);
    this.store.ask({ type: "control", action, unit: "", text: "", name: "" }, (answer) => {
      this.acting = false;
      if (!answer.ok) say(this.note, answer.error);
      this.view("study");
    });
  }

  // Ask the kernel in which runs the text was said, when no more of it is typed.
  searchSoon() {
    clearTimeout(this.typing);
    const text = this.field.value.trim();
    if (text.length < SEARCHED_FROM) return;
    this.typing = setTimeout(() => {
      if (this.store.gone) return;
      /** @param {RunsSaying} answer */
      const found = (answer) => {
        if (!answer.ok || text !== this.field.value.trim()) return;
        this.store.runs.said = { text, runs: new Set(answer.runs) };
        this.rearrange();
      };
      this.store.ask(/** @type {any} */ ({ type: "search", text }), /** @type {any} */ (found)); // only a study has this question
    }, TYPED_AFTER);
  }

  openInbox() {
    if (!this.tabs) return;
    this.tabs.choose(this.tabs.indexOf(this.approvals));
    this.tabs.views[this.tabs.at].tab.focus({ preventScroll: true });
  }

  turned() {
    this.view("view");
  }

  reverse() {
    this.store.runs.down = !this.store.runs.down;
    this.rearrange();
  }

  unpick() {
    this.grid.picked.clear();
    this.grid.grid.focus({ preventScroll: true }); // the button goes
    this.rearrange();
  }

  /** @param {StudyRow} row */
  open(row) {
    if (this.store.gone || this.inside) return;
    say(this.note, "");
    const name = nameOf(row, this.store.head());
    this.store.ask({ type: "open", id: String(row.n) }, (answer) => {
      if (!answer.ok) return say(this.note, answer.error);
      if (this.inside || !this.root.isConnected) return undefined;
      this.inside = this.showInside(answer, { name, about: `run ${name}` }, this.root, () => this.leave());
      return undefined;
    });
  }

  /**
   * Open the run of a resampling, at an event.
   * @param {number} at
   */
  openAt(at) {
    const { store } = this,
      name = store.head().steps?.run ?? "";
    if (store.gone || this.inside) return;
    say(this.note, "");
    store.ask({ type: "open", id: "recorded" }, (answer) => {
      if (!answer.ok) return say(this.note, answer.error);
      if (this.inside || !this.root.isConnected) return undefined;
      const inside = (this.inside = this.showInside(answer, { name, about: `the run that is drawn: ${name}` }, this.root, () => this.leave()));
      // Go there as soon as its events are here.
      const arrive = () => {
        if (!inside.store.all[at]) return;
        unview();
        inside.store.goTo(at + 1);
        inside.store.select(inside.store.all[at]);
      };
      const unview = inside.store.view(arrive);
      arrive();
      return undefined;
    });
  }

  /**
   * Show the samples of a step in the table.
   * @param {number} at
   */
  list(at) {
    const { runs } = this.store,
      arm = this.store.head().steps?.steps.findIndex((step) => step.at === at) ?? -1,
      key = `group ${this.store.head().arms?.[arm]?.name}`;
    runs.group = "arm";
    runs.folded.delete(key);
    this.grid.update();
    this.grid.go(runs.lines.findIndex((line) => line.key === key));
    this.grid.show(key);
    this.grid.grid.focus({ preventScroll: true });
  }

  compare() {
    const { store } = this,
      [left, right] = [...this.grid.picked].map((n) => store.runs.rows[n]);
    if (!right || this.inside) return;
    const names = [left, right].map((row) => nameOf(row, store.head())),
      pair = /** @type {BranchState} */ ({ id: `${left.n} ${right.n}`, name: names[1], events: 1 });
    // Compare knows a run and its branches: here the left run, and the right one as its only branch.
    const both = /** @type {any} */ ({
      model: { get: (/** @type {string} */ what) => (what === "branches" ? [pair] : undefined) },
      all: [],
      ask: (/** @type {any} */ message, /** @type {any} */ answered) => store.ask(message, answered),
      get gone() {
        return store.gone;
      },
    });
    const compare = new Compare(both, () => {}),
      back = button(`\u2039 ${store.head().name}`, () => this.leave(), { class: "agentnb-button agentnb-ghost", title: "Back to the study" }),
      host = el("div", { class: "agentnb-inside", role: "group", "aria-label": "Comparison of two runs" });
    for (const foot of compare.side.querySelectorAll(".agentnb-compare-foot")) foot.remove(); // it opens the branch
    compare.side.hidden = false;
    host.append(
      el("div", { class: "agentnb-inside-bar" }, back, el("span", { class: "agentnb-dim agentnb-cut agentnb-isolated", text: `${names[0]} and ${names[1]}` })),
      el("div", { class: "agentnb-body" }, el("div", { class: "agentnb-main" }, compare.el), el("div", { class: "agentnb-side" }, compare.side)),
    );
    this.root.append(host);
    this.root.classList.add("agentnb-behind");
    this.inside = { store, dispose: () => host.remove() };
    compare.update();
    back.focus({ preventScroll: true });
  }

  leave() {
    this.inside?.dispose();
    this.inside = null;
    this.root.classList.remove("agentnb-behind");
    requestAnimationFrame(() => this.grid.grid.focus({ preventScroll: true }));
    this.view("rows");
  }

  /** @param {KeyboardEvent} event */
  fieldKey(event) {
    event.stopPropagation(); // the notebook has shortcuts on bare letters
    if (event.key === "Escape" && this.field.value) {
      this.field.value = this.store.runs.filter = "";
      this.rearrange();
    } else if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      this.grid.grid.focus({ preventScroll: true });
      this.grid.go(this.store.runs.lines.findIndex(({ kind }) => kind === "run"));
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {Element} */ (event.target);
    if (event.defaultPrevented || this.inside || target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && this.tabs) {
      this.tabs.choose(0);
      this.field.focus();
    } else if (this.tabs && (event.key === "1" || event.key === "2")) this.tabs.choose(Number(event.key) - 1);
    else if (event.key === "c" && this.grid.picked.size === 2) this.compare();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  dispose() {
    this.unview();
    this.sized.disconnect();
    clearTimeout(this.typing);
    cancelAnimationFrame(this.frame);
    this.inside?.dispose();
    this.approvals.dispose();
    this.steps?.dispose();
    this.root.remove();
  }
}

/**
 * @param {HTMLSelectElement} select
 * @param {[value: string, text: string][]} options
 */
function fillSelect(select, options) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value, text })));
}
