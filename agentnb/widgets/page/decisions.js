// The decisions: those that can still be undone, those that are remembered, and the newest with who made them and when.

import { BUSY, allow, button, count, el, enable, say } from "./text.js";

/** @param {number} seconds */
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en", { hour12: false });

export class Decided {
  /**
   * @param {Store} store
   * @param {(answer: Done) => void} answered
   * @param {boolean} inTrace whether the trace shows how each call was decided
   */
  constructor(store, answered, inTrace) {
    this.store = store;
    this.inTrace = inTrace;
    this.answered = answered;
    this.rows = /** @type {Map<string, HTMLElement>} */ (new Map());
    this.listed = ""; // the decisions that are listed
    this.every = button("Undo all", (event) => this.ask(event.currentTarget, { type: "undo" }), {
      title: "Withdraw all of these decisions; the calls wait for a decision again",
    });
    this.openCount = el("span", { class: "agentnb-dim" });
    this.bar = el("div", { class: "agentnb-undo-bar", hidden: true }, this.openCount, this.every);
    this.open = el("ul", { class: "agentnb-decided", "aria-label": "Decided, not started yet" });
    this.rules = el("ul", { class: "agentnb-decided", "aria-label": "Remembered decisions" });
    this.count = el("summary");
    this.list = el("ol", { class: "agentnb-decided", "aria-label": "Newest decisions", tabindex: "0" });
    this.past = el("details", { class: "agentnb-past" }, this.count, this.list);
    this.el = el("div", { class: "agentnb-decisions", hidden: true }, this.bar, this.open, this.rules, this.past);
    this.update();
  }

  /** @param {Set<number | undefined>} [shown] the decisions that are shown elsewhere */
  update(shown = new Set()) {
    const { recent = [], rules = [], open = 0 } = this.store.model.get("decisions") ?? {};
    this.bar.hidden = open < 2;
    say(this.openCount, `${count(open, "decided call")} ${open === 1 ? "has" : "have"} not started.`);
    allow(this.every, this.store);
    this.show(
      this.open,
      recent.filter((one) => one.undo && !shown.has(one.event)).map((one) => ["undo", one, one.words]),
    );
    this.show(
      this.rules,
      rules.map((rule) => ["forget", rule, rule.words]),
    );
    say(this.count, recent.length < 20 ? count(recent.length, "decision") : "The newest 20 decisions");
    const key = recent.map((one) => one.event).join();
    if (key !== this.listed) {
      this.listed = key;
      this.list.replaceChildren(...recent.map((one) => this.line(one, one.words)));
    }
    this.past.hidden = !recent.length || this.inTrace;
    this.el.hidden = this.past.hidden && this.open.hidden && this.rules.hidden && this.bar.hidden;
  }

  /**
   * @param {HTMLElement} list
   * @param {[what: "undo" | "forget", one: Decision | Rule, words: string][]} wanted
   */
  show(list, wanted) {
    const keys = new Set(wanted.map(([what, one]) => `${what} ${one.event}`));
    for (const [key, row] of this.rows)
      if (row.parentNode === list && !keys.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    for (const [what, one, words] of wanted) {
      const key = `${what} ${one.event}`;
      const row = this.rows.get(key) ?? this.line(one, words, this.button(what, one));
      if (!this.rows.has(key)) {
        this.rows.set(key, row);
        list.append(row);
      }
      for (const control of row.querySelectorAll("button")) allow(control, this.store);
    }
    list.hidden = !wanted.length;
  }

  /**
   * @param {"undo" | "forget"} what
   * @param {Decision | Rule} one
   */
  button(what, one) {
    const name = what === "undo" ? "Undo" : "Forget";
    return button(name, (event) => this.ask(event.currentTarget, { type: what, event: one.event }), {
      class: "agentnb-button agentnb-ghost",
      hidden: what === "undo" && "undo" in one && !one.undo,
      "aria-label": `${name}: ${one.name}`,
      title: what === "undo" ? "Withdraw this decision; the call waits for a decision again (U)" : "Later calls need a decision again",
    });
  }

  /**
   * @param {HTMLButtonElement} control
   * @param {{ type: "undo", event?: number } | { type: "forget", event: number }} message
   */
  ask(control, message) {
    if (control.getAttribute("aria-disabled") === "true") return;
    enable(control, false, BUSY);
    this.send(message, () => enable(control, true));
  }

  /**
   * @param {{ type: "undo", event?: number } | { type: "forget", event: number }} message
   * @param {() => void} [then]
   */
  send(message, then) {
    this.store.ask(message, (answer) => {
      then?.();
      this.answered(answer);
    });
  }

  /**
   * @param {Decision | Rule} one
   * @param {string} words
   * @param {HTMLButtonElement | null} [control]
   */
  line(one, words, control = null) {
    return el(
      "li",
      { "data-decision": one.decision },
      control ? el("span", { class: "agentnb-dim agentnb-decided-kind", text: "undo" in one ? "not started" : "remembered" }) : null,
      one.path ? el("span", { class: "agentnb-path", text: one.path }) : null,
      el("code", { text: one.name }),
      one.arguments ? el("span", { class: "agentnb-brief", text: one.arguments }) : null,
      el("span", { class: "agentnb-decided-words", text: one.reason ? `${words}: ${one.reason}` : words }),
      el("time", { class: "agentnb-dim", datetime: new Date(one.time * 1000).toISOString(), text: clock(one.time) }),
      control,
    );
  }
}
