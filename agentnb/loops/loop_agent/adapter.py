"""Loops of other designs in an invocation (SEMANTICS.md, 2. Vocabulary; 4. Escalation).

A sub-agent may be any loop of agentnb. Its input is made from the input of the agent around it and the last text of
each sibling (`input_for`, `told`); its model leaves the enclosing loop agent by the tool `exit_loop`. If the code of an
agent runs a loop by hand, `async for event in self.writer.run_async(ctx)`, a `LoopAdapter` makes an agent of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from agentnb.core.calls import render
from agentnb.core.errors import InvalidArguments
from agentnb.core.events import Event as Fact
from agentnb.core.events import RunEnd
from agentnb.core.loop import Design
from agentnb.core.messages import Message, input_messages, text_of
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Progress
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.agents import AS_LOOP, BaseAgent, failed, own_call, propose_own_call
from agentnb.loops.loop_agent.context import InvocationContext, end_before


class ExitLoop:
    """Give it to a sub-agent that is to decide when the work is done: `SessionLoop(llm, [exit_loop])`."""

    name = "exit_loop"
    description = "Call this when nothing is left to do: the loop you work in ends after this turn."
    approve = False
    idempotent = True
    timeout: float | None = None
    needs: tuple[str, ...] = ()
    sequential = False

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {"type": "object", "properties": {}}

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Checks that there are no arguments. Raises InvalidArguments."""
        if arguments:
            raise InvalidArguments(f"Invalid arguments for {self.name}: it takes none, not {', '.join(arguments)}.")
        return _leave


def _leave(progress: Progress) -> Awaitable[dict[str, Any]]:
    async def said() -> dict[str, Any]:
        return {"content": "The loop ends.", "terminate": True}

    return said()


def has_exited(state: State) -> bool:
    """Whether the model of a loop that has ended has called `exit_loop`, or a tool that has escalated."""
    results = (message for message in state.messages if message.role == "tool" and not message.is_error)
    return any(message.name == ExitLoop.name or _escalates(message) for message in results)


def _escalates(message: Message) -> bool:
    """Whether the tool has set `tool_context.actions.escalate`."""
    actions = message.details.get("actions") if isinstance(message.details, dict) else None
    return isinstance(actions, dict) and actions.get("escalate") is True


exit_loop = ExitLoop()


GO_ON = "Go on as your instructions say."
"""What a loop that asks a model hears where nobody has said anything: without a message there is nothing to answer."""


def escalated(child: State) -> str | None:
    """Which loop the sub-agent wants left; None where it wants to go on."""
    wanted: str | None = child.values.get("escalate") if child.stop_reason == "escalated" else None
    return wanted or ("nearest" if has_exited(child) else None)


def has_spoken(child: State) -> bool:
    """Whether anything was said in it, or in a loop inside it."""
    return bool(child.messages) or any(map(has_spoken, child.children.values()))


def input_for(agent: Loop, state: State) -> Any:
    """What the user said; a loop of another design also hears what each of its siblings said last."""
    if isinstance(agent, BaseAgent):
        if not isinstance(state.input, Mapping):
            return state.input
        said = {key: value for key, value in state.input.items() if key != AS_LOOP}
        return said if state.values["resumed"] else {**said, "invocation": None}  # only the first is resumed
    spoken = {
        name: text_of(render(result, state.max_result_chars)) for name, result in state.values.get("said", {}).items()
    }
    return told(agent, state.input, spoken)


def told(loop: Loop, input: Any, spoken: Mapping[str, str]) -> Any:
    """What a loop of another design is given: the input of the agent around it, and what others said, by name."""
    siblings = [f"[{name}] said: {words}" for name, words in spoken.items() if words]
    in_invocation = isinstance(input, Mapping) and "invocation" in input
    said = (
        {key: value for key, value in input.items() if key not in ("invocation", AS_LOOP)} if in_invocation else input
    )
    if (heard := loop.hears_as(said)) is not None:
        messages = (message for message in heard if message.content or message.role != "user")
        return [*map(dict, messages), *map(_user, siblings)] or [_user(GO_ON)]
    if not siblings and not in_invocation:
        return input
    words = (text_of(message.content) for message in input_messages(said) if message.content)
    return "\n".join([*words, *siblings]) or None


def _user(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


class LoopAdapter(BaseAgent):
    """Runs one loop of another design, once."""

    def __init__(self, loop: Loop) -> None:
        super().__init__("carrier", [loop])
        self.name = loop.name  # in whose name it speaks; any text may be one

    def begin_with(self, ctx: InvocationContext, *, as_loop: bool = False) -> dict[str, Any]:
        """The run's input, and what the loop is told: what the user said, and the last words of each agent."""
        said = super().begin_with(ctx, as_loop=as_loop)
        spoken = {event.author: event.text for event in ctx.session.events if event.author != "user" and event.text}
        return {**said, "told": told(self.sub_agents[0], said, spoken)}

    @property
    def itself(self) -> object:
        """The loop it carries."""
        return self.sub_agents[0]

    def advance(self, state: State) -> Fact:
        """Run the loop, and end with what it came to."""
        if (ended := end_before(self.name, state)) is not None:
            return ended
        call = own_call(self.name, state)
        if call is None:
            return propose_own_call(self.name, state, input=state.input["told"])
        assert call.end is not None
        return failed(call) if call.end.is_error else RunEnd(reason="completed", output=call.end.result)

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The loop it carries."""
        return self.sub_agents[0] if call.name == self.name else None


InvocationContext.adapter = LoopAdapter
