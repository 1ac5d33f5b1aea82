"""The tree of recordings: each recording with its forks and the positions at which they were forked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from agentnb.analysis.sources import Source, sources
from agentnb.core.events import RunEnd, RunStart
from agentnb.widgets.text import one_line, visible

WIDTH = 100
"""The maximum number of characters of a branch's line."""


@dataclass(slots=True)
class Branch:
    """A recording in the tree. `at` is the position in its parent at which it was forked, None if it is not a fork."""

    name: str
    run_id: str
    at: int | None
    events: int
    stop_reason: str | None
    output: Any = field(repr=False)
    forks: list[Branch] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        where = f"at {self.at}: " if self.at is not None else ""
        output = "" if self.output is None else f": {self.output}"
        return one_line(
            visible(f"{where}{self.name}, {self.events} events, {self.stop_reason or 'open'}{output}"), WIDTH
        )


class Branches(list[Branch]):
    """The roots of the tree, each with its forks. As the last line of a cell it is shown as a tree."""

    def __str__(self) -> str:
        return "\n".join(_lines(self)) or "no recordings"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(_markup(self)) if self else "<p>no recordings</p>"


def branches(of: Any) -> Branches:
    """Return the tree of recordings, by their forks.

    of: runs, snapshots or a store, as for `calls`. A fork is a root if its parent is not among them. If there are
    several recordings of one run (its snapshots), the longest is used. Raises UsageError if `of` is not a recording.
    """
    found: dict[str, tuple[Branch, str]] = {}
    for source in sources(of):
        known = found.get(source.events[0].run_id) if source.events else None
        if source.events and (known is None or known[0].events < len(source.events)):
            found[source.events[0].run_id] = _branch(source)
    roots = Branches()
    for branch, above in found.values():
        if above in found:
            found[above][0].forks.append(branch)
        else:
            roots.append(branch)
    for branch, _ in found.values():
        branch.forks.sort(key=lambda fork: fork.at or 0)
    return roots


def _branch(source: Source) -> tuple[Branch, str]:
    """Return the branch of a recording, and the id of the run that it was forked from ("" if it is not a fork)."""
    first, last = source.events[0], source.events[-1]
    above, _, at = first.forked_from.rpartition("@") if isinstance(first, RunStart) else ("", "", "")
    ended = last if isinstance(last, RunEnd) and not last.path else None
    reason, output = (ended.reason, ended.output) if ended is not None else (None, None)
    seq = int(at) if above and at.isdigit() else None
    return Branch(source.name, first.run_id, seq, len(source.events), reason, output), above


def _walk(branches: Sequence[Branch]) -> Iterator[tuple[Branch, list[bool]]]:
    """Yield each branch before its forks, with a flag for each of its ancestors and for itself, from the root.

    A flag is True if that branch is the last one among its siblings. The function is not recursive, because a chain of
    forks may exceed Python's recursion limit.
    """
    waiting = [(branch, [branch is branches[-1]]) for branch in reversed(branches)]
    while waiting:
        branch, lasts = waiting.pop()
        yield branch, lasts
        waiting += [(fork, [*lasts, fork is branch.forks[-1]]) for fork in reversed(branch.forks)]


def _lines(branches: Sequence[Branch]) -> Iterator[str]:
    for branch, lasts in _walk(branches):
        above = "".join("   " if is_last else "│  " for is_last in lasts[1:-1])
        here = ("└─ " if lasts[-1] else "├─ ") if len(lasts) > 1 else ""
        yield f"{above}{here}{branch}"


def _markup(branches: Sequence[Branch]) -> Iterator[str]:
    deep = 0
    for branch, lasts in _walk(branches):
        yield "</li></ul>" * (deep - len(lasts)) + ("</li>" if len(lasts) <= deep else "<ul>")
        yield f"<li>{escape(str(branch))}"
        deep = len(lasts)
    yield "</li></ul>" * deep or "<ul></ul>"
