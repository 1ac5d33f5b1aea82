"""The output of a run, or the error that says why it has none."""

from __future__ import annotations

from typing import Any

from agentnb.core.errors import LimitReached, RunCancelled, RunFailed
from agentnb.core.json import to_plain
from agentnb.core.loop import Design
from agentnb.core.state import State


def output_of(state: State, design: Design, *, cause: BaseException | None = None) -> Any:
    """Return a copy of the output of a run with this state; None if the run has not ended.

    Raises RunCancelled, LimitReached or RunFailed (from `cause`) if it ended without an output.
    """
    reason, error = state.stop_reason, state.error
    if reason == "cancelled":
        raise RunCancelled(state.cancelled or "cancelled")
    if reason == "limit" or reason in design.limits_that_raise:
        raise LimitReached(error.message if error is not None else str(reason))
    if reason == "error":
        raise RunFailed(f"{error.type}: {error.message}" if error is not None else "The loop failed.") from cause
    return design.read_output(to_plain(state.output))
