// The breakpoints: a form of small conditions, and the list of breakpoints, each of which can be disabled or removed.

import { GONE, button, count, el, enable, number, say, unique } from "./text.js";
import { isEnter } from "./keys.js";

/** @typedef {(HTMLSelectElement | HTMLDataListElement) & { shown?: string, value?: string }} Choices */
/** @typedef {{ el: HTMLElement, update: (now: BreakpointState) => void }} Line */

export class Breakpoints {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.rows = /** @type {Map<number, Line>} */ (new Map());
    this.toggle = button("Breakpoints", () => this.show(Boolean(this.el.hidden)), { "aria-expanded": "false", title: "Where the run pauses" });
    this.list = el("ul", { class: "agentnb-breakpoint-list", "aria-label": "Breakpoints" });
    this.error = el("p", { class: "agentnb-error", role: "alert" });
    this.add = button("Add", () => this.send(), { "aria-label": "Add breakpoint", title: "Pause at each event that meets all of these conditions" });
    /**
     * @param {string} name
     * @param {Record<string, string>} extra
     */
    const input = (name, extra) => el("input", { class: "agentnb-input", type: "text", "aria-label": name, ...extra });
    /** @param {string} name */
    const choice = (name) => el("select", { class: "agentnb-select", "aria-label": name });
    this.tools = el("datalist", { id: `agentnb-${unique()}` });
    this.event = choice("Event of the breakpoint");
    this.tool = input("Tool of the breakpoint", { placeholder: "any", list: this.tools.id });
    this.field = input("Argument of the breakpoint", { placeholder: "name" });
    this.operator = choice("Comparison");
    this.value = input("Value", { placeholder: "value" });
    this.phase = choice("Phase of the breakpoint");
    this.cost = input("Cost above", { placeholder: "none", inputmode: "decimal" });
    this.el = el(
      "section",
      { class: "agentnb-breakpoints", "aria-label": "Breakpoints", id: `agentnb-${unique()}`, hidden: true },
      this.list,
      el(
        "div",
        { class: "agentnb-conditions" },
        this.labelled("at", this.event),
        this.labelled("tool", this.tool, this.tools),
        el(
          "div",
          { class: "agentnb-condition" },
          el("span", { class: "agentnb-dim", "aria-hidden": "true", text: "argument" }),
          el("span", { class: "agentnb-joined" }, this.field, this.operator, this.value),
        ),
        this.labelled("phase", this.phase),
        this.labelled("cost above", this.cost),
        this.add,
      ),
      this.error,
    );
    this.toggle.setAttribute("aria-controls", this.el.id);
    this.el.addEventListener("keydown", (event) => {
      event.stopPropagation(); // the notebook has shortcuts on bare letters
      const target = /** @type {Element} */ (event.target);
      if (isEnter(event) && target.matches("input[type=text]")) this.send();
      if (event.key === "Escape") {
        this.show(false);
        this.toggle.focus();
      }
    });
    this.update();
  }

  /**
   * @param {string} text
   * @param {...HTMLElement} controls
   */
  labelled(text, ...controls) {
    return el("label", { class: "agentnb-condition" }, el("span", { class: "agentnb-dim", text }), ...controls);
  }

  /** @param {boolean} shown */
  show(shown) {
    this.el.hidden = !shown;
    this.toggle.setAttribute("aria-expanded", String(shown));
    if (shown) this.event.focus();
  }

  update() {
    const known = this.store.model.get("breakpoints") ?? {},
      list = known.list ?? [];
    this.fill(this.event, ["", ...(known.events ?? [])], "any event");
    this.fill(this.phase, ["", ...(known.phases ?? [])], "any phase");
    this.fill(this.operator, known.operators ?? []);
    this.fill(this.tools, known.tools ?? []);
    for (const [key, row] of this.rows)
      if (!list.some((one) => one.number === key)) {
        if (row.el.contains(document.activeElement)) this.toggle.focus();
        row.el.remove();
        this.rows.delete(key);
      }
    for (const one of list) {
      const row = this.rows.get(one.number) ?? this.row(one);
      this.rows.set(one.number, row);
      row.update(one);
    }
    this.list.hidden = !list.length;
    const on = list.filter((one) => one.enabled).length;
    say(this.toggle, on ? `Breakpoints (${on})` : "Breakpoints");
    enable(this.add, !this.store.gone, GONE);
  }

  /**
   * @param {Choices} list
   * @param {string[]} values
   * @param {string} [none] the words for the choice of nothing
   */
  fill(list, values, none = "") {
    const key = JSON.stringify(values);
    if (list.shown === key) return;
    const chosen = list.value;
    list.shown = key;
    list.replaceChildren(
      ...values.map((value) => {
        const option = el("option", { text: value || none });
        option.value = value;
        return option;
      }),
    );
    if (chosen !== undefined && values.includes(chosen)) list.value = chosen;
  }

  /**
   * @param {BreakpointState} one
   * @returns {Line}
   */
  row(one) {
    const box = el("input", { type: "checkbox", onchange: () => this.ask({ do: "enable", number: one.number, enabled: box.checked }) });
    const hits = el("span", { class: "agentnb-dim agentnb-hits" });
    const remove = button("Remove", () => this.ask({ do: "remove", number: one.number }), {
      class: "agentnb-link",
      "aria-label": `Remove breakpoint: ${one.label}`,
    });
    const node = el("li", {}, el("label", { class: "agentnb-check" }, box, el("code", { text: one.label })), hits, remove);
    this.list.append(node);
    /** @param {BreakpointState} now */
    const update = (now) => {
      box.checked = now.enabled;
      say(hits, now.hits ? `${count(now.hits, "hit")}, last at #${number(now.last)}` : "no hits");
      enable(remove, !this.store.gone, GONE);
      box.disabled = this.store.gone;
    };
    return { el: node, update };
  }

  given() {
    return {
      event: this.event.value,
      tool: this.tool.value,
      field: this.field.value,
      operator: this.operator.value,
      value: this.value.value,
      phase: this.phase.value,
      cost: this.cost.value,
    };
  }

  send() {
    const given = this.given();
    this.ask({ do: "add", ...given }, () => {
      if (JSON.stringify(given) !== JSON.stringify(this.given())) return; // the next breakpoint is being typed
      for (const control of [this.tool, this.field, this.value, this.cost]) control.value = "";
      this.event.value = this.phase.value = "";
    });
  }

  /**
   * @param {Questions["breakpoint"]} message
   * @param {() => void} [done]
   */
  ask(message, done = () => undefined) {
    if (this.store.gone) return;
    this.store.ask({ type: "breakpoint", ...message }, (answer) => {
      say(this.error, answer.ok ? "" : answer.error);
      if (answer.ok) done();
    });
  }
}
