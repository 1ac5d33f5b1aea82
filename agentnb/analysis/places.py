"""Places: which study, arm, input and repeat a recorded run belongs to. Every table has them, so none needs a join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agentnb.analysis.rows import json_text
from agentnb.analysis.sources import Source
from agentnb.studies import Study


class Place(NamedTuple):
    """The place of a run. `input_text` is that of every run; the other fields are those of a run of a study.

    arm: the label of each factor. treatment: tells apart runs of an arm that were made otherwise. input: the number of
    the input in its study. input_key: identifies its content.
    """

    study: str | None = None
    arm: Mapping[str, Any] = {}  # noqa: RUF012: it is never changed
    treatment: str | None = None
    input: int | None = None
    input_key: str | None = None
    input_text: str = ""
    repeat: int | None = None
    seed: int | None = None

    @property
    def arm_text(self) -> str:
        """The labels of the arm as text, `model=small, policy=strict`; empty without factors."""
        return ", ".join(f"{factor}={label}" for factor, label in self.arm.items())


def place_of(source: Source, numbers: Mapping[str, int]) -> Place:
    """Return the place of a recorded run. numbers: those of `input_numbers`."""
    start: Any = source.events[0] if source.events else None
    if start is None or start.type != "run_start":
        return Place()
    text = json_text(start.input)
    data = start.data
    if "study_seed" not in data:  # data of a user, not of a study
        return Place(input_text=text)
    arm, treatment = data.get("arm"), data.get("treatment")
    return Place(
        study=data.get("study"),
        arm=arm if isinstance(arm, Mapping) else {},
        treatment=treatment.get("id") if isinstance(treatment, Mapping) else None,
        input=numbers.get(start.run_id, data.get("input")),
        input_key=data.get("input_key"),
        input_text=text,
        repeat=data.get("repeat"),
        seed=data.get("seed"),
    )


def input_numbers(of: Any) -> dict[str, int]:
    """Return the number of the input of each run of a study, by the run's id; empty for anything else.

    A study that is continued with its inputs in another order has other numbers than its first runs have recorded.
    """
    if not isinstance(of, Study):
        return {}
    return {run.id: run.cell.input_number for run in of.runs if run.id is not None}
