"""Plans: the calls of a request as an acyclic graph, sent to the next request (SEMANTICS.md, 9. Plans).

What a request calls is a strategy. It becomes a Plan where plans are enabled (`plan=`), its graph has no cycle, and
there is a next request: only then is it passed on, as a data message of the kind `plan` that takes the place of the
one before. A request that calls nothing leaves the plan as it is. Nothing is run because a plan says so: the model
follows it, extends it or drops it.

eager: planning is execution, each call starts as soon as it can. lazy: planning comes before execution; no call
starts before the answer is complete and its whole graph has been looked at, and where that has a cycle none of them
runs. A pause (a breakpoint at `model_end`) is then a look at the plan before any of it has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, NamedTuple

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.references import MISSING, Path, expressions_in, find, parse_expression
from agentnb.loops.execution_loop.values import Call, parameters

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
