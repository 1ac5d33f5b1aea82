"""Scripted models, for tests and for notebooks whose results must not vary.

A scripted model streams its chunks through the same code path as any other model; only the source of the chunks
differs. A turn is a list of chunks, or a function that receives the messages and returns such a list. With a function,
the model can use the results of the tools in its answer.
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
from agentnb.core.loop import Design, design_of
from agentnb.core.maybe_async import settled
from agentnb.core.place import AskedBy, asked_by, without_checks
from agentnb.core.prefix import current_items
from agentnb.core.protocols import EventLog
from agentnb.llms.identity import told
from agentnb.llms.recorded import RecordedModel
from agentnb.tools.recorded import RecordedTool, recorded_tools

Chunk = Any
ScriptedTurn = Iterable[Chunk] | Callable[..., Any] | str | BaseException
"""One answer of a scripted model; see `ScriptedLLM`."""

__all__ = ["Delay", "Recorded", "RecordedTool", "Request", "ScriptedLLM", "call", "delay", "text", "write_test"]


@dataclass(frozen=True, slots=True)
class Delay:
    """A pause in a scripted turn, in seconds."""

    seconds: float


def delay(seconds: float) -> Delay:
    """Return a pause of `seconds` between two chunks."""
    return Delay(seconds)


def text(content: str, *, pieces: int | None = None) -> list[dict[str, Any]]:
    """Return a text as a list of chunks: one for each word, or at most `pieces` chunks of equal length."""
    if pieces is None:
        words = content.split(" ")
        parts = [word if n == 0 else f" {word}" for n, word in enumerate(words)]
    else:
        size = max(1, -(-len(content) // pieces))
        parts = [content[n : n + size] for n in range(0, len(content), size)]
    return [{"type": "text_delta", "content": part} for part in parts if part]


def call(name: str, arguments: Mapping[str, Any] | None = None, *, id: str = "") -> dict[str, Any]:
    """Return a tool call as a chunk. Without `id`, the run assigns one."""
    return {"type": "tool_call", "id": id, "name": name, "arguments": dict(arguments or {})}


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of one request to a model."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    schema: Mapping[str, Any] | None
    options: Mapping[str, Any]


class ScriptedLLM:
    """A model that answers from a script, turn by turn.

    Each new run starts at the first turn. Its nested loops, and the runs that its tools start, share the script with
    it. A restored run, or a fork, continues after the turns by which this same object has answered the recording; with
    another ScriptedLLM it starts at the first turn. Requests outside of any run use the turns one after the other.

    turns: a list. Each turn is a list of chunks (made by `text` and `call`, or any other of `agentnb.llms.protocol`),
    which may contain `delay(seconds)` and exceptions to raise; or a string; or one chunk; or a function, sync or async,
    that receives the messages and returns any of these. repeat: start over after the last turn. Without it, a request
    after the last turn raises ScriptEnded, which is an AssertionError.

    `requests` records the requests; `assert_complete` checks that every turn was used.

    Raises UsageError if the turns are not a list.
    """

    provider = "scripted"
    model = "script"

    def __init__(self, turns: Iterable[ScriptedTurn], *, repeat: bool = False) -> None:
        if isinstance(turns, (str, Mapping)) or not isinstance(turns, Iterable):  # a string would be a turn per letter
            raise UsageError(f"The turns must be a list, also for a single turn: [{turns!r:.80}].")
        self.turns = list(turns)
        self.repeat = repeat
        self.requests: list[Request] = []
        self._used: set[int] = set()
        self._outside = 0
        """The number of requests from outside of any run."""
        self._served: WeakKeyDictionary[EventLog, int] = WeakKeyDictionary()
        """The number of requests of each outermost run, including those in the recording that it continues."""
        self._answers: set[tuple[int, float]] = set()
        """The position and the time of the `model_start` event of each request to this model."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, which has not answered any run yet."""
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
        """Yield the chunks of the next turn.

        An exception in the turn is raised at its position. Raises ScriptEnded if no turn is left.
        """
        if isinstance(messages, list):  # each request receives the same list, which grows
            messages = current_items(messages)
        self.requests.append(Request(messages, tools, schema, options))
        number = self._next_number(asked_by.get())
        if self.repeat and self.turns:
            number %= len(self.turns)
        elif number >= len(self.turns):
            raise ScriptEnded(
                f"The script has {len(self.turns)} turns; this is request {number + 1}. Add a turn for it, or pass"
                " repeat=True to start over."
            )
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

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes this model from another: its turns."""
        return {"turns": told(self.turns), "repeat": self.repeat}

    def _next_number(self, asked: AskedBy | None) -> int:
        """Return the index of the turn that answers a request of the run `asked`; None is a request outside of any."""
        asked = without_checks(asked)
        if asked is None:
            self._outside += 1
            return self._outside - 1
        outermost = asked
        while (around := without_checks(outermost.around)) is not None:
            outermost = around
        number = self._served.get(outermost.run)
        if number is None:  # a run that starts, or continues a recording
            number = max(self._answered_in(one.run.events) for one in (outermost, asked))
        self._served[outermost.run] = number + 1
        # Remember the recorded request, so that a fork of this run can count it as answered by this model.
        if not asked.call:
            events = reversed(asked.run.events)
            start = next(event for event in events if isinstance(event, ModelStart) and event.path == asked.path)
            self._answers.add((start.seq, start.time))
        return number

    def _answered_in(self, recording: Sequence[Event]) -> int:
        """Return the number of requests in a recording that this model has answered or failed to answer."""
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
            raise AssertionError(f"Only {len(self._used)} of {len(self.turns)} scripted turns were used.")


def _chunks(turn: Any) -> Iterable[Chunk]:
    if isinstance(turn, str):
        return text(turn)
    return turn if isinstance(turn, Iterable) and not isinstance(turn, Mapping) else [turn]


class Recorded(RecordedModel):
    """A recording that serves as the model of a test; `tools` are its recorded tools.

        recorded = Recorded("nile.agentnb.json")
        run = SessionLoop(recorded, recorded.tools).start("How did the level change?")

    The answer to a request is found by its messages, the result of a call by its arguments.

    recording: a run, a replay, a snapshot, or the path of a saved one. speed: the speed of the answers as a multiple of
    the model's speed; None means without delay. strict: refuse a request whose messages were not recorded. Messages
    that user-supplied code makes (`transform_context`) are not in a recording, so they are refused, too.

    Raises UsageError unless `recording` is exactly one recording.
    """

    def __init__(self, recording: Any, *, speed: float | None = None, strict: bool = False) -> None:
        from agentnb.analysis.sources import one_source

        events = one_source(recording).events
        super().__init__(events, speed=speed, strict=strict, designs=lambda kind: design_of(kind) or Design)
        self.tools: list[RecordedTool] = recorded_tools(events)


def write_test(recording: Any, path: str | Path, loop: str) -> Path:
    """Write a pytest file that fails if the loop's decisions differ from the recording; return its path.

        write_test(run, "tests/test_nile.py", "my_project.agents:researcher")

    The test replays the recording against the loop; it sends no request to a model and runs no tool. The recording is
    saved next to the test file, as `.agentnb.json`.

    recording: a run, a replay, a snapshot, or the path of a saved one. path: the Python file to write. loop:
    `module:name` of a loop, or of a function without arguments that returns a loop.

    Raises UsageError if the loop does not exist or `path` is not a Python file, and ReplayDiverged if the loop's
    decisions differ already. In these cases nothing is written.
    """
    from agentnb.analysis.sources import one_source
    from agentnb.run import Snapshot, replay
    from agentnb.run.validation import check_path

    check_path("write_test(recording, path, loop)", path)
    source, path = one_source(recording), Path(path)
    if path.suffix != ".py" or path.is_dir():
        raise UsageError(f"The path of the test must be a Python file, for example test_nile.py, not {str(path)!r}.")
    snapshot = Snapshot.of(source.events, name=source.name)
    replay(snapshot, _found(loop)).to(snapshot.position - 1)  # raises ReplayDiverged before anything is written
    saved = snapshot.save(path.with_suffix(".agentnb.json"))
    module, _, name = loop.partition(":")
    letters = "".join(char if f"a{char}".isidentifier() else " " for char in source.name)
    test_name = "_".join(letters.split()).strip("_") or "it"
    last = snapshot.position - 1
    text_of_test = _TEST.format(module=module, name=name, file=saved.name, test_name=test_name, last=last)
    path.write_text(text_of_test, encoding="utf-8")  # the encoding in which Python reads it, not that of the locale
    return path


_TEST = '''"""Check that a loop makes the same decisions as in its recorded run."""

from pathlib import Path

import agentnb
from agentnb.core.loop import Design

from {module} import {name} as loop_or_function

RECORDING = Path(__file__).with_name({file!r})


def test_{test_name}_decides_as_recorded() -> None:
    loop = loop_or_function if isinstance(loop_or_function, Design) else loop_or_function()
    agentnb.replay(RECORDING, loop).to({last})
'''


def _found(where: str) -> Design:
    """Return the loop at `module:name`, or the loop that the function there returns.

    Raises UsageError if there is neither.
    """
    value: object = where
    needed = f"loop= must be 'module:name' of a loop or of a function that returns one, not {where!r}."
    names = where.replace(":", ".").split(".") if isinstance(value, str) else []
    if not isinstance(value, str) or not where.partition(":")[2].isidentifier() or any(map(iskeyword, names)):
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
