// What if: a form that changes something at an event of the run, and runs a branch with the change. The kernel says what can
// be changed, and why not (views/whatif.py). A form that is closed keeps what was typed.

import { GONE, button, el, enable, number, say, unique } from "./text.js";
import { isEnter } from "./keys.js";
import { Form } from "./form.js";
import { Cells } from "./cells.js";
import { icon } from "./icons.js";

const ANOTHER_MODEL = "another model of this provider\u2026";
/**
 * The words after the name of what is changed.
 * @type {Record<string, string>}
 */
const HAD = {
  result: "had given",
  arguments: "had been called with",
  skip: "had not run",
  decision: "had been decided like this",
  answer: "had been answered with",
  message: "had said",
  input: "had been started with",
  then: "was followed by a message",
  model: "was followed by another model",
};
/** @type {[value: string, words: string][]} */
const CHOICES_OF_DECISION = [
  ["approve", "Approve"],
  ["edit", "Edit"],
  ["reject", "Reject"],
];

/**
 * @typedef {object} Editor
 * @property {HTMLElement} el
 * @property {() => ({ error: string } | WhatIfChange)} read
 * @property {() => string} words how much is changed
 * @property {() => void} focus
 * @property {() => string} [asJson]
 */

export class WhatIf {
  /**
   * @param {Store} store
   * @param {(element: HTMLElement, row: EventRow) => void} place shows the form at the row of an event
   * @param {() => void} remove takes it away
   */
  constructor(store, place, remove) {
    this.store = store;
    this.place = place;
    this.remove = remove;
    this.forms = /** @type {Map<number, WhatIfForm>} */ (new Map()); // by the number of the event
    this.shown = /** @type {WhatIfForm | null} */ (null);
    this.said = el("p", { class: "agentnb-whatif-said", role: "status" });
    this.el = this.said;
  }

  /** @param {News} [what] */
  update(what) {
    const { whatIfRow } = this.store;
    if (what === "whatif" && whatIfRow) this.open(whatIfRow);
    else this.shown?.allow();
  }

  /** @param {EventRow} row */
  open(row) {
    if (this.store.gone) {
      say(this.said, GONE);
      return undefined;
    }
    const known = this.forms.get(row.seq);
    if (known) return this.show(known);
    this.store.ask({ type: "whatif", seq: row.seq }, (answer) => {
      if (this.store.whatIfRow !== row) return;
      say(this.said, answer.ok ? "" : answer.error);
      if (!answer.ok) return;
      const draft = new WhatIfForm(this.store, row, answer.options, (started) => this.close(started));
      this.forms.set(row.seq, draft);
      this.show(draft);
    });
    return undefined;
  }

  /** @param {WhatIfForm} draft */
  show(draft) {
    this.shown = draft;
    this.place(draft.el, draft.row);
    draft.allow();
    draft.focus();
    // The row grows in the next frame. Then all of the form is to be seen.
    requestAnimationFrame(() => requestAnimationFrame(() => draft.el.scrollIntoView({ block: "nearest" })));
  }

  /** @param {string} started the name of the branch that was started; empty if a person has closed the form */
  close(started) {
    const { shown } = this;
    if (!shown) return;
    if (started) {
      this.forms.delete(shown.row.seq);
      say(this.said, `The branch ${started} runs.`);
    }
    this.shown = null;
    this.store.whatIfRow = null;
    this.remove();
  }
}

