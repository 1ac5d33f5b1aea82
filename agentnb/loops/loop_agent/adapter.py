"""Loops of other designs in an invocation (SEMANTICS.md, 2. Vocabulary; 4. Escalation).

A sub-agent may be any loop of agentnb. Its input is made from the input of the agent around it and from what was said
in the session (`input_for`, `input_for_other_design`); its model leaves the enclosing loop agent by the tool
`exit_loop`. If the code of an agent runs such a loop itself, by `async for event in self.writer.run_async(ctx)`, a
`LoopAdapter` makes an agent from the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import Event as RunEvent
from agentnb.core.events import RunEnd
from agentnb.core.loop import Design
from agentnb.core.messages import input_messages, text_of
from agentnb.core.state import CallState, State
from agentnb.core.tools import Acted, Invocation, ReportProgress
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.agents import AS_LOOP, BaseAgent, BaseAgentCalls, failed, own_call, propose_own_call
from agentnb.loops.loop_agent.context import InvocationContext, end_before
from agentnb.loops.loop_agent.conversation import (
    EARLIER,
    GIVEN,
    SINCE,
    as_lines,
    as_messages,
    conversation_in,
    entries_in,
)
from agentnb.loops.loop_agent.event import EXIT_LOOP, actions_of


class ExitLoop:
    """The tool by which a model leaves the loop agent around its own loop: `SessionLoop(llm, [exit_loop])`."""

    name = EXIT_LOOP
    description = "Call this when nothing is left to do: the loop you work in ends after this turn."
    approve = False
    idempotent = True
    timeout: float | None = None
    needs: tuple[str, ...] = ()
    sequential = False

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {"type": "object", "properties": {}}

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Return the call. Raises InvalidArguments if there are arguments."""
        if arguments:
            raise InvalidArguments(
                f"Invalid arguments for {self.name}: it takes no arguments, got {', '.join(arguments)}."
            )
        return _leave


def _leave(progress: ReportProgress) -> Awaitable[Acted]:
    async def result() -> Acted:
        return Acted("The loop ends.", {"escalate": True, "skip_summarization": True})

    return result()


def has_exited(state: State) -> bool:
    """Return True if the model has called `exit_loop`, or a tool that set `tool_context.actions.escalate`."""
    return any(
        message.role == "tool" and not message.is_error and actions_of(message.name, message.details).escalate
        for message in state.messages
    )


exit_loop = ExitLoop()


_OURS = frozenset({"invocation", AS_LOOP, EARLIER, SINCE, GIVEN})
"""Keys in the input of an agent that are not the user's."""

GO_ON = "Go on as your instructions say."
"""The only message for a loop with a model that has no other input: a model request needs a message."""


def escalation_of(child: State) -> str | None:
    """Return the scope of the escalation of a sub-agent that has ended, or None if it did not escalate."""
    scope: str | None = child.values.get("escalate") if child.stop_reason == "escalated" else None
    return scope or ("nearest" if has_exited(child) else None)


def has_messages(child: State) -> bool:
    """Return True if a loop, or a loop nested in it, has messages."""
    return bool(child.messages) or any(map(has_messages, child.children.values()))


def input_for(agent: Loop, state: State) -> Any:
    """Return the input of a sub-agent: that of the agent around it, and what was said (SEMANTICS.md, 8. Conversation).

    The code of an agent reads the session itself.
    """
    if isinstance(agent, BaseAgent):
        input = state.input
        if agent.tells and (since := entries_in(state)):
            given = input if isinstance(input, Mapping) else {GIVEN: input}
            input = {**given, SINCE: since}
        if not isinstance(input, Mapping) or not isinstance(state.input, Mapping):
            return input
        input = {key: value for key, value in input.items() if key != AS_LOOP}
        return input if state.values["resumed"] else {**input, "invocation": None}  # only the first sub-agent resumes
    return input_for_other_design(agent, {**_as_mapping(state.input), SINCE: entries_in(state)})


def _as_mapping(input: Any) -> Mapping[str, Any]:
    is_ours = isinstance(input, Mapping) and not input.keys().isdisjoint(_OURS)
    return input if is_ours else {GIVEN: input}


def input_for_other_design(loop: Loop, input: Any) -> Any:
    """Return the input of a loop of another design. input: that of an agent, with what was said."""
    conversation = conversation_in(input)
    in_invocation = "invocation" in input
    content = input.get(GIVEN, {key: value for key, value in input.items() if key not in _OURS})
    if (history := loop.messages_from(content)) is not None:
        earlier, since = (as_messages(conversation[key], loop.name) for key in (EARLIER, SINCE))
        messages = (message for message in history if message.content or message.role != "user")
        told = [*earlier, *map(dict, messages), *since]
        ends_with_answer = bool(since) and since[-1]["role"] == "assistant"
        return [*told, _user(GO_ON)] if ends_with_answer or not told else told
    lines = as_lines([*conversation[EARLIER], *conversation[SINCE]])
    if not lines and not in_invocation:
        return content
    own = (text_of(message.content) for message in input_messages(content) if message.content)
    return "\n".join([*own, *lines]) or None


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class AdapterCalls(BaseAgentCalls):
    """The call of an adapter, which its loop performs."""

    loop: LoopAdapter

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """Return the adapted loop if it performs this call."""
        return self.loop.sub_agents[0] if call.name == self.loop.name else None


class LoopAdapter(BaseAgent):
    """An agent that runs one loop of another design, once. It emits no events of its own."""

    calls_class = AdapterCalls
    tells = True

    def __init__(self, loop: Loop) -> None:
        super().__init__("loop_adapter", [loop])
        self.name = loop.name  # the author of the events; it need not be an identifier

    def begin_with(self, ctx: InvocationContext, *, as_loop: bool = False) -> dict[str, Any]:
        """Return the input of the run. The loop gets the content of the user, and what was said in the session."""
        input = super().begin_with(ctx, as_loop=as_loop)
        return {**input, "told": input_for_other_design(self.sub_agents[0], input)}

    @property
    def itself(self) -> object:
        """The adapted loop."""
        return self.sub_agents[0]

    def advance(self, state: State) -> RunEvent:
        """Return the call that runs the loop, then the end with its output."""
        if (ended := end_before(self.name, state)) is not None:
            return ended
        call = own_call(self.name, state)
        if call is None:
            return propose_own_call(self.name, state, input=state.input["told"])
        assert call.end is not None
        return failed(call) if call.end.is_error else RunEnd(reason="completed", output=call.end.result)


# The context makes agents of other loops, but cannot import this module, which imports the context.
InvocationContext.adapter = LoopAdapter
