"""The inputs of a study, from what a person has: a list, a table, a column, an array, a range, or any iterable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.json import plain_number
from agentnb.run.validation import shown


def listed(inputs: Any) -> list[Any]:
    """Return the inputs as a list. Raises UsageError for what is a single input, or has no order.

    Each row of a table (pandas, polars, Arrow) is an input: its value if there is one column, otherwise a mapping from
    each column to its value, None where the value is missing. Values of numpy and pandas become those of Python, and
    times become text. An input that is missing itself (NaN, NaT, NA) is refused.
    """
    if isinstance(inputs, (list, tuple)):
        values = list(inputs)
    elif _is_table(inputs):
        values = _rows(inputs)
    elif isinstance(inputs, Mapping):
        raise UsageError(
            f"inputs must be a list, not the mapping {shown(inputs)}. For its values, pass inputs.values(); for a"
            " single input, put it in a list."
        )
    elif isinstance(inputs, Set):
        raise UsageError(f"inputs must have an order, which {shown(inputs)} does not have. Pass sorted(inputs).")
    elif _is_single(inputs):
        raise UsageError(
            f"inputs must be a list with the input of each run, not {shown(inputs)}. For a single input, pass"
            f" [{shown(inputs)}]."
        )
    else:
        values = _values_of(inputs)
    plain = [_plain(value) for value in values]
    for number, value in enumerate(plain):
        if _is_missing(value):
            raise UsageError(
                f"inputs[{number}] is missing: {value}. Leave it out (dropna() of pandas), or pass None for a run"
                " without an input."
            )
    return plain


def _is_table(value: Any) -> bool:
    return hasattr(value, "columns") and any(hasattr(value, name) for name in ("iterrows", "iter_rows", "to_pylist"))


def _is_single(value: Any) -> bool:
    """Return True for a text, a pydantic model (whose items are its fields), and what cannot be iterated over."""
    is_one = isinstance(value, (str, bytes, bytearray)) or hasattr(type(value), "model_dump")
    return is_one or not isinstance(value, Iterable) or getattr(value, "shape", None) == ()


def _rows(table: Any) -> list[Any]:
    columns = list(table.column_names if hasattr(table, "column_names") else table.columns)
    names = [str(column) for column in columns]
    if not names:
        raise UsageError("inputs is a table without columns. Pass one with the inputs, or a single column of it.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"inputs is a table with two columns named {repeated[0]!r}. Give each another name.")
    values = [[_plain(value) for value in _values_of(table[column])] for column in columns]
    if len(columns) == 1:
        return values[0]
    rows = zip(*values, strict=True)
    return [
        {name: None if _is_missing(value) else value for name, value in zip(names, row, strict=True)} for row in rows
    ]


def _values_of(values: Any) -> list[Any]:
    """Return the values of an iterable: of an array and of a column as values of Python."""
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def _plain(value: Any) -> Any:
    """Return a scalar of another library, an array or a time as what JSON has, and any other value unchanged."""
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas") and hasattr(value, "tolist"):
        return _plain(value.tolist())
    if hasattr(value, "isoformat") and not _is_missing(value):
        return value.isoformat()
    return plain_number(value)


def _is_missing(value: Any) -> bool:
    """Return True for NaN, NaT and NA, which are not equal to themselves."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value
