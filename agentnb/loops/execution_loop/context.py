"""The context of a run: its log, the data that the log folds to, its rounds (SEMANTICS.md, 2. Messages and data).

The log only grows. It is in the history: the messages that the run was given, and at the end of each round what its
calls wrote, in the order in which they ended, and then its errors. During a round, what its calls wrote so far is read
from their results, before it is in the history. `Context` folds each message once. It contains nothing that cannot be
computed again from the state, and is cached there (`State.memo`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json

from agentnb.core.calls import render
from agentnb.core.errors import InvalidArguments
from agentnb.core.events import ModelEnd
from agentnb.core.graph import GraphCall
from agentnb.core.json import to_plain
from agentnb.core.messages import ROLES, Message, ToolCall, is_broken_off
from agentnb.core.state import CallState, State
from agentnb.loops.execution_loop.messages import as_written, without_hidden
from agentnb.loops.execution_loop.references import (
    DAGGER,
    MISSING,
    Expression,
    Path,
    at_path,
    copied_value,
    expressions_in,
    parse_expression,
)
from agentnb.loops.execution_loop.solution import OutputCheck, read_again
from agentnb.loops.execution_loop.tools import check_scopes
from agentnb.loops.execution_loop.types import parameters
from agentnb.loops.execution_loop.writes import check_writing, error_message, error_of, merged, write_at, writes

Identity = tuple[str, str | None]
"""A kind of data, and its instance or None. Data messages that share these are one object."""

KINDS = frozenset({"state", "input", "data", "plan"})
"""The kinds of data that are always known."""

TEXT_SCOPES = {"text": "user", "system": "system"}
"""Scopes for messages without data, with the role of these messages."""

Readiness = Literal["free", "blocked", "broken"]
"""free: the call may start. blocked: it waits for data. broken: it can never run as it is."""


# -- what a turn caches --------------------------------------------------------------------------------------------


class ParsedCall:
    """A call, parsed once: its references, where it writes, and what is malformed."""

    def __init__(self, made: ToolCall) -> None:
        self.made = made
        self.parameters = parameters(made.arguments)
        self.instance: str | None = made.arguments.get("_instance")
        self.needs: list[Expression] = []
        self.writes: list[Path] = []
        self.fault: str | None = None
        self.version = -1
        """The version of the context for which `readiness` was computed."""
        self.readiness: Readiness = "blocked"
        try:
            if made.malformed is not None:
                raise InvalidArguments(f"A call must be a JSON object, not {made.malformed[:200]}")
            if not made.name:
                raise InvalidArguments("The call does not name a tool: it needs `_tool`.")
            check_writing(made.arguments)
            check_scopes(made.arguments.get("_scopes"))
            self.needs = list(expressions_in(self.parameters))
            if (path := made.arguments.get("_outputPath")) is not None:
                self.writes = list(parse_expression(path).paths)
        except InvalidArguments as error:
            self.fault = str(error)


class TurnCalls:
    """The calls of one turn, and what was computed about them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended: list[CallState] = []
        """The calls that have ended, in the order in which they ended."""
        self.known: set[str] = set()
        """The ids of all calls."""
        self.waiting: dict[str, None] = {}
        """The ids of the calls that have not ended."""
        self.written: dict[str, list[Message]] = {}
        """The messages that each call wrote, by id."""
        self.parsed: dict[str, ParsedCall] = {}
        """Calls by id; filled by `dataflow`."""
        self.cycle: list[str] | None = None
        """The calls that wait for each other; None until `dataflow` has computed it."""
        self.earlier: dict[tuple[Path, str | None], GraphCall | None] = {}
        """The call of an earlier turn that wrote the data an instance finds at a path; filled by `dataflow`."""


@dataclass
class Round:
    """One request with its calls, each of which has ended or is detached."""

    reply: ModelEnd
    log: list[Message]
    """The messages to append: what the calls wrote, in the order in which they ended, then each error. After these come
    the messages and the error of each detached call that ended later."""
    has_errors: bool
    has_output: bool
    output: Any
    calls_in_log: int
    """Number of ended calls whose messages are in `log`."""


