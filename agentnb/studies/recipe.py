"""The recipe of a study: all that is needed to make the run of a cell, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.run import Run, Snapshot, restore
from agentnb.store import Store
from agentnb.studies.grid import Cell, Grid
from agentnb.studies.treatments import DATA

TAG = "study:{}"
"""The tag of all runs of a study in a store."""

OWN_DATA = ("study", "arm", "input", "repeat", "seed", "input_key", "study_seed", "arms", "seed_by", DATA)
"""The names in the data of a run that a study sets itself."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The grid of a study, and the tags and the data of all runs in addition to those of the study."""

    grid: Grid
    tags: Sequence[str]
    data: Mapping[str, Any]

    def make(self, cell: Cell, store: Store | None, recording: Run | Snapshot | None = None) -> Run:
        """Return the run of a cell: a new one, or one that continues from its recording.

        Errors of the factory are raised unchanged.
        """
        grid = self.grid
        loop, options = grid.make(cell)
        if recording is not None:
            return restore(recording, loop, store=store, name=cell.name, **options)
        factors = [f"{factor}:{label}" for factor, label in cell.arm.items()]
        data = {
            **self.data,
            "study": grid.name,
            "arm": dict(cell.arm),
            "input": cell.input_number,
            "repeat": cell.repeat,
            "seed": cell.seed,
            "input_key": cell.input_key,
            "study_seed": grid.seed,
            "arms": grid.labels,
            "seed_by": grid.seed_by,
            DATA: grid.treatment_data(cell, loop, options),
        }
        tags = [TAG.format(grid.name), *factors, *self.tags]
        return loop.start(cell.input, name=cell.name, store=store, tags=tags, data=data, **options)