// The form for one event.
class WhatIfForm {
  /**
   * @param {Store} store
   * @param {EventRow} row
   * @param {WhatIfOptions} options
   * @param {(started: string) => void} close
   */
  constructor(store, row, options, close) {
    this.store = store;
    this.row = row;
    this.close = close;
    this.busy = false;
    this.kinds = options.kinds;
    this.at = Math.max(0, this.kinds.findIndex(({ off }) => !off));
    this.editors = /** @type {Map<string, Editor>} */ (new Map());
    const id = unique();
    this.words = el("span");
    this.tabs = this.kinds.map(({ label }, i) =>
      button(label, () => this.choose(i), { class: "agentnb-tab", role: "tab", id: `agentnb-${id}-${i}`, "aria-controls": `agentnb-${id}` }),
    );
    this.list = el("div", { class: "agentnb-kinds", role: "tablist", "aria-label": "What is changed" }, ...this.tabs);
    this.list.addEventListener("keydown", (event) => this.move(event));
    this.body = el("div", { class: "agentnb-whatif-body", role: "tabpanel", id: `agentnb-${id}` });
    this.changed = el("span", { role: "status" });
    this.json = button("as JSON", () => this.toJson(), { class: "agentnb-link" });
    this.name = el("input", {
      class: "agentnb-input agentnb-branch-name",
      type: "text",
      "aria-label": "Name of the branch (optional)",
      placeholder: "name of the branch",
      maxlength: "80",
    });
    this.approvals = el(
      "select",
      { class: "agentnb-select", "aria-label": "Approvals in the branch" },
      el("option", { value: "ask", text: "approvals: ask me" }),
      el("option", { value: "then", text: "approvals: as in this run" }),
    );
    this.approvals.title = "As in this run: a call with the same arguments gets the same decision; all others ask you";
    this.run = el(
      "button",
      { type: "button", class: "agentnb-button agentnb-primary", onclick: () => this.start(), title: "Run the branch (Enter; in text Ctrl+Enter)" },
      "Run branch ",
      el("kbd", { text: "\u21b5", "aria-hidden": "true" }),
    );
    this.then = el("p", { class: "agentnb-dim" });
    this.error = el("p", { class: "agentnb-error", role: "alert" });
    this.choices = el("div", { class: "agentnb-choices" }, this.run, this.name, this.approvals);
    this.measure = el("p", { class: "agentnb-changed agentnb-dim" }, this.changed, el("span", { class: "agentnb-push" }), this.json);
    this.el = el(
      "div",
      { class: "agentnb-whatif", role: "group", "aria-label": "What if" },
      el(
        "div",
        { class: "agentnb-whatif-head" },
        icon("fork"),
        el("b", { class: "agentnb-whatif-lead", text: "What if" }),
        el("code", { class: "agentnb-cut", text: options.name }),
        this.words,
        el("span", { class: "agentnb-push" }),
        el(
          "button",
          { type: "button", class: "agentnb-button agentnb-ghost agentnb-close", onclick: () => close(""), title: "Close; what was typed is kept (Escape)" },
          el("span", { class: "agentnb-spoken", text: "Close" }),
          " ",
          el("kbd", { text: "Esc" }),
        ),
      ),
      el("div", { class: "agentnb-whatif-inner" }, this.list, this.body, this.measure, this.choices, this.then, this.error),
    );
    this.el.addEventListener("keydown", (event) => this.key(event));
    this.el.addEventListener("input", () => this.tell());
    this.choose(this.at);
  }

  get kind() {
    return this.kinds[this.at];
  }

  focus() {
    const editor = this.editors.get(this.kind.kind);
    if (editor) editor.focus();
    else this.tabs[this.at].focus();
  }

