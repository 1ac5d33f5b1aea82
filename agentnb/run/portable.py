"""Conversion to JSON data: a journal contains nothing else.

A tool may return any object. It is converted when it is passed in, so that every process can read a recording, and so
that an error is reported at its origin, not at a later snapshot.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace
from pydantic_core import to_json, to_jsonable_python

from agentnb.core.blocks import picture_in
from agentnb.core.errors import ModelError, NotSerializable
from agentnb.core.events import ApprovalDecision, ErrorInfo, Event, RunEnd, RunStart, StateUpdate, checked
from agentnb.core.foreign import number_in
from agentnb.core.json_data import json_of
from agentnb.core.messages import Message, plain_message, to_message
from agentnb.core.readable import BITS, check_readable
from agentnb.core.unicode import mended

DEPTH = 50
"""The levels of nesting that are kept of a value that cannot be converted as a whole."""

TRACEBACK_LIMIT = 20_000
"""The characters of a traceback that are kept: a longer one is a recursion, and its middle has no information."""


def portable(value: Any) -> Any:
    """Return `value` as JSON data.

    An object that JSON cannot represent becomes its text, a picture becomes a content block, and text that is not valid
    Unicode is repaired.
    """
    if isinstance(value, str):
        return value if value.isascii() else mended(value)
    if _is_plain(value):
        return value
    if (picture := picture_in(value)) is not None:
        return picture
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        plain = to_jsonable_python(value, fallback=_number_or_text)
        check_readable(to_json(plain))  # `to_json` also raises for lone surrogates, which UTF-8 cannot encode
    except Exception:  # a method of the object may raise any error, as an invalid date does
        return _mend_inside(value)
    return plain


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= BITS
    return value is None or isinstance(value, float)


def _mend_inside(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return as JSON data a value that cannot be converted as a whole: convert its items one by one.

    above: the ids of the containers around the value. A value that contains itself, or is nested too deeply, becomes a
    text.
    """
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        if id(value) in above or len(above) >= DEPTH:
            return f"<{type(value).__name__}, nested too deeply>"
        above = (*above, id(value))
        if isinstance(value, Mapping):
            return {_text(key): _mend_inside(item, above) for key, item in value.items()}
        return [_mend_inside(item, above) for item in value]
    if _is_plain(value):
        return value
    if isinstance(value, bytes):
        picture = picture_in(value)
        return picture if picture is not None else value.decode("utf-8", "replace")
    if isinstance(value, (str, int)):
        return _text(value)
    try:
        plain = to_jsonable_python(value, fallback=_number_or_text)
    except Exception:  # it is this object that cannot be converted
        return _text(value)
    return _mend_inside(plain, (*above, id(value)))


def _number_or_text(value: Any) -> Any:
    """Return the fields of a struct, a plain number for one of another library, a picture's block, or else the text."""
    if isinstance(value, Struct):
        return to_builtins(value)
    number = number_in(value)
    if number is not None:
        return number
    picture = picture_in(value)
    return picture if picture is not None else _text(value)


def _text(value: Any) -> str:
    """Return `str(value)` as valid Unicode, or a text that names the error if that raises."""
    try:
        return mended(str(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose text is a {type(error).__name__}>"


def portable_text(value: Any) -> str:
    """Return a value as text for a field that is a text, such as a reason or a name; empty for None."""
    return _text(value) if value is not None else ""


def portable_decision(decision: ApprovalDecision) -> ApprovalDecision:
    """Return a decision that a loop's own code has made about a call, with its fields as JSON data."""
    name, arguments = decision.name, decision.arguments
    return replace(
        decision,
        reason=portable_text(decision.reason),
        name=portable_text(name) if name is not None else None,
        arguments=portable(arguments) if arguments is not None else None,
    )


def portable_input(input: Any) -> Any:
    """Return a run's input as JSON data. Messages in it, or in a list of inputs, become plain messages."""
    if isinstance(input, (list, tuple)):
        return portable([portable(plain_message(item)) for item in input])
    return portable(plain_message(input))


def said_in_json(event: Event, name: str) -> Event:
    """Return an event that the loop of this name decided on, with its output or values as JSON data.

    Raises NotSerializable for a value that is not JSON, because that loop will read it again.
    """
    if isinstance(event, RunEnd):
        return replace(event, output=json_of(event.output, f"The output of {name}"))
    if isinstance(event, StateUpdate):
        return replace(event, values=json_of(event.values, f"The values of {name}"))
    return event


def portable_start(start: RunStart) -> RunStart:
    """Return a loop's first event with its name and its messages as JSON data: they may come from any source."""
    start = checked(start)
    said = [message for messages in (start.history, *start.queued.values()) for message in messages]
    if mended(start.name) == start.name and all(_can_be_kept(message) for message in said):
        return start
    queued = {queue: _kept(messages) for queue, messages in start.queued.items()}
    return replace(start, name=mended(start.name), history=_kept(start.history), queued=queued)


def _kept(messages: Sequence[Message]) -> list[Message]:
    return [message if _can_be_kept(message) else to_message(portable(message)) for message in messages]


def _can_be_kept(plain: Any) -> bool:
    try:
        check_readable(to_json(plain))
    except ValueError:
        return False
    return True


def words_of(error: BaseException) -> str:
    """Return the type and the message of an exception as text."""
    return f"{type(error).__name__}: {_text(error)}"


def error_info(error: BaseException) -> ErrorInfo:
    """Return an exception as data: type, message, traceback, and the details of a ModelError."""
    text = "".join(traceback.format_exception(error))
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n[... {len(text) - TRACEBACK_LIMIT} characters ...]\n{text[-half:]}"
    told = ("status", "code", "param", "request_id") if isinstance(error, ModelError) else ()
    details = {name: value for name in told if (value := getattr(error, name, None)) is not None}
    return ErrorInfo(
        type=type(error).__name__,
        message=_text(error),
        traceback=mended(text),
        details=portable(details) if details else None,
    )


def not_serializable(event: Event, error: ValueError) -> NotSerializable:
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
            to_json(item, fallback=to_builtins)
        except (ValueError, TypeError):
            return f".{key}{_path_to_fault(item)}" if isinstance(key, str) else f"[{key}]{_path_to_fault(item)}"
    return ""
