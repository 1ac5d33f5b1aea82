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

from agentnb.core.events import CallEnd, CallStart, Delta, Event, RunEnd, RunPaused, RunResumed, StateUpdate
from agentnb.core.evolve import evolve, fold
from agentnb.core.resume_point import results_in, resume_point
from agentnb.core.state import State
from agentnb.loops.conversation_engine.states import (
    DECOMPOSE,
    EXECUTE,
    GET_CONTEXT,
    EngineState,
    engine_state,
    outcome_key,
    outcome_of,
    progress_of,
    text_of_error,
)


class EngineEventType(StrEnum):
    """The types of an engine's events."""

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


_Fields = tuple[EngineEventType, dict[str, Any]]


class Projection:
    """Translates the events of a run into events of an engine.

    counts_failures: ENGINE_COMPLETED has the number of failed tasks, because the engine continues after a failed task.
    """

    def __init__(self, *, counts_failures: bool = False) -> None:
        self.state = State()
        self._counts_failures = counts_failures

    def translate(self, event: Event | Delta) -> list[EngineEvent]:
        """Fold an event of the run, and return the engine's events that it results in."""
        if isinstance(event, Delta):
            return []
        before, phase = engine_state(self.state), self.state.phase or EngineState.IDLE.value
        evolve(self.state, event)
        after = engine_state(self.state)
        fields = [*self._aborted_task(event), *self._change_of_state(before, after, phase)]
        if not event.path:  # an event of a nested loop is not one of the engine
            fields += self._own_event(event, phase)
        return [EngineEvent(event_type, data, event.time) for event_type, data in fields]

    def _aborted_task(self, event: Event) -> Iterator[_Fields]:
        """Yield TASK_FAILED for a task that had started and was aborted: every TASK_STARTED has its end."""
        if isinstance(event, CallEnd) and event.name == EXECUTE and event.outcome == "aborted" and not event.path:
            call = self.state.calls[event.call_id]
            if call.attempt:
                yield _failed(call.arguments["id"], self.state.cancelled or str(event.result))

    def _change_of_state(self, before: EngineState, after: EngineState, phase: str) -> Iterator[_Fields]:
        """Yield STATE_CHANGED, and then the event that belongs to the new state."""
        if before is after:
            return
        failure = self.state.failure
        if after is EngineState.ERROR:  # a model's failure, or a nested loop that has suspended the run
            reason = text_of_error(failure) if failure is not None else str(self.state.stop_reason)
            for call in self.state.open.values():
                if call.name == EXECUTE and call.status == "running":
                    yield _failed(call.arguments["id"], reason)
        yield EngineEventType.STATE_CHANGED, {"from": before.value, "to": after.value}
        if failure is not None:
            yield EngineEventType.ENGINE_ERROR, {"error": text_of_error(failure), "phase": phase}
        progress = progress_of(self.state)
        if after is EngineState.PAUSED:
            yield EngineEventType.ENGINE_PAUSED, {"progress": progress.fraction}
        elif before is EngineState.PAUSED and after is not EngineState.ERROR:
            yield EngineEventType.ENGINE_RESUMED, {"progress": progress.fraction}
        elif after is EngineState.COMPLETED:
            counts = {"total_tasks": progress.total, "completed_tasks": progress.completed}
            failed = {"failed_tasks": progress.failed} if self._counts_failures else {}
            yield EngineEventType.ENGINE_COMPLETED, {**counts, **failed}

    def _own_event(self, event: Event, phase: str) -> Iterator[_Fields]:
        """Yield what an event of the engine's own loop results in, besides a change of state."""
        match event:
            case CallStart() if event.name == EXECUTE:
                yield EngineEventType.TASK_STARTED, {"task_id": event.arguments["id"]}

            case CallEnd() if event.outcome != "aborted":
                yield from self._end_of_call(event)

            # The tasks are in their order, or one is skipped.
            case StateUpdate() if "scheduled" in event.values:
                for task in event.values["tasks"]:
                    yield EngineEventType.TASK_SCHEDULED, {"task_id": task["id"], "priority": task["priority"]}
            case StateUpdate() if (skipped := event.values.get("skipped")) is not None:
                yield _failed(skipped, self.state.values[outcome_key(skipped)]["error"])

            case RunEnd() if event.reason != "completed":
                error = text_of_error(event.error) if event.error is not None else self.state.cancelled or event.reason
                yield EngineEventType.ENGINE_ERROR, {"error": error, "phase": phase}

    def _end_of_call(self, end: CallEnd) -> Iterator[_Fields]:
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
            listed = [{"id": task["id"], "description": task["description"]} for task in tasks]
            yield EngineEventType.TASK_DECOMPOSED, {"task_count": len(tasks), "tasks": listed}
            if dropped:
                truncated = {"max_tasks": len(tasks), "task_count": len(tasks) + len(dropped), "dropped": dropped}
                yield EngineEventType.TASKS_TRUNCATED, truncated


