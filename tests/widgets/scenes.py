"""The panel in each of its states, always the same: the clock advances only with the events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from agentnb.core.events import Event
from agentnb.loops.session_loop import SessionLoop
from agentnb.run.journal import Journal
from agentnb.studies import resample, study
from agentnb.testing import ScriptedLLM, call, delay, text
from agentnb.tools import tool
from tests.loops.execution_world import MOMENT, World, c, solution
from tests.widgets.support import until

BEGAN = 1_767_000_000.0  # 29 December 2025, 9:20 in the morning, UTC
TICK = 0.37
AGES = 600  # seconds: longer than any test


@tool
async def read_table(name: str) -> dict[str, Any]:
    """Read a table of the gauge's data."""
    return {"table": name, "rows": 100, "columns": ["year", "flow"]}


@tool(approve=True, needs="write")
async def write_report(path: str, text: str) -> str:
    """Write the report."""
    return f"wrote {path}, {len(text)} characters"


@tool(approve=True, needs="write")
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


TOOLS = [read_table, write_report, delete_file]
READ = [*text("I will look at the table first."), call("read_table", {"name": "nile"}, id="r1")]
REPORT = call("write_report", {"path": "nile.md", "text": "The level fell in 1899, by 23%."}, id="w1")
CALLS = [  # each waits for the one before, so that there is only one order; one waits forever
    c("sum", "†state.summary", p="†state.profile"),
    c("give", v={"report": ["†state.report"], "weather": "†state.weather || †data.none"}),
    c("echo", "†state.report", v="†state.summary"),
    c("fetch", "†state.profile", u="†input.u"),
]


class Clock:
    """The clock of runs. It advances with each event, however often it is read, until it is stopped."""

    def __init__(self) -> None:
        self.now = BEGAN
        self._is_stopped = False

    def tick(self) -> None:
        """Advance to the time of the next event."""
        if not self._is_stopped:
            self.now += TICK

    def stop(self, after: float = 0.0) -> None:
        """Stop the clock `after` seconds from now."""
        self._is_stopped = True
        self.now += after


@contextmanager
def ticking() -> Iterator[Clock]:
    """Install a clock for runs, and return it."""
    clock = Clock()
    append = Journal.append

    def tick_and_append(journal: Journal, *args: Any, **options: Any) -> Event | None:
        clock.tick()
        return append(journal, *args, **options)

    zone = patch.dict("os.environ", {"TZ": "UTC"})
    read = SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now)
    journal, ticks = patch("agentnb.run.journal.time", read), patch.object(Journal, "append", tick_and_append)
    try:
        with zone, journal, ticks, patch("time.time", lambda: clock.now):
            time.tzset()
            yield clock
    finally:
        time.tzset()


def _run(*turns: Any, tools: list[Any] = TOOLS) -> Any:
    return SessionLoop(ScriptedLLM(turns), tools, name="analyst").start("When did the level change?", name="nile")


def _play(run: Any, condition: Callable[[], Any]) -> Any:
    playing = threading.Thread(target=run.play)  # Playwright keeps a loop marked as running on this one
    playing.start()
    playing.join()
    until(condition)
    return run


def _asked(run: Any, questions: int) -> bool:
    return len([event for event in run.events if event.type == "approval_request"]) == questions


def not_started() -> Any:
    """A run without events."""
    return _run("")


def running() -> Any:
    """A run whose model will stream for a long time, after `speak`."""
    said = text("The mean of the years before 1899 is 1098, and of those after it 850: the level fell by 23%, and")
    return _run(READ, [*said, delay(AGES)])


def speak(run: Any) -> None:
    """Let the model stream while the panel is open, because a panel shows only deltas that it has received."""
    heard: list[str] = []
    run.watch(lambda news: heard.append(str(getattr(news, "content", ""))))
    _play(run, lambda: " and" in heard[-1:])


def waiting() -> Any:
    """One call waits for a person."""
    run = _run(READ, [*text("This is the report."), REPORT])
    return _play(run, lambda: _asked(run, 1))


def waiting_for_many() -> Any:
    """Four calls do."""
    deletions = [call("delete_file", {"path": f"/data/old-{n}.csv"}, id=f"d{n}") for n in range(1, 4)]
    run = _run(READ, [*text("Some files are in the way."), REPORT, *deletions])
    return _play(run, lambda: _asked(run, 4))