class Context:
    """The context of one run, folded up to a state of it."""

    def __init__(self) -> None:
        self.turn = TurnCalls(0)
        self.round: Round | None = None
        """The last round that ended; None until `read_round` has computed it."""
        self.version = 0
        """Incremented whenever the data at any path, or the readiness of a call, may have changed."""
        self.calls_made = 0
        """Number of calls that the answers so far have made."""
        self.native = False
        """True if the model makes native tool calls: an answer so far has the detail `native`."""
        self.planned = 0
        """The number of the request whose calls are the plan."""
        self.errors: list[Message] = []
        """The error messages of the last round that ended."""

        # The data, the other fields of each object (its description, its schema), and each object as it is sent.
        self._data: dict[Identity, Any] = {}
        self._properties: dict[Identity, dict[str, Any]] = {}
        self._rendered: dict[Identity, dict[str, Any]] = {}

        # What the model is sent in order: objects by identity, and texts; the transcript for native tool calls; and the
        # log as users see it.
        self._sent: list[Identity | dict[str, Any]] = []
        self._transcript: list[dict[str, Any]] = []
        self._log: list[dict[str, Any]] = []

        # For each call of this turn, the number of its messages that are folded, and that are in the history. After a
        # restore a message can be in the history before the call's end has been folded.
        self._folded: dict[str, int] = {}
        self._logged: dict[str, int] = {}

        # The position of the fold in the state.
        self._position = -1
        self._messages_read = 0
        self._skips_results = False  # of an answer that broke off
        self._was_asked = False
        self._max_chars: int | None = None

    @classmethod
    def of(cls, state: State) -> Context:
        """Return the context at a state, from the cache of the state."""
        context = state.memo
        if not isinstance(context, Context):
            context = state.memo = cls()
        if context._position != state.position:
            context.catch_up(state)
        return context

    # -- folding ---------------------------------------------------------------------------------------------------

    def catch_up(self, state: State) -> None:
        """Fold what was added to the state since this method was called last."""
        # New messages of the history, except an answer that broke off and the results that follow it.
        self._max_chars = state.max_result_chars
        while self._messages_read < len(state.messages):
            message = state.messages[self._messages_read]
            if message.role != "tool":
                self._skips_results = is_broken_off(message)
            if not self._skips_results:
                self._take(message)
            self._messages_read += 1

        # A new turn forgets what is known about the calls of the last one.
        if state.turn != self.turn.number:
            self.turn = TurnCalls(state.turn)
            self._folded = {id: count for id, count in self._folded.items() if id in state.calls}
            self._logged = {id: count for id, count in self._logged.items() if id in state.calls}

        # Calls that have ended.
        if len(self.turn.ended) != len(state.calls) - len(state.open):
            self._take_ended(state)

        # A complete answer changes the readiness of calls: no further call can write anything.
        if self._was_asked is not (state.model == "asked"):
            self._was_asked = not self._was_asked
            self.version += 1
        self._position = state.position

    def _take_ended(self, state: State) -> None:
        """Fold the writes of the calls of this turn that have ended since the last time."""
        turn = self.turn
        for id in reversed(state.calls):  # the new ones are the last
            if id in turn.known:
                break
            turn.known.add(id)
            turn.waiting[id] = None
        ended = [call for id in turn.waiting if (call := state.calls[id]).end is not None]
        for call in sorted(ended, key=lambda call: call.end.seq if call.end is not None else 0):
            del turn.waiting[call.id]
            turn.ended.append(call)
            turn.written[call.id] = messages = list(writes(call))
            for number, message in enumerate(messages, 1):
                if number > self._folded.get(call.id, 0):
                    self._folded[call.id] = number
                    self._fold(message)

    def _take(self, message: Message) -> None:
        """Fold one message of the history."""
        # An assistant message that the run was given is text; the run's own answers and results are not in the log.
        is_given = message.role == "assistant" and message.details is None and not message.tool_calls
        is_own = message.role == "tool" or (message.role == "assistant" and not is_given)
        if not is_own:
            self._log.append(as_written(message))

        # An error.
        if message.role == "data" and message.get("kind") == "error":
            self.errors.append(message)
            return

        # Data: given, or written by a call, which may have been folded already when the call ended.
        if message.role == "data":
            call_id = (message.get("_call") or {}).get("_id")
            if call_id is None:
                self.planned = message.get("_request") or self.planned
                self._fold(message)
                return
            number = self._logged[call_id] = self._logged.get(call_id, 0) + 1
            if number > self._folded.get(call_id, 0):
                self._folded[call_id] = number
                self._fold(message)
            return

        # A text: a copy, because users' code can change what is sent.
        plain = to_plain(message)
        if message.role not in ROLES:  # no model knows it
            plain["role"] = "user"
        self._transcript.append(plain)
        if not is_own:
            self._sent.append(plain)
            return

        # An answer of the model. The errors of the round before it have been sent.
        if message.role == "assistant":
            self.calls_made += len(message.tool_calls)
            self.native = self.native or bool(message.details and message.details.get("native"))
            self.errors = []
            if message.details is None and message.content:  # given, with calls, which are only sent as native ones
                self._log.append(as_written(message))
                self._sent.append({"role": "assistant", "content": to_plain(message.content)})

    def _fold(self, message: Message) -> None:
        """Apply the write of a data message. Errors and texts, which a tool may return too, are not data."""
        if message.get("type") != "data" or message["kind"] == "error":
            return
        identity = (message["kind"], message.get("_instance"))
        root, data, path = self._data.get(identity, MISSING), message["data"], message.get("_outputPath")
        if path is None:
            self._data[identity] = merged(root, copied_value(data))
        else:
            keys = next(parse_expression(path).paths).keys
            method = message.get("_outputMethod", "set")
            self._data[identity] = write_at(root, keys, at_path(data, keys), method)
        if identity not in self._properties:
            self._sent.append(identity)
            self._properties[identity] = {"type": "data", "kind": identity[0]}
        self._properties[identity] |= {
            name: message[name] for name in ("_instance", "description", "schema") if name in message
        }
        self._rendered.pop(identity, None)
        self.version += 1

    # -- the data --------------------------------------------------------------------------------------------------

    def look(self, path: Path, instance: str | None = None) -> Any:
        """Return the value at a path, or MISSING. An instance's own data comes before data without an instance."""
        if instance is not None:
            found = at_path(self._data.get((path.kind, instance), MISSING), path.keys)
            if found is not MISSING:
                return found
        return at_path(self._data.get((path.kind, None), MISSING), path.keys)

    def knows(self, kind: str) -> bool:
        """Return True if data of this kind may exist."""
        return kind in KINDS or any(known == kind for known, _ in self._data)

    def whole(self, kind: str) -> Any:
        """Return a copy of all data of a kind, without that of instances."""
        return copied_value(self._data.get((kind, None), {}))

    def view(self, scopes: Sequence[str], instance: str | None) -> list[dict[str, Any]]:
        """Return a copy of the part of the context that the scopes allow (SEMANTICS.md, 8. Scopes and delegates).

        Data has its current value, one message for each object. With an instance, its own data and data without an
        instance are visible, both without the field `_instance`.
        """
        seen: list[dict[str, Any]] = []
        for scope in scopes:
            if scope in TEXT_SCOPES:
                texts = (item for item in self._sent if isinstance(item, dict))
                seen += [copied_value(text) for text in texts if text["role"] == TEXT_SCOPES[scope]]
            elif scope.startswith(DAGGER):
                for path in parse_expression(scope).paths:
                    data = self.look(path, instance)
                    if data is MISSING:
                        continue
                    data = copied_value(data)
                    for key in reversed(path.keys):
                        data = {key: data}
                    seen.append({"type": "data", "kind": path.kind, "data": data})
            else:
                for identity in dict.fromkeys([(scope, None), (scope, instance)]):
                    if identity in self._data:
                        properties = self._properties[identity].items()
                        message = {name: value for name, value in properties if name != "_instance"}
                        seen.append({**message, "data": copied_value(self._data[identity])})
        return seen

    # -- the log ---------------------------------------------------------------------------------------------------

    def log(self, state: State) -> list[dict[str, Any]]:
        """Return a copy of the log, with the messages of this round's calls that are not in the history yet."""
        written = [message for call in self.turn.ended for message in self.turn.written[call.id]]
        pending = written[max(0, self.logged(state) - len(self.errors)) :]
        log: list[dict[str, Any]] = copied_value([*self._log, *map(as_written, pending)])
        return log

    def logged(self, state: State) -> int:
        """Return how many messages of this round's log are in the history: what its calls wrote, and its errors."""
        return state.heard.count("loop") - (self.planned == state.turn)

    # -- what the model is sent ------------------------------------------------------------------------------------

    def messages(self, *, native: bool) -> list[dict[str, Any]]:
        """Return what the model is sent: a message for each object, the texts, the errors of the last round.

        native: send the model's calls and their results too, as a provider expects. The errors of calls are then left
        out, except those of detached calls.
        """
        if native:
            sent = [*map(self._render, self._properties), *self._transcript]
        else:
            sent = [item if isinstance(item, dict) else self._render(item) for item in self._sent]
        for error in map(as_written, self.errors):
            if not native or error["data"]["call"] is None or error.get("_call", {}).get("_detached"):
                sent.append({"role": "user", "content": to_json(without_hidden(error)).decode()})
        return sent

    def _render(self, identity: Identity) -> dict[str, Any]:
        rendered = self._rendered.get(identity)
        if rendered is None:
            fields = {**self._properties[identity], "data": self._data[identity]}
            rendered = self._rendered[identity] = {"role": "user", "content": render(fields, self._max_chars)}
        return rendered


