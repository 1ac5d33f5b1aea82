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
    progress_of,
    propose_task,
    tasks_of,
)
from agentnb.loops.conversation_engine.stream import EngineEvent
from agentnb.loops.conversation_engine.tasks import SubTask, TaskError, in_order

VERSION = 1


class _Task(SubTask):
    description: str  # not optional here: a task without one is not ours


class EngineSnapshot(BaseModel):
    """What a snapshot says, checked."""

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
            raise ValueError(f"its version is {self.version}; this agentnb reads {VERSION}")
        if not 0 <= self.progress <= 1:
            raise ValueError(f"its progress is {self.progress}")
        if (self.total_tasks, self.completed_tasks) != (len(self.tasks), completed):
            raise ValueError(f"it counts {self.completed_tasks} of {self.total_tasks} tasks, and has others")
        if self.state is EngineState.COMPLETED and len(done) < len(self.tasks):
            raise ValueError("it is completed, and has tasks that are not")
        if self.tasks and self.phase in (EngineState.IDLE, EngineState.RECEIVING, EngineState.CONTEXT_FETCHING):
            raise ValueError(f"it has tasks, and comes from the state {self.phase}")
        if self.previous_state is not None and self.previous_state not in (EngineState.IDLE, *WORKING):
            raise ValueError(f"it comes from the state {self.previous_state}")
        in_order(self.tasks)
        return self

    @property
    def phase(self) -> EngineState:
        """Where the work stood: what the engine was doing, whether or not it was paused or broken off in it."""
        if self.state in WORKING:
            return self.state
        if self.previous_state is not None and self.state is not EngineState.COMPLETED:
            return self.previous_state
        return EngineState.EXECUTING if self.state is not EngineState.IDLE else EngineState.IDLE


def read(given: Any) -> EngineSnapshot:
    """The snapshot in plain data. Raises TaskError, which says what is wrong with it, where it is none."""
    try:
        given = json.loads(json.dumps(given))  # a copy, and nothing that is not JSON
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
        snapshot.tasks = [by_id[task.id] for task in in_order(snapshot.tasks)]
        snapshot.scheduled = True
    return snapshot


# -- taking one ------------------------------------------------------------------------------------------------------


def take(
    state: State, events: Sequence[Event], shown: EngineState, undelivered: Iterable[EngineEvent]
) -> dict[str, Any]:
    """The snapshot of a run; `shown` is the state the engine reports, `undelivered` what its consumer has not seen."""
    progress = progress_of(state)
    cancelled = state.stop_reason == "cancelled"
    phase = _last_working_phase(events) if state.over else EngineState(state.phase or EngineState.IDLE)
    failure = state.error or state.failure
    return {
        "version": VERSION,
        "state": shown.value,
        "previous_state": phase.value if shown in (EngineState.PAUSED, EngineState.ERROR) else None,
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


def _last_working_phase(events: Sequence[Event]) -> EngineState:
    """The phase a run was in when it ended; the loops inside it have phases of their own."""
    own = (event for event in reversed(events) if not event.path)
    return next(EngineState(event.phase) for event in own if event.phase in (EngineState.IDLE, *WORKING))


def events_of(snapshot: EngineSnapshot, start: RunStart) -> list[Event]:
    """A journal that leads to where the snapshot was taken; `start` is how a run of this engine begins."""
    run_id, now = uuid.uuid4().hex[:12], time.time()
    journal: list[Event] = [replace(start, phase=EngineState.IDLE.value)]
    source = EngineState.IDLE
    for phase in WORKING[: WORKING.index(snapshot.phase) + 1] if snapshot.phase in WORKING else ():
        journal.append(PhaseChange(source=source.value, phase=phase.value))
        journal += [StateUpdate(values=values) for values in _values(snapshot, phase)]
        source = phase
    journal += [StateUpdate(values=values) for values in _outcomes(snapshot)]
    if snapshot.phase is EngineState.EXECUTING and snapshot.state is not EngineState.ERROR:
        journal += _begun(snapshot.tasks)
    if snapshot.state is EngineState.PAUSED:
        journal.append(RunPaused(reason="paused"))
    elif snapshot.state is EngineState.COMPLETED:
        results = {task.id: task.result for task in snapshot.tasks if task.status == "completed"}
        journal.append(RunEnd(reason="completed", phase=EngineState.COMPLETED.value, output=results))
    elif snapshot.state is EngineState.ERROR and not snapshot.cancelled:
        error = snapshot.error or ErrorInfo(type="Error", message="The engine had failed.")
        journal.append(RunEnd(reason="error", phase=EngineState.ERROR.value, error=error))
    return [replace(event, run_id=run_id, time=now, seq=seq) for seq, event in enumerate(journal)]


def _begun(tasks: Sequence[SubTask]) -> list[Event]:
    """The start of the task that was running: nobody knows how that ended, and so it is started again."""
    task = next((task for task in tasks if task.status in ("pending", "running")), None)
    if task is None or task.status == "pending":
        return []
    call = propose_task(State(), task.plan(), {done.id: done.result for done in tasks if done.status == "completed"})
    return [call, CallStart(call_id=call.call.id, name=EXECUTE, arguments=call.call.arguments, own=True)]


def _values(snapshot: EngineSnapshot, phase: EngineState) -> Iterable[dict[str, Any]]:
    """What the engine had found out in this phase."""
    plan = [task.plan() for task in snapshot.tasks]
    if phase is EngineState.CONTEXT_FETCHING and snapshot.context is not None:
        yield {"context": snapshot.context}
    elif phase is EngineState.DECOMPOSING and (snapshot.decomposed or plan):
        yield {"tasks": plan}
    elif phase is EngineState.SCHEDULING and snapshot.scheduled:
        yield {"tasks": plan, "scheduled": True}


def _outcomes(snapshot: EngineSnapshot) -> Iterable[dict[str, Any]]:
    """What has become of the tasks that are done with; none of them runs again, wherever the work stood."""
    completed = failed = done = 0
    for position, task in enumerate(snapshot.tasks):
        if task.status in ("completed", "failed"):
            completed, failed = completed + (task.status == "completed"), failed + (task.status == "failed")
            outcome = task.model_dump(include={"status", "result" if task.status == "completed" else "error"})
            done += snapshot.scheduled and done == position  # at the front, which need not be looked at again
            yield {outcome_key(task.id): outcome, "completed": completed, "failed": failed, "next": done}
