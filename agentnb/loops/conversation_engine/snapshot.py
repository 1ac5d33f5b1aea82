"""Snapshots of an engine: JSON data, and the events that lead back to it (SEMANTICS.md, 7. Snapshots).

A snapshot has the tasks in the order they run in, with the outcome of each, and the state before a pause. A malformed
snapshot is refused as a whole, before anything is changed. One without a `version` is a published snapshot: it has
neither the input nor the order.

To restore one, `events_of` makes a journal that leads to its state, for a run to resume from. A task that was completed
does not run again; the task that was running does.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CallStart, ErrorInfo, Event, PhaseChange, RunEnd, RunPaused, RunStart, StateUpdate
from agentnb.core.messages import input_messages
from agentnb.core.state import State
from agentnb.loops.conversation_engine.states import (
    DECOMPOSE,
    EXECUTE,
    GET_CONTEXT,
    WORKING,
    EngineState,
    known,
    outcome_key,
    propose_task,
    task_counts,
    tasks_of,
)
from agentnb.loops.conversation_engine.stream import EngineEvent
from agentnb.loops.conversation_engine.tasks import SubTask, TaskError, tasks_in_order

VERSION = 1


class _Task(SubTask):
    description: str  # required here: every snapshot has it


class EngineSnapshot(BaseModel):
    """A validated snapshot."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    version: int = VERSION
    state: EngineState
    previous_state: EngineState | None = None
    progress: float = 0.0
    user_input: Any = None
    context: dict[str, Any] | None = None
    tasks: list[_Task]
    decomposed: bool | None = None
    scheduled: bool = False
    completed_tasks: int
    total_tasks: int
    error: ErrorInfo | None = None
    cancelled: bool = False
    undelivered: list[EngineEvent] = []

    @model_validator(mode="after")
    def _consistent(self) -> EngineSnapshot:
        done = [task for task in self.tasks if task.status in ("completed", "failed")]
        completed = sum(task.status == "completed" for task in self.tasks)
        if self.version != VERSION:
            raise ValueError(f"the version is {self.version}; this agentnb reads version {VERSION}")
        if not 0 <= self.progress <= 1:
            raise ValueError(f"progress must be between 0 and 1, not {self.progress}")
        if (self.total_tasks, self.completed_tasks) != (len(self.tasks), completed):
            raise ValueError(
                f"the counts ({self.completed_tasks} of {self.total_tasks} completed) do not match its tasks"
            )
        if self.state is EngineState.COMPLETED and len(done) < len(self.tasks):
            raise ValueError("the state is completed, but some tasks are not completed or failed")
        if self.tasks and self.phase in (EngineState.IDLE, EngineState.RECEIVING, EngineState.CONTEXT_FETCHING):
            raise ValueError(f"it has tasks, but an engine in the state {self.phase} has none yet")
        if self.previous_state is not None and self.previous_state not in (EngineState.IDLE, *WORKING):
            raise ValueError(f"previous_state cannot be {self.previous_state}")
        tasks_in_order(self.tasks)
        return self

    @property
    def phase(self) -> EngineState:
        """The state in which the engine worked last, also if it was paused or has failed in it."""
        if self.state in WORKING:
            return self.state
        if self.previous_state is not None and self.state is not EngineState.COMPLETED:
            return self.previous_state
        return EngineState.EXECUTING if self.state is not EngineState.IDLE else EngineState.IDLE


