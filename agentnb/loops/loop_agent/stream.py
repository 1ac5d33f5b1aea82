"""The events of an invocation, as a projection of the run's events (SEMANTICS.md, 2. Vocabulary).

Events of sub-agents are forwarded unchanged. If the invocation is resumable, a checkpoint is emitted before each
sub-agent of a loop agent, and an end when the loop agent ends. Loops of other designs are translated: their text,
calls, questions to a person, and results. After each event, the two maps of the context say where to resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from agentnb.core import events as run_events
from agentnb.core.calls import render
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.context import Forwarded, InvocationContext
from agentnb.loops.loop_agent.event import ASKS_TO_CONFIRM, Event, EventActions, actions_of
from agentnb.loops.projection import Handlers, Projection

ABORTED = "INVOCATION_ABORTED"
NOT_ANSWERED = "Operation aborted"
"""The error that answers a call made by the code of an agent that was aborted."""
ENDS = frozenset({"escalated", "max_iterations", "empty"})
"""The stop reasons with which a loop agent ends by its own decision."""


class LoopAgentProjection(Projection[Event]):
    """Translates the events of a run into events of an invocation, and updates the context."""

    needs_state = False

    def __init__(self, agent: Loop, ctx: InvocationContext, forwarded: Forwarded) -> None:
        """agent: the outermost agent of the run. forwarded: the events that the code of its agents has yielded."""
        super().__init__()
        self._agent = agent
        self._ctx = ctx
        self._forwarded = forwarded
        self._made: set[tuple[str, str]] = set()
        """The calls made by models: path and call id."""

        # By the path of a loop:
        self._names: dict[str, str] = {}
        self._loop_agents: dict[str, Any] = {}
        """Loop agents that have not ended. None: a loop agent that is not in the tree of `agent`."""
        self._passes: dict[str, int] = {}
        self._outputs: dict[str, dict[str, Any]] = {}
        self._scopes: dict[str, str] = {}
        """The scope of an escalation that goes further than the loop at this path."""

    def catch_up(self, recording: Sequence[run_events.Event]) -> None:
        """Process the events of a resumed run that another context has delivered. The context is unchanged."""
        ctx, self._ctx = self._ctx, InvocationContext(is_resumable=self._ctx.is_resumable)
        for event in recording:
            for _ in self.translate(event):
                pass
        self._ctx = ctx

    def translate(self, item: run_events.Event | run_events.Delta) -> Iterable[Event]:
        """Return the events of the invocation that an event of the run, or of a nested loop, results in."""
        # An event that the code of an agent has yielded: forward the same object.
        forwarded = self._forwarded.take(item)
        return (forwarded,) if forwarded is not None else self.handle(item)

    # -- loop agents ---------------------------------------------------------------------------------------------------

    def _run_start(self, event: run_events.RunStart) -> Iterable[Event]:
        """Note the name of a loop that starts, and whether it is a loop agent that runs its own decision."""
        self._names[event.path] = event.name
        for of_its_last_run in (self._passes, self._outputs, self._scopes):
            of_its_last_run.pop(event.path, None)
        if "max_iterations" in event.config and "sub_agents" in event.config:
            agent: Any = self._agent
            for name in event.path.split("/") if event.path else ():
                below = getattr(agent, "sub_agents", ())
                agent = next((sub_agent for sub_agent in below if sub_agent.name == name), None)
            if agent is None or not agent.runs_code(event.input):
                self._loop_agents[event.path] = agent
        return ()

    def _state_update(self, event: run_events.StateUpdate) -> Iterable[Event]:
        """Translate the checkpoint of a loop agent, or its end. Note an escalation that goes further than the agent."""
        if "current_sub_agent" in event.values:
            return self._checkpoint(event)
        if "escalate" in event.values:
            self._scopes[event.path] = event.values["escalate"]
        elif "ending" in event.values:
            return self._end_of_agent(event.path, **event.values["ending"])
        return ()

    def _run_end(self, event: run_events.RunEnd) -> Iterator[Event]:
        if event.path in self._loop_agents and event.reason in ENDS:
            yield from self._end_of_agent(event.path, event.reason, event.output)
        # The invocation was aborted: answer the open calls.
        elif event.terminal and event.reason == "cancelled" and self._ctx.aborted:
            open_calls = self._ctx.session.open_calls()
            parts = [{"function_response": {**call, "response": {"error": NOT_ANSWERED}}} for call in open_calls]
            content = {"role": "user", "parts": parts} if parts else None
            why = "The invocation was aborted."
            yield self._event(self._author(event), content=content, error_code=ABORTED, error_message=why)

    def _checkpoint(self, event: run_events.StateUpdate) -> Iterator[Event]:
        """Yield the checkpoint of a loop agent, if the invocation is resumable."""
        passes, resumed = event.values["times_looped"], bool(event.values.get("resumed"))
        outputs = self._outputs[event.path] = event.values.get("said") or self._outputs.get(event.path, {})

        # At the start of a pass, reset the descendants, which start again.
        is_first = event.path not in self._passes
        if not resumed and (is_first or passes > self._passes[event.path]):
            self._ctx.reset_below(self._loop_agents[event.path])
        self._passes[event.path] = passes

        # At the resumed position no checkpoint is emitted again (SEMANTICS.md, 5. Checkpoints and resuming).
        if self._ctx.is_resumable:
            name = self._names[event.path]
            state = {key: event.values[key] for key in ("current_sub_agent", "times_looped")}
            if not resumed:
                yield self._event(name, EventActions(agent_state=state), said=outputs or None)
            elif not event.values.get("left"):
                self._ctx.set_agent_state(name, agent_state=state)

    def _end_of_agent(self, path: str, reason: str, output: Any) -> Iterator[Event]:
        """Yield the end of a loop agent, if the invocation is resumable."""
        agent = self._loop_agents.pop(path)
        if reason == "max_iterations":
            self._ctx.reset_below(agent)
        if not self._ctx.is_resumable:
            self._ctx.set_agent_state(self._names[path])
            return

        # An escalation beyond this loop also leaves the loops around it, up to its scope.
        scope, outer = self._scopes.get(path), path
        while scope is not None and outer and (outer := outer.rpartition("/")[0]) in self._loop_agents:
            self._ctx.leave(self._names[outer])
            if self._names[outer] == scope:
                break
        yield self._event(self._names[path], EventActions(end_of_agent=True), reason=reason, output=output)

    # -- loops of other designs: their text, calls, questions and results ----------------------------------------------

    def _delta(self, delta: run_events.Delta) -> Iterator[Event]:
        if delta.type == "text_delta":
            content = {"role": "model", "parts": [{"text": delta.content}]}
            yield self._event(self._author(delta), content=content, partial=True)

    def _model_end(self, event: run_events.ModelEnd) -> Iterator[Event]:
        answer: list[dict[str, Any]] = [{"text": event.message.content}] if event.message.content else []
        for call in event.message.tool_calls:
            self._made.add((event.path, call.id))
            answer.append({"function_call": {"id": call.id, "name": call.name, "args": call.arguments}})
        yield self._event(self._author(event), content={"role": "model", "parts": answer})

    def _approval_request(self, event: run_events.ApprovalRequest) -> Iterator[Event]:
        self._ctx.asked(event.call_id)
        asked = {"id": event.call_id, "name": event.name, "args": event.arguments}
        args = {"originalFunctionCall": asked}
        question = {"function_call": {"id": event.call_id, "name": ASKS_TO_CONFIRM, "args": args}}
        content = {"role": "model", "parts": [question]}
        yield self._event(self._author(event), content=content, long_running_tool_ids={event.call_id})

    def _approval_decision(self, event: run_events.ApprovalDecision) -> Iterable[Event]:
        self._ctx.decided(event.call_id)
        return ()

    def _call_end(self, event: run_events.CallEnd) -> Iterator[Event]:
        if (event.path, event.call_id) in self._made:
            response = {"id": event.call_id, "name": event.name, "response": render(event.result)}
            content = {"role": "user", "parts": [{"function_response": response}]}
            actions = EventActions() if event.is_error else actions_of(event.name, event.details)
            yield self._event(self._author(event), actions, content=content)

    def _author(self, item: run_events.Event | run_events.Delta) -> str:
        """Return the name of the loop to which an event belongs."""
        return self._names.get(item.path, self._agent.name)

    def _event(self, author: str, actions: EventActions | None = None, **fields: Any) -> Event:
        """Return a new event, and add it to the session unless it is partial."""
        invocation = self._ctx.invocation_id
        event = Event(author=author, actions=actions or EventActions(), invocation_id=invocation, **fields)
        if not event.partial:
            self._ctx.add(event, is_performed=True)  # a tool has changed the state itself
        return event

    handlers: ClassVar[Handlers] = {
        run_events.RunStart: _run_start,
        run_events.StateUpdate: _state_update,
        run_events.ModelEnd: _model_end,
        run_events.ApprovalRequest: _approval_request,
        run_events.ApprovalDecision: _approval_decision,
        run_events.CallEnd: _call_end,
        run_events.RunEnd: _run_end,
        run_events.Delta: _delta,
    }
