"""Conditions typed as a line of text, over plain data (simpleeval).

    tool == "write" and arguments.path[:4] != "/tmp"
    event.type == "model_end" and usage.output_tokens > 2000

What a condition may name are values, not objects of ours: it can compare, add and look into them, and nothing else.
Calls are limited to `len`, `str`, `int`, `float`, `abs`, `min`, `max` and `any`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, plain_event
from agentnb.core.state import State

NAMES = ("event", "tool", "arguments", "phase", "turn", "cost", "usage", "values", "messages")
"""What a condition may name: the event as plain data; the tool and arguments of the call it is about (None, {}); where
its loop stands (phase, turn, values, the number of messages); what the run has used (cost, usage)."""

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (len, str, int, float, abs, min, max, any)
}

Holds = Callable[[Event, State, State, tuple[str | None, Mapping[str, Any]]], bool]


def compile_condition(text: str) -> Holds:
    """The condition as a function of the event, its loop's state, the run's, and the call it is about.

    Where it names something that is not there (an argument the call does not have, say) it does not hold. Raises
    UsageError where it is no expression, or asks for what it may not.
    """
    import simpleeval

    evaluator = simpleeval.EvalWithCompoundTypes(functions=dict(_FUNCTIONS))
    try:
        parsed = evaluator.parse(text)
    except (SyntaxError, simpleeval.InvalidExpression) as error:
        raise UsageError(f"{text!r} is no condition: {error}.") from error
    _check(text, parsed, evaluator.nodes)

    def holds(event: Event, state: State, run: State, call: tuple[str | None, Mapping[str, Any]]) -> bool:
        tool, arguments = call
        evaluator.names = {
            "event": plain_event(event),
            "tool": tool,
            "arguments": dict(arguments),
            "phase": state.phase,
            "turn": state.turn,
            "cost": run.usage.get("cost", 0),
            "usage": dict(run.usage),
            "values": state.values,
            "messages": len(state.messages),
        }
        try:
            return bool(evaluator.eval(text, previously_parsed=parsed))
        except (simpleeval.InvalidExpression, LookupError, TypeError, ValueError, ArithmeticError):
            return False  # of this event it cannot be said

    return holds


def _check(text: str, parsed: ast.AST, known: Mapping[type, Any]) -> None:
    for node in ast.walk(parsed):
        if isinstance(node, ast.expr) and type(node) not in known:
            raise UsageError(f"{text!r}: a condition has no {type(node).__name__}.")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            raise UsageError(f"{text!r}: a condition may call {', '.join(_FUNCTIONS)}, and nothing else.")
        if isinstance(node, ast.Name) and node.id not in (*NAMES, *_FUNCTIONS, "True", "False", "None"):
            raise UsageError(f"{text!r}: a condition knows {', '.join(NAMES)}, and no {node.id!r}.")
