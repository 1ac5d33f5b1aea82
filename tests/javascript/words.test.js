import assert from "node:assert/strict";
import test from "node:test";

import { asked, breadcrumb } from "../../agentnb/widgets/page/head.js";
import { niceStep, tickWords } from "../../agentnb/widgets/page/timeline.js";

const loop = (path, phase, running = true) => ({ path, phase, running });

test("without model requests, the head shows no turns", () => {
  assert.deepEqual(asked({ turn: 0, calls: 0 }), []);
  assert.deepEqual(asked({ turn: 1, calls: 0 }), ["turn 1", "0 calls"]);
});

test("with nested loops, the head counts the turns of all loops, and those of a run that is over", () => {
  assert.deepEqual(asked({ nested: [loop("worker", "acting")], turn: 1, requests: 12, calls: 3 }), ["12 turns", "3 calls"]);
  assert.deepEqual(asked({ over: true, turn: 2, requests: 2, calls: 1 }), ["2 turns", "1 call"]);
});

test("the phases of running nested loops are shown after that of the outermost loop", () => {
  const nested = [loop("critic", "acting"), loop("critic/k", "asking"), loop("old", "done", false), loop("other", "acting")];
  assert.equal(breadcrumb({ phase: "", nested: [] }), "phase -");
  assert.equal(breadcrumb({ phase: "busy", nested }), "phase busy \u203a critic: acting \u203a critic/k: asking, other: acting");
});

test("the ticks of a timeline are at 1, 2 or 5 times a power of ten, or at whole minutes, hours and days", () => {
  const steps = [0.0003, 0.3, 1, 3, 7, 35, 45, 100, 5000, 50_000, 100_000].map((rough) => niceStep(rough));
  assert.deepEqual(steps.map((step) => Number(step.toPrecision(6))), [0.0005, 0.5, 1, 5, 10, 50, 60, 120, 7200, 86_400, 172_800]);
});

test("the precision of a tick depends on the step between two ticks", () => {
  const told = [[0.0002, 0.0002], [0.02, 0.02], [1, 0.5], [10, 5], [120, 60]].map(([tick, step]) => tickWords(tick, step));
  assert.deepEqual(told, ["0.20 ms", "20 ms", "1.0 s", "10 s", "2 min 00 s"]);
});
