// The conversation of one loop, as it is sent to the model. The kernel builds it when the page asks. Messages that have
// not changed keep their elements, and stay open or closed.

import { button, count, el, fit, number, say } from "./text.js";
import { hasMarkdown, markdown } from "./markdown.js";

const AT_FIRST = 40, // messages shown at first; "Earlier" shows as many more
  LOOPS = 200, // loops that can be chosen, at most
  TALL = 600, // characters of a text that fits on the screen,
  TALL_LINES = 14, // and lines
  PAUSE = 400; // milliseconds between two questions to the kernel; more if it answers slowly
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+=*$/;
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
    // The event that the loop began with: several loops may run at the same path, one after the other.
    this.begun = /** @type {number | null} */ (null);
    this.chosen = false; // whether a person has chosen the loop
    // For each path, the loop that began last, and how many have begun there.
    this.latest = /** @type {Map<string, { position: number, times: number }>} */ (new Map());
    // The elements on the page, by the message's place in the conversation.
    this.shown = /** @type {Map<number, { signature: string, node: HTMLElement }>} */ (new Map());
    this.seen = 0;
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
    this.earlier = button("Earlier", () => this.showEarlier(), { class: "agentnb-link", hidden: true, title: "Show more of the earlier messages" });
    this.isSource = false; // whether the Markdown of the model is shown as it is written
    this.source = button("Source", () => this.toggleSource(), { "aria-pressed": "false", title: "Show the Markdown of the model as it is written", hidden: true });
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
      el("div", { class: "agentnb-filter" }, this.loop, this.count, this.source, this.earlier),
      this.log,
    );
    this.sought = "";
    this.unfound = el("p", { class: "agentnb-empty", role: "status", hidden: true });
    this.list.before(this.unfound);
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
    // The end stays in sight if the place for the messages gets another size.
    this.sized = new ResizeObserver(() => this.follow && this.toEnd());
    this.sized.observe(this.log);
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  /**
   * Show only the messages that have this text.
   * @param {string} text
   */
  find(text) {
    if (this.sought === text) return;
    this.sought = text;
    this.sift();
  }

  sift() {
    const sought = this.sought.toLowerCase();
    let found = 0;
    for (const { node } of this.shown.values()) {
      node.hidden = sought !== "" && !node.textContent.toLowerCase().includes(sought);
      if (!node.hidden) found++;
    }
    say(this.unfound, `None of ${count(this.shown.size, "message")} has this text.`);
    this.unfound.hidden = !sought || found > 0 || !this.shown.size;
  }

  toggleSource() {
    this.isSource = !this.isSource;
    this.source.setAttribute("aria-pressed", String(this.isSource));
    const { scrollTop } = this.log;
    for (const shown of this.shown.values()) {
      const node = this.makeAnew(JSON.parse(shown.signature), shown.node);
      shown.node.replaceWith(node);
      shown.node = node;
    }
    this.log.scrollTop = scrollTop;
    this.sift();
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
    const { all } = this.store.spans;
    if (this.anew !== this.store.anew) {
      // A replay has moved back: some of the loops have not begun there.
      this.anew = this.store.anew;
      this.seen = 0;
      this.latest.clear();
      while (this.loop.options.length > 1) this.loop.lastChild?.remove();
      if (this.begun !== null && this.begun >= this.store.rows.length) {
        this.choose("");
        this.chosen = false;
      }
    }
    for (; this.seen < all.length; this.seen++) {
      const { kind, path, position } = all[this.seen];
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
    this.path = this.begun === null ? "" : (this.store.rows[this.begun]?.path ?? "");
    this.loop.value = value;
  }

  // Ask for the messages: one question at a time, and not more often than the kernel can answer.
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
      { path, begun, last, store } = this,
      at = store.isLive || store.replays ? undefined : store.position;
    const waited = setTimeout(() => {
      this.asking = false; // a busy kernel answers when it can; a later answer is as good
    }, 10000);
    store.ask({ type: "messages", path, begun, last, position: at }, (answer) => {
      clearTimeout(waited);
      this.asking = false;
      this.due = Date.now() + Math.max(PAUSE, 5 * (Date.now() - asked));
      const same = path === this.path && begun === this.begun && (at === undefined || at === store.position);
      if (same) this.show(answer);
      if (this.wanted || !same) this.ask();
    });
  }

  /** @param {Answers["messages"]} answer */
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
    this.sift();
    if (!total && !this.chosen && this.latest.size) {
      // The outermost loop does not ask a model itself.
      this.choose(this.loop.options[1].value);
      this.chosen = true;
      this.ask();
    }
    say(this.count, count(total, "message"));
    say(this.note, [note, left ? `${number(left)} earlier messages` : ""].filter(Boolean).join(" "));
    this.note.hidden = !this.note.textContent;
    this.earlier.hidden = !left;
    this.source.hidden = !messages.some((message) => isWritten(message));
    this.empty.hidden = total > 0;
    say(this.empty, this.path ? "No messages yet." : this.store.nothing("messages"));
    this.drawLive();
    if (!this.follow && this.last > AT_FIRST && this.log.scrollTop < 40) this.log.scrollTop += this.log.scrollHeight - height;
  }

  /**
   * Make a message's element anew. What was open in it stays open.
   * @param {ShownMessage} message
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

  /** @param {ShownMessage} message */
  make(message) {
    const body = el("div", { class: "agentnb-message-body" });
    if (message.reasoning) body.append(fold("reasoning", "agentnb-reasoning", block(message.reasoning)));
    if (message.text) body.append(isWritten(message) && !this.isSource ? markdown(message.text) : block(message.text));
    body.append(...thumbnails(message.pictures));
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

  /** @param {ShownCall} call */
  makeCall(call) {
    const parts = [["arguments", call.arguments], ["decision", call.decision], ["result", call.result]].filter(([, text]) => text);
    const made = fold(
      "",
      "agentnb-made",
      ...parts.flatMap(([name, text]) => [el("div", { class: "agentnb-label-small", text: name }), block(text)]),
      ...thumbnails(call.pictures),
      call.position >= 0 ? this.linkTo(call.position) : null,
    );
    made.dataset.group = call.failed ? "error" : "call";
    const words = call.returned ? call.words.split(" \u00b7 ").filter((word) => word !== "returned") : [call.words];
    made.querySelector("summary")?.append(
      el("code", { text: call.name }),
      el("span", { class: "agentnb-brief", text: call.line }),
      ...(call.returned ? [" \u2192 ", el("span", { class: "agentnb-brief", text: call.returned })] : []),
      el("span", { class: "agentnb-dim", text: words.map((word) => ` \u00b7 ${word}`).join("") }),
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
      el("div", { class: "agentnb-message" }, el("div", { class: "agentnb-role" }), el("div", { class: "agentnb-message-body" }, el("pre"))),
    );
    lines.forEach((line, i) => {
      const [role, body] = made[i].children;
      say(role, [SPEAKS[line.kind], line.name].filter(Boolean).join(" "));
      if (body.firstChild) say(body.firstChild, line.text.trimStart());
    });
    this.live.hidden = !lines.length;
    if (this.follow) this.toEnd();
  }

  dispose() {
    clearTimeout(this.timer);
    this.sized.disconnect();
  }
}

/**
 * Whether a message is one of the model in Markdown.
 * @param {ShownMessage} message
 */
const isWritten = ({ role, text }) => role === "assistant" && hasMarkdown(text);

/**
 * Show a text. If it may not fit on the screen it can have the focus, so that the keyboard scrolls it.
 * @param {string} text
 */
function block(text) {
  return el("pre", { text, tabindex: text.length > TALL || text.split("\n").length > TALL_LINES ? "0" : null });
}

/**
 * Show pictures that are a part of the message. Nothing is fetched, and no other type of data is shown.
 * @param {string[]} [pictures]
 */
function thumbnails(pictures = []) {
  const shown = pictures.filter((picture) => PICTURE.test(picture));
  return shown.map((src, i) => el("img", { class: "agentnb-thumbnail", src, alt: `Picture ${i + 1} of ${shown.length}` }));
}

/**
 * @param {string} words
 * @param {string} name
 * @param {...(Node | string | null)} children
 */
function fold(words, name, ...children) {
  return el("details", { class: name }, el("summary", { text: words }), ...children);
}
