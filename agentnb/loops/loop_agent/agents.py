"""BaseAgent: an agent written as an async generator of events, in a tree of agents (SEMANTICS.md, 2. Vocabulary).

The events that an agent's code yields are journaled one by one, but its position between them is unknown. So the code
is one call of the agent's loop. If that call was interrupted, by a crash or by a pause, the code runs again from its
start; it must look up in the session what it must not do twice. The stop reason of the loop is `completed`, `escalated`
or `suspended`.
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
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Unpack

from pydantic import BaseModel
from pydantic.fields import FieldInfo, ModelPrivateAttr
from pydantic_core import to_jsonable_python

from agentnb.core import events as facts
from agentnb.core.errors import THROWN_IN, AlreadyDecided, InvalidArguments, RunFailed, UsageError
from agentnb.core.events import CallProposed, Delta, ErrorInfo, MessageAdded, Queued, RunEnd, StateUpdate
from agentnb.core.events import Event as Fact
from agentnb.core.loop import Result
from agentnb.core.maybe_async import Inside, settled
from agentnb.core.messages import Message
from agentnb.core.state import CallState, State
from agentnb.core.unicode import mended, mended_inside
from agentnb.loops.base import Loop, propose
from agentnb.loops.loop_agent.callback_context import CallbackContext
from agentnb.loops.loop_agent.context import (
    Code,
    Companion,
    InvocationContext,
    context_of,
    end_before,
    invocation_of,
    use_context,
)
from agentnb.loops.loop_agent.event import Event, EventActions, read
from agentnb.loops.loop_agent.stream import Projection
from agentnb.loops.options import StartOptions

if TYPE_CHECKING:
    from agentnb.run import Run


logger = logging.getLogger("agentnb")

Callback = Callable[[CallbackContext], Any]
Callbacks = Callback | Sequence[Callback] | None

_OWN = ("name", "description", "sub_agents", "before_agent_callback", "after_agent_callback")
"""The attributes that every agent is made with."""

_OF_WORKFLOWS = (
    *("rerun_on_resume", "wait_for_output", "retry_config", "timeout"),
    *("input_schema", "output_schema", "state_schema"),
)
"""The attributes of ADK's agents that its workflows use, and nothing else."""


NOT_CONFIRMED = "This tool call is rejected."
"""What a model is told of a call that the user has not confirmed."""

RUN = "run_agent"
AS_LOOP = "as_loop"
"""In the input of a run: the name of the agent whose own decision runs, though a subclass has code in its place."""

Saying = Callable[[InvocationContext], AsyncGenerator[Event, None]]
AgentState = TypeVar("AgentState", bound=BaseModel)


