import assert from "node:assert/strict";
import test from "node:test";

import { Past } from "../../agentnb/widgets/page/past.js";
import { readArguments } from "../../agentnb/widgets/page/streams.js";
import { joined } from "../../agentnb/widgets/page/trace_line.js";
import { TraceRows } from "../../agentnb/widgets/page/trace_rows.js";

// Return the rows after these events, each given by its changes; the kernel computes them (views/trace.py).
function rowsOf(...events) {
  const rows = new TraceRows(new Past(false));
  events.forEach((trace, position) => rows.take({ seq: position, trace }, position));
  return rows;
}

const made = (number, kind, name, more) => ({ number, kind, status: "running", name, ...more });
const names = (rows) => rows.map(({ name, inside }) => (inside.length ? [name, names(inside)] : name));

const TURN = [made(0, "turn", "Turn 1", { span: 1 })],
  CALLS = [
    { number: 0, status: "done", text: "So:" },
    made(1, "call", "search", { status: "next", parent: 0, arguments: "n=1" }),
    made(2, "call", "fetch", { status: "next", parent: 0 }),
  ];

test("rows are inside the row that they belong to, with the fields of the last change", () => {
  const { outermost, all } = rowsOf(undefined, TURN, CALLS, [{ number: 1, position: 3, span: 2, status: "running" }]);
  assert.deepEqual(names(outermost), [["Turn 1", ["search", "fetch"]]]);
  const [{ text, position, status, calls }, search] = all;
  assert.deepEqual([text, position, status, calls], ["So:", 1, "done", 2]);
  assert.deepEqual([search.position, search.status, search.depth, search.parent], [3, "running", 1, all[0]]);
});

test("a row is found by its span, by the loop in it, and by its event", () => {
  const rows = rowsOf(TURN, CALLS, [{ number: 1, span: 2 }], [{ number: 1, kind: "loop", loop: 3 }], [made(3, "message", "You", { parent: 1 })]);
  assert.equal(rows.of({ seq: 9, span: 2 }).name, "search");
  assert.equal(rows.of({ seq: 9, span: 3 }).name, "search");
  assert.equal(rows.of({ seq: 4 }).name, "You");
  assert.equal(rows.of({ seq: 9 }), undefined);
  assert.equal(rows.of(null), undefined);
});

test("a call that becomes a loop is not counted as a call any more, in all rows around it", () => {
  const rows = rowsOf(TURN, CALLS, [{ number: 1, kind: "loop", loop: 3 }], [made(3, "turn", "Turn 1", { parent: 1 })]);
  assert.deepEqual([rows.all[0].turns, rows.all[0].calls, rows.all[1].turns], [1, 1, 1]);
});

test("a call that begins before others is moved before them, and one that never begins is taken out", () => {
  const rows = rowsOf(TURN, CALLS, [{ number: 2, place: 0, span: 2 }]);
  assert.deepEqual(names(rows.outermost), [["Turn 1", ["fetch", "search"]]]);
  const { shape } = rows;
  rows.take({ seq: 3, trace: [{ number: 1, removed: true }] }, 3);
  assert.deepEqual(names(rows.outermost), [["Turn 1", ["fetch"]]]);
  assert.ok(rows.shape > shape);
  assert.equal(rows.all[0].calls, 1);
});

test("pieces that are near each other become one, each kind for itself", () => {
  const piece = (kind, start, end) => ({ kind, start, end, open: false });
  const merged = joined([piece("model", 0, 1), piece("call", 1, 2), piece("model", 1.001, 2), piece("model", 9, 10)]);
  assert.deepEqual(merged.map(({ kind, start, end }) => [kind, start, end]), [["model", 0, 2], ["call", 1, 2], ["model", 9, 10]]);
  assert.ok(joined(Array.from({ length: 20000 }, (_, n) => piece("call", n, n + 0.1))).length <= 301);
});

test("the arguments of a call that is being written are read as far as they have come", () => {
  for (const [given, head, body] of [
    ["", "…", ""],
    ["{", "", ""],
    ['{"na', "", ""],
    ['{"name": "nile.md", "te', 'name="nile.md"', ""],
    ['{"name": "nile.md", "text": "# The \\"Nile\\"\\nat As', 'name="nile.md", text=…', '# The "Nile"\nat As'],
    ['{"n": 12, "years": [1880, 1881], "of": {"a": 1', "n=12, years=[1880, 1881], of=…", '{"a": 1'],
    ['{"n": 1', "n=…", "1"],
    ['the end of \\u201ca long\\u201d text\\n', "…", "the end of “a long” text\n"],
    ['{"text": "half an escape \\', "text=…", "half an escape "],
  ])
    assert.deepEqual(readArguments(given), { head, body }, given);
});
