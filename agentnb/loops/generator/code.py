"""The names in a generator's code. They include the names of functions that it may call later."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from agentnb.core.loop import Design
from agentnb.loops.want import name_of


def names_in_code(function: Any) -> frozenset[str]:
    """Return the names in a function's code, and the names of the callables and loops that it refers to.

    An object may have another name than the variable that refers to it, and may be an item of a list or dict. Generator
    functions that the code refers to are read too, because it may delegate to them (`yield from`).
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
        # Add the names of callables and loops that the code refers to; read its generator functions next.
        for value in _referred_to(read, code):
            for one in _each(value):
                if callable(one) or isinstance(one, Design):
                    names.add(name_of(one))
                if inspect.isgeneratorfunction(one):
                    unread.append(one)
    return frozenset(names)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in a code object and in the functions defined inside it.

    String constants are included, because a tool may be called by its name.
    """
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield constant.co_name
            yield from _names(constant)


def _referred_to(function: Any, code: CodeType) -> Iterator[Any]:
    """Yield the values of the closure variables and globals that the code uses."""
    cells = function.__closure__ or ()
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)


def _each(value: Any) -> Iterable[Any]:
    """Return the items of a list, tuple, set or dict (keys and values), or the single value."""
    if isinstance(value, Mapping):
        return (*value.values(), *value)
    return value if isinstance(value, (list, tuple, set)) else (value,)
