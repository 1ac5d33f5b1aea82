"""Which recording was forked from which, and where: the branches of what was tried, as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from agentnb.analysis.sources import Source, sources
from agentnb.core.events import RunEnd, RunStart
from agentnb.widgets.text import one_line, visible

WIDTH = 100
"""Characters of what is told of a branch."""


@dataclass(slots=True)
class Branch:
    """A recording in the tree: `at` is the event of the one above from which it departs, None for one of its own."""

    name: str
    run_id: str
    at: int | None
    events: int
    stop_reason: str | None
    output: Any = field(repr=False)
    forks: list[Branch] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        where = f"at {self.at}: " if self.at is not None else ""
        came_to = "" if self.output is None else f": {self.output}"
        return one_line(
            visible(f"{where}{self.name}, {self.events} events, {self.stop_reason or 'open'}{came_to}"), WIDTH
        )


class Branches(list[Branch]):
    """The recordings that are forks of none here, each with its forks. As the last line of a cell it is a tree."""

    def __str__(self) -> str:
        return "\n".join(line for branch in self for line in _lines(branch, "", ""))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<ul>{''.join(_item(branch) for branch in self)}</ul>"


def branches(of: Any) -> Branches:
    """The tree of recordings: runs, snapshots, a store. A fork of one that is not among them stands by itself."""
    found = {source.events[0].run_id: _branch(source) for source in sources(of) if source.events}
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
    """The recording, and the id of the one that it was forked from."""
    first, last = source.events[0], source.events[-1]
    above, _, at = first.forked_from.rpartition("@") if isinstance(first, RunStart) else ("", "", "")
    ended = last if isinstance(last, RunEnd) and not last.path else None
    reason, output = (ended.reason, ended.output) if ended is not None else (None, None)
    return Branch(source.name, first.run_id, int(at) if above else None, len(source.events), reason, output), above


def _lines(branch: Branch, here: str, below: str) -> Iterator[str]:
    yield f"{here}{branch}"
    for fork in branch.forks:
        is_last = fork is branch.forks[-1]
        yield from _lines(fork, below + ("└─ " if is_last else "├─ "), below + ("   " if is_last else "│  "))


def _item(branch: Branch) -> str:
    inside = f"<ul>{''.join(_item(fork) for fork in branch.forks)}</ul>" if branch.forks else ""
    return f"<li>{escape(str(branch))}{inside}</li>"
