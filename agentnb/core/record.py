"""Immutable values that are cheap to make: the base of messages and events.

A run makes several of these per iteration, so their cost is the floor of everything else. Validating a frozen pydantic
model costs 3 to 4 µs and a kilobyte; `make` builds the same instance from fields that agentnb itself has just computed,
without validating them, in about 0.5 µs and a third of the memory. An instance made either way is equal, hashes, dumps,
copies and pickles alike. Anything that comes from outside (JSON, a user) goes through the ordinary constructor.

`make` relies on how pydantic v2 lays out an instance. `tests/core/test_record.py` holds it to that for every class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticUndefined

# The slots of a pydantic instance. Their descriptors set them past the frozen model's __setattr__, and faster.
_new = object.__new__
_set_dict = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_EXTRA, _PRIVATE = BaseModel.__dict__["__pydantic_extra__"], BaseModel.__dict__["__pydantic_private__"]
_set_extra = _EXTRA.__set__


class _AlwaysNone:
    """In place of a slot that would hold None in every instance: to set two of these is a fifth of making a record.

    Such are the extra fields of a class that forbids them, and the private attributes of one that declares none.
    """

    def __get__(self, instance: object, owner: type | None = None) -> None:
        return None

    def __set__(self, instance: object, value: None) -> None:
        """Pydantic sets it to None."""


_ALWAYS_NONE = _AlwaysNone()


class Record(BaseModel):
    """A frozen value, equal by content, JSON in and out."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True)

    memos: ClassVar[tuple[str, ...]] = ()
    """What an instance keeps beside its fields, None at first: it has a place from the start, which costs less."""

    if TYPE_CHECKING:

        @classmethod
        def make(cls, **fields: Any) -> Self:
            """Build an instance from trusted fields without validating them."""

        @classmethod
        def hold(cls, values: dict[str, Any]) -> Self:
            """Build an instance around this dict, which has every field and is given up."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The fields that are not at their default."""
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            if field is None or field.get_default(call_default_factory=True, validated_data={}) != value:
                yield name, value

    def __str__(self) -> str:
        return repr(self)  # pydantic's own leaves out the class, which is what tells one event from another

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        has_extra = cls.model_config.get("extra") == "allow"
        cls.__pydantic_extra__ = _EXTRA if has_extra else _ALWAYS_NONE  # type: ignore[assignment]
        cls.__pydantic_private__ = _PRIVATE if cls.__private_attributes__ else _ALWAYS_NONE  # type: ignore[assignment]
        # No class methods: that would make them slower.
        cls.make, cls.hold = map(staticmethod, _makers(cls, has_extra))  # type: ignore[assignment,method-assign]


def _makers(cls: type[Record], has_extra: bool) -> tuple[Callable[..., Record], Callable[[dict[str, Any]], Record]]:
    """What makes instances of `cls`: functions of its own, which find what they need without looking it up.

    has_extra: whether instances that are not made here may have more than their fields.
    """
    template = dict.fromkeys(cls.memos) | {
        name: None if field.default is PydanticUndefined else field.default for name, field in cls.model_fields.items()
    }
    factories: list[tuple[str, Callable[[], Any]]] = [
        (name, field.default_factory)  # type: ignore[misc]  # none of ours takes the validated data
        for name, field in cls.model_fields.items()
        if field.default_factory is not None
    ]
    # Shared by every instance made here: model_copy(update=...) copies it, and it must be a set, not a frozenset.
    fields_set = set(cls.model_fields)

    def hold(values: dict[str, Any]) -> Record:
        self = _new(cls)
        _set_dict(self, values)
        _set_fields_set(self, fields_set)
        if has_extra:
            _set_extra(self, None)
        return self

    def make(**fields: Any) -> Record:  # the same, written out: another call would be a tenth of it
        self = _new(cls)
        _set_dict(self, template | fields)
        _set_fields_set(self, fields_set)
        if has_extra:
            _set_extra(self, None)
        return self

    def make_with_factories(**fields: Any) -> Record:
        for name, factory in factories:
            if name not in fields:
                fields[name] = factory()
        self = _new(cls)
        _set_dict(self, template | fields)
        _set_fields_set(self, fields_set)
        if has_extra:
            _set_extra(self, None)
        return self

    return make_with_factories if factories else make, hold