  /** @param {number} at */
  choose(at) {
    this.at = at;
    const { kind } = this;
    this.tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === at));
      tab.tabIndex = i === at ? 0 : -1;
    });
    this.body.setAttribute("aria-labelledby", this.tabs[at].id);
    say(this.words, HAD[kind.kind]);
    say(this.error, "");
    say(this.then, kind.off ? "" : kind.then);
    if (kind.off) this.body.replaceChildren(el("p", { class: "agentnb-dim", text: kind.off }));
    else {
      const editor = this.editors.get(kind.kind) ?? this.make(kind);
      this.editors.set(kind.kind, editor);
      this.body.replaceChildren(editor.el);
    }
    this.choices.hidden = Boolean(kind.off);
    this.tell();
    this.allow();
  }

  /** @param {KeyboardEvent} event */
  move(event) {
    const last = this.tabs.length - 1,
      targets = /** @type {Record<string, number>} */ ({
        ArrowRight: this.at === last ? 0 : this.at + 1,
        ArrowLeft: this.at === 0 ? last : this.at - 1,
        Home: 0,
        End: last,
      });
    const to = targets[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.choose(to);
    this.tabs[to].focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    event.stopPropagation(); // neither the list around the form nor the notebook gets a key
    if (event.key === "Escape") {
      event.preventDefault();
      this.close("");
      return;
    }
    const inText = target.matches("textarea"),
      inOther = target.matches("button, select, td, input[type=radio], input[type=checkbox]"),
      runs = event.ctrlKey || event.metaKey || !(inText || inOther);
    if (!isEnter(event) || event.repeat || !runs) return;
    event.preventDefault();
    this.start();
  }

  // -- the editors

  /**
   * @param {WhatIfKind} kind
   * @returns {Editor}
   */
  make(kind) {
    if (kind.kind === "decision") return decisionEditor(kind);
    if (kind.kind === "model") return modelEditor(kind);
    if (kind.kind === "skip") return reasonEditor(kind);
    return this.editor(kind, kind.label);
  }

  /**
   * @param {WhatIfEditor} spec
   * @param {string} label
   * @returns {Editor}
   */
  editor(spec, label) {
    if (spec.shape === "table") return new Cells(spec, label, () => this.tell());
    if (spec.shape === "object") return formEditor(spec.fields ?? []);
    return textEditor(spec.text ?? "", label, spec.shape === "json");
  }

  // Edit the value as JSON, or in its own editor again.
  toJson() {
    const { kind } = this,
      editor = this.editors.get(kind.kind);
    if (!editor) return;
    /** @param {Editor} made */
    const show = (made) => {
      this.editors.set(kind.kind, made);
      this.body.replaceChildren(made.el);
      say(this.error, "");
      this.tell();
      made.focus();
    };
    if (editor.asJson) {
      const text = editor.asJson();
      if (text) show(textEditor(text, kind.label, true, true));
      return;
    }
    const read = editor.read();
    if ("error" in read) {
      say(this.error, read.error);
      return;
    }
    this.store.ask({ type: "shape", json: read.json ?? "" }, (answer) => {
      if (!answer.ok) say(this.error, answer.error);
      else if (this.kind === kind) show(this.editor(answer.editor, kind.label));
    });
  }

  // -- running the branch

  tell() {
    const { kind } = this,
      editor = this.editors.get(kind.kind);
    this.measure.hidden = Boolean(kind.off) || kind.kind === "skip" || kind.kind === "model";
    say(this.changed, editor && !kind.off ? editor.words() : "");
    const isData = kind.kind === "result" || kind.kind === "input",
      back = editor && !editor.asJson && kind.shape !== "json" && kind.shape !== "text";
    this.json.hidden = !isData || !(editor?.asJson || back);
    say(this.json, editor?.asJson ? "as JSON" : "as before");
  }

  allow() {
    const { gone } = this.store;
    enable(this.run, !gone && !this.busy && !this.kind.off, gone ? GONE : this.busy ? "In progress." : this.kind.off);
  }

  start() {
    const { kind, busy, store, row } = this,
      editor = this.editors.get(kind.kind);
    if (busy || !editor || kind.off || store.gone) return;
    const change = editor.read();
    say(this.error, "error" in change ? change.error : "");
    if ("error" in change) return;
    this.busy = true;
    this.allow();
    const approvals = this.approvals.value === "then" ? "then" : "ask";
    store.ask({ type: "branch", seq: row.seq, kind: kind.kind, name: this.name.value, approvals, ...change }, (answer) => {
      this.busy = false;
      this.allow();
      if (answer.ok) this.close(answer.name);
      else say(this.error, answer.error);
    });
  }
}

/**
 * A text, or JSON as text.
 * @param {string} text
 * @param {string} label
 * @param {boolean} isJson
 * @param {boolean} [hasForm] whether it was edited in another way before
 * @returns {Editor}
 */
function textEditor(text, label, isJson, hasForm = false) {
  const rows = Math.min(10, Math.max(isJson ? 4 : 3, text.split("\n").length)),
    area = el("textarea", { class: "agentnb-input", rows, spellcheck: "false", "aria-label": label });
  area.value = text;
  return {
    el: area,
    focus: () => area.focus(),
    words: () => (area.value === text && !hasForm ? "Nothing is changed yet." : `${number(area.value.length)} characters`),
    read: () => {
      if (!isJson) return { text: area.value };
      try {
        JSON.parse(area.value);
      } catch (error) {
        area.focus();
        return { error: `This is not JSON: ${/** @type {Error} */ (error).message}` };
      }
      return { json: area.value };
    },
  };
}

/**
 * The fields of an object.
 * @param {FieldSpec[]} fields
 * @returns {Editor}
 */
