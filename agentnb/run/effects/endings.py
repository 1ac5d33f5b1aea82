"""How a run gets its end where it did not come to one by itself. Safe from every thread."""

from __future__ import annotations

from agentnb.core.ending import ABORTED
from agentnb.core.events import ErrorInfo, ModelFailed, RunEnd, StopReason
from agentnb.core.tools import current_call
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.refusals import end_in_words


def end_run(journal: Journal, reason: StopReason, error: ErrorInfo | None = None, *, why: str = ABORTED) -> None:
    """End the run, the innermost loop first: an answer that is being given is kept as far as it came, every call that
    is open gets its result, then its loop its end.

    A tool that ends its own run is left to return: its call gets the result it gives, and the end comes after it.
    """
    with journal.lock:
        if journal.state.over:
            return
        kept = {current[:3]} if (current := current_call.get()) is not None else set()
        for frame in reversed(journal.frames):
            _break_off(journal, frame, reason, error)
            for call in list(frame.state.open.values()):
                if (journal.run_id, frame.path, call.id) not in kept:
                    journal.append(end_in_words(call, why, "aborted"), frame, call)
            if frame.state.open and frame.above is not None:
                kept.add((journal.run_id, frame.above.path, frame.call))
            elif not frame.state.open and not frame.state.over:  # a watcher of these facts may have ended it meanwhile
                journal.append(RunEnd.make(reason=reason, error=error), frame)


def _break_off(journal: Journal, frame: Frame, reason: StopReason, error: ErrorInfo | None) -> None:
    """Keep what has come of the answer that the loop's model is giving."""
    reply, frame.reply = frame.reply, None
    if reply is None or frame.state.over:
        return
    told = error or ErrorInfo.make(type="RunCancelled", message=journal.state.cancelled or reason)
    answer = reply.broken_off("aborted", told.message)
    journal.append(ModelFailed.make(error=told, partial=reply.text, message=answer), frame)


def end_at_limit(journal: Journal, why: str) -> None:
    """End the run because a limit that was given to it is reached."""
    end_run(journal, "limit", ErrorInfo.make(type="LimitReached", message=why), why=why)
