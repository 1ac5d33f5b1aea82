"""The events of an invocation, as a projection of the run's events (SEMANTICS.md, 2. Vocabulary).

What a sub-agent says is handed on as it is. Checkpoints are facts of every run, and events where the invocation is
resumable: one with the state of a loop agent before each sub-agent, and one that says it has ended. What other loops
do inside is said as events too: answers, calls, questions to a person, and results. The context follows: after each
event its two maps say where to resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentnb.core import events as facts
from agentnb.core.calls import render
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.context import ASKS_TO_CONFIRM, Forwarded, InvocationContext
from agentnb.loops.loop_agent.event import Event, EventActions

ABORTED = "INVOCATION_ABORTED"
NOT_ANSWERED = "Operation aborted"
"""What is said of a call that the code of an agent had made, and no longer could answer."""
ENDS = frozenset({"escalated", "max_iterations", "empty"})
"""How a loop agent comes to its own end; one that was broken off has none."""


class Projection:
    """Says the facts of a run as events of an invocation."""

    def __init__(self, agent: Loop, ctx: InvocationContext, forwarded: Forwarded) -> None:
        self._agent = agent
        self._ctx = ctx
        self._forwarded = forwarded
        self._names: dict[str, str] = {}
        self._loop_agents: dict[str, Any] = {}
        self._passes: dict[str, int] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._leaves: dict[str, str] = {}
        self._made: set[tuple[str, str]] = set()

    def catch_up(self, recording: Sequence[facts.Event]) -> None:
        """Take in what a run that goes on has said before, in another context, of which nothing is said again."""
        ctx, self._ctx = self._ctx, InvocationContext(is_resumable=self._ctx.is_resumable)
        for fact in recording:
            for _ in self.say(fact):
                pass
        self._ctx = ctx

    def say(self, fact: facts.Event | facts.Delta) -> Iterator[Event]:
        """The events that a fact is."""
        if (event := self._forwarded.take(fact)) is not None:
            yield event
        elif isinstance(fact, facts.RunStart):
            self._names[fact.path] = fact.name
            for of_its_last_run in (self._passes, self._said, self._leaves):
                of_its_last_run.pop(fact.path, None)
            if "max_iterations" in fact.config and "sub_agents" in fact.config:
                found = self._agent_at(fact.path)
                if found is None or not found.runs_code(fact.input):
                    self._loop_agents[fact.path] = found
        elif isinstance(fact, facts.StateUpdate):
            if "current_sub_agent" in fact.values:
                yield from self._checkpoint(fact)
            elif "escalate" in fact.values:
                self._leaves[fact.path] = fact.values["escalate"]
            elif "ending" in fact.values:
                yield from self._end_of_agent(fact.path, **fact.values["ending"])
        elif isinstance(fact, facts.RunEnd):
            yield from self._end(fact)
        else:
            yield from self._of_another_loop(fact)

    def _agent_at(self, path: str) -> Any:
        """The agent at a path; None where another loop has brought it along."""
        agent: Any = self._agent
        for name in path.split("/") if path else ():
            agent = next((inside for inside in getattr(agent, "sub_agents", ()) if inside.name == name), None)
        return agent

    def _checkpoint(self, fact: facts.StateUpdate) -> Iterator[Event]:
        passes, resumed = fact.values["times_looped"], bool(fact.values.get("resumed"))
        said = self._said[fact.path] = fact.values.get("said") or self._said.get(fact.path, {})
        is_first = fact.path not in self._passes
        if not resumed and (is_first or passes > self._passes[fact.path]):  # a pass begins: those inside begin anew
            self._ctx.reset_below(self._loop_agents[fact.path])
        self._passes[fact.path] = passes
        if not self._ctx.is_resumable:
            return
        name = self._names[fact.path]
        state = {key: fact.values[key] for key in ("current_sub_agent", "times_looped")}
        if not resumed:
            yield self._event(name, EventActions(agent_state=state), said=said or None)
        elif not fact.values.get("left"):
            self._ctx.set_agent_state(name, agent_state=state)

    def _end(self, fact: facts.RunEnd) -> Iterator[Event]:
        if fact.path in self._loop_agents and fact.reason in ENDS:
            yield from self._end_of_agent(fact.path, fact.reason, fact.output)
        elif fact.terminal and fact.reason == "cancelled" and self._ctx.aborted:
            name = self._names.get(fact.path, self._agent.name)
            open_calls = self._ctx.session.open_calls()
            parts = [_part("function_response", **call, response={"error": NOT_ANSWERED}) for call in open_calls]
            content = {"role": "user", "parts": parts} if parts else None
            yield self._event(name, content=content, error_code=ABORTED, error_message="The invocation was aborted.")

    def _end_of_agent(self, path: str, reason: str, output: Any) -> Iterator[Event]:
        agent = self._loop_agents.pop(path)
        if reason == "max_iterations":
            self._ctx.reset_below(agent)
        if self._ctx.is_resumable:
            self._leave_those_around(path)
            yield self._event(self._names[path], EventActions(end_of_agent=True), reason=reason, output=output)
        else:
            self._ctx.set_agent_state(self._names[path])

    def _leave_those_around(self, path: str) -> None:
        """An escalation that goes on beyond the loop at this path leaves those around it, whoever says so to them."""
        scope = self._leaves.get(path)
        while scope is not None and path and (path := path.rpartition("/")[0]) in self._loop_agents:
            self._ctx.leave(self._names[path])
            if self._names[path] == scope:
                return

    def _of_another_loop(self, fact: facts.Event | facts.Delta) -> Iterator[Event]:
        author = self._names.get(fact.path, self._agent.name)
        if isinstance(fact, facts.ModelEnd):
            parts: list[dict[str, Any]] = [{"text": fact.message.content}] if fact.message.content else []
            for call in fact.message.tool_calls:
                self._made.add((fact.path, call.id))
                parts.append(_part("function_call", id=call.id, name=call.name, args=call.arguments))
            yield self._event(author, content={"role": "model", "parts": parts})
        elif isinstance(fact, facts.ApprovalRequest):
            self._ctx.asked(fact.call_id)
            asked = {"originalFunctionCall": {"id": fact.call_id, "name": fact.name, "args": fact.arguments}}
            part = _part("function_call", id=fact.call_id, name=ASKS_TO_CONFIRM, args=asked)
            content = {"role": "model", "parts": [part]}
            yield self._event(author, content=content, long_running_tool_ids={fact.call_id})
        elif isinstance(fact, facts.ApprovalDecision):
            self._ctx.decided(fact.call_id)
        elif isinstance(fact, facts.CallEnd) and (fact.path, fact.call_id) in self._made:
            part = _part("function_response", id=fact.call_id, name=fact.name, response=render(fact.result))
            yield self._event(author, content={"role": "user", "parts": [part]})
        elif isinstance(fact, facts.Delta) and fact.type == "text_delta":
            content = {"role": "model", "parts": [{"text": fact.content}]}
            yield self._event(author, content=content, partial=True)

    def _event(self, author: str, actions: EventActions | None = None, **fields: Any) -> Event:
        invocation = self._ctx.invocation_id
        event = Event(author=author, actions=actions or EventActions(), invocation_id=invocation, **fields)
        if not event.partial:
            self._ctx.add(event)
        return event


def _part(kind: str, **fields: Any) -> dict[str, Any]:
    return {kind: fields}
