// Makes text from others safe to show, and builds nodes from text. Nothing on the page parses markup.

// The same rule as in text.py, which explains it: first the characters that are kept in their context, then the invisible.
const JOINING_SCRIPTS = `Arabic Syriac Mandaic Nko Mongolian Devanagari Bengali Gurmukhi Gujarati Oriya Tamil Telugu Kannada
  Malayalam Sinhala Khmer Myanmar Tibetan Balinese Javanese`.split(/\s+/);
const JOINED_LETTER = `(?:(?=[\\p{L}\\p{M}])[${JOINING_SCRIPTS.map((script) => `\\p{Script=${script}}`).join("")}])`;
const WIDE_LETTER =
  "(?:(?!\\p{Default_Ignorable_Code_Point})[\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\u3001-\\u303f\\uff01-\\uff60])";
const MEANT = [
  "(?<=\\p{Extended_Pictographic}\\ufe0f?|\\p{Emoji_Modifier})\\u200d(?=\\p{Extended_Pictographic})",
  "(?<=(?![0-9#*])\\p{Emoji})[\\ufe0e\\ufe0f]",
  "(?<=[0-9#*])\\ufe0f(?=\\u20e3)",
  `(?<=${JOINED_LETTER})[\\u200c\\u200d](?=${JOINED_LETTER})`,
  `(?<=${WIDE_LETTER})\\u3000|\\u3000(?=${WIDE_LETTER})`,
];
const INVISIBLE =
  "(?![\\t\\n ])[\\p{Default_Ignorable_Code_Point}\\p{Cc}\\p{Zs}\\p{Zl}\\p{Zp}\\p{Noncharacter_Code_Point}" +
  "\\u2800\\ufff9-\\ufffb\\u{1d159}\\u{16fe4}\\u{13430}-\\u{1343f}]";
const HIDDEN = new RegExp(`(?<meant>${MEANT.join("|")})|${INVISIBLE}`, "gu");

/**
 * Return a text with a visible sign in place of each invisible character.
 * @param {unknown} text null and undefined become an empty text
 * @returns {string}
 */
export function visible(text) {
  return String(text ?? "")
    .replaceAll("\r\n", "\n")
    .replace(HIDDEN, (sign, meant) => {
      if (meant !== undefined) return sign;
      const code = /** @type {number} */ (sign.codePointAt(0));
      if (code < 0x20) return String.fromCodePoint(0x2400 + code);
      return code === 0x7f ? "\u2421" : `\u27e6U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e7`;
    });
}

/**
 * Make an element. `text` is its text and `class` its classes; `on...` is a listener. Any other attribute is set, unless
 * its value is false, null or undefined.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string | null | undefined)} children those that are null or undefined are left out
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = visible(value);
    else if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, visible(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/**
 * Make an element of a drawing.
 * @param {string} tag
 * @param {Record<string, any>} attributes
 * @param {...SVGElement} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return /** @type {SVGElement} */ (node);
}

/**
 * Give an element as many children as there are things to show. Those that it has stay where they are.
 * @template {HTMLElement} Child
 * @param {HTMLElement} node
 * @param {number} many
 * @param {() => Child} make
 * @returns {Child[]}
 */
export function fit(node, many, make) {
  while (node.children.length > many) node.lastElementChild?.remove();
  while (node.children.length < many) node.append(make());
  return /** @type {Child[]} */ ([...node.children]);
}

/**
 * Give an element as many parts as there are things to show, each with its own element. Those that it has stay.
 * @template {{ el: HTMLElement }} Part
 * @param {Part[]} parts
 * @param {HTMLElement} node
 * @param {number} many
 * @param {(index: number) => Part} make
 */
export function fitParts(parts, node, many, make) {
  while (parts.length > many) parts.pop()?.el.remove();
  while (parts.length < many) {
    const part = make(parts.length);
    parts.push(part);
    node.append(part.el);
  }
}

/**
 * Set a node's text, unless it has this text already: a change makes a screen reader speak, and the page lay out again.
 * @param {Node} node
 * @param {unknown} text
 */
