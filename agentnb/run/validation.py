"""The options of a run, and validation of the arguments that a user passes to it.

Without validation, a wrong type would raise an error deep inside agentnb. The errors raised here name the argument,
the values that it accepts, and the value that was passed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from agentnb.core.errors import NotSerializable, UsageError
from agentnb.core.json import repair_text, require_json
from agentnb.core.protocols import RunStore
from agentnb.core.secrets import name_of_secret

SHOWN = 80
"""The maximum number of characters of a value in an error message."""


class StartOptions(TypedDict, total=False):
    """The keyword options of `Loop.start`, which documents them, for functions that forward them."""

    name: str | None
    store: RunStore | None
    approve: Any
    breakpoints: Sequence[Any]
    limits: Mapping[str, float] | None
    options: Mapping[str, Any] | None
    on_limit: Literal["end", "ask"] | None


def check_start_options(*, name: Any, store: Any, breakpoints: Any, limits: Any) -> None:
    """Raise UsageError if `start` or `restore` was passed an invalid option."""
    if not isinstance(name, (str, type(None))):
        raise UsageError(f"name= takes the run's name, not {shown(name)}.")
    if name:
        check_name("name=", name)
    if store is not None and not callable(getattr(store, "record_run", None)):
        path = isinstance(store, (str, os.PathLike))
        instead = f"agentnb.Store({str(store)!r})" if path else "agentnb.Store(path)"
        raise UsageError(f"store= takes a store, not {shown(store)}. Assign {instead} to a variable, and pass that.")
    if isinstance(breakpoints, (str, Mapping)) or callable(breakpoints) or not isinstance(breakpoints, Iterable):
        raise UsageError(f"breakpoints= takes a list, not {shown(breakpoints)}.")
    if not isinstance(limits, (Mapping, type(None))):
        raise UsageError(f'limits= takes a mapping, for example {{"turns": 5}}, not {shown(limits)}.')


def checked_tags(tags: Any) -> list[str]:
    """Return the tags of a new run, each once. Raises UsageError unless they are a list of texts."""
    if isinstance(tags, (str, Mapping)) or not isinstance(tags, Iterable):
        raise UsageError(f"tags= takes a list of texts, not {shown(tags)}.")
    tags = list(tags)
    check_name("Each of tags=", *tags)
    return list(dict.fromkeys(tags))


def checked_data(data: Any) -> dict[str, Any]:
    """Return the data of a new run as JSON data. Raises UsageError unless it is a mapping from texts to JSON values."""
    if data is None:
        return {}
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise UsageError(f'data= takes a mapping with text keys, for example {{"dose": 5}}, not {shown(data)}.')
    try:
        return require_json(dict(data), "data=")  # type: ignore[no-any-return]  # a dict stays a dict
    except NotSerializable as error:
        raise UsageError(f"data= takes JSON values, not {shown(data)}. {error}") from None


def check_on_limit(value: Any) -> None:
    """Raise UsageError unless the value is "end", "ask" or None."""
    if value not in ("end", "ask", None):
        raise UsageError(f'on_limit= takes "end" or "ask", not {shown(value)}.')


_NOT_OPTIONS = {
    "messages": "the conversation is the input of the run",
    "tools": "pass tools to the loop, and the provider's own tools to the client",
    "schema": "pass it to the loop as output=",
    "headers": "they may have secrets, and options are recorded: pass them to the client",
    "extra_headers": "they may have secrets, and options are recorded: pass them to the client as headers=",
}
"""What cannot be an option of a run, and what to do instead."""


def checked_options(options: Any) -> dict[str, Any]:
    """Return the options of a run's model requests as JSON data.

    Raises UsageError unless they are a mapping from names to JSON values without secrets, because they are recorded.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise UsageError(f'options= takes a mapping, for example {{"temperature": 0}}, not {shown(options)}.')
    for name, instead in _NOT_OPTIONS.items():
        if name in options:
            raise UsageError(f"options= cannot have {name!r}: {instead}.")
    if (secret := name_of_secret(options)) is not None:
        raise UsageError(f"options= has a secret in {secret!r}, and options are recorded. Pass it to the client.")
    try:
        return require_json(dict(options), "options=")  # type: ignore[no-any-return]  # a dict stays a dict
    except NotSerializable as error:
        raise UsageError(f"options= takes JSON values, not {shown(options)}. {error}") from None


def check_seconds(what: str, value: Any) -> None:
    """Raise UsageError if the value is neither a number of seconds nor None. what: the argument, for the error."""
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or value != value):
        raise UsageError(f"{what} takes a number of seconds, or None, not {shown(value)}.")


def check_text(what: str, value: Any) -> None:
    """Raise UsageError if the value is not a string."""
    if not isinstance(value, str):
        raise UsageError(f"{what} takes a text, not {shown(value)}.")


def check_name(what: str, *values: Any) -> None:
    """Raise UsageError if one of the values cannot be a name in every store. A name is a text, not empty, and valid."""
    for value in values:
        if not isinstance(value, str) or not value or "\0" in value or repair_text(value) != value:
            raise UsageError(
                f"{what} takes a text that is not empty and has only valid characters, not {shown(value)}."
            )


def check_position(what: str, value: Any) -> None:
    """Raise UsageError if the value is not a position in a recording: an int, 0 or greater."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{what} takes a position (a whole number; 0 is the first event), not {shown(value)}.")


def check_path(what: str, value: Any) -> None:
    """Raise UsageError if the value cannot be the path of a file."""
    is_path = isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)
    if not is_path or not Path(value).name or "\0" in os.fspath(value):  # "" and "." and "/" name no file
        raise UsageError(f"{what} takes the path of a file, not {shown(value)}.")
    scheme, address, _ = os.fspath(value).partition("://")
    if address:  # the error does not show it, because it may contain a password
        raise UsageError(f"{what} takes the path of a file, not an address ({scheme}://...).")


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path in which `~` is the home folder; `~name` stays as it is if there is no such user."""
    return Path(os.path.expanduser(path))


def shown(value: Any) -> str:
    """Return the representation of a value for an error message, cut off after `SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