def _failed(task_id: str, error: str) -> _Fields:
    return EngineEventType.TASK_FAILED, {"task_id": task_id, "error": error, "phase": EngineState.EXECUTING.value}


def _count(part: Any) -> int:
    return len(part) if isinstance(part, (list, dict)) else int(part not in (None, ""))


@dataclass
class Delivery:
    """The number of events of one run that its consumer has received.

    counts_failures: as for `Projection`. known: the number of events of the run that came with a snapshot; their engine
    events were delivered before, except `carried`, which were undelivered when the snapshot was taken. continued: the
    events have been requested, which is allowed once. stream: returns the stream that drives the run, or None once it
    is garbage-collected.
    """

    counts_failures: bool = False
    known: int = 0
    carried: tuple[EngineEvent, ...] = ()
    continued: bool = True
    delivered: int = 0
    stream: Callable[[], object] | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether the stream that drove the run is garbage-collected, so that nothing can advance the run."""
        return self.stream is not None and self.stream() is None

    def projection(self) -> Projection:
        """Return a projection for the events of this run, from the first."""
        return Projection(counts_failures=self.counts_failures)

    def undelivered(self, events: Sequence[Event], delivered: int) -> list[EngineEvent]:
        """Return the engine's events for these events of the run, without the first `delivered` ones."""
        projection = self.projection()
        engine_events = list(self.carried)
        for event in events:
            translated = projection.translate(event)
            if event.seq >= self.known:
                engine_events += translated
        return engine_events[delivered:]

    def deliver(self, event: Event | Delta, translated: Sequence[EngineEvent]) -> Iterator[EngineEvent]:
        """Yield the engine's events to deliver for one event of the run, and count each when it is taken.

        translated: the engine's events that the event results in. Those carried by a snapshot are yielded before the
        first new event.
        """
        if event.seq is None:
            return
        carried = self.carried if event.seq == max(self.known - 1, 0) else ()
        for engine_event in (*carried, *(translated if event.seq >= self.known else ())):
            self.delivered += 1
            yield engine_event


def past_to_resume(events: Sequence[Event], state: State, *, pausing: bool) -> list[Event]:
    """Return the events of a run from which a restored run resumes.

    state: the fold of the events. pausing: a pause is requested; it takes effect here, and what is in flight runs
    again. A cancelled run resumes from before the cancellation, with the results that its tasks returned since, and is
    not paused.
    """
    over = resume_point(events) if state.stop_reason == "cancelled" else len(events)
    past = [*events[:over], *results_in(events[over:])]
    added: Event | None = None
    if pausing:
        added = RunPaused(reason="paused")
    elif over < len(events) and fold(past).paused:
        added = RunResumed()
    if added is not None:
        last = past[-1]
        past.append(replace(added, run_id=last.run_id, seq=last.seq + 1, time=time.time()))
    return past