function formEditor(fields) {
  const form = new Form(fields);
  return {
    el: form.el,
    focus: () => (form.fields[0]?.control ?? form.el).focus(),
    words: () => {
      const changed = form.fields.filter((field) => !field.el.hidden && !field.isUnchanged() && !isAbsent(field)).length;
      return changed ? `${changed} of ${form.fields.length} values changed` : "Nothing is changed yet.";
    },
    read: () => {
      const read = form.read();
      if (!read.ok) return { error: read.error ?? "" };
      return { fields: read.arguments ?? "{}", kept: read.kept ?? [] };
    },
  };
}

/** @param {import("./form.js").Form["fields"][number]} field */
const isAbsent = (field) => field.spec.given === "absent" && field.current() === field.first;

/**
 * A decision: which one, and what it needs.
 * @param {WhatIfKind} kind
 * @returns {Editor}
 */
function decisionEditor(kind) {
  const group = unique(),
    form = formEditor(kind.fields ?? []),
    reason = el("input", { class: "agentnb-input", type: "text", "aria-label": "Reason", placeholder: "reason, which the model reads" });
  if (kind.decision === "reject") reason.value = kind.reason ?? "";
  const radios = CHOICES_OF_DECISION.map(([value]) => el("input", { type: "radio", name: group, value }));
  const first = kind.decision === "approve" || kind.decision === "edit" ? "reject" : "approve"; // the opposite of what was decided
  const chosen = () => radios.find((radio) => radio.checked)?.value ?? "";
  const lay = () => {
    form.el.hidden = chosen() !== "edit";
    reason.hidden = chosen() !== "reject";
  };
  for (const radio of radios) {
    radio.checked = radio.value === first;
    radio.addEventListener("change", lay);
  }
  lay();
  const then = kind.decision ? `It was decided: ${kind.decision}${kind.reason ? `, "${kind.reason}"` : ""}.` : "It is not decided yet.";
  return {
    el: el(
      "div",
      { class: "agentnb-decision-editor" },
      el(
        "div",
        { class: "agentnb-set", role: "radiogroup", "aria-label": "Decision" },
        ...CHOICES_OF_DECISION.map(([, words], i) => el("label", { class: "agentnb-check" }, radios[i], words)),
      ),
      reason,
      form.el,
    ),
    focus: () => radios.find((radio) => radio.checked)?.focus(),
    words: () => then,
    read: () => {
      const decision = chosen();
      if (decision === "reject") return { decision, reason: reason.value };
      if (decision !== "edit") return { decision };
      return { decision, ...form.read() };
    },
  };
}

/**
 * The reason that the model reads of a call that is skipped.
 * @param {WhatIfKind} kind
 * @returns {Editor}
 */
function reasonEditor(kind) {
  const reason = el("input", { class: "agentnb-input", type: "text", "aria-label": "What the model reads in its place" });
  reason.value = kind.text ?? "";
  return { el: reason, focus: () => reason.focus(), words: () => "", read: () => ({ text: reason.value }) };
}

/**
 * A model, from a list or by name.
 * @param {WhatIfKind} kind
 * @returns {Editor}
 */
function modelEditor({ models = [], by_name: byName = false }) {
  const name = el("input", { class: "agentnb-input", type: "text", "aria-label": "Name of the model", placeholder: "name of the model" });
  const options = models.map((text) => {
    const option = el("option", { text });
    option.value = text;
    return option;
  });
  const list = el("select", { class: "agentnb-select", "aria-label": "Model" }, ...options);
  if (byName) {
    const other = el("option", { text: ANOTHER_MODEL });
    other.value = "";
    list.append(other);
  }
  const lay = () => {
    name.hidden = !byName || list.value !== "";
  };
  list.addEventListener("change", () => {
    lay();
    if (!name.hidden) name.focus();
  });
  lay();
  const nothing = !models.length && !byName;
  return {
    el: nothing
      ? el("p", { class: "agentnb-dim", text: "No other model is known here. agentnb.widgets.MODELS[name] = model adds one." })
      : el("div", { class: "agentnb-set" }, list, name),
    focus: () => (nothing ? undefined : list.focus()),
    words: () => "",
    read: () => {
      const model = name.hidden ? list.value : name.value.trim();
      return model ? { model } : { error: "Choose a model, or give the name of one." };
    },
  };
}
