// A form: one control per field that the kernel described (views/forms.py). It knows no JSON schema.

import { el, number, say, unique, visible } from "./text.js";

const WIDE = 80, // characters in a control's line, about
  PADDING = 8; // pixels of a control below its text

/** @typedef {Map<string, string | Tree>} Tree */

export class Form {
  /**
   * @param {FieldSpec[]} fields
   * @param {() => void} [seen] called when the end of another value has been in sight
   */
  constructor(fields, seen = () => {}) {
    this.fields = fields.map((field) => new Field(field, seen));
    this.el = el("div", { class: "agentnb-fields" }, ...this.fields.map((field) => field.el));
    this.el.addEventListener("input", () => this.lay());
    this.lay();
    if (!fields.length) this.el.append(el("p", { class: "agentnb-dim", text: "This tool takes no arguments." }));
  }

  // The fields of an object are shown while the object has a value.
  lay() {
    const missing = this.fields.filter(({ spec, given }) => spec.kind === "object" && given?.value !== "value");
    const names = missing.map(({ path }) => path[0]);
    for (const field of this.fields) field.el.hidden = field.path.length > 1 && names.includes(field.path[0]);
  }

  // Whether the form has all values, also those that are very long.
  isWhole() {
    return this.fields.every(({ spec }) => spec.kind !== "kept");
  }

  // The first field of which the end has not been in sight. What is approved is what the form shows.
  unread() {
    return this.fields.find((field) => !field.el.hidden && !field.seen && field.given?.value !== "absent");
  }

  dispose() {
    for (const field of this.fields) field.sight.disconnect();
  }

  // Return the arguments as JSON text. It is joined from texts, so every digit of a number is kept. An unchanged value is
  // not sent back but listed in `kept`: a control would change its line ends, and break half of a surrogate pair.
  read() {
    const root = /** @type {Tree} */ (new Map()),
      kept = [],
      fields = this.fields.filter((field) => !field.el.hidden);
    let bad = null,
      whole = null;
    for (const field of fields) {
      const { text, error, keep } = field.read();
      if (error) bad ??= field;
      field.mark(error);
      if (keep) kept.push(field.path);
      let target = root;
      for (const name of field.path.slice(0, -1)) {
        const inner = target.get(name);
        const object = inner instanceof Map ? inner : /** @type {Tree} */ (new Map());
        target.set(name, object); // an object without values is given, too
        target = object;
      }
      if (text === undefined || error) continue;
      const name = field.path.at(-1);
      if (name === undefined) whole = text;
      else target.set(name, text);
    }
    if (bad) {
      bad.control.focus();
      return { ok: false, error: "Some values are not valid; see above." };
    }
    /**
     * @param {Tree} map
     * @returns {string}
     */
    const write = (map) =>
      `{${[...map].map(([name, value]) => `${JSON.stringify(name)}:${value instanceof Map ? write(value) : value}`).join(",")}}`;
    const same = fields.every((field) => field.isUnchanged());
    return { ok: true, arguments: whole ?? write(root), kept, same };
  }
}

export class Replacement {
  /**
   * @param {Record<string, FieldSpec[]>} tools
   * @param {string} current the tool of the call
   * @param {() => void} changed
   */
  constructor(tools, current, changed) {
    this.fields = new Map(Object.entries(tools)); // names are looked up in maps: a tool may be called `constructor`
    this.made = /** @type {Map<string, Form>} */ (new Map());
    const names = [...this.fields.keys()].filter((name) => name !== current);
    this.tool = el(
      "select",
      { class: "agentnb-select", "aria-label": "Tool" },
      ...(names.length ? names : [current]).map((name) => {
        const option = el("option", { text: name });
        option.value = name;
        return option;
      }),
    );
    this.tool.addEventListener("change", () => {
      this.form = this.chosen();
      this.body.replaceChildren(this.form.el);
      changed();
    });
    this.body = el("div");
    this.el = el(
      "div",
      { class: "agentnb-fields" },
      el("label", { class: "agentnb-field" }, el("span", { class: "agentnb-field-name", text: "Tool" }), this.tool),
      this.body,
    );
    this.form = this.chosen();
    this.body.append(this.form.el);
  }

