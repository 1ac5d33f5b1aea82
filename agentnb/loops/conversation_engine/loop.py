"""ConversationEngine: fetch context, decompose a goal into tasks, run them one by one (SEMANTICS.md).

Written top to bottom, the algorithm is:

    context = await coordinator.get_context_async(user_input)
    tasks = in_order(await llm.decompose_goal(user_input, context))
    for task in tasks:
        await execute(task, context)

As a decision it is `advance`, with one branch for each state of the machine (`states`). Whatever takes time is a call
of the run. Its result is an event, so an engine that resumes from a snapshot does not make the call again. If `llm` is
a model, the decomposition is a model request with the plan's JSON schema, followed by a call that reads the plan from
the answer. If the model fails, `resume` of the run sends the request again.

The engine's own methods, from `run` to `restore_from_snapshot`, are written on top of one `Run` at a time. The consumer
pulls the events of the run one by one, so the engine never runs ahead of its consumer. A pause waits until the call in
flight has finished, including a task that a nested loop executes; no further call starts (SEMANTICS.md, 6. Pausing).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from agentnb.core.errors import IllegalTransition, RunFailed, UsageError
from agentnb.core.events import Event, MessageAdded, ModelStart, PhaseChange, RunEnd
from agentnb.core.events import StateUpdate as Update
from agentnb.core.evolve import fold
from agentnb.core.loop import Design
from agentnb.core.maybe_async import Inside
from agentnb.core.messages import Message, input_messages, plain_message, to_plain
from agentnb.core.state import CallState, State
from agentnb.loops.base import Loop, count_of, propose
from agentnb.loops.conversation_engine import ports
from agentnb.loops.conversation_engine import snapshot as snapshots
from agentnb.loops.conversation_engine.snapshot import events_of
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
    progress_of,
    propose_task,
    record,
    results_of,
    tasks_of,
    unrecorded,
)
from agentnb.loops.conversation_engine.stream import Delivery, EngineEvent, gone_on_from
from agentnb.loops.conversation_engine.tasks import SubTask, TaskError, in_order
from agentnb.loops.options import StartOptions

if TYPE_CHECKING:
    from agentnb.run import Run

logger = logging.getLogger("agentnb")


class ConversationEngine(Loop):
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

    _run: Run | None = None
    _moved = EngineState.IDLE
    """Where `transition_to` has put an engine that runs nothing."""

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
        self._delivery = Delivery()
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

    # -- status ---------------------------------------------------------------------------------------------------

    @property
    def current_run(self) -> Run | None:
        """The run behind the engine's events: its panel, its steps, its snapshots; None where there is none."""
        return self._run

    @property
    def _live(self) -> bool:
        run = self._run
        return run is not None and run.driven and not run.state.over and run.state.failure is None

    def _has_failed(self, state: State) -> bool:
        """Whether a call has failed that the engine will end with: no pause comes before that."""
        calls = tuple(state.calls.values())  # at once: the run may be driven in another thread
        ends = (call.end for call in calls if call.hidden)
        return any(
            end is not None and end.is_error and (end.name != EXECUTE or self.on_task_error == "fail") for end in ends
        )

    @property
    def state(self) -> EngineState:
        """The engine's state; `paused` from the moment a pause is asked for."""
        if self._run is None:
            return self._moved
        return self._shown(self._run.state, self._run.pausing)

    def _shown(self, state: State, pausing: bool) -> EngineState:
        """The engine's state where its run stands like this, and a pause is asked for or is not."""
        shown = engine_state(state)
        return EngineState.PAUSED if pausing and shown in WORKING and not self._has_failed(state) else shown

    @property
    def tasks(self) -> list[SubTask]:
        """The tasks as they stand, in the order they run in once that is known."""
        return tasks_of(self._run.state) if self._run is not None else []

    @property
    def current_progress(self) -> float:
        """The part of the tasks that is completed, from 0 to 1; without tasks, 1 when the engine is completed."""
        return progress_of(self._run.state).fraction if self._run is not None else 0.0

    @property
    def total_tasks(self) -> int:
        """How many tasks there are; 0 before the goal is decomposed."""
        return progress_of(self._run.state).total if self._run is not None else 0

    @property
    def completed_tasks(self) -> int:
        """How many tasks were completed."""
        return progress_of(self._run.state).completed if self._run is not None else 0

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, user_input: Any, **options: Unpack[StartOptions]) -> AsyncGenerator[EngineEvent, None]:
        """Work on a goal; the engine's events, as they are asked for. Closing them early ends the engine in an error.

        options: as for `start`. Raises IllegalTransition unless the engine is idle: `reset` it first; and UsageError
        where the goal is a message without a role.
        """
        self._check_idle()
        is_several = isinstance(user_input, (list, tuple))
        try:
            input_messages(to_plain([*map(plain_message, user_input)] if is_several else plain_message(user_input)))
        except ValueError as error:
            raise UsageError(
                f"A goal is text, a message with role and content, or an object that is none, not {user_input!r}."
            ) from error
        return self._stream(lambda: self._begin(user_input, options))

    def continue_(self) -> AsyncGenerator[EngineEvent, None]:
        """Go on after `restore_from_snapshot`, resuming where it was paused; only what has not happened yet.

        Raises UsageError where nothing was restored, and IllegalTransition where the engine had failed and said so.
        """
        run = self._run
        if run is None or self._delivery.taken_up:
            raise UsageError("There is nothing to continue: restore a snapshot first, or run the engine.")
        if self.state is EngineState.ERROR and not self._delivery.carried:
            raise IllegalTransition("The engine has failed; reset() it, and run it again.")
        return self._stream(lambda: self._take_up(run))

    def _begin(self, user_input: Any, options: StartOptions) -> tuple[Run, Delivery]:
        self._check_idle()
        self._run = self.start(user_input, **options)
        self._delivery = Delivery(counts_failures=self.on_task_error == "continue")
        return self._run, self._delivery

    def _take_up(self, run: Run) -> tuple[Run, Delivery]:
        if run is not self._run or self._delivery.taken_up:
            raise UsageError("What was restored has been continued already, or the engine was reset.")
        self._delivery.taken_up = True
        return run, self._delivery

    def _check_idle(self) -> None:
        if (state := self.state) is not EngineState.IDLE:
            raise IllegalTransition(f"The engine is {state}; it can run when it is idle: reset() it first.")

    def _stream(self, begin: Callable[[], tuple[Run, Delivery]]) -> AsyncGenerator[EngineEvent, None]:
        events = self._deliver(begin, lambda: stream())
        stream = weakref.ref(events)
        return events

    async def _deliver(
        self, begin: Callable[[], tuple[Run, Delivery]], stream: Callable[[], object]
    ) -> AsyncGenerator[EngineEvent, None]:
        """The events of a run; of what was known before, only those that had not been delivered."""
        run, delivery = begin()
        if not run.driven:  # otherwise whoever drives it goes on when this stream is left
            delivery.stream = stream
        projection = delivery.projection()
        try:
            async with aclosing(Inside(aiter(run))) as facts:
                async for fact in facts:
                    for event in delivery.tell(fact, projection.say(fact)):
                        yield event
                    if run.pausing and self._has_failed(projection.state):
                        run.resume()  # an error goes before a pause (SEMANTICS.md, 4. Algorithm)
        except RunFailed:
            if not run.state.over and run.state.failure is None:
                raise

    # -- controlling -----------------------------------------------------------------------------------------------

    def pause(self, anytime: bool = False) -> bool:
        """Finish what is in flight and start nothing more; False unless tasks are being scheduled or executed, and
        where one has failed that the engine ends with.

        `anytime`: also while the goal is received, the context fetched or the goal decomposed.
        """
        if self._run is None or self._has_failed(self._run.state):
            return False
        return self.state in (WORKING if anytime else PAUSABLE) and self._run.pause()

    def resume(self) -> bool:
        """Go on in the state the engine was paused in; False where it is not paused."""
        return self.state is EngineState.PAUSED and self._run is not None and self._run.resume()

    def cancel(self, reason: str = "cancelled") -> bool:
        """End what the engine is doing, in the state error; False where it does nothing."""
        return self._run is not None and self._run.cancel(reason)

    def _end_what_was_left(self) -> None:
        """Cancel the run whose reader has left it, by a `break`: the event loop would close its stream only later."""
        if self._run is not None and self._live and self._delivery.is_left:
            self._run.cancel("its consumer was closed")

    def reset(self) -> None:
        """Back to idle, with nothing kept; what is paused, or left by whoever read its events, is cancelled.

        Raises UsageError while the engine is working: pause or cancel it, or close its events.
        """
        self._end_what_was_left()
        if self._live and self._run is not None:
            if not self._run.state.paused:
                raise UsageError("The engine is running; pause or cancel it, or close its events, and then reset it.")
            self._run.cancel("reset")
        self._run, self._moved, self._delivery = None, EngineState.IDLE, Delivery()

    def transition_to(self, state: EngineState | str) -> None:
        """Move the engine to another state of the machine; one that has a run is paused, resumed, cancelled or reset.

        Raises IllegalTransition where the table does not allow it, and where only the run itself gets there.
        """
        here, there = self.state, EngineState(state)
        if there not in VALID_STATE_TRANSITIONS[here]:
            allowed = ", ".join(VALID_STATE_TRANSITIONS[here])
            raise IllegalTransition(f"An engine cannot go from {here} to {there}; from {here} it can go to {allowed}.")
        if there is EngineState.IDLE:
            self.reset()
        elif self._run is None:
            self._moved = there
        elif not self._steer(here, there):
            raise IllegalTransition(f"The engine goes from {here} to {there} by itself, when it has come that far.")

    def _steer(self, here: EngineState, there: EngineState) -> bool:
        if there is EngineState.PAUSED:
            return self.pause()
        if there is EngineState.ERROR:
            return self.cancel()
        assert self._run is not None
        return here is EngineState.PAUSED and self._run.phase == there and self.resume()

    # -- snapshots -------------------------------------------------------------------------------------------------

    def create_snapshot(self) -> dict[str, Any]:
        """The engine as it stands, as JSON data (`snapshot`); at any time."""
        if self._run is None:
            return snapshots.take(State(), (), self._moved, ())
        told, pausing = self._delivery.told, self._run.pausing  # before the facts: whoever drives may move on
        events = self._run.events
        state = fold(events)
        shown = self._shown(state, pausing)
        past = gone_on_from(events, state, pausing=shown is EngineState.PAUSED and not state.paused)
        return snapshots.take(state, events, shown, self._delivery.undelivered(past, told))

    def restore_from_snapshot(self, snapshot: Any, **options: Unpack[StartOptions]) -> bool:
        """Stand where the snapshot was taken; `continue_` goes on from there. False, with a line in the log and nothing
        changed, where it is no snapshot.

        options: as for `start`, for what is continued. Raises UsageError while the engine is running.
        """
        self._end_what_was_left()
        if self._live:
            raise UsageError("The engine is running; cancel it, or close its events, before it is restored.")
        try:
            read = snapshots.read(snapshot)
        except TaskError as error:
            logger.warning("A snapshot was refused: %s", error)
            return False
        self.reset()
        if read.state is not EngineState.IDLE:
            facts = events_of(read, self.begin(read.user_input))
            self._run = self._start(recording=facts, **options)
            carries = tuple(read.undelivered)
            self._delivery = Delivery(self.on_task_error == "continue", len(facts), carries, taken_up=False)
        return True


def _enter(state: State, phase: EngineState) -> PhaseChange:
    return PhaseChange(source=state.phase or "", phase=phase.value)
