// One call that waits for a person, and its decisions. A single call is shown in full; one of several is a row of a table
// that can be opened. Both are the same element, so typed text is kept when a second call arrives.

import { BUSY, allow, button, el, hung, inOneLine, fitsOnOneLine, number, say } from "./text.js";
import { Form, Replacement } from "./form.js";
import { isEnter } from "./keys.js";

// Why Approve is off: part of the arguments has not been visible yet.
const CUT = "Show all of the arguments first.",
  BELOW = "Read to the end of the arguments first.";
export const UNSEEN = "Some calls cannot be approved yet, because the end of their arguments has not been visible.";

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
  "": "only this time",
  arguments: "for exactly these arguments",
  tool: "always for this tool in this run",
};

/**
 * Make the choice of what to remember a decision for.
 * @param {Record<string, string>} [words] for each choice
 */
export function remembering(words = REMEMBER) {
  const choice = el("select", { class: "agentnb-select" });
  for (const [value, text] of Object.entries(words)) choice.append(el("option", { value, text }));
  return { choice, el: el("label", { class: "agentnb-remember" }, "Remember", choice) };
}

/** @typedef {"Edit" | "Replace" | "Answer"} Word */

export class Call {
  /**
   * @param {Store} store
   * @param {Question} item
   * @param {Approvals} approvals
   */
  constructor(store, item, approvals) {
    this.store = store;
    this.item = item;
    this.approvals = approvals;
    this.busy = false;
    this.since = performance.now(); // when the question was shown first
    this.opened = false; // whether a row of a table is shown in full
    this.open = /** @type {Word | null} */ (null); // the form that is open
    this.cut = false; // whether the page has only the beginning of the arguments
    this.forms = /** @type {{ Edit?: Form, Replace?: Replacement, Answer?: Form }} */ ({});
    this.seen = false; // whether the end of the arguments has been visible; Approve is off until then
    this.looked = false; // whether the browser has reported what is visible
    this.sight = new IntersectionObserver((marks) => this.look(marks), { root: approvals.list });
    this.pick = el("input", {
      type: "checkbox",
      class: "agentnb-pick",
      "aria-label": `Select ${item.name} (${item.id})`,
      onchange: () => approvals.count(),
    });
    this.more = button("\u203a", () => this.unfold(), {
      class: "agentnb-more",
      "aria-label": `Details of ${item.name}`,
      "aria-expanded": "false",
    });
    this.why = el("p", { class: "agentnb-why" });
    this.brief = el("span", { class: "agentnb-brief", text: inOneLine(item.arguments) });
    if (item.length <= item.arguments.length && fitsOnOneLine(item.arguments)) this.mark(this.brief);
    this.left = el("span", { class: "agentnb-left" });
    this.shown = el("pre", {
      class: "agentnb-arguments",
      tabindex: "0",
      role: "region",
      "aria-label": `Arguments of ${item.name} (${item.id})`,
    });
    this.error = el("p", { class: "agentnb-error", role: "alert" });
    this.reason = el("input", {
      class: "agentnb-input",
      type: "text",
      placeholder: "Reason (sent to the model)",
      "aria-label": "Reason",
    });
    this.remember = item.unknown ? null : remembering();
    this.form = el("form", { class: "agentnb-form", hidden: true });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.typed = new Set(); // the forms in which something was changed
    for (const kind of ["input", "change"]) this.form.addEventListener(kind, () => this.typed.add(this.open));
    this.hint = el("p", { class: "agentnb-hint" });
    /** @type {{ Edit: HTMLButtonElement, Replace: HTMLButtonElement, Answer?: HTMLButtonElement }} */
    this.toggles = {
      Edit: button("Edit", () => this.toggle("Edit"), { title: "Change the arguments before it runs" }),
      Replace: button("Replace", () => this.toggle("Replace"), { title: "Run another tool instead" }),
    };
    if (item.unknown) this.toggles.Answer = button("Answer", () => this.toggle("Answer"), { title: "Enter the result of the call" });
    const toggles = Object.values(this.toggles);
    this.approves = button("Approve", () => this.decide("approve"), { class: "agentnb-button agentnb-primary", title: "Run the call" });
    this.rejects = button("Reject", () => this.decide("reject"), { title: "Do not run the call; the model is informed" });
    this.buttons = [this.rejects, ...toggles];
    this.all =
      item.length > item.arguments.length ? button("Show all", () => this.showAll(), { class: "agentnb-link" }) : null;
    const name = el(
      "span",
      { class: "agentnb-call-name" },
      item.path ? el("span", { class: "agentnb-path", text: item.path }) : null,
      el("code", { text: item.name }),
    );
    this.el = el(
      "div",
      { class: "agentnb-call", role: "group", "aria-label": item.name },
      el("div", { class: "agentnb-call-head" }, this.pick, this.more, name, this.brief, this.why, this.left),
      item.view ? el("p", { class: "agentnb-view", text: item.view }) : null,
      this.shown,
      this.all,
      this.form,
      this.hint,
      this.error,
      el(
        "div",
        { class: "agentnb-set agentnb-choices" },
        this.approves,
        el("span", { class: "agentnb-joined" }, this.rejects, this.reason),
        ...toggles,
        this.remember?.el,
      ),
    );
    this.el.addEventListener("keydown", (event) => this.key(event));
    this.show(item.arguments, item.length);
    this.explain();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    event.stopPropagation(); // the notebook has shortcuts on bare letters
    const target = /** @type {Element} */ (event.target);
    if (event.key === "Escape" && this.open) {
      const last = this.toggles[this.open];
      this.toggle(this.open);
      last?.focus();
    }
    if (target === this.pick && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.approvals.neighbour(this, event.key === "ArrowDown" ? 1 : -1)?.pick.focus();
    }
    if (!isEnter(event) || !target.matches("input[type=text]")) return;
    event.preventDefault();
    if (target === this.reason) this.rejects.click();
    else this.decide("approve");
  }

