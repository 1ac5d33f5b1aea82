"""The call graph: the calls of a request, and which of them read the results of others.

A loop whose calls depend on one another can compute it from its state (`Calls.call_graph`). It is only a view of that
state: no decision uses it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

GraphStatus = Literal[
    "blocked",  # data that it reads is missing
    "unblocked",  # all data that it reads exists, and it has not started
    "confirming",  # the loop is asked to confirm it
    "waiting",  # a person is asked about it
    "running",
    "completed",
    "failed",
    "rejected",
]


class GraphCall(NamedTuple):
    """One call: its tool, its status, and its relations to other calls.

    reads: the ids of the calls that write the data it refers to. missing: its references to data that does not exist
    yet, as the model wrote them. writes: the path that its result is written to. note: the error, as JSON data.
    earlier: it was made by an earlier request, and is included because a call of the current request reads its result.
    """

    id: str
    tool: str
    status: GraphStatus
    reads: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    writes: str = ""
    note: Any = None
    earlier: bool = False


class CallDependencies(NamedTuple):
    """The calls of one request, in the order they were made, after those of earlier requests that they read."""

    request: int
    calls: tuple[GraphCall, ...]
