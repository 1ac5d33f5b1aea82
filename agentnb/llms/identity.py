"""Identity: what distinguishes a model from others whose answers may differ, as JSON data without secrets.

It is read when a request is made. It consists of the class and of what `identity()` returns, as the clients of
`agentnb.llms` have it, or of the public attributes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from agentnb.core.secrets import MASK, Secrets, is_a_secret, names_a_secret, secrets_in

_LEVELS = 6
"""The number of levels of objects in a model that are read."""


def identity_of(llm: Any) -> dict[str, Any]:
    """Return what distinguishes a model, as JSON data.

    For a class of agentnb that is what its method `identity` returns. For any other, it is that, if there is one, and
    the public attributes of the object and of its class. An attribute that is an object counts with its class only,
    unless it is a model or a data class.
    """
    return _of_object(llm, 0)


def told(value: Any, name: str = "") -> Any:
    """Return a value as JSON data without secrets, to compare it with another one."""
    return _told(value, name, 0)


def is_secret(name: str, value: Any) -> bool:
    """Return True if a value with this name is a secret, such as an API key."""
    return isinstance(value, str) and (names_a_secret(name) or is_a_secret(value))


def _of_object(one: Any, level: int) -> dict[str, Any]:
    kind = type(one)
    found: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if callable(identity := getattr(one, "identity", None)):
        found["identity"] = identity()
    if "identity" not in found or not kind.__module__.startswith("agentnb."):
        attributes: dict[str, Any] = {}
        for part in reversed(kind.__mro__[:-1]):
            if not part.__module__.startswith("agentnb."):
                attributes |= {name: value for name, value in vars(part).items() if _is_plain(value)}
        attributes |= getattr(one, "__dict__", {})
        found["attributes"] = {
            name: _told(value, name, level + 1)
            for name, value in attributes.items()
            if not name.startswith("_") and name != "options" and not is_secret(name, value)
        }
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | list | tuple | dict)


def _told(value: Any, name: str, level: int) -> Any:
    if is_secret(name, value):
        return MASK
    if isinstance(value, str):
        return Secrets(secrets_in(value)).without(value)  # the password of an address
    if value is None or isinstance(value, bool | int | float):
        return value
    if level > _LEVELS:
        return type(value).__qualname__
    if isinstance(value, Enum):
        return _told(value.value, name, level + 1)
    if isinstance(value, Mapping):
        return {str(key): _told(one, str(key), level + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_told(one, name, level + 1) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_told(one, name, level + 1)) for one in value)
    if isinstance(value, bytes | bytearray):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        return [type(value).__qualname__, _told(fields, name, level + 1)]
    if not isinstance(value, type) and callable(dump := getattr(value, "model_dump", None)):  # of pydantic
        return [type(value).__qualname__, _told(dump(), name, level + 1)]
    if not isinstance(value, type) and any(hasattr(value, method) for method in ("identity", "describe", "stream")):
        return {**_of_object(value, level), "options": _told(getattr(value, "options", None), "options", level + 1)}
    function = getattr(value, "__qualname__", None)
    return f"{type(value).__qualname__} {function}" if isinstance(function, str) else type(value).__qualname__
