"""BaseAgent: an agent written top to bottom, as an async generator of events (SEMANTICS 1).

Its code is opaque: what it says is journaled event by event, and where it stands in between is not known. So it is one
call of a loop of its own, and where that call was broken off, by a crash or by a pause, it runs again from its start
(1d). It is told apart from its surroundings by what it ends with: `completed`, `escalated`, or `suspended`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from pydantic_core import to_jsonable_python

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CallProposed, Delta, ErrorInfo, MessageAdded, RunEnd, StateUpdate
from agentnb.core.events import Event as Fact
from agentnb.core.loop import Result
from agentnb.core.messages import Message, ToolCall
from agentnb.core.state import State
from agentnb.core.unicode import mended, mended_inside
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.invocation import Event, InvocationContext, context_of, invocation_of
from agentnb.loops.loop_agent.stream import stream

RUN = "run_agent"


class BaseAgent(Loop):
    """An agent to subclass: override `async def _run_async_impl(self, ctx)`, a generator of events.

    name: an identifier, not `user`. description: for whoever chooses among agents. sub_agents: those it hands on to.
    before_agent_callback, after_agent_callback: called with the context around each run of it, sync or async; content
    that the first returns stands for the run, content that the second returns comes after it. Other keywords become
    attributes.

    Raises InvalidArguments for a name that is none, and for a sub-agent that has another parent.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {"idle": ["running", "done"], "running": ["done"], "done": []}
    opened_by: ClassVar[Mapping[str, str]] = {"call_start": "running", "run_end": "done"}
    listens = False

    def __init__(
        self,
        name: str,
        sub_agents: Sequence[Loop] = (),
        *,
        description: str = "",
        before_agent_callback: Callable[[InvocationContext], Any] | None = None,
        after_agent_callback: Callable[[InvocationContext], Any] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(name=name)
        if not name.isidentifier() or name == "user":
            raise InvalidArguments(f"An agent's name is an identifier, and not 'user'; {name!r} is none.")
        self.description = description
        self.sub_agents: list[Loop] = list(sub_agents)
        self.parent_agent: BaseAgent | None = None
        self.before_agent_callback = before_agent_callback
        self.after_agent_callback = after_agent_callback
        self.activities = {RUN: self._perform}
        for attribute, value in attributes.items():
            setattr(self, attribute, value)
        self._adopt()

    def _adopt(self) -> None:
        names = [agent.name for agent in self.sub_agents]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidArguments(f"The sub-agents of {self.name} have names in common: {', '.join(twice)}.")
        for agent in self.sub_agents:
            if isinstance(agent, BaseAgent):
                if agent.parent_agent is not None:
                    raise InvalidArguments(f"{agent.name} has a parent already: {agent.parent_agent.name}.")
                agent.parent_agent = self

    def find_agent(self, name: str) -> Loop | None:
        """The agent of that name, here or below."""
        if name == self.name:
            return self
        for agent in self.sub_agents:
            found = agent.find_agent(name) if isinstance(agent, BaseAgent) else agent if agent.name == name else None
            if found is not None:
                return found
        return None

    # -- the agent -------------------------------------------------------------------------------------------------

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """What the agent does."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does: override _run_async_impl(ctx).")

    def run_async(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Run in this context; the events of it and of those inside it, as they are asked for.

        Closing the stream ends the run, and has run every `finally`. What an agent raises comes out unchanged; the
        context then says where to resume, as it does after a pause.
        """
        return stream(self, ctx)

    def begin_with(self, ctx: InvocationContext) -> dict[str, Any]:
        """The run's input: what the user said, and the invocation it resumes."""
        maps = {"agent_states": ctx.agent_states, "end_of_agents": ctx.end_of_agents}
        return {"role": "user", "content": Event(content=ctx.user_content).text, "invocation": maps}

    # -- as a loop -------------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Fact:
        """Run the agent's code, and end with what it came to."""
        if invocation_of(state).get("end_of_agents", {}).get(self.name):
            return RunEnd.make(reason="completed")
        call = next((call for call in state.calls.values() if call.name == RUN), None)
        if call is None or call.end is None:
            return CallProposed.make(call=ToolCall(id=f"{RUN}_{state.position}", name=RUN), hidden=True)
        if call.end.is_error:
            error = call.end.error or ErrorInfo.make(type="Error", message=str(call.end.result))
            return RunEnd.make(reason="error", error=error)
        came_to: Mapping[str, Any] = call.end.result
        if came_to["paused"]:
            return RunEnd.make(reason="suspended", output=came_to["output"])
        if came_to["escalate"] is None:
            return RunEnd.make(reason="completed", output=came_to["output"])
        if "escalate" not in state.values:
            return StateUpdate.make(values={"escalate": came_to["escalate"]})
        return RunEnd.make(reason="escalated", output=came_to["output"])

    async def _perform(self, arguments: dict[str, Any], state: State) -> AsyncGenerator[Any, None]:
        ctx = context_of(state)
        paused, escalate, output = False, None, None
        try:
            async with aclosing(self._with_callbacks(ctx)) as events:
                async for event in events:
                    if not event.partial:  # what is not kept decides nothing (1g.14)
                        ctx.session.events.append(event)
                        paused = paused or ctx.should_pause_invocation(event)
                        if event.actions.escalate and escalate is None:
                            escalate = event.actions.scope or "nearest"
                        output = event.text or output
                    yield ctx, event
        except Exception as error:
            ctx.error = error
            raise
        yield Result({"paused": paused, "escalate": escalate, "output": output})

    async def _with_callbacks(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        said = await _called(self.before_agent_callback, ctx)
        if said is not None:
            yield Event(author=self.name, content=said, invocation_id=ctx.invocation_id)
            return
        async with aclosing(self._run_async_impl(ctx)) as events:
            async for event in events:
                yield event
        said = await _called(self.after_agent_callback, ctx)
        if said is not None:
            yield Event(author=self.name, content=said, invocation_id=ctx.invocation_id)

    def fact_of(self, item: tuple[InvocationContext, Event]) -> Fact | Delta:
        """An event as a message; one that is partial is only shown."""
        ctx, event = item
        dumped = event.model_dump(exclude_defaults=True)
        data = mended_inside(to_jsonable_python(dumped, serialize_unknown=True))
        text, author = mended(event.text), event.author or self.name
        fact: Fact | Delta
        if event.partial:
            fact = Delta(type="call_delta", content=text, name=author, data=data)
        else:
            role = "user" if author == "user" else "assistant"
            fact = MessageAdded.make(message=Message(role=role, content=text, name=author, event=data))
        if ctx.forwarded is not None:
            ctx.forwarded.append((fact, event))
        return fact


async def _called(callback: Callable[[InvocationContext], Any] | None, ctx: InvocationContext) -> Any:
    said = callback(ctx) if callback is not None else None
    return await said if inspect.isawaitable(said) else said
