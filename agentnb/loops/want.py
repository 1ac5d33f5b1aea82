"""What a loop in generator form may want: the words that it yields (`Loop.from_generator`).

    reply = yield ask("Which files?")           ask the model; gives its message, an assistant's
    yield say("Use only the first.")            put a message of the user's into the history; gives None
    text = yield call(read, path="a.csv")       call a function, a tool or another loop; gives what came of it
    texts = yield [call(read, p) for p in ps]   several calls at once; gives the results in the same order
    yield phase("reviewing")                    enter one of the loop's phases; gives None

ask: the model's tool calls are run before the message comes back, with approvals as everywhere, and their results are
in the history by then; ask again to have them answered. What the user says meanwhile (`steer`, `follow_up`) enters the
history before the model is asked; after the last question nobody hears it. A model that fails pauses the run, and
resuming asks it again.

call: a plain function, sync (in a thread) or async, does whatever the loop itself must not; broken off by a crash, it
runs again. One of the loop's tools, given as itself or by name, is called as the model calls it: checked, with
approvals and policies, and asked about where nobody knows whether it ran. Another loop is run inside this one, with its
own history. The history of this loop is told nothing of either. A call that fails, or that somebody rejects, raises
`ToolError` at its `yield`; of several at once the first that failed does, when all have ended. (A mistake in another
loop's own code is no failure of a call: it ends the whole run.)

Arguments and results are facts of the run, and so they are JSON: a tuple comes as a list, a message as a dict, a number
of numpy's as a number. Of results, any other object comes as its text; as an argument it is refused.

Parts of a loop are generators too: `draft = yield from write(topic)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.json_data import json_of
from agentnb.core.loop import Design
from agentnb.core.messages import Message, plain_message, text_of, to_said
from agentnb.core.tools import Tool
from agentnb.core.unicode import printable

__all__ = ["Ask", "Call", "Phase", "Say", "Want", "ask", "call", "phase", "say"]

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Ask:
    """The model's next message, with these put to it first."""

    words: tuple[Message, ...]
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"ask({_shown_words(self.words)})"


@dataclass(frozen=True, slots=True)
class Say:
    """Messages in the history."""

    words: tuple[Message, ...]

    def __str__(self) -> str:
        return f"say({_shown_words(self.words)})"


@dataclass(frozen=True, slots=True)
class Call:
    """What comes of `called`: a function, a tool or its name, or a loop."""

    name: str
    arguments: dict[str, Any]
    called: Any

    def __str__(self) -> str:
        return shown_call(self.name, self.arguments)


@dataclass(frozen=True, slots=True)
class Phase:
    """That the loop is in this phase."""

    name: str

    def __str__(self) -> str:
        return f"phase({self.name!r})"


Want = Ask | Say | Call | Phase


def ask(*words: str | Message | Mapping[str, Any], schema: Any = None, **options: Any) -> Ask:
    """Ask the model, with `words` put to it first; a text is the user's.

    schema: a JSON schema, or a pydantic model, that the answer's text must follow. options: go into the request as
    they are; `tools=None` offers the model no tools. Raises UsageError for a message that only a model or a tool makes.
    """
    if schema is not None:
        options["schema"] = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
    return Ask(_messages(words), json_of(options, "ask"))


def say(*words: str | Message | Mapping[str, Any]) -> Say:
    """Put messages into the history; a text is the user's. Raises UsageError for one that only a tool makes."""
    return Say(_messages(words))


def call(called: Callable[..., Any] | Tool | Design | str, /, *args: Any, **kwargs: Any) -> Call:
    """Call a function, one of the loop's tools (itself or its name), or a loop (with its input).

    Raises TypeError where the arguments do not fit, and NotSerializable where they are not JSON.
    """
    if isinstance(called, Design):
        arguments = {"input": _input(*args, **kwargs)}
        return Call(name_of(called), json_of(arguments, called.name), called)
    if isinstance(called, str):
        if args:
            raise UsageError(f"Give the arguments of {called} by name: {called!r} does not say what they are called.")
        return Call(called, json_of(kwargs, called), called)
    if isinstance(called, Tool):
        return Call(called.name, json_of(_by_name(called, args, kwargs), called.name), called)
    function: Any = called
    if not callable(function):
        raise UsageError(f"call() takes a function, a tool, a tool's name or a loop, not {called!r}.")
    name = name_of(called)
    try:
        bound = dict(inspect.signature(called).bind(*args, **kwargs).arguments)
    except ValueError:  # of some that are written in C
        raise UsageError(f"Nothing says what {name} takes: wrap it in a function of your own.") from None
    return Call(name, json_of(bound, name), called)


def name_of(called: Any) -> str:
    """The name under which a function, a tool or a loop is called."""
    if isinstance(called, (Design, Tool)):
        return called.name
    return str(getattr(_whole(called), "__name__", type(called).__name__))


def phase(name: str) -> Phase:
    """Enter a phase that the loop declares."""
    return Phase(name)


def shown_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call, for people."""
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    shown = given if len(given) <= _SHOWN else given[:_SHOWN] + "…"
    return printable(f"call({name}{', ' if given else ''}{shown})")


def shown_message(message: Message) -> str:
    """A message, for people."""
    text = text_of(message.content)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _shown_words(words: tuple[Message, ...]) -> str:
    return ", ".join(map(shown_message, words))


def _messages(words: tuple[Any, ...]) -> tuple[Message, ...]:
    return tuple(to_said(json_of(plain_message(word), "a message")) for word in words)


def _input(input: Any = None) -> Any:
    return input


def _whole(called: Any) -> Any:
    while isinstance(called, functools.partial):
        called = called.func
    return called


def _by_name(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A tool's arguments by name; whether they fit is the tool's to say."""
    return {**dict(zip(tool.parameters.get("properties", ()), args, strict=False)), **kwargs} if args else kwargs
