"""The context of a run: its log, and the data that the log folds to (SEMANTICS.md, 2. Messages and data).

The log only grows. It stands in the history: what the run was given, and at the end of each tick what its calls have
written, in the order in which they ended, and then its errors. While a tick goes on, what its calls have written so far
is read from their results: the log as it will be. `Context` folds it as it grows, each message once; it holds nothing
that could not be worked out again from the state, and is kept beside it (`State.memo`).


The end of a tick: what it adds to the log, and whether it has an output (SEMANTICS.md, 5. Algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json, to_json

from agentnb.core.calls import render
from agentnb.core.errors import InvalidArguments
from agentnb.core.events import ModelEnd
from agentnb.core.graph import GraphCall
from agentnb.core.messages import Message, ToolCall, is_broken_off, to_plain
from agentnb.core.state import CallState, State
from agentnb.loops.execution_loop.messages import context, told
from agentnb.loops.execution_loop.references import (
    DAGGER,
    MISSING,
    Expression,
    Path,
    at_path,
    copied,
    expressions_in,
    parse_expression,
)
from agentnb.loops.execution_loop.solution import OutputCheck, read_again
from agentnb.loops.execution_loop.tools import check_scopes
from agentnb.loops.execution_loop.types import parameters
from agentnb.loops.execution_loop.writes import check_writing, error_message, error_of, merged, writes, written

Identity = tuple[str, str | None]
"""A kind of data, and the instance of it: messages that share these are one object."""

KINDS = frozenset({"state", "input", "data", "plan"})
"""The kinds of data there always are."""

TEXTS = {"text": "user", "system": "system"}
"""Scopes that are no kind of data, and whose messages they are."""


Standing = Literal["free", "blocked", "broken"]


class Read:
    """A call as it was read once: what it refers to, where it writes, and what is wrong with it."""

    def __init__(self, made: ToolCall) -> None:
        self.made = made
        self.parameters = parameters(made.arguments)
        self.instance: str | None = made.arguments.get("_instance")
        self.needs: list[Expression] = []
        self.writes: list[Path] = []
        self.fault: str | None = None
        self.version = -1
        self.standing: Standing = "blocked"
        try:
            _check(made)
            self.needs = list(expressions_in(self.parameters))
            if (path := made.arguments.get("_outputPath")) is not None:
                self.writes = list(parse_expression(path).paths)
        except InvalidArguments as error:
            self.fault = str(error)


def _check(made: ToolCall) -> None:
    if made.malformed is not None:
        raise InvalidArguments(f"A call is a JSON object: {made.malformed[:200]}")
    if not made.name:
        raise InvalidArguments("The call names no tool: it needs `_tool`.")
    check_writing(made.arguments)
    check_scopes(made.arguments.get("_scopes"))


class Turn:
    """What is known of the calls of one turn, and forgotten with it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended: list[CallState] = []
        """Those that have ended, in that order."""
        self.known: set[str] = set()
        self.waiting: dict[str, None] = {}
        """The ids of all that have come, and of those among them that have not ended."""
        self.written: dict[str, list[Message]] = {}
        """What each of them writes."""
        self.read: dict[str, Read] = {}
        """The calls as they were read (`dataflow`)."""
        self.cycle: list[str] | None = None
        """Those that wait for one another, where somebody has looked (`dataflow`)."""
        self.earlier: dict[tuple[Path, str | None], GraphCall | None] = {}
        """Which call of an earlier turn wrote what an instance finds at a path, where somebody has looked (`graph`)."""


