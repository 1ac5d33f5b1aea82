"""Loop: the class every design is a subclass of, and the one to subclass for a loop of your own.

A loop is its pure decision (`agentnb.core.loop.Design`) and the way to start it. Starting needs a driver, which lives a
layer above; it is put in here when agentnb is imported, so that a loop module knows the core and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from agentnb.core.errors import UsageError
from agentnb.core.events import CallProposed, MessageAdded, Queue
from agentnb.core.foreign import plain_number
from agentnb.core.loop import Design
from agentnb.core.messages import Message, ToolCall
from agentnb.core.state import State
from agentnb.core.tools import check_names, legal_name
from agentnb.core.unicode import mended
from agentnb.loops.options import StartOptions

if TYPE_CHECKING:
    from agentnb.loops.generator import Function, GeneratorLoop, Phases
    from agentnb.run import Run
    from agentnb.store import Store

_make_run: Callable[..., Any] | None = None
_restore: Callable[..., Any] | None = None


def use_driver(make_run: Callable[..., Any], restore: Callable[..., Any]) -> None:
    """Make loops start by calling `make_run(loop, input=..., ...)`, and go on by `restore(run, loop, ...)`."""
    global _make_run, _restore
    _make_run, _restore = make_run, restore


class Loop(Design):
    """A loop that can be started: override `advance`, and declare `phases`.

    `advance(state)` is asked whenever nothing is in flight, and gives the one fact that comes next
    (`agentnb.core.loop`). A critic, of which the panel, stepping, snapshots and restoring come for nothing:

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

    `Critic(llm).start("cats")` runs it. Values of its own it keeps by `StateUpdate`, in `state.values`; functions of
    its own are `activities`, called by a hidden `CallProposed`, whose id `state.own_id` makes unique. The same loop can
    be written top to bottom, as a generator: `Loop.from_generator`.
    """

    def __init__(
        self, llm: Any = None, tools: Iterable[Any] | Mapping[str, Any] | None = (), *, name: str | None = None
    ) -> None:
        if isinstance(llm, str):
            raise UsageError(f"A model is an object, not its name: agentnb.llms.OpenAI({llm!r}) for one.")
        if tools is None:
            tools = ()
        if isinstance(tools, str) or not isinstance(tools, Iterable):
            if isinstance(llm, list):
                raise UsageError("The model comes first, and then the list of its tools.")
            raise UsageError(f"Tools come as a list, also a single one: [{_named(tools)}].")
        if name is not None and not isinstance(name, str):
            raise UsageError(f"name= takes the loop's name, a text, not {name!r:.80}.")
        if not isinstance(tools, (Mapping, Sequence)):
            tools = list(tools)  # a generator, say, gives them once, and each run asks
        self.llm = llm
        self.tools = tools
        if not isinstance(tools, Mapping):
            check_names((name_as_tool(tool), tool) for tool in tools)
        self.name = mended(name or _snake_case(type(self).__name__))

    def start(
        self,
        input: Any,
        *,
        name: str | None = None,
        store: Store | None = None,
        approve: Any = None,
        breakpoints: Sequence[Any] = (),
        limits: Mapping[str, float] | None = None,
    ) -> Run:
        """A run on this input; nothing has happened yet.

        name, store: keep the run's journal in the store, under that name. approve: who decides about calls before a
        person is asked; True, False, a callable of the call, and of its context where it takes a second argument,
        rules, or the path of a JSON file with rules (`agentnb.run.approvals.policy`). breakpoints: pause at these;
        callables of `(event, state)`, an event type, a tool's or a function's name, a phase, or a dict of conditions
        (`agentnb.run.gate.conditions`). At a call the run pauses before it starts, otherwise right behind the event.
        limits: end at these; `turns, calls, seconds, tokens, cost`, of all the loops inside too. A call is one of a
        tool. The seconds of a run that was restored or forked begin when it goes on. Tokens and cost are what the
        server tells. OpenAI's and Anthropic's tell no cost, as OpenRouter's does, and a run ends at a limit of it; of
        one that tells nothing at all (`usage` stays empty) neither is counted.
        """
        return self._start(input=input, name=name, store=store, approve=approve, breakpoints=breakpoints, limits=limits)

    def run(self, *input: Any, **options: Any) -> Any:  # open: a design's own `run` may take and give something else
        """Run on this input to the end: a coroutine of the output.

        options: as for `start`. Raises RunFailed, RunCancelled or LimitReached where there is no output.
        """
        return _to_the_end(self.start(*(input or (None,)), **options))

    def run_async(self, parent_context: Any, **options: Unpack[StartOptions]) -> Any:
        """Run in the code of an agent that is given a context (`agentnb.loops.loop_agent`): its events, as an agent's.

        options: as for `start`. Raises UsageError where this is not such a context.
        """
        if not hasattr(parent_context, "events_of"):
            raise UsageError(f"{self.name}.run_async(ctx) takes an InvocationContext, not {parent_context!r}.")
        return parent_context.events_of(self, **options)

    def go_on_from(self, run: Run, **options: Unpack[StartOptions]) -> Run:
        """A run of this loop that goes on from where another was suspended. options: as for `start`."""
        assert _restore is not None  # agentnb/__init__.py puts it in before any loop can be made
        restored: Run = _restore(run, self, **options)
        return restored

    def hears_as(self, input: Any) -> list[Message] | None:
        """What a loop around this one has for it, as the first messages of its conversation.

        None where what this one is given begins no conversation: it is given it all as one text.
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
        """A loop from a generator function of its input, which yields what it wants and returns the output.

            @Loop.from_generator(llm=llm, tools=[search])
            def answer(question):
                reply = yield ask(question)
                while reply.tool_calls:
                    reply = yield ask()
                return reply.content

        `agentnb.loops.want` has what may be yielded. llm, tools, system_prompt: as for other loops. name: the
        function's where none is given. phases: a table of those it enters by `yield phase(name)`, from each to those
        that may follow it, or only their names, in the order they are drawn in; where none are declared, the phases are
        `working, asking, acting`, and it need not say where it is.

        Raises UsageError for a function that is no generator function.
        """
        from agentnb.loops.generator import GeneratorLoop  # it is a Loop itself

        if function is None:
            return lambda function: GeneratorLoop(function, llm, tools, **options)
        return GeneratorLoop(function, llm, tools, **options)

    def _start(self, **options: Any) -> Run:
        assert _make_run is not None  # agentnb/__init__.py puts it in before any loop can be made
        if not hasattr(self, "name"):
            raise UsageError(f"{type(self).__name__}.__init__ does not call super().__init__().")
        run: Run = _make_run(self, **options)
        return run


