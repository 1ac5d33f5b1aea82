"""How a run gets its end where it did not come to one by itself. Safe from every thread."""

from __future__ import annotations

from agentnb.core.ending import ABORTED
from agentnb.core.events import ErrorInfo, RunEnd, StopReason
from agentnb.core.state import CallState
from agentnb.core.tools import current_call
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.refusals import end_in_words


def end_run(journal: Journal, reason: StopReason, error: ErrorInfo | None = None, *, why: str = ABORTED) -> None:
    """End the run, the innermost loop first: every call that is open gets its result, then its loop its end, with the
    answer that this breaks off.

    A tool that ends its own run is left to return: its call gets the result it gives, and the end comes after it.
    """
    with journal.lock:
        if journal.state.over:
            return
        kept = {current[:3]} if (current := current_call.get()) is not None else set()
        for frame in reversed(journal.frames):
            for call in list(frame.state.open.values()):
                if (journal.run_id, frame.path, call.id) not in kept:
                    journal.append(end_in_words(call, why, "aborted"), frame, call)
            if frame.state.open and frame.above is not None:
                kept.add((journal.run_id, frame.above.path, frame.call))
            elif not frame.state.open and not frame.state.over:  # a watcher of these facts may have ended it meanwhile
                answer = None
                if frame.reply is not None:
                    words = error.message if error is not None else journal.state.cancelled or reason
                    answer = frame.reply.broken_off("aborted", words)
                journal.append(RunEnd(reason=reason, error=error, answer=answer), frame)


def end_loops_inside(journal: Journal, above: Frame, call: CallState) -> None:
    """End the loops that perform this call, the innermost first: the call is to end, and its loops are broken off."""
    inside: list[Frame] = []
    for frame in journal.frames:  # each stands behind the one whose call it performs
        if frame.above in inside or (frame.above is above and frame.call == call.id):
            inside.append(frame)
    for frame in reversed(inside):
        for open in list(frame.state.open.values()):
            journal.append(end_in_words(open, ABORTED, "aborted"), frame, open)
        if not frame.state.over:
            answer = frame.reply.broken_off("aborted", ABORTED) if frame.reply is not None else None
            journal.append(RunEnd(reason="cancelled", answer=answer), frame)


def end_at_limit(journal: Journal, why: str) -> None:
    """End the run because a limit that was given to it is reached."""
    end_run(journal, "limit", ErrorInfo(type="LimitReached", message=why), why=why)
