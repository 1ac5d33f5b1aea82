"""What is called where a tool is, and its words: of functions, of parts of them, and of objects that can be called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def whole_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of which some arguments are given already by functools.partial: it has the name and the words."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def called_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when it is called: of an object that is none of Python's functions, its class's `__call__`."""
    whole = whole_of(function)
    if inspect.isroutine(whole) or inspect.isclass(whole) or hasattr(whole, "__wrapped__"):
        return whole
    called: Callable[..., Any] = whole.__call__  # type: ignore[operator]  # mypy knows it of objects only
    return called


def words_of(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring's words for the function, and for each parameter."""
    whole, called = whole_of(function), called_in(function)
    text = inspect.getdoc(called if called is whole or called.__doc__ else whole)
    if not text:
        return "", {}
    import docstring_parser  # needed when a tool is made, and not when agentnb is imported

    parsed = docstring_parser.parse(text)
    words = "\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)
    described = {}
    for parameter in parsed.params:
        for name in parameter.arg_name.split(","):  # NumPy's style describes several at once: `x, y : float`
            if parameter.description:
                described[name.strip()] = parameter.description
    return words, described
