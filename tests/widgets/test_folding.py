"""What the page folds from the rows, at any position and in both directions, is what the kernel says about it."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest

from agentnb import replay
from agentnb.core.events import CallEnd, CallStart, RunStart
from agentnb.testing import call
from agentnb.widgets.drawings.diagram import table_of
from agentnb.widgets.views.loops import Loops
from agentnb.widgets.views.spans import INTERVALS, Spans
from agentnb.widgets.views.status import status
from agentnb.widgets.views.strip import strip
from tests import designs
from tests.widgets.folding import folded
from tests.widgets.support import session, until
from tests.widgets.test_strip import STEPPED, at

COMPARED = (
    *("phase", "path", "times", "latest", "more", "over", "lives"),
    *("turn", "requests", "calls", "usage", "position"),
)
NESTED = ("path", "phase", "arrows", "times", "latest", "running", "ended")


def finished(world: str) -> Any:
    run = designs.WORLDS[world]().start("go", approve=True)
    run.result(30)
    return run


def to_and_fro(length: int) -> list[int]:
    """Return every position, first forwards and then in an order that is the same each time."""
    positions = list(range(length + 1))
    mixed = positions * 2
    random.Random(3).shuffle(mixed)
    return [*positions, *mixed]


@pytest.mark.parametrize("world", designs.WORLDS)
def test_at_every_position_of_every_design_the_page_knows_what_the_kernel_says(world: str) -> None:
    run = finished(world)
    positions = to_and_fro(len(run.events))
    phases = [name for name, _ in table_of(run.loop.phases)]
    told = folded(run.events, positions, phases=phases)
    assert all(moment["isSame"] for moment in told)  # going back leaves nothing behind
    replayed, known = replay(run), {}
    for position in range(len(run.events) + 1):
        replayed.to(position - 1)
        known[position] = status(replayed, Loops(run.loop))
    for position, moment in zip(positions, told, strict=True):
        page, kernel = moment["status"], known[position]
        assert {name: page[name] for name in COMPARED} == {name: kernel[name] for name in COMPARED}, position
        inside = [{name: loop[name] for name in NESTED} for loop in page["nested"]]
        assert inside == [{name: loop[name] for name in NESTED} for loop in kernel["nested"]], position
        assert sum(phase["times"] for phase in moment["phases"]) == sum(kernel["times"]) + bool(position)


def strips(events: Any, positions: list[int], width: float) -> None:
    """Compare the strip that the page computes at these positions with that of Python."""
    for position, moment in zip(positions, folded(events, positions, width=width), strict=True):
        some = list(events[:position])
        expected = asdict(strip(some, Spans().follow(some), width=width))
        page = moment["strip"]
        for field in ("bars", "breaks", "marks", "turns"):
            assert len(page[field]) == len(expected[field]), (position, field)
            for drawn, known in zip(page[field], expected[field], strict=True):
                assert drawn == {name: approximately(value) for name, value in known.items() if name in drawn}, position
        for field in ("lanes", "times", "places"):
            assert page[field] == approximately(list(expected[field])), (position, field)
        assert page["waited"] == approximately(expected["waited"])


def approximately(value: Any) -> Any:
    is_number = isinstance(value, float) or (isinstance(value, list) and value and isinstance(value[0], float))
    return pytest.approx(value, abs=1e-6) if is_number else value


@pytest.mark.parametrize("world", designs.WORLDS)
def test_at_several_events_of_every_design_the_page_draws_the_strip_of_the_kernel(world: str) -> None:
    run = finished(world)
    strips(run.events, [*range(0, len(run.events), 3), len(run.events)], 800.0)
    slow = [event.model_copy(update={"time": 1000 + 0.7 * event.seq}) for event in run.events]  # with many breaks
    strips(slow, [*range(2, len(run.events), 5), len(run.events)], 422.0)


def test_breaks_waits_and_calls_side_by_side_are_those_of_the_kernel() -> None:
    strips(STEPPED, list(range(len(STEPPED) + 1)), 500.0)
    asks = [call("delete_file", {"path": f"/{n}"}, id=f"d{n}") for n in range(3)]
    run = session([[*asks, call("search", {"query": "q"}, id="s")], "Done."], approve=None)
    run.submit_step("turn").result(30)
    run.approve("d1")
    run.reject("d0", "no")
    run.breakpoints.add("model_start", nth=2)
    run.approve("d2")
    run.play()
    until(lambda: run.state.over or run.state.paused)
    fork = run.fork(at=8)
    strips(run.events, list(range(len(run.events) + 1)), 700.0)
    fork.play()
    until(lambda: fork.pending or fork.state.over)
    strips(fork.events, list(range(len(fork.events) + 1)), 700.0)
    run.cancel()
    fork.cancel()


def test_a_call_that_is_retried_very_often_keeps_one_long_interval() -> None:
    timed: list[Any] = [(0, RunStart(loop="L", name="l")), (0, CallStart(call_id="c", name="c", arguments={}))]
    for n in range(2 * INTERVALS):
        timed += [(n + 1, CallEnd(call_id="c", name="c")), (n + 1.2, CallStart(call_id="c", name="c", arguments={}))]
    events = at(*timed)
    strips(events, [5, 2 * INTERVALS, 2 * INTERVALS + 1, len(events) - 1, len(events)], 800.0)


def test_the_time_between_steps_is_in_no_phase() -> None:
    phased = [
        event.model_copy(update={"phase": phase})
        for event, phase in zip(STEPPED, ["idle", "listening", "thinking", "acting", *[None] * 6], strict=True)
    ]
    [moment] = folded(phased, [len(phased)])
    seconds = {phase["name"]: phase["seconds"] for phase in moment["phases"]}
    assert seconds == pytest.approx({"idle": 0.0, "listening": 0.0, "thinking": 1.0, "acting": 3.2})
