"""References: how a call names what another call writes (SEMANTICS.md, 4. References).

A parameter that is as a whole such a text stands for data of the context: `†state.profile.name` is the value at a path
of the kind `state`. `A || B` is the first of them that is found, `A && B` needs both and is the last; `&&` binds
tighter. A text that begins with two daggers means itself, without the first. A key whose value is null is found.

In an output path the same signs say where a result goes: `A || B` to one of them (the first, unless the tool chooses),
`A && B` to each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agentnb.core.errors import InvalidArguments

DAGGER = "†"
MISSING: Any = object()
"""What is found where there is nothing."""

_PATH = re.compile(r"†([A-Za-z_][\w-]*)((?:\.[^\s.|&†]+)*)")


class Path(NamedTuple):
    """A place in the context: a kind of data, and the keys that lead to the value."""

    kind: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((f"{DAGGER}{self.kind}", *self.keys))

    def meets(self, other: Path) -> bool:
        """Whether one is the other, or a place inside it."""
        length = min(len(self.keys), len(other.keys))
        return self.kind == other.kind and self.keys[:length] == other.keys[:length]


class Expression(NamedTuple):
    """Alternatives, each of them paths that are all needed."""

    alternatives: tuple[tuple[Path, ...], ...]

    @property
    def paths(self) -> Iterator[Path]:
        """Every path it names."""
        return (path for alternative in self.alternatives for path in alternative)

    def __str__(self) -> str:
        return " || ".join(" && ".join(map(str, alternative)) for alternative in self.alternatives)


Look = Callable[[Path], Any]
"""Gives what stands at a path, or MISSING."""


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """The expression in `text`. Raises InvalidArguments where it is none."""
    return Expression(
        tuple(tuple(_parse_path(term, text) for term in part.split("&&")) for part in text.split("||")),
    )


def _parse_path(term: str, text: str) -> Path:
    matched = _PATH.fullmatch(term.strip())
    if matched is None:
        raise InvalidArguments(
            f"Malformed reference {text!r}: it must read {DAGGER}<kind>.<path>, or several of these joined by || or "
            f"&&; a text that begins with a dagger is written with two ({DAGGER}{DAGGER}...)."
        )
    return Path(matched[1], tuple(matched[2].split(".")[1:]))


def expressions_in(value: Any) -> Iterator[Expression]:
    """The references in a call's parameters. Raises InvalidArguments at one that is malformed."""
    if isinstance(value, str):
        if value.startswith(DAGGER) and not value.startswith(DAGGER * 2):
            yield parse_expression(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from expressions_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from expressions_in(item)


def find(expression: Expression, look: Look) -> Any:
    """The value of an expression, or MISSING."""
    for alternative in expression.alternatives:
        values = [look(path) for path in alternative]
        if all(value is not MISSING for value in values):
            return values[-1]
    return MISSING


def resolve(value: Any, look: Look) -> Any:
    """A call's parameters with data instead of references. Raises InvalidArguments where there is none."""
    if isinstance(value, str):
        if value.startswith(DAGGER * 2):
            return value[1:]
        if not value.startswith(DAGGER):
            return value
        expression = parse_expression(value)
        found = find(expression, look)
        if found is MISSING:
            raise InvalidArguments(f"unresolved reference {expression}")
        return copied(found)
    if isinstance(value, dict):
        return {key: resolve(item, look) for key, item in value.items()}
    return [resolve(item, look) for item in value] if isinstance(value, list) else value


def step_into(container: Any, key: str) -> Any:
    """The value under a key of an object, or at an index of a list; MISSING where there is none."""
    if isinstance(container, dict):
        return container.get(key, MISSING)
    if isinstance(container, list) and key.isdecimal() and int(key) < len(container):
        return container[int(key)]
    return MISSING


def at_path(container: Any, keys: Sequence[str]) -> Any:
    """The value that keys lead to; MISSING where they lead nowhere."""
    for key in keys:
        container = step_into(container, key)
    return container


def copied(value: Any) -> Any:
    """JSON data as a value of its own: what is written to the one is not written to the other."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value
