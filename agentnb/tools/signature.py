"""Signatures: the parameters of a function, as a JSON schema for the model and as types that pydantic checks.

The descriptions in the schema are taken from the docstring (Google, NumPy or reST style) and from the annotations.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typing_extensions
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from agentnb.core.errors import UsageError
from agentnb.core.json import is_json, same_json
from agentnb.json_schema import no_schema_reason

INJECTED = ("progress", "tool_context")
"""Names of parameters that agentnb passes to the function; the model does not know of them."""

_VALUES = (str, int, float, bool)
_LISTS = frozenset({collections.abc.Iterable, collections.abc.Collection, collections.abc.Container})
"""Types that accept a list, and that pydantic rejects or turns into an iterator."""


class Signature:
    """The parameters of a function that is a tool.

    The schema and the validator cost pydantic 200 us, so they are built when they are first needed. A signature that
    pydantic may reject is built in the constructor, so that the error is raised at the definition of the tool.

    function: the function, a bound method, a functools.partial, or an object with `__call__`.
    name: the tool's name, for error messages.

    Raises UsageError if the parameters cannot be described by a JSON schema.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        try:
            self._hints = get_type_hints(code_of(function), include_extras=True)
        except NameError as error:
            raise UsageError(
                f"The tool {name} has an annotation that cannot be resolved: {error}. Import or define its type in the"
                " module of the function."
            ) from error
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # some functions written in C have no signature
            raise UsageError(
                f"The parameters of {name} are unknown, because it has no signature: wrap it in a function of your own,"
                " with types and a docstring."
            ) from None

        # Sort the parameters into those of the model and those that agentnb injects.
        self._parameters: dict[str, inspect.Parameter] = {}
        injected: list[str] = []
        self._takes_more = False
        self._unpacked: dict[str, Any] = {}
        """The keywords that `**options: Unpack[Options]` declares, each with its type."""
        self._more: Any = Any
        """The type of the other keywords, as in `**weights: float`."""
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                hint = self._hints.get(parameter.name, Any)
                if get_origin(hint) in (Unpack, typing_extensions.Unpack):  # the second is another before Python 3.12
                    self._unpacked = _fields_of(get_args(hint)[0])
                else:
                    self._takes_more, self._more = True, checked_type(hint)
            elif parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
                raise UsageError(
                    f"The tool {name} takes {parameter}, which a model cannot pass by name: wrap it in a function of"
                    " your own."
                )
            elif parameter.name in INJECTED and not _is_value(self._hints.get(parameter.name)):
                injected.append(parameter.name)
            else:
                self._parameters[parameter.name] = parameter
        self.injected = tuple(injected)

        for parameter in self._parameters.values():
            if isinstance(parameter.default, FieldInfo):  # Python would pass the Field itself to the function
                type_ = checked_type(self._hints.get(parameter.name, Any))
                raise UsageError(
                    f"The parameter {parameter.name} has a Field as its default. Put the Field into the type, and the"
                    f" default after it: {parameter.name}: Annotated[{getattr(type_, '__name__', type_)}, Field(...)] ="
                    " ..."
                )
        if self._unpacked or not all(map(self._is_plain, self._parameters.values())) or not _is_plain(self._more):
            _ = self.schema  # build everything now, for its errors

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the values for the function. Raises ValidationError, or what a user's validator raises."""
        values: dict[str, Any] = self._adapter.validator.validate_python(arguments)
        if self._takes_more and self._more is not Any:
            more = {name: value for name, value in values.items() if name not in self._parameters}
            values |= self._adapter_of_more.validate_python(more)
        return values

    @functools.cached_property
    def description(self) -> str:
        """The docstring without its section about the parameters."""
        return self._docstring[0]

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters that the model gives."""
        try:
            schema = self._adapter.json_schema()
            if self._takes_more and self._more is not Any:
                more = self._adapter_of_more.json_schema()
                schema["additionalProperties"] = more["additionalProperties"]
                if "$defs" in more:
                    schema["$defs"] = {**more["$defs"], **schema.get("$defs", {})}
        except Exception as error:
            raise _no_schema(self._name, error) from None
        schema.pop("title", None)
        for described in schema.get("properties", {}).values():
            described.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    @functools.cached_property
    def _docstring(self) -> tuple[str, dict[str, str]]:
        return parse_docstring(self._function)

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        """The validator. It is of a TypedDict, because its keys may have any name and missing keys stay missing."""
        fields = {name: self._field(parameter) for name, parameter in self._parameters.items()} | self._unpacked
        adapter = self._adapter_of(fields)

        # A declared default is valid, whatever the type says: `x: int = None` accepts null.
        defaults = {
            name: default["default"]
            for name, parameter in self._parameters.items()
            if parameter.default is not parameter.empty and (default := _json_default(parameter.default))
        }
        invalid: set[Any] = set()
        try:
            adapter.validate_python(defaults)
        except ValidationError as error:
            invalid = {fault["loc"][0] for fault in error.errors(include_url=False) if fault["type"] != "missing"}
        except Exception:  # a user's validator fails: no default is known to be invalid
            pass
        if invalid := invalid & defaults.keys():
            fields |= {name: _accept_default(fields[name], self._parameters[name].default) for name in invalid}
            adapter = self._adapter_of(fields)
        return adapter

    @functools.cached_property
    def _adapter_of_more(self) -> TypeAdapter[dict[str, Any]]:
        """The validator of the keywords that are not declared by name."""
        return TypeAdapter(dict[str, self._more])  # type: ignore[name-defined]  # a type made at run time

    def _is_plain(self, parameter: inspect.Parameter) -> bool:
        """Return True if pydantic certainly accepts the parameter, so that it need not be built to find out."""
        has_plain_default = parameter.default is parameter.empty or is_json(parameter.default)
        return has_plain_default and _is_plain(self._hints.get(parameter.name, Any))

    def _field(self, parameter: inspect.Parameter) -> Any:
        """Return the TypedDict field of a parameter: its type, with the description and the default for the schema."""
        type_ = self._hints.get(parameter.name, Any)
        text = self._docstring[1].get(parameter.name) or _annotated_text(type_)
        described: dict[str, Any] = {"description": text} if text else {}
        type_ = checked_type(type_)
        if parameter.default is inspect.Parameter.empty:
            return Annotated[type_, Field(**described)]
        return NotRequired[Annotated[type_, Field(**described, json_schema_extra=_json_default(parameter.default))]]

    def _adapter_of(self, fields: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
        # pydantic requires the TypedDict of typing_extensions below Python 3.12.
        arguments = typing_extensions.TypedDict("arguments", fields)  # type: ignore[misc]  # keys are not literals
        config = ConfigDict(extra="allow" if self._takes_more else "forbid")
        arguments.__pydantic_config__ = config  # type: ignore[attr-defined]
        try:
            return TypeAdapter(cast("type[dict[str, Any]]", arguments))
        except Exception as error:
            raise _no_schema(self._name, error) from None


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside functools.partial objects; it has the name and the docstring."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the code that runs when `function` is called; for a callable object this is the method `__call__`."""
    inner = unwrapped(function)
    if inspect.isroutine(inner) or inspect.isclass(inner) or hasattr(inner, "__wrapped__"):
        return inner
    call: Callable[..., Any] = inner.__call__  # type: ignore[operator]  # mypy knows __call__ of objects only
    return call


