// The calls that wait for a person, each with what can be decided about it.

import { button, el, enable, number, say } from "./text.js";
import { Form, Replacement } from "./form.js";

export class Approvals {
  constructor(store) {
    this.store = store;
    this.calls = new Map();
    this.spoken = el("div", { class: "agentnb-spoken", role: "status", "aria-live": "polite" });
    this.heading = el("span", { class: "agentnb-heading" });
    this.all = button("Approve all", () => this.approveAll(), { class: "agentnb-button agentnb-primary" });
    this.bar = el("div", { class: "agentnb-waiting-bar" }, this.heading, this.all);
    this.list = el("div", { class: "agentnb-waiting-list" });
    this.el = el("div", { class: "agentnb-waiting" }, this.spoken, this.bar, this.list);
    // The next question may stand under the pointer within milliseconds, and the second half of a double click must not
    // decide what nobody has read yet.
    const ignoreSecond = (event) => {
      if (event.detail > 1 && event.target.closest("button")) event.stopPropagation();
    };
    this.el.addEventListener("click", ignoreSecond, true);
    this.timer = setInterval(() => {
      for (const call of this.calls.values()) call.tick();
    }, 1000);
    this.update();
  }

  update() {
    const pending = this.store.model.get("pending") ?? [];
    const keys = new Set(pending.map((item) => `${item.id} ${item.digest}`));
    for (const [key, call] of this.calls)
      if (!keys.has(key)) {
        call.el.remove();
        this.calls.delete(key);
      }
    const added = [];
    for (const item of pending) {
      const key = `${item.id} ${item.digest}`;
      if (!this.calls.has(key)) {
        this.calls.set(key, new Call(this.store, item));
        this.list.append(this.calls.get(key).el);
        added.push(item.path ? `${item.name} (in ${item.path})` : item.name);
      }
      this.calls.get(key).update(item);
    }
    if (added.length) say(this.spoken, `${added.join(", ")} ${added.length > 1 ? "wait" : "waits"} for your decision.`);
    else if (!pending.length) say(this.spoken, "");
    say(this.heading, pending.length === 1 ? "1 call waits for you" : `${pending.length} calls wait for you`);
    this.el.classList.toggle("agentnb-none", !pending.length);
    this.all.hidden = pending.length < 2;
    enable(this.all, !this.store.gone);
  }

  approveAll() {
    for (const call of [...this.calls.values()]) call.decide("approve");
  }

  dispose() {
    clearInterval(this.timer);
  }
}

