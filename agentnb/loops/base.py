"""Loop: the base class of all designs and of user-supplied loops.

A loop combines a pure decision (`agentnb.core.loop.Design`) with the methods that start a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from agentnb.core.errors import UsageError
from agentnb.core.events import CallProposed, MessageAdded, Queue
from agentnb.core.json import plain_number, repair_text
from agentnb.core.loop import Design
from agentnb.core.messages import Message, ToolCall
from agentnb.core.protocols import RunStore
from agentnb.core.state import State
from agentnb.core.tools import check_names, legal_name
from agentnb.run import Run, restore
from agentnb.run.validation import StartOptions

if TYPE_CHECKING:
    from agentnb.loops.generator import Function, GeneratorLoop, Phases


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
    ) -> Run:
        """Return a new run on this input. The run has no events yet.

        name, store: the run's journal is kept in the store under this name. approve: the policy that decides about
        calls before a person is asked: True, False, rules, the path of a JSON file with rules, or a function that takes
        the call (and its context, if it accepts a second argument) (`agentnb.run.approvals.policy`).

        breakpoints: the positions at which the run pauses. Each is an event type, the name of a tool or function, a
        phase, a dict of conditions, or a function that takes `(event, state)` (`agentnb.run.gate.conditions`). At a
        call the run pauses before the call starts, otherwise directly after the event.

        limits: maximum `turns, calls, seconds, tokens, cost`; nested loops count too. The run ends when it reaches one.
        Only calls of tools count as calls. The seconds of a restored or forked run are counted from when it resumes.
        Tokens and cost are the values that the server reports. OpenRouter reports the cost; OpenAI and Anthropic do
        not. If a server reports tokens but no cost, a run with a cost limit ends. If a server reports nothing (`usage`
        stays empty), the limits of tokens and cost have no effect.
        """
        return self._start(input=input, name=name, store=store, approve=approve, breakpoints=breakpoints, limits=limits)

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
        from agentnb.loops.generator import GeneratorLoop  # a subclass of Loop: importing it earlier is circular

        if function is None:
            return lambda function: GeneratorLoop(function, llm, tools, **options)
        return GeneratorLoop(function, llm, tools, **options)

    def _start(self, **options: Any) -> Run:
        if not hasattr(self, "name"):
            raise UsageError(f"{type(self).__name__}.__init__ does not call super().__init__(). Add this call.")
        return Run(self, **options)


async def _run_to_end(run: Run) -> Any:
    return await run


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


def take(state: State, queue: Queue) -> MessageAdded:
    """Return the event that moves the oldest message of a queue to the conversation."""
    return MessageAdded(message=state.queues[queue][0], origin=queue)


def propose(state: State, id: str, name: str, arguments: dict[str, Any]) -> CallProposed:
    """Return the event that proposes a hidden call of the loop itself.

    id: unique among the loop's own calls in one run of the loop.
    """
    return CallProposed(call=ToolCall(id=state.own_id(id), name=name, arguments=arguments), hidden=True)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
