"""The end of a tick: what it adds to the log, and whether it has an output (SEMANTICS.md, 5. Algorithm)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from agentnb.core.events import ModelEnd
from agentnb.core.messages import Message
from agentnb.core.state import CallState, State
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.messages import error_message, error_of
from agentnb.loops.execution_loop.prompt import OutputCheck
from agentnb.loops.execution_loop.reply import read_again


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
