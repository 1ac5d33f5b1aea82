"""The place of running code: the run, the loop and the call for which it runs.

A place is the same when the run is made again, whatever arrives first: it consists of numbers in the order in which
loops ask and call, not of ids or times. By it, `agentnb.llms.Cached` tells equal requests of a run apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct

from agentnb.core.events import CallProposed, ModelEnd, ModelStart, RunStart
from agentnb.core.protocols import EventLog

Inside = tuple[tuple[str, str], ...]
"""The calls that a nested loop performs, the outermost first: the path of the calling loop, and the id of the call."""


class AskedBy(Struct, frozen=True):
    """That for which code runs: a model request of the loop at `path` or, if `call` is an id, a call of that loop.

    inside: the calls that this loop performs. checks: the code decides about the call, and does not perform it.
    around: that for which the code runs that drives this run; None if it is not code of another run.
    """

    run: EventLog
    path: str
    inside: Inside = ()
    call: str = ""
    checks: bool = False
    around: AskedBy | None = None

    @property
    def outermost(self) -> EventLog:
        """The run around all the others."""
        return self.run if self.around is None else self.around.outermost


def without_checks(asked: AskedBy | None) -> AskedBy | None:
    """Return the nearest code, from here outwards, that does not decide about a call; None outside of every run."""
    while asked is not None and asked.checks:
        asked = asked.around
    return asked


asked_by: ContextVar[AskedBy | None] = ContextVar("agentnb_asked_by", default=None)
"""That for which the code of a model, a call, a hook or a policy runs; None outside of every run."""

sample_of_run: dict[str, tuple[int, int]] = {}
"""The step and the seed of each sample of a resampling that has not ended, by the id of its run."""


def act_for(run: EventLog, path: str, inside: Inside, call: str = "", *, checks: bool = False) -> None:
    """Set that for which the rest of this context runs. The arguments are the fields of `AskedBy`."""
    around = asked_by.get()
    if around is not None and around.run is run:
        around = around.around
    asked_by.set(AskedBy(run, path, inside, call, checks, around))


_runs_made: WeakKeyDictionary[EventLog, dict[tuple[str, str, bool], Iterator[int]]] = WeakKeyDictionary()
"""For each run, the numbers of the runs that each of its calls makes."""
_call_numbers: WeakKeyDictionary[EventLog, dict[tuple[str, str], Any]] = WeakKeyDictionary()
_forks: dict[tuple[str, int, int], Iterator[int]] = {}
"""The numbers of the equal forks in this process: by run, event, and hash of the change."""


def number_of_new_run() -> int:
    """Return how many runs the code that makes a run now has made before, in the same call; 0 outside of every run."""
    maker = asked_by.get()
    if maker is None:
        return 0
    numbers = _runs_made.setdefault(maker.run, {}).setdefault((maker.path, maker.call, maker.checks), count())
    return next(numbers)  # in one step, because several threads may make runs


def number_of_new_fork(run_id: str, at: int, change: object) -> int:
    """Return how often this process has forked a run at this event with this change before."""
    return next(_forks.setdefault((run_id, at, hash(repr(change))), count()))


def place_of(asked: AskedBy) -> list[Any]:
    """Return the place of code as JSON data.

    It has, from outside to inside, for each run its forks and its number among the runs that one call has made, the
    numbers of the calls that its loops perform, and the number of the request or of the call.
    """
    place = [*place_of(asked.around), asked.run.number] if asked.around is not None else []
    start = asked.run.events[0]
    if isinstance(start, RunStart) and start.forks:
        sample = sample_of_run.get(start.run_id)
        place.append([*start.forks[:-1], sample] if sample is not None else start.forks)
    place += [_number_of_call(asked.run, path, call) for path, call in asked.inside]
    if asked.call:
        return [*place, _number_of_call(asked.run, asked.path, asked.call), "check" if asked.checks else "call"]
    requests = (event for event in reversed(asked.run.events) if isinstance(event, ModelStart))
    return [*place, next((event.turn for event in requests if event.path == asked.path), 0)]


def _number_of_call(run: EventLog, path: str, id: str) -> Any:
    """Return the turn and the position of a model's call; for a call of the loop itself its id, which is a number."""
    known = _call_numbers.setdefault(run, {})
    if (path, id) not in known:
        known[path, id] = _find_call(run, path, id)
    return known[path, id]


def _find_call(run: EventLog, path: str, id: str) -> Any:
    made: list[str] = []  # the calls of one turn, the last one first
    is_complete = False
    for event in reversed(run.events):
        if event.path != path:
            continue
        if isinstance(event, ModelEnd):
            made, is_complete = [call.id for call in reversed(event.message.tool_calls)], True
        elif isinstance(event, CallProposed) and event.hidden and event.call.id == id:
            return re.sub(r"#\d+$", "", id)  # without the number of the loop's run at its path (`State.own_id`)
        elif isinstance(event, CallProposed) and not event.hidden and not is_complete:
            made.append(event.call.id)
        elif isinstance(event, ModelStart) and event.attempt == 1:
            if id in made:
                return [event.turn, len(made) - 1 - made.index(id)]
            made, is_complete = [], False
    return id
