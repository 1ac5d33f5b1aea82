"""How far an engine is, read from its run's state.

The state holds the plan and what has become of it: `tasks`, in the order they are to run in once `scheduled` is set,
`task ID` for each that is done with, `next` where to look for the next one, and the counts. A task's result is a fact
when its call has ended and becomes a value right after; in between it is `unrecorded`, and counted all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentnb.core.events import CallProposed, ErrorInfo, StateUpdate
from agentnb.core.state import CallState, State
from agentnb.loops.base import propose
from agentnb.loops.conversation_engine.states import EngineState, engine_state
from agentnb.loops.conversation_engine.tasks import SubTask

COORDINATOR = "coordinator"
PLANNER = "planner"
GET_CONTEXT = "get_context"
DECOMPOSE = "decompose_goal"
EXECUTE = "execute"


def propose_task(state: State, planned: Mapping[str, Any], results: Mapping[str, Any]) -> CallProposed:
    """Ask for the call that does a task, with what those it depends on came to."""
    given = {name: results[name] for name in planned["dependencies"]}
    arguments = {**planned, "given": given} if given else dict(planned)
    return propose(state, f"{EXECUTE} {planned['id']}", EXECUTE, arguments)


class Progress(NamedTuple):
    """How far an engine is."""

    total: int
    completed: int
    failed: int
    fraction: float


def outcome_key(task_id: str) -> str:
    """The name of the value that says what has become of a task."""
    return f"task {task_id}"


def known(state: State, value: str, call_id: str) -> Any:
    """What the run has found out: a value of its state, or still the result of the call that found it; or None."""
    if value in state.values:
        return state.values[value]
    call = state.calls.get(state.own_id(call_id))
    if call is None or call.end is None or call.end.is_error:
        return None
    return call.end.result[value] if call_id == DECOMPOSE else call.end.result


def plan_of(state: State) -> Sequence[Mapping[str, Any]]:
    """The tasks as planned; none before there is a plan."""
    return known(state, "tasks", DECOMPOSE) or ()


def _task_calls(state: State) -> list[CallState]:
    calls = tuple(state.calls.values())  # at once: the run may be driven in another thread
    return [call for call in calls if call.hidden and call.name == EXECUTE]


def unrecorded(state: State) -> CallState | None:
    """The call of a task that has come to an end which is no value of the state yet."""
    for call in _task_calls(state):
        ended = call.end is not None and call.end.outcome != "aborted"
        if ended and outcome_key(call.arguments["id"]) not in state.values:
            return call
    return None


def outcome_of(call: CallState) -> dict[str, Any]:
    """What has become of a task whose call has ended."""
    assert call.end is not None
    if not call.end.is_error:
        return {"status": "completed", "result": call.end.result}
    return {"status": "failed", "error": words_of(call.end.error) if call.end.error is not None else call.end.result}


def record(state: State, task_id: str, outcome: dict[str, Any], **more: Any) -> StateUpdate:
    """What has become of a task, as values of the state; `next` is where the search for the next one may begin."""
    counted = outcome["status"]
    counts = {counted: state.values.get(counted, 0) + 1, "next": state.values.get("next", 0) + 1}
    return StateUpdate(values={outcome_key(task_id): outcome, **counts, **more})


def words_of(error: ErrorInfo) -> str:
    """What an error says, or which one it is where it says nothing."""
    return error.message or error.type


def progress_of(state: State) -> Progress:
    """How far the run is, a task that has just ended included."""
    total = len(plan_of(state))
    completed, failed = state.values.get("completed", 0), state.values.get("failed", 0)
    call = unrecorded(state)
    if call is not None and call.end is not None:
        completed, failed = completed + (not call.end.is_error), failed + call.end.is_error
    if total:
        return Progress(total, completed, failed, completed / total)
    return Progress(0, 0, 0, 1.0 if engine_state(state) is EngineState.COMPLETED else 0.0)


def tasks_of(state: State) -> list[SubTask]:
    """The tasks as they stand, in the order they run in once that is known."""
    ended = unrecorded(state)
    begun = {call.arguments["id"] for call in _task_calls(state) if call.attempt}
    tasks = []
    for planned in plan_of(state):
        id = planned["id"]
        outcome: Mapping[str, Any] = state.values.get(outcome_key(id), {})
        if ended is not None and ended.arguments["id"] == id:
            outcome = outcome_of(ended)
        elif not outcome and id in begun:
            outcome = {"status": "running"}
        tasks.append(SubTask(**{**planned, **outcome}))
    return tasks


def results_of(state: State) -> dict[str, Any]:
    """The results of the tasks that were completed, by id."""
    outcomes = ((task["id"], state.values.get(outcome_key(task["id"]), {})) for task in plan_of(state))
    return {id: outcome["result"] for id, outcome in outcomes if outcome.get("status") == "completed"}
