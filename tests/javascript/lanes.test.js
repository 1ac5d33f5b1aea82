// The lanes of a long run are laid out in steps, between which the page may draw.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Lanes } from "../../agentnb/widgets/page/lanes.js";

/** A run of so many requests, each of a second and followed by a call of half a second. */
function recorded(many) {
  const span = (number, kind, start, end) => ({ number, kind, depth: 1, performed: false, failed: false, intervals: [{ kind: "run", start, end }] });
  const all = Array.from({ length: many }, (_, n) => [span(2 * n, "model", 2 * n, 2 * n + 1), span(2 * n + 1, "call", 2 * n + 1, 2 * n + 1.5)]).flat();
  const rows = all.map(({ number, kind, intervals: [{ end }] }) => ({ time: end, spans: [{ number, kind, intervals: { 0: { end } } }] }));
  return { rows, spans: { all, open: new Set(), began: 0, last: 2 * many } };
}

test("steps give the bars that are laid out at once", () => {
  const { rows, spans } = recorded(500),
    lanes = new Lanes(),
    options = { until: spans.last, width: 800 };
  lanes.follow(rows, spans);
  const bars = [],
    made = lanes.layOut(spans, options, (...bar) => bars.push(bar));
  const inSteps = [],
    steps = lanes.steps(spans, options, (...bar) => inSteps.push(bar));
  let pauses = 0,
    step = steps.next();
  for (; !step.done; step = steps.next()) pauses++;
  assert.deepEqual(inSteps, bars);
  assert.deepEqual(step.value, made);
  assert.equal(bars.length, 1000);
  assert.ok(pauses >= 4);
});
