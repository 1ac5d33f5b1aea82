"""ConversationEngine: fetch context, decompose a goal into tasks, run them one by one (SEMANTICS.md).

Written top to bottom it would read:

    context = await coordinator.get_context_async(user_input)
    tasks = in_order(await llm.decompose_goal(user_input, context))
    for task in tasks:
        await execute(task, context)

As a decision it is `advance`, one branch for each state of the machine (`states`). Whatever takes time is a call
of the run's, so its result is a fact, and going on from a snapshot never asks for it again. Where the llm is a model
the decomposition is a request to it, with the plan's JSON schema: seen as it is written, counted in tokens, and asked
again by the run's `resume` where the model failed; the call after it reads the plan out of the answer.

Pausing is the run's own: what is in flight comes to its end, a task that a loop executes too, and nothing new is
started (SEMANTICS.md, 6. Pausing). The design's own methods, from `run` to `reset`, are in `controls`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, MessageAdded, ModelStart, PhaseChange, RunEnd
from agentnb.core.events import StateUpdate as Update
from agentnb.core.loop import Design
from agentnb.core.messages import Message
from agentnb.core.state import CallState, State
from agentnb.loops.base import count_of, propose
from agentnb.loops.conversation_engine import ports
from agentnb.loops.conversation_engine.controls import EngineControls
from agentnb.loops.conversation_engine.failing import fail, fail_with_task
from agentnb.loops.conversation_engine.progress import (
    COORDINATOR,
    DECOMPOSE,
    EXECUTE,
    GET_CONTEXT,
    PLANNER,
    outcome_key,
    outcome_of,
    propose_task,
    record,
    results_of,
    unrecorded,
)
from agentnb.loops.conversation_engine.states import PHASES, EngineState
from agentnb.loops.conversation_engine.tasks import SubTask, in_order


class ConversationEngine(EngineControls):
    """Decompose a goal into tasks and run them in order of priority.

    coordinator: gives the context; an object with `get_context_async(user_input)`, or a callable. llm: makes the plan;
    an object with `decompose_goal(user_input)`, a callable, or a model; without one the whole goal is one task.
    execute: does a task; a callable of the `SubTask`; without one a task's description is its result. All may be sync
    or async, and the last two may take the context as a second argument. Each may be another loop instead: its output
    is the context (words of it are knowledge), the plan (as JSON where it is words), or the task's result.
    on_task_error: `fail` ends the engine in an error, `continue` goes on without what depends on the task. max_tasks:
    longer plans are cut off there, and TASKS_TRUNCATED says so; None is no limit.

    Raises UsageError for anything else.
    """

    listens = False  # but the loops inside it may
    pauses_inside = False  # but between tasks (SEMANTICS.md, 6. Pausing)
    phases: ClassVar[Mapping[str, Sequence[str]]] = PHASES
    opened_by: ClassVar[Mapping[str, str]] = {"run_end": EngineState.ERROR.value}  # unless it says completed

    def __init__(
        self,
        coordinator: Any = None,
        llm: Any = None,
        execute: Any = None,
        on_task_error: Literal["fail", "continue"] = "fail",
        *,
        max_tasks: int | None = 100,
        name: str | None = None,
    ) -> None:
        super().__init__(llm, name=name)
        if on_task_error not in ("fail", "continue"):
            raise UsageError(f"on_task_error must be fail or continue, not {on_task_error!r}.")
        max_tasks = count_of("max_tasks", max_tasks)
        self.coordinator = coordinator
        self.on_task_error, self.max_tasks = on_task_error, max_tasks
        self._asks_model = ports.is_model(llm)
        self.system_prompt = ports.INSTRUCTIONS if self._asks_model else None
        self.activities = {
            GET_CONTEXT: ports.get_context(coordinator),
            DECOMPOSE: ports.decompose_goal(llm, max_tasks),
            EXECUTE: ports.execute_task(execute),
        }
        given = {COORDINATOR: coordinator, PLANNER: llm, EXECUTE: execute}
        self._loops = {name: port for name, port in given.items() if isinstance(port, Design)}

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The loop that is the coordinator, the planner or the executor, where a loop is."""
        return self._loops.get(call.name)

    def input_for(self, call: CallState, state: State) -> Any:
        """The goal, or the task and what those it depends on came to."""
        return ports.input_for(self.loop_for(call, state), call, state)

    def result_given(self, call: CallState, result: Any) -> Any:
        """What a coordinator or a planner may give, as the context or the plan it stands for."""
        return ports.read_given(call, result)

    def config(self) -> dict[str, Any]:
        """What decides which tasks there are, and what a failed one does."""
        return {**super().config(), "on_task_error": self.on_task_error, "max_tasks": self.max_tasks}

    # -- the decision ----------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Event:
        """Return the next event (SEMANTICS.md, 4. Algorithm)."""
        match state.phase:
            case EngineState.IDLE:
                return _enter(state, EngineState.RECEIVING)
            case EngineState.RECEIVING:
                return _enter(state, EngineState.CONTEXT_FETCHING)
            case EngineState.CONTEXT_FETCHING:
                return self._fetch_context(state)
            case EngineState.DECOMPOSING:
                return self._decompose(state)
            case EngineState.SCHEDULING:
                return self._schedule(state)
            case _:
                return self._execute(state)

    def _fetch_context(self, state: State) -> Event:
        if "context" in state.values:  # it came with a snapshot
            return _enter(state, EngineState.DECOMPOSING)
        call = state.calls.get(state.own_id(GET_CONTEXT))
        if call is None or call.end is None:
            return self._ask(state, COORDINATOR, GET_CONTEXT)
        if call.end.is_error:
            return fail(call.end)
        return Update(values={"context": call.end.result}, phase=EngineState.DECOMPOSING.value)

    def _decompose(self, state: State) -> Event:
        if "tasks" in state.values:
            return _enter(state, EngineState.SCHEDULING)
        call = state.calls.get(state.own_id(DECOMPOSE))
        if call is None or call.end is None:
            return self._ask_model(state) or self._ask(state, PLANNER, DECOMPOSE)
        if call.end.is_error:
            return fail(call.end)
        return Update(values={"tasks": call.end.result["tasks"]}, phase=EngineState.SCHEDULING.value)

    def _ask(self, state: State, port: str, activity: str) -> Event:
        """Have the activity done; where its port is a loop, with what that comes to."""
        if port not in self._loops:
            return propose(state, activity, activity, {})
        call = state.calls.get(state.own_id(port))
        if call is None or call.end is None:
            return propose(state, port, port, {})
        return fail(call.end) if call.end.is_error else propose(state, activity, activity, {"given": call.end.result})

    def _ask_model(self, state: State) -> Event | None:
        if not self._asks_model or state.reply is not None:
            return None
        if state.messages:
            return ModelStart(turn=1, options={"schema": ports.SCHEMA})
        return MessageAdded(message=Message(role="user", content=ports.goal_with_context(state)), origin="input")

    def _schedule(self, state: State) -> Event:
        if state.values.get("scheduled"):
            return _enter(state, EngineState.EXECUTING)
        ordered = in_order([SubTask(**task) for task in state.values["tasks"]])
        return Update(values={"tasks": [task.plan() for task in ordered], "scheduled": True})

    def _execute(self, state: State) -> Event:
        values = state.values
        if (ended := unrecorded(state)) is not None:
            return record(state, ended.arguments["id"], outcome_of(ended))
        if values.get("failed") and self.on_task_error == "fail":
            return fail_with_task(state)
        tasks, position = values["tasks"], values.get("next", 0)
        while position < len(tasks) and outcome_key(tasks[position]["id"]) in values:
            position += 1
        if position == len(tasks):
            return RunEnd(reason="completed", phase=EngineState.COMPLETED.value, output=results_of(state))
        task = tasks[position]
        for dependency in task["dependencies"]:
            if values[outcome_key(dependency)]["status"] == "failed":
                outcome = {"status": "failed", "error": f"{dependency!r}, which it depends on, failed."}
                return record(state, task["id"], outcome, skipped=task["id"])
        return propose_task(state, task, {name: values[outcome_key(name)]["result"] for name in task["dependencies"]})


def _enter(state: State, phase: EngineState) -> PhaseChange:
    return PhaseChange(source=state.phase or "", phase=phase.value)
