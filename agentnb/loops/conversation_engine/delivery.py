"""What the consumer of an engine's run has been told of it, and what not yet.

A run is ahead of its consumer: a pause, `resume` and a cancel are facts at once, and are heard with the next events
that are asked for. So what is undelivered is not kept beside the run, where it would miss these: it is what the facts
say, less what has been told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from agentnb.core.ending import ending, results_in
from agentnb.core.events import Delta, Event, RunPaused, RunResumed
from agentnb.core.evolve import fold
from agentnb.core.state import State
from agentnb.loops.conversation_engine.stream import EngineEvent, Projection


@dataclass
class Delivery:
    """How far the events of one run have been told; `counts_failures` as for `Projection`."""

    counts_failures: bool = False
    known: int = 0
    """How many facts came with a snapshot: what they say has been told before, but for `carried`."""
    carried: tuple[EngineEvent, ...] = ()
    """What was undelivered where that snapshot was taken."""
    taken_up: bool = True
    """Whether somebody has asked for the events, which is so at most once."""
    told: int = 0
    stream: Callable[[], object] | None = None
    """What gives the stream that drives the run, as long as anybody has it."""

    @property
    def is_left(self) -> bool:
        """Whether the run stands where the stream that drove it was left, and nobody can ask for more."""
        return self.stream is not None and self.stream() is None

    def projection(self) -> Projection:
        """What says the run's facts in the engine's words."""
        return Projection(counts_failures=self.counts_failures)

    def undelivered(self, facts: Sequence[Event], told: int) -> list[EngineEvent]:
        """What these facts of the run say, but the first so many events, which have been told."""
        projection = self.projection()
        said = list(self.carried)
        for fact in facts:
            events = projection.say(fact)
            if fact.seq >= self.known:
                said += events
        return said[told:]

    def tell(self, fact: Event | Delta, events: Sequence[EngineEvent]) -> Iterator[EngineEvent]:
        """What is to be told with this fact, which says these events; each is told from when it is taken."""
        if fact.seq is None:
            return
        carried = self.carried if fact.seq == max(self.known - 1, 0) else ()
        for event in (*carried, *(events if fact.seq >= self.known else ())):
            self.told += 1
            yield event


def gone_on_from(facts: Sequence[Event], state: State, *, pausing: bool) -> list[Event]:
    """The facts of a run that stands at `state`, for whoever goes on from them, with what is to be told first.

    A pause that is asked for has come there: what is in flight begins anew behind it. A run that was cancelled goes on
    from before that, with what its tasks have given meanwhile, and is no longer paused.
    """
    over = ending(facts) if state.stop_reason == "cancelled" else len(facts)
    past = [*facts[:over], *results_in(facts[over:])]
    if pausing:
        _append(past, RunPaused(reason="paused"))
    elif over < len(facts) and fold(past).paused:
        _append(past, RunResumed())
    return past


def _append(past: list[Event], fact: Event) -> None:
    last = past[-1]
    past.append(replace(fact, run_id=last.run_id, seq=last.seq + 1, time=time.time()))
