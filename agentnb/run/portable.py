"""What may stand in a journal: JSON, and nothing else.

A tool may return any object. It is made JSON where it comes in, so that a recording never holds a value that only the
process which made it can read, and so that the mistake is reported where it is made and not in a later snapshot.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from agentnb.core.errors import NotSerializable
from agentnb.core.events import ErrorInfo, Event

TRACEBACK_LIMIT = 20_000
"""Characters of a traceback that are kept: more is a recursion, and its middle says nothing."""


def portable(value: Any) -> Any:
    """`value` as JSON data; an object JSON cannot say becomes its text, and text that is not Unicode is mended."""
    if isinstance(value, str):
        return _mend(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        plain = to_jsonable_python(value, serialize_unknown=True)
        to_json(plain)  # refuses text with lone surrogates, which UTF-8 cannot write
    except (PydanticSerializationError, UnicodeError, ValueError, RecursionError):
        return _mend_inside(value, depth=0)
    return plain


def _mend(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _mend_inside(value: Any, depth: int) -> Any:
    if depth < 50:  # deeper is a cycle, or no use to anybody
        if isinstance(value, Mapping):
            return {_mend(str(key)): _mend_inside(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_mend_inside(item, depth + 1) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
    return _mend(str(value) if depth < 50 else f"<{type(value).__name__}, nested too deeply>")


def error_info(error: BaseException) -> ErrorInfo:
    """An exception as data."""
    text = "".join(traceback.format_exception(error))
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n[... {len(text) - TRACEBACK_LIMIT} characters ...]\n{text[-half:]}"
    return ErrorInfo.make(type=type(error).__name__, message=_mend(str(error)), traceback=_mend(text))


def not_serializable(event: Event, error: ValueError) -> NotSerializable:
    """The error for an event that is not JSON, with the path to the value at fault."""
    return NotSerializable(f"{event.type}{_path_to_fault(event.__dict__)} is not JSON: {error}")


def _path_to_fault(value: Any) -> str:
    items = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    for key, item in items:
        try:
            to_json(item)
        except ValueError:
            return f".{key}{_path_to_fault(item)}" if isinstance(key, str) else f"[{key}]{_path_to_fault(item)}"
    return ""
