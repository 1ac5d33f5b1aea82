"""The base of the values in the designs' own vocabularies: frozen pydantic models, because users construct them.

The events of a run are structs (`agentnb.core.event`).
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen value that is compared by content, and read from and written as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """Yield the fields that are not at their default."""
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            if field is None or field.get_default(call_default_factory=True, validated_data={}) != value:
                yield name, value

    def __str__(self) -> str:
        return repr(self)  # pydantic's own text omits the class, which distinguishes one event from another
