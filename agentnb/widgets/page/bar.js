// The bar: while a run of the page waits for a person, or plays out of sight, a bar at the foot of the notebook's window
// names it. It decides where the whole call fits, else it opens. All panels of a page share the bars, one for each window,
// also if each panel has a module of its own: the first one makes them.

import { iconButton, iconOnly, icon } from "./icons.js";
import { button, el, number, say, visible } from "./text.js";
import { Call, sendDecision } from "./call.js";
import { identityOf, inWords } from "./approvals.js";
import { badges } from "./asking.js";
import { isTyping, keepFocus } from "./focus.js";
import { keepKeys } from "./keys.js";
import { SETTLES, View } from "./sight.js";
import { BAR_HEIGHT, SCROLLER } from "./size.js";
import { argumentsLine } from "./values.js";

const BARS_OF_PAGE = Symbol.for("agentnb.bars.1"); // on the window
const SECOND = 1000; // milliseconds

/**
 * A run, with its views in a window. A branch that is not opened has the views of its run, and no questions of its own.
 * @typedef {{ id: string, name: string, store: Store, views: View[], questions: Question[], waiting: number, since: number, branch?: BranchState }} Running
 */

/** All bars of the page, the title of its tab, and the lines in the cells that wait. */
class Bars {
  constructor() {
    this.views = /** @type {Set<View>} */ (new Set());
    this.bars = /** @type {Map<HTMLElement, WindowBar>} */ (new Map());
    this.since = /** @type {Map<string, number>} */ (new Map()); // by run: since when it waits, or plays out of sight
    this.title = new Title();
    this.due = 0;
    this.clock = 0;
    this.lines = /** @type {Map<Element, CellLine>} */ (new Map());
  }

  /** @param {View} view */
  add(view) {
    view.changed = () => this.changed();
    this.views.add(view);
    view.store.others.add(view.changed);
    this.changed();
  }

  /** @param {View} view */
  remove(view) {
    this.views.delete(view);
    view.store.others.delete(view.changed);
    view.dispose();
    this.changed();
  }

  // Not with the next frame: a hidden page draws none, and its title counts.
  changed() {
    this.due ||= setTimeout(() => this.update(), SETTLES);
  }

  update() {
    clearTimeout(this.due);
    this.due = 0;
    for (const view of this.views) view.find();
    const runs = this.runs(),
      waiting = runs.filter((run) => run.waiting);
    this.title.count(waiting.reduce((sum, run) => sum + run.waiting, 0));
    const places = new Set([...this.views].map(({ place }) => place));
    for (const [place, bar] of this.bars)
      if (!places.has(place) || !place.isConnected) {
        bar.dispose();
        this.bars.delete(place);
      }
    for (const place of places) if (place?.isConnected) this.fill(place, runs);
    this.fillCells(waiting);
    clearTimeout(this.clock);
    if (this.views.size) this.clock = setTimeout(() => this.update(), SECOND);
  }

  // The runs of the page that wait or play, oldest first.
  runs() {
    const found = /** @type {Map<string, Running>} */ (new Map());
    for (const view of this.views) {
      const { store } = view,
        status = store.model.get("status") ?? {},
        questions = store.model.get("pending") ?? [],
        waiting = Math.max(status.waiting ?? 0, questions.length);
      if (store.replays || store.gone || status.over || !(waiting || status.lives)) continue;
      const known = found.get(status.id);
      if (known) {
        known.views.push(view);
        continue;
      }
      const name = status.name || status.run || status.loop,
        asked = questions.map(({ event }) => (event === null ? 0 : (store.all[event]?.time ?? 0) * 1000 - store.skew)).filter(Boolean),
        key = `${status.id} ${Boolean(waiting)}`;
      const since = Math.min(this.sinceOf(key), ...asked);
      found.set(status.id, { id: status.id, name, store, views: [view], questions, waiting, since });
    }
    for (const view of this.views) this.addBranches(view, found);
    for (const key of this.since.keys()) {
      const run = found.get(key.split(" ")[0]);
      if (!run || key !== `${run.id} ${Boolean(run.waiting)}`) this.since.delete(key);
    }
    return [...found.values()].sort((one, other) => one.since - other.since);
  }

