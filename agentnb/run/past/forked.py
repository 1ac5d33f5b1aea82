"""Making the run that a fork is."""

from __future__ import annotations

from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.loop import Design
from agentnb.run.past.fork import Change, branch, settle
from agentnb.run.past.recorded_loop import RecordedLoop
from agentnb.run.recording import Recording
from agentnb.run.run import Run

OPTIONS = frozenset({"name", "store", "approve", "breakpoints", "limits"})


def forked(origin: Recording, at: int | None, change: Change, loop: Design | None, **options: Any) -> Run:
    """A run that departs from a recording at one of its events; at the one it stands at where none is named."""
    if unknown := sorted(options.keys() - OPTIONS):
        raise UsageError(f"fork() takes {', '.join(sorted(OPTIONS))} of what start() takes, and no {unknown[0]}.")
    loop = loop if loop is not None else origin.loop
    if isinstance(loop, RecordedLoop):
        raise UsageError("A recording from a file does not hold its loop: give the loop that goes on by loop=.")
    if not origin.recording:
        raise UsageError("The run has not begun: there is nothing to fork yet.")
    if at is None and not origin.events:
        raise UsageError("The replay stands before its first event: say by at= which one the fork departs from.")
    made = branch(origin.recording, len(origin.events) - 1 if at is None else at, change, loop)
    run = Run(loop, recording=made.events, resumed=made.resumed, **options)
    with run.lock:
        if run.state.failure is not None:  # the model is asked again, as it may be another one
            run.resume()
        if made.steer is not None:
            run.queue("steering", made.steer)
        settle(made, run._journal)
    return run
