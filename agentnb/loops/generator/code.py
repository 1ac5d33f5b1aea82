"""The names that a generator's code mentions: one of them may be a function that it has not called yet."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from agentnb.core.loop import Design
from agentnb.loops.want import name_of


def names_in_code(function: Any) -> frozenset[str]:
    """The names in a function's code, and those of what they stand for, as far as Python can tell.

    What the code refers to may be called by a name of its own, or be a list or a dict of such things.
    Generators that it refers to are read too, for it may delegate to them (`yield from`).
    """
    names: set[str] = set()
    seen: set[int] = set()
    unread = [function]
    while unread:
        read = inspect.unwrap(unread.pop())
        code = getattr(read, "__code__", None)
        if id(read) in seen or not isinstance(code, CodeType):
            continue
        seen.add(id(read))
        names.update(_names(code))
        for value in _referred_to(read, code):
            for one in _each(value):
                if callable(one) or isinstance(one, Design):
                    names.add(name_of(one))
                if inspect.isgeneratorfunction(one):
                    unread.append(one)
    return frozenset(names)


def _names(code: CodeType) -> Iterator[str]:
    """The names in some code and in the functions defined inside it; also texts, for a tool is called by its name."""
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield constant.co_name
            yield from _names(constant)


def _referred_to(function: Any, code: CodeType) -> Iterator[Any]:
    """The values of the names that the code takes from around it."""
    cells = function.__closure__ or ()
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # defined later than the generator
            continue
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)


def _each(value: Any) -> Iterable[Any]:
    """A value, or what is in a list or a dict."""
    if isinstance(value, Mapping):
        return (*value.values(), *value)
    return value if isinstance(value, (list, tuple, set)) else (value,)
