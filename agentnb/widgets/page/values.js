// The arguments of a call: all of them as names and values, and on one line. Who decides must have had their end in sight.

import { button, count, el, hung, fitsOnOneLine, inOneLine, number, say } from "./text.js";

const LINE_HEIGHT = 18, // pixels
  ONE_LINE = 400; // characters of a value on one line; a longer one is cut there
const TOO_LONG = "These arguments are too long for a page: read and approve them in code (run.pending).";

/**
 * Draw names and values. A text keeps its lines; of any other value, the lines that are wrapped are indented.
 * @param {Value[]} values
 */
export function valueList(values) {
  if (!values.length) return el("p", { class: "agentnb-dim", text: "No arguments." });
  return el(
    "dl",
    { class: "agentnb-values" },
    ...values.flatMap(({ name, kind, text }) => [
      el("dt", { text: name }),
      kind === "json" ? el("dd", {}, ...hung(text)) : el("dd", { "data-kind": kind, text }),
    ]),
  );
}

/**
 * One value on one line, and whether the line has all of it.
 * @param {Value} value
 * @param {boolean} bare without quotes around a text
 */
function onOneLine({ kind, text }, bare) {
  if (kind === "text") return { line: count(text.replace(/^\n+|\n+$/g, "").split("\n").length, "line"), whole: false };
  const whole = fitsOnOneLine(text) && text.length <= ONE_LINE,
    line = inOneLine(text).slice(0, ONE_LINE);
  return { line: kind === "json" || bare ? line : JSON.stringify(line), whole };
}

/**
 * Draw the arguments on one line: first those that differ from the arguments of similar calls, in bold, then the others.
 * Return the nodes, and whether they show all of the arguments.
 * @param {Question} item
 * @param {Likeness | null} alike what the calls around it have in common; without it, all arguments have the same weight
 * @returns {{ nodes: Node[], whole: boolean }}
 */
export function argumentsLine({ values, left }, alike) {
  const differs = (/** @type {Value} */ { name }) => Boolean(alike?.names.includes(name)),
    ordered = alike ? [...values.filter(differs), ...values.filter((value) => !differs(value))] : values,
    bare = alike?.names.length === 1;
  let all = !left;
  const nodes = ordered.flatMap((value, i) => {
    const isBare = bare && differs(value),
      { line, whole } = onOneLine(value, isBare),
      prefix = isBare && line.startsWith(alike.prefix) ? alike.prefix : "";
    all &&= whole;
    return [
      el("span", { text: `${i ? ", " : ""}${isBare ? prefix : `${value.name}=`}` }),
      el(differs(value) ? "b" : "span", { text: line.slice(prefix.length) }),
    ];
  });
  return { nodes, whole: all };
}

/** @typedef {{ names: string[], prefix: string }} Likeness the arguments that differ, and how the only one begins */

/**
 * Compare calls of one tool.
 * @param {Question[]} items
 * @returns {Likeness}
 */
export function likeness(items) {
  const written = items.map(({ values }) => new Map(values.map(({ name, kind, text }) => [name, `${kind} ${text}`])));
  const all = new Set(written.flatMap((one) => [...one.keys()]));
  const names = [...all].filter((name) => new Set(written.map((one) => one.get(name))).size > 1);
  const texts = items.map(({ values }) => values.find(({ name }) => name === names[0])?.text ?? "");
  return { names, prefix: names.length === 1 ? commonFolder(texts) : "" };
}

/**
 * The beginning that texts have in common, up to a slash.
 * @param {string[]} texts
 */
function commonFolder(texts) {
  let common = texts[0];
  for (const text of texts) while (!text.startsWith(common)) common = common.slice(0, -1);
  return common.slice(0, common.lastIndexOf("/") + 1);
}