def parse_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the docstring's description of the function, and its description of each parameter."""
    inner, code = unwrapped(function), code_of(function)
    text = inspect.getdoc(code if code is inner or code.__doc__ else inner)
    if not text:
        return "", {}
    import docstring_parser  # imported at first use, to keep the import of agentnb fast

    parsed = docstring_parser.parse(text)
    description = "\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)
    parameters = {}
    for parameter in parsed.params:
        for name in parameter.arg_name.split(","):  # NumPy style describes several at once: `x, y : float`
            if parameter.description:
                parameters[name.strip()] = parameter.description
    return description, parameters


def checked_type(hint: Any, known: Mapping[type, Any] | None = None) -> Any:
    """Return the type by which pydantic checks a parameter.

    An `Iterable` is checked as a list: pydantic would pass an iterator, which has no length and can be read only once.
    An `Iterator` is checked as a list, and passed as an iterator over it. A `typing.TypedDict` is converted to one of
    `typing_extensions`, which pydantic requires below Python 3.12.

    hint: the annotation.
    known: TypedDicts that are being converted, for those that refer to themselves.
    """
    known = known or {}
    origin, parts = get_origin(hint), get_args(hint)
    kind = origin if origin is not None else hint
    if kind in _LISTS or kind is collections.abc.Iterator:
        listed = list[checked_type(parts[0], known)] if parts else list  # type: ignore[misc]  # a type made at run time
        return listed if kind in _LISTS else Annotated[listed, AfterValidator(iter)]
    if origin is Annotated:
        return Annotated[(checked_type(parts[0], known), *parts[1:])]
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, (checked_type(part, known) for part in parts))
    if origin in (list, dict, set, frozenset, tuple) and parts:
        return origin[tuple(part if part is ... else checked_type(part, known) for part in parts)]
    if not typing_extensions.is_typeddict(hint):
        return hint
    if hint in known:
        return known[hint]

    # Convert the TypedDict. `known` has the new type before its fields do, so that it may refer to itself.
    converted = typing_extensions.TypedDict(hint.__name__, cast("dict[str, Any]", {}))  # type: ignore[misc]
    known = {**known, hint: converted}
    required = set(hint.__required_keys__)
    for name, type_ in get_type_hints(hint, include_extras=True).items():
        # If annotations are strings, __required_keys__ ignores Required and NotRequired in them.
        while (marked := get_origin(type_)) in (Required, NotRequired):
            (type_,) = get_args(type_)
            (required.add if marked is Required else required.discard)(name)
        type_ = checked_type(type_, known)
        converted.__annotations__[name] = type_ if name in required else NotRequired[type_]
    converted.__required_keys__ = frozenset(required)
    converted.__optional_keys__ = frozenset(converted.__annotations__) - converted.__required_keys__
    converted.__doc__ = hint.__doc__
    if config := getattr(hint, "__pydantic_config__", None):
        converted.__pydantic_config__ = config  # type: ignore[attr-defined]
    return converted