  /**
   * The time since which a run waits, or plays out of sight, as far as this page knows.
   * @param {string} key
   */
  sinceOf(key) {
    const since = this.since.get(key) ?? Date.now();
    this.since.set(key, since);
    return since;
  }

  /**
   * Add the branches of a run that wait, unless they have a panel of their own.
   * @param {View} view of the run
   * @param {Map<string, Running>} found
   */
  addBranches(view, found) {
    const { store } = view;
    for (const branch of store.gone ? [] : (store.model.get("branches") ?? [])) {
      const { id, name, waiting, over } = branch,
        known = found.get(id);
      if (known?.branch) known.views.push(view);
      if (over || !waiting || known) continue;
      found.set(id, { id, name, store, views: [view], questions: [], waiting, since: this.sinceOf(`${id} true`), branch });
    }
  }

  /**
   * Fill the bar of a window, which goes when it has nothing to say.
   * @param {HTMLElement} place
   * @param {Running[]} runs
   */
  fill(place, runs) {
    const here = runs.filter(({ views }) => views.some((view) => view.place === place)),
      waiting = here.filter((run) => (run.branch || run.questions.length) && run.views.every((view) => view.asksInSight !== null)),
      hidden = here.filter((run) => !run.waiting && Date.now() - run.since > SECOND && run.views.every((view) => view.isSeen === false)),
      bar = this.bars.get(place);
    if (!bar && !waiting.length && !hidden.length) return;
    const shown = bar ?? new WindowBar(place, () => this.changed());
    this.bars.set(place, shown);
    shown.show(waiting, hidden[0] ?? null);
  }

  /**
   * Say in the output of each cell that waits for a run what the run waits for (notebook/waiting_line.py).
   * @param {Running[]} waiting
   */
  fillCells(waiting) {
    for (const place of document.querySelectorAll("[data-agentnb-waits]")) {
      const id = place.getAttribute("data-agentnb-waits"),
        run = waiting.find((one) => one.id === id && one.questions.length),
        cell = place.closest(".jp-Cell, .cell"),
        isBelow = cell && [...this.views].some((view) => view.store.model.get("status")?.id === id && cell.contains(view.root));
      let line = this.lines.get(place);
      if (!line && (!run || isBelow)) continue;
      if (!line) this.lines.set(place, (line = new CellLine(place, () => this.show(id ?? ""))));
      line.show(run ?? null);
    }
    for (const place of this.lines.keys()) if (!place.isConnected) this.lines.delete(place);
  }

  /**
   * Show the question of a run: in the bar, or where it is in sight.
   * @param {string} id
   */
  show(id) {
    const run = this.runs().find((one) => one.id === id);
    if (!run) return;
    const bar = run.views.some((view) => view.asksInSight) ? null : [...this.bars.values()].find((one) => one.shows(id));
    if (bar) bar.open();
    else run.views[0].go();
  }
}

/** The title of the browser's tab: "(2) " before it while two calls wait. */
class Title {
  constructor() {
    this.waiting = 0;
    this.prefix = "";
    this.isOwn = window.top === window; // the title of a frame is not seen
    this.observer = new MutationObserver(() => this.write());
  }

  /** @param {number} waiting */
  count(waiting) {
    if (waiting === this.waiting || !this.isOwn) return;
    if (!this.waiting) this.observer.observe(document.head, { childList: true, subtree: true, characterData: true });
    this.waiting = waiting;
    this.write();
    if (!waiting) this.observer.disconnect();
  }

  // Also when the front end has set another title meanwhile.
  write() {
    const { title } = document,
      bare = this.prefix && title.startsWith(this.prefix.trimEnd()) ? title.slice(this.prefix.length) : title, // a title has no blank at its end
      prefix = this.waiting ? `(${this.waiting}) ` : "";
    this.prefix = prefix;
    if (title !== (prefix + bare).trimEnd()) document.title = prefix + bare;
  }
}

/**
 * A call on one line, as in code. A text of several lines is counted.
 * @param {Question} item
 */
const lineOfCall = (item) => ["(", ...argumentsLine(item, null).nodes, ")"];

