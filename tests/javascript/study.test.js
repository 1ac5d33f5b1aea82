import assert from "node:assert/strict";
import test from "node:test";

import { MiniScale } from "../../agentnb/widgets/page/miniature.js";
import { Runs, groupings, nameOf } from "../../agentnb/widgets/page/study_store.js";

const head = {
  arms: [{ name: "sceptic" }, { name: "plain" }],
  factors: { policy: ["sceptic", "plain"] },
  inputs: ["Is there a step?"],
};
const row = (n, changes = {}) => ({ n, arm: n % 2, input: 0, repeat: n >> 1, kind: "done", outcome: "no step", turns: n, calls: 0, tokens: 0, seconds: 1, waited: 0, strip: [], ...changes });
const runsOf = (rows, settings = {}) => {
  const runs = Object.assign(new Runs(), settings);
  runs.put(rows);
  runs.arrange(head);
  return runs;
};
const names = ({ lines }) => lines.map((line) => (line.kind === "group" ? `[${line.name}]` : nameOf(line.row, head)));

test("runs are grouped by arm, in the order of their start", () => {
  assert.deepEqual(names(runsOf([row(0), row(1), row(2), row(3)])), ["[sceptic]", "sceptic 0", "sceptic 1", "[plain]", "plain 0", "plain 1"]);
});

test("a group that is folded keeps only its heading", () => {
  const runs = runsOf([row(0), row(1)]);
  runs.folded.add("group sceptic");
  runs.arrange(head);
  assert.deepEqual(names(runs), ["[sceptic]", "[plain]", "plain 0"]);
});

test("a column is sorted from the largest figure, and the same column again in the reverse order", () => {
  const runs = runsOf([row(0), row(1), row(2)], { group: "" });
  runs.sortBy("turns");
  runs.arrange(head);
  assert.deepEqual(names(runs), ["sceptic 1", "plain 0", "sceptic 0"]);
  runs.sortBy("turns");
  runs.arrange(head);
  assert.deepEqual(names(runs), ["sceptic 0", "plain 0", "sceptic 1"]);
});

test("each word of the filter has to be in the name, the outcome, the status or the input of a run", () => {
  const runs = runsOf([row(0), row(1, { outcome: "waits for you", kind: "waiting" })], { group: "", filter: "PLAIN waits" });
  assert.deepEqual(names(runs), ["plain 0"]);
  runs.put([row(1, { outcome: "it ended" })]); // a row that arrives anew is searched anew
  runs.arrange(head);
  assert.deepEqual(names(runs), []);
});

test("outcomes are grouped by how frequent they are", () => {
  const runs = runsOf([row(0, { outcome: "rare" }), row(1), row(2)], { group: "outcome" });
  assert.deepEqual(names(runs).filter((name) => name.startsWith("[")), ["[no step]", "[rare]"]);
});

test("only factors and inputs of which there are several divide the runs", () => {
  assert.deepEqual(groupings(head).map(([key]) => key), ["arm", "outcome", ""]);
  const wide = { ...head, factors: { policy: ["a"], model: ["b"] }, inputs: ["x", "y"] };
  assert.deepEqual(groupings(wide).map(([key]) => key), ["arm", "factor policy", "factor model", "input", "outcome", ""]);
});

test("the scale fits the longest run, and its ruler has room for its numbers", () => {
  const long = row(0, { strip: [0, 0, 0, 1, 0, 9, 1, 3] });
  const byTurn = new MiniScale([long], "turn", 508),
    byTime = new MiniScale([long], "time", 508);
  assert.equal(byTurn.turns * byTurn.turn, 500);
  assert.equal(byTime.seconds * byTime.second, 500);
  for (const scale of [byTurn, byTime])
    assert.ok(scale.ticks().every(({ at }, i, all) => at <= 500 && (!i || at - all[i - 1].at >= 44)));
});