def _fields_of(typed_dict: Any) -> dict[str, Any]:
    """Return the fields of a TypedDict, with NotRequired for those that may be left out."""
    converted = checked_type(typed_dict)
    fields = {}
    for name, hint in get_type_hints(converted, include_extras=True).items():
        while get_origin(hint) in (Required, NotRequired):
            (hint,) = get_args(hint)
        fields[name] = NotRequired[hint] if name in converted.__optional_keys__ else hint
    return fields


def _is_plain(hint: Any) -> bool:
    """Return True if pydantic certainly has a schema for this type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (list, dict, Union, UnionType):
        return all(map(_is_plain, parts))
    if origin is Literal:
        return all(map(is_json, parts))
    if origin is Annotated:
        return _is_plain(parts[0]) and all(isinstance(text, str) for text in parts[1:])
    return hint is Any or hint in (*_VALUES, NoneType, list, dict)


def _is_value(hint: Any) -> bool:
    """Return True if a model can give a value of this type, such as `float | None`, so that it is not a callback."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return any(map(_is_value, get_args(hint)))
    return hint in _VALUES or get_origin(hint) is Literal


def _annotated_text(hint: Any) -> str | None:
    """Return the description in a type, as in `Annotated[str, "the city"]` or `Annotated[str, Doc("the city")]`."""
    if get_origin(hint) is not Annotated:
        return None
    for text in get_args(hint)[1:]:
        text = getattr(text, "documentation", text)
        if isinstance(text, str):
            return text
    return None


def _json_default(value: Any) -> dict[str, Any]:
    """Return the default as a part of the schema; {} if it is not JSON, such as bytes that are not text."""
    try:
        return {"default": to_jsonable_python(value, serialize_unknown=True)}
    except ValueError:
        return {}


def _accept_default(field: Any, default: Any) -> Any:
    """Return a field that accepts its default in addition to the values of its type."""
    as_json = _json_default(default)["default"]

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        return default if is_json(value) and same_json(value, as_json) else validate(value)

    (inner,) = get_args(field)  # of NotRequired
    type_, *metadata = get_args(inner)
    return NotRequired[Annotated[(type_, *metadata, WrapValidator(check))]]


def _no_schema(name: str, error: Exception) -> UsageError:
    # pydantic raises errors of several types.
    return UsageError(
        f"The tool {name} cannot be described by a JSON schema: {no_schema_reason(error)}. The type of a parameter must"
        " be a number, str, list, dict, an enum, a dataclass or a pydantic model."
    )
