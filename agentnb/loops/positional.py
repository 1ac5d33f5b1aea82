"""A pydantic model that accepts its fields by position, as the dataclasses of the published designs do."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Positional(BaseModel):
    """A model that also accepts its fields as positional arguments, in the order of declaration.

    Raises TypeError if there are more values than fields.
    """

    def __init__(self, *values: Any, **fields: Any) -> None:
        names = tuple(type(self).model_fields)
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} values at most, not {len(values)}.")
        super().__init__(**dict(zip(names, values, strict=False)), **fields)
