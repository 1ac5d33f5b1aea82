"""An engine's own snapshots: a JSON dict of the engine as it stands, and the way back (SEMANTICS 4d, 4g.9).

A snapshot names its tasks in the order they run in, with what has become of each, and the state before a pause. Going
back makes facts of it: a journal that leads to where the engine stood, for a run to go on from. So a task that was
completed does not run again, and one that was running does.

What is not a snapshot is refused as a whole, before anything is changed (4g.10). One without a `version` is of the
published design: it knows neither the input nor the order.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agentnb.core.events import CallStart, ErrorInfo, Event, PhaseChange, RunEnd, RunPaused, RunStart, StateUpdate
from agentnb.core.state import State
from agentnb.loops.engine_progress import (
    DECOMPOSE,
    EXECUTE,
    GET_CONTEXT,
    known,
    outcome_key,
    progress_of,
    propose_task,
    tasks_of,
)
from agentnb.loops.engine_states import WORKING, EngineState
from agentnb.loops.engine_stream import EngineEvent, EngineEventType
from agentnb.loops.engine_tasks import SubTask, TaskError, in_order

VERSION = 1


class _Error(BaseModel):
    type: str
    message: str


class _Event(BaseModel):
    event_type: EngineEventType
    data: dict[str, Any]
    timestamp: float


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
    error: _Error | None = None
    cancelled: bool = False
    undelivered: list[_Event] = []

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
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the snapshot"
        raise TaskError(f"{where}: {fault['msg']}") from error
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
    """The phase a run was in when it ended."""
    phases = (events[position].phase for position in range(len(events) - 1, -1, -1))
    return next(EngineState(phase) for phase in phases if phase in (EngineState.IDLE, *WORKING))


# -- going back ------------------------------------------------------------------------------------------------------


def facts(snapshot: EngineSnapshot, start: RunStart) -> list[Event]:
    """A journal that leads to where the snapshot was taken; `start` is how a run of this engine begins."""
    stamp: dict[str, Any] = {"run_id": uuid.uuid4().hex[:12], "time": time.time()}
    journal: list[Event] = [start.model_copy(update={"phase": EngineState.IDLE.value})]
    source = EngineState.IDLE
    for phase in WORKING[: WORKING.index(snapshot.phase) + 1] if snapshot.phase in WORKING else ():
        journal.append(PhaseChange.make(source=source.value, phase=phase.value))
        journal += [StateUpdate.make(values=values) for values in _values(snapshot, phase)]
        source = phase
    if snapshot.phase is EngineState.EXECUTING and snapshot.state is not EngineState.ERROR:
        journal += _begun(snapshot.tasks)
    if snapshot.state is EngineState.PAUSED:
        journal.append(RunPaused.make(reason="paused"))
    elif snapshot.state is EngineState.COMPLETED:
        results = {task.id: task.result for task in snapshot.tasks if task.status == "completed"}
        journal.append(RunEnd.make(reason="completed", phase=EngineState.COMPLETED.value, output=results))
    elif snapshot.state is EngineState.ERROR and not snapshot.cancelled:
        said = snapshot.error or _Error(type="Error", message="The engine had failed.")
        error = ErrorInfo.make(type=said.type, message=said.message)
        journal.append(RunEnd.make(reason="error", phase=EngineState.ERROR.value, error=error))
    for seq, fact in enumerate(journal):
        fact.__dict__.update(stamp, seq=seq)  # nobody else has seen them yet
    return journal


def _begun(tasks: Sequence[SubTask]) -> list[Event]:
    """The start of the task that was running: nobody knows how that ended, and so it is started again."""
    task = next((task for task in tasks if task.status in ("pending", "running")), None)
    if task is None or task.status == "pending":
        return []
    call = propose_task(task.plan())
    return [call, CallStart.make(call_id=call.call.id, name=EXECUTE, arguments=task.plan())]


def _values(snapshot: EngineSnapshot, phase: EngineState) -> Iterable[dict[str, Any]]:
    """What the engine had found out in this phase."""
    plan = [task.plan() for task in snapshot.tasks]
    if phase is EngineState.CONTEXT_FETCHING and snapshot.context is not None:
        yield {"context": snapshot.context}
    elif phase is EngineState.DECOMPOSING and (snapshot.decomposed or plan):
        yield {"tasks": plan}
    elif phase is EngineState.SCHEDULING and snapshot.scheduled:
        yield {"tasks": plan, "scheduled": True}
    elif phase is EngineState.EXECUTING:
        completed = failed = done = 0
        for position, task in enumerate(snapshot.tasks):
            if task.status in ("completed", "failed"):
                completed, failed = completed + (task.status == "completed"), failed + (task.status == "failed")
                outcome = task.model_dump(include={"status", "result" if task.status == "completed" else "error"})
                done += done == position  # of those at the front, which need not be looked at again
                yield {outcome_key(task.id): outcome, "completed": completed, "failed": failed, "next": done}
