// The run's name, status and usage in words, and the notices below the buttons. In a recording, those of the current
// position.

import { count, el, number, say, visible } from "./text.js";
import { Queue } from "./queue.js";

export class Head {
  /**
   * @param {Store} store
   * @param {(answer: Done) => void} [answered]
   */
  constructor(store, answered = () => {}) {
    this.store = store;
    this.name = el("strong", { class: "agentnb-name" });
    this.loop = el("span", { class: "agentnb-dim" });
    this.chip = el("span", { class: "agentnb-chip" });
    this.facts = el("span", { class: "agentnb-facts" });
    this.where = el("p", { class: "agentnb-where", hidden: true }); // one line, so that nothing moves when it changes
    this.problem = el("p", { class: "agentnb-problem", hidden: true });
    this.stopped = el("p", { class: "agentnb-stopped", role: "status" });
    this.queue = new Queue(store, answered);
    this.el = el(
      "div",
      { class: "agentnb-head" },
      el("div", { class: "agentnb-title" }, this.name, this.loop),
      this.chip,
      this.facts,
    );
    this.below = [this.queue.el, this.stopped, this.problem];
  }

  update() {
    const { store } = this,
      status = store.status(),
      usage = status.usage ?? {},
      nested = status.nested?.length;
    this.queue.update();
    say(this.name, status.run || status.id);
    say(this.loop, store.replays ? `${status.loop}, recorded` : status.loop);
    say(this.chip, status.standing);
    this.chip.dataset.standing = visible(status.standing);
    const tokens = Object.entries(usage).filter(([name]) => name.endsWith("tokens"));
    say(
      this.facts,
      [
        ...(nested ? [] : [`phase ${status.phase || "-"}`]), // the line below begins with it
        ...asked(status),
        count(store.isLive ? store.total : store.rows.length, "event"),
        ...tokens.map(([name, amount]) => `${number(amount)} ${name.replaceAll("_", " ")}`),
        ...("cost" in usage ? [`$${number(usage.cost)}`] : []),
      ].join(" \u00b7 "),
    );
    say(this.where, nested ? breadcrumb(status) : "");
    this.where.hidden = !nested;
    const ends = /[.!?\u2026]$/.test(status.problem ?? "") ? "" : ".",
      again = status.problem && !status.over && !store.replays;
    say(this.problem, again ? `${status.problem}${ends} Play or Step sends the request again.` : status.problem);
    this.problem.hidden = !status.problem;
    say(this.stopped, status.paused_for?.startsWith("breakpoint") ? `Stopped by the ${status.paused_for}` : "");
  }
}

/**
 * Write the phases of the outermost loop and of the loops that run in it. A comma separates loops with the same parent.
 * @param {Status} status
 */
export function breadcrumb(status) {
  let text = `phase ${status.phase || "-"}`,
    above = "";
  for (const loop of status.nested ?? []) {
    if (!loop.running) continue;
    text += `${!above || loop.path.startsWith(`${above}/`) ? " \u203a " : ", "}${loop.path}: ${loop.phase}`;
    above = loop.path;
  }
  return text;
}

/**
 * Write the number of turns and calls. If the run has nested loops, write the number of model requests instead of turns,
 * because the turns are those of the outermost loop only. A run without model requests (an engine has tasks) has neither.
 * @param {Status} status
 */
export function asked({ nested, requests = 0, turn = 0, calls = 0 }) {
  if (nested?.length) return [count(requests, "model request"), count(calls, "call")];
  return turn || calls ? [`turn ${turn}`, count(calls, "call")] : [];
}