export function say(node, text) {
  const shown = visible(text);
  if (node.textContent !== shown) node.textContent = shown;
}

/**
 * Return a text's lines. Where a long line is wrapped, its other parts are indented, so that they do not look like lines.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function hung(text) {
  const lines = visible(text).split("\n");
  return lines.flatMap((line, i) => {
    const made = el("span", { class: "agentnb-hung", text: line });
    made.style.setProperty("--in", `${Math.min(24, Math.max(0, line.search(/[^ \u2502]/)) + 2)}ch`);
    return i ? ["\n", made] : [made];
  });
}

/**
 * Put a text that `for_reading` (text.py) has laid out on one line.
 * @param {string} text
 */
export const inOneLine = (text) => text.replace(/\n *│/g, " ").replace(/[ \n]+/g, " "); // other blanks are shown as signs

/**
 * Whether that one line shows all of the text: no value has several lines, and no blanks are left out.
 * @param {string} text
 */
export const fitsOnOneLine = (text) => !text.includes("\u2502") && !/\S {2}/.test(text);

let serial = 0;
export const unique = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}-${++serial}`;

/**
 * Make a button.
 * @param {string} name
 * @param {(event: MouseEvent & { currentTarget: HTMLButtonElement }) => void} onclick
 * @param {Record<string, any>} [extra] attributes
 */
export const button = (name, onclick, extra = {}) =>
  el("button", { type: "button", class: "agentnb-button", text: name, onclick, ...extra });

/**
 * Write a number with separators, and with four decimals at most.
 * @param {number} value
 */
export const number = (value) => Number(value).toLocaleString("en", { maximumFractionDigits: 4 });

// Why a control is off.
export const GONE = "The kernel is gone.",
  BUSY = "In progress.",
  IN_A_FILE = "This is a file. The panel in the notebook can do this.";
const RECORDED = "A recording takes no decisions.";

/**
 * Turn a control on or off, without taking the focus from it. Its title is its purpose, or the reason why it is off.
 * Screen readers read the title, too.
 * @param {Control} control
 * @param {boolean} can
 * @param {string} [why] the reason why it is off
 */
export function enable(control, can, why = "") {
  control.setAttribute("aria-disabled", String(!can));
  control.purpose ??= control.title;
  const title = can ? control.purpose : visible(why);
  if (control.title !== title) control.title = title;
  if (document.activeElement !== control) control.disabled = !can;
  else control.addEventListener("blur", disableLeft); // once: the same listener is not added again
  if (can) control.disabled = false;
}

/** @param {Event} event */
function disableLeft({ currentTarget }) {
  const control = /** @type {Control} */ (currentTarget);
  control.disabled = control.getAttribute("aria-disabled") === "true";
}

/**
 * Turn a control that decides something on or off. It is off in a recording, and without a kernel.
 * @param {Control} control
 * @param {{ gone: boolean, replays: boolean }} store
 * @param {boolean} [can]
 * @param {string} [why]
 */
export function allow(control, { gone, replays }, can = true, why = "") {
  enable(control, can && !gone && !replays, gone ? GONE : replays ? RECORDED : why);
}

/**
 * Write what models have used: their tokens, and the cost if it is known.
 * @param {Record<string, number> | undefined} usage
 * @returns {string[]}
 */
export function used(usage = {}) {
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  return [tokens ? count(tokens, "token") : "", usage.cost ? `$${number(usage.cost)}` : ""].filter(Boolean);
}

/** @param {string} text */
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/**
 * Write an amount with its noun: "1 call", "2 calls".
 * @param {number} amount
 * @param {string} what the noun in the singular
 */
export const count = (amount, what) => `${number(amount)} ${what}${amount === 1 ? "" : "s"}`;

/**
 * Write a time as a person reads it.
 * @param {number} seconds
 */
export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.floor(seconds + 0.5); // rounded before it is divided: 119.9 s are two minutes, not one
  /** @param {number} amount */
  const two = (amount) => String(Math.floor(amount)).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
}
