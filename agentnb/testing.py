"""Scripted models, for tests and for notebooks that have to run the same everywhere.

A scripted model streams real chunks through the same path as any other; only where they come from differs. A turn is a
list of chunks, or a function of the messages that gives one: such a model can read what the tools returned and answer
from it.
"""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentnb.core.errors import ScriptEnded, UsageError
from agentnb.core.events import Event, ModelEnd, ModelFailed, ModelStart
from agentnb.core.loop import Design
from agentnb.core.maybe_async import settled
from agentnb.core.running import AskedBy, Recording, asked_by
from agentnb.core.views import as_it_stands
from agentnb.llms.recorded import RecordedModel
from agentnb.loops import design_of
from agentnb.tools.recorded import RecordedTool, recorded_tools

Chunk = Any
Turn = Iterable[Chunk] | Callable[..., Any] | str | BaseException

__all__ = ["Delay", "Recorded", "RecordedTool", "Request", "ScriptedLLM", "call", "delay", "text", "write_test"]


@dataclass(frozen=True, slots=True)
class Delay:
    """A pause in a scripted turn, in seconds."""

    seconds: float


def delay(seconds: float) -> Delay:
    """A pause between two chunks."""
    return Delay(seconds)


def text(content: str, *, pieces: int | None = None) -> list[dict[str, Any]]:
    """Text as chunks: one a word, or `pieces` of equal length."""
    if pieces is None:
        words = content.split(" ")
        parts = [word if n == 0 else f" {word}" for n, word in enumerate(words)]
    else:
        size = max(1, -(-len(content) // pieces))
        parts = [content[n : n + size] for n in range(0, len(content), size)]
    return [{"type": "text_delta", "content": part} for part in parts if part]


def call(name: str, arguments: Mapping[str, Any] | None = None, *, id: str = "") -> dict[str, Any]:
    """A tool call as a chunk; without an id the run gives it one."""
    return {"type": "tool_call", "id": id, "name": name, "arguments": dict(arguments or {})}


@dataclass(frozen=True, slots=True)
class Request:
    """What the model was asked."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    schema: Mapping[str, Any] | None
    options: Mapping[str, Any]


class ScriptedLLM:
    """A model that answers from a script, turn by turn.

    Each run begins at the first turn, a restored one too; the loops inside a run, and the runs that its tools start,
    share the script with it. A fork of a run that this model has answered, and a run restored from one, go on at the
    turn behind those answered up to there. Outside of every run the turns come one after the other.

    turns: each a list of chunks (what `text` and `call` make, or any other of `agentnb.llms.protocol`),
    `delay(seconds)` between them where wanted, an exception to raise there; or a text; or one of these chunks alone; or
    a function of the messages that gives any of it. `requests` keeps what it was asked; `assert_complete` checks that
    every turn was used. A request after the last turn raises AssertionError. `repeat=True` starts over instead.

    Raises UsageError where the turns are not a list.
    """

    provider = "scripted"
    model = "script"

    def __init__(self, turns: Iterable[Turn], *, repeat: bool = False) -> None:
        if isinstance(turns, (str, Mapping)) or not isinstance(turns, Iterable):  # a text would be a turn a letter
            raise UsageError(f"Turns come as a list, also a single one: [{turns!r:.80}].")
        self.turns = list(turns)
        self.repeat = repeat
        self.requests: list[Request] = []
        self._used: set[int] = set()
        self._outside = 0
        """How many requests came from outside of every run."""
        self._served: WeakKeyDictionary[Recording, int] = WeakKeyDictionary()
        """How many requests each outermost run has made, those in the recording it goes on from included."""
        self._answers: set[tuple[int, float]] = set()
        """The position and the time of each `model_start` that this model was asked for."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy has answered no run yet."""
        return {**self.__dict__, "_served": None, "_answers": set()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _served=WeakKeyDictionary())

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Chunk]:
        """The next turn's chunks."""
        if isinstance(messages, list):  # a long one is the same at each request, and grows
            messages = as_it_stands(messages)
        self.requests.append(Request(messages, tools, schema, options))
        number = self._next_number(asked_by.get())
        if self.repeat and self.turns:
            number %= len(self.turns)
        elif number >= len(self.turns):
            raise ScriptEnded(f"The script has {len(self.turns)} turns; this is request {number + 1}.")
        self._used.add(number)
        turn: Any = self.turns[number]
        if callable(turn) and not isinstance(turn, Iterable):
            turn = await settled(turn(messages))
        for chunk in _chunks(turn):
            if isinstance(chunk, Delay):
                await asyncio.sleep(chunk.seconds)
            elif isinstance(chunk, BaseException) or (isinstance(chunk, type) and issubclass(chunk, BaseException)):
                raise chunk
            else:
                yield chunk

    def _next_number(self, asked: AskedBy | None) -> int:
        """The number of the turn that this request is answered with, from 0."""
        if asked is None:
            self._outside += 1
            return self._outside - 1
        number = self._served.get(asked.outermost)
        if number is None:  # a run that begins, or goes on from a recording
            number = max(self._answered_in(run.events) for run in (asked.outermost, asked.run))
        self._served[asked.outermost] = number + 1
        if asked.path is not None:
            events = reversed(asked.run.events)
            start = next(event for event in events if isinstance(event, ModelStart) and event.path == asked.path)
            self._answers.add((start.seq, start.time))
        return number

    def _answered_in(self, recording: Sequence[Event]) -> int:
        """How many requests of a recording this model was asked, and has answered or failed to answer."""
        count, is_ours = 0, dict[str, bool]()
        for event in recording:
            if isinstance(event, ModelStart):
                is_ours[event.path] = (event.seq, event.time) in self._answers
            elif isinstance(event, (ModelEnd, ModelFailed)) and is_ours.get(event.path):
                count += 1
        return count

    def assert_complete(self) -> None:
        """Raise AssertionError unless every turn was used."""
        if len(self._used) < len(self.turns):
            raise AssertionError(f"{len(self._used)} of {len(self.turns)} scripted turns were used.")


def _chunks(turn: Any) -> Iterable[Chunk]:
    if isinstance(turn, str):
        return text(turn)
    return turn if isinstance(turn, Iterable) and not isinstance(turn, Mapping) else [turn]


class Recorded(RecordedModel):
    """A recording as the model of a test, and its tools as those of the test.

        recorded = Recorded("nile.agentnb.json")
        run = SessionLoop(recorded, recorded.tools).start("How did the level change?")

    recording: a run, a replay, a snapshot, or the path of a saved one. Requests are answered by their messages, calls
    by their arguments. speed: how fast it answers, as a multiple of how fast the model did; None is at once. strict:
    refuse a request whose messages were not recorded; code of your own that puts them together (`transform_context`) is
    not in a recording, and what it makes is refused too. Raises UsageError where there is not one recording.
    """

    def __init__(self, recording: Any, *, speed: float | None = None, strict: bool = False) -> None:
        from agentnb.analysis.sources import one_source

        events = one_source(recording).events
        super().__init__(events, speed=speed, strict=strict, designs=lambda kind: design_of(kind) or Design)
        self.tools: list[RecordedTool] = recorded_tools(events)


def write_test(recording: Any, path: str | Path, loop: str) -> Path:
    """Write a pytest file that fails when the loop no longer decides what the recording says; gives its path.

        write_test(run, "tests/test_nile.py", "my_project.agents:researcher")

    The recording is saved beside it. loop: where the test finds the loop, `module:name`; a loop, or a function without
    arguments that makes one. No model is asked and no tool runs in that test: it replays the recording against the
    loop. Writes nothing, and raises UsageError where there is no such loop or `path` is no Python file, ReplayDiverged
    where the loop decides otherwise already.
    """
    from agentnb.analysis.sources import one_source
    from agentnb.run import Snapshot, replay
    from agentnb.run.given import check_path

    check_path("write_test(recording, path, loop)", path)
    source, path = one_source(recording), Path(path)
    if path.suffix != ".py" or path.is_dir():
        raise UsageError(f"The test is a Python file, test_nile.py for one, not {str(path)!r}.")
    snapshot = Snapshot.of(source.events, name=source.name)
    replay(snapshot, _found(loop)).to(snapshot.position - 1)
    saved = snapshot.save(path.with_suffix(".agentnb.json"))
    module, _, name = loop.partition(":")
    letters = "".join(char if f"a{char}".isidentifier() else " " for char in source.name)
    what = "_".join(letters.split()).strip("_") or "it"
    last = snapshot.position - 1
    text_of_test = _TEST.format(module=module, name=name, file=saved.name, what=what, last=last)
    path.write_text(text_of_test, encoding="utf-8")  # as Python reads it, whatever the locale's is
    return path


_TEST = '''"""A recorded run, as a test: the loop decides today what it decided then."""

from pathlib import Path

import agentnb
from agentnb.core.loop import Design

from {module} import {name} as given

RECORDING = Path(__file__).with_name({file!r})


def test_{what}_decides_as_recorded() -> None:
    loop = given if isinstance(given, Design) else given()
    agentnb.replay(RECORDING, loop).to({last})
'''


def _found(where: str) -> Design:
    """The loop at `module:name`, made where that makes one."""
    given: object = where
    needed = f"loop= is 'module:name' of a loop, or of a function without arguments that makes one, not {where!r}."
    words = where.replace(":", ".").split(".") if isinstance(given, str) else []
    if not isinstance(given, str) or not where.partition(":")[2].isidentifier() or any(map(iskeyword, words)):
        raise UsageError(needed)
    try:
        found = pkgutil.resolve_name(where)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"There is no loop {where!r}: {error}.") from error
    if not isinstance(found, Design) and callable(found) and not _needs_arguments(found):
        found = found()
    if not isinstance(found, Design):
        raise UsageError(needed)
    return found


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False