  /**
   * @param {string} text
   * @param {number} length
   */
  show(text, length) {
    this.shown.replaceChildren(...hung(text));
    this.cut = length > text.length;
    if (this.cut)
      this.shown.append(el("span", { class: "agentnb-dim", text: `\u2026 (${number(length)} characters in all)` }));
    else if (this.shown.lastElementChild) this.mark(this.shown.lastElementChild);
  }

  /**
   * Add a mark at the end of a text. The browser reports when the mark becomes visible in the list of calls.
   * @param {Element} node
   */
  mark(node) {
    const end = el("span", { class: "agentnb-end" });
    node.append(end);
    this.sight.observe(end);
  }

  /** @param {IntersectionObserverEntry[]} marks */
  look(marks) {
    this.looked = true;
    this.seen ||= marks.some((mark) => mark.isIntersecting);
    if (this.seen) this.sight.disconnect();
    this.update(this.item);
    this.approvals.count();
  }

  // The reason why the call cannot be approved now; empty if it can. With Replace or Answer, the form shows all that is used.
  unread() {
    if (this.seen || this.open === "Replace" || this.open === "Answer") return "";
    if (!this.cut) return BELOW;
    return this.all ? CUT : "These arguments are too long for a page: read and approve them in code (run.pending).";
  }

  showAll() {
    this.store.ask({ type: "show", ...this.identity() }, (answer) => {
      this.show(answer.text, answer.length);
      this.all?.remove();
      this.all = null;
      this.update(this.item);
    });
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
    this.opened = this.isClosed();
    if (!this.opened && this.open) this.toggle(this.open);
    this.lay();
  }

  isClosed() {
    return this.approvals.many() && !this.opened && !this.open;
  }

  lay() {
    this.el.classList.toggle("agentnb-closed", this.isClosed());
    this.more.setAttribute("aria-expanded", String(!this.isClosed()));
    this.el.classList.toggle("agentnb-editing", Boolean(this.open));
    this.el.classList.toggle("agentnb-picked", this.approvals.many() && this.pick.checked);
  }