class Context:
    """The context of one run, folded up to where its state stands."""

    def __init__(self) -> None:
        self.turn = Turn(0)
        self.version = 0
        """Goes up whenever what is found at some path may have changed."""
        self.calls_made = 0
        """How many calls the answers so far have made."""
        self.native = False
        """Whether the model makes its calls by the provider's own means."""
        self._data: dict[Identity, Any] = {}
        self._words: dict[Identity, dict[str, Any]] = {}
        self._rendered: dict[Identity, dict[str, Any]] = {}
        self._told: list[Identity | dict[str, Any]] = []
        self._transcript: list[dict[str, Any]] = []
        self._log: list[dict[str, Any]] = []
        self.planned = 0
        """The request whose calls are the plan."""
        self.errors: list[Message] = []
        """The error messages of the last tick that has ended."""
        self.tick: Tick | None = None
        """What the last tick that has ended comes to, where somebody has worked it out (`tick`)."""
        self._folded: dict[str, int] = {}
        self._logged: dict[str, int] = {}
        """How many of the messages of each call of this tick are folded, and how many stand in the log."""
        self._seen = 0
        self._skips = False
        self._asked = False
        self._position = -1
        self._most: int | None = None
        """Characters of one object of the context that the model is sent at most."""

    @classmethod
    def of(cls, state: State) -> Context:
        """The context of a run that stands there."""
        folded = state.memo
        if not isinstance(folded, Context):
            folded = state.memo = cls()
        if folded._position != state.position:
            folded.catch_up(state)
        return folded

    def catch_up(self, state: State) -> None:
        """Fold what has been added since."""
        messages = state.messages
        self._most = state.max_result_chars
        while self._seen < len(messages):
            message = messages[self._seen]
            if message.role != "tool":  # the results of an answer follow it
                self._skips = is_broken_off(message)
            if not self._skips:
                self._take(message)
            self._seen += 1
        if state.turn != self.turn.number:
            self.turn = Turn(state.turn)
            self._folded = {id: count for id, count in self._folded.items() if id in state.calls}
            self._logged = {id: count for id, count in self._logged.items() if id in state.calls}
        if len(self.turn.ended) != len(state.calls) - len(state.open):
            self._take_ended(state)
        if self._asked is not (state.model == "asked"):
            self._asked = not self._asked
            self.version += 1
        self._position = state.position

    def _take_ended(self, state: State) -> None:
        turn = self.turn
        for id in reversed(state.calls):  # those that have come since, which are the last
            if id in turn.known:
                break
            turn.known.add(id)
            turn.waiting[id] = None
        news = [call for id in turn.waiting if (call := state.calls[id]).end is not None]
        for call in sorted(news, key=lambda call: call.end.seq if call.end is not None else 0):
            del turn.waiting[call.id]
            turn.ended.append(call)
            turn.written[call.id] = messages = list(writes(call))
            for number, message in enumerate(messages, 1):
                if number > self._folded.get(call.id, 0):  # a run that was taken up again: it may be logged already
                    self._folded[call.id] = number
                    self._fold(message)

    def _take(self, message: Message) -> None:
        is_of_the_run = message.role == "tool" or (message.role == "assistant" and not _is_given(message))
        if not is_of_the_run:
            self._log.append(context(message))
        if message.role == "data":
            call_id = (message.get("_call") or {}).get("_id")
            if message.get("kind") == "error":
                self.errors.append(message)
            elif call_id is None:
                self.planned = message.get("_request") or self.planned
                self._fold(message)
            else:
                number = self._logged[call_id] = self._logged.get(call_id, 0) + 1
                if number > self._folded.get(call_id, 0):
                    self._folded[call_id] = number
                    self._fold(message)
        elif is_of_the_run:
            self._transcript.append(to_plain(message))
            if message.role == "assistant":
                self.calls_made += len(message.tool_calls)
                self.native = self.native or bool(message.details and message.details.get("native"))
                self.errors = []
                if message.details is None and message.content:  # it was given; its calls are told by native means only
                    self._log.append(context(message))
                    self._told.append({"role": "assistant", "content": to_plain(message.content)})
        else:
            said = to_plain(message)  # a copy, as the loops that send their history make one
            self._transcript.append(said)
            self._told.append(said)

    def _fold(self, message: Message) -> None:
        fields = message
        if fields.get("type") != "data" or fields["kind"] == "error":  # text and errors, which a tool may return too
            return
        identity = (fields["kind"], fields.get("_instance"))
        root, data, path = self._data.get(identity, MISSING), fields["data"], fields.get("_outputPath")
        if path is None:
            self._data[identity] = merged(root, copied(data))
        else:
            keys = next(parse_expression(path).paths).keys
            method = fields.get("_outputMethod", "set")
            self._data[identity] = written(root, keys, at_path(data, keys), method)
        if identity not in self._words:
            self._told.append(identity)
            self._words[identity] = {"type": "data", "kind": identity[0]}
        self._words[identity] |= {
            name: fields[name] for name in ("_instance", "description", "schema") if name in fields
        }
        self._rendered.pop(identity, None)
        self.version += 1

    # -- reading ---------------------------------------------------------------------------------------------------

    def look(self, path: Path, instance: str | None = None) -> Any:
        """What stands at a path, MISSING where nothing does. An instance sees its own data before everybody's."""
        if instance is not None:
            found = at_path(self._data.get((path.kind, instance), MISSING), path.keys)
            if found is not MISSING:
                return found
        return at_path(self._data.get((path.kind, None), MISSING), path.keys)

    def knows(self, kind: str) -> bool:
        """Whether there may be data of this kind."""
        return kind in KINDS or any(known == kind for known, _ in self._data)

    def whole(self, kind: str) -> Any:
        """A copy of all the data of a kind, without those of instances."""
        return copied(self._data.get((kind, None), {}))

    def log(self, state: State) -> list[dict[str, Any]]:
        """The log as it will be: with what calls of this tick have written whose turn to be appended has not come.

        A copy, for code of the user's: what becomes of it does not happen to the record.
        """
        coming = [message for call in self.turn.ended for message in self.turn.written[call.id]]
        written = map(context, coming[max(0, self.logged(state) - len(self.errors)) :])
        log: list[dict[str, Any]] = copied([*self._log, *written])
        return log

    def logged(self, state: State) -> int:
        """How much of what this tick has come to stands in the log: what its calls wrote, and the errors."""
        return state.heard.count("loop") - (self.planned == state.turn)

    def view(self, scopes: Sequence[str], instance: str | None) -> list[dict[str, Any]]:
        """What `scopes` let somebody see (`scopes`): data as it stands, a message for each object, and text.

        An instance sees its own data and everybody's, as if all of it were its own.
        """
        seen: list[dict[str, Any]] = []
        for scope in scopes:
            if scope in TEXTS:
                texts = (item for item in self._told if isinstance(item, dict))
                seen += [copied(text) for text in texts if text["role"] == TEXTS[scope]]
            elif scope.startswith(DAGGER):
                paths = parse_expression(scope).paths
                seen += [message for path in paths if (message := self._message_at(path, instance)) is not None]
            else:
                for own in dict.fromkeys([(scope, None), (scope, instance)]):
                    if own in self._data:
                        words = {name: word for name, word in self._words[own].items() if name != "_instance"}
                        seen.append({**words, "data": copied(self._data[own])})
        return seen

    def _message_at(self, path: Path, instance: str | None) -> dict[str, Any] | None:
        data = self.look(path, instance)
        if data is MISSING:
            return None
        data = copied(data)
        for key in reversed(path.keys):
            data = {key: data}
        return {"type": "data", "kind": path.kind, "data": data}

    def messages(self, *, native: bool) -> list[dict[str, Any]]:
        """What the model is told: one message for each object, the text between them, the last tick's errors.

        A model that makes its calls by the provider's own means is told those and their results, as it expects.
        """
        if native:
            data = [self._render(identity) for identity in self._words]
            return [*data, *self._transcript, *self._render_errors(calls=False)]
        return [*map(self._render, self._told), *self._render_errors(calls=True)]

    def _render_errors(self, *, calls: bool) -> list[dict[str, Any]]:
        errors = [context(error) for error in self.errors]
        return [
            _as_message(told(error))
            for error in errors
            if calls or error["data"]["call"] is None or error.get("_call", {}).get("_detached")
        ]

    def _render(self, item: Identity | dict[str, Any]) -> dict[str, Any]:
        if isinstance(item, dict):
            return item
        rendered = self._rendered.get(item)
        if rendered is None:
            fields = {**self._words[item], "data": self._data[item]}
            rendered = self._rendered[item] = {"role": "user", "content": render(fields, self._most)}
        return rendered


