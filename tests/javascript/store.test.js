import assert from "node:assert/strict";
import test from "node:test";

import { batch, rows, storeOf } from "./model.js";

const haves = (model) => model.sentOf("sync").map(({ have }) => have);

test("a lost batch is requested once, and known rows are skipped", async (context) => {
  const { clock, model, store } = storeOf(context);
  model.deliver(batch(rows(0, 10)));
  await clock.pass(2000);
  model.deliver(batch(rows(20, 10)));
  model.deliver(batch(rows(30, 10)));
  assert.deepEqual(haves(model), [0, 10]);
  model.deliver(batch(rows(0, 40)));
  assert.deepEqual(store.rows, rows(0, 40));
});

test("a lost last batch is requested when the total is known", async (context) => {
  const { clock, model } = storeOf(context);
  model.deliver(batch(rows(0, 10)));
  await clock.pass(2000);
  model.set("total", 20);
  assert.deepEqual(haves(model), [0, 10]);
});

test("an answer is passed once to the function that requested it", (context) => {
  const { model, store } = storeOf(context);
  const answers = [];
  store.ask({ type: "undo" }, ({ note }) => answers.push(note));
  store.ask({ type: "forget", event: 1 }, ({ note }) => answers.push(note));
  model.answer("forget", { ok: true, note: "forgotten" });
  model.answer("forget", { ok: true, note: "forgotten again" });
  model.answer("undo", { ok: true, note: "undone" });
  assert.deepEqual(answers, ["forgotten", "undone"]);
});

test("views are notified of changes until they unsubscribe, and the kernel of the number of views", (context) => {
  const { model, store } = storeOf(context);
  const told = [];
  const end = store.view((what) => told.push(what));
  model.deliver(batch(rows(0, 1)));
  model.set("pending", []);
  end();
  model.set("tools", {});
  assert.deepEqual(told, ["rows", "pending"]);
  assert.deepEqual(model.sentOf("views").map((message) => message.count), [1, 0]);
});

test("if sending a message raises, the kernel is gone", (context) => {
  const { model, store } = storeOf(context);
  model.send = () => {
    throw new Error("closed");
  };
  store.ask({ type: "undo" }, () => undefined);
  assert.equal(store.gone, true);
});

for (const [kernel, gone] of [[{ status: "idle" }, true], [{ status: "busy" }, false], [undefined, false]])
  test(`after a minute of silence, a kernel that is ${kernel?.status ?? "unknown"} is ${gone ? "gone" : "reported as silent"}`, async (context) => {
    const { clock, store } = storeOf(context, {}, kernel);
    await clock.pass(60_000);
    assert.equal(store.gone, gone);
    assert.match(store.trouble, gone ? /^The kernel is gone/ : /^No answer from the kernel for/);
  });

test("a kernel that restarts is gone immediately, and present again after its next message", (context) => {
  let change;
  const { model, store } = storeOf(context, {}, { status: "idle", statusChanged: { connect: (slot) => (change = slot) } });
  change(null, "restarting");
  assert.equal(store.gone, true);
  model.deliver({ type: "pong", token: "", now: 1000 });
  assert.deepEqual([store.gone, store.trouble], [false, ""]);
});

test("the clock advances only while a span is open and the run is live", async (context) => {
  const { clock, model, store } = storeOf(context);
  const begun = { seq: 0, time: 1000, type: "run_start", span: 0, spans: [{ number: 0, kind: "loop", name: "loop", parent: null }] };
  model.deliver({ ...batch([begun]), now: 1000 });
  await clock.pass(3000);
  assert.equal(store.until(), 1003);
  model.set("status", { over: false, lives: false });
  assert.equal(store.until(), 1000);
});

test("data of the earliest events is dropped above the memory limit", (context) => {
  const { model, store } = storeOf(context);
  const large = (seq) => ({ seq, time: 1, type: "call_end", summary: "", data: { result: "x".repeat(12 * 1024 * 1024) } });
  for (let seq = 0; seq < 4; seq++) model.deliver(batch([large(seq)]));
  assert.deepEqual(store.rows.map(({ data }) => data !== undefined), [false, false, true, true]);
});

test("a recording shows only the events up to the position, and moving back removes the later ones", (context) => {
  const { model, store } = storeOf(context, { place: [2, 0] });
  model.deliver(batch(rows(0, 9)));
  assert.deepEqual([store.rows.length, store.recorded()], [2, 9]);
  store.goTo(5);
  assert.equal(store.rows.length, 5);
  store.goTo(1);
  assert.deepEqual([store.rows.length, store.anew], [1, 1]);
});

