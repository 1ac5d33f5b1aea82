"""The events of an engine, computed from its run, and their delivery (SEMANTICS.md, 3. Events).

`EngineProjection` folds the events of the run and translates them, so a live run and a recording produce the same
engine events. Each change of state is emitted before the event that belongs to it, also for pause, resume and error.

`Delivery` counts what the consumer has received. A pause, `resume` and a cancel are in the journal immediately, but the
consumer receives them only when it asks for the next events. Undelivered events are therefore not stored: all events
are computed from the journal, and as many as were delivered are left out at the front.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from msgspec.structs import replace

from agentnb.core.errors import RunFailed
from agentnb.core.events import (
    CallEnd,
    CallStart,
    Delta,
    ErrorInfo,
    Event,
    RunEnd,
    RunPaused,
    RunResumed,
    StateUpdate,
)
from agentnb.core.evolve import fold
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
    task_counts,
    text_of_error,
)
from agentnb.loops.projection import Handlers, Projection


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


class EngineProjection(Projection[EngineEvent]):
    """The translation of a run's events into the events of an engine.

    counts_failures: ENGINE_COMPLETED has the number of failed tasks, because the engine continues after a failed task.
    """

    def __init__(self, *, counts_failures: bool = False) -> None:
        super().__init__()
        self._counts_failures = counts_failures
        self._time = 0.0
        self._phase = EngineState.IDLE.value
        """The phase of the run before the event that is being translated."""

    def translate(self, item: Event | Delta) -> Iterable[EngineEvent]:
        """Fold an event of the run, and yield the engine's events that it results in. Deltas have none."""
        if isinstance(item, Delta):
            return
        self._time = item.time
        before, self._phase = engine_state(self.state), self.state.phase or EngineState.IDLE.value
        translation = super().translate(item)

        # An aborted task, a change of state (also by an event of a nested loop), then what else the event reports.
        if isinstance(item, CallEnd) and not item.path:
            yield from self._aborted_task(item)
        after = engine_state(self.state)
        if before is not after:
            yield from self._change_of_state(before, after)
        yield from translation

    def reports(self, error: RunFailed, failure: ErrorInfo | None) -> bool:
        """Return True if ENGINE_ERROR reports this error: a model failure, or an error that has ended the run."""
        return failure is not None or self.state.over

    def _event(self, event_type: EngineEventType, **data: Any) -> EngineEvent:
        return EngineEvent(event_type, data, self._time)

    def _task_failed(self, task_id: str, error: str) -> EngineEvent:
        phase = EngineState.EXECUTING.value
        return self._event(EngineEventType.TASK_FAILED, task_id=task_id, error=error, phase=phase)

    def _aborted_task(self, event: CallEnd) -> Iterator[EngineEvent]:
        """Yield TASK_FAILED for a task that had started and was aborted: every TASK_STARTED has its end."""
        if event.name == EXECUTE and event.outcome == "aborted":
            call = self.state.calls[event.call_id]
            if call.attempt:
                yield self._task_failed(call.arguments["id"], self.state.cancelled or str(event.result))

    def _change_of_state(self, before: EngineState, after: EngineState) -> Iterator[EngineEvent]:
        """Yield STATE_CHANGED, and then the event that belongs to the new state."""
        failure = self.state.failure
        if after is EngineState.ERROR:  # a model's failure, or a nested loop that has suspended the run
            reason = text_of_error(failure) if failure is not None else str(self.state.stop_reason)
            for call in self.state.open.values():
                if call.name == EXECUTE and call.status == "running":
                    yield self._task_failed(call.arguments["id"], reason)
        yield self._event(EngineEventType.STATE_CHANGED, **{"from": before.value, "to": after.value})
        if failure is not None:
            yield self._event(EngineEventType.ENGINE_ERROR, error=text_of_error(failure), phase=self._phase)
        progress = task_counts(self.state)
        if after is EngineState.PAUSED:
            yield self._event(EngineEventType.ENGINE_PAUSED, progress=progress.fraction)
        elif before is EngineState.PAUSED and after is not EngineState.ERROR:
            yield self._event(EngineEventType.ENGINE_RESUMED, progress=progress.fraction)
        elif after is EngineState.COMPLETED:
            failed = {"failed_tasks": progress.failed} if self._counts_failures else {}
            yield self._event(
                EngineEventType.ENGINE_COMPLETED,
                total_tasks=progress.total,
                completed_tasks=progress.completed,
                **failed,
            )

    # -- events of the run ---------------------------------------------------------------------------------------------

    def _call_start(self, event: CallStart) -> Iterator[EngineEvent]:
        if event.name == EXECUTE:
            yield self._event(EngineEventType.TASK_STARTED, task_id=event.arguments["id"])

    def _call_end(self, event: CallEnd) -> Iterator[EngineEvent]:
        if event.outcome == "aborted":  # see `_aborted_task`
            return
        if event.name == EXECUTE:
            call = self.state.calls[event.call_id]
            task_id, outcome = call.arguments["id"], outcome_of(call)
            if event.is_error:
                yield self._task_failed(task_id, outcome["error"])
            else:
                fraction = task_counts(self.state).fraction
                yield self._event(
                    EngineEventType.TASK_COMPLETED, task_id=task_id, result=event.result, progress=fraction
                )
        elif event.name == GET_CONTEXT and not event.is_error:
            counts = {f"{part}_count": _count(event.result[part]) for part in ("rules", "tools", "knowledge")}
            yield self._event(EngineEventType.CONTEXT_RECEIVED, **counts)
        elif event.name == DECOMPOSE and not event.is_error:
            tasks, dropped = event.result["tasks"], event.result["dropped"]
            listed = [{"id": task["id"], "description": task["description"]} for task in tasks]
            yield self._event(EngineEventType.TASK_DECOMPOSED, task_count=len(tasks), tasks=listed)
            if dropped:
                count = len(tasks) + len(dropped)
                yield self._event(
                    EngineEventType.TASKS_TRUNCATED, max_tasks=len(tasks), task_count=count, dropped=dropped
                )

    def _state_update(self, event: StateUpdate) -> Iterator[EngineEvent]:
        """Yield TASK_SCHEDULED for each task when they are ordered, and TASK_FAILED for a task that is skipped."""
        if "scheduled" in event.values:
            for task in event.values["tasks"]:
                yield self._event(EngineEventType.TASK_SCHEDULED, task_id=task["id"], priority=task["priority"])
        elif (skipped := event.values.get("skipped")) is not None:
            yield self._task_failed(skipped, self.state.values[outcome_key(skipped)]["error"])

    def _run_end(self, event: RunEnd) -> Iterator[EngineEvent]:
        if event.reason != "completed":
            error = text_of_error(event.error) if event.error is not None else self.state.cancelled or event.reason
            yield self._event(EngineEventType.ENGINE_ERROR, error=error, phase=self._phase)

    handlers: ClassVar[Handlers] = {
        CallStart: _call_start,
        CallEnd: _call_end,
        StateUpdate: _state_update,
        RunEnd: _run_end,
    }


