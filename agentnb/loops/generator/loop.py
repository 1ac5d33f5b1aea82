"""The generator form: a loop that is written top to bottom and runs on the same core as other loops (SEMANTICS.md).

A generator yields commands (`agentnb.loops.want`), receives their results, and returns the run's output. Like every
loop it is a pure decision over the state: `advance` replays the recorded results to the generator and returns the next
event that its current command needs. A generator cannot be stored. To restore a run, a new generator receives all
recorded results, and no command is performed again. A run can therefore be restored at any position and in any process,
as long as the generator is deterministic: the same results must lead to the same commands. Otherwise the run ends with
an error that shows the step that differs.

During a run the generator is kept (`State.memo`), so that the cost of a turn does not depend on the number of earlier
turns. Code in a `finally` of the generator runs whenever the generator is dropped, so it must not have effects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, RunEnd
from agentnb.core.evolve import fold, nested
from agentnb.core.json import require_json, to_plain
from agentnb.core.loop import Calls, Design
from agentnb.core.required_effects import Effect, required_effects
from agentnb.core.resume_point import resume_point
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.loops import functions
from agentnb.loops.base import Loop, check_system_prompt
from agentnb.loops.generator.code import names_in_code
from agentnb.loops.generator.cursor import failed_in_last_step
from agentnb.loops.generator.suspended import SuspendedGenerator
from agentnb.loops.want import Ask, Call, Phase, Say, Want

Function = Callable[[Any], Generator[Any, Any, Any]]
Phases = Mapping[str, Sequence[str]] | Sequence[str]

_ALLOWED_YIELDS = "A loop must yield ask(...), say(...), call(...), phase(...), or a list of calls (agentnb.loops.want)"


class GeneratorCalls(Calls):
    """The calls that a generator has yielded: calls of tools, functions and loops."""

    loop: GeneratorLoop

    def required(self, state: State) -> Sequence[Effect]:
        """Return the required effects; none while calls of a yielded list are not proposed yet."""
        if any(call.hidden for call in state.open.values()):
            generator = self.loop.follow(state)
            if generator.cursor.has_unproposed_calls(generator.command, state):
                return []
        return required_effects(state)

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """Return the nested loop that the generator calls by this call, or None if it calls something else.

        Without a state, return the loop that the generator has called last under the name of the call.
        """
        if state is None or not call.hidden:
            return self.loop.called_loops.get(call.name) if call.hidden else None
        called = self._called(call, state)
        return called if isinstance(called, Design) else None

    async def perform(self, call: CallState, state: State) -> Any:
        """Call the function with the recorded arguments and return its result."""
        function = self._called(call, state)
        bound = inspect.BoundArguments(inspect.signature(function), to_plain(call.arguments))
        return await functions.call(function, *bound.args, **bound.kwargs)

    def _called(self, call: CallState, state: State) -> Any:
        """Return the object that the generator calls by this call; None if the call is not in its current command."""
        generator = self.loop.follow(state)
        commands = generator.command if isinstance(generator.command, list) else [generator.command]
        for command, other in zip(commands, state.own_calls[generator.cursor.calls :], strict=False):
            if other is call and isinstance(command, Call):
                return command.called
        return None

    def may_call(self) -> Collection[str]:
        """Return the names in the generator's code, and in the generators to which it delegates."""
        return names_in_code(self.loop.function)


