// The calls that wait for a person: one as a card, many as rows that are grouped by tool and decided together.

import { allow, button, count, el, say, unique } from "./text.js";
import { Call, REMEMBER, remembering, sendDecision } from "./call.js";
import { badges } from "./asking.js";
import { Decided } from "./decisions.js";
import { isTyping } from "./focus.js";
import { isEnter } from "./keys.js";
import { likeness } from "./values.js";

const SPEAK_EVERY = 2000, // milliseconds: many calls may come at once, and each would be read out
  READ_OUT = 80; // characters of an argument that are read out
const UNSEEN = "Some of these calls have not been shown in full.";

/**
 * Identifies a question. A new question about the same call is another one, even if this page has not seen the decision.
 * @param {Question} item
 */
export const identityOf = ({ run, path, event, id, attempt, digest }) => JSON.stringify([run, path, event, id, attempt, digest]);

/**
 * What the rows are grouped by: the tool, of a study also the arm.
 * @param {Call} call
 */
const toolOf = ({ item }) => JSON.stringify([item.group ?? item.path ?? "", item.name]);

/**
 * A call in words: its tool, its first argument and its loop.
 * @param {Question} item
 */
export function inWords({ name, values, path }) {
  const [first] = values ?? [],
    argument = first ? ` (${first.name} ${first.text.slice(0, READ_OUT)})` : "";
  return `${name}${argument}${path ? `, in ${path}` : ""}`;
}

/** The heading of the calls of one tool; a press on the tool selects them. */
class Heading {
  /**
   * @param {Question | null} item one of the calls; null for calls that each have a tool of their own
   * @param {() => void} choose
   */
  constructor(item, choose) {
    this.words = el("span", { class: "agentnb-dim" });
    const name = item ? `Select by tool: ${item.group ? `${item.group} ` : ""}${item.name}` : "";
    this.tool = item
      ? button("", choose, { class: "agentnb-call-text", "aria-label": name, title: "Select these calls" })
      : null;
    const where = item?.group ?? item?.path;
    if (where) this.tool?.append(el("span", { class: "agentnb-path", text: where }), " ");
    if (item) this.tool?.append(el("code", { class: "agentnb-tool", text: item.name }));
    this.el = el("div", { class: "agentnb-group" }, this.tool, ...(item ? badges(item).slice(1) : []), this.words);
  }

  /**
   * @param {number} calls
   * @param {string[] | null} names the arguments that differ; null if the tools do
   */
  update(calls, names) {
    const amount = count(calls, "call");
    if (!names || calls < 2) say(this.words, names ? amount : calls > 1 ? `${amount}, each of its own kind` : "1 other call");
    else if (!names.length) say(this.words, `${amount}, exactly alike`);
    else if (this.listed !== `${amount} ${names.join()}`) {
      const listed = names.slice(0, 3).flatMap((name, i) => [i ? ", " : "", el("code", { text: name })]);
      this.words.replaceChildren(`${amount}, alike but for `, ...listed, names.length > 3 ? " and others" : "");
    }
    this.listed = `${amount} ${names?.join()}`;
  }
}