/** The line in the output of a cell that waits. When the call is decided it is empty, but as high: nothing below it jumps. */
class CellLine {
  /**
   * @param {Element} place
   * @param {() => void} show
   */
  constructor(place, show) {
    this.call = el("code", { class: "agentnb-dim agentnb-cut" });
    this.button = button("Show", show, { class: "agentnb-button agentnb-ghost", title: "Show the question" });
    this.button.append(icon("up"));
    this.el = el(
      "div",
      { class: "agentnb agentnb-cell-waits" },
      el("i", { class: "agentnb-glyph", "data-kind": "person", "aria-hidden": "true" }),
      el("span", { class: "agentnb-words", text: "This cell waits for a decision:" }),
      this.call,
      this.button,
    );
    this.shown = ""; // the question
    keepKeys(this.el);
    place.replaceChildren(this.el);
  }

  /** @param {Running | null} run */
  show(run) {
    this.el.style.visibility = run ? "" : "hidden";
    if (!run) return;
    const [item] = run.questions,
      key = identityOf(item);
    if (this.shown === key) return;
    this.shown = key;
    this.call.replaceChildren(visible(item.name), ...lineOfCall(item));
  }
}

/** A question in the bar: the call of the panel (call.js), laid out in a line that opens. */
class Asked {
  /**
   * @param {Running} run
   * @param {WindowBar} bar
   */
  constructor(run, bar) {
    const [item] = run.questions;
    this.run = run;
    this.table = true; // so the call is a line until it is opened
    this.bar = bar;
    const call = new Call(run.store, item, this);
    this.call = this.current = call;
    this.who = el("b", { class: "agentnb-bar-name", text: run.name });
    this.words = el("span", { class: "agentnb-bar-words" });
    this.since = el("span", { class: "agentnb-dim", "aria-hidden": "true" });
    const mark = () => el("i", { class: "agentnb-glyph", "data-kind": "person", "aria-hidden": "true" }),
      push = () => el("span", { class: "agentnb-push" });
    const top = el(
      "div",
      { class: "agentnb-bar-top" },
      mark(),
      el("b", { class: "agentnb-bar-name", text: run.name }),
      el("span", { class: "agentnb-bar-words" }, item.unknown ? "may have run " : "asks to run ", el("code", {}, el("b", { text: item.name }))),
      item.path ? el("span", { class: "agentnb-path", text: item.path }) : null,
      ...badges(item).slice(item.unknown ? 0 : 1),
      this.since,
      call.lefts[1],
      push(),
      goButton("Open panel", () => run.views[0].go()),
      iconOnly("down", "Fold", () => this.fold(), { "aria-expanded": "true", title: "Fold (Esc)" }),
    );
    // The buttons, in the same place whether the line is open or not.
    const { approves, rejects, back, extra, choices, remember, toggles } = call,
      extras = el("span", { class: "agentnb-extras" }, item.unknown ? toggles.Edit : null, toggles.Replace);
    const main = item.unknown ? [rejects, approves, toggles.Answer] : [rejects, toggles.Edit, approves];
    choices.replaceChildren(...[remember?.el, extra, extras, back, ...main].filter((node) => node !== undefined));
    call.review.classList.remove("agentnb-ghost");
    call.review.classList.add("agentnb-primary");
    this.line = el(
      "div",
      { class: "agentnb-bar-line" },
      el("span", { class: "agentnb-bar-said" }, mark(), this.who, this.words, call.text),
      el("span", { class: "agentnb-bar-keys agentnb-dim", text: "A, E and R work while this bar has the focus" }),
      push(),
      call.lefts[0],
      call.review,
      choices,
    );
    call.more.remove();
    call.given.region.setAttribute("aria-label", visible(`Arguments of ${item.name}, of ${run.name}`)); // the panel has a region of the usual name
    call.el.className = "agentnb-bar-call";
    call.el.tabIndex = -1;
    call.el.replaceChildren(top, call.body, this.line);
    this.update(run, 0);
    this.sized = new ResizeObserver(() => this.measure());
    this.sized.observe(this.line);
  }

  get el() {
    return this.call.el;
  }

