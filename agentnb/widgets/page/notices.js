// What a person has to know above the trace: why the run failed, where it has stopped, the answer to a button, and the
// messages that the run has not taken yet.

import { icon, iconOnly } from "./icons.js";
import { button, count, duration, el, enable, number, say, GONE } from "./text.js";
import { worked } from "./spans.js";
import { Queue } from "./queue.js";

export class Notices {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.problem = el("b", { class: "agentnb-problem agentnb-isolated" });
    this.again = el("span");
    this.failed = el("div", { class: "agentnb-notice agentnb-bad", hidden: true }, icon("cross"), el("p", {}, this.problem, " ", this.again));
    this.stopped = el("p", { class: "agentnb-stopped agentnb-isolated", role: "status" });
    this.remove = button("Remove", () => this.removeBreakpoint(), { class: "agentnb-button agentnb-ghost", title: "Remove the breakpoint" });
    this.paused = el("div", { class: "agentnb-notice", hidden: true }, icon("stop"), this.stopped, this.remove);
    this.note = el("p", { class: "agentnb-note agentnb-isolated", role: "status" });
    this.done = iconOnly("cross", "Close", () => this.answer({ ok: true }), { title: "Remove this notice" });
    this.noted = el("div", { class: "agentnb-notice agentnb-answer", hidden: true }, this.note, this.done);
    this.missing = el("p", { role: "status" });
    this.repaired = el("div", { class: "agentnb-notice", hidden: true }, icon("ring"), this.missing);
    this.queue = new Queue(store, (answer) => this.answer(answer));
    this.el = el("div", { class: "agentnb-notices" }, this.repaired, this.failed, this.paused, this.noted, this.queue.el);
  }

  /**
   * Show the answer to a button.
   * @param {Done} answer
   */
  answer(answer) {
    say(this.note, answer.ok ? (answer.note ?? "") : answer.error);
    this.noted.hidden = !this.note.textContent;
    this.noted.classList.toggle("agentnb-bad", !answer.ok);
  }

  update() {
    const { store } = this,
      status = store.status(),
      again = status.problem && !status.over && !store.replays;
    say(this.problem, status.problem);
    say(this.again, again ? `${this.tries()}Nothing is lost: Ask again repeats the request.` : "");
    const gap = store.gap();
    say(this.missing, gap ? `Some events have not arrived: asking again for #${number(gap[0])} to #${number(gap[1])}.` : "");
    this.repaired.hidden = !gap;
    this.failed.hidden = !status.problem;
    const stops = status.paused_for?.startsWith("breakpoint");
    say(this.stopped, stops ? `Stopped by the ${status.paused_for}` : "");
    this.paused.hidden = !stops;
    this.remove.hidden = !this.breakpoint();
    enable(this.remove, !store.gone, GONE);
    this.queue.update();
  }

  // How often the request that has failed was sent, and how long that took.
  tries() {
    const { rows, spans } = this.store,
      failed = rows.findLast(({ type }) => type === "model_error"),
      span = failed && spans.of(failed);
    if (!span) return "";
    const asked = rows.findLast((row) => row.type === "model_start" && row.span === failed.span),
      took = worked(span, failed.time);
    return `after ${count(asked?.data?.attempt ?? 1, "attempt")}${took >= 0.001 ? ` in ${duration(took)}` : ""}. `;
  }

  // The breakpoint that has stopped the run.
  breakpoint() {
    const { model } = this.store,
      words = model.get("status")?.paused_for ?? "";
    return (model.get("breakpoints")?.list ?? []).find(({ label }) => words.includes(label));
  }

  removeBreakpoint() {
    const found = this.breakpoint();
    if (found) this.store.ask({ type: "breakpoint", do: "remove", number: found.number }, (answer) => this.answer(answer));
  }
}
