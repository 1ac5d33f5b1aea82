"""Going back to an engine's snapshot (SEMANTICS.md, 7. Snapshots).

Facts are made of it: a journal that leads to where the engine stood, for a run to go on from. So a task that was
completed does not run again, and one that was running does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from agentnb.core.events import CallStart, ErrorInfo, Event, PhaseChange, RunEnd, RunPaused, RunStart, StateUpdate
from agentnb.core.state import State
from agentnb.loops.conversation_engine.progress import EXECUTE, outcome_key, propose_task
from agentnb.loops.conversation_engine.snapshot import EngineSnapshot
from agentnb.loops.conversation_engine.states import WORKING, EngineState
from agentnb.loops.conversation_engine.tasks import SubTask


def facts_of(snapshot: EngineSnapshot, start: RunStart) -> list[Event]:
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
