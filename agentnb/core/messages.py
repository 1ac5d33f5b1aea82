"""Messages: what a model is told and what it says, in one shape everywhere.

A message has a `role` (`system`, `user`, `assistant`, `tool`, or a role of your own), `content` (text, or a list of
blocks that each have a `type`), and where they apply `tool_calls`, `tool_call_id`, `is_error`. It is a pydantic model
that also reads as a mapping of the fields it has, so `message["role"]`, `message.get("tool_calls")`, `dict(message)`
and `message == {"role": "user", "content": "hi"}` do what they say.

`plain` is the message as the dict that a model gets. It is made once per message: converting the history again for
every request would make a run quadratic.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.readable import parse_arguments
from agentnb.core.record import Record

_SCALARS = frozenset({str, int, float, bool})

Content = str | list[dict[str, Any]]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""The roles that a provider knows: messages of other roles are sent to no model."""


class _Readable(Record):
    """A record that reads as a mapping of the fields it has: those that are always there, and those not empty."""

    @property
    def plain(self) -> dict[str, Any]:
        """The record as plain dicts and lists; not to be changed."""
        raise AssertionError(f"{type(self).__name__} does not say what it is as a plain dict")  # pragma: no cover

    def __getitem__(self, key: str) -> Any:
        if key in type(self).model_fields:
            return self.__dict__[key]
        return (self.__pydantic_extra__ or {})[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The field's value, or `default` where there is none."""
        return self[key] if key in self.plain else default

    def keys(self) -> KeysView[str]:
        """The names of the fields this record has."""
        return self.plain.keys()

    def items(self) -> ItemsView[str, Any]:
        """The fields this record has, with their plain values."""
        return self.plain.items()

    def __contains__(self, key: object) -> bool:
        return key in self.plain

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]  # a mapping iterates over its keys
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return bool(self.plain == to_plain(other))
        return isinstance(other, _Readable) and bool(self.plain == other.plain)

    __hash__ = None  # type: ignore[assignment]  # it holds lists and dicts


class ToolCall(_Readable):
    """A call a model asks for: `id`, the tool's `name`, its `arguments`.

    `malformed` is the text of the arguments where it was not a JSON object; `arguments` is empty then.
    """

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    malformed: str | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """The call as a dict; not to be changed."""
        values = self.__dict__
        plain = {"id": values["id"], "name": values["name"], "arguments": values["arguments"]}
        if values["malformed"] is not None:
            plain["malformed"] = values["malformed"]
        return plain


class Message(_Readable):
    """One message of a conversation; fields of your own are kept.

    `order` has the parts of a model's answer in the order they came, where that is not reasoning, text and calls:
    `{"type": "reasoning"}` is the next block of `reasoning`, `{"type": "call"}` the next of `tool_calls`,
    `{"type": "text", "length": n}` the next n characters of `content`, with the `citations` of these and their
    `server`, and `{"type": "block", "server": ..., "block": ...}` a block that only that server can read. `details` of
    an answer has what else came with it: `logprobs`, `annotations`.
    """

    model_config = ConfigDict(extra="allow")
    memos = ("_plain",)

    role: str
    content: Content = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None
    is_error: bool = False
    name: str | None = None
    reasoning: list[dict[str, Any]] = Field(default_factory=list)
    order: list[dict[str, Any]] = Field(default_factory=list)
    details: Any = None
    stop_reason: str | None = None
    error_message: str | None = None

    @staticmethod
    def say(fields: dict[str, Any], plain: dict[str, Any] | None = None) -> Message:
        """A message from trusted fields, none of them at its default; `plain` are the same as plain dicts and lists."""
        values = _ABSENT | fields
        values["_plain"] = fields if plain is None else plain
        if values["tool_calls"] is None:
            values["tool_calls"] = []
        if values["reasoning"] is None:
            values["reasoning"] = []
        if values["order"] is None:
            values["order"] = []
        return _hold(values)

    @property
    def plain(self) -> dict[str, Any]:
        """The message as plain dicts and lists, without the fields it does not have; made once, not to be changed."""
        values = self.__dict__
        made: dict[str, Any] | None = values.get("_plain")
        if made is None:
            made = {"role": values["role"], "content": values["content"]}
            for name in _OPTIONAL:
                value = values[name]
                if value is not None and value is not False and value != []:
                    made[name] = value if type(value) is str else to_plain(value)
            if self.__pydantic_extra__:
                made |= self.__pydantic_extra__
            values["_plain"] = made  # not by cached_property, which takes a lock each time below Python 3.12
        return made

    def handed_over(self) -> dict[str, Any]:
        """The message as plain dicts and lists for somebody who may change them: nothing of it is the message's own.

        It is `plain` itself, which is made again where anybody asks for it, because copying it takes longer.
        """
        values = self.__dict__
        said: dict[str, Any] = values.get("_plain") or self.plain
        values["_plain"] = None
        if values["tool_calls"]:
            for call in said["tool_calls"]:
                call["arguments"] = to_plain(call["arguments"])
        if type(values["content"]) is not str:
            said["content"] = to_plain(said["content"])
        if (
            values["reasoning"] or values["order"] or values["details"] is not None or self.__pydantic_extra__
        ):  # all others are text
            for name in said.keys() - _COPIED_OR_TEXT:
                said[name] = to_plain(said[name])
        return said

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, with other values where `update` has them."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_plain", None)
        return copied


