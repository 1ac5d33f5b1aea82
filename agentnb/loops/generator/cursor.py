"""The cursor of a generator: its position in the recorded state, and the comparison of its commands with the recording.

A generator's state is the list of results that it has received (SEMANTICS.md, 1. State). The results need no record of
their own. The state of the run has the messages, the loop's own calls and the entered phases, each in order. A
`GeneratorCursor` is a position in these three lists, and a command is compared with the entries at that position. If
they differ, the generator is not the one that was recorded, or it is not deterministic.
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
from agentnb.loops.events import propose
from agentnb.loops.want import Ask, Call, Phase, Say, Want, shown_call, shown_message


class GeneratorCursor:
    """A position in the recorded state: how many messages, calls and phases the earlier commands have used.

    `step` is the number of the current command, from 1.
    """

    __slots__ = ("calls", "messages", "phases", "step")

    def __init__(self) -> None:
        self.step = self.messages = self.calls = self.phases = 0

    def next_event(self, command: Want | list[Call], state: State) -> Event | None:
        """Return the next event that this command needs; None if the command is complete or waits for a result.

        Raises RecordingMismatch if the recording has a different entry at this position.
        """
        event: Event | None
        if isinstance(command, (Ask, Say)):
            event = self._next_message(command, state)
            known = (len(state.messages), self.calls, self.phases)
        elif isinstance(command, Phase):
            event = self._next_phase(command, state)
            known = (self.messages, self.calls, len(state.entered))
        else:
            event = self._next_call(command if isinstance(command, list) else [command], state)
            known = (self.messages, len(state.own_calls), self.phases)

        # The command needs a new event. Nothing else may be recorded at this position.
        if event is not None:
            self.check_end(str(command) if not isinstance(command, list) else _shown(command), state, *known)
        return event

    def check_end(self, command: str, state: State, messages: int, calls: int, phases: int) -> None:
        """Raise RecordingMismatch if the recording has more messages, more calls or more phases than these numbers.

        command: the generator's command that is not in the recording, as text for the error.
        """
        if len(state.own_calls) > calls:
            self._raise_mismatch(_recorded_call(state.own_calls[calls]), command)
        if len(state.messages) > messages:
            self._raise_mismatch(_recorded_message(state.messages[messages]), command)
        if len(state.entered) > phases:
            self._raise_mismatch(str(Phase(state.entered[phases])), command)

    def take_result(self, command: Want | list[Call], state: State) -> tuple[Any, ToolError | None] | None:
        """Return the result of the command (a value, or an error) and move past it; None if there is no result yet."""
        if isinstance(command, Ask):
            position = self._reply(command, state)
            reply = state.messages[position] if position is not None else None
            if position is None or reply is None or len(state.messages) <= position + len(reply.tool_calls):
                return None
            self.messages = position + 1 + len(reply.tool_calls)
            return reply.model_copy(deep=True), None  # a copy: the generator must not change the recorded message
        if isinstance(command, Say):
            self.messages += len(command.words)
            return None, None
        if isinstance(command, Phase):
            self.phases += 1
            return None, None
        return self._take_calls(command, state)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _next_message(self, command: Ask | Say, state: State) -> Event | None:
        # The command's own messages.
        recorded = state.messages[self.messages : self.messages + len(command.words)]
        for message, expected in zip(recorded, command.words, strict=False):
            if message != expected:
                self._raise_mismatch(_recorded_message(message), str(command))
        if len(recorded) < len(command.words):
            return MessageAdded(message=command.words[len(recorded)].model_copy(deep=True))

        # For `ask`: the user's messages, then the model request.
        if isinstance(command, Say) or self._reply(command, state) is not None:
            return None
        for queue in ("steering", "follow_up"):
            if state.queues[queue]:
                return MessageAdded(message=_as_user_message(state.queues[queue][0]), origin=queue)
        return ModelStart(turn=state.turn + 1, options=command.options)

    def _reply(self, command: Ask, state: State) -> int | None:
        """Return the position of the answer, after the command's and the user's messages; None if it is missing."""
        for position in range(self.messages + len(command.words), len(state.messages)):
            if state.messages[position].role == "assistant":
                return position
        return None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def has_unproposed_calls(self, command: Want | list[Call], state: State) -> bool:
        """Return True if calls of a list command are not yet proposed. They start only after all are proposed."""
        return isinstance(command, list) and len(state.own_calls) < self.calls + len(command)

    def _next_call(self, commands: Sequence[Call], state: State) -> Event | None:
        recorded = state.own_calls[self.calls : self.calls + len(commands)]
        for call, command in zip(recorded, commands, strict=False):
            if call.proposed.name != command.name or not _same(call.proposed.arguments, command.arguments):
                self._raise_mismatch(_recorded_call(call), str(command))
        if len(recorded) == len(commands):
            return None
        command = commands[len(recorded)]
        return propose(state, f"{command.name}_{len(state.own_calls) + 1}", command.name, command.arguments)

    def _take_calls(self, command: Call | list[Call], state: State) -> tuple[Any, ToolError | None] | None:
        length = len(command) if isinstance(command, list) else 1
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
        results = [to_plain(end.result) for end in ends if end is not None]  # a copy: see `take_result`
        return (results if isinstance(command, list) else results[0]), None

    # -- phases --------------------------------------------------------------------------------------------------------

    def _next_phase(self, command: Phase, state: State) -> Event | None:
        if len(state.entered) == self.phases:
            return PhaseChange(source=state.phase or "", phase=command.name)
        if state.entered[self.phases] != command.name:
            self._raise_mismatch(str(Phase(state.entered[self.phases])), str(command))
        return None

    def _raise_mismatch(self, recorded: str, command: str) -> None:
        raise RecordingMismatch(
            f"Step {self.step} differs from the recording.\n  recorded: {recorded}\n  now:      {command}\n"
            "A generator loop must be deterministic: no clock, random numbers or I/O in its code. Use call() for these;"
            " its result is recorded."
        )


_RETRIED = frozenset({"raised", "timed_out", "invalid"})
"""Outcomes of failed calls that are worth another attempt. A person's decision, such as a rejection, is kept."""