test("the kernel gets one position at a time, and then the latest position of the slider", (context) => {
  const { model, store } = storeOf(context, { place: [0, 0] });
  model.deliver(batch(rows(0, 9)));
  for (const position of [3, 4, 5]) store.goTo(position);
  assert.deepEqual(model.sentOf("position").map(({ position }) => position), [3]);
  model.answer("position", { place: [3, 1] });
  assert.deepEqual(model.sentOf("position").map(({ position }) => position), [3, 5]);
  model.answer("position", { place: [5, 2] });
  assert.equal(store.position, 5);
});

test("an outdated position of the kernel is ignored, and a newer one is applied", (context) => {
  const { model, store } = storeOf(context, { place: [0, 0] });
  model.deliver(batch(rows(0, 9)));
  for (const place of [[5, 5], [6, 6]]) {
    store.goTo(place[0]);
    model.answer("position", { place });
  }
  model.set("place", [5, 5]);
  assert.equal(store.position, 6);
  model.set("place", [5, 7]);
  assert.equal(store.position, 5);
});

// Rows of a run with a model request for every two events, each of which changes a span.
function requests(many) {
  const made = [{ seq: 0, time: 1000, type: "run_start", summary: "L l", span: 0, phase: "idle", spans: [{ number: 0, kind: "loop", name: "l", path: "", parent: null }] }];
  for (let n = 1; n <= many; n++) {
    const [begun, ended] = [1000 + 2 * n, 1001 + 2 * n];
    const opened = { number: n, kind: "model", name: `turn ${n}`, path: "", parent: 0, intervals: { 0: { kind: "run", start: begun } } };
    made.push({ seq: made.length, time: begun, type: "model_start", phase: "thinking", summary: `turn ${n}`, span: n, spans: [opened] });
    const closed = { number: n, ended, usage: { input_tokens: 10 }, intervals: { 0: { end: ended } } };
    made.push({ seq: made.length, time: ended, type: "model_end", summary: "", span: n, spans: [closed] });
  }
  return made;
}

test("a live run is shown as it was, while events go on arriving, and then live again", (context) => {
  const { model, store } = storeOf(context);
  const made = requests(5);
  model.deliver(batch(made.slice(0, 9)));
  assert.deepEqual([store.isLive, store.position, store.rows === store.all], [true, 9, true]);
  store.goTo(4);
  model.deliver(batch(made.slice(9)));
  assert.deepEqual([store.isLive, store.position, store.rows.length, store.all.length], [false, 4, 4, 11]);
  const { phase, turn, usage, standing } = store.status();
  assert.deepEqual([phase, turn, usage, standing], ["thinking", 2, { input_tokens: 10 }, "as it was at #3"]);
  assert.deepEqual([store.spans.all.length, store.whole.all.length], [3, 6]);
  assert.deepEqual(model.sentOf("position"), []); // only the page looks back
  store.goLive();
  assert.deepEqual([store.isLive, store.rows === store.all, store.spans === store.whole, store.anew], [true, true, true, 1]);
  store.goTo(2);
  store.goTo(11); // the newest event is live
  assert.equal(store.isLive, true);
});

test("what is in progress is not shown at an earlier moment", (context) => {
  const { model, store } = storeOf(context);
  const line = (text) => ({ type: "live", lines: [{ kind: "text", path: "", name: "", text }] });
  model.deliver(batch(requests(3)));
  model.deliver(line("one"));
  store.goTo(2);
  model.deliver(line("two"));
  assert.deepEqual(store.live, []);
  store.goLive();
  assert.deepEqual(store.live.map(({ text }) => text), ["two"]);
});

test("choosing an event is told once", (context) => {
  const { model, store } = storeOf(context);

  const told = [];
  store.view((what) => told.push(what));
  model.deliver(batch(requests(1)));
  store.select(store.rows[1]);
  store.select(store.rows[1]);
  assert.deepEqual(told.filter((what) => what === "selected"), ["selected"]);
});

test("a long run is folded in turns, each of which is short", async (context) => {
  const { clock, model, store } = storeOf(context);
  model.deliver(batch(requests(2000)));
  let reads = 0;
  performance.now = () => clock.now + 20 * ++reads; // each look at the clock is past the time
  store.goTo(4000);
  const first = store.moment.position;
  assert.ok(first > 0 && first < 4000, `${first} events in the first turn`);
  await clock.pass(1000);
  assert.equal(store.moment.position, 4000);
  assert.equal(store.status().turn, 2000);
});
