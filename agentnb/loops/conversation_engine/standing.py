"""Where one engine stands, read from the run it is at, or from nothing where it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentnb.loops.base import Loop
from agentnb.loops.conversation_engine.progress import progress_of, tasks_of
from agentnb.loops.conversation_engine.states import WORKING, EngineState, engine_state
from agentnb.loops.conversation_engine.tasks import SubTask

if TYPE_CHECKING:
    from agentnb.run import Run


class EngineStanding(Loop):
    """What an engine says of itself."""

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

    @property
    def state(self) -> EngineState:
        """The engine's state; `paused` from the moment a pause is asked for."""
        if self._run is None:
            return self._moved
        state = engine_state(self._run.state)
        return EngineState.PAUSED if state in WORKING and self._run.pausing else state

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
