"""Runs and recorders for the tests of the widgets."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import Field

from agentnb.core.events import CallEnd, Delta, Event, RunEnd, RunStart
from agentnb.core.evolve import evolve
from agentnb.core.state import State
from agentnb.loops.conversation_engine import ConversationEngine
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, delay
from agentnb.tools import tool

HOSTILE = (
    "<script>boom()</script><img src=x onerror=boom()>\u202egpj.exe\x1b[31m\ud800 \U000e0041 javascript:boom() ' \" &"
)


class Recording:
    """As much of a run as the feed looks at, fed by hand: thousands of events without a model."""

    id = "recorded"
    name: str | None = "recorded"

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state = State()
        self.lock = threading.RLock()
        self._watchers: list[Callable[[Event | Delta], object]] = []

    def watch(self, watcher: Callable[[Event | Delta], object]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def add(self, event: Event) -> None:
        stamped = event.model_copy(update={"seq": len(self.events), "time": 1000.0 + len(self.events)})
        evolve(self.state, stamped)
        self.events.append(stamped)
        self.tell(stamped)

    def tell(self, news: Event | Delta) -> None:
        for watcher in list(self._watchers):
            watcher(news)

    def start(self) -> None:
        self.add(RunStart(loop="Recorded", name="recorded"))

    def end(self) -> None:
        self.add(RunEnd(reason="completed"))


class Outbox:
    """Sent messages in order, with their times."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.times: list[float] = []
        self._queue: queue.SimpleQueue[tuple[float, dict[str, Any]]] = queue.SimpleQueue()

    def send(self, message: dict[str, Any], buffers: Any = None) -> None:
        self._queue.put((time.monotonic(), message))

    def until(self, condition: Callable[[], Any], seconds: float = 30) -> None:
        """Receive messages until the condition is true."""
        end = time.monotonic() + seconds
        while not condition():
            try:
                sent_at, message = self._queue.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not within {seconds} s; sent so far: {str(self.messages)[:2000]}") from None
            self.times.append(sent_at)
            self.messages.append(message)

    def of(self, type: str) -> list[dict[str, Any]]:
        """The messages of one type."""
        return [message for message in self.messages if message["type"] == type]

    def rows(self) -> list[dict[str, Any]]:
        """The rows a page would have: batches put together by their numbers, overlaps skipped, gaps refused."""
        rows: list[dict[str, Any]] = []
        for message in self.of("events"):
            assert message["from"] <= len(rows), "a gap"
            rows += json.loads(message["rows"])[len(rows) - message["from"] :]
        return rows


@tool(approve=True)
def delete_file(path: str, force: bool = False, retries: Annotated[int, Field(ge=0)] = 3) -> str:
    """Delete a file."""
    return f"deleted {path} {force} {retries}"


@tool(approve=True)
def move_file(path: str, to: str) -> str:
    """Move a file."""
    return f"moved {path} to {to}"


@tool
def search(query: str) -> list[str]:
    """Search the index."""
    return [f"{query} 1", f"{query} 2"]


def session(turns: list[Any], **options: Any) -> Any:
    """A run of a session loop on a scripted model with these turns, not started."""
    return SessionLoop(ScriptedLLM(turns), [delete_file, move_file, search]).start("tidy up", name="tidy", **options)


def asking(*paths: str, **arguments: Any) -> Any:
    """Return a run whose first turn has a call for each path that needs approval to delete it."""
    calls = [call("delete_file", {"path": path, **arguments}, id=f"c{n}") for n, path in enumerate(paths)]
    return session([calls, "Done."])


def waiting(*paths: str, **arguments: Any) -> Any:
    """Return a session that is stepped to its first question."""
    run = asking(*paths, **arguments)
    run.submit_step("turn").result(30)
    return run


def results(run: Any) -> list[Any]:
    """Return the results of the calls of a run, in the order of their ends."""
    return [event.result for event in run.events if isinstance(event, CallEnd)]


def identified(question: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a question that a page sends back."""
    return {name: question[name] for name in ("run", "path", "event", "id", "attempt", "digest")}


TASKS = [{"id": "draft", "description": "Write the draft"}, {"id": "proof", "description": "Proof-read it"}]


def worker(*turns: Any, name: str = "worker", tools: tuple[Any, ...] = ()) -> SessionLoop:
    """A loop to be nested, with the tools of `session`."""
    return SessionLoop(ScriptedLLM(turns), [delete_file, move_file, search, *tools], name=name)


def engine(*turns: Any, tools: tuple[Any, ...] = ()) -> Any:
    """A run of an engine whose two tasks are done by a session loop with these turns, not started."""
    loop = ConversationEngine(llm=lambda goal: TASKS, execute=worker(*turns, tools=tools))
    return loop.start("a report", name="report")


def asking_inside(path: str = "/a", **arguments: Any) -> Any:
    """Return a run of an engine whose first task needs approval to delete this path."""
    return engine([call("delete_file", {"path": path, **arguments}, id="c0")], "Drafted.", "Proof-read.")


def asking_everywhere() -> Any:
    """Return a run with three concurrent loops (the outermost and two nested) and pending calls with the same id."""
    ask = call("delete_file", {"path": "/a"}, id="c0")
    critic = worker([ask], [ask], "Fine.", "Fine.", name="critic")
    calls = [call("critic", {"input": "look"}, id="k1"), call("critic", {"input": "look"}, id="k2"), ask]
    return worker(calls, "Over.", tools=(critic,)).start("go", name="three")


def pauses(until: Callable[[], bool]) -> Iterator[Any]:
    """Pause a model between two deltas until the condition is true."""
    while not until():
        yield delay(0.01)


def play(run: Any) -> None:
    """Play a run, from a thread of its own: Playwright keeps a loop marked as running on the thread of the test."""
    playing = threading.Thread(target=run.play)
    playing.start()
    playing.join()


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until another thread has made the condition true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)
