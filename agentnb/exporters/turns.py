"""Turns: the events of a recording as loops with their requests, calls and messages, as other tools describe a run.

`loops_of(events)` returns the outermost loop. What a format cannot carry is counted in `lost` by those who write it;
what no format has a place for is counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.calls import render
from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallProposed,
    CallStart,
    Event,
    MessageAdded,
    ModelEnd,
    ModelFailed,
    ModelStart,
    Queued,
    RunEnd,
    RunStart,
    StateUpdate,
    Withdrawn,
)
from agentnb.core.messages import Content, Message, ToolCall
from agentnb.importers.writer import NO_RESULT

_COUNTED = {
    "run_paused": "pauses",
    "cancel": "cancellations",
}
"""Events that no format has a place for, by type. The other types are carried, or follow from those that are."""


@dataclass(slots=True)
class Said:
    """A message of the user, of the system or of the environment. `event`: None for one of an earlier run."""

    message: Message
    event: MessageAdded | None = None


@dataclass(slots=True)
class Update:
    """Values that the loop has set, such as a score."""

    event: StateUpdate


@dataclass(slots=True)
class Called:
    """A call, with the questions and decisions about it, and the loop that performed it."""

    call: ToolCall
    hidden: bool = False
    asked: list[ApprovalRequest] = field(default_factory=list)
    decided: list[ApprovalDecision] = field(default_factory=list)
    start: CallStart | None = None
    end: CallEnd | None = None
    loops: list[Loop] = field(default_factory=list)

    @property
    def has_result(self) -> bool:
        """True if the call has a result. An imported call without one has a substitute, which does not count."""
        return self.end is not None and not (self.end.outcome == "aborted" and self.end.result == NO_RESULT)

    @property
    def content(self) -> Content:
        """The result as the content of a message."""
        return render(self.end.result) if self.end is not None else ""


@dataclass(slots=True)
class Asked:
    """A request to the model with its answer, or with its failure, and the calls of the answer."""

    start: ModelStart
    end: ModelEnd | None = None
    failed: ModelFailed | None = None
    calls: list[Called] = field(default_factory=list)

    @property
    def results(self) -> list[Called]:
        """The calls that have results, in the order of these."""
        ended = [(call.end.seq, call) for call in self.calls if call.end is not None and call.has_result]
        return [call for _, call in sorted(ended, key=lambda pair: pair[0])]


def loop_about(start: RunStart) -> Mapping[str, Any]:
    """Return what an imported loop has besides its events; else empty."""
    found = start.config.get("imported")
    return found if isinstance(found, Mapping) else {}


def prompt_of(start: RunStart) -> str:
    """Return the system prompt of a loop; an empty text if it has none."""
    prompt = start.system_prompt if start.system_prompt is not None else start.config.get("system_prompt")
    return str(prompt or "")


Step = Said | Update | Asked | Called


@dataclass(slots=True)
class Loop:
    """A loop: its start, its steps in their order, its end. A step that is a call is one that the loop itself made."""

    start: RunStart
    steps: list[Step] = field(default_factory=list)
    end: RunEnd | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """What an imported recording has besides its events; else empty."""
        return loop_about(self.start)

    @property
    def system_prompt(self) -> str:
        """The system prompt; an empty text if the loop has none."""
        return prompt_of(self.start)

    @property
    def tools(self) -> list[Any]:
        """The tools of an imported recording, as its file has them; else empty."""
        tools = self.about.get("tools")
        return tools if isinstance(tools, list) else []

    def walk(self) -> Iterator[Loop]:
        """Yield this loop and the loops inside it."""
        yield self
        for step in self.steps:
            for call in step.calls if isinstance(step, Asked) else [step] if isinstance(step, Called) else ():
                for loop in call.loops:
                    yield from loop.walk()


def loops_of(events: Sequence[Event], lost: Counter[str]) -> Loop:
    """Return the outermost loop of a recording, with the loops inside it. lost: counts what no format can carry."""
    outermost: Loop | None = None
    running: dict[str, Loop] = {}
    requests: dict[str, Asked] = {}
    calls: dict[tuple[str, str], Called] = {}
    for event in events:
        path = event.path
        if isinstance(event, RunStart):
            loop = running[path] = Loop(event)
            loop.steps += (Said(message) for message in event.history)
            if outermost is None:
                outermost = loop
            else:
                above = path.rpartition("/")[0]
                if (caller := calls.get((above, event.call))) is not None:
                    caller.loops.append(loop)
                else:
                    lost["loops that no call started"] += 1
            continue
        loop = running[path]
        if isinstance(event, MessageAdded):
            loop.steps.append(Said(event.message, event))
        elif isinstance(event, StateUpdate):
            loop.steps.append(Update(event))
        elif isinstance(event, ModelStart):
            requests[path] = Asked(event)
            loop.steps.append(requests[path])
        elif isinstance(event, ModelFailed):
            requests[path].failed = event
        elif isinstance(event, ModelEnd):
            asked = requests[path]
            asked.end = event
            early = {call.call.id: call for call in asked.calls}
            asked.calls = [early.get(call.id) or Called(call) for call in event.message.tool_calls]
            calls.update({(path, call.call.id): call for call in asked.calls})
        elif isinstance(event, CallProposed):
            calls[path, event.call.id] = proposed = Called(event.call, event.hidden)
            if event.hidden:
                loop.steps.append(proposed)
            else:
                requests[path].calls.append(proposed)
        elif isinstance(event, RunEnd):
            loop.end = event
        elif isinstance(event, (ApprovalRequest, ApprovalDecision, CallStart, CallEnd)):
            if (call := calls.get((path, event.call_id))) is None:
                lost["changes of remembered decisions"] += 1  # a decision without a call
            elif isinstance(event, ApprovalRequest):
                call.asked.append(event)
            elif isinstance(event, ApprovalDecision):
                call.decided.append(event)
            elif isinstance(event, CallStart):
                call.start = event
            else:
                call.end = event
        elif event.type in _COUNTED:
            lost[_COUNTED[event.type]] += 1
    count_undelivered(events, lost)
    assert outermost is not None  # a recording begins with it
    return outermost


def count_undelivered(events: Sequence[Event], lost: Counter[str]) -> None:
    """Count the messages of the user that were withdrawn, or had not been delivered when the recording ended."""
    waiting: Counter[str] = Counter()
    for event in events:
        if isinstance(event, RunStart):
            waiting[event.path] = sum(map(len, event.queued.values()))
        elif isinstance(event, Queued):
            waiting[event.path] += event.queue != "input"
        elif isinstance(event, MessageAdded):
            waiting[event.path] -= event.origin in ("steering", "follow_up")
        elif isinstance(event, Withdrawn):
            waiting[event.path] -= event.count
            lost["withdrawn messages"] += event.count
    lost["undelivered messages"] += sum(max(0, count) for count in waiting.values())


def count_parts(message: Message, lost: Counter[str], *, signatures: bool = True) -> None:
    """Count what most formats have no place for in an answer. signatures: also the signatures of its reasoning."""
    lost["signatures of reasoning"] += signatures and any(len(block) > 1 for block in message.reasoning)
    lost["orders of the parts of answers"] += bool(message.order)
    lost["details of answers"] += message.details is not None


def known_time(event: Event | None) -> float:
    """Return the time of an event; 0 if it is not known."""
    return 0.0 if event is None or event.untimed else event.time
