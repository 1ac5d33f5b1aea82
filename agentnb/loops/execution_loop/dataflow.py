"""Plans: the calls of a request as an acyclic graph, sent to the next request (SEMANTICS.md, 9. Plans).

What a request calls is a strategy. It becomes a Plan where plans are enabled (`plan=`), its graph has no cycle, and
there is a next request: only then is it passed on, as a data message of the kind `plan` that takes the place of the
one before. A request that calls nothing leaves the plan as it is. Nothing is run because a plan says so: the model
follows it, extends it or drops it.

eager: planning is execution, each call starts as soon as it can. lazy: planning comes before execution; no call
starts before the answer is complete and its whole graph has been looked at, and where that has a cycle none of them
runs. A pause (a breakpoint at `model_end`) is then a look at the plan before any of it has happened.


Dataflow: which calls may start, and with what (SEMANTICS.md, 5. Algorithm).

A call is `free` when everything it refers to is there, `blocked` while something is not, and `broken` when it can never
run as it stands: a reference or an output path that is malformed, a kind of data that nobody writes, a tool that does
not exist. A free or broken call is looked at at once (a broken one is refused); a blocked one when something was
written.


The call graph of a tick: which calls read what others write (SEMANTICS.md, 4. References).

A call reads what another writes where one of its references and the other's output path lead to the same place, or one
of them to a place inside the other's: whoever reads `†state` reads `†state.name`. Every path of an expression counts,
also an alternative that is not taken. Calls of earlier requests are there where no call of this tick writes what is
read, as far back as the last `LOOKED_BACK` messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.graph import CallGraph, CallStanding, GraphCall
from agentnb.core.messages import Message
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.core.wanted import Effect
from agentnb.loops.execution_loop.context import Context, Read, Standing
from agentnb.loops.execution_loop.references import (
    DAGGER,
    MISSING,
    Expression,
    Path,
    expressions_in,
    find,
    parse_expression,
    resolve,
)
from agentnb.loops.execution_loop.tools import is_detached
from agentnb.loops.execution_loop.types import Call, parameters
from agentnb.loops.execution_loop.writes import error_of

Mode = Literal["eager", "lazy"]
MODES: tuple[Mode, ...] = ("eager", "lazy")


class Node(NamedTuple):
    """A call of a graph: what it refers to that is not there yet, and where it writes."""

    id: str
    instance: str | None
    reads: Sequence[Path]
    writes: Sequence[Path]


def find_cycle(nodes: Iterable[Node]) -> list[str]:
    """Calls of which each reads, at least in one alternative, what the one before writes; empty where none do.

    The places they meet at are nodes of the graph too: a thousand may write to one list, and a thousand read it.
    """
    graph: TopologicalSorter[Any] = TopologicalSorter()
    for node in nodes:
        for path in node.writes:
            graph.add(("at", path, node.instance), node.id)
            for above in upwards(path)[1:]:
                graph.add(("inside", above, node.instance), node.id)
        for path in node.reads:
            for instance in {None, node.instance}:  # an instance sees its own data, and everybody's
                places = [("at", place, instance) for place in upwards(path)]
                graph.add(node.id, ("inside", path, instance), *places)
    try:
        graph.prepare()
    except CycleError as error:
        return [item for item in error.args[1][:-1] if isinstance(item, str)]
    return []


def upwards(path: Path) -> list[Path]:
    """The place itself, and every place it is in."""
    return [Path(path.kind, path.keys[:length]) for length in range(len(path.keys), -1, -1)]


def plan_message(mode: Mode, state: State) -> Message:
    """The plan that the last request's calls are, for the next; which request it was is hidden from the model."""
    made = state.reply.message.tool_calls if state.reply is not None else ()
    data = {"mode": mode, "calls": [Call.made_of(call.name, call.arguments) for call in made]}
    fields = {"type": "data", "kind": "plan", "data": data, "_request": state.turn}
    return Message.of({"role": "data", "content": "", **fields})


def check_plans(messages: Sequence[Message]) -> None:
    """Look at the plans a run is given. Raises UsageError: of a cycle, of a malformed reference, of an instance."""
    for message in messages:
        if message.role == "data" and message.get("kind") == "plan":
            if message.get("_instance") is not None:
                raise UsageError("A plan is everybody's: it has no `_instance`.")
            calls = list(_planned(message.get("data")))
            try:
                cycle = find_cycle(_nodes(calls, Context.of(State(messages=list(messages)))))
            except InvalidArguments as error:
                raise UsageError(f"The plan cannot be followed: {error}") from error
            if cycle:
                raise UsageError(f"The plan has a cycle: {' and '.join(cycle)} wait for one another.")


