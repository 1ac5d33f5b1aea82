"""Arithmetic on the columns of a table. A model writes the expressions, so Python never evaluates them.

The expression is parsed, and every node of its tree is refused unless it has one of these forms: numbers, columns,
`+ - * / **`, comparisons, `&`, `|` and `~`, rows selected by a condition (`volume[year < 1900]`), and the functions in
`FUNCTIONS`. Attributes, strings and names other than those of columns are refused. All numbers are floats: `9**9**9` is
immediately infinite, where an integer would be computed for an hour.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Columns = Mapping[str, "np.ndarray[Any, Any]"]

LONGEST = 300
"""The largest number of characters of an expression."""


def slope(y: Any, x: Any) -> Any:
    """Return the change of `y` for one unit of `x`, by least squares."""
    across = x - np.mean(x)
    return np.sum(across * (y - np.mean(y))) / np.sum(across**2)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "count": np.size,
    "max": np.max,
    "mean": np.mean,
    "median": np.median,
    "min": np.min,
    "slope": slope,
    "sqrt": np.sqrt,
    "std": np.std,
    "sum": np.sum,
}
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Invert: operator.invert,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluate(expression: str, columns: Columns) -> float:
    """Return the value of an expression, a finite number.

    Raises ValueError if there is none, with a message that a model can act on.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"The expression has {len(expression)} characters; {LONGEST} are the most.")
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{expression!r} is not an expression: {error.msg}.") from error
    with np.errstate(all="ignore"):
        value = _value(tree.body, columns)
    if np.ndim(value) or not np.isfinite(value):
        raise ValueError(f"{expression!r} does not come to one finite number; take a mean, a sum or the like.")
    return float(value)


def _value(node: ast.expr, columns: Columns) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return np.float64(number)
        case ast.Name(id=name) if name in columns:
            return columns[name]
        case ast.Name(id=name):
            raise ValueError(f"There is no column {name!r}; there are {', '.join(columns)}.")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, columns), _value(right, columns))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(operand, columns))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, columns), _value(right, columns))
        case ast.Subscript(value=rows, slice=condition):
            return _picked(_value(rows, columns), _value(condition, columns))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return _applied(name, [_value(argument, columns) for argument in arguments])
    raise ValueError(f"{ast.unparse(node)!r} is not allowed here; functions are {', '.join(FUNCTIONS)}.")


def _picked(rows: Any, condition: Any) -> Any:
    if np.ndim(rows) != 1 or np.shape(condition) != np.shape(rows) or condition.dtype != bool:
        raise ValueError("Rows are picked by a condition on whole columns, such as volume[year < 1900].")
    return rows[condition]


def _applied(name: str, arguments: list[Any]) -> Any:
    takes = 2 if name == "slope" else 1
    if len(arguments) != takes:
        raise ValueError(f"{name} takes {takes}, not {len(arguments)} arguments.")
    if any(np.size(argument) == 0 for argument in arguments):
        raise ValueError(f"{name} was given no rows: the condition holds for none of them.")
    return FUNCTIONS[name](*arguments)
