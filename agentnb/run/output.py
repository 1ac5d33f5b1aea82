"""What a run came to, for whoever asks for its output: that, or the error which says why there is none."""

from __future__ import annotations

from typing import Any

from agentnb.core.errors import LimitReached, RunCancelled, RunFailed
from agentnb.core.loop import Design
from agentnb.core.messages import to_plain
from agentnb.core.state import State


def output_of(state: State, design: Design, *, cause: BaseException | None = None) -> Any:
    """The output of a run that stands at `state`, a copy; None where it is not over.

    Raises RunFailed (from `cause`), RunCancelled or LimitReached where it has none.
    """
    reason, error = state.stop_reason, state.error
    if reason == "cancelled":
        raise RunCancelled(state.cancelled or "cancelled")
    if reason == "limit" or reason in design.limits_that_raise:
        raise LimitReached(error.message if error is not None else str(reason))
    if reason == "error":
        raise RunFailed(f"{error.type}: {error.message}" if error is not None else "The loop failed.") from cause
    return to_plain(state.output)
