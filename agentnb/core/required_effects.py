"""Required effects: what must be in flight, derived from the state.

The scheduler starts the effects that are required and not running, and cancels those that run and are no longer
required. Loops never emit effects: an emitted effect would have to be tracked and revoked by extra states. Instead, an
approval is an effect that a person performs, a cancelled run requires nothing, and a restored run requires the same
effects as before.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from agentnb.core.state import State


class Effect(NamedTuple):
    """An effect that must be in flight: the model's answer, a call, or a question to a person about a call."""

    kind: Literal["model", "call", "question"]
    id: str
    path: str = ""


MODEL = Effect("model", "")


def required_effects(state: State) -> list[Effect]:
    """Return the effects that must be in flight, in the order in which they should start.

    The calls of a sequential turn are required one after the other. A call that waits for a person holds back the
    following ones, so that each call is decided when the results of the earlier ones are known.
    """
    effects: list[Effect] = []
    if state.stop_reason is not None or state.cancelled is not None or state.failure is not None:
        return effects
    if state.model == "asked":
        effects.append(MODEL)
    sequential = state.reply is not None and state.reply.sequential
    for call in state.open.values():
        effects.append(Effect("question" if call.status == "asking" else "call", call.id))
        if sequential and not call.detached:
            break
    return effects
