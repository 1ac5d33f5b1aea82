"""Completion of the arguments of magics.

`%step` takes units, `%restore` and `%replay` take names and then loops, `%runs` takes stores. IPython calls a hook
chosen by the line's first word. JupyterLab asks the kernel, which asks IPython.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.error import TryNext

from agentnb.core.errors import AgentnbError
from agentnb.loops.base import Loop
from agentnb.notebook.commands import snapshot_names
from agentnb.notebook.stores import stores
from agentnb.run.gate.gate import UNITS
from agentnb.store import Store

Complete = Callable[[Any, str], list[str]]


def _units(shell: Any, line: str) -> list[str]:
    return list(UNITS) if _place(line) == 1 else []


def _names_and_loops(shell: Any, line: str) -> list[str]:
    if _place(line) == 1:
        return snapshot_names()
    if _place(line) == 2:
        return [name for name, value in shell.user_ns.items() if isinstance(value, Loop) and not name.startswith("_")]
    return []


def _stores(shell: Any, line: str) -> list[str]:
    if _place(line) != 1:
        return []
    variables = [name for name, value in shell.user_ns.items() if isinstance(value, Store) and not name.startswith("_")]
    return [*(found.where for found in stores()), *variables]


def _place(line: str) -> int:
    """Return the index of the word that is being typed; 0 is the magic itself."""
    return len(line.split()) - (not line[-1:].isspace())


_HOOKS: dict[str, Complete] = {
    "%step": _units,
    "%restore": _names_and_loops,
    "%replay": _names_and_loops,
    "%runs": _stores,
}
_loaded: set[int] = set()


def load_completion(shell: Any) -> None:
    """Complete the arguments of the magics in this shell. Further calls have no effect."""
    for magic, complete in _HOOKS.items():
        if id(shell) not in _loaded and not _hooked(shell, magic):
            shell.set_hook("complete_command", _hook(complete), str_key=magic)
    _loaded.add(id(shell))


def unload_completion(shell: Any) -> None:
    """Disable the completion in this shell; IPython's own completion remains."""
    _loaded.discard(id(shell))


def _hooked(shell: Any, magic: str) -> bool:
    hooks = shell.strdispatchers.get("complete_command")  # None if no hook was ever set
    return hooks is not None and any(True for _ in hooks.s_matches(magic))


def _hook(complete: Complete) -> Callable[[Any, Any], list[str]]:
    """Return an IPython hook that completes by `complete`, or leaves the completion to IPython if it is unloaded."""

    def completed(shell: Any, event: Any) -> list[str]:
        if id(shell) not in _loaded:  # unloaded: IPython cannot remove a hook
            raise TryNext
        try:
            found = complete(shell, event.text_until_cursor)
        except (AgentnbError, OSError):  # an unreadable store is reported when it is used
            raise TryNext from None
        return [name for name in found if name.startswith(event.symbol)]

    return completed
