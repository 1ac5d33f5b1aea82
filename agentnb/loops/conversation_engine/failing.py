"""How an engine ends in an error (SEMANTICS.md, 8. Errors)."""

from __future__ import annotations

from agentnb.core.events import CallEnd, ErrorInfo, RunEnd
from agentnb.core.state import State
from agentnb.loops.conversation_engine.progress import outcome_key
from agentnb.loops.conversation_engine.states import EngineState


def fail(end: CallEnd) -> RunEnd:
    """End with what a call that failed said."""
    return _error(end.error or ErrorInfo(type="Error", message=str(end.result)))


def fail_with_task(state: State) -> RunEnd:
    """End with what the task that failed said; its call is at hand unless it failed before a snapshot."""
    ends = [call.end for call in state.calls.values() if call.end is not None and call.end.is_error]
    if ends:
        return fail(ends[0])
    outcomes = (state.values.get(outcome_key(task["id"]), {}) for task in state.values["tasks"])
    said = next(outcome["error"] for outcome in outcomes if outcome.get("status") == "failed")
    return _error(ErrorInfo(type="TaskFailed", message=said))


def _error(error: ErrorInfo) -> RunEnd:
    return RunEnd(reason="error", phase=EngineState.ERROR.value, error=error)
