"""The events of an invocation: a run's facts in the words of LoopAgent's design (SEMANTICS 1b, 1c).

What a sub-agent says is handed on as it is. Checkpoints are facts of every run, and events where the invocation is
resumable: one with the state of a loop agent before each sub-agent, and one that says it has ended. What other loops
do inside is said as events too: answers, calls and results. The context follows: after each event its two maps say
where to resume.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentnb.core import events as facts
from agentnb.core.errors import RunFailed
from agentnb.core.evolve import render
from agentnb.loops.loop_agent.invocation import Event, EventActions, InvocationContext, use_context

if TYPE_CHECKING:
    from agentnb.loops.loop_agent.base_agent import BaseAgent

ABORTED = "INVOCATION_ABORTED"
ENDS = frozenset({"escalated", "max_iterations", "empty"})
"""How a loop agent comes to its own end; one that was broken off has none."""


async def stream(agent: BaseAgent, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
    """Run an agent in a context; its events, as they are asked for."""
    run = agent.start(agent.begin_with(ctx))
    use_context(run.id, ctx)
    ctx.begin()
    projection = Projection(agent, ctx)

    def stop() -> object:
        return run.cancel("aborted")

    ctx.on_abort.append(stop)
    try:
        async with aclosing(aiter(run)) as happening:
            async for fact in happening:
                if ctx.aborted:
                    run.cancel("aborted")
                for event in projection.say(fact):
                    yield event
    except RunFailed:
        if ctx.error is not None and run.state.stop_reason == "error":
            raise ctx.error from None
        raise
    finally:
        ctx.on_abort.remove(stop)
        ctx.forwarded = None


class Projection:
    """Says the facts of a run as events of an invocation."""

    def __init__(self, agent: BaseAgent, ctx: InvocationContext) -> None:
        self._agent = agent
        self._ctx = ctx
        self._names: dict[str, str] = {}
        self._loop_agents: set[str] = set()
        self._passes: dict[str, int] = {}
        self._made: set[tuple[str, str]] = set()

    def say(self, fact: facts.Event | facts.Delta) -> Iterator[Event]:
        """The events that a fact is."""
        forwarded = self._ctx.forwarded
        if forwarded and forwarded[0][0] is fact:
            yield forwarded.popleft()[1]
        elif isinstance(fact, facts.RunStart):
            self._names[fact.path] = fact.name
            if "max_iterations" in fact.config and "sub_agents" in fact.config:
                self._loop_agents.add(fact.path)
        elif isinstance(fact, facts.StateUpdate) and "current_sub_agent" in fact.values:
            yield from self._checkpoint(fact)
        elif isinstance(fact, facts.RunEnd):
            yield from self._end(fact)
        else:
            yield from self._of_another_loop(fact)

    def _checkpoint(self, fact: facts.StateUpdate) -> Iterator[Event]:
        name, passes = self._names[fact.path], fact.values["times_looped"]
        if not self._ctx.is_resumable:
            return
        if passes > self._passes.get(fact.path, passes):
            self._reset_below(name)
        self._passes[fact.path] = passes
        state = {key: fact.values[key] for key in ("current_sub_agent", "times_looped")}
        self._ctx.set_agent_state(name, agent_state=state)
        if not fact.values.get("resumed"):
            yield self._event(name, EventActions(agent_state=state))

    def _end(self, fact: facts.RunEnd) -> Iterator[Event]:
        name = self._names.get(fact.path, self._agent.name)
        if fact.path in self._loop_agents and fact.reason in ENDS and self._ctx.is_resumable:
            if fact.reason == "max_iterations":
                self._reset_below(name)
            self._ctx.set_agent_state(name, end_of_agent=True)
            yield self._event(name, EventActions(end_of_agent=True), custom_metadata={"reason": fact.reason})
        elif fact.terminal and fact.reason == "cancelled" and self._ctx.aborted:
            yield self._event(name, EventActions(), error_code=ABORTED, error_message="The invocation was aborted.")

    def _reset_below(self, name: str) -> None:
        """A pass is complete: those inside begin anew."""
        agent = self._agent.find_agent(name)
        for inside in getattr(agent, "sub_agents", ()):
            self._ctx.set_agent_state(inside.name)
            self._reset_below(inside.name)

    def _of_another_loop(self, fact: facts.Event | facts.Delta) -> Iterator[Event]:
        author = self._names.get(fact.path, self._agent.name)
        if isinstance(fact, facts.ModelEnd):
            parts: list[dict[str, Any]] = [{"text": fact.message.content}] if fact.message.content else []
            for call in fact.message.tool_calls:
                self._made.add((fact.path, call.id))
                parts.append({"function_call": {"id": call.id, "name": call.name, "args": call.arguments}})
            yield self._event(author, EventActions(), content={"role": "model", "parts": parts})
        elif isinstance(fact, facts.CallEnd) and (fact.path, fact.call_id) in self._made:
            response = {"id": fact.call_id, "name": fact.name, "response": render(fact.result)}
            parts = [{"function_response": response}]
            yield self._event(author, EventActions(), content={"role": "user", "parts": parts})
        elif isinstance(fact, facts.Delta) and fact.type == "text_delta":
            parts = [{"text": fact.content}]
            yield self._event(author, EventActions(), content={"role": "model", "parts": parts}, partial=True)

    def _event(self, author: str, actions: EventActions, **fields: Any) -> Event:
        event = Event(author=author, actions=actions, invocation_id=self._ctx.invocation_id, **fields)
        if not event.partial:
            self._ctx.session.events.append(event)
        return event
