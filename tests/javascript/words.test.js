import assert from "node:assert/strict";
import test from "node:test";

import { asked, breadcrumb } from "../../agentnb/widgets/page/head.js";

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