class GeneratorLoop(Loop):
    """A loop made from a generator function. `Loop.from_generator` creates it."""

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "working": ["asking", "acting", "done"],
        "asking": ["working", "acting", "done"],
        "acting": ["working", "asking", "done"],
        "done": [],
    }
    opened_by: ClassVar[Mapping[str, str]] = {
        "message": "working",
        "model_start": "asking",
        "call_start": "acting",
        "run_end": "done",
    }
    calls_class = GeneratorCalls

    def __init__(
        self,
        function: Function,
        llm: Any = None,
        tools: Sequence[Any] | Mapping[str, Any] | None = (),
        *,
        name: str | None = None,
        phases: Phases | None = None,
        system_prompt: str | None = None,
    ) -> None:
        called = getattr(function, "__name__", repr(function))
        if not inspect.isgeneratorfunction(function):
            raise UsageError(f"{called} is not a generator function. Define it with `def` and use `yield` in it.")
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise UsageError(f"{called} must accept the run's input as its only argument: {error}.") from None
        self.function = function
        super().__init__(llm, tools, name=name or getattr(function, "__name__", None))
        self.description = (inspect.getdoc(function) or "").partition("\n\n")[0]
        check_system_prompt(system_prompt)
        self.system_prompt = system_prompt
        vars(self)["listens"] = llm is not None  # a class variable in other loops
        if phases is not None:
            vars(self).update(phases=_phase_table(phases), opened_by={"run_end": "done"})
        self._callable = _tools_by_name(self.tools)
        self.called_loops: WeakValueDictionary[str, Design] = WeakValueDictionary()

    def config(self) -> dict[str, Any]:
        """Return the function's name, the phases and the system prompt."""
        phases = {phase: list(after) for phase, after in self.phases.items()}
        name = getattr(self.function, "__name__", "")
        return {**super().config(), "function": name, "phases": phases, "system_prompt": self.system_prompt}

    # -- the decision ----------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Event:
        """Return the next event that the generator needs, or the end of the run after the generator has returned."""
        generator = self.follow(state)
        if not generator.has_ended:
            assert generator.next_event is not None, f"{generator.command} waits for an effect that is not in flight"
            return generator.next_event

        # The generator has returned: nothing else may be recorded.
        cursor = generator.cursor
        cursor.check_end("its end", state, cursor.messages, cursor.calls, cursor.phases)
        state.memo = None
        reply = state.reply
        cut_off = reply.cut_off if reply is not None and not reply.message.tool_calls else None
        output = require_json(generator.output, f"The output of {self.name}")
        return RunEnd(reason=cut_off or "completed", output=output)

    def kept_after_error(self, events: Sequence[Event]) -> int:
        """Return the number of events before the error. A restored run keeps them and continues with corrected code."""
        return resume_point(events)

    def repeated_after_error(self, events: Sequence[Event]) -> Mapping[str, list[str]]:
        """Return the ids of the failed calls that ended a generator, by the path of its loop (this or a nested one).

        They are calls of the generator's last step. Failures that the generator has caught are not included.
        """
        over = resume_point(events)
        failed: dict[str, list[str]] = {}
        state = fold(events[:over])
        for event in events[over:]:
            if isinstance(event, RunEnd) and event.error is not None:
                loop = nested(state, event.path)
                if loop.loop == self.kind() and (ids := failed_in_last_step(loop, event.error)):
                    failed[event.path] = ids
        return failed

    # -- the generator ---------------------------------------------------------------------------------------------

    def follow(self, state: State) -> SuspendedGenerator:
        """Return the generator after it has received all recorded results."""
        generator = state.memo
        if not isinstance(generator, SuspendedGenerator) or generator.loop is not self:
            generator = state.memo = SuspendedGenerator(self, self.function(to_plain(state.input)), self._accept)
        try:
            generator.follow(state)
        except BaseException:
            state.memo = None
            raise
        return generator

    def _accept(self, yielded: Any) -> Want | list[Call]:
        """Return a yielded value as a checked command. Raises UsageError if it is not a valid command."""
        if isinstance(yielded, (list, tuple)):
            if others := [item for item in yielded if not isinstance(item, Call)]:
                raise UsageError(f"{_ALLOWED_YIELDS}. A list may contain only calls, not {others[0]!s:.200}.")
            return [self._check_call(item) for item in yielded]
        if isinstance(yielded, Phase) and yielded.name not in self.phases:
            known = ", ".join(self.phases)
            raise UsageError(f"{self.name} has no phase {yielded.name!r}. Its phases are: {known}.")
        if isinstance(yielded, (Ask, Say, Phase)):
            return yielded
        if not isinstance(yielded, Call):
            raise UsageError(f"{_ALLOWED_YIELDS}, not {yielded!r:.200}.")
        return self._check_call(yielded)

    def _check_call(self, command: Call) -> Call:
        if isinstance(command.called, Design):
            self.called_loops[command.name] = command.called
        tool = self._callable.get(command.name)
        if tool is None:
            if isinstance(command.called, (str, Tool)):
                known = ", ".join(self._callable) or "none"
                raise UsageError(
                    f"{self.name} has no tool {command.name!r}. Its tools are: {known}. Pass the tool in tools=."
                )
            return command
        called = command.called
        if called == command.name or called is tool or called is getattr(tool, "function", None):
            return command
        raise UsageError(
            f"{self.name} has a tool {command.name!r}, but call() was given another object of that name. Rename one."
        )


def _phase_table(phases: Phases) -> dict[str, list[str]]:
    """Return the table of phases. For a list of names, each phase may follow each other one.

    If the phase `done` is missing, it is added and may follow every phase. Raises UsageError for an empty table.
    """
    if isinstance(phases, Mapping):
        table = {phase: list(after) for phase, after in phases.items()}
    else:
        table = {phase: [other for other in phases if other != phase] for phase in phases if phase != "done"}
    if not table:
        raise UsageError("phases must be a table of phases or a list of their names, with at least one phase.")
    if "done" not in table:
        table = {phase: list(dict.fromkeys([*after, "done"])) for phase, after in table.items()} | {"done": []}
    return table


def _tools_by_name(tools: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(tools, Mapping):
        return dict(tools)
    return {str(getattr(tool, "name", None) or getattr(tool, "__name__", tool)): tool for tool in tools}
