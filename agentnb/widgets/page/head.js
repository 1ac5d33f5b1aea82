// The head of the panel: the state of the run, its name and what it is, and what it was started with.

import { icon, iconOnly } from "./icons.js";
import { count, duration, el, number, say, unique, used, visible } from "./text.js";

const A_SECOND = 1000; // milliseconds between two drawings of the time while nothing happens
/** @type {Record<Status["sign"] | "past", string>} */
const STATE_ICONS = { ready: "ring", running: "", waiting: "", paused: "pause", past: "past", failed: "cross", done: "check", stopped: "square" };

export class Head {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.tick = 0;
    this.marked = ""; // the sign that is drawn
    this.mark = el("span", { class: "agentnb-state-mark", "aria-hidden": "true" });
    this.word = el("span", { class: "agentnb-state-word", role: "status" });
    this.since = el("span", { "aria-hidden": "true" }); // it changes every second, which nobody wants to be told
    this.state = el("span", { class: "agentnb-state" }, this.mark, this.word, this.since);
    this.name = el("strong", { class: "agentnb-name agentnb-cut" });
    this.about = el("span", { class: "agentnb-about-run agentnb-dim agentnb-cut" });
    this.asked = el("span");
    this.took = el("span", { class: "agentnb-time-taken" });
    this.facts = el("span", { class: "agentnb-facts agentnb-dim" }, this.asked, this.took);
    this.actions = el("span", { class: "agentnb-actions" }); // the buttons
    this.question = new Question(store);
    this.el = el(
      "header",
      { class: "agentnb-head" },
      el(
        "div",
        { class: "agentnb-head-line" },
        ...[this.state, this.name, this.about, el("span", { class: "agentnb-push" }), this.facts, this.actions],
      ),
      this.question.el,
    );
  }

  update() {
    const { store } = this,
      status = store.status();
    this.showState(status);
    say(this.name, status.name);
    const about = [store.replays ? `${status.loop}, recorded` : status.loop, status.model, status.imported].filter(Boolean).join(" \u00b7 ");
    say(this.about, about);
    this.name.title = visible(`${status.name}: ${about}`);
    const facts = [...asked(status), ...used(status.usage)].join(" \u00b7 "),
      took = this.time();
    say(this.asked, facts);
    say(this.took, facts && took ? ` \u00b7 ${took}` : took);
    this.facts.title = breadcrumb(status);
    this.question.update();
    clearTimeout(this.tick);
    if (store.until() > store.spans.last) this.tick = setTimeout(() => this.el.isConnected && this.update(), A_SECOND);
  }

  /** @param {Status} status */
  showState(status) {
    const { store } = this,
      past = !store.isLive && store.position > 0 && store.position < store.recorded(),
      [sign, words] = store.gone
        ? ["failed", "kernel gone"]
        : past
          ? ["past", `as it was at #${number(store.position - 1)}`]
          : [status.sign, status.words ?? ""];
    this.state.dataset.sign = visible(sign);
    this.state.dataset.standing = visible(store.gone ? "gone" : status.standing);
    if (this.marked !== sign) {
      this.marked = sign;
      const drawn = STATE_ICONS[/** @type {Status["sign"] | "past"} */ (sign)],
        kind = sign === "waiting" ? "person" : "";
      this.mark.replaceChildren(drawn ? icon(drawn) : el("i", { class: kind ? "agentnb-glyph" : "agentnb-ring", "data-kind": kind || null }));
    }
    if (this.word.textContent !== visible(words)) {
      // A narrow panel has no room for these words.
      const after = words?.endsWith(" for you") ? " for you" : "";
      this.word.replaceChildren(visible(words.slice(0, words.length - after.length)), el("span", { class: "agentnb-wide", text: after }));
    }
    const since = sign === "waiting" && !past ? this.waits() : null;
    say(this.since, since === null ? "" : `${Math.floor(since / 60)}:${String(Math.floor(since % 60)).padStart(2, "0")}`);
  }

  // The seconds since the oldest open question was asked.
  waits() {
    const { store } = this,
      events = (store.model.get("pending") ?? []).map(({ event }) => event ?? -1).filter((event) => store.all[event]);
    return events.length ? Math.max(0, store.now() - store.all[Math.min(...events)].time) : null;
  }

  // How long the agent has worked, and for how long it was paused or nobody drove it.
  time() {
    const { spans, rows } = this.store,
      took = rows.length ? spans.worked(this.store.until()) : 0,
      rest = spans.paused + spans.idle,
      words = rest ? ` (and ${duration(rest)} ${spans.idle ? "idle" : "paused"})` : "";
    return took > 0 ? duration(took) + words : "";
  }

  dispose() {
    clearTimeout(this.tick);
  }
}

// What the run was started with: one line, which can be unfolded.
class Question {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.line = el("span", { class: "agentnb-cut agentnb-isolated agentnb-question-line", title: "What the run was started with" });
    this.whole = el("div", { class: "agentnb-question-whole agentnb-isolated", hidden: true, id: `agentnb-${unique()}`, tabindex: "0", role: "region", "aria-label": "Question" });
    this.unfold = iconOnly("down", "Whole question", () => this.toggle(), { "aria-expanded": "false", "aria-controls": this.whole.id });
    this.el = el(
      "div",
      { class: "agentnb-question", hidden: true },
      el("div", { class: "agentnb-question-bar" }, el("i", { class: "agentnb-glyph", "data-kind": "said", "aria-hidden": "true" }), this.line, this.unfold),
      this.whole,
    );
    this.whole.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.toggle();
      this.unfold.focus();
    });
  }

  toggle() {
    this.whole.hidden = !this.whole.hidden;
    this.unfold.setAttribute("aria-expanded", String(!this.whole.hidden));
  }

  update() {
    const text = this.store.model.get("question") ?? "";
    this.el.hidden = !text;
    say(this.line, text.trim().replace(/\s+/g, " "));
    say(this.whole, text);
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
  return visible(text);
}

/**
 * Write the number of turns and calls. If the run has nested loops, the turns are the requests of all loops. A run without
 * model requests (an engine has tasks) has neither.
 * @param {Status} status
 */
export function asked({ nested, requests = 0, turn = 0, calls = 0, over }) {
  if (nested?.length || (over && requests)) return [count(requests, "turn"), count(calls, "call")];
  return turn || calls ? [`turn ${number(turn)}`, count(calls, "call")] : [];
}
