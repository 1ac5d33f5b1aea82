"""Expressions: conditions over plain data, typed as a line of text and evaluated with simpleeval.

    tool == "write" and arguments.path[:4] != "/tmp"
    event.type == "model_end" and usage.output_tokens > 2000

A condition names values, never objects of agentnb. It can compare them, calculate with them and access their parts. A
dot accesses data, as brackets do: `arguments.items` is the argument `items`, not a method. The only functions are
`len`, `str`, `int`, `float`, `abs`, `min`, `max` and `any`.

A condition is evaluated at every event, so it must be fast: multiplication accepts numbers only (no `"x" * n`), powers
are bounded, and the length of the text is limited. Use a function for anything longer.
"""

from __future__ import annotations

import ast
import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple

from agentnb.core.errors import UsageError
from agentnb.core.events import EVENT_TYPES, Event
from agentnb.core.state import State
from agentnb.run.gate.names import unknown_event
from agentnb.run.validation import check_text, shown

Call = tuple[str | None, Mapping[str, Any]]
"""The tool of a call and its arguments; None and {} for an event without a call."""


class Condition(NamedTuple):
    """A compiled condition.

    `names`: the names of `_NAMES` that it uses. `holds` returns True if the condition holds for an event, the state of
    its loop, the state of the run, and a call. `tools` and `phases`: the strings that it compares with the tool of a
    call, and with the phase.
    """

    names: frozenset[str]
    holds: Callable[[Event, State, State, Call], bool]
    tools: frozenset[str]
    phases: frozenset[str]


_NAMES: Mapping[str, Callable[[Event, State, State, Call], Any]] = {
    "event": lambda event, state, run, call: event.model_dump(mode="json"),  # with its defaults: `not event.is_error`
    "tool": lambda event, state, run, call: call[0],
    "arguments": lambda event, state, run, call: call[1],
    "phase": lambda event, state, run, call: event.phase if event.phase is not None else state.phase,
    "turn": lambda event, state, run, call: state.turn,
    "cost": lambda event, state, run, call: run.usage.get("cost", 0),
    "usage": lambda event, state, run, call: run.usage,
    "values": lambda event, state, run, call: state.values,
    "messages": lambda event, state, run, call: len(state.messages),
}
"""The names that a condition can use, with the function that returns the value: the event as plain data; the tool and
the arguments of its call; the state of its loop (phase, turn, values, number of messages); the usage of the run."""

PARTS = {"event": "event.type", "arguments": "arguments.path", "usage": "usage.output_tokens", "values": "values.draft"}
"""The names whose values have parts, each with an example. These values never equal a string or a number."""

LENGTH = 2000
"""The maximal number of characters of a condition."""

DEPTH = 50
"""The maximal depth of brackets, operators and dots in a condition. It bounds the recursion of the evaluation."""

BITS = 1024
"""The bound for a power of integers: the number of bits of the base, times the exponent."""

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (len, str, int, float, abs, min, max, any)
}
_OPERATORS: tuple[type[ast.AST], ...] = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub, ast.Not, ast.Invert,
    ast.BitAnd, ast.BitOr, ast.BitXor, *ast.cmpop.__subclasses__(),
)  # fmt: skip
_KNOWN = (
    *_OPERATORS, ast.Expression, ast.Load, ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Call,
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Dict,
)  # fmt: skip
_CONSTANTS = (str, int, float, NoneType)


def compile_condition(text: str) -> Condition:
    """Return the compiled condition.

    The condition does not hold for an event if its evaluation fails, for example if it names an argument that the call
    does not have. Raises UsageError if the text is not an expression, or uses syntax, names or functions that are not
    allowed.
    """
    check_text("A breakpoint's where", text)
    parsed = _parse(text)
    _check(text, parsed)
    named = frozenset(node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)).intersection(_NAMES)
    evaluator, invalid = _evaluator()
    one_at_a_time = threading.Lock()  # the evaluator stores the names of the current evaluation

    def holds(event: Event, state: State, run: State, call: Call) -> bool:
        names = {name: _NAMES[name](event, state, run, call) for name in named}
        try:
            with one_at_a_time:
                evaluator.names = names
                return bool(evaluator.eval(text, previously_parsed=parsed.body))
        except (invalid, LookupError, TypeError, ValueError, ArithmeticError):
            return False  # the condition cannot be evaluated for this event

    comparisons = [node for node in ast.walk(parsed) if isinstance(node, ast.Compare)]
    tools = frozenset(text for node in comparisons for text in _texts_compared(node, _is_named("tool")))
    phases = frozenset(text for node in comparisons for text in _texts_compared(node, _is_named("phase")))
    return Condition(named, holds, tools, phases)


def _parse(text: str) -> ast.Expression:
    if len(text) > LENGTH:
        raise UsageError(f"A condition has at most {LENGTH} characters, not {len(text)}. Write a function instead.")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{shown(text)} is not a condition: {getattr(error, 'msg', error)}.") from error
    except (RecursionError, MemoryError) as error:
        raise _too_deep(text) from error


