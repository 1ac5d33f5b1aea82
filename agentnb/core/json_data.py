"""What the code of a loop says, as the JSON data that stands in its events.

A tool may return any object, and what JSON cannot say becomes its text; the code of a loop is told that it has given
such a thing, because it will read it again.
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
    """The value as JSON data. Raises NotSerializable, with what is at fault."""
    try:
        return mended_inside(to_jsonable_python(to_plain(value), fallback=_number))
    except Exception as error:  # whatever the methods of an object raise while it is read
        raise NotSerializable(f"{whose}: what becomes a fact of the run must be JSON. {error}") from None


def is_json(value: Any) -> bool:
    """Whether a value is JSON data already, all through: no number of numpy's, and no tuple."""
    if type(value) is list:
        return all(is_json(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_json(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def same_json(one: Any, other: Any) -> bool:
    """Whether two values say the same, as JSON: to Python 1 would be True and 1.0 too, and NaN no other NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _number(value: Any) -> bool | int | float:
    number = number_in(value)
    if number is None:
        raise ValueError(f"A {type(value).__qualname__} is not.")
    return number
