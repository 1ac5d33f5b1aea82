"""Commands that a loop in generator form yields (`Loop.from_generator`).

    reply = yield ask("Which files?")           ask the model; returns its message, with the role `assistant`
    yield say("Use only the first.")            add a user message to the history; returns None
    text = yield call(read, path="a.csv")       call a function, a tool or another loop; returns its result
    texts = yield [call(read, p) for p in ps]   several concurrent calls; returns the results in the same order
    yield phase("reviewing")                    enter one of the loop's phases; returns None

ask: the model's tool calls run before the message is returned, with the usual approvals, and their results are already
in the history. Ask again to let the model answer them. Messages that the user sends in the meantime (`steer`,
`follow_up`) enter the history before the model request; after the last request they are not delivered. A model failure
pauses the run, and resuming sends the request again.

call: a plain function, sync (in a thread) or async, does the work that the loop itself must not do. After a crash it
runs again. A tool of the loop, passed as an object or by name, is called as the model calls it: with checks, approvals
and policies; after a crash a person decides if it is unknown whether the call ran. Another loop runs as a nested loop,
with its own history. None of these calls enters the history of this loop. A call that fails or is rejected raises
`ToolError` at its `yield`. If several calls are yielded together, the first failure is raised after all have ended.
(An error in the code of a nested loop is not a failed call: it ends the whole run.)

Arguments and results are part of the run's events, and therefore JSON: a tuple is returned as a list, a message as a
dict, a numpy number as a number. Any other object is returned as its text; as an argument it is refused.

Parts of a loop can be generators too: `draft = yield from write(topic)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError, printable
from agentnb.core.json import require_json
from agentnb.core.loop import Design
from agentnb.core.messages import Message, plain_message, text_of, to_sent_message
from agentnb.core.tools import Tool

__all__ = ["Ask", "Call", "Phase", "Say", "Want", "ask", "call", "phase", "say"]

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Ask:
    """A command to add messages to the history, and then to ask the model for its next message."""

    words: tuple[Message, ...]
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"ask({_shown_words(self.words)})"


@dataclass(frozen=True, slots=True)
class Say:
    """A command to add messages to the history."""

    words: tuple[Message, ...]

    def __str__(self) -> str:
        return f"say({_shown_words(self.words)})"


@dataclass(frozen=True, slots=True)
class Call:
    """A command to call `called` (a function, a tool, the name of a tool, or a loop) and to return the result."""

    name: str
    arguments: dict[str, Any]
    called: Any

    def __str__(self) -> str:
        return shown_call(self.name, self.arguments)


@dataclass(frozen=True, slots=True)
class Phase:
    """A command to enter this phase."""

    name: str

    def __str__(self) -> str:
        return f"phase({self.name!r})"


Want = Ask | Say | Call | Phase


def ask(*words: str | Message | Mapping[str, Any], schema: Any = None, **options: Any) -> Ask:
    """Return a command that adds `words` to the history and then asks the model. A string is a user message.

    schema: a JSON schema, or a pydantic model class, that the answer's text must follow. options: passed to the model
    request unchanged; `tools=None` offers the model no tools.

    Raises UsageError for a message with tool calls, and for a tool result.
    """
    if schema is not None:
        options["schema"] = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
    return Ask(_messages(words), require_json(options, "ask"))


def say(*words: str | Message | Mapping[str, Any]) -> Say:
    """Return a command to add messages to the history. A string is a user message.

    Raises UsageError for a message with tool calls, and for a tool result.
    """
    return Say(_messages(words))


def call(called: Callable[..., Any] | Tool | Design | str, /, *args: Any, **kwargs: Any) -> Call:
    """Return a command to call a function, one of the loop's tools (object or name), or a loop (with its input).

    Raises TypeError if the arguments do not fit the signature, NotSerializable if they are not JSON, and UsageError if
    `called` cannot be called in this way.
    """
    if isinstance(called, Design):
        arguments = {"input": _input(*args, **kwargs)}
        return Call(name_of(called), require_json(arguments, called.name), called)
    if isinstance(called, str):
        if args:
            raise UsageError(f"Pass the arguments of the tool {called!r} by name: its parameters are not known here.")
        return Call(called, require_json(kwargs, called), called)
    if isinstance(called, Tool):
        return Call(called.name, require_json(_by_name(called, args, kwargs), called.name), called)
    function: Any = called
    if not callable(function):
        raise UsageError(f"call() takes a function, a tool, a tool's name or a loop, not {called!r}.")
    name = name_of(called)
    try:
        bound = dict(inspect.signature(called).bind(*args, **kwargs).arguments)
    except ValueError:  # some functions written in C have no signature
        raise UsageError(f"The parameters of {name} are not known. Wrap it in a function of your own.") from None
    return Call(name, require_json(bound, name), called)


def name_of(called: Any) -> str:
    """Return the name under which a function, a tool or a loop is called."""
    if isinstance(called, (Design, Tool)):
        return called.name
    return str(getattr(_whole(called), "__name__", type(called).__name__))


def phase(name: str) -> Phase:
    """Return a command to enter a phase that the loop declares."""
    return Phase(name)


def shown_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a short string for display."""
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    shown = given if len(given) <= _SHOWN else given[:_SHOWN] + "…"
    return printable(f"call({name}{', ' if given else ''}{shown})")


def shown_message(message: Message) -> str:
    """Return the text of a message as a short string for display."""
    text = text_of(message.content)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _shown_words(words: tuple[Message, ...]) -> str:
    return ", ".join(map(shown_message, words))


def _messages(words: tuple[Any, ...]) -> tuple[Message, ...]:
    return tuple(to_sent_message(require_json(plain_message(word), "a message")) for word in words)


def _input(input: Any = None) -> Any:
    return input


def _whole(called: Any) -> Any:
    while isinstance(called, functools.partial):
        called = called.func
    return called


def _by_name(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments by name. The tool checks later that they fit."""
    return {**dict(zip(tool.parameters.get("properties", ()), args, strict=False)), **kwargs} if args else kwargs
