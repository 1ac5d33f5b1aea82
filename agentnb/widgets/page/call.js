// One call that waits for a person, and its decisions. A single call is a card; one of several is a row that opens. Both
// are the same element, so typed text is kept when a second call arrives.

import { BUSY, allow, button, el, say, unique } from "./text.js";
import { isTyping } from "./focus.js";
import { Form, Replacement } from "./form.js";
import { icon } from "./icons.js";
import { isEnter } from "./keys.js";
import { badges, timeLeft } from "./asking.js";
import { Arguments, argumentsLine } from "./values.js";

const TEN_SECONDS = 10_000; // milliseconds for which a decided row stays

/** @type {FieldSpec} */
const RESULT = {
  path: [],
  label: "result",
  kind: "text",
  type: "JSON or text",
  required: true,
  given: "value",
  text: "",
  description: "The result of the call.",
};

export const REMEMBER = {
  "": "no",
  arguments: "for exactly these arguments",
  tool: "always for this tool in this run",
};

/**
 * Make the choice of what to remember a decision for.
 * @param {Record<string, string>} [words] for each choice
 */
export function remembering(words = REMEMBER) {
  const choice = el("select", { "aria-label": "Remember", title: "Remember this decision" });
  for (const [value, text] of Object.entries(words)) choice.append(el("option", { value, text }));
  return { choice, el: el("label", { class: "agentnb-pick-one agentnb-bare" }, el("span", { text: "Remember:" }), choice, icon("down")) };
}

/**
 * Make a button with its key. The key is not part of its name.
 * @param {string} text
 * @param {string} key
 * @param {() => void} act
 * @param {Record<string, any>} [extra] attributes
 */
function keyed(text, key, act, extra = {}) {
  const made = button(text, act, { "aria-keyshortcuts": key || null, ...extra });
  if (key) made.append(el("kbd", { "aria-hidden": "true", text: key }));
  return made;
}

/** @typedef {"Edit" | "Replace" | "Answer" | "Reject"} Word what is unfolded in a card */

