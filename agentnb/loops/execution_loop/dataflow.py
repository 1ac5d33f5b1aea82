"""Dataflow: the calls that may start, their arguments, cycles, plans, call graph (SEMANTICS.md, 5. Algorithm).

A call is `free` if everything it refers to exists, `blocked` if something is missing, and `broken` if it can never run
as it is: a malformed reference or output path, an unknown kind of data, an unknown tool. Free and broken calls are
checked immediately (broken ones are refused), blocked ones after each write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.graph import CallDependencies, GraphCall, GraphStatus
from agentnb.core.messages import Message
from agentnb.core.required_effects import Effect
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.loops.execution_loop.context import Context, ParsedCall, Readiness
from agentnb.loops.execution_loop.references import (
    MISSING,
    Expression,
    Path,
    expressions_in,
    find,
    has_dagger,
    parse_expression,
    resolve,
)
from agentnb.loops.execution_loop.tools import is_detached
from agentnb.loops.execution_loop.types import Call, parameters
from agentnb.loops.execution_loop.writes import error_of

# -- which calls may start -----------------------------------------------------------------------------------------


class Dataflow:
    """The calls of a run's current turn, and the context that they read."""

    def __init__(self, state: State, tools: Mapping[str, Tool] | None = None, *, lazy: bool = False) -> None:
        """Read the calls at a state.

        tools: by name. None if they are not known: then every name counts as the name of a tool. lazy: no call starts
        before the answer is complete.
        """
        self.context = Context.of(state)
        self.tools = tools
        self._state = state
        self._lazy = lazy

    def readiness(self, call: CallState) -> Readiness:
        """Return the readiness of a call: free, blocked or broken."""
        # A person or a policy gave its arguments or its result.
        is_answered = call.decision is not None and call.decision.decision in ("reject", "answer")
        if call.status == "running" or _is_edited(call) or is_answered:
            return "free"
        # With a lazy plan, no call starts before the answer is complete, and none if the calls have a cycle.
        is_asked = self._state.model == "asked"
        if self._lazy and (is_asked or self.cycle()):
            return "blocked" if is_asked else "broken"

        # Otherwise it depends on the context, and holds until that changes.
        parsed = self._parsed(call)
        if parsed.version == self.context.version:
            return parsed.readiness
        parsed.version = self.context.version
        if parsed.fault is not None or (self.tools is not None and parsed.made.name not in self.tools):
            parsed.readiness = "broken"
        elif not (missing := self._missing(parsed)):
            parsed.readiness = "free"
        elif is_asked:  # a call that writes the missing data may still arrive
            parsed.readiness = "blocked"
        else:
            parsed.readiness = "broken" if any(self._unknown_kinds(need) for need in missing) else "blocked"
        return parsed.readiness

    def arguments(self, call: CallState) -> dict[str, Any]:
        """Return the call's arguments with data in place of references. Raises InvalidArguments if it cannot run."""
        if call.status == "running" or _is_edited(call):
            return call.arguments
        parsed = self._parsed(call)
        if parsed.fault is not None:
            raise InvalidArguments(parsed.fault)
        if self._lazy and (cycle := self.cycle()):
            raise InvalidArguments(
                f"The calls have a cycle, and none was run: {' and '.join(cycle)} wait for one another."
            )
        if self.tools is not None and call.name not in self.tools:
            return call.arguments  # it will be refused because the tool is unknown
        if not parsed.needs and len(parsed.parameters) == len(call.arguments) and not has_dagger(parsed.parameters):
            return call.arguments
        if parsed.needs and self.readiness(call) == "broken" and (why := self.why_unresolved(call)):
            raise InvalidArguments(why)
        arguments: dict[str, Any] = resolve(parsed.parameters, lambda path: self.context.look(path, parsed.instance))
        return arguments

    def why_unresolved(self, call: CallState) -> str | None:
        """Return a text for the model that names the data that the call waits for; None if it waits for none."""
        missing = self.missing(call)
        if not missing:
            return None
        reason = f"unresolved reference {', '.join(map(str, missing))}: nothing was written there"

        # Detached calls that may still write it.
        paths = [path for need in missing for path in need.paths]
        detached = [one for one in self._state.open.values() if one.detached]
        writers = [one for one in detached if any(path.meets(to) for path in paths for to in self.writes(one))]
        if writers:
            names = ", ".join(f"{one.id} ({one.name})" for one in writers)
            reason = f"{reason} yet, since {names} runs on by itself"

        unknown = {kind for need in missing for kind in self._unknown_kinds(need)}
        return f"{reason}; unknown kind {', '.join(sorted(unknown))}" if unknown else reason

    def cycle(self) -> Sequence[str]:
        """Return the ids of the calls that wait for each other. Computed once in a turn, when it is first needed."""
        turn = self.context.turn
        if turn.cycle is None:
            calls = [(call, self._parsed(call)) for call in self._state.calls.values() if not call.let_go]
            turn.cycle = find_cycle(
                Node(call.id, parsed.instance, _paths_of(self._missing(parsed)), parsed.writes)
                for call, parsed in calls
            )
        return turn.cycle

    def needs(self, call: CallState) -> Sequence[Expression]:
        """Return the references of a call."""
        return self._parsed(call).needs

    def missing(self, call: CallState) -> Sequence[Expression]:
        """Return the references of a call to data that does not exist yet."""
        return self._missing(self._parsed(call))

    def writes(self, call: CallState) -> Sequence[Path]:
        """Return the paths that a call's result may be written to."""
        return self._parsed(call).writes

    def _parsed(self, call: CallState) -> ParsedCall:
        parsed = self.context.turn.parsed.get(call.id)
        if parsed is None or parsed.made is not call.made:
            parsed = self.context.turn.parsed[call.id] = ParsedCall(call.made)
        return parsed

    def _missing(self, parsed: ParsedCall) -> list[Expression]:
        return _missing(parsed.needs, self.context, parsed.instance)

    def _unknown_kinds(self, need: Expression) -> set[str]:
        """Return the unknown kinds of data in a reference; empty if one of its alternatives has only known kinds.

        A kind is unknown if there is no data of it and no call of the turn writes it.
        """
        unknown = {path.kind for path in need.paths if not self.context.knows(path.kind)}
        if not unknown:  # the usual case; it saves a pass over all calls for each call that waits
            return unknown
        unknown -= {path.kind for call in self._state.calls.values() for path in self.writes(call)}
        in_each = [{path.kind for path in alternative} & unknown for alternative in need.alternatives]
        return set().union(*in_each) if all(in_each) else set()

    # -- the concurrency limit -------------------------------------------------------------------------------------

    def effects(self, limit: int | None) -> list[Effect]:
        """Return the required effects: questions, running calls, and calls to start or check.

        limit: maximal number of calls that run concurrently. Calls that were not checked yet are all checked; they do
        not count against the limit.
        """
        slots = self._slots(limit)
        questions, running, starting, checking = [], [], [], []
        for call in self._state.open.values():
            if call.status == "asking":
                questions.append(Effect("question", call.id))
            elif call.status == "running" or call.detached:
                running.append(Effect("call", call.id))
            elif self.readiness(call) == "blocked":
                continue
            elif call.status == "proposed":
                checking.append(Effect("call", call.id))
            elif self._may_start(call, slots):
                starting.append(Effect("call", call.id))
        return [*questions, *running, *starting, *checking]

    def admitted(self, calls: Iterable[CallState], limit: int | None) -> list[CallState]:
        """Return those of the checked calls that may start now under the concurrency limit."""
        slots = self._slots(limit)
        return [call for call in calls if self._may_start(call, slots)]

    def _may_start(self, call: CallState, slots: _Slots) -> bool:
        tool = (self.tools or {}).get(call.name)
        return is_detached(tool) or slots.take(runs_alone=tool is not None and tool.sequential)

    def _slots(self, limit: int | None) -> _Slots:
        """Return the concurrency that the running calls leave. Detached calls do not count."""
        slots = _Slots(limit)
        for call in self._state.open.values():
            if call.status == "running" and not call.detached:
                tool = (self.tools or {}).get(call.name)
                slots.running += 1
                slots.is_exclusive = slots.is_exclusive or (tool is not None and tool.sequential)
        return slots


