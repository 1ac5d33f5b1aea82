"""BaseAgent: an agent written top to bottom, as an async generator of events (SEMANTICS.md).

Its code is opaque: what it says is journaled event by event, and where it stands in between is not known. So it is one
call of a loop of its own, and where that call was broken off, by a crash or by a pause, it runs again from its start;
what it must not do twice it has to look up in the session. It is told apart from its surroundings by what it ends
with: `completed`, `escalated`, or `suspended`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import NoneType
from typing import Any, ClassVar, TypeVar, Unpack

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from agentnb.core.errors import THROWN_IN, AlreadyDecided, UsageError
from agentnb.core.events import CallProposed, Delta, ErrorInfo, MessageAdded, Queued, RunEnd, StateUpdate
from agentnb.core.events import Event as Fact
from agentnb.core.loop import Result
from agentnb.core.maybe_async import Inside, settled
from agentnb.core.messages import Message
from agentnb.core.state import CallState, State
from agentnb.core.unicode import mended, mended_inside
from agentnb.loops.base import propose
from agentnb.loops.loop_agent.callback_context import CallbackContext
from agentnb.loops.loop_agent.companion import Companion, context_of, end_before, invocation_of
from agentnb.loops.loop_agent.event import Event, EventActions, read
from agentnb.loops.loop_agent.invocation import Code, InvocationContext
from agentnb.loops.loop_agent.stream import stream
from agentnb.loops.loop_agent.tree import AgentInTree, Callbacks, each_of
from agentnb.loops.options import StartOptions

RUN = "run_agent"
AS_LOOP = "as_loop"
"""In the input of a run: the name of the agent whose own decision runs, though a subclass has code in its place."""

Saying = Callable[[InvocationContext], AsyncGenerator[Event, None]]
AgentState = TypeVar("AgentState", bound=BaseModel)


class BaseAgent(AgentInTree):
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

    def __init__(self, name: str | None = None, sub_agents: Sequence[Any] = (), **options: Any) -> None:
        super().__init__(name, sub_agents, **options)

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
        if around is not None and around.has(self):
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
