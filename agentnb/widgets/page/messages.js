// The conversation of one loop as its model is sent it. The kernel puts it together when somebody looks; what has not
// changed stays as it is on the page, opened or closed.

import { button, count, el, fit, inOneLine, number, say } from "./text.js";

const AT_FIRST = 40, // messages that are shown; "Earlier" shows as many more
  LOOPS = 200, // that can be chosen
  BRIEF = 200, // characters of a call's arguments beside its name
  TALL = 600, // characters of a text that is surely seen without scrolling,
  TALL_LINES = 14, // and lines
  PAUSE = 400; // milliseconds between two questions to the kernel, or longer where it takes long to answer
/** @type {Record<string, string>} */
const SPEAKS = { text: "speaks", reasoning: "thinks", call: "calls" };

export class Messages {
  /**
   * @param {Store} store
   * @param {(at: number) => void} go shows the event of this number
   */
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.last = AT_FIRST;
    this.path = "";
    // The event that the loop began with, as loops run one after the other at the same path.
    this.begun = /** @type {number | null} */ (null);
    this.chosen = false; // whether somebody has chosen the loop
    // Of each path, the loop that began last, and how many have begun there.
    this.latest = /** @type {Map<string, { position: number, times: number }>} */ (new Map());
    // What is on the page, by the message's place in the conversation.
    this.shown = /** @type {Map<number, { signature: string, node: HTMLElement }>} */ (new Map());
    this.things = 0;
    this.anew = store.anew;
    this.follow = true;
    this.due = 0;
    this.timer = 0;
    this.asking = this.wanted = false;
    this.loop = el(
      "select",
      { class: "agentnb-select agentnb-loops", "aria-label": "Loop of messages" },
      el("option", { value: "", text: "outermost" }),
    );
    this.count = el("span", { class: "agentnb-dim agentnb-amount" });
    this.earlier = button("Earlier", () => this.showEarlier(), { class: "agentnb-link", hidden: true, title: "Show more of what was said before" });
    this.note = el("p", { class: "agentnb-dim agentnb-gap", hidden: true });
    this.list = el("div", { class: "agentnb-said" });
    this.live = el("div", { class: "agentnb-said agentnb-speaking", "aria-hidden": "true" });
    this.empty = el("p", { class: "agentnb-empty" });
    this.log = el(
      "div",
      { class: "agentnb-log", role: "region", "aria-label": "Messages", tabindex: "0", "data-lm-suppress-shortcuts": "true" },
      this.note,
      this.empty,
      this.list,
      this.live,
    );
    this.el = el(
      "div",
      { class: "agentnb-events agentnb-messages" },
      el("div", { class: "agentnb-filter" }, this.loop, this.count, this.earlier),
      this.log,
    );
    this.loop.addEventListener("change", () => {
      this.chosen = true;
      this.choose(this.loop.value);
      this.last = AT_FIRST;
      this.follow = true;
      this.ask();
    });
    this.log.addEventListener(
      "scroll",
      () => {
        this.follow = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 12;
      },
      { passive: true },
    );
  }

  showEarlier() {
    this.last += AT_FIRST;
    this.follow = false;
    this.ask();
  }

  /** @param {News} what */
  update(what) {
    if (what === "live") return this.drawLive();
    this.notePaths();
    return this.ask();
  }

  notePaths() {
    const { things } = this.store.trace;
    if (this.anew !== this.store.anew) {
      // a replay has gone back: there may be loops that have not begun
      this.anew = this.store.anew;
      this.things = 0;
      this.latest.clear();
      while (this.loop.options.length > 1) this.loop.lastChild?.remove();
      if (this.begun !== null && this.begun >= this.store.rows.length) {
        this.choose("");
        this.chosen = false;
      }
    }
    for (; this.things < things.length; this.things++) {
      const { kind, path, position } = things[this.things] ?? {};
      if (kind !== "loop" || !path) continue;
      const before = this.latest.get(path),
        times = (before?.times ?? 0) + 1;
      this.latest.set(path, { position, times });
      const option = el("option", { text: times > 1 ? `${path} (${times})` : path });
      option.value = String(position);
      if (this.loop.options.length < LOOPS) this.loop.append(option);
    }
    this.loop.value = String(this.begun ?? "");
    this.loop.hidden = !this.latest.size;
  }

  /** @param {string} value */
  choose(value) {
    this.begun = value === "" ? null : Number(value);
    this.path = this.begun === null ? "" : (this.store.rows[this.begun].path ?? "");
    this.loop.value = value;
  }

  // One question at a time, and not more often than the kernel answers easily.
  ask() {
    const wait = this.due - Date.now();
    this.wanted = true;
    if (this.asking || this.timer) return;
    if (wait > 0) {
      this.timer = setTimeout(() => {
        this.timer = 0;
        if (this.el.getClientRects().length) this.ask();
      }, wait);
      return;
    }
    this.wanted = false;
    this.asking = true;
    const asked = Date.now(),
      { path, begun, last } = this;
    const waited = setTimeout(() => {
      this.asking = false; // a busy kernel answers when it can; a later answer is as good
    }, 10000);
    this.store.ask({ type: "said", path, begun, last }, (answer) => {
      clearTimeout(waited);
      this.asking = false;
      this.due = Date.now() + Math.max(PAUSE, 5 * (Date.now() - asked));
      const same = path === this.path && begun === this.begun;
      if (same) this.show(answer);
      if (this.wanted || !same) this.ask();
    });
  }

  /** @param {Answers["said"]} answer */
  show({ total, left, note, messages }) {
    const height = this.log.scrollHeight;
    const shown = new Map(),
      nodes = messages.map((message) => {
        const signature = JSON.stringify(message),
          before = this.shown.get(message.place);
        const node = before?.signature === signature ? before.node : this.makeAnew(message, before?.node);
        shown.set(message.place, { signature, node });
        return node;
      });
    this.shown = shown;
    const kept = new Set(nodes);
    for (const node of [...this.list.children]) if (!kept.has(/** @type {HTMLElement} */ (node))) node.remove();
    nodes.forEach((node, i) => {
      if (this.list.children[i] !== node) this.list.insertBefore(node, this.list.children[i] ?? null);
    });
    if (!total && !this.chosen && this.latest.size) {
      // the outermost loop asks no model itself
      this.choose(this.loop.options[1].value);
      this.chosen = true;
      this.ask();
    }
    say(this.count, count(total, "message"));
    say(this.note, [note, left ? `${number(left)} earlier messages` : ""].filter(Boolean).join(" "));
    this.note.hidden = !this.note.textContent;
    this.earlier.hidden = !left;
    this.empty.hidden = total > 0;
    say(this.empty, this.path ? "Nothing has been said yet." : this.store.nothing("has been said"));
    this.drawLive();
    if (!this.follow && this.last > AT_FIRST && this.log.scrollTop < 40) this.log.scrollTop += this.log.scrollHeight - height;
  }

  /**
   * What was open in it stays open.
   * @param {SaidMessage} message
   * @param {HTMLElement | undefined} before
   */
  makeAnew(message, before) {
    const node = this.make(message),
      opened = before ? [...before.querySelectorAll("details")].map((part) => part.open) : [];
    [...node.querySelectorAll("details")].forEach((part, at) => {
      part.open = opened[at] ?? false;
    });
    return node;
  }

  /** @param {SaidMessage} message */
  make(message) {
    const body = el("div", { class: "agentnb-body" });
    if (message.reasoning) body.append(fold("reasoning", "agentnb-reasoning", block(message.reasoning)));
    if (message.text) body.append(block(message.text));
    for (const call of message.calls) body.append(this.makeCall(call));
    if (message.more) body.append(el("p", { class: "agentnb-dim", text: `and ${count(message.more, "more call")}` }));
    const role = el("div", { class: "agentnb-role" }, el("span", { text: message.role }));
    if (!message.sent) role.append(el("span", { class: "agentnb-dim", text: " not sent" }));
    if (message.position >= 0) role.append(this.linkTo(message.position));
    return el(
      "article",
      { class: "agentnb-message", "data-role": message.role, "data-group": message.failed ? "error" : null, "aria-label": message.role },
      role,
      body,
    );
  }

  /** @param {SaidCall} call */
  makeCall(call) {
    const parts = [["arguments", call.arguments], ["decision", call.decision], ["result", call.result]].filter(([, text]) => text);
    const made = fold(
      "",
      "agentnb-made",
      ...parts.flatMap(([name, text]) => [el("div", { class: "agentnb-label-small", text: name }), block(text)]),
      call.position >= 0 ? this.linkTo(call.position) : null,
    );
    made.dataset.group = call.failed ? "error" : "call";
    const brief = inOneLine(call.arguments).slice(0, BRIEF);
    made.querySelector("summary")?.append(
      el("code", { text: call.name }),
      " ",
      el("span", { class: "agentnb-dim", text: call.words }),
      // Named, because behind "returned" they would read as what the tool has returned.
      el("span", { class: "agentnb-dim", text: " · arguments " }),
      el("span", { class: "agentnb-brief", text: brief }),
    );
    return made;
  }

  /** @param {number} position */
  linkTo(position) {
    return button(`#${position}`, () => this.go(position), {
      class: "agentnb-link",
      title: "Show the event",
      "aria-label": `Event ${position}`,
    });
  }

  drawLive() {
    const over = this.store.model.get("status")?.over;
    const now = this.begun === null || this.latest.get(this.path)?.position === this.begun;
    const lines = over || !now ? [] : this.store.live.filter((line) => line.path === this.path && SPEAKS[line.kind]);
    const made = fit(this.live, lines.length, () =>
      el("div", { class: "agentnb-message" }, el("div", { class: "agentnb-role" }), el("div", { class: "agentnb-body" }, el("pre"))),
    );
    lines.forEach((line, i) => {
      const [role, body] = made[i].children;
      say(role, [SPEAKS[line.kind], line.name].filter(Boolean).join(" "));
      if (body.firstChild) say(body.firstChild, line.text.trimStart());
    });
    this.live.hidden = !lines.length;
    if (this.follow) this.log.scrollTop = this.log.scrollHeight;
  }

  dispose() {
    clearTimeout(this.timer);
  }
}

/**
 * A text; what may be too tall to be seen at once has the focus, so that a keyboard scrolls it.
 * @param {string} text
 */
function block(text) {
  return el("pre", { text, tabindex: text.length > TALL || text.split("\n").length > TALL_LINES ? "0" : null });
}

/**
 * @param {string} words
 * @param {string} name
 * @param {...(Node | string | null)} children
 */
function fold(words, name, ...children) {
  return el("details", { class: name }, el("summary", { text: words }), ...children);
}
