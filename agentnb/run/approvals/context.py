"""The context of a call: the part of the run that a policy can read, next to the call.

It is computed from the recorded events alone, so a back-test shows a policy the same context as the run did. Messages
and decisions are stored once for all contexts of a run: a context stores only how many of them existed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.events import ApprovalDecision, CallProposed, Event, ModelEnd, ModelStart, RunStart
from agentnb.core.evolve import evolve, nested, walk
from agentnb.core.frozen import frozen
from agentnb.core.json import to_plain
from agentnb.core.loop import Design, design_of
from agentnb.core.messages import ROLES, ToolCall
from agentnb.core.state import CallState, State
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The part of the run that a policy can read, next to the call. Its data is immutable.

    `path` is the path of the loop that made the call, `""` for the outermost.
    """

    path: str
    _sent: Sequence[Any] = field(repr=False)
    _instead: Mapping[int, Any] = field(repr=False)
    _messages: int = field(repr=False)
    _turn: Sequence[Any] = field(repr=False)
    _calls: int = field(repr=False)
    _state: Mapping[str, Any] = field(repr=False)
    _decided: Sequence[Any] = field(repr=False)
    _decisions: int = field(repr=False)

    @property
    def messages(self) -> list[Any]:
        """The messages of the model request that led to the call, the system prompt first.

        Changes that a hook of the loop makes to the messages of a request are not recorded, and not included.
        """
        messages = list(self._sent[: self._messages])
        for position, instead in self._instead.items():
            messages[position] = instead
        return messages

    @property
    def calls(self) -> list[Any]:
        """The calls of the turn as the model made them, including this one: `id`, `name`, `arguments`."""
        return list(self._turn[: self._calls])

    @property
    def state(self) -> Any:
        """The state of the loop: `loop`, `name`, `phase`, `turn`, `input`, `values`, `usage`, and two counts.

        `requests` and `calls_started` are the numbers of model requests and tool calls, including nested loops.
        """
        return frozen(to_plain(dict(self._state)))

    @property
    def decisions(self) -> list[Any]:
        """The decisions about calls of the run so far, oldest first.

        Each has `seq`, `time`, `path`, `call_id`, `tool`, `arguments` (of the call at the decision), `decision`, `by`,
        `reason`, and `instead`: the arguments of an edit or a replacement, otherwise None.
        """
        return list(self._decided[: self._decisions])

    def to_json(self) -> str:
        """Return the context as JSON text."""
        data = {"path": self.path, "messages": self.messages, "calls": self.calls}
        return json.dumps({**data, "state": self.state, "decisions": self.decisions}, ensure_ascii=False)


class _Loop:
    """One loop: the messages of its last model request, and the calls of its turn."""

    def __init__(self, start: RunStart) -> None:
        self.requests = (design_of(start.loop) or Design).requests_class
        self.config = start.config
        prompt = start.system_prompt or start.config.get("system_prompt")
        self.prefix = [frozen({"role": "system", "content": prompt})] if isinstance(prompt, str) and prompt else []
        self.history: list[Any] = list(self.prefix)
        self.places: list[int | None] = []
        """The index in `history` of each message of the state; None for a message that is never sent to a model."""
        self.sent: Sequence[Any] = ()
        self.instead: dict[int, Any] = {}
        self.messages = 0
        self.calls: list[Any] = []
        self.ids: set[str] = set()

    def ask(self, state: State) -> None:
        """Store the messages of the request that a loop with this state sends."""
        self.instead = {}
        # Messages that are not those of the history cannot be shared between requests.
        if (own := self.requests.recorded_messages(state, self.config)) is not None:
            self.sent = [*self.prefix, *map(frozen, own)]
            self.messages = len(self.sent)
            return
        # Otherwise the requests share one history: append the new messages, and store those that are sent in place of
        # a message for this request only.
        for message in state.messages[len(self.places) :]:
            self.places.append(len(self.history) if message.role in ROLES else None)
            if message.role in ROLES:
                self.history.append(frozen(message))
        for position, instead in self.requests.replacements(state).items():
            if (place := self.places[position]) is not None:
                self.instead[place] = frozen(instead)
        self.sent, self.messages = self.history, len(self.history)

    def propose(self, calls: Iterable[ToolCall]) -> None:
        """Store calls that the model has made in this turn."""
        for call in calls:
            if call.id not in self.ids:
                self.ids.add(call.id)
                self.calls.append(_plain(call))

    def begin_turn(self) -> None:
        """Remove the calls of the previous turn."""
        self.calls, self.ids = [], set()


