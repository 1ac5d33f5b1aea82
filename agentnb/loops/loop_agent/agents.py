"""BaseAgent: an agent written as an async generator of events, in a tree of agents (SEMANTICS.md, 2. Vocabulary).

The events that an agent's code yields are journaled one by one, but the position of the code between two events cannot
be stored. So the whole code is one call of the agent's loop. If that call was interrupted, by a crash or by a pause,
the code runs again from its start; it must look up in the session what it must not do twice. The stop reason of the
loop is `completed`, `escalated` or `suspended`.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from functools import partial
from inspect import get_annotations
from types import NoneType
from typing import Any, ClassVar, Protocol, Self, TypeVar, Unpack, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic._internal._decorators import PydanticDescriptorProxy
from pydantic.fields import FieldInfo, ModelPrivateAttr
from pydantic_core import to_jsonable_python

from agentnb.core import events as run_events
from agentnb.core.errors import THROWN_IN, AlreadyDecided, InvalidArguments, RunFailed, UsageError
from agentnb.core.events import CallProposed, Delta, ErrorInfo, MessageAdded, Queued, RunEnd, StateUpdate
from agentnb.core.events import Event as RunEvent
from agentnb.core.json import repair_text, repair_texts
from agentnb.core.loop import Calls, Result
from agentnb.core.maybe_async import InnerGenerator
from agentnb.core.messages import Message
from agentnb.core.state import CallState, State
from agentnb.json_schema import argument_faults
from agentnb.loops import functions
from agentnb.loops.base import Loop
from agentnb.loops.events import propose
from agentnb.loops.loop_agent.callback_context import CallbackContext
from agentnb.loops.loop_agent.context import (
    Code,
    Invocation,
    InvocationContext,
    context_of,
    end_before,
    invocation_of,
)
from agentnb.loops.loop_agent.conversation import EARLIER, SINCE, entries_of_events
from agentnb.loops.loop_agent.event import Event, EventActions, field_of
from agentnb.loops.loop_agent.stream import LoopAgentProjection
from agentnb.run.validation import StartOptions

logger = logging.getLogger("agentnb")

Callback = Callable[[CallbackContext], Any]
Callbacks = Callback | Sequence[Callback] | None

_OWN = ("name", "description", "sub_agents", "before_agent_callback", "after_agent_callback")
"""The arguments of every agent."""

_OF_WORKFLOWS = (
    *("rerun_on_resume", "wait_for_output", "retry_config", "timeout"),
    *("input_schema", "output_schema", "state_schema"),
)
"""The attributes of ADK's agents that only ADK's workflows use."""

NOT_CONFIRMED = "This tool call is rejected."
"""The result, for the model, of a call that the user has not confirmed."""

RUN = "run_agent"
"""The name of the call that runs the code of an agent."""

AS_LOOP = "as_loop"
"""A key in the input of a run. The value is the name of an agent whose subclass has replaced the agent's decision by
code: this run uses the decision all the same."""

EventSource = Callable[[InvocationContext], AsyncGenerator[Event, None]]
AgentState = TypeVar("AgentState", bound=BaseModel)


class BaseAgentCalls(Calls):
    """The calls of an agent: of its code and its callbacks."""

    def result_given(self, call: CallState, result: Any) -> Any:
        """Return a user-supplied output of the agent as the result of its code."""
        if call.name not in self.loop.activities or (isinstance(result, Mapping) and result.keys() == _RESULT_FIELDS):
            return result
        return {"paused": False, "escalate": None, "output": result, "said": 1}

    def answer_to(self, id: str, result: Any, state: State) -> RunEvent | None:
        """Return the answer to a long-running call, for the session (SEMANTICS.md, 6. Pauses and questions)."""
        asked = [call for event in _events_in(state.messages) for call in event.long_running_calls]
        call = next((call for call in asked if field_of(call, "id") == id), None)
        if call is None:
            return None
        answers = [answer for event in _events_in(state.queues["input"]) for answer in event.get_function_responses()]
        if any(field_of(answer, "id") == id for answer in answers):
            raise AlreadyDecided(f"{self.loop.name} has the answer to {id!r} already.")
        response = result if isinstance(result, Mapping) else {"result": result}
        answer = {"function_response": {"id": id, "name": field_of(call, "name"), "response": response}}
        event = Event(author="user", content={"role": "user", "parts": [answer]})
        return Queued(queue="input", message=_message(event, self.loop.name))


class BaseAgent(Loop):
    """An agent to subclass: override `async def _run_async_impl(self, ctx)`, an async generator of events.

    name: an identifier, not `user`. description: text for a model or a person that chooses an agent. sub_agents: agents
    or other loops, which the code of this agent runs by `run_async(ctx)`. before_agent_callback, after_agent_callback:
    called as `callback(callback_context=...)` around each run of the agent; sync or async. Content returned by the
    first replaces the run; content returned by the second is added after it. Each may be a list, whose callbacks are
    called until one returns content. Other keyword arguments are attributes that a subclass declares.

    Raises InvalidArguments if the name is not valid, two sub-agents have the same name, a sub-agent already has a
    parent, a callback is not callable, no class declares a keyword argument, or a declared one is missing.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {"idle": ["running", "done"], "running": ["done"], "done": []}
    opened_by: ClassVar[Mapping[str, str]] = {"call_start": "running", "run_end": "done"}
    listens = False
    calls_class = BaseAgentCalls
    tells = False
    """True if the agent tells sub-agents with a model what was said. The code of other agents reads the session."""

    rerun_on_resume: Any = False
    wait_for_output: Any = False
    retry_config: Any = None
    timeout: Any = None
    input_schema: Any = None
    output_schema: Any = None
    state_schema: Any = None

    def __init__(
        self,
        name: str | None = None,
        sub_agents: Sequence[Any] = (),
        *,
        description: str = "",
        before_agent_callback: Callbacks = None,
        after_agent_callback: Callbacks = None,
        **attributes: Any,
    ) -> None:
        super().__init__(name=name)
        for attribute, value in _declared(type(self)).items():
            setattr(self, attribute, value)
        _check_name(name if name == "" else self.name)
        self.description = description
        if isinstance(sub_agents, (str, Loop)) or not isinstance(sub_agents, Iterable):
            raise InvalidArguments(f"sub_agents of {self.name} must be a list of agents, not {sub_agents!r}.")
        if others := [agent for agent in sub_agents if not isinstance(agent, Loop)]:
            raise InvalidArguments(f"A sub-agent of {self.name} must be an agent or another loop, not {others[0]!r}.")
        self.sub_agents: list[Loop] = list(sub_agents)
        self.parent_agent: BaseAgent | None = None
        callbacks: list[object] = [*each_of(before_agent_callback), *each_of(after_agent_callback)]
        if odd := [callback for callback in callbacks if not callable(callback)]:
            raise InvalidArguments(
                f"A callback of {self.name} must be a function or a list of functions, not {odd[0]!r}."
            )
        self.before_agent_callback = before_agent_callback
        self.after_agent_callback = after_agent_callback
        self._check_declared(attributes)
        for attribute, value in _checked(type(self), attributes).items():
            setattr(self, attribute, value)
        self._adopt()
        self._bind()
        self.model_post_init(None)

    def model_post_init(self, context: Any, /) -> None:
        """Complete the agent after its construction; for subclasses."""

    def _adopt(self) -> None:
        """Become the parent of all sub-agents, or raise InvalidArguments and become the parent of none."""
        names = [agent.name for agent in self.sub_agents]
        for agent in self.sub_agents:
            if names.count(agent.name) > 1:
                raise InvalidArguments(f"Two sub-agents of {self.name} have the name {agent.name}. Rename one of them.")
            if isinstance(agent, BaseAgent) and agent.parent_agent is not None:
                raise InvalidArguments(
                    f"{agent.name} already has a parent: {agent.parent_agent.name}. Use clone() to add a copy."
                )
        for agent in self.sub_agents:
            if isinstance(agent, BaseAgent):
                agent.parent_agent = self
        names = [self.name, *(agent.name for agent in self._descendants())]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            logger.warning(
                "Agents of %s share a name (%s), but their states are stored by name. Give them different names.",
                self.name,
                twice,
            )

    def _descendants(self) -> Iterator[Loop]:
        """Yield the descendants, each agent before its own descendants."""
        for agent in self.sub_agents:
            yield agent
            if isinstance(agent, BaseAgent):
                yield from agent._descendants()

    def _check_declared(self, attributes: Mapping[str, Any]) -> None:
        """Raise InvalidArguments for a keyword argument that no class of the agent declares, and for a missing one."""
        kind = type(self)
        if getattr(kind, "model_config", {}).get("extra") == "allow":
            return
        declared = [*_fields_of(kind), *self._more_fields]
        for attribute in attributes:
            is_for_workflows = attribute in _OF_WORKFLOWS and attribute not in declared
            if is_for_workflows and attributes[attribute] != getattr(kind, attribute):
                raise InvalidArguments(f"{attribute}= is for ADK's workflows, which agentnb does not include.")
            is_method = callable(getattr(kind, attribute, None))
            if attribute not in declared and (is_method or not hasattr(kind, attribute)):
                close = get_close_matches(attribute, [*_OWN, *declared], 1)
                meant = f"; {close[0]}= is probably meant" if close else ""
                raise InvalidArguments(
                    f"{kind.__name__} takes no {attribute}={meant}. To add an attribute, declare it in the class:"
                    f" `{attribute}: Any`."
                )
        missing = [name for name in _fields_of(kind) if name not in attributes and not hasattr(self, name)]
        if missing and not _has_own_init(kind):
            raise InvalidArguments(f"{kind.__name__} needs {missing[0]}=, which the class declares without a default.")

    _more_fields: tuple[str, ...] = ()
    """The arguments of this kind of agent, besides those of every agent."""

    @property
    def root_agent(self) -> BaseAgent:
        """The outermost ancestor; the agent itself if it has no parent."""
        return list(self.ancestors())[-1] if self.parent_agent is not None else self

    def clone(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of the agent and its descendants, without a parent. Loops of other designs are not copied.

        update: new values of attributes, by name. A callback that is a method of the agent is bound to the copy.

        Raises InvalidArguments for `parent_agent`, and for an attribute that is not an argument of the agent.
        """
        changed = dict(update or {})
        fields = (*_OWN, *self._more_fields, *_fields_of(type(self)))
        if "parent_agent" in changed:
            raise InvalidArguments(
                "Cannot update `parent_agent` field in clone. A copy gets its parent when it becomes a sub-agent."
            )
        if unknown := [name for name in changed if name not in fields]:
            kind, has = type(self).__name__, ", ".join(fields)
            raise InvalidArguments(f"Cannot update nonexistent fields in {kind}: {unknown}. The fields are: {has}.")
        cloned = copy.copy(self)
        for name, value in vars(self).items():
            setattr(cloned, name, _bound_to(cloned, self, value))
        cloned.parent_agent = None
        cloned.sub_agents = [agent.clone() if isinstance(agent, BaseAgent) else agent for agent in self.sub_agents]
        for name, value in changed.items():
            setattr(cloned, name, list(value) if name == "sub_agents" else value)
        _check_name(cloned.name)
        cloned._adopt()
        cloned._bind()
        return cloned

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of the agent alone, with the same parent and sub-agents. `clone` copies the descendants too.

        update: new values of attributes, by name.
        """
        copied = copy.copy(self)
        for name, value in (update or {}).items():
            setattr(copied, name, value)
        _check_name(copied.name)
        copied._bind()
        return copied

    def find_agent(self, name: str) -> Loop | None:
        """Return the agent or descendant of this name, or None."""
        return self if name == self.name else self.find_sub_agent(name)

    def find_sub_agent(self, name: str) -> Loop | None:
        """Return the descendant of this name, or None."""
        return next((agent for agent in self._descendants() if agent.name == name), None)

    def reach(self, scope: str | None) -> int:
        """Return a number that is greater for a scope that leaves more enclosing agents, to compare scopes.

        None, no escalation, has the smallest number. A name that no enclosing agent has, such as `root`, has the
        greatest.
        """
        if scope is None:
            return -1
        names = ["nearest", *(agent.name for agent in self.ancestors())]
        return names.index(scope) if scope in names else len(names)

    def ancestors(self) -> Iterator[BaseAgent]:
        """Yield the ancestors, the parent first."""
        agent = self.parent_agent
        while agent is not None:
            yield agent
            agent = agent.parent_agent

    def _bind(self) -> None:
        """Set the attributes that refer to this object. Called again for each copy of it."""
        self.activities = {RUN: partial(self._perform, self._with_callbacks)}

    # -- the agent -------------------------------------------------------------------------------------------------

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Yield the events of the agent; for subclasses."""
        raise NotImplementedError(f"{type(self).__name__} has no code: override _run_async_impl(ctx).")

    def _run_live_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Yield the events of the agent in a conversation by voice or video; for subclasses."""
        raise NotImplementedError(f"{type(self).__name__} has no code: override _run_live_impl(ctx).")

    def run_async(
        self, parent_context: InvocationContext, **options: Unpack[StartOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run the agent in this context. Return the stream of its events and those of its descendants.

        The run advances when the next event is requested. Closing the stream ends the run, after every `finally`. An
        exception of an agent is raised unchanged; the context then says where to resume, as after a pause. If a call
        awaits approval, and nothing else is in flight, the stream ends with the question; a new context with the
        session and the answer resumes the run.

        options: as for `start`. Raises UsageError if `parent_context` is not an InvocationContext.
        """
        return self._opened(stream, parent_context, **options)

    def run_live(
        self, parent_context: InvocationContext, **options: Unpack[StartOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run `_run_live_impl` in this context. See `run_async`, which runs `_run_async_impl`."""
        live = copy.copy(self)
        live._run_async_impl = self._run_live_impl  # type: ignore[method-assign]  # of this copy alone
        live._bind()
        return live.run_async(parent_context, **options)

    def _opened(self, open: Callable[..., Any], ctx: InvocationContext, **options: Any) -> AsyncGenerator[Event, None]:
        """Return a stream in this context. If the code of an agent has opened it, it is closed when the code ends."""
        if not isinstance(ctx, InvocationContext):
            raise UsageError(f"{self.name}.run_async(ctx) takes an InvocationContext, not {ctx!r}.")
        opened: AsyncGenerator[Event, None] = open(self, ctx, **options)
        if ctx.code is not None:
            ctx.code.opens(opened)
        return opened

    def _load_agent_state(self, ctx: InvocationContext, state_type: type[AgentState]) -> AgentState | None:
        """Return the state of the agent in this invocation as `state_type`, or None if it has none."""
        state = ctx.get_agent_state(self.name)
        return state_type.model_validate(state) if state is not None else None

    def _create_agent_state_event(self, ctx: InvocationContext) -> Event:
        """Return the event with the state of the agent in this invocation."""
        state, ended = ctx.get_agent_state(self.name), ctx.end_of_agents.get(self.name)
        actions = EventActions(agent_state=state, end_of_agent=True if ended else None)
        return Event(author=self.name, invocation_id=ctx.invocation_id, branch=ctx.branch, actions=actions)

    @property
    def canonical_before_agent_callbacks(self) -> list[Any]:
        """The callbacks to call before the agent runs."""
        return list(each_of(self.before_agent_callback))

    @property
    def canonical_after_agent_callbacks(self) -> list[Any]:
        """The callbacks to call after the agent has run."""
        return list(each_of(self.after_agent_callback))

    def begin_with(self, ctx: InvocationContext, *, as_loop: bool = False) -> dict[str, Any]:
        """Return the input of a run: the content of the user, and the position of the invocation to resume.

        as_loop: run the agent's decision, although a subclass replaces it by code.
        """
        maps: dict[str, Any] = {"agent_states": ctx.agent_states, "end_of_agents": ctx.end_of_agents}
        if not isinstance(ctx.user_content, (str, NoneType)):  # the message has only its text
            maps["user_content"] = _jsonable(ctx.user_content)
        if self.name in ctx.agent_states or self.name in ctx.end_of_agents:  # the agent resumes
            at_checkpoints, outputs = ctx.session.outputs_at_checkpoints(), ctx.session.outputs()
            maps["said"] = {name: at_checkpoints[name] for name in ctx.agent_states if name in at_checkpoints}
            maps["outputs"] = {name: outputs[name] for name in ctx.end_of_agents if name in outputs}
        text = Event(content=ctx.user_content).text
        input: dict[str, Any] = {"role": "user", "content": text, "invocation": maps}
        if self.tells:
            events, began = ctx.session.events, ctx.began
            if self.name in ctx.agent_states:  # what was said after the last checkpoint is said again
                events = events[: _after_last_checkpoint(events)]
            for key, part in ((EARLIER, events[:began]), (SINCE, events[began:])):
                if entries := entries_of_events(part, ctx.branch):
                    input[key] = entries
        return {**input, AS_LOOP: self.name} if as_loop else input

    @property
    def itself(self) -> object:
        """The loop that a run of this agent is attributed to: the agent, or the loop that an adapter runs."""
        return self

    def keeps(self, event: Event) -> bool:
        """Return True if this agent is the last one that an escalation in its stream leaves."""
        return False

    # -- as a loop -------------------------------------------------------------------------------------------------

    def advance(self, state: State) -> RunEvent:
        """Return the next event: the call of the agent's code, then the end."""
        if (ended := end_before(self.name, state)) is not None:
            return ended
        call = own_call(RUN, state)
        if call is None or call.end is None:
            return propose_own_call(RUN, state)
        if call.end.is_error:
            return failed(call)
        result: Mapping[str, Any] = call.end.result
        if result["paused"]:
            return RunEnd(reason="suspended", output=result["output"])
        if result["escalate"] is None:
            return RunEnd(reason="completed", output=result["output"])
        if "escalate" not in state.values:
            return StateUpdate(values={"escalate": result["escalate"]})
        return RunEnd(reason="escalated", output=result["output"])

    def make_context(self, state: State, recording: Sequence[RunEvent], outer: object) -> Invocation:
        """Return the invocation of a run of this agent: the outer one if its agent is an ancestor, else a new one."""
        around = outer if isinstance(outer, Invocation) else None
        if around is not None and any(agent is around.agent for agent in self.ancestors()):
            return around
        return Invocation(self, state, recording, around)

    async def _perform(self, code: EventSource, arguments: dict[str, Any], state: State) -> AsyncGenerator[Any, None]:
        """Run code of the agent. Yield its events, and then a `Result` with the fields `_RESULT_FIELDS`.

        code: a function that returns the generator of its events.
        """
        ctx = context_of(state, self)
        is_restarted = any(call.attempt > 1 for call in state.open.values())
        if not (state.messages or invocation_of(state) or is_restarted):
            ctx.set_agent_state(self.name)  # it has not started
        forwarded = ctx.forwarded(state.run_id)
        pausing: list[Event] = []
        escalate, output, emitted = None, None, 0
        running, above = Code(self), ctx.code
        ctx.enter(running)
        try:
            async with aclosing(InnerGenerator(code(ctx))) as events:
                async for event in events:
                    if not isinstance(event, Event):
                        raise TypeError(f"{self.name} yielded a {type(event).__name__}. Yield an Event.")

                    # Perform its actions. Those of a partial event are ignored (SEMANTICS.md, 4. Escalation).
                    if not event.partial:
                        ctx.add(event)
                        emitted += event.content is not None
                        pausing += [event] if event.pauses else []
                        escalate = max(escalate, ctx.escalation(event), key=self.reach)
                        output = event.text or output

                    # Journal the event as a message; a partial one is only shown.
                    message = _message(event, self.name)
                    run_event: RunEvent | Delta
                    if event.partial:
                        text, data = str(message.content), message["event"]
                        run_event = Delta(type="call_delta", content=text, name=message.name, data=data)
                    else:
                        run_event = MessageAdded(message=message)
                    if forwarded is not None:
                        forwarded.put(run_event, event)

                    # While the consumer has the event, the code is not running.
                    ctx.enter(above)
                    yield run_event
                    ctx.enter(running)
        except THROWN_IN:
            raise
        except BaseException as error:
            if forwarded is not None:
                forwarded.error = error
            raise
        finally:
            ctx.enter(above)
            await running.close()
        paused = any(ctx.should_pause_invocation(event) for event in pausing)
        escalate = "root" if ctx.end_invocation else escalate
        yield Result({"paused": paused, "escalate": escalate, "output": output, "said": emitted})

    async def _with_callbacks(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Yield the events of the callbacks before, then of the agent's code, then of the callbacks after."""
        if (before := await self._call_back(self.before_agent_callback, ctx)) is not None:
            yield before
            if before.content is not None:
                return
        if ctx.end_invocation:
            return
        events: Any = self._run_async_impl(ctx)
        if inspect.iscoroutine(events):  # code without a `yield` is not a generator, and emits no event
            events = await events
        elif isinstance(events, AsyncGenerator):
            async with aclosing(InnerGenerator(events)) as inside:
                async for event in inside:
                    yield event
            events = None
        if events is not None:
            raise TypeError(
                f"{self.name}._run_async_impl returned a {type(events).__name__}."
                " It must be `async def`, and yield Events."
            )
        if (after := await self._call_back(self.after_agent_callback, ctx)) is not None:
            yield after

    async def _call_back(self, callbacks: Callbacks, ctx: InvocationContext) -> Event | None:
        """Call the callbacks until one returns content, or the invocation is to end.

        Returns an event with the content and the changes of the state, or None if there is neither.
        """
        context, content = CallbackContext(ctx), None
        for callback in each_of(callbacks):
            if content or ctx.end_invocation:
                break
            # Pass the context by its keyword, or by position if the parameter has another name.
            function: Callable[..., Any] = callback
            try:
                inspect.signature(function).bind(callback_context=context)
                takes_keyword = True
            except (TypeError, ValueError):
                takes_keyword = False
            arguments = ((), {"callback_context": context}) if takes_keyword else ((context,), {})
            content = await functions.call(function, *arguments[0], **arguments[1])
        actions = context.actions
        if not content and actions == EventActions():
            return None
        made_in = {"invocation_id": ctx.invocation_id, "branch": ctx.branch}
        return Event(author=self.name, content=content or None, actions=actions, **made_in)


async def stream(
    agent: BaseAgent, ctx: InvocationContext, *, as_loop: bool = False, **options: Unpack[StartOptions]
) -> AsyncGenerator[Event, None]:
    """Run an agent in a context, and yield its events.

    as_loop: run the agent's decision, although a subclass replaces it by code. options: as for `start`.
    """
    # Resume the run that waits for an answer in this context, or start one.
    same, waiting = ctx.session.waiting.pop(agent.name, (None, None))
    answers = ctx.confirmations()
    if waiting is not None and same is agent.itself and any(item.id in answers for item in waiting.pending):
        run = agent.go_on_from(waiting, **options)
        delivered = len(run.events)
    else:
        if ctx.code is not None and ctx.has_ended(agent.name):  # the code of another agent runs it again
            ctx.set_agent_state(agent.name)
            ctx.reset_below(agent)
        elif ctx.code is None and not (ctx.agent_states or ctx.end_of_agents):
            ctx.began = len(ctx.session.events)
        run, delivered = agent.start(agent.begin_with(ctx, as_loop=as_loop), **options), 0

    # Attach the run to the context. If a reader may answer questions, the stream ends at a question.
    assert isinstance(run.loop_context, Invocation)
    run.loop_context.context = ctx
    if ctx.code is None:
        ctx.add_answers()
    if ctx.is_streamed:
        run.suspend_at_questions()

    # Decide the questions that the resumed run had asked.
    forwarded = ctx.open(run)
    projection = LoopAgentProjection(agent, ctx, forwarded)
    if delivered:
        projection.catch_up(run.events)
        _decide(run, answers)
        answers = {}

    # Drive the run, and yield the events of the invocation.
    error: BaseException | None = None
    try:
        async with aclosing(InnerGenerator(aiter(run))) as events:
            async for run_event in events:
                if run_event.seq is not None and run_event.seq < delivered:
                    continue
                if ctx.aborted:
                    run.cancel("aborted")

                # Code that runs again makes its calls again. Decide such a call by the answer in the context, if the
                # answer is about exactly this call. An id is not enough: the call that the session has recorded under
                # the id must have the same name and arguments.
                if isinstance(run_event, run_events.ApprovalRequest) and run_event.call_id in answers:
                    asked = {"name": run_event.name, "args": run_event.arguments}
                    answered = ctx.session.asked_about(run_event.call_id)
                    if answered is not None and asked == {key: field_of(answered, key) for key in asked}:
                        _decide(run, {run_event.call_id: answers.pop(run_event.call_id)})
                        continue  # the question is not asked again

                for event in projection.translate(run_event):
                    if agent.keeps(event):
                        ctx.keep(event)
                    yield event
        if run.stop_reason == "suspended" and run.pending:
            ctx.session.waiting[agent.name] = agent.itself, run
    except RunFailed as failed:
        error = forwarded.error if run.stop_reason == "error" else None
        error = error or failed.__cause__ or failed
    finally:
        ctx.close(run)
    if error is not None:  # raised outside of the handler, so that it gets no other context
        raise error


class _AskingRun(Protocol):
    """A run, as seen by code that decides its calls."""

    @property
    def pending(self) -> Sequence[Any]: ...

    def approve(self, call: Any, /) -> object: ...

    def reject(self, call: Any, reason: str, /) -> object: ...


def _decide(run: _AskingRun, answers: Mapping[str, bool]) -> None:
    """Approve or reject the pending calls of a run for which there is an answer."""
    for item in run.pending:
        if item.id in answers:
            if answers[item.id]:
                run.approve(item)
            else:
                run.reject(item, NOT_CONFIRMED)


def _message(event: Event, name: str) -> Message:
    text, author = repair_text(event.text), repair_text(event.author) or name
    role = "user" if author == "user" else "assistant"
    return Message(role=role, content=text, name=author, event=_jsonable(event.model_dump(exclude_defaults=True)))


def _events_in(messages: Sequence[Message]) -> list[Event]:
    return [Event.model_validate(event) for message in messages if isinstance(event := message.get("event"), dict)]


def _after_last_checkpoint(events: Sequence[Event]) -> int:
    """Return the position after the last checkpoint or end of a loop agent; that of the last event if there is none."""
    for position in range(len(events), 0, -1):
        actions = events[position - 1].actions
        if actions.end_of_agent or "current_sub_agent" in (actions.agent_state or ()):
            return position
    return len(events)


def _jsonable(value: Any) -> Any:
    return repair_texts(to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64"))


_RESULT_FIELDS = {"paused", "escalate", "output", "said"}
"""The fields of the result of an agent's code; `said` is the number of its events with content."""


def own_call(name: str, state: State) -> CallState | None:
    """Return the agent's own call of this name in the current run, or None."""
    return next((call for call in state.calls.values() if call.name == name), None)


def propose_own_call(name: str, state: State, **arguments: Any) -> CallProposed:
    """Return the event that proposes a call of the agent itself. An earlier call of this name has another id."""
    return propose(state, f"{name}_{state.position}", name, arguments)


def failed(call: CallState) -> RunEnd:
    """Return the end of a loop after one of its own calls has failed."""
    assert call.end is not None
    error = call.end.error or ErrorInfo(type="Error", message=str(call.end.result))
    return RunEnd(reason="error", error=error)


def each_of(callbacks: Callbacks) -> Sequence[Callback]:
    """Return the callbacks as a sequence, in the order in which they are called."""
    if callbacks is None:
        return ()
    return callbacks if isinstance(callbacks, (list, tuple)) else (callbacks,)


def _check_name(name: str) -> None:
    if not name.isidentifier() or name == "user":
        raise InvalidArguments(f"The name of an agent must be an identifier other than 'user', not {name!r}.")


def _fields_of(kind: type) -> list[str]:
    """Return the names of the attributes that the classes of an agent declare by annotations."""
    bases = [base for base in kind.__mro__ if base not in BaseAgent.__mro__]
    declared = {name: kind for base in bases for name, kind in get_annotations(base).items()}
    return [name for name, kind in declared.items() if "ClassVar" not in str(kind) and not name.startswith("_")]


def _checked(kind: type, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the attributes that a subclass declares, checked and converted as in a pydantic model.

    Raises InvalidArguments, a ValueError, for a value that its declaration excludes.
    """
    fields = _fields_of(kind)
    declared: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for base in reversed([base for base in kind.__mro__ if base not in BaseAgent.__mro__]):
        try:
            hints = get_type_hints(base, include_extras=True)
        except NameError:  # a type that only a type checker knows, or one of a function
            return dict(attributes)
        own = {name: hints[name] for name in get_annotations(base) if name in fields}
        types |= own
        for name, value in vars(base).items():
            is_validator = isinstance(value, PydanticDescriptorProxy)
            if is_validator or (name in own and isinstance(value, FieldInfo)):
                declared[name] = value
    given = {name: attributes[name] for name in types if name in attributes}
    if not given:
        return dict(attributes)
    declared |= {name: None for name in types if name not in given}  # a default, which pydantic does not check
    try:
        config = ConfigDict(arbitrary_types_allowed=True, extra="allow")
        body = {**declared, "__annotations__": types, "__module__": kind.__module__, "model_config": config}
        model: type[BaseModel] = type(kind.__name__, (BaseModel,), body)
    except Exception:  # pydantic cannot check these types
        return dict(attributes)
    try:
        checked = model.model_validate(given)
    except ValidationError as error:
        raise InvalidArguments(f"Invalid arguments for {kind.__name__}: {argument_faults(error)}.") from error
    found = {name: getattr(checked, name) for name in given}
    return {**attributes, **{name: value for name, value in found.items() if not _is_same(given[name], value)}}


def _is_same(given: Any, converted: Any) -> bool:
    """Return True if pydantic has only copied the value: the agent then keeps the object that it was given."""
    try:
        return type(given) is type(converted) and bool(given == converted)
    except Exception:  # an array
        return True


def _has_own_init(kind: type) -> bool:
    """Return True if a subclass has its own `__init__`, which may set its attributes later."""
    own = next(base for base in kind.__mro__ if "__init__" in vars(base))
    return not own.__module__.startswith("agentnb.loops.loop_agent")


def _bound_to(cloned: BaseAgent, agent: BaseAgent, value: Any) -> Any:
    """Return the value of an attribute for a copy of an agent: methods of the agent are bound to the copy."""
    if isinstance(value, list):
        return [_bound_to(cloned, agent, item) for item in value]
    return value.__func__.__get__(cloned) if getattr(value, "__self__", None) is agent else value


def _declared(kind: type) -> dict[str, Any]:
    """Return the defaults that a subclass declares as in a pydantic model, copied for each agent."""
    declared: dict[str, Any] = {}
    for base in reversed([base for base in kind.__mro__ if base not in BaseAgent.__mro__]):  # those declare no defaults
        annotations = get_annotations(base)
        for attribute, value in vars(base).items():
            if isinstance(value, FieldInfo) and not value.is_required():
                declared[attribute] = value.get_default(call_default_factory=True, validated_data={})
            elif isinstance(value, ModelPrivateAttr):
                factory: Any = value.default_factory
                declared[attribute] = factory() if factory is not None else copy.deepcopy(value.default)
            elif isinstance(value, (list, dict, set)) and "ClassVar" not in str(annotations.get(attribute, "ClassVar")):
                declared[attribute] = copy.deepcopy(value)
    return declared
