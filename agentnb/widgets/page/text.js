// Text that others said, made visible, and nodes built from text. Nothing here or anywhere else parses markup.

// The same characters as in text.py: controls, bidirectional and other invisible ones, tags.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
    "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff\\u{e0000}-\\u{e007f}]",
  "gu",
);

export function visible(text) {
  return String(text ?? "")
    .replaceAll("\r\n", "\n")
    .replace(HIDDEN, (sign) => {
      const code = sign.codePointAt(0);
      if (code < 0x20) return String.fromCodePoint(0x2400 + code);
      return code === 0x7f ? "\u2421" : `\u27e6U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e7`;
    });
}

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

// As many children as there are things to show. Those that are there stay: nothing is made anew, and nothing moves.
export function fit(node, many, make) {
  while (node.children.length > many) node.lastElementChild.remove();
  while (node.children.length < many) node.append(make());
  return node.children;
}

// The same of parts with an element each.
export function fitParts(parts, node, many, make) {
  while (parts.length > many) parts.pop().el.remove();
  while (parts.length < many) {
    parts.push(make(parts.length));
    node.append(parts.at(-1).el);
  }
}

// Changing what is the same already would make a screen reader speak and the page lay out again.
export function say(node, text) {
  const shown = visible(text);
  if (node.textContent !== shown) node.textContent = shown;
}

// A text's lines, each going on further in where it is wrapped: no part of a long one stands where another would begin.
export function hung(text) {
  const lines = visible(text).split("\n");
  return lines.flatMap((line, i) => {
    const made = el("span", { class: "agentnb-hung", text: line });
    made.style.setProperty("--in", `${Math.min(24, Math.max(0, line.search(/[^ \u2502]/)) + 2)}ch`);
    return i ? ["\n", made] : [made];
  });
}

// What `for_reading` (text.py) has laid out, on one line.
export const inOneLine = (text) => text.replace(/\n *│/g, " ").replace(/\s+/g, " ");

let serial = 0;
export const unique = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}-${++serial}`;
export const button = (name, onclick, extra = {}) =>
  el("button", { type: "button", class: "agentnb-button", text: name, onclick, ...extra });
export const number = (value) => Number(value).toLocaleString("en", { maximumFractionDigits: 4 });

// Why a control is off.
export const GONE = "The kernel is gone.",
  BUSY = "Under way.";
const RECORDED = "Nothing is decided in a recording.";

// A disabled element loses the focus to the page, and with it whoever works by keyboard. It keeps it this way. What it
// is for, or why it is off, is in its title, which screen readers read as well.
export function enable(control, can, why = "") {
  control.setAttribute("aria-disabled", String(!can));
  control.purpose ??= control.title;
  const told = can ? control.purpose : visible(why);
  if (control.title !== told) control.title = told;
  if (document.activeElement !== control) control.disabled = !can;
  else
    control.addEventListener(
      "blur",
      () => {
        control.disabled = control.getAttribute("aria-disabled") === "true";
      },
      { once: true },
    );
  if (can) control.disabled = false;
}

// The same for what decides something: not in a recording, and not without a kernel.
export function allow(control, { gone, replays }, can = true, why = "") {
  enable(control, can && !gone && !replays, gone ? GONE : replays ? RECORDED : why);
}

export const count = (amount, what) => `${number(amount)} ${what}${amount === 1 ? "" : "s"}`;
