"""wanted: from where a run stands to what must be in flight now.

Effects are derived, never emitted. The driver starts what is wanted and not running, and cancels what runs and is no
longer wanted; so an approval is an effect that a person performs, a cancelled run wants nothing, and a restored state
already says what must be in flight. (An effect that was emitted cannot be taken back: a state machine that emits them
needs states for that alone.)
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from agentnb.core.state import State


class Effect(NamedTuple):
    """Something that must be in flight: the model's answer, a call, or a question to the person about a call."""

    kind: Literal["model", "call", "question"]
    id: str
    path: str = ""


MODEL = Effect("model", "")


def wanted(state: State) -> list[Effect]:
    """What must be in flight, in the order it should start.

    The calls of a sequential turn are wanted one after the other; one that waits for a person holds back those behind
    it, so that each call is decided with the results of the earlier ones known.
    """
    wants: list[Effect] = []
    if state.stop_reason is not None or state.cancelled is not None or state.failure is not None:
        return wants
    if state.model == "asked":
        wants.append(MODEL)
    sequential = state.reply is not None and state.reply.sequential
    for call in state.open.values():
        wants.append(Effect("question" if call.status == "asking" else "call", call.id))
        if sequential and not call.detached:
            break
    return wants