def _too_deep(text: str) -> UsageError:
    return UsageError(f"{shown(text)} is nested more than {DEPTH} levels deep. Write a function instead.")


def _check(text: str, parsed: ast.AST) -> None:
    called: list[ast.AST] = []
    for depth, node in _walk(parsed):
        if depth > DEPTH:
            raise _too_deep(text)
        if not isinstance(node, _KNOWN) or (isinstance(node, ast.Dict) and None in node.keys):
            raise UsageError(f"{text!r}: a condition cannot contain {type(node).__name__}.")
        if isinstance(node, ast.Constant) and not isinstance(node.value, _CONSTANTS):
            raise UsageError(f"{text!r}: a value in a condition must be JSON, not {node.value!r}.")
        if isinstance(node, ast.Compare) and (name := _compared_object(node)) is not None:
            raise UsageError(f"{text!r}: {name} cannot be compared. Compare a part of it, as in {PARTS[name]}.")
        if isinstance(node, ast.Compare) and (types := set(_texts_compared(node, _is_type)).difference(EVENT_TYPES)):
            raise UsageError(f"{text!r}: {unknown_event(min(types))}")
        if isinstance(node, ast.Call):
            called.append(node.func)
            if not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS) or node.keywords:
                raise UsageError(f"{text!r}: a condition can call {', '.join(_FUNCTIONS)} only.")
        if isinstance(node, ast.Name) and node.id not in _NAMES and node not in called:
            raise UsageError(f"{text!r}: a condition has no name {node.id!r}; the names are {', '.join(_NAMES)}.")


def _comparisons(node: ast.Compare) -> Iterator[tuple[ast.cmpop, ast.expr, ast.expr]]:
    """Return the comparisons (operator, left, right) of a chain: `a < b < c` is a < b, and b < c."""
    return zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False)


def _compared_object(node: ast.Compare) -> str | None:
    """Return the name of a value with parts that is compared with a string or a number, or None.

    This comparison is refused: it would never hold, and the user would not see why.
    """
    for operation, left, right in _comparisons(node):
        looks_in = isinstance(operation, (ast.In, ast.NotIn))
        if isinstance(left, ast.Name) and left.id in PARTS and (looks_in or _is_plain(right)):
            return left.id
        if isinstance(right, ast.Name) and right.id in PARTS and not looks_in and _is_plain(left):
            return right.id
    return None


def _texts_compared(node: ast.Compare, is_it: Callable[[ast.AST], bool]) -> Iterator[str]:
    """Yield the strings that a comparison compares with the operand for which `is_it` returns True."""
    for operation, left, right in _comparisons(node):
        if isinstance(operation, (ast.Eq, ast.NotEq)):
            found: list[ast.AST] = [left] if is_it(right) else [right] if is_it(left) else []
        elif isinstance(operation, (ast.In, ast.NotIn)) and is_it(left):
            found = list(right.elts) if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else []
        else:
            found = []
        yield from (one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _is_type(node: ast.AST) -> bool:
    """Return True if the node is the type of the event: `event.type`, or `event["type"]`."""
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return False
    if not isinstance(node.value, ast.Name) or node.value.id != "event":
        return False
    if isinstance(node, ast.Attribute):
        return node.attr == "type"
    return isinstance(node.slice, ast.Constant) and node.slice.value == "type"


def _is_named(name: str) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, ast.Name) and node.id == name


def _is_plain(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is not None


def _walk(node: ast.AST, depth: int = 0) -> Iterator[tuple[int, ast.AST]]:
    """Yield (depth, node) for a node and its descendants, parents first, down to one level below `DEPTH`."""
    yield depth, node
    if depth <= DEPTH:
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, depth + 1)


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{shown(value)} is not a number")
    return value


def _of_numbers(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: function(_number(left), _number(right))


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > BITS:
        raise OverflowError("The power is too large.")
    return left**right


def _evaluator() -> tuple[Any, type[Exception]]:
    """Return the evaluator of conditions, and the class of the errors that it raises."""
    import simpleeval

    class OverData(simpleeval.EvalWithCompoundTypes):  # type: ignore[misc]  # simpleeval has no types
        def _eval_attribute(self, node: ast.Attribute) -> Any:
            data = self._eval(node.value)
            if not isinstance(data, Mapping):
                raise LookupError(node.attr)
            return data[node.attr]

    of_numbers = {ast.Mult: operator.mul, ast.Mod: operator.mod, ast.Pow: _power}
    operators = {kind: function for kind, function in simpleeval.DEFAULT_OPERATORS.items() if kind in _OPERATORS}
    operators.update({kind: _of_numbers(function) for kind, function in of_numbers.items()})
    return OverData(operators=operators, functions=dict(_FUNCTIONS), names={}), simpleeval.InvalidExpression
