"""Where one engine stands, read from the run it is at, or from nothing where it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentnb.core.state import State
from agentnb.loops.base import Loop
from agentnb.loops.conversation_engine.progress import EXECUTE, progress_of, tasks_of
from agentnb.loops.conversation_engine.states import WORKING, EngineState, engine_state
from agentnb.loops.conversation_engine.tasks import SubTask

if TYPE_CHECKING:
    from agentnb.run import Run


class EngineStanding(Loop):
    """What an engine says of itself."""

    on_task_error: str
    _run: Run | None = None
    _moved = EngineState.IDLE
    """Where `transition_to` has put an engine that runs nothing."""

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
