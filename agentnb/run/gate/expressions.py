"""Conditions typed as a line of text, over plain data (simpleeval).

    tool == "write" and arguments.path[:4] != "/tmp"
    event.type == "model_end" and usage.output_tokens > 2000

What a condition may name are values, not objects of ours: it can compare, add and look into them, and nothing else. A
dot looks into data, as brackets do: `arguments.items` is the argument of that name. Calls are limited to `len`, `str`,
`int`, `float`, `abs`, `min`, `max` and `any`.

It is worked out at every event, so none may take long: arithmetic is of numbers, powers stay small, nothing is repeated
(`"x" * n`), and what would take more than a line is for a function.
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
from agentnb.run.gate.words import no_event
from agentnb.run.given import check_text, shown

Call = tuple[str | None, Mapping[str, Any]]
"""The tool of a call, and its arguments; None and {} where there is none."""


class Condition(NamedTuple):
    """A condition: which of `_NAMES` it names, and whether it holds at an event, in its loop, in the run, of a call.

    `tools` and `phases` are the texts that it compares with a call's tool, and with the phase.
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
"""What a condition may name: the event as plain data; the tool and arguments of the call it is about; where
its loop stands (phase, turn, values, the number of messages); what the run has used (cost, usage)."""

WHOLE = {"event": "event.type", "arguments": "arguments.path", "usage": "usage.output_tokens", "values": "values.draft"}
"""Those of them that have parts, each with one of its parts: they are never equal to a text or a number."""

LENGTH = 2000
"""Characters of a condition."""

DEPTH = 50
"""Levels of brackets, operators and dots in a condition: deeper, working it out would be a recursion too deep."""

BITS = 1024
"""How large a power may be: 2 ** 1024 and no more."""

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
    """The condition as a function of the event, its loop's state, the run's, and the call it is about.

    Where it names something that is not there (an argument the call does not have, say) it does not hold. Raises
    UsageError where it is no expression, or asks for what it may not.
    """
    check_text("A breakpoint's where", text)
    parsed = _parse(text)
    _check(text, parsed)
    named = frozenset(node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)).intersection(_NAMES)
    evaluator, invalid = _evaluator()
    one_at_a_time = threading.Lock()  # it holds the names it looks up

    def holds(event: Event, state: State, run: State, call: Call) -> bool:
        names = {name: _NAMES[name](event, state, run, call) for name in named}
        try:
            with one_at_a_time:
                evaluator.names = names
                return bool(evaluator.eval(text, previously_parsed=parsed.body))
        except (invalid, LookupError, TypeError, ValueError, ArithmeticError):
            return False  # of this event it cannot be said

    comparisons = [node for node in ast.walk(parsed) if isinstance(node, ast.Compare)]
    tools = frozenset(text for node in comparisons for text in _texts_compared(node, _is_named("tool")))
    phases = frozenset(text for node in comparisons for text in _texts_compared(node, _is_named("phase")))
    return Condition(named, holds, tools, phases)


def _parse(text: str) -> ast.Expression:
    if len(text) > LENGTH:
        raise UsageError(f"A condition has at most {LENGTH} characters, not {len(text)}: write a function instead.")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{shown(text)} is no condition: {getattr(error, 'msg', error)}.") from error
    except (RecursionError, MemoryError) as error:
        raise _too_deep(text) from error


def _too_deep(text: str) -> UsageError:
    return UsageError(f"{shown(text)} is nested too deeply for a condition, more than {DEPTH} levels.")


def _check(text: str, parsed: ast.AST) -> None:
    called: list[ast.AST] = []
    for depth, node in _walk(parsed):
        if depth > DEPTH:
            raise _too_deep(text)
        if not isinstance(node, _KNOWN) or (isinstance(node, ast.Dict) and None in node.keys):
            raise UsageError(f"{text!r}: a condition has no {type(node).__name__}.")
        if isinstance(node, ast.Constant) and not isinstance(node.value, _CONSTANTS):
            raise UsageError(f"{text!r}: a condition's values are JSON's, not {node.value!r}.")
        if isinstance(node, ast.Compare) and (name := _compared_whole(node)) is not None:
            raise UsageError(f"{text!r}: {name} has parts, and it is these that are compared, as in {WHOLE[name]}.")
        if isinstance(node, ast.Compare) and (types := set(_texts_compared(node, _is_type)).difference(EVENT_TYPES)):
            raise UsageError(f"{text!r}: {no_event(min(types))}")
        if isinstance(node, ast.Call):
            called.append(node.func)
            if not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS) or node.keywords:
                raise UsageError(f"{text!r}: a condition may call {', '.join(_FUNCTIONS)}, and nothing else.")
        if isinstance(node, ast.Name) and node.id not in _NAMES and node not in called:
            raise UsageError(f"{text!r}: a condition knows {', '.join(_NAMES)}, and no {node.id!r}.")


def _comparisons(node: ast.Compare) -> Iterator[tuple[ast.cmpop, ast.expr, ast.expr]]:
    """`a < b < c` is a < b, and b < c."""
    return zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False)


def _compared_whole(node: ast.Compare) -> str | None:
    """What has parts, and is compared with a text or a number: that would never hold, and nobody would know why."""
    for operation, left, right in _comparisons(node):
        looks_in = isinstance(operation, (ast.In, ast.NotIn))
        if isinstance(left, ast.Name) and left.id in WHOLE and (looks_in or _is_plain(right)):
            return left.id
        if isinstance(right, ast.Name) and right.id in WHOLE and not looks_in and _is_plain(left):
            return right.id
    return None


def _texts_compared(node: ast.Compare, is_it: Callable[[ast.AST], bool]) -> Iterator[str]:
    """The texts that a comparison compares with what `is_it` finds, an event's type or a tool."""
    for operation, left, right in _comparisons(node):
        if isinstance(operation, (ast.Eq, ast.NotEq)):
            found: list[ast.AST] = [left] if is_it(right) else [right] if is_it(left) else []
        elif isinstance(operation, (ast.In, ast.NotIn)) and is_it(left):
            found = list(right.elts) if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else []
        else:
            found = []
        yield from (one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _is_type(node: ast.AST) -> bool:
    """Whether this is the type of the event: `event.type`, or `event["type"]`."""
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
    """A node and all inside it, each behind what it is in, with how deep it lies; no deeper than is allowed."""
    yield depth, node
    if depth <= DEPTH:
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, depth + 1)


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{shown(value)} is no number")
    return value


def _of_numbers(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: function(_number(left), _number(right))


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > BITS:
        raise OverflowError("The power is too large.")
    return left**right


def _evaluator() -> tuple[Any, type[Exception]]:
    """What works a condition out, and the error of one that cannot be worked out."""
    import simpleeval

    class OverData(simpleeval.EvalWithCompoundTypes):  # type: ignore[misc]  # which has no types
        def _eval_attribute(self, node: ast.Attribute) -> Any:
            data = self._eval(node.value)
            if not isinstance(data, Mapping):
                raise LookupError(node.attr)
            return data[node.attr]

    of_numbers = {ast.Mult: operator.mul, ast.Mod: operator.mod, ast.Pow: _power}
    operators = {kind: function for kind, function in simpleeval.DEFAULT_OPERATORS.items() if kind in _OPERATORS}
    operators.update({kind: _of_numbers(function) for kind, function in of_numbers.items()})
    return OverData(operators=operators, functions=dict(_FUNCTIONS), names={}), simpleeval.InvalidExpression
