"""The base of all events, and `Delta`, which is not an event. `agentnb.core.events` has the events.

Events are frozen structs of msgspec: their fields cannot be set after creation. `msgspec.structs.replace` makes a
changed copy; this is how the journal stamps an event. The dicts and lists inside an event can be changed, so code that
passes an event's values to other code passes copies. A struct does not check the values that it is created with;
`checked` does.

JSON text is read and written by pydantic_core: recordings have numbers (NaN, long integers) that msgspec refuses in
JSON text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import NODEFAULT, Struct, structs, to_builtins
from msgspec.structs import asdict, replace
from pydantic_core import core_schema, from_json, to_json

from agentnb.core.errors import ImpossibleEvent
from agentnb.core.json import to_plain

AnyStruct = TypeVar("AnyStruct", bound="ErrorInfo | Event")


def read_field(kind: type[Any], value: Any) -> Any:
    """Return the message or the call that `value` describes: msgspec calls this to decode them. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"Expected an object, got {value!r:.80}")
    return kind.of(value)


class _Data(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A frozen struct that is JSON data, so it is never part of a reference cycle (`gc=False`)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON data, without those at their default."""
        # msgspec omits a default text only if it is the same object as the default.
        return _without_defaults(type(self), to_builtins(self))

    def to_json(self) -> str:
        """Return the fields as one line of JSON, without those at their default."""
        return to_json(self.to_dict()).decode()

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with the fields in `update` replaced."""
        return replace(self, **(update or {}))

    def model_dump(
        self,
        *,
        mode: str = "json",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        exclude_defaults: bool = False,
        exclude_none: bool = False,
    ) -> dict[str, Any]:
        """Return the fields as plain JSON data, those at their default included, as a pydantic model does."""
        tag = self.__struct_config__.tag
        plain = self.to_dict() if exclude_defaults else {**({"type": tag} if tag else {}), **to_plain(asdict(self))}
        return {
            name: value
            for name, value in plain.items()
            if (include is None or name in include) and name not in exclude and not (exclude_none and value is None)
        }

    def model_dump_json(self, **options: Any) -> str:
        """Return `model_dump` as one line of JSON."""
        return to_json(self.model_dump(**options)).decode()

    @classmethod
    def model_validate(cls, fields: Mapping[str, Any]) -> Self:
        """Return the instance with these fields. Raises msgspec.ValidationError, a ValueError, with the field."""
        return msgspec.convert(fields, cls, dec_hook=read_field)

    @classmethod
    def model_validate_json(cls, line: bytes | str) -> Self:
        """Return the instance in one line of JSON. Raises msgspec.ValidationError, a ValueError, with the field."""
        return cls.model_validate(from_json(line))

    def __repr__(self) -> str:
        shown = _without_defaults(type(self), asdict(self))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Return the schema that allows this class as a field of a pydantic model."""
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.model_validate(value),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.model_dump),
        )


def _without_defaults(kind: type[Struct], values: dict[str, Any]) -> dict[str, Any]:
    defaults = _defaults(kind)
    kept = {}
    for name, value in values.items():
        default = defaults.get(name, NODEFAULT)
        if type(value) is not type(default) or value != default:  # the type first: comparing an array fails
            kept[name] = value
    return kept


@cache
def _defaults(kind: type[Struct]) -> dict[str, Any]:
    """Return the defaults of the fields that have one."""
    made = ((field.name, field.default, field.default_factory) for field in structs.fields(kind) if not field.required)
    return {name: factory() if default is NODEFAULT else default for name, default, factory in made}


def checked(data: AnyStruct) -> AnyStruct:
    """Return a copy of an event that users' code made, with its fields checked.

    Raises ImpossibleEvent with the field that is not valid.
    """
    try:
        return msgspec.convert(asdict(data), type(data), dec_hook=read_field)
    except msgspec.ValidationError as error:
        raise ImpossibleEvent(f"{type(data).__name__} is not valid: {error}.") from None


class ErrorInfo(_Data, frozen=True):
    """An error as data: the exception's type, its message, and the traceback if it may be shown.

    `details`: what a model's server reported: `status`, `code`, `param`, `request_id`, each if it was sent.
    """

    type: str
    message: str
    traceback: str | None = None
    details: dict[str, Any] | None = None


class Event(_Data, frozen=True, kw_only=True, tag_field="type"):
    """The fields of every event; `seq` is -1 and `time` 0 until the journal has stamped it.

    `inherited`: the event happened in the run from which this run was forked, and does not count towards this run's
    cost. `untimed`: the event was imported from a recording of another tool that does not have its time; `time` is that
    of the last event before it that has one, or of the first event that has one, or 0.
    """

    seq: int = -1
    time: float = 0.0
    run_id: str = ""
    path: str = ""
    phase: str | None = None
    inherited: bool = False
    untimed: bool = False

    @property
    def type(self) -> str:
        """The type of event, as recordings name it."""
        return str(self.__struct_config__.tag)

    @property
    def terminal(self) -> bool:
        """True on the one event that ends the run."""
        return False


class Delta(Struct, omit_defaults=True, repr_omit_defaults=True):
    """A piece of an unfinished answer or call: it is sent to consumers for display, and is not recorded.

    `text_delta` and `reasoning_delta` have `content`; `tool_call_delta` has `index, id, name, arguments` (a fragment of
    JSON text); `call_delta`, a tool's progress, has `call_id` and `data`; `retry_delta` has the attempt in `data`.
    """

    type: str
    content: str = ""
    run_id: str = ""
    path: str = ""
    index: int = 0
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    call_id: str | None = None
    data: Any = None

    seq: ClassVar[None] = None
    terminal: ClassVar[bool] = False
