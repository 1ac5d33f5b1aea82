"""References: how a call names data that another call writes (SEMANTICS.md, 4. References).

A parameter that consists of a reference alone stands for data of the context: `†state.profile.name` is the value at a
path of the kind `state`. `A || B` is the value at the first path that exists. `A && B` requires both paths, and is the
value at the last. `&&` has precedence over `||`. A string that starts with two daggers is that text with one dagger. A
key whose value is null exists.

In an output path the same operators choose where a result is written: `A || B` is one of the paths (the first, unless
the tool chooses), `A && B` is each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agentnb.core.errors import InvalidArguments

DAGGER = "†"
MISSING: Any = object()
"""The result of a lookup that finds nothing (null is a value)."""

_PATH = re.compile(r"†([A-Za-z_][\w-]*)((?:\.[^\s.|&†]+)*)")


class Path(NamedTuple):
    """A position in the context: a kind of data, and the keys that lead to the value."""

    kind: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((f"{DAGGER}{self.kind}", *self.keys))

    def meets(self, other: Path) -> bool:
        """Return True if the paths are equal, or one of them is inside the other."""
        length = min(len(self.keys), len(other.keys))
        return self.kind == other.kind and self.keys[:length] == other.keys[:length]

    def prefixes(self) -> list[Path]:
        """Return the path itself and each path that contains it, innermost first."""
        return [Path(self.kind, self.keys[:length]) for length in range(len(self.keys), -1, -1)]


class Expression(NamedTuple):
    """A reference as it is written: alternatives, each of which is one or several paths that are all needed."""

    alternatives: tuple[tuple[Path, ...], ...]

    @property
    def paths(self) -> Iterator[Path]:
        """All paths of all alternatives."""
        return (path for alternative in self.alternatives for path in alternative)

    def __str__(self) -> str:
        return " || ".join(" && ".join(map(str, alternative)) for alternative in self.alternatives)


Look = Callable[[Path], Any]
"""Returns the value at a path, or MISSING."""


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """Parse a reference or an output path. Raises InvalidArguments if it is malformed."""
    alternatives = []
    for alternative in text.split("||"):
        paths = []
        for term in alternative.split("&&"):
            matched = _PATH.fullmatch(term.strip())
            if matched is None:
                raise InvalidArguments(
                    f"Malformed reference {text!r}: it must read {DAGGER}<kind>.<path>, or several of these joined by "
                    f"|| or &&; a text that begins with a dagger is written with two ({DAGGER}{DAGGER}...)."
                )
            paths.append(Path(matched[1], tuple(matched[2].split(".")[1:])))
        alternatives.append(tuple(paths))
    return Expression(tuple(alternatives))


def expressions_in(value: Any) -> Iterator[Expression]:
    """Yield the references in a call's parameters. Raises InvalidArguments at the first malformed one."""
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
    """Return the value of an expression, or MISSING."""
    for alternative in expression.alternatives:
        values = [look(path) for path in alternative]
        if all(value is not MISSING for value in values):
            return values[-1]
    return MISSING


def resolve(value: Any, look: Look) -> Any:
    """Return a call's parameters with data in place of references. Raises InvalidArguments if data is missing."""
    if isinstance(value, str):
        if value.startswith(DAGGER * 2):
            return value[1:]
        if not value.startswith(DAGGER):
            return value
        expression = parse_expression(value)
        found = find(expression, look)
        if found is MISSING:
            raise InvalidArguments(f"unresolved reference {expression}")
        return copied_value(found)
    if isinstance(value, dict):
        return {key: resolve(item, look) for key, item in value.items()}
    return [resolve(item, look) for item in value] if isinstance(value, list) else value


def has_dagger(value: Any) -> bool:
    """Return True if `resolve` may change the value: it contains a string that starts with a dagger."""
    if isinstance(value, str):
        return value.startswith(DAGGER)
    if isinstance(value, dict):
        return any(map(has_dagger, value.values()))
    return isinstance(value, list) and any(map(has_dagger, value))


def step_into(container: Any, key: str) -> Any:
    """Return the value under a key of an object or at an index of a list; MISSING if there is none."""
    if isinstance(container, dict):
        return container.get(key, MISSING)
    if isinstance(container, list) and key.isdecimal() and int(key) < len(container):
        return container[int(key)]
    return MISSING


def at_path(container: Any, keys: Sequence[str]) -> Any:
    """Return the value that the keys lead to; MISSING if there is none."""
    for key in keys:
        container = step_into(container, key)
    return container


def copied_value(value: Any) -> Any:
    """Return a deep copy of JSON data."""
    if isinstance(value, dict):
        return {key: copied_value(item) for key, item in value.items()}
    return [copied_value(item) for item in value] if isinstance(value, list) else value