class BaseAgent(Loop):
    """An agent to subclass: override `async def _run_async_impl(self, ctx)`, a generator of events.

    name: an identifier, not `user`. description: for whoever chooses among agents. sub_agents: those it hands on to, by
    `run_async(ctx)`: agents, or any other loops.
    before_agent_callback, after_agent_callback: called as `callback(callback_context=...)` around each run of it, sync
    or async; content that the first returns stands for the run, content that the second returns comes after it. Of a
    list of them each is called until one returns something. Other keywords are attributes that a subclass declares.

    Raises InvalidArguments for a name that is not valid, for sub-agents that share a name or have another parent, for a
    callback that cannot be called, and for a keyword that no class declares.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {"idle": ["running", "done"], "running": ["done"], "done": []}
    opened_by: ClassVar[Mapping[str, str]] = {"call_start": "running", "run_end": "done"}
    listens = False

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
            raise InvalidArguments(f"sub_agents= of {self.name} takes a list of agents, not {sub_agents!r}.")
        if others := [agent for agent in sub_agents if not isinstance(agent, Loop)]:
            raise InvalidArguments(f"A sub-agent of {self.name} is an agent or another loop, not {others[0]!r}.")
        self.sub_agents: list[Loop] = list(sub_agents)
        self.parent_agent: BaseAgent | None = None
        callbacks: list[object] = [*each_of(before_agent_callback), *each_of(after_agent_callback)]
        if odd := [callback for callback in callbacks if not callable(callback)]:
            raise InvalidArguments(f"A callback of {self.name} is a function, or a list of them, not {odd[0]!r}.")
        self.before_agent_callback = before_agent_callback
        self.after_agent_callback = after_agent_callback
        self._check_declared(attributes)
        for attribute, value in attributes.items():
            setattr(self, attribute, value)
        self._adopt()
        self._bind()
        self.model_post_init(None)

    def model_post_init(self, context: Any, /) -> None:
        """Do what a subclass has to do once the agent is made."""

    def _adopt(self) -> None:
        names = [agent.name for agent in self.sub_agents]
        for agent in self.sub_agents:
            if names.count(agent.name) > 1:
                raise InvalidArguments(f"Two sub-agents of {self.name} are called {agent.name}.")
            if isinstance(agent, BaseAgent) and agent.parent_agent is not None:
                raise InvalidArguments(f"{agent.name} has a parent already: {agent.parent_agent.name}.")
        for agent in self.sub_agents:
            if isinstance(agent, BaseAgent):
                agent.parent_agent = self
        names = [self.name, *(agent.name for agent in self._below())]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            logger.warning("Agents of %s share a name (%s): where they stand is kept by name.", self.name, twice)

    def _below(self) -> Iterator[Loop]:
        for agent in self.sub_agents:
            yield agent
            if isinstance(agent, BaseAgent):
                yield from agent._below()

    def _check_declared(self, attributes: Mapping[str, Any]) -> None:
        """Raise InvalidArguments for a keyword that no class of the agent declares: it is probably misspelt."""
        kind = type(self)
        if getattr(kind, "model_config", {}).get("extra") == "allow":
            return
        declared = [*_fields_of(kind), *self._more_fields]
        for attribute in attributes:
            is_of_workflows = attribute in _OF_WORKFLOWS and attribute not in declared
            if is_of_workflows and attributes[attribute] != getattr(kind, attribute):
                raise InvalidArguments(f"{attribute}= is for ADK's workflows, which are not part of agentnb.")
            if attribute not in declared and callable(getattr(kind, attribute, max)):
                close = get_close_matches(attribute, [*_OWN, *declared], 1)
                meant = f"; {close[0]}= is probably meant" if close else ""
                raise InvalidArguments(
                    f"{kind.__name__} takes no {attribute}={meant}. An attribute of your own is declared in the class:"
                    f" `{attribute}: Any`."
                )
        missing = [name for name in _fields_of(kind) if name not in attributes and not hasattr(self, name)]
        if missing and not _has_own_init(kind):
            raise InvalidArguments(f"{kind.__name__} needs {missing[0]}=: the class declares it without a default.")

    _more_fields: tuple[str, ...] = ()
    """The attributes that this kind of agent is made with, besides those that every agent has."""

    @property
    def root_agent(self) -> BaseAgent:
        """The outermost of the agents around it; itself where it has no parent."""
        return list(self.around())[-1] if self.parent_agent is not None else self

    def clone(self, update: Mapping[str, Any] | None = None) -> Self:
        """Copy the agent, and the agents below it; the copy has no parent. Loops of other designs are not copied.

        update: other values of attributes, by name. A callback that is a method of the agent becomes the copy's.

        Raises InvalidArguments for `parent_agent`, and for an attribute that the agent is not made with.
        """
        changed = dict(update or {})
        fields = (*_OWN, *self._more_fields, *_fields_of(type(self)))
        if "parent_agent" in changed:
            raise InvalidArguments(
                "Cannot update `parent_agent` field in clone: a copy gets its parent where it is made a sub-agent."
            )
        if unknown := [name for name in changed if name not in fields]:
            kind, has = type(self).__name__, ", ".join(fields)
            raise InvalidArguments(f"Cannot update nonexistent fields in {kind}: {unknown}; it has {has}.")
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
        """Copy the agent alone: the copy has the same parent and the same sub-agents. `clone` copies those below too.

        update: other values of attributes, by name.
        """
        copied = copy.copy(self)
        for name, value in (update or {}).items():
            setattr(copied, name, value)
        _check_name(copied.name)
        copied._bind()
        return copied

    def find_agent(self, name: str) -> Loop | None:
        """The agent of that name, here or below."""
        return self if name == self.name else self.find_sub_agent(name)

    def find_sub_agent(self, name: str) -> Loop | None:
        """The agent of that name, below."""
        return next((agent for agent in self._below() if agent.name == name), None)

    def reach(self, scope: str | None) -> int:
        """How far out an escalation of this agent leaves: None is none, and a name that is not around it all."""
        if scope is None:
            return -1
        names = ["nearest", *(agent.name for agent in self.around())]
        return names.index(scope) if scope in names else len(names)

    def around(self) -> Iterator[BaseAgent]:
        """The agents whose sub-agent it is, from the inside out."""
        agent = self.parent_agent
        while agent is not None:
            yield agent
            agent = agent.parent_agent

    def _bind(self) -> None:
        self.activities = {RUN: partial(self._perform, self._with_callbacks)}

    # -- the agent -------------------------------------------------------------------------------------------------

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """What the agent does."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does: override _run_async_impl(ctx).")

    def _run_live_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """What the agent does in a conversation by voice or video."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does: override _run_live_impl(ctx).")

    def run_async(
        self, parent_context: InvocationContext, **options: Unpack[StartOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run in this context; the events of it and of those inside it, as they are asked for.

        Closing the stream ends the run, and has run every `finally`. What an agent raises comes out unchanged; the
        context then says where to resume, as it does after a pause. Where a person is asked about a call, and nothing
        else goes on, the stream ends with that question; a context with the session and the answer goes on from there.
        options: as for `start`.
        """
        return self._opened(stream, parent_context, **options)

    def run_live(
        self, parent_context: InvocationContext, **options: Unpack[StartOptions]
    ) -> AsyncGenerator[Event, None]:
        """Run `_run_live_impl` in this context, as `run_async` runs `_run_async_impl`."""
        live = copy.copy(self)
        live._run_async_impl = self._run_live_impl  # type: ignore[method-assign]  # of this copy alone
        live._bind()
        return live.run_async(parent_context, **options)

    def _opened(self, open: Callable[..., Any], ctx: InvocationContext, **options: Any) -> AsyncGenerator[Event, None]:
        """A stream in this context, which the code that runs there closes where it leaves it open."""
        if not isinstance(ctx, InvocationContext):
            raise UsageError(f"{self.name}.run_async(ctx) takes an InvocationContext, not {ctx!r}.")
        opened: AsyncGenerator[Event, None] = open(self, ctx, **options)
        if ctx.code is not None:
            ctx.code.opens(opened)
        return opened

    def _load_agent_state(self, ctx: InvocationContext, state_type: type[AgentState]) -> AgentState | None:
        """Where the agent stands in this invocation, as that type; None where it has not said so."""
        state = ctx.get_agent_state(self.name)
        return state_type.model_validate(state) if state is not None else None

    def _create_agent_state_event(self, ctx: InvocationContext) -> Event:
        """The event that says where the agent stands in this invocation."""
        state, ended = ctx.get_agent_state(self.name), ctx.end_of_agents.get(self.name)
        actions = EventActions(agent_state=state, end_of_agent=True if ended else None)
        return Event(author=self.name, invocation_id=ctx.invocation_id, branch=ctx.branch, actions=actions)

    @property
    def canonical_before_agent_callbacks(self) -> list[Any]:
        """The callbacks before the agent runs, as a list."""
        return list(each_of(self.before_agent_callback))

    @property
    def canonical_after_agent_callbacks(self) -> list[Any]:
        """The callbacks after the agent has run, as a list."""
        return list(each_of(self.after_agent_callback))

    def begin_with(self, ctx: InvocationContext, *, as_loop: bool = False) -> dict[str, Any]:
        """The run's input: what the user said, and the invocation it resumes.

        as_loop: it is the agent's own decision that runs, though a subclass has code in its place.
        """
        maps: dict[str, Any] = {"agent_states": ctx.agent_states, "end_of_agents": ctx.end_of_agents}
        if not isinstance(ctx.user_content, (str, NoneType)):  # of which the message has the text
            maps["user_content"] = _jsonable(ctx.user_content)
        if self.name in ctx.agent_states or self.name in ctx.end_of_agents:  # it is resumed
            said, outputs = ctx.session.said_by_the_last_checkpoints(), ctx.session.outputs()
            maps["said"] = {name: said[name] for name in ctx.agent_states if name in said}
            maps["outputs"] = {name: outputs[name] for name in ctx.end_of_agents if name in outputs}
        begun = {"role": "user", "content": Event(content=ctx.user_content).text, "invocation": maps}
        return {**begun, AS_LOOP: self.name} if as_loop else begun

    @property
    def itself(self) -> object:
        """What the code that runs it has: the agent, or the loop that it carries."""
        return self

    def keeps(self, event: Event) -> bool:
        """Whether an escalation that comes out of this agent's stream has left the loop it was meant for."""
        return False

    # -- as a loop -------------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Fact:
        """Run the agent's code, and end with what it came to."""
        if (ended := end_before(self.name, state)) is not None:
            return ended
        call = own_call(RUN, state)
        if call is None or call.end is None:
            return propose_own_call(RUN, state)
        if call.end.is_error:
            return failed(call)
        came_to: Mapping[str, Any] = call.end.result
        if came_to["paused"]:
            return RunEnd(reason="suspended", output=came_to["output"])
        if came_to["escalate"] is None:
            return RunEnd(reason="completed", output=came_to["output"])
        if "escalate" not in state.values:
            return StateUpdate(values={"escalate": came_to["escalate"]})
        return RunEnd(reason="escalated", output=came_to["output"])

    def result_given(self, call: CallState, result: Any) -> Any:
        """What an agent is to have said, as what its code comes to then."""
        if call.name not in self.activities or (isinstance(result, Mapping) and result.keys() == _CAME_TO):
            return result
        return {"paused": False, "escalate": None, "output": result, "said": 1}

    def answer_to(self, id: str, result: Any, state: State) -> Fact | None:
        """Return the answer to a long-running call, for the session (SEMANTICS.md, 6. Pauses and questions)."""
        asked = [call for event in _events_in(state.messages) for call in event.long_running_calls]
        call = next((call for call in asked if read(call, "id") == id), None)
        if call is None:
            return None
        answers = [answer for event in _events_in(state.queues["input"]) for answer in event.get_function_responses()]
        if any(read(answer, "id") == id for answer in answers):
            raise AlreadyDecided(f"{self.name} has the answer to {id!r} already.")
        response = result if isinstance(result, Mapping) else {"result": result}
        answer = {"function_response": {"id": id, "name": read(call, "name"), "response": response}}
        said = Event(author="user", content={"role": "user", "parts": [answer]})
        return Queued(queue="input", message=_message(said, self.name))

    def companion(self, state: State, recording: Sequence[Fact], above: object) -> Companion:
        """The context that the agents of an invocation share."""
        around = above if isinstance(above, Companion) else None
        if around is not None and any(agent is around.agent for agent in self.around()):
            return around
        return Companion(self, state, recording, around)

    async def _perform(self, says: Saying, arguments: dict[str, Any], state: State) -> AsyncGenerator[Any, None]:
        """Let the agent say something; comes to what that decides."""
        ctx = context_of(state, self)
        if not (state.messages or invocation_of(state) or any(call.attempt > 1 for call in state.open.values())):
            ctx.set_agent_state(self.name)  # it begins anew
        forwarded = ctx.forwarded(state.run_id)
        pausing: list[Event] = []
        escalate, output, said = None, None, 0
        code, above = Code(self), ctx.code
        ctx.enter(code)
        try:
            async with aclosing(Inside(says(ctx))) as events:
                async for event in events:
                    if not isinstance(event, Event):
                        raise TypeError(f"{self.name} says a {type(event).__name__}, which is no Event.")
                    if not event.partial:  # (SEMANTICS.md, 4. Escalation)
                        ctx.add(event)
                        said += event.content is not None
                        pausing += [event] if event.pauses else []
                        escalate = max(escalate, ctx.escalation(event), key=self.reach)
                        output = event.text or output
                    fact = _fact(event, self.name)
                    if forwarded is not None:
                        forwarded.put(fact, event)
                    ctx.enter(above)
                    yield fact
                    ctx.enter(code)
        except THROWN_IN:
            raise
        except BaseException as error:
            if forwarded is not None:
                forwarded.error = error
            raise
        finally:
            ctx.enter(above)
            await code.close()
        paused = any(ctx.should_pause_invocation(event) for event in pausing)
        escalate = "root" if ctx.end_invocation else escalate
        yield Result({"paused": paused, "escalate": escalate, "output": output, "said": said})

    async def _with_callbacks(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if (said := await self._call_back(self.before_agent_callback, ctx)) is not None:
            yield said
            if said.content is not None:
                return
        if ctx.end_invocation:
            return
        saying: Any = self._run_async_impl(ctx)
        if inspect.iscoroutine(saying):  # without a `yield` it is no generator: the agent says nothing
            saying = await saying
        elif isinstance(saying, AsyncGenerator):
            async with aclosing(Inside(saying)) as events:
                async for event in events:
                    yield event
            saying = None
        if saying is not None:
            raise TypeError(
                f"{self.name}._run_async_impl returned a {type(saying).__name__}: it is `async def`, and yields Events."
            )
        if (said := await self._call_back(self.after_agent_callback, ctx)) is not None:
            yield said

    async def _call_back(self, callbacks: Callbacks, ctx: InvocationContext) -> Event | None:
        """Call the callbacks, unless the invocation is to end, until one returns content.

        Gives the event that has this content, and what they have changed in the state; None where there is neither.
        """
        context, content = CallbackContext(ctx), None
        for callback in each_of(callbacks):
            if content or ctx.end_invocation:
                break
            content = await settled(_called(callback, context))
        actions = context.actions
        if not content and actions == EventActions():
            return None
        said = {"invocation_id": ctx.invocation_id, "branch": ctx.branch}
        return Event(author=self.name, content=content or None, actions=actions, **said)


async def stream(
    agent: BaseAgent, ctx: InvocationContext, *, as_loop: bool = False, **options: Unpack[StartOptions]
) -> AsyncGenerator[Event, None]:
    """Run an agent in a context; its events, as they are asked for.

    as_loop: run its own decision, though a subclass has code in its place. options: as for `start`.
    """
    same, waiting = ctx.session.waiting.pop(agent.name, (None, None))
    answers = ctx.confirmations()
    if waiting is not None and same is agent.itself and any(item.id in answers for item in waiting.pending):
        run = agent.go_on_from(waiting, **options)
        told = len(run.events)
    else:
        if ctx.code is not None and ctx.has_ended(agent.name):  # the code of another agent runs it once more
            ctx.set_agent_state(agent.name)
            ctx.reset_below(agent)
        run, told = agent.start(agent.begin_with(ctx, as_loop=as_loop), **options), 0
    use_context(run, ctx)
    if ctx.code is None:
        ctx.hear()
    if ctx.is_streamed:
        run.suspend_at_questions()
    forwarded = ctx.open(run)
    projection = Projection(agent, ctx, forwarded)
    if told:
        projection.catch_up(run.events)
        _decide(run, answers)
        answers = {}
    error: BaseException | None = None
    try:
        async with aclosing(Inside(aiter(run))) as happening:
            async for fact in happening:
                if fact.seq is not None and fact.seq < told:
                    continue
                if ctx.aborted:
                    run.cancel("aborted")
                if isinstance(fact, facts.ApprovalRequest):
                    _decide_again(run, ctx, fact, answers)
                for event in projection.say(fact):
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
    if error is not None:  # raised out here, where nothing is added to it
        raise error


def _decide_again(run: Run, ctx: InvocationContext, asked: facts.ApprovalRequest, answers: dict[str, bool]) -> None:
    """Decide about a call that is asked about again, where the user has answered for that very call.

    An id alone decides nothing: what the session has been asked under it has to be the same call.
    """
    before = ctx.session.asked_about(asked.call_id) if asked.call_id in answers else None
    if before is not None and (read(before, "name"), read(before, "args")) == (asked.name, asked.arguments):
        _decide(run, {asked.call_id: answers.pop(asked.call_id)})


def _decide(run: Run, answers: Mapping[str, bool]) -> None:
    """Decide about the calls of a run as the user has answered."""
    for item in run.pending:
        if item.id in answers:
            if answers[item.id]:
                run.approve(item)
            else:
                run.reject(item, NOT_CONFIRMED)


def _called(callback: Callable[..., Any], context: CallbackContext) -> Any:
    """Call a callback with its keyword, or, where it has another parameter, by position."""
    try:
        inspect.signature(callback).bind(callback_context=context)
    except (TypeError, ValueError):
        return callback(context)
    return callback(callback_context=context)


def _fact(event: Event, name: str) -> Fact | Delta:
    """An event of the agent of that name as a message; one that is partial is only shown."""
    message = _message(event, name)
    if event.partial:
        return Delta(type="call_delta", content=str(message.content), name=message.name, data=message["event"])
    return MessageAdded(message=message)


def _message(event: Event, name: str) -> Message:
    text, author = mended(event.text), mended(event.author) or name
    role = "user" if author == "user" else "assistant"
    return Message(role=role, content=text, name=author, event=_jsonable(event.model_dump(exclude_defaults=True)))


def _events_in(messages: Sequence[Message]) -> list[Event]:
    return [Event.model_validate(said) for message in messages if isinstance(said := message.get("event"), dict)]


def _jsonable(value: Any) -> Any:
    return mended_inside(to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64"))


_CAME_TO = {"paused", "escalate", "output", "said"}
"""What there is to say of an agent whose code is at its end."""


def own_call(name: str, state: State) -> CallState | None:
    """The call of that name which the agent has made in this run of it."""
    return next((call for call in state.calls.values() if call.name == name), None)


def propose_own_call(name: str, state: State, **arguments: Any) -> CallProposed:
    """Ask for a call of the agent's own; for a second one of that name where it was suspended in the first."""
    return propose(state, f"{name}_{state.position}", name, arguments)


def failed(call: CallState) -> RunEnd:
    """The end of a loop one of whose own calls has failed."""
    assert call.end is not None
    error = call.end.error or ErrorInfo(type="Error", message=str(call.end.result))
    return RunEnd(reason="error", error=error)


def each_of(callbacks: Callbacks) -> Sequence[Callback]:
    """The callbacks, in the order in which they are asked."""
    if callbacks is None:
        return ()
    return callbacks if isinstance(callbacks, (list, tuple)) else (callbacks,)


def _check_name(name: str) -> None:
    if not name.isidentifier() or name == "user":
        raise InvalidArguments(f"An agent's name is an identifier, and not 'user'; {name!r} is none.")


def _fields_of(kind: type) -> list[str]:
    """The attributes that the classes of an agent declare, by their annotations."""
    bases = [base for base in kind.__mro__ if base not in BaseAgent.__mro__]
    declared = {name: kind for base in bases for name, kind in get_annotations(base).items()}
    return [name for name, kind in declared.items() if "ClassVar" not in str(kind) and not name.startswith("_")]


def _has_own_init(kind: type) -> bool:
    """Whether a class is made in a way of its own, which may give it its attributes later."""
    own = next(base for base in kind.__mro__ if "__init__" in vars(base))
    return not own.__module__.startswith("agentnb.loops.loop_agent")


def _bound_to(cloned: BaseAgent, agent: BaseAgent, value: Any) -> Any:
    """A value for a copy: what is a method of the agent itself becomes the copy's."""
    if isinstance(value, list):
        return [_bound_to(cloned, agent, item) for item in value]
    return value.__func__.__get__(cloned) if getattr(value, "__self__", None) is agent else value


def _declared(kind: type) -> dict[str, Any]:
    """The defaults of the attributes that a subclass declares as a pydantic model does: no two agents share one."""
    declared: dict[str, Any] = {}
    for base in reversed([base for base in kind.__mro__ if base not in BaseAgent.__mro__]):  # which declare none
        for attribute, value in vars(base).items():
            if isinstance(value, FieldInfo) and not value.is_required():
                declared[attribute] = value.get_default(call_default_factory=True, validated_data={})
            elif isinstance(value, ModelPrivateAttr):
                declared[attribute] = _private_default(value)
            elif isinstance(value, (list, dict, set)) and _is_a_field(base, attribute):
                declared[attribute] = copy.deepcopy(value)
    return declared


def _is_a_field(kind: type, attribute: str) -> bool:
    annotation = get_annotations(kind).get(attribute)
    return annotation is not None and "ClassVar" not in str(annotation)


def _private_default(value: ModelPrivateAttr) -> Any:
    factory: Callable[[], Any] | None = value.default_factory  # type: ignore[assignment]  # not one that takes the model
    return factory() if factory is not None else copy.deepcopy(value.default)