def _is_given(answer: Message) -> bool:
    """Whether an answer is part of a conversation that the run was given: what was read of its own stands beside it."""
    return answer.details is None and not answer.tool_calls


def _as_message(fields: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": to_json(fields).decode()}


@dataclass
class Tick:
    """One request and its calls, all of which have ended or are detached."""

    reply: ModelEnd
    log: list[Message]
    """What was written, in the order in which calls have ended, and then every error, once; and then the same of each
    detached call that has ended since."""
    has_errors: bool
    has_output: bool
    output: Any
    read: int
    """How many of the calls that have ended are in the log."""


def read_tick(context: Context, state: State, check: OutputCheck) -> Tick:
    """The tick that has ended; worked out once, and kept beside the context."""
    reply = state.reply
    assert reply is not None
    tick = context.tick
    if tick is None or tick.reply is not reply:
        tick = context.tick = _read(context, reply, check)
    for call in context.turn.ended[tick.read :]:
        tick.read += 1
        error = error_of(call)
        tick.log += [*context.turn.written[call.id], *([error] if error is not None else [])]
        tick.has_errors = tick.has_errors or error is not None
    return tick


def _read(context: Context, reply: ModelEnd, check: OutputCheck) -> Tick:
    answer = reply.message.details or read_again(reply.message, native=False)
    output, fault = None, answer.get("fault")
    has_output = fault is None and (answer.get("output") is not None or answer.get("done") is True)
    if has_output:
        output, fault = (
            _checked(answer.get("output"), check) if not answer.get("native") else _said(answer.get("output"), check)
        )
    ended = _in_time(context.turn.ended, reply)
    errors = [error for call in ended if (error := error_of(call)) is not None]
    if fault is not None:
        errors.append(error_message(None, fault))
    written = [message for call in ended for message in context.turn.written[call.id]]
    return Tick(reply, [*written, *errors], bool(errors), has_output and fault is None, output, len(ended))


def is_told_again(messages: Sequence[Message]) -> bool:
    """Whether a tick without calls has come to the very error that the tick before it has come to, and nothing else.

    The model has been told of it: the next request would be the same as this one was, and so on for ever.
    """
    if [message.role for message in messages[-4:]] != ["assistant", "data", "assistant", "data"]:
        return False
    return bool(messages[-3]["data"] == messages[-1]["data"])


def _in_time(ended: Sequence[CallState], reply: ModelEnd) -> Sequence[CallState]:
    """Those that had ended when nothing was left to wait for: the same, whoever looks, and however late."""
    last = len(ended)
    while last and (call := ended[last - 1]).detached and call.end is not None and call.end.seq > reply.seq:
        last -= 1
    return ended[:last]


def _said(text: Any, check: OutputCheck) -> tuple[Any, str | None]:
    """The output of an answer in text alone: the text, or where it is to be something else what it is the JSON of."""
    output, fault = check.read(text)
    if fault is None or not isinstance(text, str):
        return output, fault
    try:
        return check.read(from_json(text))
    except ValueError:
        return output, fault


def _checked(output: Any, check: OutputCheck) -> tuple[Any, str | None]:
    """The output as it is kept, or what is wrong with it; `{"value": null}` is null where it is not itself meant."""
    if output != {"value": None}:
        return check.read(output)
    value, fault = check.read(output)
    return (value, None) if check.schema is not None and fault is None else check.read(None)