  /**
   * @param {Running} run
   * @param {number} others how many other runs wait
   */
  update(run, others) {
    this.run = run;
    const [item] = run.questions;
    this.call.update(item);
    this.call.liken(null, true);
    say(this.words, whatWaits(run, others));
    say(this.since, minutes((Date.now() - run.since) / SECOND));
    this.measure();
  }

  // Whether the whole call fits on the line: measured with the buttons that it has then.
  measure() {
    const { call } = this;
    if (!call.isClosed()) return;
    call.el.classList.add("agentnb-fits");
    call.measure();
    const fits = call.fits && !call.item.view && !call.item.unknown;
    call.el.classList.toggle("agentnb-fits", fits);
    call.review.hidden = fits;
  }

  open() {
    if (this.call.isClosed()) this.call.unfold();
    this.call.el.focus({ preventScroll: true });
  }

  fold() {
    const { call } = this;
    if (call.open) call.toggle(call.open);
    if (!call.isClosed()) call.unfold();
    this.measure();
    (call.review.hidden ? call.approves : call.review).focus({ preventScroll: true });
  }

  /**
   * Handle a key before the call does: no letter decides about a call that the line does not show in full.
   * @param {KeyboardEvent} event
   */
  key(event) {
    const { call } = this,
      isFolded = call.isClosed();
    if (event.key === "Escape" && !isFolded && !call.open) {
      event.stopPropagation();
      this.fold();
    } else if (isFolded && !call.el.classList.contains("agentnb-fits") && event.key.length === 1 && event.key !== " ") {
      event.stopPropagation();
    }
  }

  // -- what the call wants from the list around it (approvals.js)

  count() {
    this.measure();
  }

  concern() {}

  show() {}

  reveal() {}

  step() {}

  /**
   * @param {Call[]} calls
   * @param {Verdict} verdict
   */
  send(calls, verdict) {
    const had = this.el.contains(document.activeElement);
    sendDecision(this.run.store, calls, verdict, (late) => {
      this.bar.tell(late.join("\n"));
      if (this.call.error.textContent && this.call.isClosed()) this.call.unfold();
    });
    this.bar.decided = had;
  }

  dispose() {
    this.sized.disconnect();
    this.call.dispose();
    this.el.remove();
  }
}

/**
 * @param {string} name
 * @param {() => void} act
 * @param {string} [title]
 */
function goButton(name, act, title = "Show the panel of this run") {
  const made = button(name, act, { class: "agentnb-button agentnb-ghost", title });
  made.append(icon("up"));
  return made;
}

/** @param {number} seconds */
const minutes = (seconds) => `${Math.floor(Math.max(0, seconds) / 60)}:${String(Math.floor(Math.max(0, seconds) % 60)).padStart(2, "0")}`;

/**
 * Make the first part of a line: who waits, for what.
 * @param {string} name
 * @param {string} words
 * @param {...HTMLElement} call
 */
const whoWaits = (name, words, ...call) =>
  el(
    "span",
    { class: "agentnb-bar-said" },
    el("i", { class: "agentnb-glyph", "data-kind": "person", "aria-hidden": "true" }),
    el("b", { class: "agentnb-bar-name", text: name }),
    el("span", { class: "agentnb-bar-words", text: words }),
    el("span", { class: "agentnb-call-text" }, ...call),
  );

/**
 * What waits, after the name of the run.
 * @param {Running} run
 * @param {number} others
 */
function whatWaits(run, others) {
  if (others) return `and ${others} more wait`;
  return run.waiting > 1 ? `waits for you, 1 of ${run.waiting}` : "waits for you";
}