export class Call {
  /**
   * @param {Store} store
   * @param {Question} item
   * @param {Lister} approvals
   */
  constructor(store, item, approvals) {
    const { unknown } = item;
    this.store = store;
    this.item = item;
    this.approvals = approvals;
    this.busy = false;
    this.since = performance.now(); // when the question was shown first
    this.opened = false; // whether a row is shown in full
    this.open = /** @type {Word | null} */ (null); // what is unfolded
    this.forms = /** @type {{ Edit?: Form, Replace?: Replacement, Answer?: Form }} */ ({});
    this.typed = /** @type {Set<Word | null>} */ (new Set()); // the forms in which something was changed
    this.settled = /** @type {Decision | null} */ (null); // how it was decided, while its row stays
    this.until = 0; // when the row of a decided call goes
    this.likeness = ""; // how its row is written
    this.whole = false; // whether the text of its row has all of the call
    this.fits = false; // whether all of that text is visible
    this.given = new Arguments(
      item,
      (answered) => store.ask({ type: "show", ...this.identity() }, answered),
      () => this.readOn(),
    );
    this.sight = new IntersectionObserver((marks) => marks.some((mark) => mark.isIntersecting) && this.given.see());

    // The row of one of several calls.
    const id = `agentnb-${unique()}`;
    this.pick = el("input", {
      type: "checkbox",
      class: "agentnb-box",
      "data-do": "pick",
      "aria-label": `Select ${item.name} (${item.id})`,
      onchange: () => approvals.count(),
    });
    this.path = item.path ? el("span", { class: "agentnb-path", text: item.path }) : null;
    this.tool = el("code", { class: "agentnb-tool", text: item.name });
    this.brief = el("code", { class: "agentnb-call-args", id });
    // It covers the text: so the text is read on its own, and the button has a name of its own.
    this.more = button("", () => this.unfold(), {
      class: "agentnb-cover",
      "data-do": "details",
      "aria-label": `Details of ${item.name}`,
      "aria-describedby": id,
      "aria-expanded": "false",
    });
    this.text = el("span", { class: "agentnb-call-text" }, this.path, this.tool, this.brief, this.more);
    this.yes = this.small("Approve", "check", () => this.decide("approve"), "Approve (A)");
    this.no = this.small("Reject", "cross", () => this.decide("reject"), "Reject (R: with a reason)");
    this.review = button("Review", () => this.unfold(), {
      class: "agentnb-button agentnb-ghost",
      "data-do": "review",
      title: "The arguments are not shown in full here",
    });
    this.lefts = [1, 2].map(() => el("span", { class: "agentnb-left" }));
    const acts = el("span", { class: "agentnb-acts" }, this.yes, this.review, this.no);
    this.line = el("div", { class: "agentnb-call-line" }, this.pick, this.text, this.lefts[0], acts);

    // The card.
    const head = el(
      "div",
      { class: "agentnb-asking" },
      el("i", { class: "agentnb-glyph", "data-kind": "person" }),
      item.path ? el("span", { class: "agentnb-path", text: item.path }) : null,
      el("code", { text: item.name }),
      ...badges(item),
      unknown ? el("span", { class: "agentnb-dim agentnb-cut", text: "the kernel ended while it ran" }) : null,
      el("span", { class: "agentnb-push" }),
      this.lefts[1],
      item.event === null ? null : el("span", { class: "agentnb-dim agentnb-number", text: `#${item.event}` }),
    );
    this.error = el("p", { class: "agentnb-error", role: "alert" });
    this.hint = el("p", { class: "agentnb-hint" });
    this.reason = el("input", {
      class: "agentnb-input",
      type: "text",
      hidden: true,
      placeholder: "Reason (sent to the model)",
      "aria-label": "Reason",
    });
    this.form = el("form", { class: "agentnb-form", hidden: true });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    for (const kind of ["input", "change"]) this.form.addEventListener(kind, () => this.typed.add(this.open));
    this.remember = unknown ? null : remembering(store.remembers ?? REMEMBER);
    this.approves = keyed(unknown ? "Run again" : "Approve", unknown ? "" : "A", () => this.decide("approve"), {
      "data-do": "approve",
      title: unknown ? "Run the call a second time" : "Run the call (A)",
    });
    this.rejects = keyed(unknown ? "Fail it" : "Reject", "R", () => (this.open === "Reject" ? this.decide("reject") : this.toggle("Reject")), {
      "data-do": "reject",
      title: `${unknown ? "The call has failed" : "Do not run the call"}; the model is informed (R)`,
    });
    this.toggles = {
      Edit: keyed("Edit", "E", () => this.toggle("Edit"), { "data-do": "edit", title: "Change the arguments before it runs (E)" }),
      Replace: button("Replace", () => this.toggle("Replace"), { "data-do": "replace", title: "Run another tool instead" }),
      Reject: this.rejects,
      Answer: button("It is done", () => (this.open === "Answer" ? this.decide("answer") : this.toggle("Answer")), {
        class: "agentnb-button agentnb-strong",
        "data-do": "answer",
        title: "Enter the result of the call; nothing runs",
      }),
    };
    const { Edit, Replace, Answer } = this.toggles;
    // More is asked for; once it is there, the same button sends it. The dots are not part of its name.
    this.dots = /** @type {[Word, HTMLElement][]} */ ([]);
    for (const word of /** @type {const} */ (["Reject", "Answer"])) {
      const dots = el("span", { class: "agentnb-dots", "aria-hidden": "true", text: "\u2026" });
      this.toggles[word].firstChild?.after(dots);
      this.dots.push([word, dots]);
    }
    this.back = button("Back", () => this.close(), { class: "agentnb-button agentnb-ghost", title: "Decide later (Esc)", hidden: true });
    this.extra = button("", () => this.showExtra(), {
      class: "agentnb-button agentnb-ghost agentnb-square",
      "aria-label": unknown ? "More: Edit, Replace" : "More: Replace",
      "aria-expanded": "false",
    });
    this.extra.append(icon("more"));
    const extras = el("span", { class: "agentnb-extras" }, unknown ? Edit : null, Replace);
    this.off = el("span", { class: "agentnb-off" }); // why Approve is off while the form is open
    this.choices = el(
      "div",
      { class: "agentnb-choices" },
      ...(unknown ? [Answer, this.approves, this.rejects] : [this.approves, Edit, this.rejects]),
      this.back,
      this.extra,
      extras,
      this.off,
      this.remember?.el,
    );
    this.body = el(
      "div",
      { class: "agentnb-inner" },
      el("p", { class: "agentnb-why", text: item.usual || unknown ? "" : item.why }),
      item.view ? el("p", { class: "agentnb-own-view", text: item.view }) : null,
      this.given.el,
      this.form,
      this.reason,
      this.hint,
      this.error,
      this.choices,
    );
    this.buttons = [this.rejects, Edit, Replace, Answer, this.no, this.extra];
    this.el = el("div", { class: "agentnb-call", role: "group", "aria-label": item.name }, this.line, head, this.body);
    this.el.addEventListener("keydown", (event) => this.key(event));
    this.el.addEventListener("focusin", () => approvals.concern(this));
    this.liken(null, true);
    this.explain();
  }

