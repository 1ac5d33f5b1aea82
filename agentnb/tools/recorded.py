"""Recorded tools: the tools of a recording, which return the recorded results and do nothing else.

A `RecordedTool` is for tests: a call that is not in the recording is an error. A `Stub` is for a run that continues a
recording: a person is asked about such a call, and may give its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.errors import ToolError
from agentnb.core.events import CallEnd, CallStart, Event, ModelEnd
from agentnb.core.json import same_json
from agentnb.core.tools import Acted, Invocation, ReportProgress

_RAN = frozenset({"returned", "raised", "timed_out"})
"""The outcomes of calls that a tool has performed."""

_SHOWN = 300
"""The number of characters of arguments that an error shows."""


@dataclass(slots=True)
class RecordedTool:
    """Returns the recorded results of calls with the same arguments, in the recorded order.

    The class is for tests. The schema of a tool is not recorded, so this one accepts any object. A call that is not in
    the recording raises AssertionError.
    """

    name: str
    results: list[tuple[dict[str, Any], CallEnd]] = field(default_factory=list, repr=False)
    description: str = "A tool of a recording."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"}, repr=False)
    approve: bool = False
    idempotent: bool = True
    timeout: float | None = None
    needs: tuple[str, ...] = ()
    sequential: bool = False
    detached: bool = False

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Return the call with these arguments, ready to run."""

        async def invoke(progress: ReportProgress) -> Any:
            for number, (recorded, end) in enumerate(self.results):
                if same_json(recorded, arguments):
                    del self.results[number]
                    if end.is_error:
                        raise ToolError(str(end.result))
                    actions = end.details.get("actions") if isinstance(end.details, dict) else None
                    return Acted(end.result, actions) if isinstance(actions, dict) else end.result
            shown = str(arguments)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            raise AssertionError(f"The recording has no (further) call of {self.name} with {shown}.")

        return invoke


def recorded_tools(events: Iterable[Event]) -> list[RecordedTool]:
    """Return the tools of the calls in a recording, including those of nested loops."""
    tools: dict[str, RecordedTool] = {}
    started: dict[tuple[str, str], CallStart] = {}
    for event in events:
        if isinstance(event, CallStart) and not event.own:
            started[event.path, event.call_id] = event
            tools.setdefault(event.name, RecordedTool(event.name, detached=event.detached))
        elif isinstance(event, CallEnd) and (event.path, event.call_id) in started:
            start = started.pop((event.path, event.call_id))
            if event.outcome in _RAN:
                tools[start.name].results.append((start.arguments, event))
    return list(tools.values())


@dataclass(slots=True)
class Stub:
    """A tool of a recording, for a run that continues it.

    A call that is in the recording has its recorded result; each result is used once. A person is asked about any other
    call, and gives the result (`run.answer(call, result)`). The schema is that of the recording, if it has one.
    """

    name: str
    results: list[tuple[dict[str, Any], CallEnd]] = field(default_factory=list, repr=False)
    description: str = "A tool of a recording."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"}, repr=False)
    idempotent: bool = True
    timeout: float | None = None
    needs: tuple[str, ...] = ()
    sequential: bool = False

    def approve(self, call: Any) -> bool:
        """Return True if a person has to be asked, because the recording has no result of this call."""
        return self._place(call.arguments) is None

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Return the call with these arguments, ready to run."""

        async def invoke(progress: ReportProgress) -> Any:
            place = self._place(arguments)
            if place is None:
                raise ToolError(
                    f"The recording has no (further) result of this call of {self.name}. Nothing was done. A person can"
                    " give the result."
                )
            end = self.results.pop(place)[1]
            if end.is_error:
                raise ToolError(str(end.result))
            return end.result

        return invoke

    def _place(self, arguments: Mapping[str, Any]) -> int | None:
        found = (place for place, (recorded, _) in enumerate(self.results) if same_json(recorded, dict(arguments)))
        return next(found, None)


def stubs(events: Sequence[Event], begin: int, schemas: Iterable[Any]) -> list[Stub]:
    """Return a stub for each tool that the outermost loop of a recording has called, or has a schema of.

    begin: the number of events whose results are used up. schemas: the tools as a file of another tool has them.
    """
    made: dict[str, Stub] = {}
    for given in schemas:
        if (stub := _of_schema(given)) is not None:
            made.setdefault(stub.name, stub)
    proposed: dict[str, tuple[str, dict[str, Any]]] = {}
    for event in events:
        if event.path:
            continue
        if isinstance(event, ModelEnd):
            proposed.update({call.id: (call.name, call.arguments) for call in event.message.tool_calls})
        elif isinstance(event, CallStart) and event.call_id in proposed:
            proposed[event.call_id] = event.name, event.arguments
        elif isinstance(event, CallEnd) and event.call_id in proposed:
            name, arguments = proposed.pop(event.call_id)
            stub = made.setdefault(name, Stub(name))
            if event.seq >= begin and event.outcome in _RAN:
                stub.results.append((arguments, event))
    for name, _ in proposed.values():
        made.setdefault(name, Stub(name))
    return list(made.values())


def _of_schema(given: Any) -> Stub | None:
    """Return a stub of a tool in the format of OpenAI, Anthropic or MCP; None if it has no name."""
    if not isinstance(given, Mapping):
        return None
    inner = given.get("function")
    declared: Mapping[str, Any] = inner if isinstance(inner, Mapping) else given
    if not isinstance(name := declared.get("name"), str) or not name:
        return None
    found = (declared.get(key) for key in ("parameters", "input_schema", "inputSchema", "parameters_json_schema"))
    schema = next((one for one in found if isinstance(one, Mapping)), {"type": "object"})
    return Stub(name, description=str(declared.get("description") or "A tool of a recording."), parameters=dict(schema))
