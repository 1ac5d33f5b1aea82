"""Synthetic results: results of calls that do not come from a tool, and ends of runs that are not decided by a loop.

The result of a call that is refused, rejected or cut off is a text, so that the model can continue. If a run is ended
from outside, every open call gets a result before the run ends. The functions are safe from every thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CallEnd, CutOff, ErrorInfo, Outcome, RunEnd, StopReason
from agentnb.core.json import to_json_data
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import CallState
from agentnb.core.tools import Tool, current_call
from agentnb.run.event_data import error_info, error_text
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a call by a check: the result that the call gets instead of running."""

    end: CallEnd


def synthetic_end(call: CallState, text: str, outcome: Outcome, error: BaseException | None = None) -> CallEnd:
    """Return the end of a call without a result of its own. error: the exception behind it, if there is one."""
    fields: dict[str, Any] = {"result": to_json_data(text), "is_error": True, "outcome": outcome}
    if error is not None:
        fields["error"] = error_info(error)
    return CallEnd(call_id=call.id, name=call.name, **fields)


def misfit(call: CallState, tools: Mapping[str, Tool]) -> Refusal:
    """Return the refusal of a call of an unknown tool, or with arguments that are not a JSON object."""
    if call.name not in tools:
        known = ", ".join(sorted(tools)) or "none"
        return _refusal(call, f"Tool {call.name} not found. Available tools: {known}.")
    received = (call.malformed or "")[:200]
    return _refusal(call, f"The arguments of {call.name} are not a JSON object: {received}")


_CUT_OFF: Mapping[CutOff, str] = {
    "length": "hit the output token limit",
    "content_filter": "was stopped by a content filter",
    "refusal": "ended as a refusal",
}


def cut_off(call: CallState, why: CutOff) -> CallEnd:
    """Return the end of a call whose answer was cut off: its arguments may be incomplete. It may have started."""
    has_started = call.status == "running"
    text = f"{'Broken off' if has_started else 'Not executed'}: the answer that made this call {_CUT_OFF[why]}."
    return synthetic_end(call, text, "aborted" if has_started else "skipped")


def broken_off(call: CallState) -> CallEnd:
    """Return the end of a call whose own code has cancelled the task that it ran in."""
    error = asyncio.CancelledError("the code of the call has cancelled the task that it ran in")
    return synthetic_end(call, error_text(error), "raised", error)


def unfit(call: CallState, error: InvalidArguments) -> Refusal:
    """Return the refusal of a call whose arguments do not fit the tool."""
    return _refusal(call, str(error))


def blocked(call: CallState, text: str) -> Refusal:
    """Return the refusal of a call by the loop's own hook."""
    return _refusal(call, text, "blocked")


def _refusal(call: CallState, text: str, outcome: Outcome = "invalid") -> Refusal:
    return Refusal(synthetic_end(call, text, outcome))


# -- the end of a run --------------------------------------------------------------------------------------------------


def end_run(journal: Journal, reason: StopReason, error: ErrorInfo | None = None, *, why: str = ABORTED) -> None:
    """End the run, the innermost loop first: each open call gets a result, then its loop ends with its partial answer.

    If a tool ends its own run, it can still return: its result is recorded, and then the end of the run.
    """
    with journal.lock:
        if journal.state.over:
            return
        kept = {current[:3]} if (current := current_call.get()) is not None else set()
        for frame in reversed(journal.frames):
            for call in list(frame.state.open.values()):
                if (journal.run_id, frame.path, call.id) not in kept:
                    journal.append(synthetic_end(call, why, "aborted"), frame, call)
            if frame.state.open and frame.above is not None:
                kept.add((journal.run_id, frame.above.path, frame.call))
            elif not frame.state.open and not frame.state.over:  # a watcher of these events may have ended it meanwhile
                answer, paid = None, {}
                if frame.reply is not None:
                    text = error.message if error is not None else journal.state.cancelled or reason
                    answer, paid = frame.reply.broken_off("aborted", text), frame.reply.paid
                journal.append(RunEnd(reason=reason, error=error, answer=answer, usage=paid), frame)


def end_loops_inside(journal: Journal, above: Frame, call: CallState) -> None:
    """End the nested loops that perform this call, the innermost first, because the call ends."""
    inside: list[Frame] = []
    for frame in journal.frames:  # each after the one whose call it performs
        if frame.above in inside or (frame.above is above and frame.call == call.id):
            inside.append(frame)
    for frame in reversed(inside):
        for open in list(frame.state.open.values()):
            journal.append(synthetic_end(open, ABORTED, "aborted"), frame, open)
        if not frame.state.over:
            reply = frame.reply
            answer = reply.broken_off("aborted", ABORTED) if reply is not None else None
            paid = reply.paid if reply is not None else {}
            journal.append(RunEnd(reason="cancelled", answer=answer, usage=paid), frame)


def end_at_limit(journal: Journal, why: str) -> None:
    """End the run because one of its limits is reached."""
    end_run(journal, "limit", ErrorInfo(type="LimitReached", message=why), why=why)
