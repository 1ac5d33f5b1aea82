"""Parameters of functions as types that pydantic checks as the function means them."""

from __future__ import annotations

import collections.abc
import functools
import operator
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import typing_extensions
from pydantic import AfterValidator

_PLAIN = (bool, int, float, str)
_LISTS = frozenset({collections.abc.Iterable, collections.abc.Collection, collections.abc.Container})
"""Types of which a list is one, and which pydantic does not read, or reads as an iterator."""


def is_data(hint: Any) -> bool:
    """Whether this is the type of a value that a model gives, `float` or `float | None`, and not of a callback."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return any(is_data(one) for one in get_args(hint))
    return hint in _PLAIN or get_origin(hint) is Literal


def description_in(hint: Any) -> str | None:
    """Return the words about a parameter in its type: of `Annotated[str, "the city"]`, or of `Doc("the city")`."""
    if get_origin(hint) is not Annotated:
        return None
    for said in get_args(hint)[1:]:
        if isinstance(said, str):
            return said
        if isinstance(words := getattr(said, "documentation", None), str):
            return words
    return None


def checked_as(hint: Any, seen: Mapping[type, Any] | None = None) -> Any:
    """Return the type that pydantic is to check a parameter by.

    An `Iterable` is a list: pydantic would give an iterator, which has no length and can be read once. An `Iterator` is
    one over a list. A TypedDict of `typing` is one of `typing_extensions`, which pydantic asks for below Python 3.12.
    """
    seen = seen or {}
    origin, parts = get_origin(hint), get_args(hint)
    kind = origin if origin is not None else hint
    if kind in _LISTS or kind is collections.abc.Iterator:
        listed = list[checked_as(parts[0], seen)] if parts else list  # type: ignore[misc]  # not known before
        return listed if kind in _LISTS else Annotated[listed, AfterValidator(iter)]
    if origin is Annotated:
        return Annotated[(checked_as(parts[0], seen), *parts[1:])]
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, (checked_as(part, seen) for part in parts))
    if typing_extensions.is_typeddict(hint):
        return seen[hint] if hint in seen else _typed_dict(hint, seen)
    if origin in (list, dict, set, frozenset, tuple) and parts:
        return origin[tuple(part if part is ... else checked_as(part, seen) for part in parts)]
    return hint


def _typed_dict(hint: Any, seen: Mapping[type, Any]) -> Any:
    """Return a TypedDict of `typing` as one of `typing_extensions`."""
    fields: dict[str, Any] = {}
    made = typing_extensions.TypedDict(hint.__name__, fields)  # type: ignore[misc]  # its keys are not known before
    seen = {**seen, hint: made}
    required = set(hint.__required_keys__)
    for name, type_ in get_type_hints(hint, include_extras=True).items():
        # Where annotations are texts, __required_keys__ knows nothing of what these say.
        while (marked := get_origin(type_)) in (Required, NotRequired):
            (type_,) = get_args(type_)
            (required.add if marked is Required else required.discard)(name)
        type_ = checked_as(type_, seen)
        made.__annotations__[name] = type_ if name in required else NotRequired[type_]
    made.__required_keys__ = frozenset(required)
    made.__optional_keys__ = frozenset(made.__annotations__) - made.__required_keys__
    made.__doc__ = hint.__doc__
    if config := getattr(hint, "__pydantic_config__", None):
        made.__pydantic_config__ = config  # type: ignore[attr-defined]  # pydantic's own
    return made
