"""The position of a generator in the record of its run, and the comparison of its commands with the record.

A generator's state is the list of results that it has received (SEMANTICS.md, 1. State). The results need no record of
their own. The state of the run has the messages, the loop's own calls and the entered phases, each in order. A `Place`
is a position in these three lists, and a command is compared with the entries at that position. If they differ, the
generator is not the one that was recorded, or it is not deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from agentnb.core.errors import RecordingMismatch, ToolError
from agentnb.core.events import ErrorInfo, Event, MessageAdded, ModelStart, PhaseChange
from agentnb.core.json import to_plain
from agentnb.core.messages import Message
from agentnb.core.state import CallState, State
from agentnb.loops.base import propose
from agentnb.loops.want import Ask, Call, Phase, Say, Want, shown_call, shown_message


class Place:
    """A position in the record: the numbers of entries that earlier commands used. `step` counts commands from 1."""

    __slots__ = ("calls", "messages", "phases", "step")

    def __init__(self) -> None:
        self.step = self.messages = self.calls = self.phases = 0

    def missing(self, want: Want | list[Call], state: State) -> Event | None:
        """Return the next event that this command needs; None if the command is complete or waits for a result.

        Raises RecordingMismatch if the record has a different entry at this position.
        """
        fact: Event | None
        if isinstance(want, (Ask, Say)):
            fact = self._missing_words(want, state)
            seen = (len(state.messages), self.calls, self.phases)
        elif isinstance(want, Phase):
            fact = self._missing_phase(want, state)
            seen = (self.messages, self.calls, len(state.entered))
        else:
            fact = self._missing_call(want if isinstance(want, list) else [want], state)
            seen = (self.messages, len(state.own_calls), self.phases)
        if fact is not None:
            self.check_end(str(want) if not isinstance(want, list) else _shown(want), state, *seen)
        return fact

    def check_end(self, wanted: str, state: State, messages: int, calls: int, phases: int) -> None:
        """Raise RecordingMismatch if the record has more entries than these numbers of messages, calls and phases.

        wanted: the command of the generator that is not in the record, as text for the error.
        """
        if len(state.own_calls) > calls:
            self._differs(_recorded_call(state.own_calls[calls]), wanted)
        if len(state.messages) > messages:
            self._differs(_recorded_message(state.messages[messages]), wanted)
        if len(state.entered) > phases:
            self._differs(str(Phase(state.entered[phases])), wanted)

    def take(self, want: Want | list[Call], state: State) -> tuple[Any, ToolError | None] | None:
        """Return the result of the command (a value, or an error) and move past it; None if there is no result yet."""
        if isinstance(want, Ask):
            position = self._reply(want, state)
            reply = state.messages[position] if position is not None else None
            if position is None or reply is None or len(state.messages) <= position + len(reply.tool_calls):
                return None
            self.messages = position + 1 + len(reply.tool_calls)
            return reply.model_copy(deep=True), None  # a copy: the generator must not change the record
        if isinstance(want, Say):
            self.messages += len(want.words)
            return None, None
        if isinstance(want, Phase):
            self.phases += 1
            return None, None
        return self._take_calls(want, state)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _missing_words(self, want: Ask | Say, state: State) -> Event | None:
        there = state.messages[self.messages : self.messages + len(want.words)]
        for said, word in zip(there, want.words, strict=False):
            if said != word:
                self._differs(_recorded_message(said), str(want))
        if len(there) < len(want.words):
            return MessageAdded(message=want.words[len(there)].model_copy(deep=True))
        if isinstance(want, Say) or self._reply(want, state) is not None:
            return None
        for queue in ("steering", "follow_up"):
            if state.queues[queue]:
                return MessageAdded(message=_of_the_user(state.queues[queue][0]), origin=queue)
        return ModelStart(turn=state.turn + 1, options=want.options)

    def _reply(self, want: Ask, state: State) -> int | None:
        """Return the position of the answer, after the command's and the user's messages; None if it is missing."""
        for position in range(self.messages + len(want.words), len(state.messages)):
            if state.messages[position].role == "assistant":
                return position
        return None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def missing_calls(self, want: Want | list[Call], state: State) -> bool:
        """Return True if calls of a list command are not yet proposed. They start only after all are proposed."""
        return isinstance(want, list) and len(state.own_calls) < self.calls + len(want)

    def _missing_call(self, wants: Sequence[Call], state: State) -> Event | None:
        there = state.own_calls[self.calls : self.calls + len(wants)]
        for call, want in zip(there, wants, strict=False):
            if call.proposed.name != want.name or not _same(call.proposed.arguments, want.arguments):
                self._differs(_recorded_call(call), str(want))
        if len(there) == len(wants):
            return None
        want = wants[len(there)]
        return propose(state, f"{want.name}_{len(state.own_calls) + 1}", want.name, want.arguments)

    def _take_calls(self, want: Call | list[Call], state: State) -> tuple[Any, ToolError | None] | None:
        length = len(want) if isinstance(want, list) else 1
        ends = [call.end for call in state.own_calls[self.calls : self.calls + length]]
        if any(end is None for end in ends):
            return None
        self.calls += length
        for end in ends:
            if end is not None and end.is_error:
                error = ToolError(str(end.result))
                if end.error is not None and end.error.traceback:
                    error.add_note(end.error.traceback)
                return None, error
        results = [to_plain(end.result) for end in ends if end is not None]  # a copy: see `take`
        return (results if isinstance(want, list) else results[0]), None

    # -- phases --------------------------------------------------------------------------------------------------------

    def _missing_phase(self, want: Phase, state: State) -> Event | None:
        if len(state.entered) == self.phases:
            return PhaseChange(source=state.phase or "", phase=want.name)
        if state.entered[self.phases] != want.name:
            self._differs(str(Phase(state.entered[self.phases])), str(want))
        return None

    def _differs(self, recorded: str, wanted: str) -> None:
        raise RecordingMismatch(
            f"Step {self.step} differs from what is recorded.\n  recorded: {recorded}\n  now:      {wanted}\n"
            "A generator must want the same whenever it is given the same: no clock, no chance, no input or output"
            " in it; call() does that, and what comes of it is recorded."
        )


_TRIED_AGAIN = frozenset({"raised", "timed_out", "invalid"})
"""Outcomes of failed calls that are worth another attempt. A person's decision, such as a rejection, is kept."""


