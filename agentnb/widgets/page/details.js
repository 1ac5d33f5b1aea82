// One event in full, below the list.

import { button, el, number, say } from "./text.js";

export class Details {
  constructor(store, close) {
    this.store = store;
    this.title = el("span", { class: "agentnb-details-title" });
    this.all = button("Show all", () => this.showAll(), { class: "agentnb-link" });
    this.body = el("div", { class: "agentnb-details-body", tabindex: "0", "aria-label": "Data of the event" });
    this.el = el(
      "section",
      { class: "agentnb-details", "aria-label": "Event", hidden: true },
      el(
        "div",
        { class: "agentnb-details-bar" },
        this.title,
        this.all,
        button("Close", close, { class: "agentnb-link" }),
      ),
      this.body,
    );
    this.el.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
    });
  }

  show(row) {
    this.row = row;
    this.store.selected = row;
    this.store.tell("selected");
    this.el.hidden = !row;
    if (!row) return;
    const clock = new Date(row.time * 1000).toLocaleTimeString("en", { hour12: false });
    say(
      this.title,
      [`#${row.seq}`, row.type, clock, row.path, row.phase && `phase ${row.phase}`].filter(Boolean).join(" \u00b7 "),
    );
    this.all.hidden = !row.size && row.data !== undefined;
    const fields = Object.entries(row.data ?? { summary: row.summary });
    this.body.replaceChildren(
      ...fields.flatMap(([name, value]) => [
        el("div", { class: "agentnb-label-small", text: name }),
        el("pre", { text: typeof value === "string" ? value : JSON.stringify(value, null, 2) }),
      ]),
    );
    if (row.size)
      this.body.append(el("p", { class: "agentnb-dim", text: `Shortened; ${number(row.size)} bytes in all.` }));
  }

  showAll() {
    const { row } = this;
    this.store.ask({ type: "show", seq: row.seq }, (answer) => {
      if (this.row !== row) return;
      this.all.hidden = true;
      const rest =
        answer.length > answer.text.length
          ? `The first ${number(answer.text.length)} of ${number(answer.length)} characters; run.events[${row.seq}] has all.`
          : "";
      this.body.replaceChildren(el("pre", { text: answer.text }), el("p", { class: "agentnb-dim", text: rest }));
    });
  }
}
