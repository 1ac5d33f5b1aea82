"""TurnState: the current turn of an agent, as an immutable value (SEMANTICS.md, 4. Turns).

The limit and the flag for a compressed history are copied from turn to turn. The id of a turn consists of the run's id
and the number of the turn, so that a recording always has the same turn ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from agentnb.core.record import Record
from agentnb.loops.positional import Positional


class TurnState(Positional, Record):
    """A turn: its number from 0, its id, the id of the previous turn, and the limit. Immutable, and stored as JSON.

    max_iterations: maximum number of turns; None is no limit. compacted: True if the history has been compressed.
    """

    turn_counter: int
    turn_id: str
    max_iterations: int | None = 10
    compacted: bool = False
    parent_turn_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def initial(cls, max_iterations: int | None = 10, *, run_id: str | None = None, **metadata: Any) -> Self:
        """Return the first turn.

        run_id: the prefix of the ids of this turn and all later ones; None for a random one.
        """
        root = run_id if run_id is not None else uuid.uuid4().hex[:12]
        return cls(turn_counter=0, turn_id=f"{root}-0", max_iterations=max_iterations, metadata=metadata)

    def next_turn(self, compacted: bool | None = None, **metadata: Any) -> Self:
        """Return the turn after this one, with the same limit and metadata.

        compacted: None keeps the current value. metadata: added to the current metadata.
        """
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
        """True if the limit is reached, so that this turn does not run."""
        return self.max_iterations is not None and self.turn_counter >= self.max_iterations

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as plain JSON data."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the turn from plain JSON data. Raises pydantic's ValidationError if the data is not a turn."""
        return cls.model_validate(dict(data))