/** The bar of one window. */
class WindowBar {
  /**
   * @param {HTMLElement} place
   * @param {() => void} changed
   */
  constructor(place, changed) {
    this.place = place;
    this.changed = changed;
    this.asked = /** @type {Asked | null} */ (null);
    this.key = "";
    this.decided = false; // whether the question that was here was decided here, with the focus
    this.before = /** @type {HTMLElement | null} */ (null); // what had the focus before
    this.spoken = el("div", { class: "agentnb-bar-spoken", role: "status", "aria-live": "polite" });
    this.content = el("div", { class: "agentnb-bar-content" });
    this.el = el(
      "div",
      { class: "agentnb agentnb-waitbar mathjax_ignore tex2jax_ignore", role: "region", "aria-label": "Waiting for you", hidden: true },
      this.content,
      this.spoken,
    );
    keepFocus(this.el);
    keepKeys(this.el);
    this.el.addEventListener("keydown", (event) => this.asked?.key(event), true);
    this.el.addEventListener("keydown", (event) => this.letter(event));
    // As in the panel: the second half of a double click must not decide about the next call.
    this.el.addEventListener(
      "click",
      (event) => {
        if (event.detail > 1 && /** @type {Element} */ (event.target).closest("button")) event.stopPropagation();
      },
      true,
    );
    this.el.addEventListener("focusin", ({ relatedTarget }) => {
      if (relatedTarget instanceof HTMLElement && !this.el.contains(relatedTarget)) this.before = relatedTarget;
    });
    this.host = el("div", { class: place === document.body ? "agentnb-bar-place agentnb-bar-fixed" : "agentnb-bar-place" }, this.el);
    place.append(this.host);
    this.makeRoom();
  }

  // The last cell must not be covered. The room stays while the panels do: so nothing jumps when the bar comes and goes.
  makeRoom() {
    const scroller = this.place === document.body ? this.place : this.place.querySelector(".jp-WindowedPanel-outer") ?? this.place.querySelector(SCROLLER);
    if (!(scroller instanceof HTMLElement)) return;
    this.room = scroller;
    this.roomBefore = scroller.style.paddingBottom;
    scroller.style.paddingBottom = `calc(${getComputedStyle(scroller).paddingBottom} + ${BAR_HEIGHT}px)`;
  }

  /** @param {string} id of a run */
  shows(id) {
    return this.asked?.run.id === id;
  }

  open() {
    this.asked?.open();
  }

  /** @param {string} words */
  tell(words) {
    say(this.spoken, words);
  }

  /**
   * @param {Running[]} waiting oldest first
   * @param {Running | null} playing out of sight
   */
  show(waiting, playing) {
    const isHeld = this.asked && (this.asked.el.contains(document.activeElement) || !this.asked.call.isClosed()),
      held = isHeld ? waiting.find(({ questions }) => questions.length && identityOf(questions[0]) === this.key) : null,
      unseen = waiting.filter(({ branch, views }) => branch || !views.some((view) => view.asksInSight)),
      run = held ?? unseen[0] ?? waiting[0] ?? null;
    (run ?? playing)?.views[0].dress(this.host);
    this.el.setAttribute("aria-label", run || !playing ? "Waiting for you" : "Playing");
    if (run?.branch) this.offer(run, run.branch, waiting.length - 1);
    else if (run && (held || unseen.length)) this.ask(run, waiting.length - 1);
    else if (run) this.point(run, waiting.length - 1);
    else if (playing) this.play(playing);
    else this.clear("");
    this.el.hidden = !(run ?? playing);
    if (this.el.hidden && this.decided) {
      this.decided = false;
      const { before } = this;
      if (before?.isConnected && (!document.activeElement || document.activeElement === document.body)) before.focus({ preventScroll: true });
    }
  }

  /**
   * Show a question that is not in sight.
   * @param {Running} run
   * @param {number} others
   */
  ask(run, others) {
    const [item] = run.questions,
      key = identityOf(item);
    if (this.key !== key) {
      const refocus = this.decided;
      this.clear(key);
      this.asked = new Asked(run, this);
      this.content.replaceChildren(this.asked.el);
      if (!run.views.some((view) => view.root.isConnected)) this.tell(`${run.name}: ${inWords(item)} waits for your decision.`); // its panel is not on the page, and cannot say it
      if (refocus) this.asked.el.focus({ preventScroll: true });
      this.decided = false;
    }
    this.asked?.update(run, others);
  }

