"""Models that stand for dataclasses of the published designs: their fields may be given in order, too."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Positional(BaseModel):
    """A model whose fields may also be given in their order. Raises TypeError for more values than it has fields."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        names = tuple(type(self).model_fields)
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} values at most, not {len(values)}.")
        super().__init__(**dict(zip(names, values, strict=False)), **fields)