  /** @param {Question} item */
  update(item) {
    this.item = item;
    say(this.why, item.why || (item.unknown ? "It is unknown how this call ended." : "This tool requires approval."));
    this.tick();
    this.lay();
    for (const control of this.buttons) allow(control, this.store, !this.busy, BUSY);
    allow(this.approves, this.store, !this.busy && !this.unread(), this.busy ? BUSY : this.unread());
    this.explain();
    for (const control of [this.pick, this.reason, this.remember?.choice]) if (control) control.disabled = this.store.replays;
  }

  tick() {
    const seconds = this.item.deadline
      ? Math.round(this.item.deadline - this.store.now())
      : null;
    const clock = seconds === null ? "" : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    say(
      this.left,
      seconds === null ? "" : seconds > 0 ? `${clock} left, then the call is rejected` : "time is up: the call is rejected",
    );
    this.left.classList.toggle("agentnb-bad", seconds !== null && seconds < 15);
  }

  explain() {
    const name = this.forms.Replace?.tool.value;
    say(
      this.hint,
      this.open === "Edit"
        ? "Approve runs the call with the values above."
        : this.open === "Replace"
          ? `Approve runs ${name} with the values above instead.`
          : this.open === "Answer"
            ? "Approve takes the text above as the call's result; nothing runs."
            : this.looked && !this.store.replays
              ? this.unread()
              : "",
    );
  }

  /** @param {Word} word */
  toggle(word) {
    this.open = this.open === word ? null : word;
    for (const [name, control] of Object.entries(this.toggles))
      control.setAttribute("aria-expanded", String(name === this.open));
    this.form.replaceChildren();
    this.form.hidden = !this.open;
    this.shown.hidden = this.open === "Edit" && this.seen; // a form may have only the beginning of a long value
    say(this.error, "");
    this.lay();
    if (this.open) {
      this.form.append(this.filled(this.open).el);
      const first = /** @type {HTMLElement | null} */ (this.form.querySelector("input, textarea, select"));
      first?.focus();
    }
    this.update(this.item);
  }

  /**
   * Return the form of a button, and make it the first time. A closed form keeps what was typed in it.
   * @param {Word} word
   * @returns {Form | Replacement}
   */
  filled(word) {
    if (word === "Edit") return (this.forms.Edit ??= new Form(this.item.fields));
    if (word === "Answer") return (this.forms.Answer ??= new Form([RESULT]));
    const tools = this.store.model.get("tools")?.[this.item.path ?? ""] ?? {}; // the tools of the loop that asks
    return (this.forms.Replace ??= new Replacement(tools, this.item.name, () => this.explain()));
  }

  /**
   * Return the decision with the values of the open form, or null if these are not valid, which the form then says. When
   * several calls are decided together, a form in which nothing was changed is not used.
   * @param {"approve" | "reject"} decision
   * @param {string} [remember]
   * @param {boolean} [alone]
   * @returns {Verdict | null}
   */
  verdict(decision, remember = this.remember?.choice.value, alone = true) {
    const seconds = (performance.now() - this.since) / 1000;
    const call = { ...this.identity(), digest: this.item.digest, seconds };
    if (decision === "reject") return { ...call, decision, reason: this.reason.value, remember };
    if (!this.open || !(alone || this.typed.has(this.open))) return { ...call, decision, remember };
    const form = this.filled(this.open),
      filled = form.read();
    say(this.error, filled.ok ? "" : filled.error);
    if (!filled.ok) return null;
    if (this.open === "Answer") return { ...call, decision: "answer", result: filled.arguments };
    if (this.open === "Edit" && filled.same) return { ...call, decision: "approve" };
    const name = form instanceof Replacement ? { name: form.tool.value } : {};
    return { ...call, decision: this.open.toLowerCase(), ...name, arguments: filled.arguments, kept: filled.kept };
  }

  /** @param {"approve" | "reject"} decision */
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
}