class _Slots:
    """The slots for concurrent calls: at most `limit`, and only one while a call that must run alone is running."""

    def __init__(self, limit: int | None) -> None:
        self.running = 0
        self.is_exclusive = False
        """True if a call that must run alone is running."""
        self._limit = limit

    def take(self, *, runs_alone: bool) -> bool:
        """Take a slot for one more call. Returns False if it may not run now."""
        is_full = self._limit is not None and self.running >= self._limit
        if is_full or self.is_exclusive or (self.running and runs_alone):
            return False
        self.running += 1
        self.is_exclusive = runs_alone
        return True


def _is_edited(call: CallState) -> bool:
    """Return True if a person or a policy gave the arguments. These are used unchanged."""
    return call.arguments is not call.made.arguments


def _missing(needs: Iterable[Expression], context: Context, instance: str | None) -> list[Expression]:
    return [need for need in needs if find(need, lambda path: context.look(path, instance)) is MISSING]


def _paths_of(needs: Iterable[Expression]) -> list[Path]:
    return [path for need in needs for path in need.paths]


# -- cycles --------------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A call in a graph: the missing paths that it refers to, and the paths that it writes."""

    id: str
    instance: str | None
    reads: Sequence[Path]
    writes: Sequence[Path]


def find_cycle(nodes: Iterable[Node]) -> list[str]:
    """Return the ids of the calls in a cycle: each reads what the call before it writes. Empty without a cycle.

    A path in any alternative of a reference counts. Paths are nodes of the graph too, so that its size is linear: a
    thousand calls may write to one list, and a thousand read it.
    """
    graph: TopologicalSorter[Any] = TopologicalSorter()
    for node in nodes:
        for path in node.writes:
            graph.add(("at", path, node.instance), node.id)
            for above in path.prefixes()[1:]:
                graph.add(("inside", above, node.instance), node.id)
        for path in node.reads:
            for instance in {None, node.instance}:  # an instance sees its own data and data without an instance
                positions = [("at", prefix, instance) for prefix in path.prefixes()]
                graph.add(node.id, ("inside", path, instance), *positions)
    try:
        graph.prepare()
    except CycleError as error:
        return [item for item in error.args[1][:-1] if isinstance(item, str)]
    return []


