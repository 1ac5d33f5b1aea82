import assert from "node:assert/strict";
import test from "node:test";

import { batch, storeOf } from "./model.js";

// The changes of a span by the events of its model request.
const CHANGES = {
  model_start: (number, start, position) => ({ number, kind: "model", parent: null, intervals: { 0: { kind: "run", start, end: null, position } } }),
  model_end: (number, end) => ({ number, ended: end, intervals: { 0: { end } } }),
};

// Create a recording of these events: [time, type, number of the span, data]. The kernel accepts every position of the page.
function recorded(context, events) {
  const { clock, model, store } = storeOf(context, { place: [0, 0] });
  let moves = 0;
  const send = model.send.bind(model);
  model.send = (message) => {
    send(message);
    if (message.type === "position")
      queueMicrotask(() => model.deliver({ type: "moved", token: message.token, place: [message.position, ++moves] }));
  };
  const made = events.map(([time, type, span, data], seq) => {
    const change = CHANGES[type]?.(span, time, seq);
    return { seq, time, type, span, data, summary: "", spans: change && [change] };
  });
  model.deliver(batch(made));
  return { clock, model, store, player: store.player };
}

const answer = (content, timing) => ({ message: { content }, timing });
const text = (store) => store.live.map((line) => line.text).join();

test("events are played with the recorded pauses", async (context) => {
  const { clock, store, player } = recorded(context, [[100, "message"], [100.5, "message"], [102, "message"]]);
  player.toggle();
  await clock.pass(400);
  assert.equal(store.position, 1);
  await clock.pass(200);
  assert.equal(store.position, 2);
  await clock.pass(1500);
  assert.equal(store.position, 3);
  assert.equal(player.timer, 0);
});

test("at four times the speed, playing takes a quarter of the time", async (context) => {
  const { clock, store, player } = recorded(context, [[100, "message"], [102, "message"]]);
  player.speed = 4;
  player.toggle();
  await clock.pass(450);
  assert.equal(store.position, 1);
  await clock.pass(150);
  assert.equal(store.position, 2);
});

test("a pause of an hour is shortened to three seconds", async (context) => {
  const { clock, store, player } = recorded(context, [[0, "message"], [3600, "message"]]);
  player.toggle();
  await clock.pass(2800);
  assert.equal(store.position, 1);
  await clock.pass(400);
  assert.equal(store.position, 2);
});

test("without pauses, thirty events are played per second", async (context) => {
  const { clock, store, player } = recorded(context, Array.from({ length: 100 }, (_, n) => [1000 * n, "message"]));
  player.speed = 0;
  player.toggle();
  await clock.pass(1000);
  assert.ok(25 <= store.position && store.position <= 31, `${store.position} events`);
});

test("a long answer is not shortened, and its text is streamed as recorded", async (context) => {
  const timing = [1000, 2000, 3000, 4000, 5000].map((milliseconds) => [milliseconds, 2]);
  const { clock, store, player } = recorded(context, [
    [100, "model_start", 0, {}],
    [105, "model_end", 0, answer("aabbccddee", timing)],
  ]);
  player.toggle();
  const seen = new Set();
  for (let n = 0; n < 52; n++) {
    await clock.pass(100);
    if (text(store)) seen.add(text(store));
    if (n < 48) assert.equal(store.position, 1);
  }
  assert.deepEqual([...seen], ["aa", "aabb", "aabbcc", "aabbccdd"]);
  assert.equal(store.position, 2);
  assert.equal(text(store), "");
});

test("a player paused during an answer resumes at its position", async (context) => {
  const timing = [1000, 2000].map((milliseconds) => [milliseconds, 1]);
  const { clock, store, player } = recorded(context, [[100, "model_start", 0, {}], [103, "model_end", 0, answer("ab", timing)]]);
  player.toggle();
  await clock.pass(1200);
  player.toggle();
  await clock.pass(5000);
  assert.equal(text(store), "a");
  player.toggle();
  await clock.pass(1000);
  assert.equal(text(store), "ab");
});

test("an answer that is too long for a row is requested once", async (context) => {
  const { model, store } = recorded(context, [[100, "model_start", 0, {}], [102, "model_end", 0, answer("a\u2026", [[0, 9]])]]);
  store.all[1].size = 10_000;
  store.goTo(1);
  store.player.speak();
  assert.equal(model.sentOf("typed").length, 1);
  model.answer("typed", { text: "\u{1f600}".repeat(2000), timing: [[0, 1500]] });
  assert.equal(text(store), "\u{1f600}".repeat(1200)); // the last characters, none of them cut in two
});

test("at the end, the player starts again from the beginning", async (context) => {
  const { clock, store, player } = recorded(context, [[100, "message"], [101, "message"]]);
  store.goTo(2);
  player.toggle();
  await clock.pass(100);
  assert.equal(store.position, 1);
});

test("the player stops where the loop diverges from the recording", async (context) => {
  const { clock, model, store, player } = recorded(context, [[100, "message"], [100.1, "message"], [100.2, "message"]]);
  model.set("status", { lives: false, diverged: { seq: 2 } });
  player.toggle();
  await clock.pass(1000);
  assert.equal(store.position, 2);
  assert.equal(player.timer, 0);
});
