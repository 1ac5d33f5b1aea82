"""The content of events as JSON data: inputs, first events, decisions, a loop's own values, and errors.

These functions prepare events before they enter the journal. `agentnb.core.json` has the conversions of single values.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import asdict, replace
from pydantic_core import to_json

from agentnb.core.errors import ModelError, NotSerializable
from agentnb.core.event import read_field
from agentnb.core.events import ApprovalDecision, ErrorInfo, Event, RunEnd, RunStart, StateUpdate, checked
from agentnb.core.json import check_readable, repair_text, require_json, to_json_data, to_text
from agentnb.core.messages import Message, plain_message, to_message

AnEvent = TypeVar("AnEvent", bound=Event)

TRACEBACK_LIMIT = 20_000
"""The number of characters of a traceback that are kept. A longer one is usually a recursion, and its middle repeats
the same frames."""


def input_as_json(input: Any) -> Any:
    """Return a run's input as JSON data. Messages in it, or in a list of inputs, become plain messages."""
    if isinstance(input, (list, tuple)):
        return to_json_data([to_json_data(plain_message(item)) for item in input])
    return to_json_data(plain_message(input))


def start_as_json(start: RunStart) -> RunStart:
    """Return a loop's first event with the loop's name and messages as JSON data: these may come from any source."""
    start = checked(start)
    messages = [message for queue in (start.history, *start.queued.values()) for message in queue]
    if repair_text(start.name) == start.name and all(_is_readable(message) for message in messages):
        return start
    queued = {queue: _as_json(messages) for queue, messages in start.queued.items()}
    return replace(start, name=repair_text(start.name), history=_as_json(start.history), queued=queued)


def _as_json(messages: Sequence[Message]) -> list[Message]:
    return [message if _is_readable(message) else to_message(to_json_data(message)) for message in messages]


def _is_readable(message: Any) -> bool:
    try:
        check_readable(to_json(to_builtins(message)))  # `to_builtins` refuses subclasses of str, int and float
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def decision_as_json(decision: ApprovalDecision) -> ApprovalDecision:
    """Return a decision that a loop's own code has made about a call, with its fields as JSON data."""
    name, arguments = decision.name, decision.arguments
    return replace(
        decision,
        reason=text_or_empty(decision.reason),
        note=text_or_empty(decision.note),
        name=to_text(name) if name is not None else None,
        arguments=to_json_data(arguments) if arguments is not None else None,
    )


def values_as_json(event: Event, loop_name: str) -> Event:
    """Return an event that the loop of this name decided on, with its output or values as JSON data.

    Raises NotSerializable if a value is not JSON: the loop will read it again, so it must not be converted.
    """
    if isinstance(event, RunEnd):
        return replace(event, output=require_json(event.output, f"The output of {loop_name}"))
    if isinstance(event, StateUpdate):
        return replace(event, values=require_json(event.values, f"The values of {loop_name}"))
    return event


def text_or_empty(value: Any) -> str:
    """Return a value as text, for a text field of an event such as a reason; empty for None."""
    return to_text(value) if value is not None else ""


def error_text(error: BaseException) -> str:
    """Return the type and the message of an exception as text."""
    return f"{type(error).__name__}: {to_text(error)}"


def error_info(error: BaseException) -> ErrorInfo:
    """Return an exception as data: type, message, traceback, and the details of a ModelError."""
    # Shorten a long traceback in its middle.
    text = "".join(traceback.format_exception(error))
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n[... {len(text) - TRACEBACK_LIMIT} characters ...]\n{text[-half:]}"

    # Keep the details that the server sent with its error.
    names = ("status", "code", "param", "request_id") if isinstance(error, ModelError) else ()
    details = {name: value for name in names if (value := getattr(error, name, None)) is not None}
    return ErrorInfo(
        type=type(error).__name__,
        message=to_text(error),
        traceback=repair_text(text),
        details=to_json_data(details) if details else None,
    )


def as_json(event: AnEvent, error: Exception) -> AnEvent:
    """Return an event with numbers and texts of other libraries, and of subclasses, as those of Python itself.

    error: the reason why the event cannot be written as it is. Raises NotSerializable with it, and with the path to the
    value at fault, if a value cannot be converted without loss.
    """
    try:
        return convert(require_json(asdict(event), event.type), type(event), dec_hook=read_field)
    except (NotSerializable, ValidationError):
        raise not_serializable(event, error) from error


def not_serializable(event: Event, error: Exception) -> NotSerializable:
    """Return the error for an event that is not JSON, with the path to the invalid value."""
    return NotSerializable(f"{event.type}{_path_to_fault(event)} is not JSON: {error}")


def _path_to_fault(value: Any) -> str:
    if isinstance(value, Struct):
        value = asdict(value)
    items = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    for key, item in items:
        try:
            to_json(to_builtins(item))
        except (ValueError, TypeError):
            return f".{key}{_path_to_fault(item)}" if isinstance(key, str) else f"[{key}]{_path_to_fault(item)}"
    return ""