class Call {
  constructor(store, item) {
    this.store = store;
    this.item = item;
    this.busy = false;
    this.open = null; // the word of the form that is open: Edit, Replace or Answer
    this.forms = {};
    this.why = el("p", { class: "agentnb-why" });
    this.left = el("span", { class: "agentnb-left" });
    this.shown = el("pre", { class: "agentnb-arguments", tabindex: "0", "aria-label": "Arguments" });
    this.error = el("p", { class: "agentnb-error", role: "alert" });
    this.reason = el("input", {
      class: "agentnb-input",
      type: "text",
      placeholder: "Reason (the model is told)",
      "aria-label": "Reason",
    });
    this.form = el("form", { class: "agentnb-form", hidden: true });
    this.hint = el("p", { class: "agentnb-hint" });
    const approve = el("button", {
      type: "button",
      class: "agentnb-button agentnb-primary",
      text: "Approve",
      onclick: () => this.approve(),
    });
    this.toggles = {
      Edit: button("Edit", () => this.toggle("Edit")),
      Replace: button("Replace", () => this.toggle("Replace")),
    };
    if (item.unknown) this.toggles.Answer = button("Answer", () => this.toggle("Answer"));
    this.buttons = [
      approve,
      button("Reject", () => this.decide("reject", { reason: this.reason.value })),
      ...Object.values(this.toggles),
    ];
    this.all =
      item.length > item.arguments.length ? button("Show all", () => this.showAll(), { class: "agentnb-link" }) : null;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.el = el(
      "div",
      { class: "agentnb-call", role: "group", "aria-label": item.name },
      el(
        "div",
        { class: "agentnb-call-head" },
        el(
          "span",
          {},
          item.path ? el("span", { class: "agentnb-path", text: item.path }) : null,
          el("code", { text: item.name }),
        ),
        this.why,
        this.left,
      ),
      this.shown,
      this.all,
      this.form,
      this.hint,
      this.error,
      el(
        "div",
        { class: "agentnb-set" },
        approve,
        el("span", { class: "agentnb-joined" }, this.buttons[1], this.reason),
        ...Object.values(this.toggles),
      ),
    );
    this.el.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.open) {
        const last = this.toggles[this.open];
        this.toggle(this.open);
        last.focus();
      }
      const typing = event.key === "Enter" && !event.isComposing && event.target.matches("input[type=text]");
      if (typing) event.preventDefault();
      if (typing && event.target === this.reason) this.buttons[1].click();
      else if (typing) this.approve();
      event.stopPropagation();
    });
    this.show(item.arguments, item.length);
    this.explain();
  }

  show(text, length) {
    say(this.shown, text);
    if (length > text.length)
      this.shown.append(el("span", { class: "agentnb-dim", text: `\u2026 (${number(length)} characters in all)` }));
  }

  showAll() {
    this.store.ask({ type: "show", id: this.item.id }, (answer) => {
      this.show(answer.text, answer.length);
      this.all.remove();
    });
  }

  update(item) {
    this.item = item;
    say(this.why, item.why || (item.unknown ? "Nobody knows how this call ended." : "This tool asks before it runs."));
    this.tick();
    for (const control of this.buttons) enable(control, !this.busy && !this.store.gone);
  }

  tick() {
    const seconds = this.item.deadline
      ? Math.round((this.item.deadline * 1000 - this.store.skew - Date.now()) / 1000)
      : null;
    const clock = seconds === null ? "" : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    say(
      this.left,
      seconds === null ? "" : seconds > 0 ? `${clock} left; no answer means no` : "time is up: no answer means no",
    );
    this.left.classList.toggle("agentnb-bad", seconds !== null && seconds < 15);
  }

  explain() {
    const unknown =
      "It was started, and nobody knows how it ended. Approve runs it again. Answer says that it happened and what it gave. Reject fails it.";
    const name = this.forms.Replace?.tool.value;
    say(
      this.hint,
      this.open === "Edit"
        ? "Approve runs the call with the values above."
        : this.open === "Replace"
          ? `Approve runs ${name} with the values above instead.`
          : this.open === "Answer"
            ? "Approve takes the text above as the call's result; nothing runs."
            : this.item.unknown
              ? unknown
              : "",
    );
  }

  toggle(word) {
    this.open = this.open === word ? null : word;
    for (const [name, control] of Object.entries(this.toggles))
      control.setAttribute("aria-expanded", String(name === this.open));
    this.form.replaceChildren();
    this.form.hidden = !this.open;
    this.shown.hidden = this.open === "Edit";
    say(this.error, "");
    if (this.open) {
      this.forms[word] ??= this.make(word); // kept while closed: nothing typed is lost
      this.form.append(this.forms[word].el);
      this.form.querySelector("input, textarea, select")?.focus();
    }
    this.explain();
  }

  make(word) {
    if (word === "Edit") return new Form(this.item.fields);
    if (word === "Answer")
      return new Form([
        {
          path: [],
          label: "result",
          kind: "text",
          type: "JSON or text",
          required: true,
          given: "value",
          text: "",
          description: "What the call gave.",
        },
      ]);
    const tools = this.store.model.get("tools")?.[this.item.path ?? ""]; // those of the loop that asks
    return new Replacement(tools ?? {}, this.item.name, () => this.explain());
  }

  approve() {
    if (!this.open) return this.decide("approve");
    const form = this.forms[this.open],
      filled = form.read();
    if (!filled.ok) return say(this.error, filled.error);
    if (this.open === "Answer") return this.decide("answer", { result: filled.arguments });
    const name = this.open === "Replace" ? { name: form.tool.value } : {};
    return this.decide(this.open.toLowerCase(), { ...name, arguments: filled.arguments, kept: filled.kept });
  }

  decide(decision, more = {}) {
    if (this.busy || this.store.gone) return;
    this.busy = true;
    say(this.error, "");
    this.update(this.item);
    this.store.ask({ type: "decision", id: this.item.id, digest: this.item.digest, decision, ...more }, (answer) => {
      this.busy = answer.ok; // decided: it goes away with the next news
      say(this.error, answer.ok ? "" : answer.error);
      this.update(this.item);
    });
  }
}
