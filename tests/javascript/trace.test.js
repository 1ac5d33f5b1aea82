import assert from "node:assert/strict";
import test from "node:test";

import { duration, Trace } from "../../agentnb/widgets/page/trace.js";

// The trace of these events. A row is [seconds, type, about which thing, more].
function traced(...events) {
  const trace = new Trace();
  const rows = events.map(([time, type, thing, more]) => ({ time, type, thing, ...more }));
  rows.forEach((row, position) => trace.take(row, position, rows));
  return trace;
}

const call = (id) => ({ data: { call_id: id } });

test("a time reads as a person says it", () => {
  const told = [0, 0.0004, 0.25, 1, 9.996, 42.04, 100, 3599, 7500].map(duration);
  assert.deepEqual(told, ["0 ms", "0 ms", "250 ms", "1.00 s", "10.0 s", "42.0 s", "1 min 40 s", "59 min 59 s", "2 h 05 min"]);
});

test("a time is rounded before it is divided into minutes and hours", () => {
  const told = [0.9996, 99.96, 119.4, 119.6, 3599.4, 3599.6, 7199.6].map(duration);
  assert.deepEqual(told, ["1.00 s", "1 min 40 s", "1 min 59 s", "2 min 00 s", "59 min 59 s", "1 h 00 min", "2 h 00 min"]);
});

test("a run's time is told by what it was spent on", () => {
  const { spent } = traced(
    [0, "run_start", 0, { name: "loop" }],
    [1, "model_start", 1, { name: "turn 1", cause: 0 }],
    [3, "model_end", 1],
    [3, "approval_request", 2, { name: "search", cause: 2, ...call("a") }],
    [10, "approval_decision", 2, call("a")],
    [10, "call_start", 2, call("a")],
    [14, "call_end", 2, call("a")],
    [15, "run_end", 0],
  );
  assert.deepEqual(spent, { model: 2, call: 4, wait: 7 });
});

test("a turn counts the calls that its request asked for, and their time", () => {
  const { turns } = traced(
    [0, "run_start", 0],
    [0, "model_start", 1, { cause: 0 }],
    [2, "model_end", 1, { data: { usage: { input_tokens: 7 } } }],
    [2, "call_start", 2, { cause: 2, ...call("a") }],
    [2, "call_start", 3, { cause: 2, ...call("b") }],
    [5, "call_end", 2, call("a")],
    [6, "call_end", 3, call("b")],
  );
  assert.deepEqual(turns.map(({ calls, callTime, usage }) => [calls, callTime, usage]), [[2, 7, { input_tokens: 7 }]]);
});

test("a person who is asked about two calls at once is waited for once", () => {
  const { spent } = traced(
    [0, "approval_request", 0, call("a")],
    [2, "approval_request", 1, call("b")],
    [5, "approval_decision", 0, call("a")],
    [9, "approval_decision", 1, call("b")],
  );
  assert.equal(spent.wait, 9);
});

test("a call of unknown outcome has waited since it was started", () => {
  const { things } = traced(
    [0, "call_start", 0, { name: "rm", ...call("a") }],
    [4, "approval_request", 0, { data: { call_id: "a", unknown: true } }],
    [7, "approval_decision", 0, call("a")],
    [8, "call_start", 0, call("a")],
    [9, "call_end", 0, call("a")],
  );
  assert.deepEqual(things[0].stretches.map(({ kind, start, end }) => [kind, start, end]), [["wait", 0, 7], ["run", 8, 9]]);
});

test("what a loop leaves open ends with it, and what it performs is not counted twice", () => {
  const trace = traced(
    [0, "run_start", 0, { name: "outer" }],
    [1, "call_start", 1, { name: "finder", ...call("f") }],
    [2, "run_start", 2, { name: "finder", path: "finder", cause: 1 }],
    [3, "call_start", 3, { name: "search", path: "finder", cause: 2, ...call("s") }],
    [6, "run_end", 2, { path: "finder" }],
    [7, "call_end", 1, call("f")],
    [8, "run_end", 0],
  );
  assert.deepEqual(trace.things.map(({ ended }) => ended), [8, 7, 6, 6]);
  assert.equal(trace.spent.call, 3);
  assert.equal(trace.open.size, 0);
});

test("the rows of a loop inside come below the loop, also when they happen later", () => {
  const trace = traced(
    [0, "run_start", 0, { name: "outer" }],
    [1, "run_start", 1, { name: "a", path: "a" }],
    [2, "run_start", 2, { name: "b", path: "b" }],
    [3, "call_start", 3, { name: "search", path: "a", ...call("s") }],
  );
  assert.deepEqual(trace.order().map(({ name, depth }) => [name, depth]), [["outer", 0], ["a", 1], ["search", 2], ["b", 1]]);
});

test("a call knows what it had to wait for, and since when", () => {
  const trace = traced(
    [0, "call_proposed", 0, { name: "a", ...call("a") }],
    [0, "call_proposed", 1, { name: "b", ...call("b") }],
    [1, "call_start", 0, call("a")],
    [5, "call_end", 0, call("a")],
    [5, "call_start", 1, { after: 3, ...call("b") }],
  );
  const [stretch] = trace.things[1].stretches;
  assert.deepEqual([stretch.since, stretch.start, stretch.after], [0, 5, 3]);
  assert.equal(trace.nameAt({ thing: 0, type: "call_end" }), "a");
  assert.equal(trace.nameAt(undefined), "others");
});

test("a call that is tried again and again keeps a bounded number of stretches, and the last goes on", () => {
  const events = Array.from({ length: 200 }, (_, n) => [n, n % 2 ? "approval_request" : "call_start", 0, call("a")]);
  const [{ stretches }] = traced(...events).things;
  assert.equal(stretches.length, 60);
  assert.equal(stretches.at(-1).end, null);
});

test("a recording whose causes were cut away raises nothing", () => {
  const { things } = traced([0, "call_end", 0, { cause: 7, ...call("a") }], [1, "model_end", undefined]);
  assert.deepEqual(things.map(({ kind, ended }) => [kind, ended]), [["call", 0]]);
});
