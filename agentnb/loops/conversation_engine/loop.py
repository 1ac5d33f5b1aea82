"""ConversationEngine: fetch context, decompose a goal into tasks, run them one by one (SEMANTICS.md).

Written top to bottom, the algorithm is:

    context = await coordinator.get_context_async(user_input)
    tasks = tasks_in_order(await llm.decompose_goal(user_input, context))
    for task in tasks:
        await execute(task, context)

`advance` is this algorithm as a decision, with one branch for each state of the machine (`states`). All work that takes
time is a call of the run. Its result is an event, so an engine that resumes from a snapshot does not make the call
again. If `llm` is a model, the decomposition is a model request with the plan's JSON schema, followed by a call that
reads the plan from the answer. If the model fails, `resume` of the run sends the request again.

The engine's own methods, from `run` to `restore_from_snapshot`, use one `Run` at a time. The consumer pulls the events
of the run one by one, so the engine never runs ahead of its consumer. A pause waits until the call in flight has
finished, including a task that a nested loop executes; no further call starts (SEMANTICS.md, 6. Pausing).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Literal, Unpack

from agentnb.core.errors import IllegalTransition, UsageError
from agentnb.core.events import Delta, Event, MessageAdded, ModelStart, PhaseChange, RunEnd
from agentnb.core.events import StateUpdate as Update
from agentnb.core.evolve import fold
from agentnb.core.json import to_plain
from agentnb.core.loop import Calls, Design
from agentnb.core.maybe_async import InnerGenerator
from agentnb.core.messages import Message, input_messages, plain_message
from agentnb.core.state import CallState, State
from agentnb.loops.base import Loop, count_of
from agentnb.loops.conversation_engine import ports
from agentnb.loops.conversation_engine import snapshot as snapshots
from agentnb.loops.conversation_engine.states import (
    COORDINATOR,
    DECOMPOSE,
    EXECUTE,
    GET_CONTEXT,
    PAUSABLE,
    PHASES,
    PLANNER,
    VALID_STATE_TRANSITIONS,
    WORKING,
    EngineState,
    engine_state,
    fail,
    fail_with_task,
    outcome_key,
    outcome_of,
    propose_task,
    record,
    results_of,
    task_counts,
    tasks_of,
    unrecorded,
)
from agentnb.loops.conversation_engine.stream import Delivery, EngineEvent, past_to_resume
from agentnb.loops.conversation_engine.tasks import SubTask, TaskError, tasks_in_order
from agentnb.loops.events import propose
from agentnb.loops.streaming import translated
from agentnb.run import Run
from agentnb.run.validation import StartOptions

logger = logging.getLogger("agentnb")


class EngineCalls(Calls):
    """The calls of an engine: to the coordinator, the planner and the executor, each a function or a loop."""

    loop: ConversationEngine
    pauses_inside = False  # a pause comes between two tasks (SEMANTICS.md, 6. Pausing)

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """Return the coordinator, planner or executor if it is a loop and performs this call."""
        return self.loop.nested_loops.get(call.name)

    def input_for(self, call: CallState, state: State) -> Any:
        """Return the input of the loop that performs this call (`ports.input_of_nested_loop`)."""
        return ports.input_of_nested_loop(self.loop_for(call, state), call, state)

    def result_given(self, call: CallState, result: Any) -> Any:
        """Return a user-supplied result of a call as the context or plan it describes (`ports.read_given`)."""
        return ports.read_given(call, result)


class ConversationEngine(Loop):
    """An engine that decomposes a goal into tasks and runs them in order of priority.

    coordinator: returns the context; an object with `get_context_async(user_input)`, a callable, or a loop, whose
    output is the context (its text becomes knowledge). None: the context is empty. llm: makes the plan; an object with
    `decompose_goal(user_input)`, a callable, a model, or a loop, whose output is the plan (text is parsed as JSON).
    None: the goal is the only task. execute: performs a task; a callable that takes the `SubTask`, or a loop, whose
    output is the result. None: the result of a task is its description. on_task_error: `fail` ends the engine in an
    error; `continue` skips the tasks that depend on the failed one. max_tasks: maximum number of tasks; a longer plan
    is cut off, and TASKS_TRUNCATED is emitted. None: no limit.

    Callables may be sync or async. `llm` and `execute` may take the context as a second argument.

    Raises UsageError for a value of any other kind.
    """

    listens = False  # nested loops may
    calls_class = EngineCalls
    phases: ClassVar[Mapping[str, Sequence[str]]] = PHASES
    opened_by: ClassVar[Mapping[str, str]] = {"run_end": EngineState.ERROR.value}  # a completed RunEnd has its phase

    _run: Run | None = None
    _moved = EngineState.IDLE
    """The state that `transition_to` has set while there is no run."""

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
            raise UsageError(f"on_task_error must be 'fail' or 'continue', not {on_task_error!r}.")
        self.coordinator = coordinator
        self.on_task_error = on_task_error
        self.max_tasks = count_of("max_tasks", max_tasks)
        self._asks_model = ports.is_model(llm)
        self.system_prompt = ports.INSTRUCTIONS if self._asks_model else None
        self.activities = {
            GET_CONTEXT: ports.get_context(coordinator),
            DECOMPOSE: ports.decompose_goal(llm, self.max_tasks),
            EXECUTE: ports.execute_task(execute),
        }
        given = {COORDINATOR: coordinator, PLANNER: llm, EXECUTE: execute}
        self.nested_loops = {name: port for name, port in given.items() if isinstance(port, Design)}
        self._delivery = Delivery()

    def config(self) -> dict[str, Any]:
        """Return the limit on tasks and the policy for failed tasks."""
        return {**super().config(), "on_task_error": self.on_task_error, "max_tasks": self.max_tasks}

    # -- the decision ----------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Event:
        """Return the next event (SEMANTICS.md, 4. Algorithm).

        A value that a phase computes may be in the state already: it came with a snapshot, and is not computed again.
        """
        values = state.values
        match state.phase:
            case EngineState.IDLE:
                return _enter(state, EngineState.RECEIVING)

            case EngineState.RECEIVING:
                return _enter(state, EngineState.CONTEXT_FETCHING)

            # Get the context from the coordinator.
            case EngineState.CONTEXT_FETCHING:
                if "context" in values:
                    return _enter(state, EngineState.DECOMPOSING)
                call = state.calls.get(state.own_id(GET_CONTEXT))
                if call is None or call.end is None:
                    return self._call_port(state, COORDINATOR, GET_CONTEXT)
                if call.end.is_error:
                    return fail(call.end)
                return Update(values={"context": call.end.result}, phase=EngineState.DECOMPOSING.value)

            # Get the plan. If a model makes it: add the goal to the messages, send the request, then read the plan
            # from the reply by a call.
            case EngineState.DECOMPOSING:
                if "tasks" in values:
                    return _enter(state, EngineState.SCHEDULING)
                call = state.calls.get(state.own_id(DECOMPOSE))
                if call is None or call.end is None:
                    if not self._asks_model or state.reply is not None:
                        return self._call_port(state, PLANNER, DECOMPOSE)
                    if state.messages:
                        return ModelStart(turn=1, options={"schema": ports.SCHEMA})
                    goal = Message(role="user", content=ports.goal_with_context(state))
                    return MessageAdded(message=goal, origin="input")
                if call.end.is_error:
                    return fail(call.end)
                return Update(values={"tasks": call.end.result["tasks"]}, phase=EngineState.SCHEDULING.value)

            # Order the tasks.
            case EngineState.SCHEDULING:
                if values.get("scheduled"):
                    return _enter(state, EngineState.EXECUTING)
                ordered = tasks_in_order([SubTask(**task) for task in values["tasks"]])
                return Update(values={"tasks": [task.plan() for task in ordered], "scheduled": True})

            case _:
                return self._next_task(state)

    def _call_port(self, state: State, port: str, activity: str) -> Event:
        """Return the call of an activity. If its port is a loop, the loop runs first, and its output is passed on."""
        if port not in self.nested_loops:
            return propose(state, activity, activity, {})
        call = state.calls.get(state.own_id(port))
        if call is None or call.end is None:
            return propose(state, port, port, {})
        return fail(call.end) if call.end.is_error else propose(state, activity, activity, {"given": call.end.result})

    def _next_task(self, state: State) -> Event:
        """Record the outcome of the last task, then return the call of the next one, or the end of the run."""
        values = state.values
        if (ended := unrecorded(state)) is not None:
            return record(state, ended.arguments["id"], outcome_of(ended))
        if values.get("failed") and self.on_task_error == "fail":
            return fail_with_task(state)

        # Find the next task without an outcome. A snapshot may have outcomes in any order.
        tasks, position = values["tasks"], values.get("next", 0)
        while position < len(tasks) and outcome_key(tasks[position]["id"]) in values:
            position += 1
        if position == len(tasks):
            return RunEnd(reason="completed", phase=EngineState.COMPLETED.value, output=results_of(state))

        # Skip it if a task that it depends on has failed.
        task = tasks[position]
        for dependency in task["dependencies"]:
            if values[outcome_key(dependency)]["status"] == "failed":
                outcome = {"status": "failed", "error": f"{dependency!r}, which it depends on, failed."}
                return record(state, task["id"], outcome, skipped=task["id"])
        return propose_task(state, task, {name: values[outcome_key(name)]["result"] for name in task["dependencies"]})

    # -- status ----------------------------------------------------------------------------------------------------

    @property
    def current_run(self) -> Run | None:
        """The run behind the engine's events, for its panel, steps and snapshots. None if there is no run."""
        return self._run

    @property
    def state(self) -> EngineState:
        """The engine's state; `paused` as soon as a pause is requested."""
        if self._run is None:
            return self._moved
        return self._reported(self._run.state, self._run.pausing)

    @property
    def tasks(self) -> list[SubTask]:
        """The tasks with their current status. Once they are scheduled, they are in the order in which they run."""
        return tasks_of(self._run.state) if self._run is not None else []

    @property
    def current_progress(self) -> float:
        """The fraction of the tasks that is completed, from 0 to 1. Without tasks, 1 if the engine is completed."""
        return task_counts(self._run.state).fraction if self._run is not None else 0.0

    @property
    def total_tasks(self) -> int:
        """The number of tasks; 0 before the goal is decomposed."""
        return task_counts(self._run.state).total if self._run is not None else 0

    @property
    def completed_tasks(self) -> int:
        """The number of completed tasks."""
        return task_counts(self._run.state).completed if self._run is not None else 0

    def _reported(self, state: State, pausing: bool) -> EngineState:
        """Return the state that the engine reports for this state of its run.

        pausing: a pause is requested, and has no effect yet. It is reported, unless a failure will end the engine
        first.
        """
        current = engine_state(state)
        return EngineState.PAUSED if pausing and current in WORKING and not self._has_failed(state) else current

    def _has_failed(self, state: State) -> bool:
        """Return True if a failed call will end the engine. A requested pause then has no effect."""
        calls = tuple(state.calls.values())  # a copy: the run may be driven in another thread
        ends = (call.end for call in calls if call.hidden)
        return any(
            end is not None and end.is_error and (end.name != EXECUTE or self.on_task_error == "fail") for end in ends
        )

    @property
    def _live(self) -> bool:
        run = self._run
        return run is not None and run.driven and not run.state.over and run.state.failure is None

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, user_input: Any, **options: Unpack[StartOptions]) -> AsyncGenerator[EngineEvent, None]:
        """Work on a goal, and return the stream of the engine's events. The engine advances when the next is requested.

        Closing the stream before its end ends the engine in state error. options: as for `start`.

        Raises IllegalTransition if the engine is not idle (call `reset` first), and UsageError if the goal is a message
        without a role.
        """
        self._check_idle()
        is_several = isinstance(user_input, (list, tuple))
        try:
            input_messages(to_plain([*map(plain_message, user_input)] if is_several else plain_message(user_input)))
        except ValueError as error:
            raise UsageError(
                f"The goal {user_input!r} is not valid. Pass text, a message with role and content, or another object."
            ) from error

        def begin() -> tuple[Run, Delivery]:
            self._check_idle()  # again: another stream may have started since
            self._run = self.start(user_input, **options)
            self._delivery = Delivery(counts_failures=self.on_task_error == "continue")
            return self._run, self._delivery

        return self._stream(begin)

    def continue_(self) -> AsyncGenerator[EngineEvent, None]:
        """Resume after `restore_from_snapshot`, and return the stream of the events that are still to come.

        Raises UsageError if no snapshot was restored, or it has been continued already. Raises IllegalTransition if the
        engine has failed and its events were delivered.
        """
        run = self._run
        if run is None or self._delivery.continued:
            raise UsageError("There is nothing to continue. Restore a snapshot first, or call run().")
        if self.state is EngineState.ERROR and not self._delivery.carried:
            raise IllegalTransition("The engine has failed. Call reset(), and run it again.")

        def begin() -> tuple[Run, Delivery]:
            if run is not self._run or self._delivery.continued:
                raise UsageError("The snapshot has been continued already, or the engine was reset.")
            self._delivery.continued = True
            return run, self._delivery

        return self._stream(begin)

    def _check_idle(self) -> None:
        if (state := self.state) is not EngineState.IDLE:
            raise IllegalTransition(f"The engine is {state}, and can run only when it is idle. Call reset() first.")

    def _stream(self, begin: Callable[[], tuple[Run, Delivery]]) -> AsyncGenerator[EngineEvent, None]:
        events = self._deliver(begin, lambda: stream())
        stream = weakref.ref(events)
        return events

    async def _deliver(
        self, begin: Callable[[], tuple[Run, Delivery]], stream: Callable[[], object]
    ) -> AsyncGenerator[EngineEvent, None]:
        """Drive the run that `begin` returns, and yield its undelivered events.

        stream: returns this generator, or None once it is garbage-collected.
        """
        run, delivery = begin()
        if not run.driven:  # otherwise another owner continues the run after this stream is closed
            delivery.stream = stream

        def resume_after_failure(item: Event | Delta) -> None:
            if run.pausing and self._has_failed(delivery.state):
                run.resume()  # an error has precedence over a pause (SEMANTICS.md, 4. Algorithm)

        async with aclosing(InnerGenerator(translated(run, delivery, after_each=resume_after_failure))) as events:
            async for event in events:
                yield event

    # -- controlling -----------------------------------------------------------------------------------------------

    def pause(self, anytime: bool = False) -> bool:
        """Finish what is in flight, and start nothing more.

        anytime: pause also while the goal is received, the context fetched or the goal decomposed.

        Returns False if the engine is not scheduling or executing tasks, or if a failed task will end it.
        """
        if self._run is None or self._has_failed(self._run.state):
            return False
        return self.state in (WORKING if anytime else PAUSABLE) and self._run.pause()

    def resume(self) -> bool:
        """Return to the state before the pause. Returns False if the engine is not paused."""
        return self.state is EngineState.PAUSED and self._run is not None and self._run.resume()

    def cancel(self, reason: str = "cancelled") -> bool:
        """End the engine in state error. Returns False if there is nothing to cancel."""
        return self._run is not None and self._run.cancel(reason)

    def _cancel_abandoned_run(self) -> None:
        """Cancel the run if its stream was abandoned by a `break`: the event loop would close the stream only later."""
        if self._run is not None and self._live and self._delivery.is_abandoned:
            self._run.cancel("its consumer was closed")

    def reset(self) -> None:
        """Return to idle, and discard the run. A run that is paused, or whose stream was abandoned, is cancelled.

        Raises UsageError if the engine is working: pause or cancel it, or close its stream.
        """
        self._cancel_abandoned_run()
        if self._live and self._run is not None:
            if not self._run.state.paused:
                raise UsageError("The engine is running. Pause or cancel it, or close its stream, before reset().")
            self._run.cancel("reset")
        self._run, self._moved, self._delivery = None, EngineState.IDLE, Delivery()

    def transition_to(self, state: EngineState | str) -> None:
        """Move the engine to another state. If there is a run, it is paused, resumed, cancelled or reset.

        Raises IllegalTransition if the table does not allow the transition, or if only the run itself can make it.
        """
        source, target = self.state, EngineState(state)
        if target not in VALID_STATE_TRANSITIONS[source]:
            allowed = ", ".join(VALID_STATE_TRANSITIONS[source])
            raise IllegalTransition(f"The engine cannot go from {source} to {target}; it can go to {allowed}.")
        if target is EngineState.IDLE:
            self.reset()
            return
        run = self._run
        if run is None:
            self._moved = target
            return
        if target is EngineState.PAUSED:
            done = self.pause()
        elif target is EngineState.ERROR:
            done = self.cancel()
        else:
            done = source is EngineState.PAUSED and run.phase == target and self.resume()
        if not done:
            raise IllegalTransition(f"Only the run of the engine itself can make the transition {source} to {target}.")

    # -- snapshots -------------------------------------------------------------------------------------------------

    def create_snapshot(self) -> dict[str, Any]:
        """Return the engine's current state as JSON data (`snapshot`). Allowed at any time."""
        if self._run is None:
            return snapshots.take_snapshot(State(), (), self._moved, ())
        delivered, pausing = self._delivery.delivered, self._run.pausing  # first: the run may advance meanwhile
        events = self._run.events
        state = fold(events)
        reported = self._reported(state, pausing)
        past = past_to_resume(events, state, pausing=reported is EngineState.PAUSED and not state.paused)
        return snapshots.take_snapshot(state, events, reported, self._delivery.undelivered(past, delivered))

    def restore_from_snapshot(self, snapshot: Any, **options: Unpack[StartOptions]) -> bool:
        """Restore the engine from a snapshot; `continue_` resumes it. options: as for `start`.

        Returns False, logs a warning and changes nothing if the snapshot is malformed. Raises UsageError if the engine
        is running.
        """
        self._cancel_abandoned_run()
        if self._live:
            raise UsageError("The engine is running. Cancel it, or close its stream, before restoring a snapshot.")
        try:
            checked = snapshots.read_snapshot(snapshot)
        except TaskError as error:
            logger.warning("The snapshot was refused: %s", error)
            return False
        self.reset()
        if checked.state is not EngineState.IDLE:
            recording = snapshots.events_of(checked, self.begin(checked.user_input))
            self._run = self._start(recording=recording, **options)
            counts_failures = self.on_task_error == "continue"
            self._delivery = Delivery(
                counts_failures=counts_failures,
                known=len(recording),
                carried=tuple(checked.undelivered),
                continued=False,
            )
        return True


def _enter(state: State, phase: EngineState) -> PhaseChange:
    return PhaseChange(source=state.phase or "", phase=phase.value)
