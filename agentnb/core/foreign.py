"""Numbers of other libraries: a scalar of numpy or torch is a number, and JSON has numbers.

As its text it would be one that nobody can compute with any more: neither the model, nor the call that is given it, nor
a table of the results. Nothing is imported for it: such scalars have no dimensions, and give themselves by `item()`.
"""

from __future__ import annotations

from typing import Any


def plain_number(value: Any) -> Any:
    """A number of another library as one of Python's, as those of a table's column are; anything else as it is."""
    number = number_in(value)
    return value if number is None else number


def number_in(value: Any) -> bool | int | float | None:
    """The number that this scalar is; None for everything else, a moment or a span of time included."""
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or shape or getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        return None
    item = value.item()
    return item if type(item) in (bool, int, float) else None