def _plain(call: ToolCall) -> Any:
    return frozen({"id": call.id, "name": call.name, "arguments": call.arguments})


class Contexts:
    """The messages, calls and decisions of a run, collected event by event for the contexts of its calls."""

    def __init__(self) -> None:
        self._loops: dict[str, _Loop] = {}
        self._decisions: list[Any] = []

    def take(self, event: Event, state: State) -> None:
        """Process an event that was recorded. `state` is the state of its loop after the event."""
        if isinstance(event, RunStart):
            self._loops[event.path] = _Loop(event)
        elif isinstance(event, ModelStart):
            loop = self._loops[event.path]
            if event.attempt == 1:
                loop.begin_turn()
            loop.ask(state)
        elif isinstance(event, ModelEnd):
            self._loops[event.path].propose(event.message.tool_calls)
        elif isinstance(event, CallProposed) and not event.hidden:
            self._loops[event.path].propose([event.call])
        elif isinstance(event, ApprovalDecision):
            self._decisions.append(_decision(event, state))

    def of(self, path: str, call: CallState, state: State) -> PolicyContext:
        """Return the context of a call of the loop at `path`. `state` is the current state of that loop."""
        loop = self._loops[path]
        turn = loop.calls
        if call.hidden:  # a call that the loop made itself, not the model: its turn is the open calls of that kind
            turn = [_plain(own.proposed) for own in state.open.values() if own.hidden]
        names = ("loop", "name", "phase", "turn", "input", "requests", "calls_started")
        fields = {name: getattr(state, name) for name in names}
        # A count is an int when it comes from a model, and a float when it was read from a file: make it an int.
        usage = {name: int(used) if float(used).is_integer() else used for name, used in state.usage.items()}
        fields |= {"values": dict(state.values), "usage": usage}
        return PolicyContext(
            path,
            _sent=loop.sent,
            _instead=loop.instead,
            _messages=loop.messages,
            _turn=turn,
            _calls=len(turn),
            _state=fields,
            _decided=self._decisions,
            _decisions=len(self._decisions),
        )


def _decision(event: ApprovalDecision, state: State) -> Any:
    call = state.calls.get(event.call_id)
    question = call.approval if call is not None else None
    arguments: Any = question.arguments if question is not None else call.arguments if call is not None else {}
    return frozen(
        {
            "seq": event.seq,
            "time": event.time,
            "path": event.path,
            "call_id": event.call_id,
            "tool": question.name if question is not None else call.name if call is not None else event.name,
            "arguments": arguments,
            "decision": event.decision,
            "by": event.by,
            "reason": event.reason,
            "instead": event.arguments if event.decision in ("edit", "replace") else None,
        }
    )


class LiveContexts:
    """The contexts of a run in this process. Events are collected only after the first context is requested."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._contexts: Contexts | None = None

    def of(self, frame: Frame, call: CallState) -> PolicyContext:
        """Return the current context of this call. Safe from every thread."""
        with self._journal.lock:
            if self._contexts is None:
                self._contexts = Contexts()
                for event, state in walk(self._journal.events):
                    self._contexts.take(event, state)
                self._journal.observe(self._take)
            return self._contexts.of(frame.path, call, frame.state)

    def _take(self, event: Event, frame: Frame) -> None:
        assert self._contexts is not None
        self._contexts.take(event, frame.state)


def contexts_at(
    events: Sequence[Event], calls: Mapping[int, Sequence[tuple[str, str]]]
) -> dict[tuple[int, str, str], PolicyContext]:
    """Return the contexts that calls of a recording had, by position, path and call id.

    calls: the paths and ids of the calls, by the number of events that existed when the policy was asked about them.
    A call that does not exist at its position is left out.
    """
    contexts, run = Contexts(), State()
    found: dict[tuple[int, str, str], PolicyContext] = {}
    for position in range(len(events) + 1):
        for path, id in calls.get(position, ()):
            state = nested(run, path)
            call = state.calls.get(id) or state.open.get(id)
            if call is not None:
                found[position, path, id] = contexts.of(path, call, state)
        if position < len(events):
            event = events[position]
            evolve(run, event)
            contexts.take(event, nested(run, event.path))
    return found
