import assert from "node:assert/strict";
import test from "node:test";

import { isEnter } from "../../agentnb/widgets/page/keys.js";
import { OUTERMOST, around, fieldWith, isIn, matches } from "../../agentnb/widgets/page/row.js";
import { count, duration, enable, inOneLine, fitsOnOneLine, number, visible } from "../../agentnb/widgets/page/text.js";

test("control characters and characters without a glyph are shown as symbols", () => {
  assert.equal(visible("\x1b[31mred\x00\x7f"), "\u241b[31mred\u2400\u2421");
  assert.equal(visible("a\u202egpj.exe"), "a\u27e6U+202E\u27e7gpj.exe");
  assert.equal(visible("\u{e0041}"), "\u27e6U+E0041\u27e7");
});

test("tabs, line ends and joiners are not changed", () => {
  assert.equal(visible("a\tb\r\nc"), "a\tb\nc");
  assert.equal(visible("\u{1f469}\u200d\u{1f52c} \u0928\u092e\u0938\u094d\u0924\u0947"), "\u{1f469}\u200d\u{1f52c} \u0928\u092e\u0938\u094d\u0924\u0947");
});

test("null and undefined are shown as empty text, other values as their text", () => {
  assert.deepEqual([null, undefined, 0, false].map(visible), ["", "", "0", "false"]);
});

test("arguments of several lines are shortened to one line, which is not complete", () => {
  const told = '{\n  "text": 2 lines,\n    \u2502 one\n    \u2502 two\n}';
  assert.equal(inOneLine(told), '{ "text": 2 lines, one two }');
  assert.equal(fitsOnOneLine(told), false);
});

test("arguments without line ends and repeated blanks are complete in one line", () => {
  assert.equal(fitsOnOneLine('{\n  "path": "/a b"\n}'), true);
  assert.equal(fitsOnOneLine('{\n  "path": "/a  b"\n}'), false);
});

test("numbers have separators and at most four decimals", () => {
  assert.deepEqual([1234567, 0.123456, 2].map(number), ["1,234,567", "0.1235", "2"]);
});

test("a noun is in the plural unless there is one", () => {
  assert.deepEqual([0, 1, 1200].map((amount) => count(amount, "call")), ["0 calls", "1 call", "1,200 calls"]);
});

test("Enter confirms, unless it ends the composition of an input method", () => {
  const key = { key: "Enter", isComposing: false, keyCode: 13 };
  assert.equal(isEnter(key), true);
  assert.equal(isEnter({ ...key, isComposing: true }), false);
  assert.equal(isEnter({ ...key, keyCode: 229 }), false); // Safari
  assert.equal(isEnter({ ...key, key: "a" }), false);
});

test("the events of a loop include those of its nested loops", () => {
  const paths = [undefined, "a", "a/b", "ab"];
  const inLoop = (loop) => paths.filter((path) => isIn({ path }, loop));
  assert.deepEqual(inLoop("a"), ["a", "a/b"]);
  assert.deepEqual(inLoop(OUTERMOST), [undefined]);
});

test("a search covers type, path, summary and data of an event and ignores case", () => {
  const row = { type: "call_end", path: "finder", summary: "Search returned", data: { result: "Seven" } };
  for (const query of ["call_e", "find", "search", "seven"]) assert.equal(matches(row, query), true, query);
  assert.equal(matches(row, "eight"), false);
  assert.equal(matches({ ...row, data: undefined }, "seven"), false);
});

test("a hit is found in the field of an event that has it, and shown with what is around it", () => {
  const data = { call_id: "c1", arguments: { to: ["ada", "bob@EXAMPLE.org"], body: null }, tokens: 1200 };
  assert.deepEqual(fieldWith(data, "example"), { field: "arguments.to.1", text: "bob@EXAMPLE.org" });
  assert.deepEqual(fieldWith(data, "120"), { field: "tokens", text: "1200" });
  assert.deepEqual(fieldWith(data, "BODY"), { field: "arguments", text: "body" });
  assert.equal(fieldWith(data, ".*"), null);
  assert.equal(around(`${"a".repeat(60)}HIT${"b".repeat(60)}`, "hit", 48), `\u2026${"a".repeat(16)}HIT${"b".repeat(16)}\u2026`);
  assert.equal(around("a hit", "hit", 48), "a hit");
});

test("a focused control is disabled when it loses the focus, and adds only one listener", () => {
  const listeners = new Set(),
    attributes = new Map();
  const control = {
    title: "Go on",
    disabled: false,
    setAttribute: (name, value) => attributes.set(name, value),
    getAttribute: (name) => attributes.get(name),
    addEventListener: (_, listener) => listeners.add(listener),
  };
  globalThis.document = { activeElement: control };
  for (let n = 0; n < 3; n++) enable(control, false, "It is playing.");
  assert.deepEqual([control.disabled, control.title, listeners.size], [false, "It is playing.", 1]);
  for (const listener of listeners) listener({ currentTarget: control });
  assert.equal(control.disabled, true);
});

test("a duration has a unit and a suitable precision", () => {
  const told = [0, 0.0004, 0.25, 1, 9.996, 42.04, 100, 3599, 7500].map(duration);
  assert.deepEqual(told, ["0 ms", "0 ms", "250 ms", "1.00 s", "10.0 s", "42.0 s", "1 min 40 s", "59 min 59 s", "2 h 05 min"]);
});

test("a duration is rounded before it is divided into minutes and hours", () => {
  const told = [0.9996, 99.96, 119.4, 119.6, 3599.4, 3599.6, 7199.6].map(duration);
  assert.deepEqual(told, ["1.00 s", "1 min 40 s", "1 min 59 s", "2 min 00 s", "59 min 59 s", "1 h 00 min", "2 h 00 min"]);
});
