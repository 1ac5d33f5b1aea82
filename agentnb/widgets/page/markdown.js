// The Markdown of a model, as elements: headings, lists, quotes, code, tables, emphasis and links. It is a subset of
// GitHub's. HTML stays text; nothing is loaded; a link is shown with its address and leads nowhere.

import { el, visible } from "./text.js";

const MOST_TEXT = 40_000, // characters; a longer text is shown as it is written
  NESTED = 8, // levels of lists, quotes and emphasis; deeper ones are shown as they are written
  TABLE_COLUMNS = 40,
  WIDE_TABLE = 4; // columns from which a table may be wider than its place
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/,
  HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*$/,
  RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/,
  QUOTE = /^ {0,3}> ?/,
  ITEM_OF_LIST = /^( *)([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|(?=[ \t]*$)| )/,
  DELIMITERS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const LINK = /^!?\[((?:[^[\]\\]|\\.){0,1000})\]\([ \t]*<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500})?)>?(?:[ \t]+"[^"]{0,500}")?[ \t]*\)/,
  WEB = /^https?:\/\//i,
  PUNCTUATION = /[!-/:-@[-`{-~]/;
const MARKS = /** @type {const} */ ([["**", "b"], ["__", "b"], ["~~", "s"], ["*", "em"], ["_", "em"]]);

/**
 * Make elements of a text in Markdown.
 * @param {string} text
 */
export function markdown(text) {
  const shown = visible(text),
    made = el("div", { class: "agentnb-markdown" });
  if (shown.length > MOST_TEXT) made.append(el("pre", { text: shown, tabindex: "0" }));
  else made.append(...blocks(shown.split("\n"), 0));
  return made;
}

/**
 * Whether a text has something that Markdown shows in another way.
 * @param {string} text
 */
export const hasMarkdown = (text) =>
  /[*_~`[]|^ {0,3}(?:#{1,6}[ \t]|>|[-+][ \t]|\d{1,9}[.)][ \t]|~{3}|-{3})|^[ \t]*\|?[ \t]*:?-+:?[ \t]*\|/m.test(text);

/**
 * @param {string[]} lines
 * @param {number} depth
 * @returns {HTMLElement[]}
 */
function blocks(lines, depth) {
  const made = /** @type {HTMLElement[]} */ ([]);
  let paragraph = /** @type {string[]} */ ([]);
  const close = () => {
    if (paragraph.length) made.push(el("p", {}, ...inline(paragraph.join("\n"), 0)));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; ) {
    const block = paragraph.length && lines[at].startsWith("    ") ? null : blockAt(lines, at, depth);
    if (block || !lines[at].trim()) {
      close();
      if (block?.node) made.push(block.node);
      at = block?.end ?? at + 1;
    } else paragraph.push(lines[at++].trim());
  }
  close();
  return made;
}

/**
 * The block that begins at a line, and the line after it; null if a paragraph is there.
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {{ node: HTMLElement, end: number } | null}
 */
function blockAt(lines, at, depth) {
  const line = lines[at],
    fence = FENCE.exec(line),
    heading = HEADING.exec(line);
  if (fence) return codeAt(lines, at, fence);
  if (heading) {
    const [, { length: level }, words] = heading;
    return { node: el("div", { class: "agentnb-markdown-heading", role: "heading", "aria-level": String(Math.min(6, level + 2)), "data-level": level }, ...inline(words, 0)), end: at + 1 };
  }
  if (RULE.test(line)) return { node: el("hr"), end: at + 1 };
  if (depth < NESTED && QUOTE.test(line)) {
    let end = at;
    while (end < lines.length && QUOTE.test(lines[end])) end++;
    return { node: el("blockquote", {}, ...blocks(lines.slice(at, end).map((one) => one.replace(QUOTE, "")), depth + 1)), end };
  }
  if (depth < NESTED && ITEM_OF_LIST.test(line)) return listAt(lines, at, depth);
  if (line.includes("|") && DELIMITERS.test(lines[at + 1] ?? "")) return tableAt(lines, at);
  if (/^ {4}\s*\S/.test(line)) {
    let end = at;
    while (end < lines.length && /^(?: {4}|\s*$)/.test(lines[end])) end++;
    return { node: code(lines.slice(at, end).map((one) => one.slice(4)).join("\n").trimEnd(), ""), end };
  }
  return null;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {RegExpExecArray} fence
 */
function codeAt(lines, at, [line, mark, language]) {
  const indent = line.length - line.trimStart().length;
  let end = at + 1;
  const closes = (/** @type {string} */ one) => one.trim().startsWith(mark) && !one.trim().replaceAll(mark[0], "");
  while (end < lines.length && !closes(lines[end])) end++;
  const inside = lines.slice(at + 1, end).map((one) => one.slice(Math.min(indent, one.length - one.trimStart().length)));
  return { node: code(inside.join("\n"), language.trim()), end: end + 1 };
}

/**
 * @param {string} text
 * @param {string} language
 */
function code(text, language) {
  return el("pre", { class: "agentnb-markdown-code", tabindex: text.split("\n").length > 14 ? "0" : null, title: language || null }, el("code", { text }));
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 */
function listAt(lines, at, depth) {
  const [, , mark] = /** @type {RegExpExecArray} */ (ITEM_OF_LIST.exec(lines[at])),
    isOrdered = /\d/.test(mark),
    node = isOrdered ? el("ol", { start: String(parseInt(mark, 10)) }) : el("ul");
  let end = at;
  while (end < lines.length) {
    const item = ITEM_OF_LIST.exec(lines[end]);
    if (!item || /\d/.test(item[2]) !== isOrdered || RULE.test(lines[end])) break;
    const [{ length: within }] = item,
      inside = [lines[end].slice(within)];
    for (end++; end < lines.length; end++) {
      const line = lines[end],
        indent = line.length - line.trimStart().length,
        isBlank = !line.trim();
      if (isBlank ? !continues(lines, end, within) : indent < Math.min(within, item[1].length + 2)) break;
      inside.push(line.slice(Math.min(within, indent)));
    }
    const box = /^\[([ xX])\] /.exec(inside[0]);
    if (box) inside[0] = `${box[1] === " " ? "\u2610" : "\u2611"} ${inside[0].slice(4)}`;
    const content = blocks(inside, depth + 1);
    // The text of an item that has no empty line in it is no paragraph of its own.
    const isTight = !inside.some((line) => !line.trim());
    node.append(el("li", {}, ...(isTight ? content.flatMap((one) => (one.localName === "p" ? [...one.childNodes] : [one])) : content)));
    if (end < lines.length && !lines[end].trim() && ITEM_OF_LIST.test(lines[end + 1] ?? "")) end++;
  }
  return { node, end };
}

/**
 * Whether an item of a list continues after an empty line.
 * @param {string[]} lines
 * @param {number} at
 * @param {number} within
 */
function continues(lines, at, within) {
  const next = lines.slice(at).find((line) => line.trim());
  return next !== undefined && next.length - next.trimStart().length >= within;
}

/** @param {string} line */
const cellsOf = (line) =>
  line
    .trim()
    .replace(/^\||(?<!\\)\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

/**
 * @param {string[]} lines
 * @param {number} at
 */
function tableAt(lines, at) {
  const head = cellsOf(lines[at]),
    sides = cellsOf(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
  if (head.length !== sides.length || head.length > TABLE_COLUMNS) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  /**
   * @param {"th" | "td"} tag
   * @param {string[]} cells there may be more of them than columns: nothing that was written is left out
   */
  const row = (tag, cells) =>
    el(
      "tr",
      {},
      ...sides.map((side, i) => {
        const text = i === sides.length - 1 ? cells.slice(i).join(" | ") : (cells[i] ?? "");
        return el(tag, { scope: tag === "th" ? "col" : null, "data-side": side }, ...inline(text, 0));
      }),
    );
  const table = el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, ...lines.slice(at + 2, end).map((line) => row("td", cellsOf(line)))));
  return { node: el("div", { class: "agentnb-markdown-table", tabindex: head.length > WIDE_TABLE ? "0" : null }, table), end };
}

/**
 * @param {string} text
 * @param {number} depth
 * @returns {Node[]}
 */
function inline(text, depth) {
  const made = /** @type {Node[]} */ ([]);
  let plain = "",
    at = 0;
  /**
   * @param {Node[]} nodes
   * @param {number} next
   */
  const put = (nodes, next) => {
    if (plain) made.push(document.createTextNode(plain));
    plain = "";
    made.push(...nodes);
    at = next;
  };
  while (at < text.length) {
    const rest = text[at],
      found = depth < NESTED ? inlineAt(text, at, depth) : null;
    if (found) put(found.nodes, found.end);
    else if (rest === "\\" && PUNCTUATION.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      // What is no mark at its beginning is none in its middle: `***`.
      const { length } = /^(?:[*_~`]+|.)/s.exec(text.slice(at, at + 100)) ?? [" "];
      plain += text.slice(at, at + length);
      at += length;
    }
  }
  put([], at);
  return made;
}

/**
 * What begins at a place in a text: code, a link, or words with emphasis.
 * @param {string} text
 * @param {number} at
 * @param {number} depth
 * @returns {{ nodes: Node[], end: number } | null}
 */
function inlineAt(text, at, depth) {
  const sign = text[at];
  if (sign === "`") {
    const [ticks] = /** @type {RegExpExecArray} */ (/^`+/.exec(text.slice(at, at + 100))),
      end = endOfTicks(text, at + ticks.length, ticks.length);
    if (end < 0) return null;
    return { nodes: [el("code", { text: text.slice(at + ticks.length, end).replace(/^ (.*\S.*) $/s, "$1") })], end: end + ticks.length };
  }
  if (sign === "[" || (sign === "!" && text[at + 1] === "[")) {
    const link = LINK.exec(text.slice(at, at + 4100));
    if (!link) return null;
    const [whole, words, address] = link,
      end = at + whole.length;
    if (sign === "!" || !WEB.test(address)) return { nodes: [document.createTextNode(whole)], end };
    const shown = el("span", { class: "agentnb-markdown-link" }, ...inline(words, depth + 1));
    return { nodes: words === address ? [shown] : [shown, el("span", { class: "agentnb-dim", text: ` (${address})` })], end };
  }
  for (const [mark, tag] of MARKS) {
    if (!text.startsWith(mark, at)) continue;
    const begin = at + mark.length,
      end = endOfMark(text, begin, mark);
    if (end >= 0 && opens(text, at, mark)) return { nodes: [el(tag, {}, ...inline(text.slice(begin, end), depth + 1))], end: end + mark.length };
  }
  return null;
}

/**
 * Where a run of as many back ticks is.
 * @param {string} text
 * @param {number} from
 * @param {number} many
 */
function endOfTicks(text, from, many) {
  for (let at = text.indexOf("`", from); at >= 0; at = text.indexOf("`", at)) {
    let end = at;
    while (text[end] === "`") end++;
    if (end - at === many) return at;
    at = end;
  }
  return -1;
}

/**
 * Whether a mark begins an emphasis: a word follows it, and `_` is not in the middle of one.
 * @param {string} text
 * @param {number} at
 * @param {string} mark
 */
const opens = (text, at, mark) => /^\S/.test(text.slice(at + mark.length)) && (mark[0] !== "_" || !/[\p{L}\p{N}_]/u.test(text[at - 1] ?? ""));

/**
 * Where the mark is that ends an emphasis.
 * @param {string} text
 * @param {number} from
 * @param {string} mark
 */
function endOfMark(text, from, mark) {
  for (let at = text.indexOf(mark, from + 1); at >= 0; at = text.indexOf(mark, at + mark.length)) {
    if (/[\s\\]/.test(text[at - 1])) continue;
    if (mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark)) {
      while (text[at + 1] === mark) at++; // a part of `**`
      continue;
    }
    if (mark[0] === "_" && /[\p{L}\p{N}_]/u.test(text[at + mark.length] ?? "")) continue;
    return at;
  }
  return -1;
}