  // Return the form of the chosen tool, with what was typed in it before.
  chosen() {
    const name = this.tool.value,
      form = this.made.get(name) ?? new Form(this.fields.get(name) ?? []);
    this.made.set(name, form);
    return form;
  }

  read() {
    return this.form.read();
  }
}

class Field {
  /**
   * @param {FieldSpec} spec
   * @param {() => void} seen
   */
  constructor(spec, seen) {
    this.spec = spec;
    this.seen = false; // whether the end of its value has been in sight
    this.inSight = false; // whether the end of its control is
    this.path = spec.path;
    this.given = this.choice(spec);
    this.control = spec.kind === "object" && this.given ? this.given : this.make(spec);
    const id = (this.control.id = `agentnb-${unique()}`);
    this.wrong = el("div", { class: "agentnb-error", id: `${id}-wrong` });
    this.control.setAttribute("aria-describedby", `${id}-type ${id}-about ${id}-wrong`);
    this.el = el(
      "div",
      { class: "agentnb-field" },
      el(
        "div",
        {},
        el("label", { class: "agentnb-field-name", for: id, text: spec.label }),
        el("div", { class: "agentnb-type-name", id: `${id}-type`, text: typeInWords(spec) }),
      ),
      el(
        "div",
        {},
        el("div", { class: "agentnb-joined agentnb-control" }, this.control, this.given),
        el("div", { class: "agentnb-about", id: `${id}-about`, text: spec.description }),
        this.wrong,
      ),
    );
    const look = () => {
      if (this.seen || !this.inSight || !this.isAtEnd()) return;
      this.seen = true;
      this.sight.disconnect();
      seen();
    };
    const end = el("span", { class: "agentnb-end" });
    this.control.parentElement?.after(end);
    this.sight = new IntersectionObserver((marks) => {
      this.inSight = marks.some((mark) => mark.isIntersecting);
      look();
    });
    this.sight.observe(end);
    // The browser scrolls to the caret after the key.
    for (const kind of ["scroll", "keyup", "input"]) this.control.addEventListener(kind, () => requestAnimationFrame(look));
    this.control.addEventListener("input", () => {
      if (this.given && this.given !== this.control) this.given.value = "value";
      this.mark(this.hidden());
    });
    this.first = this.current();
    this.mark(this.hidden());
  }

  // Whether the end of the value is visible in its control.
  isAtEnd() {
    if (this.control.matches("select, [type=checkbox]")) return true;
    const { scrollTop, scrollHeight, clientHeight, scrollLeft, scrollWidth, clientWidth } = this.control;
    return scrollHeight - clientHeight - scrollTop <= PADDING && scrollWidth - clientWidth - scrollLeft <= PADDING;
  }

  current() {
    const { control, given } = this;
    return `${given?.value ?? "value"} ${isBox(control) ? control.checked : control.value}`;
  }

  isUnchanged() {
    const { spec, first } = this,
      isFilledIn = spec.given !== "absent" || spec.kind === "kept" || this.given;
    return Boolean(isFilledIn) && this.current() === first;
  }