  /**
   * @param {string} name
   * @param {"check" | "cross"} sign
   * @param {() => void} act
   * @param {string} title
   */
  small(name, sign, act, title) {
    const made = button("", act, {
      class: "agentnb-button agentnb-ghost agentnb-square",
      "data-do": name.toLowerCase(),
      "aria-label": name,
      title,
    });
    made.append(icon(sign));
    return made;
  }

  // -- keys

  /** @param {KeyboardEvent} event */
  key(event) {
    if (this.settled) return;
    const target = /** @type {HTMLElement} */ (event.target),
      step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && (this.open || (this.opened && this.approvals.table))) {
      this.close();
      event.stopPropagation();
    } else if (step && this.approvals.table && this.line.contains(target)) {
      event.preventDefault();
      this.approvals.step(this, step, event.shiftKey, target.dataset.do);
    } else if (isEnter(event) && target.matches("input[type=text]")) {
      event.preventDefault();
      if (target === this.reason) this.rejects.click();
      else this.decide(this.open === "Answer" ? "answer" : "approve");
    } else if (!isTyping(target) && !event.repeat && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const letter = event.key.toLowerCase();
      if (letter === "a" && !this.item.unknown) this.decide("approve");
      else if (letter === "e") this.press(this.toggles.Edit);
      else if (letter === "r") this.press(this.rejects);
      else return;
      event.preventDefault();
    }
  }

  /** @param {HTMLButtonElement} control */
  press(control) {
    if (control.getAttribute("aria-disabled") !== "true") control.click();
  }

  /**
   * Give the focus to the control that does the same as another call's, else to the one that approves.
   * @param {string | undefined} same
   */
  focus(same) {
    const controls = /** @type {HTMLElement[]} */ ([...this.el.querySelectorAll("[data-do]")]).filter((node) => node.getClientRects().length),
      of = (/** @type {string | undefined} */ name) => controls.find((node) => node.dataset.do === name);
    this.approvals.reveal(this);
    (of(same) ?? of("approve") ?? of("review") ?? controls[0])?.focus({ preventScroll: true });
  }

  // -- what is shown

  /**
   * Write the row: what differs from similar calls comes first.
   * @param {import("./values.js").Likeness | null} alike
   * @param {boolean} named whether the row has the name of the tool
   */
  liken(alike, named) {
    const likeness = JSON.stringify([alike, named]);
    this.tool.hidden = !named && this.isClosed();
    if (likeness === this.likeness) return;
    this.likeness = likeness;
    const { nodes, whole } = argumentsLine(this.item, alike);
    this.whole = whole;
    this.brief.replaceChildren(...(named ? ["(", ...nodes, ")"] : nodes));
    this.sight.disconnect();
    if (!whole || this.given.seen) return;
    const end = el("span", { class: "agentnb-end" });
    this.brief.append(end);
    this.sight.observe(end);
  }

  // Find out whether the row has room for the whole call. Only then it can be decided there.
  measure() {
    if (!this.isClosed()) return;
    this.fits = this.whole && this.brief.scrollWidth <= this.brief.clientWidth;
    this.yes.hidden = !this.fits || this.item.unknown;
    this.review.hidden = !this.yes.hidden;
    this.no.hidden = this.item.unknown;
  }

  readOn() {
    if (this.given.seen) this.sight.disconnect();
    this.update(this.item);
    this.approvals.count();
  }

  // The reason why the call cannot be approved now; empty if it can. Who edits it approves what the form shows, and has seen
  // the end of each of its values. With Replace or Answer, the form shows all that is used.
  unread() {
    const { Edit } = this.forms,
      unread = this.given.unread();
    if (!unread || this.open === "Replace" || this.open === "Answer") return "";
    if (this.open !== "Edit" || !Edit?.isWhole()) return unread;
    const field = Edit.unread();
    return field ? `Read to the end of ${field.spec.label} first.` : "";
  }

  /**
   * What identifies the question: its run, its path and the number of its event. A question that was not asked yet has no
   * number; then the call's id and attempt identify it.
   * @returns {Identity}
   */
  identity() {
    const { run, path, event, id, attempt } = this.item;
    return { run, path, event, id, attempt };
  }

  unfold() {
    const reviewed = document.activeElement === this.review;
    this.opened = this.isClosed();
    if (this.opened) {
      this.approvals.concern(this);
      this.approvals.show(this);
    } else if (this.open) this.toggle(this.open);
    this.lay();
    if (this.approvals.table) this.store.notify("selected"); // the detail pane decides a closed row
    this.approvals.reveal(this);
    if (this.opened && reviewed) this.more.focus({ preventScroll: true }); // the button is gone, and the keys are for this call
  }

  // Close what is unfolded, else the row.
  close() {
    const last = this.open ? this.toggles[this.open] : this.more;
    if (this.open) this.toggle(this.open);
    else this.unfold();
    const visible = last.getClientRects().length ? last : this.more;
    visible.focus();
  }

  showExtra() {
    const shown = this.extra.getAttribute("aria-expanded") !== "true";
    this.extra.setAttribute("aria-expanded", String(shown));
    this.choices.classList.toggle("agentnb-with-extras", shown);
  }

  isClosed() {
    return this.approvals.table && !this.opened && !this.open;
  }

  lay() {
    const { table, current } = this.approvals,
      closed = this.isClosed(),
      asks = !this.item.unknown && this.open !== "Reject" && (!table || current === this);
    this.el.classList.toggle("agentnb-closed", closed);
    this.more.setAttribute("aria-expanded", String(!closed));
    this.tool.hidden = closed && this.likeness.endsWith("false]");
    this.el.classList.toggle("agentnb-picked", table && this.pick.checked);
    this.approves.classList.toggle("agentnb-primary", asks);
    this.approves.classList.toggle("agentnb-strong", !asks);
  }

  /** @param {Question} item */
  update(item) {
    this.item = item;
    this.tick();
    this.lay();
    for (const control of this.buttons) allow(control, this.store, !this.busy, BUSY);
    for (const control of [this.approves, this.yes])
      allow(control, this.store, !this.busy && !this.unread(), this.busy ? BUSY : this.unread());
    const why = this.busy || this.store.gone || this.store.replays ? "" : this.unread(),
      inForm = this.given.el.hidden; // the form is in the place of the arguments
    say(this.off, inForm ? why : "");
    this.given.explain(inForm ? "" : why);
    this.explain();
    this.pick.disabled = this.store.replays || item.unknown;
    for (const control of [this.reason, this.remember?.choice]) if (control) control.disabled = this.store.replays;
  }

  tick() {
    const now = this.store.now(),
      { deadline } = this.item;
    for (const left of this.lefts) {
      say(left, timeLeft(this.item, now));
      left.classList.toggle("agentnb-bad", Boolean(deadline) && Number(deadline) - now < 15);
    }
  }

  explain() {
    const name = this.forms.Replace?.tool.value,
      approve = this.item.unknown ? "Run again" : "Approve";
    say(
      this.hint,
      this.open === "Edit"
        ? `${approve} runs the call with the values above.`
        : this.open === "Replace"
          ? `${approve} runs ${name} with the values above instead.`
          : this.open === "Answer"
            ? "The text above becomes the call's result; nothing runs."
            : "",
    );
    for (const [word, dots] of this.dots) dots.hidden = this.open === word;
  }

  /** @param {Word} word */
  toggle(word) {
    this.open = this.open === word ? null : word;
    for (const [name, control] of Object.entries(this.toggles))
      control.setAttribute("aria-expanded", String(name === this.open));
    const { open } = this,
      form = open === "Reject" ? null : open;
    this.form.replaceChildren();
    this.form.hidden = !form;
    this.reason.hidden = open !== "Reject";
    if (this.remember) this.remember.el.hidden = Boolean(form); // values that a person typed are for this call
    this.back.hidden = open !== "Reject" && open !== "Answer";
    say(this.error, "");
    if (open) this.approvals.concern(this);
    this.lay();
    if (this.approvals.table) this.store.notify("selected"); // the detail pane decides a closed row
    if (form) this.form.append(this.filled(form).el);
    // The form is in the place of the arguments, unless it has only the beginning of a long value whose end has not been in sight.
    this.given.el.hidden = open === "Edit" && (this.given.seen || Boolean(this.forms.Edit?.isWhole()));
    const first = form ? this.form.querySelector("input, textarea, select") : open ? this.reason : null;
    this.update(this.item);
    this.approvals.reveal(this);
    /** @type {HTMLElement | null} */ (first)?.focus({ preventScroll: true });
    if (form) first?.scrollIntoView({ block: "nearest" }); // the list may be low, or the arguments are above it
  }

  /**
   * Return the form of a button, and make it the first time. A closed form keeps what was typed in it.
   * @param {"Edit" | "Replace" | "Answer"} word
   * @returns {Form | Replacement}
   */
  filled(word) {
    if (word === "Edit") return (this.forms.Edit ??= new Form(this.item.fields, () => this.readOn()));
    if (word === "Answer") return (this.forms.Answer ??= new Form([RESULT]));
    const tools = this.store.model.get("tools")?.[this.item.path ?? ""] ?? {}; // the tools of the loop that asks
    return (this.forms.Replace ??= new Replacement(tools, this.item.name, () => this.explain()));
  }

  // -- the decision

  /**
   * Return the decision with the values of the open form, or null if these are not valid, which the form then says. When
   * several calls are decided together, a form in which nothing was changed is not used.
   * @param {"approve" | "reject" | "answer"} decision
   * @param {string} [remember]
   * @param {boolean} [alone]
   * @returns {Verdict | null}
   */
  verdict(decision, remember = this.remember?.choice.value, alone = true) {
    const seconds = (performance.now() - this.since) / 1000,
      call = { ...this.identity(), digest: this.item.digest, seconds },
      word = decision === "answer" ? "Answer" : this.open;
    if (decision === "reject") return { ...call, decision, reason: this.reason.value, remember };
    if (decision === "approve" && word !== "Edit" && word !== "Replace") return { ...call, decision, remember };
    if (!word || word === "Reject") return null;
    if (!alone && !this.typed.has(word)) return { ...call, decision, remember };
    const form = this.filled(word),
      filled = form.read();
    say(this.error, filled.ok ? "" : filled.error);
    if (!filled.ok) return null;
    if (word === "Answer") return { ...call, decision, result: filled.arguments };
    if (word === "Edit" && filled.same) return { ...call, decision: "approve" };
    const name = form instanceof Replacement ? { name: form.tool.value } : {};
    return { ...call, decision: word.toLowerCase(), ...name, arguments: filled.arguments, kept: filled.kept };
  }

  /** @param {"approve" | "reject" | "answer"} decision */
  decide(decision) {
    if (this.busy || this.store.gone || this.store.replays) return;
    if (decision === "approve" && this.unread()) return;
    const verdict = this.verdict(decision);
    if (verdict) this.approvals.send([this], verdict);
  }

  wait() {
    this.busy = true;
    say(this.error, "");
    this.update(this.item);
  }

  /**
   * Show the answer. A decided call is removed with the next `pending`; an error is shown here until then.
   * @param {string | undefined} error
   */
  answered(error) {
    this.busy = !error;
    say(this.error, error ?? "");
    this.update(this.item);
  }

  /**
   * Show for some seconds, in place of the row, how the call was decided.
   * @param {Decision} decision
   * @param {HTMLElement} undo
   */
  settle(decision, undo) {
    this.settled = decision;
    this.until = performance.now() + TEN_SECONDS;
    this.tool.hidden = false;
    this.el.className = "agentnb-call agentnb-was";
    this.el.dataset.decision = decision.decision;
    for (const name of ["role", "aria-label", "aria-describedby"]) this.el.removeAttribute(name);
    this.more.remove();
    if (this.likeness.endsWith("false]")) {
      this.brief.prepend("("); // the row had no name of the tool
      this.brief.append(")");
    }
    if (decision.before) {
      say(this.tool, decision.name);
      say(this.brief, `(${decision.ran})`); // what runs, and not what was asked about
    }
    const words = decision.reason ? `${decision.words}: ${decision.reason}` : decision.words,
      title = decision.before ? `${words}; it asked about ${decision.before}` : words;
    this.el.replaceChildren(
      icon(decision.decision === "reject" ? "cross" : "check"),
      this.text,
      el("span", { class: "agentnb-decided-words agentnb-cut", text: words, title }),
      undo,
    );
  }

  dispose() {
    this.sight.disconnect();
    this.given.dispose();
    this.forms.Edit?.dispose();
  }
}

/**
 * Send one message for any number of calls. Each shows its answer.
 * @param {Store} store
 * @param {Call[]} calls
 * @param {Questions["decision"]} message
 * @param {(late: string[]) => void} answered called with the decisions that were too late, even if their call is gone
 */
export function sendDecision(store, calls, message, answered) {
  for (const call of calls) call.wait();
  store.ask({ type: "decision", ...message }, (answer) => {
    const late = [];
    for (const [at, call] of calls.entries()) {
      const error = answer.ok ? answer.failed?.[at] : answer.error;
      const gone = answer.late?.includes(at);
      if (!call.settled) call.answered(gone ? "" : error);
      if (gone) late.push(`${call.item.name}: ${error}`);
    }
    answered(late);
  });
}