# -- plans ---------------------------------------------------------------------------------------------------------

Mode = Literal["eager", "lazy"]
MODES: tuple[Mode, ...] = ("eager", "lazy")
"""eager: a call starts as soon as it can. lazy: calls start after a complete answer whose calls have no cycle."""


def plan_message(mode: Mode, state: State) -> Message:
    """Return the calls of the last request as a plan for the next one (SEMANTICS.md, 9. Plans).

    The field `_request`, hidden from the model, has the number of the request.
    """
    calls = state.reply.message.tool_calls if state.reply is not None else ()
    data = {"mode": mode, "calls": [Call.made_of(call.name, call.arguments) for call in calls]}
    fields = {"type": "data", "kind": "plan", "data": data, "_request": state.turn}
    return Message.of({"role": "data", "content": "", **fields})


def check_plans(messages: Sequence[Message]) -> None:
    """Check the plans that a run is given. Raises UsageError for a cycle, a malformed reference or an instance."""
    for message in messages:
        if message.role != "data" or message.get("kind") != "plan":
            continue
        if message.get("_instance") is not None:
            raise UsageError("A plan applies to all instances: it must not have `_instance`.")
        try:
            cycle = find_cycle(_planned_nodes(message.get("data"), Context.of(State(messages=list(messages)))))
        except InvalidArguments as error:
            raise UsageError(f"The plan cannot be followed: {error}") from error
        if cycle:
            raise UsageError(f"The plan has a cycle: {' and '.join(cycle)} wait for one another.")


def _planned_nodes(plan: Any, context: Context) -> Iterator[Node]:
    """Yield the calls of a plan. Raises InvalidArguments for a malformed reference."""
    calls = plan.get("calls") if isinstance(plan, Mapping) else plan
    calls = calls if isinstance(calls, list) else []
    calls = [call for call in calls if isinstance(call, Mapping) and "_tool" in call]
    for number, call in enumerate(calls, 1):
        path, instance = call.get("_outputPath"), call.get("_instance")
        missing = _missing(expressions_in(parameters(call)), context, instance)
        writes = list(parse_expression(path).paths) if path is not None else []
        yield Node(f"{call['_tool']} ({number})", instance, _paths_of(missing), writes)