  /**
   * Name a branch that waits and is not opened, and offer to open it.
   * @param {Running} run
   * @param {BranchState} branch
   * @param {number} others
   */
  offer(run, branch, others) {
    const { asks, name } = branch,
      [view] = run.views,
      key = `branch ${branch.id} ${asks} ${others} ${run.waiting}`;
    if (this.key === key) return;
    this.clear(key);
    const of = run.store.model.get("status")?.run ?? "",
      open = button("Open", () => view.open(branch), { class: "agentnb-button agentnb-primary", title: "Open the branch, to decide" });
    this.content.replaceChildren(
      el(
        "div",
        { class: "agentnb-bar-line" },
        whoWaits(name, whatWaits(run, others), el("code", { class: "agentnb-cut", text: asks })),
        el("span", { class: "agentnb-push" }),
        el("span", { class: "agentnb-dim agentnb-bar-of", text: of ? `branch of ${of}` : "a branch" }),
        open,
      ),
    );
    this.tell(`The branch ${name}: ${asks} waits for your decision.`); // its panel is not on the page, and cannot say it
  }

  /**
   * Say that a question is in sight.
   * @param {Running} run
   * @param {number} others
   */
  point(run, others) {
    const [item] = run.questions,
      key = `in sight ${identityOf(item)} ${others} ${run.waiting}`;
    if (this.key === key) return;
    this.clear(key);
    this.content.replaceChildren(
      el(
        "div",
        { class: "agentnb-bar-line" },
        whoWaits(run.name, whatWaits(run, others), el("code", { class: "agentnb-tool", text: item.name }), el("code", { class: "agentnb-call-args" }, ...lineOfCall(item))),
        el("span", { class: "agentnb-push" }),
        el("span", { class: "agentnb-dim", text: "shown above" }),
        goButton("Go to it", () => (run.views.find((view) => view.asksInSight) ?? run.views[0]).go(), "Go to the question"),
      ),
    );
  }

  /**
   * Show a run that plays out of sight.
   * @param {Running} run
   */
  play(run) {
    const key = `plays ${run.id}`,
      status = run.store.model.get("status") ?? {},
      { input_tokens: sent = 0, output_tokens: received = 0 } = status.usage ?? {};
    if (this.key !== key) {
      this.clear(key);
      this.phase = el("span", { class: "agentnb-dim agentnb-cut" });
      this.pause = iconButton("pause", "Pause", () => this.askToPause(run), { title: "Pause before the next step" });
      this.content.replaceChildren(
        el(
          "div",
          { class: "agentnb-bar-line agentnb-bar-plays" },
          el("i", { class: "agentnb-ring", "aria-hidden": "true" }),
          el("b", { class: "agentnb-bar-name", text: run.name }),
          this.phase,
          el("span", { class: "agentnb-push" }),
          this.pause,
          goButton("Open", () => run.views[0].go()),
        ),
      );
    }
    if (this.phase) say(this.phase, [status.phase, sent + received ? `${number(sent + received)} tokens` : ""].filter(Boolean).join(" \u00b7 "));
    if (this.pause) this.pause.disabled = !status.can?.Pause;
  }

  /** @param {Running} run */
  askToPause(run) {
    run.store.ask({ type: "control", action: "Pause", unit: "event", text: "", name: "" }, (answer) => {
      if (!answer.ok) this.tell(answer.error);
      this.changed();
    });
  }

  /** @param {string} key of what is shown next */
  clear(key) {
    this.key = key;
    this.asked?.dispose();
    this.asked = null;
    if (!key) this.content.replaceChildren();
  }

  /** @param {KeyboardEvent} event */
  letter(event) {
    if (event.key !== "Escape" || isTyping(/** @type {Element} */ (event.target)) || event.defaultPrevented) return;
    if (this.before?.isConnected) this.before.focus({ preventScroll: true });
  }

  dispose() {
    this.clear("");
    this.host.remove();
    if (this.room) this.room.style.paddingBottom = this.roomBefore ?? "";
  }
}

/**
 * The bars of the page, which all modules on it share.
 * @returns {Bars}
 */
function barsOfPage() {
  const page = /** @type {Record<symbol, Bars>} */ (/** @type {unknown} */ (window));
  return (page[BARS_OF_PAGE] ??= new Bars());
}

/**
 * Let the bars know a panel.
 * @param {Store} store
 * @param {HTMLElement} root
 * @param {{ dress: (host: HTMLElement) => void, open: (branch: BranchState) => void }} acts
 * @returns {() => void} lets them forget it
 */
export function inBars(store, root, acts) {
  const view = new View(store, root, acts),
    bars = barsOfPage();
  bars.add(view);
  return () => bars.remove(view);
}