def paused() -> Any:
    """A run that was stepped and waits."""
    run = _run(READ, "Done.")
    run.submit_step("turn").result(30)
    return run


def failed() -> Any:
    """A run with a failed model."""
    run = _run(READ, [*text("The mean is"), RuntimeError("429: the provider is busy, try again in 20 seconds")])
    return _play(run, lambda: run.state.failure is not None)


def completed() -> Any:
    """With a loop inside it that has a call graph."""
    world = World()
    inner = world.loop(
        [*solution(*CALLS, pieces=1), *MOMENT], solution(output="A report about alice."), name="reporter"
    )
    nested = [*text("The reporter knows that."), call("reporter", {"input": "Report on alice."}, id="n1")]
    run = _run(READ, nested, "The level fell in 1899.", tools=[*TOOLS, inner])
    return _play(run, lambda: run.state.over)


def cancelled() -> Any:
    """By a person, in the middle of a question."""
    run = waiting()
    run.cancel("not today")
    until(lambda: run.state.over)
    return run


def study_of_reports() -> Any:
    """A study of two arms, half of whose runs wait: each at its second turn, with other arguments."""

    def reporter(policy: str, seed: int) -> SessionLoop:
        looks = [call("read_table", {"name": "nile"}, id=f"r{n}") for n in range(1 + seed % 3)]
        usage = {"type": "usage", "input_tokens": 900 + seed % 100, "output_tokens": 40}
        report = call("write_report", {"path": f"nile-{seed % 4}.md", "text": "The level fell in 1899."}, id="w1")
        turns: list[Any] = [[usage, *looks]] * (1 + seed % 4)
        says = "The level fell in 1899." if policy == "plain" or seed % 4 else "There is no step."
        asks = [[usage, report]] if policy == "plain" and seed % 2 else []
        return SessionLoop(ScriptedLLM([*turns, *asks, [usage, *text(says)]]), TOOLS, name="reporter")

    made = study(reporter, ["When did the level change?"], 8, arms={"policy": ["sceptic", "plain"]}, name="nile",
                 at_once=1, progress=False)  # fmt: skip
    playing = threading.Thread(target=made.start)
    playing.start()
    playing.join()
    until(lambda: not made.counts["running"] and not made.counts["not started"])
    return made


def resampling_of_report() -> Any:
    """A resampling of a run of five steps, which changes most at the third."""

    def reporter(other: bool, seed: int = 0) -> SessionLoop:
        def answer(messages: Any, **_: Any) -> Any:
            at = sum(message["role"] == "assistant" for message in messages)
            believes = "a step" in str(messages)
            if at == 4:
                return "There is a step in 1899." if believes else "There is no fall."
            differs = other and seed % 10 < (1, 2, 7, 0)[at]
            words = "I see a step." if differs else "Nothing there."
            return [*text(words), call("read_table", {"name": f"nile-{at}"}, id=f"r{at}")]

        return SessionLoop(ScriptedLLM([answer], repeat=True), TOOLS, name="reporter")

    run = reporter(False).start("When did the level change?", name="nile")
    _play(run, lambda: run.state.over)
    made = resample(run, every="turn", n=10, loop=lambda seed: reporter(True, seed), at_once=1, progress=False)
    playing = threading.Thread(target=made.start)
    playing.start()
    playing.join()
    until(lambda: made.counts["done"] == 50)
    return made


SCENES: dict[str, Callable[[], Any]] = {
    "not-started": not_started,
    "running": running,
    "waiting-one": waiting,
    "waiting-many": waiting_for_many,
    "paused": paused,
    "model-failed": failed,
    "completed": completed,
    "cancelled": cancelled,
    "kernel-gone": waiting,
    "frozen": completed,
    "messages": completed,
    "study": study_of_reports,
    "study-inbox": study_of_reports,
    "resampling": resampling_of_report,
}
TABS: dict[str, str] = {"messages": "Messages", "study": "Runs", "study-inbox": "Inbox", "resampling": "Runs"}
"""The view that is shown, if it is not the trace."""
THEN: dict[str, Callable[[Any], object]] = {"running": speak}
"""The action after the panel is shown."""
