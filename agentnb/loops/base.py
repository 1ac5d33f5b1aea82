"""Loop: the base class of all designs and of user-supplied loops. GeneratorLoop: a loop made from a generator function.

A loop combines a pure decision (`agentnb.core.loop.Design`) with the methods that start a run. `Loop.from_generator`
returns a GeneratorLoop, so both classes are here. `agentnb.loops.generator` explains the generator form.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Unpack, overload
from weakref import WeakValueDictionary

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, RunEnd
from agentnb.core.evolve import fold, nested
from agentnb.core.json import plain_number, repair_text, require_json, to_plain
from agentnb.core.loop import Calls, Design
from agentnb.core.messages import Message
from agentnb.core.protocols import RunStore
from agentnb.core.required_effects import Effect, required_effects
from agentnb.core.resume_point import resume_point
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool, check_names, legal_name
from agentnb.loops import functions
from agentnb.loops.generator.code import names_in_code
from agentnb.loops.generator.cursor import failed_in_last_step
from agentnb.loops.generator.suspended import SuspendedGenerator
from agentnb.loops.want import Ask, Call, Phase, Say, Want
from agentnb.run import Run, restore
from agentnb.run.validation import StartOptions

Function = Callable[[Any], Generator[Any, Any, Any]]
"""A generator function that a loop can be made from: it takes the run's input and yields commands."""
Phases = Mapping[str, Sequence[str]] | Sequence[str]
"""The phases of a GeneratorLoop: a table from each phase to those that may follow it, or a list of names."""


