"""TurnState: which turn an agent is in, as a value (SEMANTICS.md, 4. Turns).

The limit, and whether the history was compressed, are part of it and are carried from turn to turn. A turn's id
is the run's and its number, so the same recording always tells of the same turns.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from agentnb.core.record import Record
from agentnb.loops.positional import Positional


class TurnState(Positional, Record):
    """A turn: its number from 0, its id and its predecessor's, and the limit. Immutable; JSON in and out.

    `max_iterations` of None is no limit. `compacted`: the history has been compressed.
    """

    turn_counter: int
    turn_id: str
    max_iterations: int | None = 10
    compacted: bool = False
    parent_turn_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def initial(cls, max_iterations: int | None = 10, *, run_id: str | None = None, **metadata: Any) -> Self:
        """The first turn; `run_id` is what its id, and those of the turns after it, begin with."""
        root = run_id if run_id is not None else uuid.uuid4().hex[:12]
        return cls(turn_counter=0, turn_id=f"{root}-0", max_iterations=max_iterations, metadata=metadata)

    def next_turn(self, compacted: bool | None = None, **metadata: Any) -> Self:
        """The turn after this one: all is carried over, `compacted` unless it is given; `metadata` is added."""
        counter = self.turn_counter + 1
        return type(self)(
            turn_counter=counter,
            turn_id=f"{self.turn_id.removesuffix(f'-{self.turn_counter}')}-{counter}",
            max_iterations=self.max_iterations,
            compacted=self.compacted if compacted is None else compacted,
            parent_turn_id=self.turn_id,
            metadata={**self.metadata, **metadata},
        )

    @property
    def is_final(self) -> bool:
        """Whether the limit is reached, so that this turn is not run."""
        return self.max_iterations is not None and self.turn_counter >= self.max_iterations

    def to_dict(self) -> dict[str, Any]:
        """The turn as plain JSON data."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The turn in plain data. Raises pydantic's ValidationError where it is none."""
        return cls.model_validate(dict(data))