_hold = Message.hold
_ABSENT: dict[str, Any] = dict.fromkeys((*Message.model_fields, *Message.memos)) | {
    "content": "",
    "is_error": False,
}
_COPIED_OR_TEXT = Message.model_fields.keys() - {"reasoning", "order", "details"}
_OPTIONAL = tuple(name for name in Message.model_fields if name not in ("role", "content"))


def to_plain(value: Any) -> Any:
    """`value` with the records inside it as plain dicts and lists."""
    kind = type(value)
    if kind is dict:
        plain = value.copy()
        for key, item in value.items():
            if type(item) not in _SCALARS:
                plain[key] = to_plain(item)
        return plain
    if kind in _SCALARS or value is None:
        return value
    if kind is ToolCall or kind is Message:  # isinstance would ask pydantic's metaclass, which takes a microsecond
        return value.plain
    if kind is list or kind is tuple:
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, Record) else value


def to_message(value: Any) -> Message:
    """A message from a message, a mapping, an object with `role` and `content`, or text (which is the user's).

    A field that is null counts as absent, and calls may have OpenAI's shape. Raises InvalidArguments for anything else.
    """
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return Message(role="user", content=value)
    if not (isinstance(value, Mapping) or is_message_object(value)):
        raise InvalidArguments(f"A message is text, or a mapping with role and content, not {value!r:.200}.")
    given = {name: field for name, field in _fields_of(value).items() if field is not None}
    if isinstance(given.get("tool_calls"), (list, tuple)):
        given["tool_calls"] = [_read_call(call) for call in given["tool_calls"]]
    if isinstance(given.get("content"), (list, tuple)):
        given["content"] = [_fields_of(block) if hasattr(block, "type") else block for block in given["content"]]
    try:
        return Message.model_validate(to_plain(given))  # a copy: a later change of the dict does not reach the run
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'][:1]))}: {fault['msg']}" for fault in error.errors(include_url=False)
        )
        raise InvalidArguments(
            f"A message is text, or a mapping with role and content, not {value!r:.200}. {faults}."
        ) from error


def is_message_object(value: Any) -> bool:
    """Whether this is a message of another library: an object with `role` and `content`, no mapping and no class."""
    if isinstance(value, (str, Mapping, type)):
        return False
    return isinstance(getattr(value, "role", None), str) and hasattr(value, "content")


def plain_message(value: Any) -> Any:
    """A message object as plain data; any other value as it is."""
    return to_message(value).plain if is_message_object(value) else value


