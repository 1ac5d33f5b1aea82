"""Numbers of other libraries: a scalar of numpy or torch is a number, and JSON has numbers.

Converted to text, it could no longer be used in computations: by the model, by the call that receives it, or in a table
of results. The libraries are not imported: these scalars have no dimensions, and `item()` returns their value.
"""

from __future__ import annotations

from typing import Any


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