export class Approvals {
  /**
   * @param {Store} store
   * @param {boolean} alone whether the panel has no other part
   * @param {Trace | null} [trace] in a row of which the card unfolds
   */
  constructor(store, alone, trace = null) {
    this.store = store;
    this.trace = trace;
    this.rows = /** @type {number[]} */ ([]); // the rows of the trace that the card replaces; it is in the first
    this.empty = alone ? el("p", { class: "agentnb-empty", text: "No call waits for a decision." }) : null;
    this.calls = /** @type {Map<string, Call>} */ (new Map()); // those that wait
    this.order = /** @type {Call[]} */ ([]); // all that are shown, also those just decided
    this.table = false; // whether calls are rows; it stays so until none waits
    this.current = /** @type {Call | null} */ (null); // the row that was opened or had the focus last
    this.grouped = new Set(); // the tools that have a heading
    this.headings = /** @type {Map<string, Heading>} */ (new Map());
    this.others = new Heading(null, () => {});
    this.spoken = el("div", { class: "agentnb-spoken", role: "status", "aria-live": "polite" });
    this.news = /** @type {string[]} */ ([]); // the calls that are to be announced
    this.made = /** @type {string[]} */ ([]); // what others have decided, to be announced
    this.speaking = 0;

    // The bar of several calls: it selects them, and decides about those selected.
    this.every = el("input", {
      type: "checkbox",
      class: "agentnb-box",
      "aria-label": "Select all",
      onchange: () => this.choose(() => this.every.checked),
    });
    this.heading = el("b", { class: "agentnb-waits" });
    this.how = el("span", { class: "agentnb-dim" });
    this.remember = remembering(store.remembers ?? { ...REMEMBER, tool: "always for these tools in this run" });
    this.approves = button("", () => this.decide("approve", this.picked(), this.remember.choice.value), {
      class: "agentnb-button agentnb-strong",
      title: "Run the selected calls; a call with an open form runs with the values of its form",
    });
    this.rejects = button("", () => this.reject(), {
      class: "agentnb-button agentnb-strong",
      "aria-expanded": "false",
      title: "Do not run the selected calls; the model is informed",
    });
    this.set = el("span", { class: "agentnb-set" }, this.remember.el, this.approves, this.rejects);
    this.reason = el("input", {
      class: "agentnb-input",
      type: "text",
      placeholder: "Reason for all (sent to the model)",
      "aria-label": "Reason for the selected calls",
      hidden: true,
    });
    this.reason.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (isEnter(event)) this.rejects.click();
      if (event.key === "Escape") this.ask(false);
    });
    this.missing = el("span");
    this.opener = button("Open them", () => this.openUnread(), {
      class: "agentnb-button agentnb-strong",
      title: "Show the selected calls in full",
    });
    this.unread = el("div", { class: "agentnb-rest", hidden: true }, this.missing, this.opener);
    this.bulk = el(
      "div",
      { class: "agentnb-bulk", role: "group", "aria-label": "Selected calls" },
      this.every,
      this.heading,
      this.how,
      el("span", { class: "agentnb-push" }),
      this.set,
    );
    this.list = el("div", { class: "agentnb-waiting-list" });
    this.note = el("p", { class: "agentnb-note agentnb-told", role: "status" });
    this.instead = el("code");
    this.then = el(
      "p",
      { class: "agentnb-hint agentnb-then", id: `agentnb-${unique()}`, hidden: true },
      "A recording takes no decisions. ",
      this.instead,
      " starts another run that continues from here.",
    );
    const place = { class: "agentnb-waiting", role: "group", "aria-label": "Waiting calls", tabindex: "-1" };
    this.waiting = el("div", place, this.then, this.bulk, this.reason, this.unread, this.list);
    this.decided = new Decided(
      store,
      (answer) => this.showNote(answer.ok ? (answer.note ?? "") : answer.error, answer.ok),
      Boolean(trace),
    );
    this.el = el("div", { class: "agentnb-approvals" }, this.spoken, this.empty, this.waiting, this.note, this.decided.el);
    // The next question may appear under the pointer within milliseconds. The second half of a double click must not decide
    // about a call that nobody has read yet.
    const halfClick = (/** @type {MouseEvent} */ event) => {
      if (event.detail > 1 && /** @type {Element} */ (event.target).closest("button")) event.stopPropagation();
    };
    for (const part of [this.waiting, this.el]) {
      part.addEventListener("click", halfClick, true);
      part.addEventListener("keydown", (event) => this.key(event));
    }
    this.sized = new ResizeObserver(() => this.measure());
    this.sized.observe(this.list);
    this.timer = setInterval(() => this.tick(), 1000);
    this.update("pending");
  }

  picked() {
    return [...this.calls.values()].filter((call) => call.pick.checked);
  }

  // -- what is shown

  /** @param {News} what */
  update(what) {
    if (what === "decisions") {
      this.decided.update(this.settledEvents());
      for (const { settled, el: row } of this.order) {
        const one = settled && this.decisions().find((made) => made.event === settled.event);
        for (const undo of settled ? row.querySelectorAll("button") : []) undo.hidden = !one?.undo;
      }
      return undefined;
    }
    if (what === "position") return this.recall();
    if (what === "rows") return this.place();
    const pending = this.store.model.get("pending") ?? [];
    const keys = new Set(pending.map(identityOf));
    const refocus = this.remove(keys);
    const added = [];
    for (const item of pending) {
      const key = identityOf(item);
      if (!this.calls.has(key)) {
        for (const old of this.order) if (old.settled && old.item.id === item.id && old.item.path === item.path) this.drop(old);
        this.calls.set(key, new Call(this.store, item, this));
        added.push(inWords(item));
      }
    }
    this.table = this.calls.size > 1 || (this.table && this.calls.size > 0);
    if (!this.table) this.grouped.clear();
    this.sort(pending.map((item) => /** @type {Call} */ (this.calls.get(identityOf(item)))));
    this.arrange();
    this.place();
    for (const item of pending) this.calls.get(identityOf(item))?.update(item);
    // The page gets only the first of many calls; the others follow as these are decided.
    const waiting = this.all();
    const shown = waiting > pending.length ? `; the first ${pending.length} are shown` : "";
    this.announce(added, waiting);
    say(this.heading, waiting === 1 ? "1 call waits for you" : `${waiting} calls wait for you${shown}`);
    this.waiting.classList.toggle("agentnb-none", !this.order.length);
    this.waiting.classList.toggle("agentnb-many", this.table);
    this.bulk.hidden = !this.table;
    if (this.empty) this.empty.hidden = pending.length > 0;
    this.recall();
    this.count();
    this.measure();
    this.decided.update(this.settledEvents());
    refocus?.();
    return undefined;
  }

  // How many calls wait, also those that the page does not have yet.
  all() {
    return Math.max(this.calls.size, this.store.model.get("status")?.waiting ?? 0);
  }

  decisions() {
    return this.store.model.get("decisions")?.recent ?? [];
  }

  settledEvents() {
    return new Set(this.order.map(({ settled }) => settled?.event));
  }

  /**
   * Remove the calls that are decided; among several, the row stays for some seconds. If a call that was decided here had
   * the focus, return a function that moves the focus to the next call. If another person decided it, the focus does not
   * move to a button: the next key would press it.
   * @param {Set<string>} keys
   */
  remove(keys) {
    const { activeElement } = document,
      at = this.order.findIndex((call) => call.el.contains(activeElement)),
      inBar = this.bulk.contains(activeElement),
      same = activeElement instanceof HTMLElement ? activeElement.dataset.do : "",
      row = this.store.all[this.order[at]?.item.event ?? -1],
      others = at < 0 ? this.order : [...this.order.slice(at + 1), ...this.order.slice(0, at).reverse()];
    let lost = false;
    for (const [key, call] of this.calls)
      if (!keys.has(key)) {
        const { name, id, path, event } = call.item;
        lost ||= call.busy && (call === this.order[at] || inBar);
        const typed = call.typed.size ? "the values that were typed" : call.reason.value ? "the reason that was typed" : "";
        const is = call.typed.size ? "are" : "is";
        if (typed && !call.busy) this.showNote(`${name} no longer waits for a decision; ${typed} ${is} not used.`, false);
        const made = this.decisions().find((one) => one.id === id && one.path === path && (event === null || one.asked === event));
        if (made && !call.busy) this.made.push(`${name}: ${made.words}.`);
        this.calls.delete(key);
        call.dispose();
        if (this.table && !this.store.replays && made && made.decision !== "ask") call.settle(made, this.decided.button("undo", made));
        else this.drop(call);
      }
    if (!lost) return null;
    return () => {
      const next = others.find((call) => !call.settled && this.order.includes(call));
      // From the list the next question is one Tab away, and no key answers it unread.
      if (next) next.focus(same);
      else if (this.trace && row) {
        this.store.select(row);
        this.trace.grid.focus({ preventScroll: true });
      } else this.waiting.focus({ preventScroll: true });
    };
  }

  /** @param {Call} call */
  drop(call) {
    call.el.remove();
    call.dispose();
    this.order = this.order.filter((one) => one !== call);
    if (this.current === call) this.current = null;
  }

  /**
   * Put the calls in the order in which they were made; a call that was decided keeps its place.
   * @param {Call[]} waiting
   */
  sort(waiting) {
    const order = [...waiting];
    for (const [at, call] of this.order.entries())
      if (call.settled) {
        const before = this.order.slice(0, at).findLast((one) => order.includes(one));
        order.splice(before ? order.indexOf(before) + 1 : 0, 0, call);
      }
    this.order = order;
  }

  // Group the rows by tool. A group stays while its calls wait, so that rows do not move between groups.
  arrange() {
    const byTool = /** @type {Map<string, Call[]>} */ (new Map());
    for (const call of this.order) byTool.set(toolOf(call), [...(byTool.get(toolOf(call)) ?? []), call]);
    for (const [tool, calls] of byTool) if (this.table && calls.length > 1) this.grouped.add(tool);
    const nodes = /** @type {Element[]} */ ([]),
      single = /** @type {Call[]} */ ([]),
      waiting = (/** @type {Call[]} */ calls) => calls.filter((call) => !call.settled).length;
    for (const [tool, calls] of byTool) {
      if (!this.grouped.has(tool)) {
        single.push(...calls);
        continue;
      }
      const [{ item }] = calls,
        heading = this.headings.get(tool) ?? new Heading(item, () => this.chooseTool(tool)),
        alike = likeness(calls.map((call) => call.item));
      this.headings.set(tool, heading);
      heading.update(waiting(calls), alike.names);
      for (const call of calls) if (!call.settled) call.liken(alike, false);
      nodes.push(heading.el, ...calls.map((call) => call.el));
    }
    for (const call of single) if (!call.settled) call.liken(null, true);
    this.others.update(waiting(single), null);
    if (nodes.length && waiting(single)) nodes.push(this.others.el);
    nodes.push(...single.map((call) => call.el));
    // Move only the nodes that are at another place: a node that is moved loses the focus and how far it was scrolled.
    const focused = document.activeElement;
    for (const node of [...this.list.children]) if (!nodes.includes(node)) node.remove();
    let next = this.list.firstChild;
    for (const node of nodes) {
      if (node === next) next = next.nextSibling;
      else this.list.insertBefore(node, next);
    }
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.list.contains(focused))
      focused.focus({ preventScroll: true });
  }

  // Unfold the card in the trace: in the row of the first call that waits, or has just been decided. It stays there while
  // that row does. The rows of the other calls are hidden: the card has them. While another tab is shown, the card is
  // above its view: a question is never out of sight.
  place() {
    const { trace, waiting } = this;
    if (!trace) return;
    const shown = trace.isSeen() ? this.order : [],
      found = shown.map(({ item }) => (item.event === null ? -1 : trace.rowOf(item.event))).filter((row) => row >= 0),
      [anchor] = this.rows,
      rows = found.includes(anchor) ? [anchor, ...found.filter((row) => row !== anchor)] : found;
    if (JSON.stringify(rows) === JSON.stringify(this.rows)) return;
    const focused = waiting.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null,
      { scrollTop } = this.list;
    for (const row of this.rows) if (!rows.includes(row)) trace.shrink(`question ${row}`);
    if (!rows.length) this.note.before(waiting);
    for (const [i, row] of rows.entries())
      trace.grow(`question ${row}`, row, i ? el("span") : waiting, { kind: i ? "hidden" : "question" });
    this.rows = rows;
    this.list.scrollTop = scrollTop; // an element that is moved loses this, and the focus
    if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
  }

  measure() {
    for (const call of this.calls.values()) call.measure();
  }

  /**
   * Make a row the one whose Approve is filled, once it is open.
   * @param {Call} call
   */
  concern(call) {
    if (this.current === call) return;
    const before = this.current;
    this.current = call;
    before?.lay();
    call.lay();
    if (this.table) this.store.notify("selected"); // the detail pane shows it
  }

  // The call of several that had the focus last, if it is one line: the detail pane shows and decides it.
  asked() {
    const { current } = this;
    return this.table && current && !current.settled && current.isClosed() && !current.item.unknown ? current : null;
  }

  /**
   * Scroll the list, and nothing around it, so that a call is visible: its end, or its beginning if it is higher.
   * @param {Call} call
   */
  reveal({ el: row }) {
    const { list } = this,
      around = list.getBoundingClientRect(),
      { top, bottom } = row.getBoundingClientRect();
    if (bottom > around.bottom) list.scrollTop += Math.min(bottom - around.bottom, top - around.top);
    else if (top < around.top) list.scrollTop -= around.top - top;
  }

  tick() {
    for (const call of this.calls.values()) call.tick();
    const now = performance.now(),
      over = this.order.filter((call) => call.settled && now > call.until && !call.el.matches(":hover, :focus-within"));
    if (!over.length) return;
    for (const call of over) this.drop(call);
    this.update("pending");
  }

  // -- selecting

  /** @param {(call: Call) => boolean} fits */
  choose(fits) {
    for (const call of this.calls.values()) call.pick.checked = !call.item.unknown && fits(call);
    this.count();
  }

  /**
   * Select the calls of a tool, or none of them if all are selected.
   * @param {string} tool
   */
  chooseTool(tool) {
    const calls = [...this.calls.values()].filter((call) => toolOf(call) === tool),
      all = calls.every((call) => call.pick.checked);
    this.choose((call) => (calls.includes(call) ? !all : call.pick.checked));
  }

  /**
   * Move the focus to the row above or below, and extend the selection.
   * @param {Call} call
   * @param {number} step
   * @param {boolean} extends_ if the next row is selected already, this one is deselected
   * @param {string | undefined} same what the focus is on
   */
  step(call, step, extends_, same) {
    const rows = [...this.list.children].map((node) => this.order.find((one) => one.el === node && !one.settled)).filter((one) => one),
      next = rows[rows.indexOf(call) + step];
    if (!next) return;
    if (extends_ && !this.store.replays) {
      call.pick.checked = !call.item.unknown && !(call.pick.checked && next.pick.checked);
      next.pick.checked = !next.item.unknown;
      this.count();
    }
    next.focus(same);
    this.show(next);
  }

  /**
   * Show a call in the other parts of the panel.
   * @param {Call} call
   */
  show({ item }) {
    if (this.trace && item.event !== null) this.store.select(this.store.all[item.event] ?? null);
  }

  count() {
    const picked = this.picked(),
      { size } = this.calls,
      every = picked.length === size && this.all() === size,
      unread = picked.filter((call) => call.unread());
    const able = [...this.calls.values()].filter((call) => !call.item.unknown).length;
    this.every.checked = able > 0 && picked.length === able;
    this.every.indeterminate = picked.length > 0 && picked.length < able;
    for (const control of [this.every, this.remember.choice]) control.disabled = this.store.replays;
    for (const { tool } of this.headings.values()) if (tool) allow(tool, this.store);
    say(this.how, picked.length ? `${picked.length} selected` : "");
    this.set.hidden = !picked.length;
    if (!picked.length) this.ask(false);
    say(this.approves, every ? "Approve all" : `Approve ${picked.length}`);
    say(this.rejects, `Reject ${picked.length}${this.reason.hidden ? "\u2026" : ""}`);
    allow(this.rejects, this.store, picked.length > 0);
    allow(this.approves, this.store, !unread.length, UNSEEN);
    this.unread.hidden = this.store.replays || !unread.length;
    say(this.missing, `${unread.length} of these ${unread.length === 1 ? "has" : "have"} not been shown in full`);
    const closed = unread.filter((call) => call.isClosed() && !call.fits).length;
    this.opener.hidden = !closed;
    for (const call of this.calls.values()) call.lay();
  }

  openUnread() {
    for (const call of this.picked()) if (call.unread() && call.isClosed()) call.unfold();
    this.count();
  }

  // -- deciding

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Escape" && this.trace) return; // it leaves to the trace
    event.stopPropagation(); // the notebook has shortcuts on bare letters
    const free = !isTyping(/** @type {Element} */ (event.target)) && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!free || event.repeat || event.key.toLowerCase() !== "u" || this.store.replays || this.store.gone) return;
    const last = this.decisions().find((one) => one.undo);
    if (last) this.decided.send({ type: "undo", event: last.event });
  }

  /** @param {boolean} shown whether the reason for all selected calls is asked for */
  ask(shown) {
    if (this.reason.hidden === !shown) return;
    this.reason.hidden = !shown;
    this.rejects.setAttribute("aria-expanded", String(shown));
    if (shown) this.reason.focus();
    this.count();
  }

  reject() {
    if (this.reason.hidden) this.ask(true);
    else this.decide("reject", this.picked(), this.remember.choice.value);
  }

  // In a recording: show that no decision can be made, and how to continue from here with another decision.
  recall() {
    const [first] = this.calls.values();
    this.then.hidden = !this.store.replays || !first;
    if (this.then.hidden) return;
    for (const call of this.calls.values()) {
      call.tick();
      call.el.setAttribute("aria-describedby", this.then.id);
    }
    const { event } = first.item; // the event that asks
    say(this.instead, event === null ? "" : `fork(${event}, decision="reject")`);
  }

  /**
   * Read out what waits, and what others have decided.
   * @param {string[]} added
   * @param {number} waiting
   */
  announce(added, waiting) {
    if (this.store.replays) return; // a recording asks no person
    this.news.push(...added);
    if (!waiting) {
      this.news.length = 0;
      if (!this.made.length) say(this.spoken, "");
    }
    if (!(this.news.length || this.made.length) || this.speaking) return;
    const { news, made } = this,
      run = this.store.model.get("status")?.run;
    say(
      this.spoken,
      [
        made.length > 3 ? `${made.length} calls were decided.` : made.join(" "),
        news.length > 3
          ? `${count(waiting, "call")} wait for your decision.`
          : news.length
            ? `${run ? `${run}: ` : ""}${news.join("; ")} ${news.length > 1 ? "wait" : "waits"} for your decision.`
            : "",
      ]
        .filter(Boolean)
        .join(" "),
    );
    news.length = made.length = 0;
    this.speaking = setTimeout(() => {
      this.speaking = 0;
      this.announce([], this.calls.size);
    }, SPEAK_EVERY);
  }

  /**
   * @param {string} text
   * @param {boolean} ok
   */
  showNote(text, ok) {
    say(this.note, text);
    this.note.classList.toggle("agentnb-bad", !ok);
  }

  /**
   * @param {"approve" | "reject"} decision
   * @param {Call[]} chosen
   * @param {string} remember
   */
  decide(decision, chosen, remember) {
    if (this.store.gone || this.store.replays) return;
    const calls = chosen.filter((call) => !call.busy); // decided calls stay here until the next `pending`
    if (decision === "approve" && calls.some((call) => call.unread())) return;
    const reason = this.reason.value;
    const verdicts = calls.map((call) => call.verdict(decision, remember, false)).filter((one) => one !== null);
    if (!calls.length || verdicts.length < calls.length) return; // a form is not valid: it says so, and nothing is decided
    const because = decision === "reject" && reason ? verdicts.map((one) => ({ ...one, reason: one.reason || reason })) : verdicts;
    this.send(calls, { decisions: because });
    this.reason.value = "";
    this.ask(false);
  }

  /**
   * Send one message for any number of calls. The answer says which decisions were too late, even if their call is gone.
   * @param {Call[]} calls
   * @param {Questions["decision"]} message
   */
  send(calls, message) {
    this.showNote("", true);
    sendDecision(this.store, calls, message, (late) => {
      if (late.length) this.showNote(late.join("\n"), false);
      this.count();
    });
  }

  dispose() {
    clearInterval(this.timer);
    clearTimeout(this.speaking);
    this.sized.disconnect();
    for (const call of this.order) call.dispose();
  }
}