  /**
   * @param {FieldSpec} spec
   * @returns {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement}
   */
  make(spec) {
    if (spec.kind === "boolean") {
      const box = el("input", { type: "checkbox" });
      box.checked = spec.text === "true";
      return box;
    }
    if (spec.kind === "enum") {
      const list = el(
        "select",
        { class: "agentnb-select" },
        ...(spec.options ?? []).map((option) => {
          const item = el("option", { text: option.startsWith('"') ? JSON.parse(option) : option });
          item.value = option;
          return item;
        }),
      );
      list.value = spec.text;
      return list;
    }
    const lines = spec.text.split("\n");
    const long = spec.kind === "json" || spec.kind === "text" || lines.length > 1 || spec.text.length > WIDE;
    const rows = lines.reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / WIDE)), 0); // as they are wrapped
    const control = long
      ? el("textarea", { class: "agentnb-input", rows: Math.min(12, Math.max(2, rows)), spellcheck: "false" })
      : el("input", { class: "agentnb-input", type: "text", spellcheck: "false" });
    control.value = spec.kind === "kept" ? visible(spec.text) : spec.text;
    control.readOnly = spec.kind === "kept";
    if (long) control.setSelectionRange(0, 0); // the caret is where the value is visible
    if (spec.kind === "integer" || spec.kind === "number") control.inputMode = "decimal";
    return control;
  }

  /**
   * Make the select for two cases that cannot be typed: the value is null, or no value is given.
   * @param {FieldSpec} spec
   */
  choice(spec) {
    if (spec.kind === "kept" || (spec.required && !spec.nullable)) return null;
    const choice = el(
      "select",
      { class: "agentnb-select", "aria-label": `${spec.label}: given or not` },
      el("option", { value: "value", text: "value" }),
      spec.nullable ? el("option", { value: "null", text: "null" }) : null,
      spec.required ? null : el("option", { value: "absent", text: "not given" }),
    );
    choice.value = spec.required && spec.given === "absent" ? "value" : spec.given;
    return choice;
  }

  hidden() {
    const text = this.control.value ?? "";
    if (this.spec.kind === "kept")
      return `Too long to edit here (${number(this.spec.length ?? text.length)} characters); the value is not changed.`;
    return visible(text) === text
      ? ""
      : `Contains characters that do not show: ${visible(text)
          .match(/[\u2400-\u2421]|\u27e6U\+\w+\u27e7/g)
          ?.slice(0, 5)
          .join(" ")}`;
  }

  /** @param {string | undefined} error */
  mark(error) {
    say(this.wrong, error || "");
    this.control.setAttribute("aria-invalid", String(Boolean(error) && error !== this.hidden()));
  }

  /**
   * Return the field's value as JSON text; `keep` if the value stays as it is, and no text if none is given.
   * @returns {{ text?: string, error?: string, keep?: boolean }}
   */
  read() {
    const { spec, control } = this,
      text = control.value.trim();
    if (spec.kind === "kept") return { keep: true };
    if (spec.kind === "object") return this.given?.value === "null" ? { text: "null" } : {}; // otherwise its fields have the value
    if (spec.path.length && spec.given === "value" && this.isUnchanged()) return { keep: true, text: "null" };
    if (this.given?.value === "absent") return {};
    if (this.given?.value === "null") return { text: "null" };
    if (isBox(control)) return { text: String(control.checked) };
    if (spec.kind === "enum") return control.value ? { text: control.value } : { error: "Choose one." };
    if (spec.kind === "string") return { text: JSON.stringify(control.value) };
    if (spec.kind === "text") return { text: control.value };
    if (spec.kind === "integer")
      return /^-?\d+$/.test(text)
        ? { text: text.replace(/^(-?)0+(?=\d)/, "$1") }
        : { error: "Enter a whole number." };
    if (!text && spec.required) return { error: "Enter a value." };
    try {
      const value = JSON.parse(text);
      if (spec.kind === "number" && typeof value !== "number") return { error: "Enter a number." };
      if (!spec.path.length && (value === null || typeof value !== "object" || Array.isArray(value)))
        return { error: "Enter a JSON object." };
      return { text };
    } catch (error) {
      return { error: spec.kind === "number" ? "Enter a number." : `Not JSON: ${/** @type {Error} */ (error).message}` };
    }
  }
}

/**
 * @param {HTMLElement} control
 * @returns {control is HTMLInputElement}
 */
function isBox(control) {
  return control.matches("[type=checkbox]");
}

/**
 * Describe the type of a field, and its default.
 * @param {FieldSpec} spec
 */
function typeInWords({ type, required, default: otherwise }) {
  if (required) return `${type}, required`;
  return otherwise ? `${type}, optional, default ${otherwise}` : `${type}, optional`;
}