def _fields_of(value: Any) -> dict[str, Any]:
    """What a mapping or an object says, by name."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "__dict__"):
        return {name: field for name, field in vars(value).items() if not name.startswith("_")}
    return {name: getattr(value, name) for name in Message.model_fields if hasattr(value, name)}


def _read_call(call: Any) -> Any:
    """A call of an assistant's message in agentnb's shape; OpenAI's nests name and arguments, as JSON text."""
    if isinstance(call, ToolCall):
        return call
    given = _fields_of(call)
    if "function" in given:
        given = {"id": given.get("id"), **_fields_of(given["function"])}
    elif given.get("type") in ("function", "tool_call"):
        del given["type"]
    if not isinstance(given.get("arguments"), dict):
        given["arguments"], malformed = parse_arguments(given.get("arguments"))
        if malformed is not None:
            given["malformed"] = malformed
    return {name: field for name, field in given.items() if field is not None}


def to_said(value: Any) -> Message:
    """A message that somebody says. Raises UsageError for a call, or the result of one, which nobody else can make."""
    message = to_message(value)
    if message.role == "tool" or message.tool_calls:
        raise UsageError("A tool call and its result come from a model and a tool; nobody else can say them.")
    return message


def to_messages(value: Any) -> list[Message]:
    """What a run is given as its input, as messages: None, text, a message, or a sequence of these."""
    if value is None:
        return []
    if isinstance(value, (str, Mapping, Message)) or is_message_object(value):
        return [to_message(value)]
    if isinstance(value, Sequence):
        return [to_message(item) for item in value]
    return [Message(role="user", content=str(value))]


def input_messages(input: Any) -> list[Message]:
    """A run's input, as it is recorded, as messages; an object or a list that holds none is said as JSON text."""
    items = input if isinstance(input, list) else [input] if isinstance(input, dict) else []
    if all(isinstance(item, str) or (isinstance(item, dict) and item.keys() & {"role", "content"}) for item in items):
        return to_messages(input)
    return [Message(role="user", content=to_json(input).decode())]


def text_of(content: Content) -> str:
    """The text in `content`, blocks of other types left out."""
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text", "")) for block in content if block.get("type", "text") == "text")


def is_broken_off(message: Mapping[str, Any] | Message) -> bool:
    """Whether it is an answer that failed or was aborted: no model is sent it."""
    return message.get("role") == "assistant" and message.get("stop_reason") in ("error", "aborted")


def without_broken_off(messages: Iterable[Message]) -> Iterator[tuple[int, Message]]:
    """The messages that a model may be sent, each with its position: no answer that broke off, and no result of it."""
    skips = False
    for position, message in enumerate(messages):
        if message.role != "tool":  # the results of an answer follow it
            skips = is_broken_off(message)
        if not skips:
            yield position, message


def parts_in_order(message: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the parts of an answer in the order they came, each with what it is.

    `text` parts have their `text`, `reasoning` parts their `reasoning`, `call` parts their `call`; blocks and citations
    are as in `order`. None where the message has no order of its own, or was changed since, so that it no longer fits.
    """
    order, text = message.get("order"), message.get("content")
    thoughts, calls = list(message.get("reasoning") or ()), list(message.get("tool_calls") or ())
    if not order or not isinstance(text, str):
        return None
    kinds = [part["type"] for part in order]
    if (kinds.count("reasoning"), kinds.count("call")) != (len(thoughts), len(calls)):
        return None
    if sum(part["length"] for part in order if part["type"] == "text") != len(text):
        return None
    parts: list[dict[str, Any]] = []
    begin, thought, call = 0, iter(thoughts), iter(calls)
    for part in order:
        if part["type"] == "text":
            end = begin + part["length"]
            parts.append({**part, "text": text[begin:end]})
            begin = end
        elif part["type"] == "reasoning":
            parts.append({**part, "reasoning": next(thought)})
        elif part["type"] == "call":
            parts.append({**part, "call": next(call)})
        else:
            parts.append(part)
    return parts
