// Where the run pauses: a form of small conditions, and what there is, each to be switched off or taken away.

import { GONE, button, count, el, enable, number, say, unique } from "./text.js";
import { isEnter } from "./keys.js";

export class Breakpoints {
  constructor(store) {
    this.store = store;
    this.rows = new Map();
    this.toggle = button("Breakpoints", () => this.show(this.el.hidden), { "aria-expanded": "false", title: "Where the run pauses" });
    this.list = el("ul", { class: "agentnb-breakpoint-list", "aria-label": "Breakpoints" });
    this.error = el("p", { class: "agentnb-error", role: "alert" });
    this.add = button("Add", () => this.send(), { "aria-label": "Add breakpoint", title: "Pause wherever all of this holds" });
    this.make();
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
      if (isEnter(event) && event.target.matches("input[type=text]")) this.send();
      if (event.key === "Escape") {
        this.show(false);
        this.toggle.focus();
      }
    });
    this.update();
  }

  make() {
    const input = (name, extra = {}) => el("input", { class: "agentnb-input", type: "text", "aria-label": name, ...extra });
    const choice = (name) => el("select", { class: "agentnb-select", "aria-label": name });
    this.tools = el("datalist", { id: `agentnb-${unique()}` });
    this.event = choice("Event of the breakpoint");
    this.tool = input("Tool of the breakpoint", { placeholder: "any", list: this.tools.id });
    this.field = input("Argument of the breakpoint", { placeholder: "name" });
    this.operator = choice("Comparison");
    this.value = input("Value", { placeholder: "value" });
    this.phase = choice("Phase of the breakpoint");
    this.cost = input("Cost above", { placeholder: "none", inputmode: "decimal" });
  }

  labelled(text, ...controls) {
    return el("label", { class: "agentnb-condition" }, el("span", { class: "agentnb-dim", text }), ...controls);
  }

  show(shown) {
    this.el.hidden = !shown;
    this.toggle.setAttribute("aria-expanded", String(shown));
    if (shown) this.event.focus();
  }

  update() {
    const told = this.store.model.get("breakpoints") ?? {},
      list = told.list ?? [];
    this.fill(this.event, ["", ...(told.events ?? [])], "any event");
    this.fill(this.phase, ["", ...(told.phases ?? [])], "any phase");
    this.fill(this.operator, told.operators ?? []);
    this.fill(this.tools, told.tools ?? []);
    for (const [key, row] of this.rows)
      if (!list.some((one) => one.number === key)) {
        if (row.el.contains(document.activeElement)) this.toggle.focus();
        row.el.remove();
        this.rows.delete(key);
      }
    for (const one of list) {
      if (!this.rows.has(one.number)) this.rows.set(one.number, this.row(one));
      this.rows.get(one.number).update(one);
    }
    this.list.hidden = !list.length;
    const on = list.filter((one) => one.enabled).length;
    say(this.toggle, on ? `Breakpoints (${on})` : "Breakpoints");
    enable(this.add, !this.store.gone, GONE);
  }

  fill(list, values, none = "") {
    const key = JSON.stringify(values);
    if (list.told === key) return;
    const chosen = list.value;
    list.told = key;
    list.replaceChildren(
      ...values.map((value) => {
        const option = el("option", { text: value || none });
        option.value = value;
        return option;
      }),
    );
    if (values.includes(chosen)) list.value = chosen;
  }

  row(one) {
    const box = el("input", { type: "checkbox", onchange: () => this.ask({ do: "enable", number: one.number, enabled: box.checked }) });
    const hits = el("span", { class: "agentnb-dim agentnb-hits" });
    const remove = button("Remove", () => this.ask({ do: "remove", number: one.number }), {
      class: "agentnb-link",
      "aria-label": `Remove breakpoint: ${one.label}`,
    });
    const node = el("li", {}, el("label", { class: "agentnb-check" }, box, el("code", { text: one.label })), hits, remove);
    this.list.append(node);
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
      if (JSON.stringify(given) !== JSON.stringify(this.given())) return; // the next is being typed
      for (const control of [this.tool, this.field, this.value, this.cost]) control.value = "";
      this.event.value = this.phase.value = "";
    });
  }

  ask(message, done = () => undefined) {
    if (this.store.gone) return;
    this.store.ask({ type: "breakpoint", ...message }, (answer) => {
      say(this.error, answer.ok ? "" : answer.error);
      if (answer.ok) done();
    });
  }
}
