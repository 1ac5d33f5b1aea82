// The calls that wait for a person: one in full, many as a table in which they are decided together.

import { allow, button, count, el, say, unique } from "./text.js";
import { Call, REMEMBER, UNSEEN, remembering } from "./call.js";
import { Decided } from "./decisions.js";
import { isEnter } from "./keys.js";

const NONE = "Select calls first.";
const SPEAK_EVERY = 2000; // milliseconds: many calls may come at once, and each would be read out

/**
 * Identifies a question. A new question about the same call is another one, even if this page has not seen the decision.
 * @param {Question} item
 */
const question = ({ run, path, event, id, attempt, digest }) => JSON.stringify([run, path, event, id, attempt, digest]);

export class Approvals {
  /**
   * @param {Store} store
   * @param {boolean} alone whether the panel has no other part
   */
  constructor(store, alone) {
    this.store = store;
    this.empty = alone ? el("p", { class: "agentnb-empty", text: "No call waits for a decision." }) : null;
    this.calls = /** @type {Map<string, Call>} */ (new Map());
    this.spoken = el("div", { class: "agentnb-spoken", role: "status", "aria-live": "polite" });
    this.news = /** @type {string[]} */ ([]); // the calls that are to be announced
    this.speaking = 0;
    this.choices = ""; // the choices of the select, as JSON: each tool with its number of calls
    this.names = /** @type {string[]} */ ([]); // the tools in the select
    this.heading = el("span", { class: "agentnb-heading" });
    this.all = button("Approve all", () => this.decide("approve", [...this.calls.values()], ""), {
      class: "agentnb-button agentnb-primary",
      title: "Run all of these calls; a call with an open form runs with the values of its form",
    });
    this.bar = el("div", { class: "agentnb-waiting-bar" }, this.heading, this.all);
    // The bar that is shown for several calls: it selects calls, and decides about those selected.
    this.every = el("input", { type: "checkbox", onchange: () => this.choose(() => this.every.checked) });
    this.byTool = el("select", { class: "agentnb-select", "aria-label": "Select by tool" });
    this.byTool.addEventListener("change", () => {
      if (this.byTool.value) this.choose((call) => call.item.name === this.names[Number(this.byTool.value)]);
      this.byTool.value = "";
    });
    this.remember = remembering({ ...REMEMBER, tool: "always for these tools in this run" });
    this.reason = el("input", {
      class: "agentnb-input",
      type: "text",
      placeholder: "Reason for all",
      "aria-label": "Reason for the selected calls",
    });
    this.selected = {
      approve: button("Approve selected", () => this.decide("approve", this.picked(), this.remember.choice.value), {
        title: "Run the selected calls",
      }),
      reject: button("Reject selected", () => this.decide("reject", this.picked(), this.remember.choice.value), {
        title: "Do not run the selected calls; the model is informed",
      }),
    };
    this.reason.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (isEnter(event)) this.selected.reject.click();
    });
    this.how = el("span", { class: "agentnb-dim agentnb-picked-count" });
    const open = () => {
      for (const call of this.calls.values()) if (call.unread() && call.isClosed()) call.unfold();
    };
    this.opener = button("Open them", open, { class: "agentnb-link" });
    this.unread = el("div", { class: "agentnb-hint agentnb-unread", hidden: true }, `${UNSEEN} `, this.opener);
    this.table = el(
      "div",
      { class: "agentnb-table-bar", role: "group", "aria-label": "Selected calls" },
      el("label", { class: "agentnb-check" }, this.every, "Select all"),
      this.byTool,
      this.how,
      el(
        "span",
        { class: "agentnb-set" },
        this.selected.approve,
        el("span", { class: "agentnb-joined" }, this.selected.reject, this.reason),
        this.remember.el,
      ),
      this.unread,
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
    this.waiting = el("div", place, this.bar, this.then, this.table, this.list);
    this.decided = new Decided(store, (answer) => this.showNote(answer.ok ? (answer.note ?? "") : answer.error, answer.ok));
    this.el = el("div", { class: "agentnb-approvals" }, this.spoken, this.empty, this.waiting, this.note, this.decided.el);
    // The next question may appear under the pointer within milliseconds. The second half of a double click must not decide
    // about a call that nobody has read yet.
    this.el.addEventListener(
      "click",
      (event) => {
        if (event.detail > 1 && /** @type {Element} */ (event.target).closest("button")) event.stopPropagation();
      },
      true,
    );
    this.timer = setInterval(() => {
      for (const call of this.calls.values()) call.tick();
    }, 1000);
    this.update("pending");
  }

  many() {
    return this.calls.size > 1;
  }

  picked() {
    return [...this.calls.values()].filter((call) => call.pick.checked);
  }

  /**
   * @param {Call} call
   * @param {number} step
   * @returns {Call | undefined}
   */
  neighbour(call, step) {
    const calls = [...this.calls.values()];
    return calls[calls.indexOf(call) + step];
  }

  /** @param {(call: Call) => boolean} fits */
  choose(fits) {
    for (const call of this.calls.values()) call.pick.checked = fits(call);
    this.count();
  }

  /** @param {News} what */
  update(what) {
    if (what === "decisions") return this.decided.update();
    if (what === "position") return this.recall();
    const pending = this.store.model.get("pending") ?? [];
    const keys = new Set(pending.map(question));
    const left = this.remove(keys);
    const added = [];
    for (const item of pending) {
      const key = question(item);
      if (!this.calls.has(key)) {
        this.calls.set(key, new Call(this.store, item, this));
        added.push(item.path ? `${item.name} (in ${item.path})` : item.name);
      }
    }
    let next = /** @type {HTMLElement | null} */ (null); // keeps the order of the calls, also if there is a new question about an earlier call
    for (const item of [...pending].reverse()) {
      const call = /** @type {Call} */ (this.calls.get(question(item)));
      if (call.el.parentNode !== this.list) this.list.insertBefore(call.el, next);
      next = call.el;
      call.update(item);
    }
    // The page gets only the first of many calls; the others follow as these are decided.
    const waiting = Math.max(pending.length, this.store.model.get("status")?.waiting ?? 0);
    const shown = waiting > pending.length ? `; the first ${pending.length} are shown` : "";
    this.announce(added, waiting);
    say(this.heading, waiting === 1 ? "1 call waits for you" : `${waiting} calls wait for you${shown}`);
    this.waiting.classList.toggle("agentnb-none", !pending.length);
    this.waiting.classList.toggle("agentnb-many", this.many());
    this.all.hidden = !this.many();
    if (this.empty) this.empty.hidden = pending.length > 0;
    this.recall();
    this.count();
    left?.();
    return undefined;
  }

  /**
   * Remove the calls that are decided. If a call that was decided here had the focus, return a function that moves the
   * focus to the next call. If another person decided it, the focus does not move to a button: the next key would press it.
   * @param {Set<string>} keys
   */
  remove(keys) {
    const nodes = [...this.list.children],
      at = nodes.findIndex((node) => node.contains(document.activeElement)),
      held = at >= 0 ? document.activeElement?.textContent : "";
    let lost = false;
    for (const [key, call] of this.calls)
      if (!keys.has(key)) {
        lost ||= call.el === nodes[at] && call.busy;
        const typed = call.typed.size ? "the values that were typed" : call.reason.value ? "the reason that was typed" : "";
        const is = call.typed.size ? "are" : "is";
        if (typed && !call.busy) this.showNote(`${call.item.name} no longer waits for a decision; ${typed} ${is} not used.`, false);
        call.el.remove();
        call.sight.disconnect();
        this.calls.delete(key);
      }
    if (!lost) return null;
    const left = [...this.list.children];
    return () => {
      const next = left[Math.min(at, left.length - 1)];
      const same = [...(next?.querySelectorAll("button") ?? [])].find((node) => node.textContent === held);
      // From the list the next question is one Tab away, and no key answers it unread.
      const primary = /** @type {HTMLElement | null | undefined} */ (next?.querySelector("button.agentnb-primary"));
      (same ?? primary ?? this.waiting).focus({ preventScroll: true });
    };
  }

  count() {
    const picked = this.picked(),
      { size } = this.calls;
    this.every.checked = size > 0 && picked.length === size;
    this.every.indeterminate = picked.length > 0 && picked.length < size;
    say(this.how, `${picked.length} selected`);
    /** @param {Call[]} calls */
    const unread = (calls) => calls.some((call) => call.unread());
    allow(this.all, this.store, !unread([...this.calls.values()]), UNSEEN);
    allow(this.selected.reject, this.store, picked.length > 0, NONE);
    allow(this.selected.approve, this.store, picked.length > 0 && !unread(picked), picked.length ? UNSEEN : NONE);
    this.opener.disabled = this.unread.hidden =
      this.store.replays || !unread(picked.length ? picked : [...this.calls.values()]);
    for (const control of [this.every, this.byTool, this.reason, this.remember.choice]) control.disabled = this.store.replays;
    const tools = new Map();
    for (const call of this.calls.values()) {
      tools.set(call.item.name, (tools.get(call.item.name) ?? 0) + 1);
      call.lay();
    }
    const names = [...tools.keys()].sort();
    if (JSON.stringify([...tools]) !== this.choices) {
      this.choices = JSON.stringify([...tools]);
      this.names = names;
      this.byTool.replaceChildren(
        el("option", { value: "", text: "Select by tool" }),
        ...names.map((name, i) => el("option", { value: String(i), text: `${name} (${tools.get(name)})` })),
      );
    }
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
   * @param {string[]} added
   * @param {number} waiting
   */
  announce(added, waiting) {
    if (this.store.replays) return; // a recording asks no person
    this.news.push(...added);
    if (!waiting) {
      this.news.length = 0;
      say(this.spoken, "");
    }
    if (!this.news.length || this.speaking) return;
    const { news } = this;
    say(
      this.spoken,
      news.length > 3
        ? `${count(waiting, "call")} wait for your decision.`
        : `${news.join(", ")} ${news.length > 1 ? "wait" : "waits"} for your decision.`,
    );
    news.length = 0;
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
    const verdicts = calls
      .map((call) => call.verdict(decision, call.item.unknown ? "" : remember, false))
      .filter((one) => one !== null);
    if (!calls.length || verdicts.length < calls.length) return; // a form is not valid: it says so, and nothing is decided
    const because = decision === "reject" && reason ? verdicts.map((one) => ({ ...one, reason: one.reason || reason })) : verdicts;
    this.send(calls, { decisions: because });
    this.reason.value = "";
  }

  /**
   * Send one message for any number of calls. The answer says which decisions were too late, even if their call is gone.
   * @param {Call[]} calls
   * @param {Questions["decision"]} message
   */
  send(calls, message) {
    for (const call of calls) call.wait();
    this.showNote("", true);
    this.store.ask({ type: "decision", ...message }, (answer) => {
      const late = [];
      for (const [at, call] of calls.entries()) {
        const error = answer.ok ? answer.failed?.[at] : answer.error;
        const gone = answer.late?.includes(at);
        call.answered(gone ? "" : error);
        if (gone) late.push(`${call.item.name}: ${error}`);
      }
      if (late.length) this.showNote(late.join("\n"), false);
      this.count();
    });
  }

  dispose() {
    clearInterval(this.timer);
    clearTimeout(this.speaking);
  }
}