# -- rounds --------------------------------------------------------------------------------------------------------


def read_round(context: Context, state: State, check: OutputCheck) -> Round:
    """Return the round that has ended. It is computed once and cached in the context."""
    reply = state.reply
    assert reply is not None
    ended, written = context.turn.ended, context.turn.written
    round = context.round
    if round is None or round.reply is not reply:
        # The output, or why there is none.
        answer = reply.message.details or read_again(reply.message, native=False)
        fault = answer.get("fault")
        has_output = fault is None and (answer.get("output") is not None or answer.get("done") is True)
        output = None
        if has_output:
            output, fault = check.read(answer)

        # The calls that the round waited for, without detached calls that ended after the answer. This does not depend
        # on when the round is read.
        count = len(ended)
        while count and (call := ended[count - 1]).detached and call.end is not None and call.end.seq > reply.seq:
            count -= 1

        # What they wrote, then the errors.
        errors = [error for call in ended[:count] if (error := error_of(call)) is not None]
        if fault is not None:
            errors.append(error_message(None, fault))
        log = [message for call in ended[:count] for message in written[call.id]]
        round = Round(reply, [*log, *errors], bool(errors), has_output and fault is None, output, count)
        context.round = round

    # Detached calls that ended since.
    for call in ended[round.calls_in_log :]:
        round.calls_in_log += 1
        round.log += written[call.id]
        error = error_of(call)
        if error is not None:
            round.log.append(error)
            round.has_errors = True
    return round


def repeats_error(messages: Sequence[Message]) -> bool:
    """Return True if the last two rounds, both without calls and writes, ended with the same error.

    The model was sent the error in between, so each further request would be the same.
    """
    if [message.role for message in messages[-4:]] != ["assistant", "data", "assistant", "data"]:
        return False
    return bool(messages[-3]["data"] == messages[-1]["data"])
