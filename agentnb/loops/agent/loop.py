"""Agent: a loop of a model, its tools and a retriever, with one stream of events (SEMANTICS.md).

Written top to bottom, the algorithm is:

    for turn in range(max_iterations):
        take the user's messages that redirect it; retrieve for the user's last message; ask the model
        if it has made no calls:
            return its text
        run the calls
    raise LimitReached

The published design recurses once per turn. Here it is a loop, and the cost of a turn does not depend on the number of
earlier turns. `advance` is this algorithm as a decision: it returns the next event for a state. The events of the agent
are a projection of the run's events (`stream`).
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Literal, Unpack

from agentnb.core.errors import RunFailed, UsageError
from agentnb.core.events import ErrorInfo, Event, ModelEnd, ModelStart, RunEnd
from agentnb.core.loop import Calls, Requests
from agentnb.core.maybe_async import InnerGenerator
from agentnb.core.messages import Message, input_messages, text_of
from agentnb.core.state import CallState, State
from agentnb.loops.agent.events import AgentEvent
from agentnb.loops.agent.retrieval import RETRIEVE, documents, retrieve_first, retriever_call, with_documents
from agentnb.loops.agent.stream import cancel_check, stream
from agentnb.loops.agent.turns import TurnState
from agentnb.loops.base import Loop, check_system_prompt, count_of
from agentnb.loops.events import take
from agentnb.loops.output import StructuredOutput, prompt_for, schema_of
from agentnb.run import Run
from agentnb.run.validation import StartOptions


class AgentRequests(Requests):
    """The model requests of an agent. They include the retrieved documents."""

    loop: Agent

    @property
    def system_prompt(self) -> str | None:
        """The prompt, with instructions for a model that takes no schema."""
        return prompt_for(self.loop.output, self.loop)

    def options(self) -> dict[str, Any]:
        """Return the options of every request: the tools, and the schema of the output."""
        return super().options() | schema_of(self.loop.output)

    @classmethod
    def replacements(cls, state: State) -> Mapping[int, dict[str, Any]]:
        """Return the user's last message with the documents retrieved for it, by position."""
        return with_documents(state)

    def after_reply(self, reply: ModelEnd) -> dict[str, Any]:
        """Return the phase of a reply with calls, and `sequential`: True to run them one by one. Else empty."""
        if not reply.message.tool_calls:
            return {}
        return {"phase": "tool_execution", "sequential": self.loop.tool_execution == "sequential"}


class AgentCalls(Calls):
    """The calls of an agent: of its tools, and of its retriever."""

    def result_given(self, call: CallState, result: Any) -> Any:
        """Return a user-supplied result of a retrieval as documents; other results unchanged."""
        return documents(result) if call.name == RETRIEVE else result


