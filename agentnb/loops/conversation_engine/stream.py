"""The events of an engine, computed from its run, and their delivery (SEMANTICS.md, 3. Events).

`Projection` folds the events of the run and translates them, so a live run and a recording produce the same engine
events. Each change of state is emitted before the event that belongs to it, also for pause, resume and error.

`Delivery` counts what the consumer has received. A pause, `resume` and a cancel are in the journal immediately, but the
consumer receives them only when it asks for the next events. Undelivered events are therefore not stored: they are
computed from the journal, less the number delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from agentnb.core.ending import ending, results_in
from agentnb.core.events import CallEnd, CallStart, Delta, Event, RunEnd, RunPaused, RunResumed, StateUpdate
from agentnb.core.evolve import evolve, fold
from agentnb.core.state import CallState, State
from agentnb.loops.conversation_engine.states import (
    DECOMPOSE,
    EXECUTE,
    GET_CONTEXT,
    EngineState,
    engine_state,
    outcome_key,
    outcome_of,
    progress_of,
    words_of,
)


class EngineEventType(StrEnum):
    """What can happen to an engine."""

    STATE_CHANGED = "state_changed"
    CONTEXT_RECEIVED = "context_received"
    TASK_DECOMPOSED = "task_decomposed"
    TASKS_TRUNCATED = "tasks_truncated"
    TASK_SCHEDULED = "task_scheduled"
    TASK_STARTED = "task_started"
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed"
    ENGINE_PAUSED = "engine_paused"
    ENGINE_RESUMED = "engine_resumed"
    ENGINE_COMPLETED = "engine_completed"
    ENGINE_ERROR = "engine_error"


@dataclass(frozen=True)
class EngineEvent:
    """One event of an engine; `timestamp` in seconds since the epoch."""

    event_type: EngineEventType
    data: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=time.time)


_Said = tuple[EngineEventType, dict[str, Any]]


class Projection:
    """Says a run's events in an engine's words; `counts_failures`: the engine goes on after a task that failed."""

    def __init__(self, *, counts_failures: bool = False) -> None:
        self.state = State()
        self._counts_failures = counts_failures

    def say(self, fact: Event | Delta) -> list[EngineEvent]:
        """The engine's events that this one is."""
        if isinstance(fact, Delta):
            return []
        before, phase = engine_state(self.state), self.state.phase or EngineState.IDLE.value
        evolve(self.state, fact)
        after = engine_state(self.state)
        said = list(self._given_up(fact))
        said += self._changes(before, after, phase)
        said += self._happenings(fact, phase)
        return [EngineEvent(event_type, data, fact.time) for event_type, data in said]

    def _given_up(self, fact: Event) -> Iterator[_Said]:
        """A task that has begun and will not come to its end in this stream: what starts is also closed."""
        if isinstance(fact, CallEnd) and fact.name == EXECUTE and fact.outcome == "aborted" and not fact.path:
            call = self.state.calls[fact.call_id]
            if call.attempt:
                yield _failed(call.arguments["id"], self.state.cancelled or str(fact.result))

    def _changes(self, before: EngineState, after: EngineState, phase: str) -> Iterator[_Said]:
        failure = self.state.failure if before is not after else None
        if before is not after is EngineState.ERROR:  # a model's failure, or a loop that has suspended the run
            why = words_of(failure) if failure is not None else str(self.state.stop_reason)
            yield from (_failed(call.arguments["id"], why) for call in self._running())
        if before is not after:
            yield EngineEventType.STATE_CHANGED, {"from": before.value, "to": after.value}
        if failure is not None:
            yield EngineEventType.ENGINE_ERROR, {"error": words_of(failure), "phase": phase}
        progress = progress_of(self.state)
        if after is EngineState.PAUSED and before is not after:
            yield EngineEventType.ENGINE_PAUSED, {"progress": progress.fraction}
        elif before is EngineState.PAUSED and after not in (before, EngineState.ERROR):
            yield EngineEventType.ENGINE_RESUMED, {"progress": progress.fraction}
        elif after is EngineState.COMPLETED and before is not after:
            counts = {"total_tasks": progress.total, "completed_tasks": progress.completed}
            failed = {"failed_tasks": progress.failed} if self._counts_failures else {}
            yield EngineEventType.ENGINE_COMPLETED, {**counts, **failed}

    def _running(self) -> list[CallState]:
        return [call for call in self.state.open.values() if call.name == EXECUTE and call.status == "running"]

    def _happenings(self, fact: Event, phase: str) -> Iterator[_Said]:
        if fact.path:
            return  # of a loop inside the engine
        if isinstance(fact, CallStart) and fact.name == EXECUTE:
            yield EngineEventType.TASK_STARTED, {"task_id": fact.arguments["id"]}
        elif isinstance(fact, CallEnd):
            yield from self._end_of_call(fact)
        elif isinstance(fact, StateUpdate):
            yield from self._update(fact)
        elif isinstance(fact, RunEnd) and fact.reason != "completed":
            why = words_of(fact.error) if fact.error is not None else self.state.cancelled or fact.reason
            yield EngineEventType.ENGINE_ERROR, {"error": why, "phase": phase}

    def _end_of_call(self, end: CallEnd) -> Iterator[_Said]:
        if end.outcome == "aborted":
            return  # the run has ended in the middle of it (`_given_up`)
        if end.name == EXECUTE:
            call = self.state.calls[end.call_id]
            task_id, outcome = call.arguments["id"], outcome_of(call)
            if end.is_error:
                yield _failed(task_id, outcome["error"])
            else:
                done = {"result": end.result, "progress": progress_of(self.state).fraction}
                yield EngineEventType.TASK_COMPLETED, {"task_id": task_id, **done}
        elif end.name == GET_CONTEXT and not end.is_error:
            counts = {f"{part}_count": _count(end.result[part]) for part in ("rules", "tools", "knowledge")}
            yield EngineEventType.CONTEXT_RECEIVED, counts
        elif end.name == DECOMPOSE and not end.is_error:
            tasks, dropped = end.result["tasks"], end.result["dropped"]
            named = [{"id": task["id"], "description": task["description"]} for task in tasks]
            yield EngineEventType.TASK_DECOMPOSED, {"task_count": len(tasks), "tasks": named}
            if dropped:
                truncated = {"max_tasks": len(tasks), "task_count": len(tasks) + len(dropped), "dropped": dropped}
                yield EngineEventType.TASKS_TRUNCATED, truncated

    def _update(self, fact: StateUpdate) -> Iterator[_Said]:
        if "scheduled" in fact.values:
            for task in fact.values["tasks"]:
                yield EngineEventType.TASK_SCHEDULED, {"task_id": task["id"], "priority": task["priority"]}
        elif (skipped := fact.values.get("skipped")) is not None:
            yield _failed(skipped, self.state.values[outcome_key(skipped)]["error"])


def _failed(task_id: str, error: str) -> _Said:
    return EngineEventType.TASK_FAILED, {"task_id": task_id, "error": error, "phase": EngineState.EXECUTING.value}


def _count(part: Any) -> int:
    return len(part) if isinstance(part, (list, dict)) else int(part not in (None, ""))


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
