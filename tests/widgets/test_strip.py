"""The strip of a run: lanes to scale, with what nobody worked in squeezed."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall
from agentnb.widgets.static.pictures import strip_in_words, strip_picture
from agentnb.widgets.views.spans import Spans
from agentnb.widgets.views.strip import END, PAUSE, WAIT, WIDTH, Strip, strip
from tests import designs
from tests.widgets.support import asking_inside, until
from tests.widgets.test_spans import stamped


def at(*timed: tuple[float, e.Event]) -> list[Any]:
    """These events, at these seconds."""
    return [event.model_copy(update={"seq": n, "time": 100.0 + time}) for n, (time, event) in enumerate(timed)]


def of(events: list[Any], **options: Any) -> Strip:
    return strip(events, Spans().follow(events), **options)


def asked(*calls: str) -> Message:
    return Message(role="assistant", content="", tool_calls=[ToolCall(id=id, name=id, arguments={}) for id in calls])


STEPPED = at(
    (0, e.RunStart(loop="L", name="l")),
    (0, e.MessageAdded(message=Message(role="user", content="go"), origin="input")),
    (30, e.ModelStart(turn=1)),
    (31, e.ModelEnd(message=asked("c"))),
    (31, e.ApprovalRequest(call_id="c", name="c", arguments={})),
    (91, e.ApprovalDecision(call_id="c", decision="approve")),
    (91, e.CallStart(call_id="c", name="c", arguments={})),
    (92, e.CallEnd(call_id="c", name="c", result=1)),
    (92.2, e.ModelStart(turn=2)),
    (94.2, e.ModelEnd(message=asked())),
)


def test_what_nobody_worked_in_is_squeezed_and_the_rest_is_to_scale() -> None:
    made = of(STEPPED)
    assert [(gap.wait, round(gap.seconds, 3), round(gap.end - gap.start)) for gap in made.breaks] == [
        (False, 30, PAUSE),
        (True, 60, WAIT),
    ]
    scale = (WIDTH - END - PAUSE - WAIT) / 4.2
    lengths = {bar.name: bar.end - bar.start for bar in made.bars if not bar.wait}
    assert lengths == pytest.approx({"turn 1": scale, "c": scale, "turn 2": 2 * scale})
    assert made.bars[-1].end <= WIDTH


def test_the_sums_are_of_models_calls_and_decisions() -> None:
    made = of(STEPPED)
    assert (made.spent_on_model, made.spent_on_calls, made.waited, made.seconds) == pytest.approx((3, 1, 60, 94.2))
    assert made.paused == 0
    assert made.idle == 30, "no step was made"
    paused = at(
        (0, e.RunStart(loop="L", name="l")),
        (1, e.RunPaused(by="breakpoint", reason="breakpoint")),
        (9, e.RunResumed()),
        (9, e.ModelStart(turn=1)),
        (10, e.ModelEnd(message=asked())),
    )
    made = of(paused)
    assert (made.waited, made.paused, made.idle) == (0, 8, 1), "a pause is no decision"
    assert strip_in_words(made) == "Timeline: 1 turn in 10.0 s, of these 8.00 s paused"
    assert of(paused[:2]).paused == 0
    assert (
        of(
            [
                *paused[:2],
                *at((0, e.StateUpdate(values={})), (0, e.StateUpdate(values={})), (5, e.StateUpdate(values={})))[2:],
            ]
        ).paused
        == 4
    )
    assert [(gap.wait, gap.seconds) for gap in made.breaks] == [(False, 9)]
    assert [mark.kind for mark in made.marks] == ["breakpoint"]


def test_marks_and_turns_are_where_their_events_are() -> None:
    made = of(STEPPED, marks=[("snapshot", 6), ("fork", 8), ("fork", 999)])
    assert [(mark.kind, mark.position) for mark in made.marks] == [
        ("message", 1),
        ("decision", 5),
        ("snapshot", 6),
        ("fork", 8),
    ]
    assert [(turn.label, turn.position) for turn in made.turns] == [("1", 2), ("2", 8)]
    assert made.turns[0].x == PAUSE
    assert made.at(STEPPED[8].time) == made.turns[1].x
    assert [made.at(time) for time in (0, 10_000)] == pytest.approx([0, made.places[-1]])
    places = [made.at(100 + tenth / 10) for tenth in range(950)]
    assert places == sorted(places)


def test_calls_at_the_same_time_share_the_lane() -> None:
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=asked("a", "b", "c")),
        e.CallStart(call_id="a", name="a", arguments={}),
        e.CallStart(call_id="b", name="b", arguments={}),
        e.CallEnd(call_id="a", name="a"),
        e.CallEnd(call_id="b", name="b", is_error=True, outcome="raised"),
        e.CallStart(call_id="c", name="c", arguments={}),
    )
    bars = {bar.name: bar for bar in of(events).bars if bar.lane == "calls"}
    assert [(bars[name].row, bars[name].at_once) for name in "abc"] == [(0, 2), (1, 2), (0, 1)]
    assert (bars["a"].failed, bars["b"].failed, bars["c"].is_open) == (False, True, True)


def test_a_wait_while_something_works_is_to_scale_and_no_break() -> None:
    events = at(
        (0, e.RunStart(loop="L", name="l")),
        (0, e.ModelStart(turn=1)),
        (1, e.ModelEnd(message=asked("a", "b"))),
        (1, e.CallStart(call_id="a", name="a", arguments={})),
        (1, e.ApprovalRequest(call_id="b", name="b", arguments={})),
        (3, e.ApprovalDecision(call_id="b", decision="approve")),
        (5, e.CallEnd(call_id="a", name="a")),
    )
    made = of(events)
    assert made.breaks == ()
    [wait] = [bar for bar in made.bars if bar.wait]
    assert wait.end - wait.start == pytest.approx(2 / 5 * (WIDTH - END))


def test_a_strip_with_nested_loops_has_a_lane_for_them() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    made = of(run.events)
    assert made.lanes == ("loops", "model", "calls", "you")
    assert [bar.name for bar in made.bars if bar.lane == "loops"] == ["worker"]
    assert made.bars[-1].wait
    run.cancel()
    assert of(STEPPED).lanes == ("model", "calls", "you")


def test_many_breaks_leave_half_of_the_strip_to_scale() -> None:
    timed: list[tuple[float, e.Event]] = [(0, e.RunStart(loop="L", name="l"))]
    for turn in range(500):
        timed += [(10 * turn, e.ModelStart(turn=turn + 1)), (10 * turn + 1, e.ModelEnd(message=asked()))]
    made = of(at(*timed))
    assert sum(gap.end - gap.start for gap in made.breaks) == pytest.approx((WIDTH - END) / 2)
    assert made.bars[-1].end == pytest.approx(WIDTH - END)
    assert len(strip_picture(made)) < 30_000


@pytest.mark.parametrize("world", designs.WORLDS)
def test_at_every_event_of_every_design_the_strip_is_within_its_width(world: str) -> None:
    run = designs.WORLDS[world]().start("go", approve=True)
    run.result(30)
    for position in range(0, len(run.events), 5):
        made = of(list(run.events[: position + 1]))
        assert all(0 <= bar.start <= bar.end <= WIDTH for bar in made.bars)
        assert all(0 <= mark.x <= WIDTH for mark in made.marks)
        ElementTree.fromstring(strip_picture(made))


def test_the_strip_of_no_events_is_empty() -> None:
    made = of([])
    assert (made.bars, made.breaks, made.turns, made.seconds) == ((), (), (), 0)
    assert strip_in_words(made) == "Timeline: 0 ms"


def test_the_strip_in_words_says_how_long_a_person_was_waited_for() -> None:
    assert strip_in_words(of(STEPPED)) == "Timeline: 2 turns in 94.2 s, of these 60.0 s waiting for a person"
