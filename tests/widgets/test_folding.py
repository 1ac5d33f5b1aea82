"""What the page folds from the rows, at any position and in both directions, is what the kernel says about it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentnb import replay
from agentnb.widgets.drawings.diagram import table_of
from agentnb.widgets.views.loops import Loops
from agentnb.widgets.views.status import status
from tests import designs
from tests.widgets.folding import folded

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