def _count(part: Any) -> int:
    return len(part) if isinstance(part, (list, dict)) else int(part not in (None, ""))


class Delivery(EngineProjection):
    """The projection of a run for the engine's consumer. It counts the engine's events that the consumer has received.

    known: the number of events of the run that came with a snapshot; their engine events were delivered before, except
    `carried`, which were undelivered when the snapshot was taken. continued: the events have been requested, which is
    allowed once.
    """

    def __init__(
        self,
        *,
        counts_failures: bool = False,
        known: int = 0,
        carried: Sequence[EngineEvent] = (),
        continued: bool = True,
    ) -> None:
        super().__init__(counts_failures=counts_failures)
        self.carried = carried
        self.continued = continued
        self.delivered = 0
        self.stream: Callable[[], object] | None = None
        """Returns the stream that drives the run, or None once it is garbage-collected."""
        self._known = known

    @property
    def is_abandoned(self) -> bool:
        """True if the stream that drove the run is garbage-collected, so that nothing can advance the run."""
        return self.stream is not None and self.stream() is None

    def translate(self, item: Event | Delta) -> Iterable[EngineEvent]:
        """Yield the engine's events to deliver for one event of the run, and count each when it is taken.

        The events carried by a snapshot are yielded before the first new event.
        """
        translated = list(super().translate(item))
        if isinstance(item, Delta):
            return
        carried = self.carried if item.seq == max(self._known - 1, 0) else ()
        for engine_event in (*carried, *(translated if item.seq >= self._known else ())):
            self.delivered += 1
            yield engine_event

    def undelivered(self, events: Sequence[Event], delivered: int) -> list[EngineEvent]:
        """Return the engine's events for these events of the run, without the first `delivered` ones."""
        projection = EngineProjection(counts_failures=self._counts_failures)
        engine_events = list(self.carried)
        for event in events:
            translated = list(projection.translate(event))
            if event.seq >= self._known:
                engine_events += translated
        return engine_events[delivered:]


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