class Agent(Loop):
    """An agent: ask the model and run its tool calls until it answers without tool calls.

    llm, tools: the model, and the tools that it can call. system_prompt: sent to the model before the conversation.
    retriever: an object with `retrieve(query)`, or a function; sync or async. It is called in every turn with the
    user's last message. max_iterations: maximum number of model requests; None is no limit. tool_execution:
    `sequential` or `parallel`. output: a type (such as a pydantic model) or a JSON schema that the answer must fit; the
    agent then returns an object of the type (`agentnb.loops.output`).

    Raises UsageError for an argument that is not valid.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "idle": ["context_assembly", "done"],
        "context_assembly": ["retrieval", "llm_call", "done"],
        "retrieval": ["context_assembly", "llm_call"],
        "llm_call": ["tool_execution", "context_assembly", "done"],
        "tool_execution": ["context_assembly", "retrieval", "llm_call", "done"],
        "done": [],
    }
    opened_by: ClassVar[Mapping[str, str]] = {
        "message": "context_assembly",
        "call_proposed": "retrieval",
        "model_start": "llm_call",
        "run_end": "done",
    }
    requests_class = AgentRequests
    calls_class = AgentCalls
    limits_that_raise = frozenset({"max_iterations"})

    def __init__(
        self,
        llm: Any,
        tools: Sequence[Any] | Mapping[str, Any] | None = (),
        *,
        system_prompt: str | None = None,
        retriever: Any = None,
        max_iterations: int | None = 10,
        tool_execution: Literal["sequential", "parallel"] = "sequential",
        output: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(llm, tools, name=name)
        if tool_execution not in ("sequential", "parallel"):
            raise UsageError(f"tool_execution must be 'sequential' or 'parallel', not {tool_execution!r}.")
        check_system_prompt(system_prompt)
        self.system_prompt = system_prompt
        self.retriever = retriever
        self.max_iterations = count_of("max_iterations", max_iterations)
        self.tool_execution = tool_execution
        self.output = StructuredOutput(output) if output is not None else None
        if retriever is not None:
            retrieve = retriever_call(retriever)
            self.activities = {RETRIEVE: lambda arguments, state: retrieve(arguments["query"])}

    def messages_from(self, input: Any) -> list[Message]:
        """Return the input from a parent loop as messages: one for each item, an object as JSON text."""
        return input_messages(input)

    # -- the decision ----------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Event:
        """Return the next event (SEMANTICS.md, 3. Algorithm)."""
        if state.queues["input"]:
            return take(state, "input")
        if not state.messages and not state.queues["steering"]:
            return take(state, "follow_up") if state.queues["follow_up"] else RunEnd(reason="empty")
        # An answer ends the run, unless a follow-up is queued. The limit comes before all queued messages.
        answer = _answer(state)
        if answer is not None and not state.queues["follow_up"]:
            if self.output is not None:
                may_ask = self.max_iterations is None or state.turn < self.max_iterations
                return self.output.next_event(state, answer, may_ask=may_ask)
            return RunEnd(reason=answer.cut_off or "completed", output=text_of(answer.message.content))
        if self.max_iterations is not None and state.turn >= self.max_iterations:
            return self._at_limit()
        if answer is not None:
            return take(state, "follow_up")
        if state.queues["steering"]:
            return take(state, "steering")
        is_mending = state.heard == ["loop"]  # the documents were retrieved for the message of the user
        if self.retriever is not None and not is_mending and (event := retrieve_first(state)) is not None:
            return event
        return ModelStart(turn=state.turn + 1)

    def ends_at_limit(self, state: State) -> bool:
        """Return True if the limit ends the run next. Then the run cannot be cancelled (SEMANTICS.md, 3. Algorithm)."""
        is_between_turns = state.model == "idle" and not state.open and not state.over and _answer(state) is None
        return is_between_turns and self.max_iterations is not None and state.turn >= self.max_iterations

    def _at_limit(self) -> RunEnd:
        why = f"The agent has asked its model {self.max_iterations} times (max_iterations) and is not done."
        return RunEnd(reason="max_iterations", error=ErrorInfo(type="LimitReached", message=why))

    # -- the agent -------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Return the settings that determine how this agent behaves."""
        names = ("system_prompt", "max_iterations", "tool_execution")
        chosen = {name: getattr(self, name) for name in names}
        output = {"output": self.output.schema} if self.output is not None else {}
        return {**super().config(), **chosen, "retrieves": self.retriever is not None, **output}

    def read_output(self, recorded: Any) -> Any:
        """Return the output as an object of the type that was given as `output`."""
        return self.output.instance(recorded) if self.output is not None and recorded is not None else recorded

    async def execute(
        self, prompt: Any, cancel_token: Any = None, **options: Unpack[StartOptions]
    ) -> AsyncGenerator[AgentEvent, None]:
        """Run on a prompt; yield the agent's events. Only the last event is terminal.

        The run advances when an event is requested. Closing the stream cancels the run. cancel_token: an object with
        `is_set()`, `is_cancelled()` or `cancelled`, or a function that returns True to cancel. It is checked between
        chunks, before each tool and turn, and during an approval. options: as for `start`.
        """
        async with aclosing(InnerGenerator(self.events(self.start(prompt, **options), cancel_token))) as events:
            async for event in events:
                yield event

    @property
    def executor(self) -> AgentExecutor:
        """An executor that runs this agent from given messages and a given turn."""
        return AgentExecutor(self)

    def events(self, run: Run, cancel_token: Any = None) -> AsyncGenerator[AgentEvent, None]:
        """Return the stream of events that `execute` yields, for a started or restored run of this agent."""
        return stream(run, cancel_check(cancel_token), self.ends_at_limit)

    async def ainvoke(self, prompt: Any, cancel_token: Any = None, **options: Unpack[StartOptions]) -> Any:
        """Run on a prompt and return the answer, as `run` does. The published design has `run` under both names."""
        return await self.run(prompt, cancel_token, **options)

    async def run(self, prompt: Any, cancel_token: Any = None, **options: Unpack[StartOptions]) -> Any:
        """Run on a prompt and return the text of the answer, or an object of the type that was given as `output`.

        cancel_token, options: as for `execute`.

        Raises the model's exception if the model fails, LimitReached after `max_iterations` requests without an answer,
        RunCancelled after a cancellation, and RunFailed if the loop fails or a nested loop suspends the run.
        """
        run = self.start(prompt, **options)
        try:
            # The token is checked by the stream: read all of it before the output.
            if cancel_token is not None:
                async with aclosing(self.events(run, cancel_token)) as events:
                    async for _ in events:
                        pass
            answer = await run
            if run.stop_reason == "suspended":  # there is no answer; `execute` reports an error, too
                raise RunFailed(run.stop_reason)
            if self.output is not None:
                return answer
            return str(answer or "")
        except RunFailed as error:
            if run.state.failure is None or not isinstance(error.__cause__, Exception):
                raise
            failure = error.__cause__
        raise failure


class AgentExecutor:
    """An agent that continues from given messages and a given turn (SEMANTICS.md, 2. Vocabulary).

    The published design stores the messages and the turn state after each turn, and passes them to `execute_stream`
    again.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def execute(self, input: Any, **options: Unpack[StartOptions]) -> Any:
        """Run the agent and return its output: the older method of the published design.

        input, options: as for `Agent.start`. Raises RunFailed if the run fails.
        """
        return await self.agent.start(input, **options)

    async def execute_stream(
        self,
        messages: Iterable[Any],
        turn_state: TurnState | None = None,
        cancel_token: Any = None,
        **options: Unpack[StartOptions],
    ) -> AsyncGenerator[AgentEvent, None]:
        """Continue a conversation; yield the agent's events as `Agent.execute` does.

        messages: the conversation so far. turn_state: the next turn. It sets the number of the turn and the limit for
        all turns, including the earlier ones. None: the first turn, with the agent's own limit. cancel_token, options:
        as for `Agent.execute`.
        """
        agent = copy.copy(self.agent)
        if turn_state is not None and turn_state.max_iterations is not None:
            agent.max_iterations = max(0, turn_state.max_iterations - turn_state.turn_counter)
        elif turn_state is not None:
            agent.max_iterations = None
        run = agent.start(list(messages), **options)
        events = InnerGenerator(stream(run, cancel_check(cancel_token), agent.ends_at_limit, turn_state))
        async with aclosing(events):
            async for event in events:
                yield event


def _answer(state: State) -> ModelEnd | None:
    """Return the model's last reply if it has no calls and no message was taken after it; otherwise None."""
    reply = state.reply
    return reply if reply is not None and not reply.message.tool_calls and not state.heard else None
