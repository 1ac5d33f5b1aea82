"""The call graph of a tick: which calls read what others write (SEMANTICS.md, 4. References).

A call reads what another writes where one of its references and the other's output path lead to the same place, or one
of them to a place inside the other's: whoever reads `†state` reads `†state.name`. Every path of an expression counts,
also an alternative that is not taken. Calls of earlier requests are there where no call of this tick writes what is
read, as far back as the last `LOOKED_BACK` messages.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from agentnb.core.graph import CallGraph, CallStanding, GraphCall
from agentnb.core.state import CallState, State
from agentnb.loops.execution_loop.messages import error_of
from agentnb.loops.execution_loop.plan import upwards
from agentnb.loops.execution_loop.references import Path, parse_expression

if TYPE_CHECKING:
    from agentnb.loops.execution_loop import ExecutionLoop

LOOKED_BACK = 300
"""Messages of the history in which the call is looked for that wrote what is read."""
READ = 40
"""Calls that one call is said to read at one path at most: a thousand may write to one list, and a thousand read it."""


def call_graph(loop: ExecutionLoop, state: State) -> CallGraph:
    """The graph of the tick that the state is in, or that has just ended."""
    return _Graph(loop, state).read()


class _Graph:
    def __init__(self, loop: ExecutionLoop, state: State) -> None:
        self._state = state
        self._flow = loop.flow(state)
        wanted = loop.wanted(state) if loop.before_call is not None and not state.paused else ()
        self._asked_about = {effect.id for effect in wanted if effect.kind == "call"}
        self._calls = [call for call in state.calls.values() if not call.hidden]
        self._at: dict[Path, list[CallState]] = {}
        self._inside: dict[Path, list[CallState]] = {}
        self._earlier: dict[str, GraphCall] = {}
        for call in self._calls:
            for path in self._flow.writes(call):
                self._at.setdefault(path, []).append(call)
                for above in upwards(path)[1:]:
                    self._inside.setdefault(above, []).append(call)

    def read(self) -> CallGraph:
        calls = [self._read(call) for call in self._calls]
        return CallGraph(self._state.turn, (*self._earlier.values(), *calls))

    def _read(self, call: CallState) -> GraphCall:
        reads: dict[str, None] = {}
        for expression in self._flow.needs(call):
            for path in expression.paths:
                reads.update(dict.fromkeys(self._writers(call, path)))
        standing, error = self._standing(call), error_of(call)
        return GraphCall(
            id=call.id,
            tool=call.name,
            standing=standing,
            reads=tuple(reads),
            missing=tuple(map(str, self._flow.missing(call))) if standing == "blocked" else (),
            writes=str(_said(call, "_outputPath") or ""),
            note=error["data"]["error"] if error is not None else None,
        )

    def _standing(self, call: CallState) -> CallStanding:
        if call.end is not None:
            if not call.end.is_error:
                return "completed"
            return "rejected" if call.end.outcome in ("rejected", "blocked") else "failed"
        if call.status == "asking":
            return "waiting"
        if call.status == "running":
            return "running"
        if self._flow.standing(call) != "free":
            return "blocked"
        return "confirming" if call.decision is None and call.id in self._asked_about else "unblocked"

    def _writers(self, call: CallState, path: Path) -> list[str]:
        instance = _said(call, "_instance")
        places = chain.from_iterable(
            [*(self._at.get(place, ()) for place in upwards(path)), self._inside.get(path, ())]
        )
        ids = (one.id for one in places if one is not call and _said(one, "_instance") in (None, instance))
        return list(islice(ids, READ)) or self._earlier_writer(path, instance)

    def _earlier_writer(self, path: Path, instance: str | None) -> list[str]:
        known = self._flow.context.turn.earlier
        if (path, instance) not in known:  # once for a turn: what was written before it stays as it is
            known[path, instance] = _earlier_writer(self._state, path, instance)
        if (earlier := known[path, instance]) is None:
            return []
        self._earlier[earlier.id] = earlier
        return [earlier.id]


def _earlier_writer(state: State, path: Path, instance: str | None) -> GraphCall | None:
    for message in reversed(state.messages[-LOOKED_BACK:]):
        if message.role == "data" and message.get("_instance") in (None, instance):
            made, to = message.get("_call") or {}, message.get("_outputPath")
            is_earlier = made.get("_id") is not None and made["_id"] not in state.calls
            if to and is_earlier and path.meets(next(parse_expression(to).paths)):
                return GraphCall(made["_id"], str(made.get("_tool", "")), "completed", writes=to, earlier=True)
    return None


def _said(call: CallState, name: str) -> Any:
    return call.made.arguments.get(name)