def failed_in_last_step(state: State, error: ErrorInfo) -> list[str]:
    """Return the ids of the failed calls in the generator's last step, if their failure has caused this error.

    Only outcomes that are worth another attempt count. Empty if the error has another cause.
    """
    failed = [call for call in state.calls.values() if call.hidden and call.end is not None and call.end.is_error]
    if not failed or failed[0].end is None or failed[0].end.outcome not in _RETRIED:
        return []
    # The run's error is the ToolError that the generator received, or an error that was raised from it.
    message, traceback = str(failed[0].end.result), error.traceback or ""
    is_it = error.type == ToolError.__name__ and error.message == message
    is_raised_from_it = f"{ToolError.__name__}: {message}\n" in traceback and _CAUSE in traceback
    if not (is_it or is_raised_from_it):
        return []
    return [call.id for call in failed if call.end is not None and call.end.outcome in _RETRIED]


_CAUSE = "The above exception was the direct cause of the following exception"
"""The text in a traceback between an error and the error that was raised from it."""


def _as_user_message(message: Message) -> Message:
    """Return a queued message with the role `user` in place of `assistant` or `tool`.

    The next message with the role `assistant` is then the model's answer.
    """
    return message.model_copy(update={"role": "user"}) if message.role in ("assistant", "tool") else message


def _recorded_call(call: CallState) -> str:
    return shown_call(call.proposed.name, call.proposed.arguments)


def _recorded_message(message: Message) -> str:
    return f"a message with role {message.role}: {shown_message(message)}"


def _shown(calls: list[Call]) -> str:
    return f"[{', '.join(map(str, calls))}]"


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or to_json(one) == to_json(other)  # NaN is not equal to itself
