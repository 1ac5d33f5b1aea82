import assert from "node:assert/strict";
import test from "node:test";

import { Spans, worked } from "../../agentnb/widgets/page/spans.js";

// Return the spans after these events. A row is [seconds, changes, more]; the kernel computes the changes (views/spans.py).
function spansOf(...events) {
  const spans = new Spans();
  events.forEach(([time, changes, more], position) => spans.take({ time, type: "any", spans: changes, ...more }, position));
  return spans;
}

const opened = (number, kind, name, more) => ({ number, kind, name, path: "", opened: 0, depth: 0, parent: null, ...more });

test("fields that an event does not change keep their values", () => {
  const { all } = spansOf(
    [1, [opened(0, "call", "search", { intervals: { 0: { kind: "wait", start: 1, since: 1 } } })]],
    [4, [{ number: 0, intervals: { 0: { end: 4 }, 1: { kind: "run", start: 4, since: 4, after: 0 } } }]],
    [9, [{ number: 0, failed: true, ended: 9, intervals: { 1: { end: 9 } } }]],
  );
  const [{ name, position, failed, ended, intervals }] = all;
  assert.deepEqual([name, position, failed, ended], ["search", 0, true, 9]);
  assert.deepEqual(intervals, [
    { kind: "wait", position: 0, since: 1, start: 1, end: 4, after: null },
    { kind: "run", position: 1, since: 4, start: 4, end: 9, after: 0 },
  ]);
});

test("the seconds spent and the end of the run are the latest known values", () => {
  const { spent, began, last } = spansOf([100, undefined, { spent: { model: 2, call: 0, wait: 0 } }], [107], [105]);
  assert.deepEqual([spent.model, began, last], [2, 100, 107]);
});

test("a call refers to its model request, and the request is a turn", () => {
  const { turns, all } = spansOf([0, [opened(0, "model", "turn 1")]], [1, [opened(1, "call", "search", { turn: 0 }), { number: 0, calls: 1 }]]);
  assert.equal(all[1].turn, turns[0]);
  assert.deepEqual(turns.map(({ name, calls }) => [name, calls]), [["turn 1", 1]]);
});

test("a span is open until it ends, and open again after a restart", () => {
  const steps = [
    [0, [opened(0, "call", "search", { call: "a" })]],
    [1, [{ number: 0, ended: 1 }]],
    [2, [{ number: 0, ended: null }]],
  ];
  const sizes = [1, 2, 3].map((n) => spansOf(...steps.slice(0, n))).map(({ open, calls }) => [open.size, calls.size]);
  assert.deepEqual(sizes, [[1, 1], [0, 0], [1, 1]]);
});

test("an id used twice refers to the later call, also when the earlier call ends", () => {
  const { calls } = spansOf(
    [0, [opened(0, "call", "first", { call: "a" })]],
    [1, [opened(1, "call", "second", { call: "a" })]],
    [2, [{ number: 0, ended: 2 }]],
  );
  assert.equal(calls.get("\na").name, "second");
});

test("an event without a span number has no span", () => {
  const spans = spansOf([0, [opened(0, "loop", "outer")]]);
  assert.equal(spans.of({ span: 0 }).name, "outer");
  assert.equal(spans.of({}), undefined);
  assert.equal(spans.of(undefined), undefined);
});

test("the time of a loop is without its waits, also while it waits", () => {
  const begin = [0, [opened(0, "loop", "inner", { intervals: { 0: { kind: "run", start: 0, since: 0 } } })]],
    asked = [2, [{ number: 0, waits_since: 2 }]],
    decided = [5, [{ number: 0, waited: 3, waits_since: null }]];
  assert.equal(worked(spansOf(begin).all[0], 4), 4);
  assert.equal(worked(spansOf(begin, asked).all[0], 4), 2);
  assert.equal(worked(spansOf(begin, asked, decided).all[0], 9), 6);
});
