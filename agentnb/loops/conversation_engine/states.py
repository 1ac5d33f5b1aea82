"""State machine and progress of an engine, both read from the state of its run (SEMANTICS.md, 2. States; 5. Tasks).

The table of transitions is the published one, and agentnb adds: a paused engine may fail or be reset, and every state
in which the engine works may end in an error. The phases of a run are derived from the table, without two kinds of
transitions: a pause leaves the phase unchanged, so the run resumes in it; and a new run starts from idle.

The values of a run's state hold the plan and its outcome: `tasks` (in the order they run in once `scheduled` is set),
`task ID` for each task that has ended, `next` (the index at which to search for the next task), and the counts
`completed` and `failed`. The result of a task is first the end of its call, and then a value. Between the two events it
is `unrecorded`, and is counted already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from agentnb.core.events import CallEnd, CallProposed, ErrorInfo, RunEnd, StateUpdate
from agentnb.core.state import CallState, State
from agentnb.loops.conversation_engine.tasks import SubTask
from agentnb.loops.events import propose


class EngineState(StrEnum):
    """The state of an engine."""

    IDLE = "idle"
    RECEIVING = "receiving"
    CONTEXT_FETCHING = "context_fetching"
    DECOMPOSING = "decomposing"
    SCHEDULING = "scheduling"
    EXECUTING = "executing"
    PAUSED = "paused"
    COMPLETED = "completed"
    ERROR = "error"


VALID_STATE_TRANSITIONS: dict[EngineState, list[EngineState]] = {
    EngineState.IDLE: [EngineState.RECEIVING],
    EngineState.RECEIVING: [EngineState.CONTEXT_FETCHING, EngineState.ERROR],
    EngineState.CONTEXT_FETCHING: [EngineState.DECOMPOSING, EngineState.ERROR],
    EngineState.DECOMPOSING: [EngineState.SCHEDULING, EngineState.ERROR],
    EngineState.SCHEDULING: [EngineState.EXECUTING, EngineState.PAUSED, EngineState.ERROR],
    EngineState.EXECUTING: [EngineState.COMPLETED, EngineState.PAUSED, EngineState.ERROR],
    EngineState.PAUSED: [EngineState.EXECUTING, EngineState.SCHEDULING, EngineState.ERROR, EngineState.IDLE],
    EngineState.COMPLETED: [EngineState.IDLE],
    EngineState.ERROR: [EngineState.IDLE],
}

WORKING = (
    EngineState.RECEIVING,
    EngineState.CONTEXT_FETCHING,
    EngineState.DECOMPOSING,
    EngineState.SCHEDULING,
    EngineState.EXECUTING,
)
"""The states in which an engine works, in the order it goes through them."""

PAUSABLE = (EngineState.SCHEDULING, EngineState.EXECUTING)
"""The states in which the table allows a pause."""

PHASES: Mapping[str, Sequence[str]] = {
    state.value: [follows.value for follows in allowed if follows not in (EngineState.PAUSED, EngineState.IDLE)]
    for state, allowed in VALID_STATE_TRANSITIONS.items()
    if state is not EngineState.PAUSED
}


def engine_state(state: State) -> EngineState:
    """Return the engine's state for this state of its run."""
    phase = EngineState(state.phase or EngineState.IDLE)
    if state.failure is not None or (state.over and phase is not EngineState.COMPLETED):
        return EngineState.ERROR
    return EngineState.PAUSED if state.paused else phase


COORDINATOR = "coordinator"
PLANNER = "planner"
GET_CONTEXT = "get_context"
DECOMPOSE = "decompose_goal"
EXECUTE = "execute"


def propose_task(state: State, planned: Mapping[str, Any], results: Mapping[str, Any]) -> CallProposed:
    """Return the call that performs a task.

    planned: the task. results: the results of at least the tasks it depends on, by id; the call gets those as `given`.
    """
    given = {name: results[name] for name in planned["dependencies"]}
    arguments = {**planned, "given": given} if given else dict(planned)
    return propose(state, f"{EXECUTE} {planned['id']}", EXECUTE, arguments)


class TaskCounts(NamedTuple):
    """The number of tasks, how many have completed and failed, and the completed fraction."""

    total: int
    completed: int
    failed: int
    fraction: float


def outcome_key(task_id: str) -> str:
    """Return the name of the value of the state that holds the outcome of a task."""
    return f"task {task_id}"