def _planned(data: Any) -> Iterator[Mapping[str, Any]]:
    calls = data.get("calls") if isinstance(data, Mapping) else data
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping) and "_tool" in call:
            yield call


def _nodes(calls: Sequence[Mapping[str, Any]], context: Context) -> Iterator[Node]:
    for number, call in enumerate(calls, 1):
        path, instance = call.get("_outputPath"), call.get("_instance")
        needs = [
            need
            for need in expressions_in(parameters(call))
            if find(need, lambda path: context.look(path, instance)) is MISSING  # noqa: B023 - called at once
        ]
        yield Node(
            f"{call['_tool']} ({number})",
            instance,
            [path for need in needs for path in need.paths],
            list(parse_expression(path).paths) if path is not None else [],
        )


class Room:
    """What runs side by side: `most` calls in all, and none beside one that runs alone."""

    def __init__(self, most: int | None, runs_alone: Callable[[CallState], bool]) -> None:
        self._most = most
        self._runs_alone = runs_alone
        self._count = 0
        self._is_taken = False
        """Whether one is there that runs alone."""

    def add(self, call: CallState) -> None:
        """It runs."""
        self._count += 1
        self._is_taken = self._is_taken or self._runs_alone(call)

    def takes(self, call: CallState) -> bool:
        """Whether the call may run too; then it is one of those that do."""
        is_full = self._most is not None and self._count >= self._most
        if self._is_taken or is_full or (self._count and self._runs_alone(call)):
            return False
        self.add(call)
        return True