def failed_in_last_step(state: State, error: ErrorInfo) -> list[str]:
    """Return the ids of the failed calls in the generator's last step, if their failure has caused this error.

    Only outcomes that are worth another attempt count. Empty if the error has another cause.
    """
    failed = [call for call in state.calls.values() if call.hidden and call.end is not None and call.end.is_error]
    if not failed or failed[0].end is None or failed[0].end.outcome not in _TRIED_AGAIN:
        return []
    # The run's error is the ToolError that the generator received, or an error that was raised from it.
    words = str(failed[0].end.result)
    is_it = error.type == ToolError.__name__ and error.message == words
    is_raised_from_it = f"{ToolError.__name__}: {words}\n" in (told := error.traceback or "") and _FROM in told
    if not (is_it or is_raised_from_it):
        return []
    return [call.id for call in failed if call.end is not None and call.end.outcome in _TRIED_AGAIN]


_FROM = "The above exception was the direct cause of the following exception"
"""The text in a traceback between an error and the error that was raised from it."""


def _of_the_user(message: Message) -> Message:
    """Return a queued message with the role `user` if it has the role of a model or tool.

    The next assistant message must be the model's answer.
    """
    return message.model_copy(update={"role": "user"}) if message.role in ("assistant", "tool") else message


def _recorded_call(call: CallState) -> str:
    return shown_call(call.proposed.name, call.proposed.arguments)


def _recorded_message(message: Message) -> str:
    return f"a message of the {message.role}'s, {shown_message(message)}"


def _shown(calls: list[Call]) -> str:
    return f"[{', '.join(map(str, calls))}]"


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or to_json(one) == to_json(other)  # NaN is not equal to itself