class Loop(Design):
    """A loop that can be started. A subclass overrides `advance` and declares `phases`.

    `advance(state)` is called when nothing is in flight, and returns the next event (`agentnb.core.loop`). The panel,
    stepping, snapshots and restoring work for every loop. An example:

        from agentnb import Loop
        from agentnb.core.events import MessageAdded, ModelStart, RunEnd
        from agentnb.core.messages import Message


        class Critic(Loop):
            phases = {"drafting": ["reviewing"], "reviewing": ["drafting", "done"], "done": []}
            opened_by = {"run_end": "done"}

            def advance(self, state):
                last = state.messages[-1] if state.messages else None
                if last is None:
                    return tell(f"Write one line about {state.input}.", "drafting")
                if last.role == "user":
                    return ModelStart(turn=state.turn + 1)
                if state.phase == "drafting":
                    return tell("Judge that line. Say Good where nothing is missing.", "reviewing")
                if last.content.startswith("Good"):
                    return RunEnd(reason="completed", output=state.messages[-3].content)
                return tell("Write it again, with that mended.", "drafting")


        def tell(words, phase):
            return MessageAdded(message=Message(role="user", content=words), phase=phase)

    `Critic(llm).start("cats")` starts it. A loop keeps its own values in `state.values`; a `StateUpdate` sets them. Its
    own functions are `activities`; a hidden `CallProposed` calls them, with an id that `state.own_id` makes unique.

    Three hooks are attributes: `prepare` changes the messages that the model is sent, `before_call` runs before each of
    the model's calls, and `after_call` after it. To change anything else about requests or calls, override a method of
    `Requests` or `Calls` (`agentnb.core.loop`) in a subclass, and set `requests_class` or `calls_class` of the loop to
    that subclass.

    `Loop.from_generator` makes a loop from a generator function that is written top to bottom.
    """

    def __init__(
        self, llm: Any = None, tools: Iterable[Any] | Mapping[str, Any] | None = (), *, name: str | None = None
    ) -> None:
        if isinstance(llm, str):
            raise UsageError(
                f"The model must be an object, not a name. Pass agentnb.llms.OpenAI({llm!r}), for example."
            )
        if tools is None:
            tools = ()
        if isinstance(tools, str) or not isinstance(tools, Iterable):
            if isinstance(llm, list):
                raise UsageError("Pass the model first, then the list of tools.")
            raise UsageError(f"Pass tools as a list, also a single tool: [{_named(tools)}].")
        if name is not None and not isinstance(name, str):
            raise UsageError(f"name must be a string, not {name!r:.80}.")
        if not isinstance(tools, (Mapping, Sequence)):
            tools = list(tools)  # an iterator can be read only once, and each run reads the tools
        self.llm = llm
        self.tools = tools
        if not isinstance(tools, Mapping):
            check_names((name_as_tool(tool), tool) for tool in tools)
        self.name = repair_text(name or _snake_case(type(self).__name__))

    def start(
        self,
        input: Any,
        *,
        name: str | None = None,
        store: RunStore | None = None,
        approve: Any = None,
        breakpoints: Sequence[Any] = (),
        limits: Mapping[str, float] | None = None,
        on_limit: Literal["end", "ask"] | None = None,
        options: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        data: Mapping[str, Any] | None = None,
    ) -> Run:
        """Return a new run on this input. The run has no events yet.

        name, store: the run's journal is kept in the store under this name. approve: the policy that decides about
        calls before a person is asked: True, False, rules, the path of a JSON file with rules, or a function that takes
        the call (and its context, if it accepts a second argument) (`agentnb.run.approvals.policy`).

        breakpoints: the positions at which the run pauses. Each is an event type, the name of a tool or function, a
        phase, a dict of conditions, or a function that takes `(event, state)` (`agentnb.run.gate.conditions`). At a
        call the run pauses before the call starts, otherwise directly after the event.

        limits: maximum `turns, calls, seconds, tokens, cost`; nested loops count too. The run ends when it reaches one,
        or with `on_limit="ask"` pauses: `run.resume()` then allows the same amount once more, `run.cancel()` ends the
        run. If no person is present, it is cancelled after a wait (`agentnb.headless`).
        Only calls of tools count as calls. The seconds of a restored or forked run are counted from when it resumes.
        Tokens and cost are the values that the server reports. OpenRouter reports the cost; OpenAI and Anthropic do
        not. It is then estimated from the public prices of the model (`pip install 'agentnb-toolkit[prices]'`), and
        `usage` has it as `cost_estimate`; a run with a cost limit stops at an unknown price, and the error names the
        model. If a server reports no tokens, a run with a limit of tokens or cost counts a token for four characters
        and 1,000 for a picture or a document, and `usage` has the number of such answers as `estimated_answers`.

        options: options of all model requests of the run, nested loops too, in addition to those of the model:
        `{"temperature": 0}`. None removes one. They are recorded, so they cannot have secrets. The events of the
        requests have all options that were sent.

        tags, data: what is recorded about the run, in its first event: texts, by which `store.find(tag=)` finds the
        run, and a mapping with JSON values. agentnb does not interpret them.
        """
        return self._start(
            input=input,
            name=name,
            store=store,
            approve=approve,
            breakpoints=breakpoints,
            limits=limits,
            on_limit=on_limit,
            options=options,
            tags=tags,
            data=data,
        )

    def run(self, *input: Any, **options: Any) -> Any:  # untyped: a design may override it with another signature
        """Run on this input to the end. Return a coroutine that returns the output.

        options: as for `start`. The coroutine raises RunFailed, RunCancelled or LimitReached if there is no output.
        """
        return _run_to_end(self.start(*(input or (None,)), **options))

    def run_async(self, parent_context: Any, **options: Unpack[StartOptions]) -> Any:
        """Run this loop inside the code of an agent, in the agent's InvocationContext (`agentnb.loops.loop_agent`).

        Return the events of this loop as agent events. options: as for `start`. Raises UsageError if `parent_context`
        is not an InvocationContext.
        """
        if not hasattr(parent_context, "events_of"):
            raise UsageError(f"{self.name}.run_async(ctx) takes an InvocationContext, not {parent_context!r}.")
        return parent_context.events_of(self, **options)

    def go_on_from(self, run: Run, **options: Unpack[StartOptions]) -> Run:
        """Return a run of this loop that resumes a suspended run. options: as for `start`."""
        return restore(run, self, **options)

    def messages_from(self, input: Any) -> list[Message] | None:
        """Return the input from a parent loop as the first messages of this loop's conversation.

        Return None if this loop does not start a conversation with its input. The parent then passes it one string.
        """
        return None

    @overload
    @staticmethod
    def from_generator(
        function: Function,
        /,
        llm: Any = None,
        tools: Sequence[Any] | Mapping[str, Any] | None = (),
        *,
        name: str | None = None,
        phases: Phases | None = None,
        system_prompt: str | None = None,
    ) -> GeneratorLoop: ...

    @overload
    @staticmethod
    def from_generator(
        *,
        llm: Any = None,
        tools: Sequence[Any] | Mapping[str, Any] | None = (),
        name: str | None = None,
        phases: Phases | None = None,
        system_prompt: str | None = None,
    ) -> Callable[[Function], GeneratorLoop]: ...

    @staticmethod
    def from_generator(
        function: Function | None = None, /, llm: Any = None, tools: Any = (), **options: Any
    ) -> GeneratorLoop | Callable[[Function], GeneratorLoop]:
        """Return a loop made from a generator function of its input, which yields commands and returns the output.

            @Loop.from_generator(llm=llm, tools=[search])
            def answer(question):
                reply = yield ask(question)
                while reply.tool_calls:
                    reply = yield ask()
                return reply.content

        `agentnb.loops.want` defines the values that may be yielded. Without a function, return a decorator.

        llm, tools, system_prompt: as for other loops. name: defaults to the function's name. phases: the phases that
        the function enters by `yield phase(name)`: a table from each phase to those that may follow it, or a list of
        names in drawing order. By default the phases are `working, asking, acting`, entered automatically.

        Raises UsageError if the function is not a generator function.
        """
        if function is None:
            return lambda function: GeneratorLoop(function, llm, tools, **options)
        return GeneratorLoop(function, llm, tools, **options)

    def _start(self, **options: Any) -> Run:
        if not hasattr(self, "name"):
            raise UsageError(f"{type(self).__name__}.__init__ does not call super().__init__(). Add this call.")
        return Run(self, **options)


async def _run_to_end(run: Run) -> Any:
    return await run


# -- the generator form ------------------------------------------------------------------------------------------------


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

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, in this process or another one, which has not run yet."""
        return {**self.__dict__, "called_loops": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, called_loops=WeakValueDictionary())

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


# -- arguments of loops ------------------------------------------------------------------------------------------------


def name_as_tool(tool: Any) -> str:
    """Return the name under which models call a tool."""
    return legal_name(tool.name) if isinstance(tool, Design) else _named(tool)


def _named(tool: Any) -> str:
    """Return the name that a tool has in source code, or its repr if it has no name."""
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", None) or repr(tool))


def count_of(name: str, value: Any, least: int = 0) -> Any:
    """Return the value of the argument `name` as an int, or None for no limit.

    Raises UsageError if the value is neither None nor a whole number, or is less than `least`.
    """
    value = plain_number(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise UsageError(f"{name} must be None or a whole number of at least {least}, not {value!r}.")
    return value


def check_system_prompt(value: Any) -> None:
    """Raise UsageError if this is neither a string nor None."""
    if value is not None and not isinstance(value, str):
        raise UsageError(f"system_prompt must be a string or None, not {value!r:.80}.")


@functools.cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
