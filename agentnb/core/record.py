"""Immutable values that are cheap to make: the base of messages and events.

A run makes several of these per iteration, so their cost is the floor of everything else. Validating a frozen pydantic
model costs 3 to 4 µs and a kilobyte; `make` builds the same instance from fields that agentnb itself has just computed,
without validating them, in about 0.6 µs and a third of the memory. An instance made either way is equal, hashes, dumps,
copies and pickles alike. Anything that comes from outside (JSON, a user) goes through the ordinary constructor.

`make` relies on how pydantic v2 lays out an instance. `tests/core/test_record.py` holds it to that for every class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticUndefined

# The four slots of a pydantic instance. Their descriptors set them past the frozen model's __setattr__, and faster.
_new = object.__new__
_set_dict = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__


class Record(BaseModel):
    """A frozen value, equal by content, JSON in and out."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True)

    if TYPE_CHECKING:

        @classmethod
        def make(cls, **fields: Any) -> Self:
            """Build an instance from trusted fields without validating them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.make = staticmethod(_maker(cls))  # type: ignore[method-assign]  # no classmethod: that would make it slower


def _maker(cls: type[Record]) -> Callable[..., Record]:
    """What makes instances of `cls`: a function of its own, which finds what it needs without looking it up."""
    template = {
        name: None if field.default is PydanticUndefined else field.default for name, field in cls.model_fields.items()
    }
    factories: list[tuple[str, Callable[[], Any]]] = [
        (name, field.default_factory)  # type: ignore[misc]  # none of ours takes the validated data
        for name, field in cls.model_fields.items()
        if field.default_factory is not None
    ]
    # Shared by every instance made here: model_copy(update=...) copies it, and it must be a set, not a frozenset.
    fields_set = set(cls.model_fields)

    def make(**fields: Any) -> Record:
        self = _new(cls)
        for name, factory in factories:
            if name not in fields:
                fields[name] = factory()
        _set_dict(self, template | fields)
        _set_fields_set(self, fields_set)
        _set_extra(self, None)
        _set_private(self, None)
        return self

    return make
