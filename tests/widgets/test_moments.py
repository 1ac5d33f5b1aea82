"""The panel of a replay shows each moment as it was live: the page is sent the same data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentnb import SessionLoop, replay
from agentnb.core.events import Delta, Event
from agentnb.errors import ReplayDiverged
from agentnb.testing import ScriptedLLM, call
from agentnb.widgets import Panel
from agentnb.widgets.static.panel import static_html
from agentnb.widgets.views.transcript import Transcript, transcript_data
from tests import designs
from tests.widgets.support import delete_file, move_file, search, session
from tests.worlds import until

PARTS = ("approvals", "graph", "messages")


class Told:
    """All data that the page gets about the position of a run or of its replay."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.panel = Panel(run, parts=PARTS)
        self.panel._feed.close()  # requested only here, and not concurrently

    def now(self) -> dict[str, Any]:
        self.panel._graphs_due = 0.0
        now = self.panel._now()
        del now["breakpoints"]  # those of the run were set by the person and are not events
        status = now["status"] = {
            **now["status"],
            "can": {},
            "lives": None,
            "position": None,
        }  # buttons that drive a run are enabled in the live panel only
        if not self.run.state.paused:
            status["paused_for"] = ""  # that it is about to pause is a wish, and no fact
        if status["standing"] == "pausing" or (not self.run.driven and status["standing"] == "paused"):
            status |= {
                "standing": "running",
                "sign": "running",
                "words": "running",
            }  # whether the run is driven is no event
        now["said"] = {path: self.said(path) for path in ("", *(one["path"] for one in now["status"]["nested"]))}
        return json.loads(json.dumps(now))

    def said(self, path: str) -> Any:
        design = self.panel._loops.design_at(path)
        return transcript_data(Transcript(self.run, design, self.panel._feed.trace.spans.causes, path), 40)


async def approved(run: Any) -> None:
    """Approve every call."""
    while not run.state.over:
        await until(lambda: run.pending or run.state.over)
        for waiting in run.pending:
            run.approve(waiting)


class Eventful:
    """Return a run with every kind of decision and one model failure."""

    @staticmethod
    def loop() -> SessionLoop:
        asks = [call("delete_file", {"path": f"/{n}"}, id=f"d{n}") for n in range(4)]
        turns = [
            [*asks, call("move_file", {"path": "/a", "to": "/b"}, id="m")],
            [ConnectionError("nobody there")],
            [call("delete_file", {"path": "/9"}, id="d9"), {"type": "usage", "input_tokens": 9, "cost": 0.5}],
            "It is done.",
            "Once more.",
        ]
        return SessionLoop(ScriptedLLM(turns), [delete_file, move_file, search], name="tidy")

    @staticmethod
    async def person(run: Any) -> None:
        await until(lambda: len(run.pending) == 5)
        run.pause()
        run.steer("carefully")
        run.steer("no, quickly")
        run.withdraw("steering", run.queued[1][1])
        run.follow_up("and then?")
        run.approve("d0")
        run.undo("d0")
        run.reject("d0", "not that one")
        run.edit("d1", {"path": "/elsewhere", "force": True})
        run.replace("d2", "move_file", {"path": "/2", "to": "/3"})
        run.approve("d3", remember="tool")
        run.breakpoints.add("model_start")
        run.approve("m")
        run.resume()
        await until(lambda: run.state.paused)
        run.breakpoints.remove(1)
        run.resume()
        await until(lambda: not run.driven)  # the model has failed
        run.play()
        await until(lambda: run.state.over)


async def cancelled(run: Any) -> None:
    await until(lambda: run.pending)
    run.cancel("enough")
    await until(lambda: run.state.over)


RUNS: dict[str, tuple[Callable[[], Any], Callable[[Any], Coroutine[Any, Any, None]]]] = {
    **{name: (world, approved) for name, world in designs.WORLDS.items()},
    "eventful": (Eventful.loop, Eventful.person),
    "cancelled": (designs.session_of_agents, cancelled),
}


async def seen_live(loop: Any, person: Callable[[Any], Coroutine[Any, Any, None]]) -> tuple[Any, list[dict[str, Any]]]:
    """Return a run, and the data that the page got after each of its events."""
    run = loop.start("go", name="seen")
    told, seen = Told(run), []

    def note(news: Event | Delta) -> None:
        if isinstance(news, Event):
            seen.append(told.now())

    run.watch(note)
    run.play()
    await asyncio.wait_for(person(run), 30)
    assert len(seen) == len(run.events)
    return run, seen


@pytest.mark.parametrize("name", RUNS)
async def test_a_replay_sends_the_page_the_same_data_as_the_live_run_after_each_event(name: str) -> None:
    make, person = RUNS[name]
    run, seen = await seen_live(make(), person)
    replayed = replay(run)
    told = Told(replayed)
    there_and_back = [*range(len(seen)), *reversed(range(len(seen))), len(seen) - 1, 0]
    for seq in there_and_back:
        replayed.to(seq)
        assert told.now() == seen[seq], run.events[seq]


async def test_a_saved_page_has_both_sides_of_a_divergence() -> None:
    run = session([[call("search", {"query": "<b>x</b>"}, id="s")], "Done."], approve=True)
    await run
    departing = replay(run, SessionLoop(ScriptedLLM([]), [], name=run.loop.name))  # the tool is missing
    with pytest.raises(ReplayDiverged) as raised:
        departing.to(len(run.events) - 1)
    page = static_html(departing)
    assert f"Event {raised.value.recorded.seq} is not what the loop does now." in page
    assert {raised.value.recorded.type, raised.value.expected.type} == {"call_start", "call_end"}
    assert "not found" in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>x</b>" not in page