def known(state: State, value: str, call_id: str) -> Any:
    """Return a value of the run's state, or None if it is not computed yet.

    call_id: the call that computes it. If the call has ended and its result is not recorded as a value yet, the result
    is returned.
    """
    if value in state.values:
        return state.values[value]
    call = state.calls.get(state.own_id(call_id))
    if call is None or call.end is None or call.end.is_error:
        return None
    return call.end.result[value] if call_id == DECOMPOSE else call.end.result


def plan_of(state: State) -> Sequence[Mapping[str, Any]]:
    """Return the planned tasks; empty before there is a plan."""
    return known(state, "tasks", DECOMPOSE) or ()


def _task_calls(state: State) -> list[CallState]:
    calls = tuple(state.calls.values())  # a copy: the run may be driven in another thread
    return [call for call in calls if call.hidden and call.name == EXECUTE]


def unrecorded(state: State) -> CallState | None:
    """Return the call of a task that has ended and whose outcome is not a value of the state yet, or None."""
    for call in _task_calls(state):
        ended = call.end is not None and call.end.outcome != "aborted"
        if ended and outcome_key(call.arguments["id"]) not in state.values:
            return call
    return None


def outcome_of(call: CallState) -> dict[str, Any]:
    """Return the outcome of a task whose call has ended: its status, and its result or error."""
    assert call.end is not None
    if not call.end.is_error:
        return {"status": "completed", "result": call.end.result}
    error = text_of_error(call.end.error) if call.end.error is not None else call.end.result
    return {"status": "failed", "error": error}


def record(state: State, task_id: str, outcome: dict[str, Any], **more: Any) -> StateUpdate:
    """Return the event that records the outcome of a task and counts the task. more: other values to set."""
    counted = outcome["status"]
    counts = {counted: state.values.get(counted, 0) + 1, "next": state.values.get("next", 0) + 1}
    return StateUpdate(values={outcome_key(task_id): outcome, **counts, **more})


def text_of_error(error: ErrorInfo) -> str:
    """Return the message of an error, or its type if the message is empty."""
    return error.message or error.type


def task_counts(state: State) -> TaskCounts:
    """Return the progress of the run. A task whose outcome is not recorded yet is counted."""
    total = len(plan_of(state))
    completed, failed = state.values.get("completed", 0), state.values.get("failed", 0)
    call = unrecorded(state)
    if call is not None and call.end is not None:
        completed, failed = completed + (not call.end.is_error), failed + call.end.is_error
    if total:
        return TaskCounts(total, completed, failed, completed / total)
    return TaskCounts(0, 0, 0, 1.0 if engine_state(state) is EngineState.COMPLETED else 0.0)


def tasks_of(state: State) -> list[SubTask]:
    """Return the tasks with their current status. Once they are scheduled, they are in the order in which they run."""
    ended = unrecorded(state)
    started = {call.arguments["id"] for call in _task_calls(state) if call.attempt}
    tasks = []
    for planned in plan_of(state):
        id = planned["id"]
        outcome: Mapping[str, Any] = state.values.get(outcome_key(id), {})
        if ended is not None and ended.arguments["id"] == id:
            outcome = outcome_of(ended)
        elif not outcome and id in started:
            outcome = {"status": "running"}
        tasks.append(SubTask(**{**planned, **outcome}))
    return tasks


def results_of(state: State) -> dict[str, Any]:
    """Return the results of the completed tasks, by id."""
    outcomes = ((task["id"], state.values.get(outcome_key(task["id"]), {})) for task in plan_of(state))
    return {id: outcome["result"] for id, outcome in outcomes if outcome.get("status") == "completed"}


def fail(end: CallEnd) -> RunEnd:
    """Return the end of a run after one of its calls has failed (SEMANTICS.md, 8. Errors)."""
    return _error(end.error or ErrorInfo(type="Error", message=str(end.result)))


def fail_with_task(state: State) -> RunEnd:
    """Return the end of a run after one of its tasks has failed. A task that failed before a snapshot has no call."""
    ends = [call.end for call in state.calls.values() if call.end is not None and call.end.is_error]
    if ends:
        return fail(ends[0])
    outcomes = (state.values.get(outcome_key(task["id"]), {}) for task in state.values["tasks"])
    message = next(outcome["error"] for outcome in outcomes if outcome.get("status") == "failed")
    return _error(ErrorInfo(type="TaskFailed", message=message))


def _error(error: ErrorInfo) -> RunEnd:
    return RunEnd(reason="error", phase=EngineState.ERROR.value, error=error)
