"""Loop: the class every design is a subclass of, and the one to subclass for a loop of your own.

A loop is its pure decision (`agentnb.core.loop.Design`) and the way to start it. Starting needs a driver, which lives a
layer above; it is put in here when agentnb is imported, so that a loop module knows the core and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.loop import Design

if TYPE_CHECKING:
    from agentnb.run import Run
    from agentnb.store import Store

_make_run: Callable[..., Any] | None = None


def use_driver(make_run: Callable[..., Any]) -> None:
    """Make loops start by calling `make_run(loop, input=..., ...)`."""
    global _make_run
    _make_run = make_run


class Loop(Design):
    """A loop that can be started. Override `advance`; declare `phases`."""

    def __init__(
        self, llm: Any = None, tools: Sequence[Any] | Mapping[str, Any] = (), *, name: str | None = None
    ) -> None:
        self.llm = llm
        self.tools = tools
        if not isinstance(tools, Mapping):
            _check_names({id(tool): tool.name for tool in tools if isinstance(tool, Design)}.values())
        self.name = name or _snake_case(type(self).__name__)

    def start(
        self,
        input: Any,
        *,
        name: str | None = None,
        store: Store | None = None,
        approve: Any = None,
        breakpoints: Sequence[Any] = (),
        limits: Mapping[str, float] | None = None,
    ) -> Run:
        """A run on this input; nothing has happened yet.

        name, store: keep the run's journal in the store, under that name. approve: who decides about calls before a
        person is asked; True, False, a callable of the call, or rules (`agentnb.run.policy`). breakpoints: pause at
        these; callables of `(event, state)`, or an event type, a tool's name, or a phase. limits: end at these; `turns,
        calls, seconds, tokens, cost`.
        """
        return self._start(input=input, name=name, store=store, approve=approve, breakpoints=breakpoints, limits=limits)

    def _start(self, **options: Any) -> Run:
        assert _make_run is not None  # agentnb/__init__.py puts it in before any loop can be made
        run: Run = _make_run(self, **options)
        return run


def _check_names(names: Iterable[str]) -> None:
    listed = sorted(names)
    if len(set(listed)) < len(listed):
        raise InvalidArguments(f"Loops beside each other may not share a name: {', '.join(listed)}.")


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
