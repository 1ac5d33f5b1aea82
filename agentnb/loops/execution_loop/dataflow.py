"""Dataflow: which calls may start, and with what (SEMANTICS.md, 5. Algorithm).

A call is `free` when everything it refers to is there, `blocked` while something is not, and `broken` when it can never
run as it stands: a reference or an output path that is malformed, a kind of data that nobody writes, a tool that does
not exist. A free or broken call is looked at at once (a broken one is refused); a blocked one when something was
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from agentnb.core.errors import InvalidArguments
from agentnb.core.messages import ToolCall
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.core.wanted import Effect
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.messages import check_writing
from agentnb.loops.execution_loop.plan import Node, find_cycle
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
from agentnb.loops.execution_loop.scopes import check_scopes
from agentnb.loops.execution_loop.tools import is_detached
from agentnb.loops.execution_loop.values import parameters

Standing = Literal["free", "blocked", "broken"]


class Read:
    """A call as it was read once: what it refers to, where it writes, and what is wrong with it."""

    def __init__(self, made: ToolCall) -> None:
        self.made = made
        self.parameters = parameters(made.arguments)
        self.instance: str | None = made.arguments.get("_instance")
        self.needs: list[Expression] = []
        self.writes: list[Path] = []
        self.fault: str | None = None
        self.version = -1
        self.standing: Standing = "blocked"
        try:
            _check(made)
            self.needs = list(expressions_in(self.parameters))
            if (path := made.arguments.get("_outputPath")) is not None:
                self.writes = list(parse_expression(path).paths)
        except InvalidArguments as error:
            self.fault = str(error)


def _check(made: ToolCall) -> None:
    if made.malformed is not None:
        raise InvalidArguments(f"A call is a JSON object: {made.malformed[:200]}")
    if not made.name:
        raise InvalidArguments("The call names no tool: it needs `_tool`.")
    check_writing(made.arguments)
    check_scopes(made.arguments.get("_scopes"))


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
