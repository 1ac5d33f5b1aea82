// Folds the rows of a recording with the page's modules, and prints what they give at each position, as JSON. Reads from
// stdin: { rows, positions, phases, tables, width }. The moment is moved through the positions in their order.

import { readFileSync } from "node:fs";

import { Lanes, isFailed, placeOf, turnsOf } from "../../agentnb/widgets/page/lanes.js";
import { Moment } from "../../agentnb/widgets/page/moment.js";

const { rows, positions, phases, tables, width } = JSON.parse(readFileSync(0, "utf8")),
  moment = new Moment(true);

// A plain copy of a moment, without what only helps to compute it.
function plain({ spans, trace, root, requests, calls, usage, paused, over }) {
  const number = (span) => span?.number ?? null;
  const one = (span) => ({ ...span, parent: number(span.parent), turn: number(span.turn) });
  const traced = (row) => ({ ...row, parent: number(row.parent), inside: row.inside.map(number) });
  const loop = ({ call, inside, ...fields }) => ({ ...fields, call: call ?? null, inside: inside.map(loop) });
  const { all, turns, open, spent, idle, began, last } = spans;
  return {
    ...{ spans: all.map(one), turns: turns.map(number), open: [...open].map(number).sort((a, b) => a - b) },
    ...{ inCalls: [...spans.calls].map(([key, span]) => [key, span.number]).sort() },
    ...{ trace: trace.all.map(traced), outermost: trace.outermost.map(number), ofSpan: trace.ofSpan.flatMap((row, at) => (row ? [[at, row.number]] : [])) },
    ...{ spent, paused: spans.paused, idle, began, last, root: loop(root), requests, calls, usage, isPaused: paused, over },
  };
}

// The strip as strip.py gives it.
function strip(spans, position) {
  const lanes = new Lanes(),
    bars = [];
  lanes.follow(rows.slice(0, position), spans);
  const { axis, lanes: names, waited } = lanes.layOut(spans, { until: spans.last, width }, (lane, start, end, span, seconds, row, atOnce) => {
    const { name, number } = span;
    bars.push({ lane, start, end, name, seconds, number, row, at_once: atOnce, wait: lane === "you", failed: isFailed(lane, span) });
  });
  const marks = lanes.marks.map((mark) => ({ kind: mark.kind, x: placeOf(axis, mark.time), position: mark.position }));
  return { lanes: names, bars, breaks: axis.breaks, marks, turns: turnsOf(spans.turns, axis), times: axis.times, places: axis.places, waited };
}

const folded = positions.map((position) => {
  moment.goTo(rows, position);
  const fresh = new Moment(false);
  fresh.goTo(rows, position);
  return {
    status: moment.status({ position }, phases, tables),
    phases: moment.phasesOf(moment.root, moment.spans.last),
    strip: width ? strip(moment.spans, position) : null,
    isSame: JSON.stringify(plain(moment)) === JSON.stringify(plain(fresh)),
  };
});
console.log(JSON.stringify(folded));