# -- the call graph ------------------------------------------------------------------------------------------------

MESSAGES_SEARCHED = 300
"""Number of messages of the history in which `call_graph` looks for the call that wrote what another reads."""

MAX_WRITERS = 40
"""Maximal number of writers that are drawn for one path that a call reads: a thousand calls may write to one list."""


def call_graph(flow: Dataflow, state: State, confirming: Collection[str]) -> CallDependencies:
    """Return the graph of the calls of the current round, or the one that has just ended.

    A call reads what another writes if one of its references and the other's output path lead to the same position, or
    one of them into the other: `†state` reads `†state.name`. Each path of an expression counts, also of alternatives
    that are not taken. A call of an earlier request is in the graph if no call of this round writes what is read.

    confirming: ids of the calls that `confirm` is asked about once they may start.
    """
    # Index the calls by the paths that they write, and by the paths that contain these.
    calls = [call for call in state.calls.values() if not call.hidden]
    writers_at: dict[Path, list[CallState]] = {}
    writers_inside: dict[Path, list[CallState]] = {}
    for call in calls:
        for path in flow.writes(call):
            writers_at.setdefault(path, []).append(call)
            for above in path.prefixes()[1:]:
                writers_inside.setdefault(above, []).append(call)

    graph: list[GraphCall] = []
    earlier_calls: dict[str, GraphCall] = {}
    for call in calls:
        # The calls that write what this one reads. An instance reads its own data and data without an instance.
        reads: dict[str, None] = {}
        instance = call.made.arguments.get("_instance")
        for path in _paths_of(flow.needs(call)):
            at_prefixes = [writers_at.get(prefix, []) for prefix in path.prefixes()]
            candidates = chain.from_iterable([*at_prefixes, writers_inside.get(path, [])])
            others = (one for one in candidates if one is not call)
            visible = (one.id for one in others if one.made.arguments.get("_instance") in (None, instance))
            ids = list(islice(visible, MAX_WRITERS))
            if not ids and (earlier := _earlier_writer(flow, state, path, instance)) is not None:
                earlier_calls[earlier.id] = earlier
                ids = [earlier.id]
            reads.update(dict.fromkeys(ids))

        status, error = _status_of(call, flow, confirming), error_of(call)
        graph.append(
            GraphCall(
                id=call.id,
                tool=call.name,
                status=status,
                reads=tuple(reads),
                missing=tuple(map(str, flow.missing(call))) if status == "blocked" else (),
                writes=str(call.made.arguments.get("_outputPath") or ""),
                note=error["data"]["error"] if error is not None else None,
            )
        )
    return CallDependencies(state.turn, (*earlier_calls.values(), *graph))


def _status_of(call: CallState, flow: Dataflow, confirming: Collection[str]) -> GraphStatus:
    if call.end is not None:
        if not call.end.is_error:
            return "completed"
        return "rejected" if call.end.outcome in ("rejected", "blocked") else "failed"
    if call.status == "asking":
        return "waiting"
    if call.status == "running":
        return "running"
    if flow.readiness(call) != "free":
        return "blocked"
    return "confirming" if call.decision is None and call.id in confirming else "unblocked"


def _earlier_writer(flow: Dataflow, state: State, path: Path, instance: str | None) -> GraphCall | None:
    """Return the last call of an earlier turn that wrote the data at a path, or None. Computed once in a turn."""
    known = flow.context.turn.earlier
    if (path, instance) in known:
        return known[path, instance]
    writer: GraphCall | None = None
    for message in reversed(state.messages[-MESSAGES_SEARCHED:]):
        if message.role == "data" and message.get("_instance") in (None, instance):
            made, to = message.get("_call") or {}, message.get("_outputPath")
            is_earlier = made.get("_id") is not None and made["_id"] not in state.calls
            if to and is_earlier and path.meets(next(parse_expression(to).paths)):
                writer = GraphCall(made["_id"], str(made.get("_tool", "")), "completed", writes=to, earlier=True)
                break
    known[path, instance] = writer
    return writer