async def _to_the_end(run: Run) -> Any:
    return await run


def name_as_tool(tool: Any) -> str:
    """What models call a tool by."""
    return legal_name(tool.name) if isinstance(tool, Design) else _named(tool)


def _named(tool: Any) -> str:
    """What a tool is called by whoever writes it down."""
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", None) or repr(tool))


def count_of(name: str, value: Any, least: int = 0) -> Any:
    """A limit as a whole number of Python's, or None, which is none. Raises UsageError where it is neither, or less."""
    value = plain_number(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        wanted = f"a whole number from {least}" if least else "a number that is whole and not negative"
        raise UsageError(f"{name} must be None or {wanted}, not {value!r}.")
    return value


def check_system_prompt(value: Any) -> None:
    """Raise UsageError where this is neither a text nor None."""
    if value is not None and not isinstance(value, str):
        raise UsageError(f"system_prompt= takes a text, or None, not {value!r:.80}.")


def take(state: State, queue: Queue) -> MessageAdded:
    """The fact that the oldest message of a queue is heard."""
    return MessageAdded(message=state.queues[queue][0], origin=queue)


def propose(state: State, id: str, name: str, arguments: dict[str, Any]) -> CallProposed:
    """The fact that the loop asks for a call of its own; `id` is unique among those of one run of it."""
    return CallProposed(call=ToolCall(id=state.own_id(id), name=name, arguments=arguments), hidden=True)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