class Dataflow:
    """The calls of a run's tick, and the context they read."""

    def __init__(self, state: State, tools: Mapping[str, Tool] | None, *, lazy: bool) -> None:
        """Without `tools`, every name is taken for that of a tool. `lazy`: nothing starts before all is there."""
        self._lazy = lazy
        self.context = Context.of(state)
        self._state = state
        self._tools = tools

    def standing(self, call: CallState) -> Standing:
        """How a call stands that has not started."""
        if call.status == "running" or _is_edited(call) or _has_its_end(call):
            return "free"
        if self._lazy and (self._state.model == "asked" or self.cycle()):
            return "blocked" if self._state.model == "asked" else "broken"
        read = self._read(call)
        if read.version != self.context.version:
            read.version, read.standing = self.context.version, self._look(read)
        return read.standing

    def effects(self, most: int | None) -> list[Effect]:
        """The questions, the calls that run, and those that may run beside them, `most` in all.

        Those that nobody has been asked about yet are asked about all at once, and take no room meanwhile.
        """
        calls = [call for call in self._state.open.values() if call.status != "asking"]
        questions = [Effect("question", call.id) for call in self._state.open.values() if call.status == "asking"]
        begun = [call for call in calls if call.status == "running" or call.detached]
        room, admitted, asked = self._room(most), [], []
        for call in calls:
            if call.status == "running" or call.detached or self.standing(call) == "blocked":
                continue
            if call.status == "proposed":
                asked.append(call)
            elif self._may_begin(call, room):
                admitted.append(call)
        return [*questions, *(Effect("call", call.id) for call in (*begun, *admitted, *asked))]

    def with_room(self, calls: Iterable[CallState], most: int | None) -> list[CallState]:
        """Of calls that may run, those that may beside the ones that do."""
        room = self._room(most)
        return [call for call in calls if self._may_begin(call, room)]

    def _may_begin(self, call: CallState, room: Room) -> bool:
        return is_detached((self._tools or {}).get(call.name)) or room.takes(call)

    def _room(self, most: int | None) -> Room:
        room = Room(most, self._runs_alone)
        for call in self._state.open.values():
            if call.status == "running" and not call.detached:  # nothing waits for these, and they for nothing
                room.add(call)
        return room

    def _runs_alone(self, call: CallState) -> bool:
        tool = self._tools.get(call.name) if self._tools is not None else None
        return tool is not None and tool.sequential

    def _read(self, call: CallState) -> Read:
        made = call.made
        read = self.context.turn.read.get(call.id)
        if read is None or read.made is not made:
            read = self.context.turn.read[call.id] = Read(made)
        return read

    def _look(self, read: Read) -> Standing:
        if read.fault is not None or (self._tools is not None and read.made.name not in self._tools):
            return "broken"
        missing = self._missing(read)
        if not missing:
            return "free"
        if self._state.model == "asked":  # a call that writes it may still come
            return "blocked"
        return "broken" if any(self._unknown_kinds(need) for need in missing) else "blocked"

    def _at(self, read: Read, path: Path) -> Any:
        return self.context.look(path, read.instance)

    def _unknown_kinds(self, need: Expression) -> set[str]:
        """The kinds that nobody writes, and without which it is not found: another alternative may still be."""
        strange = {path.kind for path in need.paths if not self.context.knows(path.kind)}
        if not strange:  # as it nearly always is: what all the calls write is not looked through for each that waits
            return strange
        strange -= {path.kind for call in self._state.calls.values() for path in self._read(call).writes}
        unknown = [{path.kind for path in alternative} & strange for alternative in need.alternatives]
        return set().union(*unknown) if all(unknown) else set()

    def arguments(self, call: CallState) -> dict[str, Any]:
        """What the call runs with as things stand. Raises InvalidArguments where it cannot run."""
        if call.status == "running" or _is_edited(call):
            return call.arguments
        read = self._read(call)
        if read.fault is not None:
            raise InvalidArguments(read.fault)
        if self._lazy and (cycle := self.cycle()):
            raise InvalidArguments(
                f"The calls have a cycle, and none was run: {' and '.join(cycle)} wait for one another."
            )
        if self._tools is not None and call.name not in self._tools:
            return call.arguments  # it is refused for that, and needs no data
        if not read.needs and len(read.parameters) == len(call.arguments) and not _has_dagger(read.parameters):
            return call.arguments
        if read.needs and self.standing(call) == "broken" and (why := self.why_unresolved(call)):
            raise InvalidArguments(why)
        arguments: dict[str, Any] = resolve(read.parameters, lambda path: self._at(read, path))
        return arguments

    def cycle(self) -> Sequence[str]:
        """The calls of the answer that wait for one another, as it was when somebody first looked."""
        turn = self.context.turn
        if turn.cycle is None:
            reads = [(call, self._read(call)) for call in self._state.calls.values() if not call.let_go]
            turn.cycle = find_cycle(
                Node(call.id, read.instance, [path for need in self._missing(read) for path in need.paths], read.writes)
                for call, read in reads
            )
        return turn.cycle

    def needs(self, call: CallState) -> Sequence[Expression]:
        """What a call refers to."""
        return self._read(call).needs

    def writes(self, call: CallState) -> Sequence[Path]:
        """Where its result may go."""
        return self._read(call).writes

    def missing(self, call: CallState) -> Sequence[Expression]:
        """What it refers to that is not there."""
        return self._missing(self._read(call))

    def _missing(self, read: Read) -> list[Expression]:
        return [need for need in read.needs if find(need, lambda path: self._at(read, path)) is MISSING]

    def why_unresolved(self, call: CallState) -> str | None:
        """What a call waits for, in words for the model; None where it waits for nothing."""
        read = self._read(call)
        missing = self._missing(read)
        if not missing:
            return None
        unknown = {kind for need in missing for kind in self._unknown_kinds(need)}
        words = f"unresolved reference {', '.join(map(str, missing))}: nothing was written there"
        if running := [f"{call.id} ({call.name})" for call in self._detached_writers(missing)]:
            words = f"{words} yet, since {', '.join(running)} runs on by itself"
        return f"{words}; unknown kind {', '.join(sorted(unknown))}" if unknown else words

    def _detached_writers(self, missing: Sequence[Expression]) -> list[CallState]:
        paths = [path for need in missing for path in need.paths]
        return [
            call
            for call in self._state.open.values()
            if call.detached and any(path.meets(to) for path in paths for to in self._read(call).writes)
        ]


def _is_edited(call: CallState) -> bool:
    """Whether a person or a policy has given the arguments: they stand as they are."""
    return call.arguments is not call.made.arguments


def _has_its_end(call: CallState) -> bool:
    """Whether it was decided how the call ends, and only its end is missing."""
    return call.decision is not None and call.decision.decision in ("reject", "answer")


def _has_dagger(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith(DAGGER)
    if isinstance(value, dict):
        return any(map(_has_dagger, value.values()))
    return isinstance(value, list) and any(map(_has_dagger, value))


LOOKED_BACK = 300
"""Messages of the history in which the call is looked for that wrote what is read."""
READ = 40
"""Calls that one call is said to read at one path at most: a thousand may write to one list, and a thousand read it."""


def call_graph(flow: Dataflow, state: State, asked_about: Collection[str]) -> CallGraph:
    """The graph of the tick that the state is in, or that has just ended."""
    return _Graph(flow, state, asked_about).read()


class _Graph:
    def __init__(self, flow: Dataflow, state: State, asked_about: Collection[str]) -> None:
        self._state = state
        self._flow = flow
        self._asked_about = asked_about
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
