"""The call graph: the calls of a request, and which of them read what others write.

A loop whose calls depend on one another can tell it from its state (`Design.call_graph`). It is a view: nothing is
decided by it, and it says what holds at that state and no more.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

CallStanding = Literal[
    "blocked",  # something it reads is not there
    "unblocked",  # everything is there, and it has not started
    "confirming",  # the loop is asked about it
    "waiting",  # a person is asked about it
    "running",
    "completed",
    "failed",
    "rejected",
]


class GraphCall(NamedTuple):
    """One call: its tool, how it stands, and what ties it to others.

    reads: the ids of the calls that write what it refers to. missing: what it refers to that is not there, as the model
    wrote it. writes: where its result goes. note: what went wrong, as JSON data. earlier: it was made by an earlier
    request, and is there because a call of this one reads what it wrote.
    """

    id: str
    tool: str
    standing: CallStanding
    reads: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    writes: str = ""
    note: Any = None
    earlier: bool = False


class CallGraph(NamedTuple):
    """The calls of one request, in the order they were made, behind those of earlier requests that they read."""

    request: int
    calls: tuple[GraphCall, ...]
