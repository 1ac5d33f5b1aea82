"""Values from the code of a loop, as the JSON data that its events contain.

A tool may return any object, and values that JSON cannot express become their text. The code of a loop gets an error
for them instead, because it will read the data again.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_jsonable_python

from agentnb.core.errors import NotSerializable
from agentnb.core.foreign import number_in
from agentnb.core.messages import to_plain
from agentnb.core.unicode import mended_inside


def json_of(value: Any, whose: str) -> Any:
    """Return the value as JSON data.

    whose: the source of the value, for the message. Raises NotSerializable, with the cause, if the value is not JSON.
    """
    try:
        return mended_inside(to_jsonable_python(to_plain(value), fallback=_number))
    except Exception as error:  # the methods of an object may raise anything while it is read
        raise NotSerializable(f"{whose}: what becomes a fact of the run must be JSON. {error}") from None


def is_json(value: Any) -> bool:
    """Return True if a value is JSON data at every level: without numbers of numpy and without tuples."""
    if type(value) is list:
        return all(is_json(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_json(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def same_json(one: Any, other: Any) -> bool:
    """Return True if two values are equal as JSON. In Python, 1 equals True and 1.0, and NaN does not equal NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _number(value: Any) -> bool | int | float:
    number = number_in(value)
    if number is None:
        raise ValueError(f"A {type(value).__qualname__} is not.")
    return number