def read_snapshot(given: Any) -> EngineSnapshot:
    """Validate a snapshot. Raises TaskError, with the fault, if it is malformed."""
    try:
        given = json.loads(json.dumps(given))  # a copy; raises for data that is not JSON
        snapshot = EngineSnapshot.model_validate(given)
        input_messages(snapshot.user_input)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the snapshot"
        raise TaskError(f"{where}: {fault['msg']}") from error
    except InvalidArguments as error:
        raise TaskError(f"user_input: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"the snapshot is not JSON: {error}") from error
    if snapshot.phase is EngineState.EXECUTING and not snapshot.scheduled:
        by_id = {task.id: task for task in snapshot.tasks}
        snapshot.tasks = [by_id[task.id] for task in tasks_in_order(snapshot.tasks)]
        snapshot.scheduled = True
    return snapshot


# -- taking one ------------------------------------------------------------------------------------------------------


def take_snapshot(
    state: State, events: Sequence[Event], reported: EngineState, undelivered: Iterable[EngineEvent]
) -> dict[str, Any]:
    """Return the snapshot of a run.

    state: the fold of `events`. reported: the state that the engine reports. undelivered: the engine's events that its
    consumer has not received.
    """
    progress = task_counts(state)
    cancelled = state.stop_reason == "cancelled"
    phase = EngineState(state.phase or EngineState.IDLE)
    if state.over:  # the last phase in which the engine worked; nested loops have phases of their own
        phases = (event.phase for event in reversed(events) if not event.path)
        phase = next(EngineState(phase) for phase in phases if phase in (EngineState.IDLE, *WORKING))
    failure = state.error or state.failure
    return {
        "version": VERSION,
        "state": reported.value,
        "previous_state": phase.value if reported in (EngineState.PAUSED, EngineState.ERROR) else None,
        "progress": progress.fraction,
        "user_input": copy.deepcopy(state.input),
        "context": copy.deepcopy(known(state, "context", GET_CONTEXT)),
        "tasks": [copy.deepcopy(task.model_dump(mode="json")) for task in tasks_of(state)],
        "decomposed": known(state, "tasks", DECOMPOSE) is not None,
        "scheduled": state.values.get("scheduled", False),
        "completed_tasks": progress.completed,
        "failed_tasks": progress.failed,
        "total_tasks": progress.total,
        "error": {"type": failure.type, "message": failure.message} if failure is not None else None,
        "cancelled": cancelled,
        "undelivered": [copy.deepcopy(dataclasses.asdict(event)) for event in undelivered],
        "timestamp": time.time(),
    }


def events_of(snapshot: EngineSnapshot, start: RunStart) -> list[Event]:
    """Return a journal that leads to the state of a snapshot. start: the first event of a run of this engine."""
    run_id, now = uuid.uuid4().hex[:12], time.time()
    tasks = snapshot.tasks
    plan = [task.plan() for task in tasks]
    results = {task.id: task.result for task in tasks if task.status == "completed"}
    journal: list[Event] = [replace(start, phase=EngineState.IDLE.value)]

    # Enter each phase up to the one of the snapshot, and set the values that were computed in it.
    source = EngineState.IDLE
    for phase in WORKING[: WORKING.index(snapshot.phase) + 1] if snapshot.phase in WORKING else ():
        journal.append(PhaseChange(source=source.value, phase=phase.value))
        source = phase
        if phase is EngineState.CONTEXT_FETCHING and snapshot.context is not None:
            journal.append(StateUpdate(values={"context": snapshot.context}))
        elif phase is EngineState.DECOMPOSING and (snapshot.decomposed or plan):
            journal.append(StateUpdate(values={"tasks": plan}))
        elif phase is EngineState.SCHEDULING and snapshot.scheduled:
            journal.append(StateUpdate(values={"tasks": plan, "scheduled": True}))

    # Record the outcomes of the tasks that have ended. `next` skips those at the front.
    completed = failed = front = 0
    for position, task in enumerate(tasks):
        if task.status in ("completed", "failed"):
            completed, failed = completed + (task.status == "completed"), failed + (task.status == "failed")
            front += snapshot.scheduled and front == position
            outcome = task.model_dump(include={"status", "result" if task.status == "completed" else "error"})
            counts = {"completed": completed, "failed": failed, "next": front}
            journal.append(StateUpdate(values={outcome_key(task.id): outcome, **counts}))

    # Start the task that was running: its outcome is unknown, so it runs again.
    if snapshot.phase is EngineState.EXECUTING and snapshot.state is not EngineState.ERROR:
        current = next((task for task in tasks if task.status in ("pending", "running")), None)
        if current is not None and current.status == "running":
            proposed = propose_task(State(), current.plan(), results)
            started = CallStart(call_id=proposed.call.id, name=EXECUTE, arguments=proposed.call.arguments, own=True)
            journal += [proposed, started]

    # Pause or end as the engine had.
    if snapshot.state is EngineState.PAUSED:
        journal.append(RunPaused(reason="paused"))
    elif snapshot.state is EngineState.COMPLETED:
        journal.append(RunEnd(reason="completed", phase=EngineState.COMPLETED.value, output=results))
    elif snapshot.state is EngineState.ERROR and not snapshot.cancelled:
        error = snapshot.error or ErrorInfo(type="Error", message="The engine had failed.")
        journal.append(RunEnd(reason="error", phase=EngineState.ERROR.value, error=error))
    return [replace(event, run_id=run_id, time=now, seq=seq) for seq, event in enumerate(journal)]