/** All arguments of a call in a region that scrolls, with a bar that says how much is below its edge. */
export class Arguments {
  /**
   * @param {Question} item
   * @param {(answered: (answer: Answers["show"]) => void) => void} load asks the kernel for all of them
   * @param {() => void} changed called when their end is in sight, and when the rest was loaded
   */
  constructor(item, load, changed) {
    this.load = load;
    this.left = 0; // characters that the page does not have
    this.loaded = false; // whether the kernel was asked for them
    this.seen = false; // whether the end has been in sight
    this.changed = changed;
    this.sight = new IntersectionObserver((marks) => marks.some((mark) => mark.isIntersecting) && this.see());
    this.region = el("div", {
      class: "agentnb-arguments",
      tabindex: "0",
      role: "region",
      "aria-label": `Arguments of ${item.name} (${item.id})`,
    });
    this.how = el("span", { role: "status" });
    this.why = el("span", { class: "agentnb-off" });
    this.more = button("Show all", () => this.showMore(), {
      class: "agentnb-button agentnb-strong",
      title: "Show the rest of the arguments (End: to the end)",
    });
    this.bar = el("div", { class: "agentnb-rest", hidden: true }, this.how, this.why, this.more);
    this.el = el("div", { class: "agentnb-read" }, this.region, this.bar);
    this.region.addEventListener("scroll", () => this.measure(), { passive: true });
    this.sized = new ResizeObserver(() => this.measure());
    this.sized.observe(this.region);
    this.show(item.values, item.left);
  }

  /**
   * @param {Value[]} values
   * @param {number} left
   */
  show(values, left) {
    const list = valueList(values);
    this.left = left;
    this.region.replaceChildren(list);
    if (left) (list.lastElementChild ?? list).append(el("span", { class: "agentnb-dim", text: " \u2026" }));
    else this.mark(list.lastElementChild ?? list);
    this.measure();
  }

  /**
   * Add a mark at the end of a text. The browser reports when the mark becomes visible.
   * @param {Element} node
   */
  mark(node) {
    if (this.seen) return;
    const end = el("span", { class: "agentnb-end" });
    node.append(end);
    this.sight.observe(end);
  }

  // Note that the end has been in sight, here or in the row of the call.
  see() {
    if (this.seen) return;
    this.seen = true;
    this.sight.disconnect();
    this.measure();
    this.changed();
  }

  // Say how much is missing or below the edge, until the end has been in sight.
  measure() {
    const { scrollHeight, clientHeight, scrollTop } = this.region,
      below = Math.max(0, scrollHeight - clientHeight - scrollTop - 2),
      lines = Math.ceil(below / LINE_HEIGHT);
    this.bar.hidden = this.seen || (!this.left && !below);
    if (this.bar.hidden) return;
    const missing = this.left ? `${number(this.left)} more characters` : `${count(lines, "more line")}`;
    say(this.how, this.left && this.loaded ? TOO_LONG : missing);
    say(this.more, this.left || below <= clientHeight ? "Show all" : "Show more");
    this.more.hidden = Boolean(this.left) && this.loaded;
  }

  // Load what is missing; then show the next lines, so that none is passed over.
  showMore() {
    if (!this.left) {
      this.region.scrollTop += Math.max(LINE_HEIGHT, this.region.clientHeight - LINE_HEIGHT);
      return;
    }
    this.load((answer) => {
      this.loaded = true;
      if (answer.values) this.show(answer.values, answer.left ?? 0);
      this.measure();
      this.changed();
    });
  }

  // The reason why the call cannot be approved now; empty if it can.
  unread() {
    if (this.seen) return "";
    if (!this.left) return "Read to the end of the arguments first.";
    return this.loaded ? TOO_LONG : "Show all of the arguments first.";
  }

  /**
   * Say in the bar why the call cannot be approved now. It is there as long as the end has not been in sight.
   * @param {string} words
   */
  explain(words) {
    say(this.why, words);
  }

  dispose() {
    this.sight.disconnect();
    this.sized.disconnect();
  }
}
