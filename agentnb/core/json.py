"""JSON data: conversion of any value to it, repair of its text, and checks that it can be read back.

Events contain JSON data only, so that every process can read a recording. A value is converted when it is passed in,
so that an error is reported at its origin, not at a later snapshot. There are two conversions. `to_json_data` accepts
every object, because a tool may return any: a part that JSON cannot express becomes text. `require_json` raises an
error instead. It is for the values of a loop's own code, which will read the data again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from msgspec import Struct, to_builtins
from pydantic_core import from_json, to_json, to_jsonable_python

from agentnb.core.blocks import picture_in
from agentnb.core.errors import NotSerializable
from agentnb.core.record import Record

_SCALARS = frozenset({str, int, float, bool, type(None)})
_UNCHANGED = (bytes, bytearray, datetime, date, time, timedelta, Decimal)
"""The types that `to_builtins` would convert to text, and that `to_plain` returns unchanged."""


# Text that is not Unicode. A JSON escape may encode half of a character (d83d, say), and a stream may be cut between
# the two halves. Python keeps this half as a lone surrogate. UTF-8 cannot write it, so a recording could not be saved.


def repair_text(text: str) -> str:
    """Return `text` with halves of characters joined, and replaced by U+FFFD if the other half is missing.

    The result is a `str` itself, also if the text is of a subclass, as a node of an HTML parser is.
    """
    if text.isascii():
        return text if type(text) is str else str.__str__(text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def repair_texts(value: Any) -> Any:
    """Return JSON data with all its text repaired; the value itself if all its text is valid."""
    try:
        to_json(value)
    except (ValueError, UnicodeError):
        return _repair(value)
    return value


def _repair(value: Any) -> Any:
    if isinstance(value, dict):
        return {_repair(key): _repair(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_repair(item) for item in value]
    return repair_text(value) if isinstance(value, str) else value


# Numbers of other libraries. A scalar of numpy or torch is a number, and JSON has numbers. Converted to text, it could
# no longer be used in computations: by the model, by the call that receives it, or in a table of results. The libraries
# are not imported: these scalars have no dimensions, and `item()` returns their value.


def plain_number(value: Any) -> Any:
    """Return a number of another library as a number of Python, and any other value unchanged."""
    number = number_in(value)
    return value if number is None else number


def number_in(value: Any) -> bool | int | float | None:
    """Return the number of a scalar; None for every other value, including a date, a time or a duration."""
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or shape or getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        return None
    item = value.item()
    return item if type(item) in (bool, int, float) else None


# JSON that can be written but not read back. pydantic writes 250 levels and integers of any length; it reads 200 levels
# and 4300 digits, and Python no more digits than that. A recording with values between these limits would be lost.

_LEVELS_ABOVE = 20
"""The maximum number of levels around an event in a line of a file, rounded up."""
_MAX_LEVELS = 200 - _LEVELS_ABOVE
"""The number of nesting levels up to which any value can be read back."""
_SHORT = 2 * _MAX_LEVELS
"""The number of bytes below which JSON text cannot have too many levels."""
_MAX_BITS = 14_000
"""The number of bits up to which any integer can be read back."""


def readable(value: Any) -> Any:
    """Return the JSON data, with text that is not Unicode repaired.

    Raises ValueError or RecursionError if the data could not be read back.
    """
    try:
        line = to_json(value)
    except ValueError:  # for example text that is not Unicode
        value = repair_texts(value)
        line = to_json(value)
    check_readable(line)
    return value


def check_readable(line: bytes) -> None:
    """Raise ValueError if JSON text could not be read back at its later position, inside an event in a file."""
    if len(line) > _SHORT:
        from_json(_LEVELS_ABOVE * b"[" + line + _LEVELS_ABOVE * b"]")


def check_levels(line: bytes | str) -> None:
    """Raise ValueError if a whole event is nested too deeply to be read back. Its values have been checked before."""
    if len(line) > _SHORT:
        text = line.encode() if isinstance(line, str) else line
        if text.count(b"[") + text.count(b"{") > _MAX_LEVELS:
            from_json(text)


def parse_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """Return a call's arguments and None, or, if they are not an object, an empty object and their text.

    A missing value, an empty text or null means no arguments. JSON text that contains the text of an object is parsed
    twice: some servers write a call's arguments as JSON twice.
    """
    try:
        if type(arguments) is dict:  # the usual case, in half the time of the general one
            return readable(arguments.copy() if is_json(arguments) else to_json_data(arguments)), None
        parsed = arguments
        for _ in range(2):
            if not isinstance(parsed, (str, bytes, bytearray)):
                break
            if isinstance(parsed, str):
                parsed = _one_object(parsed)
            # Small models write line ends and tabs into texts as they are.
            parsed = json.loads(parsed, strict=False) if parsed.strip() else None
        if parsed is None:
            return {}, None
        if not isinstance(parsed, Mapping):
            return {}, repair_text(str(arguments))
        return readable(parsed if type(parsed) is dict else to_json_data(parsed)), None
    except (ValueError, TypeError, RecursionError):
        return {}, repair_text(str(arguments))


def _one_object(text: str) -> str:
    """Return the text of a call's arguments without what some servers add: an empty JSON text, an empty object, or the
    same object again, as in `{}{}` and `{}{"a": 1}`.
    """
    text = text.strip().removesuffix('""') if text.rstrip().endswith('}""') else text.strip()
    if not _TWO_OBJECTS.search(text):
        return text
    decoder, objects, position = json.JSONDecoder(strict=False), [], 0
    try:
        while position < len(text):
            found, end = decoder.raw_decode(text, position)
            if found != {} and text[position:end] not in objects:
                objects.append(text[position:end])
            position = end + len(text[end:]) - len(text[end:].lstrip())
    except ValueError:
        return text
    return text if len(objects) > 1 else objects[0] if objects else "{}"


_TWO_OBJECTS = re.compile(r"\}\s*\{")

# JSON data, and the types of agentnb that are converted to it without loss.


def is_json(value: Any) -> bool:
    """Return True if a value is JSON data at every level: without numbers of numpy and without tuples."""
    if type(value) is list:
        return all(is_json(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_json(item) for key, item in value.items())
    return type(value) in _SCALARS


def same_json(left: Any, right: Any) -> bool:
    """Return True if two values are equal as JSON. In Python, 1 equals True and 1.0, and NaN does not equal NaN."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def to_plain(value: Any) -> Any:
    """Return a copy of `value` in which messages, calls and records are plain dicts and lists."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, dict):
        return {key: item if type(item) in _SCALARS else to_plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, Struct):
        return to_builtins(value)
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, Record) else value


def copy_of(data: Any) -> Any:
    """Return a copy of JSON data in which messages and calls are plain dicts: `to_plain` in a quarter of the time."""
    try:
        return to_builtins(data, builtin_types=_UNCHANGED)
    except TypeError:  # code of a loop or a model can put any object into the data of its own run
        return to_plain(data)


# The strict conversion, for the values of a loop's own code.


def require_json(value: Any, source: str) -> Any:
    """Return a value of a loop's own code as JSON data.

    source: the source of the value, for the message. Raises NotSerializable, with the cause, if the value is not JSON.
    """
    try:
        return repair_texts(to_jsonable_python(to_plain(value), fallback=_require_number))
    except Exception as error:  # the methods of an object may raise anything while it is read
        raise NotSerializable(
            f"{source}: data recorded in an event must be JSON serializable, such as text, numbers, lists and dicts."
            f" {error}"
        ) from None


def _require_number(value: Any) -> bool | int | float:
    number = number_in(value)
    if number is None:
        raise ValueError(f"A {type(value).__qualname__} is not serializable.")
    return number


# The conversion that accepts every object.

_MAX_DEPTH = 50
"""The levels of nesting that are kept of a value that cannot be converted as a whole."""


def to_json_data(value: Any) -> Any:
    """Return any value as JSON data.

    An object that JSON cannot represent becomes its text, a picture becomes a content block, and text that is not valid
    Unicode is repaired.
    """
    if isinstance(value, str):
        return repair_text(value)
    if _is_readable_scalar(value):
        return _exact(value)
    if (picture := picture_in(value)) is not None:
        return picture
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        plain = to_jsonable_python(value, fallback=_number_picture_or_text)
        check_readable(to_json(plain))  # `to_json` also raises for lone surrogates, which UTF-8 cannot encode
    except Exception:  # a method of the object may raise any error, as an invalid date does
        return _convert_items(value)
    return plain


def to_text(value: Any) -> str:
    """Return `str(value)` as valid Unicode, or a text that names the error if that raises."""
    try:
        return repair_text(str(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose text is a {type(error).__name__}>"


def _exact(number: Any) -> Any:
    """Return the value of a number's own type for a number of a subclass: numpy's float, a member of an IntEnum."""
    if type(number) in _SCALARS:
        return number
    return int.__int__(number) if isinstance(number, int) else float.__float__(number)


def _is_readable_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= _MAX_BITS
    return value is None or isinstance(value, float)


def _convert_items(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return as JSON data a value that cannot be converted as a whole: convert its items one by one.

    above: the ids of the containers around the value. A value that contains itself, or is nested too deeply, becomes a
    text.
    """
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        if id(value) in above or len(above) >= _MAX_DEPTH:
            return f"<{type(value).__name__}, nested too deeply>"
        above = (*above, id(value))
        if isinstance(value, Mapping):
            return {to_text(key): _convert_items(item, above) for key, item in value.items()}
        return [_convert_items(item, above) for item in value]
    if _is_readable_scalar(value):
        return _exact(value)
    if isinstance(value, bytes):
        picture = picture_in(value)
        return picture if picture is not None else value.decode("utf-8", "replace")
    if isinstance(value, (str, int)):
        return to_text(value)
    try:
        plain = to_jsonable_python(value, fallback=_number_picture_or_text)
    except Exception:  # it is this object that cannot be converted
        return to_text(value)
    return _convert_items(plain, (*above, id(value)))


def _number_picture_or_text(value: Any) -> Any:
    """Return the fields of a struct, a plain number for one of another library, a picture's block, or else the text."""
    if isinstance(value, Struct):
        return to_builtins(value)
    number = number_in(value)
    if number is not None:
        return number
    picture = picture_in(value)
    return picture if picture is not None else to_text(value)
