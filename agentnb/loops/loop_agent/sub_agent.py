"""Input and output of the sub-agents of a loop agent (SEMANTICS.md, 3. Algorithm; 4. Escalation)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentnb.core.calls import render
from agentnb.core.messages import input_messages, text_of
from agentnb.core.state import State
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.base_agent import AS_LOOP, BaseAgent
from agentnb.loops.loop_agent.exit_loop import has_exited

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
