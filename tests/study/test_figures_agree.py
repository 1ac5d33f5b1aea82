"""The figures of a run are the agent's, and the same in every table and panel.

A stop, a night and a repeated attempt after a crash are not among them; they have columns of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import agentnb
from agentnb import SessionLoop, Snapshot, Store, analysis, replay
from agentnb.core import events as e
from agentnb.core.events import Event
from agentnb.core.messages import Message, ToolCall
from agentnb.testing import ScriptedLLM
from agentnb.widgets.static.panel import static_html
from agentnb.widgets.text import duration
from agentnb.widgets.views.compare import compared
from agentnb.widgets.views.loops import Loops
from agentnb.widgets.views.miniature import Miniature
from agentnb.widgets.views.population import Population
from agentnb.widgets.views.spans import Spans
from tests.study.loops import asking
from tests.study.test_too_late import waiting

HOUR = 3600.0


def timed(*events: tuple[float, Event]) -> list[Event]:
    """Return events as a recording has them, each so many seconds after the one before."""
    now, made = 1_000_000.0, []
    for seq, (seconds, event) in enumerate(events):
        now += seconds
        made.append(replace(event, seq=seq, time=now, run_id="r"))
    return made


def answer(*ids: str) -> e.ModelEnd:
    calls = [ToolCall(id=id, name="read", arguments={"n": 1}) for id in ids]
    return e.ModelEnd(message=Message(role="assistant", content="", tool_calls=calls))


def starts(id: str, attempt: int = 1) -> e.CallStart:
    return e.CallStart(call_id=id, name="read", arguments={"n": 1}, attempt=attempt)


def asks(id: str, **fields: Any) -> e.ApprovalRequest:
    return e.ApprovalRequest(call_id=id, name="read", arguments={"n": 1}, **fields)


BEGUN: list[tuple[float, Event]] = [
    (0, e.RunStart(loop="SessionLoop", name="l")),
    (0, e.ModelStart(turn=1)),
    (2, answer("a")),
    (0, starts("a")),
]
ENDED: list[tuple[float, Event]] = [(1, e.CallEnd(call_id="a", name="read")), (0, e.RunEnd(reason="completed"))]

STOPPED: dict[str, Sequence[tuple[float, Event]]] = {
    "a call of unknown outcome": [
        *BEGUN,
        (HOUR, asks("a", unknown=True)),
        (60, e.ApprovalDecision(call_id="a", decision="approve", by="human")),
        (0, starts("a", 2)),
        *ENDED,
    ],
    "a call that is idempotent": [*BEGUN, (HOUR, starts("a", 2)), *ENDED],
    "a request": [
        *BEGUN[:2],
        (HOUR, e.ModelStart(turn=1, attempt=2)),
        *BEGUN[2:],
        *ENDED,
    ],
    "a request that had failed": [
        *BEGUN[:2],
        (0, e.ModelFailed(error=e.ErrorInfo(type="Busy", message=""))),
        (HOUR, e.ModelStart(turn=1, attempt=2)),
        *BEGUN[2:],
        *ENDED,
    ],
    "with other options": [
        *BEGUN,
        (HOUR, e.RunResumed(limits={"turns": 9})),
        (0, asks("a", unknown=True)),
        (0, e.ApprovalDecision(call_id="a", decision="approve", by="human")),
        (0, starts("a", 2)),
        *ENDED,
    ],
    "between two steps": [*BEGUN[:3], (HOUR, BEGUN[3][1]), *ENDED],
    "a pause": [
        *BEGUN[:3],
        (0, e.RunPaused(reason="a look")),
        (HOUR, e.RunResumed()),
        BEGUN[3],
        *ENDED,
    ],
    "a question": [
        *BEGUN[:3],
        (0, asks("a")),
        (HOUR, e.ApprovalDecision(call_id="a", decision="approve", by="human")),
        BEGUN[3],
        *ENDED,
    ],
}


@pytest.mark.parametrize("kind", STOPPED)
def test_a_stop_is_not_in_the_figures_of_the_agent(kind: str) -> None:
    (row,) = analysis.runs(Snapshot.of(timed(*STOPPED[kind]))).itertuples()
    assert (row.seconds, row.turns, row.calls, row.retries) == (3.0, 1, 1, 0)
    waited = {"a question": HOUR, "a call of unknown outcome": 60.0}.get(kind, 0.0)
    assert (row.waited, row.paused + row.away) == (waited, 0.0 if kind == "a question" else HOUR)
    assert row.repeated == (kind not in ("between two steps", "a pause", "a question"))


@pytest.mark.parametrize("kind", STOPPED)
def test_tables_and_panels_have_the_same_figures(kind: str) -> None:
    events = timed(*STOPPED[kind])
    (row,) = analysis.runs(Snapshot.of(events)).itertuples()
    figures = row.seconds, row.waited, row.turns, row.calls
    mini = Miniature()
    mini.follow(events)
    assert (mini.seconds, mini.waited, mini.turns, mini.calls) == figures  # the panel of a study
    one = Spans().follow(events).figures
    assert (one.seconds, one.waited, one.turns, one.calls) == figures  # the panel of a run, and an exported file
    head = Loops(None).follow(events).figures
    assert (head.turns, head.calls) == (row.turns, row.calls)
    sums = {line["name"]: line["left"] for line in compared(events, events, ("a", "b"))["sum"]}
    assert (sums["time"], sums["turns"], sums["calls"]) == (duration(row.seconds), str(row.turns), str(row.calls))
    assert f"1 turn · 1 call · {duration(row.seconds)}" in static_html(replay(Snapshot.of(events)).to(len(events) - 1))


def test_a_mark_in_miniature_has_ended_when_its_process_had() -> None:
    mini = Miniature()
    mini.follow(timed(*STOPPED["a call that is idempotent"]))
    assert [(start, seconds) for _, _, start, seconds in mini.marks] == [(0.0, 2.0), (2.0, 0.0), (2.0, 1.0)]


def test_the_time_before_a_fork_was_made_is_not_the_agents(tmp_path: Path) -> None:
    past = [replace(event, inherited=True) for event in timed(*BEGUN[:3])]
    events = [*past, *[replace(event, seq=event.seq + 3) for event in timed((HOUR, BEGUN[3][1]), *ENDED)]]
    figures = Spans().follow(events).figures
    assert (figures.seconds, figures.idle) == (3.0, HOUR - 2)


async def test_a_cell_that_was_stopped_and_continued_is_one_row_and_keeps_its_name(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")

    def make() -> Any:
        return agentnb.study(asking, ["go"], store=store, name="s", progress=False)

    study = make().start()
    await waiting(study, 1)
    study.cancel()
    await study
    study = make().start()
    await waiting(study, 1)
    study.approve(study.pending)
    await study
    assert len(store.runs()) == 2
    for of in (study, store):
        assert analysis.runs(of).run.tolist() == ["s/0.0"]
        assert (
            set(analysis.events(of).run) == set(analysis.calls(of).run) == set(analysis.messages(of).run) == {"s/0.0"}
        )
        assert len(analysis.calls(of)) == 1


# -- shares of a study -------------------------------------------------------------------------------------------------


def answering(policy: str) -> SessionLoop:
    """Return a loop that says yes to odd numbers. Under the policy b it fails at every second even one."""

    def turn(messages: Any) -> Any:
        number = int(messages[-1]["content"].split()[-1])
        if policy == "b" and number % 4 == 0:
            raise RuntimeError("429")
        return "yes" if number % 2 else "no"

    return SessionLoop(ScriptedLLM([turn], repeat=True))


def arms_of(study: Any) -> list[Any]:
    population = Population(study)
    while population.follow():
        pass
    return [population.head()["arms"], population.head()["differences"]]


def test_runs_that_failed_are_in_the_denominator_of_a_share() -> None:
    inputs = [f"q {number}" for number in range(8)]
    study = agentnb.study(answering, inputs, arms={"policy": ["a", "b"]}, progress=False).result(30)
    arms, differences = arms_of(study)
    assert [(arm["ended"], arm["runs"]) for arm in arms] == [(8, 8), (8, 8)]
    assert [arm["shares"][0][0] for arm in arms] == [4, 4]  # yes
    assert differences[0][0] == 0.0


async def test_no_difference_is_drawn_while_runs_wait() -> None:
    def make(policy: str, seed: int) -> Any:
        return asking() if policy == "b" and seed % 2 else answering("a")

    study = agentnb.study(make, ["q 1"], 6, arms={"policy": ["a", "b"]}, seed=1, progress=False).start()
    await waiting(study, sum(run.arm["policy"] == "b" and run.seed % 2 for run in study))
    assert arms_of(study)[1] == []
    study.approve(study.pending)
    await study
    assert len(arms_of(study)[1]) > 0
