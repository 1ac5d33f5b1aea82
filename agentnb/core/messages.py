"""Messages: the data that a model is sent and its answers, in one format everywhere.

A message has a `role` (`system`, `user`, `assistant`, `tool`, or a role of your own), `content` (text, or a list of
blocks that each have a `type`), and, if they apply, `tool_calls`, `tool_call_id`, `is_error`. It is a dict that cannot
be changed, in the format that a model is sent and that is written as JSON: `message["role"]`, `dict(message)`,
`json.dumps(message)` and `message == {"role": "user", "content": "hi"}` need no conversion. Its fields can also be read
as attributes: `message.role`; reading a field that the message does not have returns its default.

The lists and dicts inside a message can be changed, so code that passes messages to other code passes copies
(`to_plain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel
from pydantic_core import core_schema, to_json

from agentnb.core.blocks import attached_blocks
from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.frozen import FrozenDict
from agentnb.core.json import parse_arguments, to_plain

Content = str | list[dict[str, Any]]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""The roles that a provider knows. Messages of other roles are not sent to a model."""


class _Fields(FrozenDict):
    """A frozen dict of checked fields."""

    __slots__ = ()
    required: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return an instance with these fields. Raises InvalidArguments if one is missing, unknown or of a wrong type.

        An instance of this class is returned as it is.
        """
        if isinstance(fields, cls):
            return fields
        try:
            return cls(**fields)
        except TypeError as error:
            missing = [name for name in cls.required if name not in fields]
            fault = f"{missing[0]}: Field required" if missing else str(error).replace(".__init__()", "")
            raise InvalidArguments(f"{fault}.") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain dicts and lists: a copy, which can be changed."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @property
    def plain(self) -> dict[str, Any]:
        """The fields as plain dicts and lists, as `to_dict()` returns them."""
        return self.to_dict()

    def to_json(self) -> str:
        """Return the fields as JSON text."""
        return to_json(self).decode()

    @classmethod
    def model_validate(cls, fields: Mapping[str, Any]) -> Self:
        """Return an instance with these fields, as `of` does."""
        return cls.of(fields)

    def model_dump(self, *, mode: str = "json") -> dict[str, Any]:
        """Return the fields as plain dicts and lists, as `to_dict` does."""
        return self.to_dict()

    def model_dump_json(self) -> str:
        """Return the fields as JSON text, as `to_json` does."""
        return self.to_json()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the fields in `update` replaced.

        deep: copy the lists and dicts inside it too.
        """
        return type(self)(**{**(to_plain(self) if deep else self), **(update or {})})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.of)  # so that it can be a field of a pydantic model

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.items() if value or name not in ("content", "arguments"))
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (dict(self),)


class ToolCall(_Fields):
    """A call that a model requests: `id`, the tool's `name`, its `arguments`.

    `malformed` is the text of the arguments if it was not a JSON object; `arguments` is empty then. Raises
    InvalidArguments for a field of a wrong type.
    """

    __slots__ = ()
    required = ("id", "name")

    def __init__(
        self, *, id: str, name: str, arguments: dict[str, Any] | None = None, malformed: str | None = None
    ) -> None:
        if arguments is None:
            arguments = {}
        if not isinstance(id, str):
            raise _wrong_type("id", id, str)
        if not isinstance(name, str):
            raise _wrong_type("name", name, str)
        if not isinstance(arguments, dict):
            raise _wrong_type("arguments", arguments, dict)
        if malformed is None:
            super().__init__(id=id, name=name, arguments=arguments)
        elif not isinstance(malformed, str):
            raise _wrong_type("malformed", malformed, str)
        else:
            super().__init__(id=id, name=name, arguments=arguments, malformed=malformed)

    def __missing__(self, name: str) -> None:
        """Return None for `malformed` of a well-formed call."""
        if name != "malformed":
            raise KeyError(name)

    @property
    def id(self) -> str:
        """The id by which its result refers to it."""
        id: str = self["id"]
        return id

    @property
    def name(self) -> str:
        """The name of its tool."""
        name: str = self["name"]
        return name

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its tool."""
        arguments: dict[str, Any] = self["arguments"]
        return arguments

    @property
    def malformed(self) -> str | None:
        """The text of the arguments if it was not a JSON object, or None."""
        return self.get("malformed")


class Message(_Fields):
    """One message of a conversation. Unknown fields are kept. Raises InvalidArguments for a field of a wrong type.

    `order` has the parts of a model's answer in the order of their arrival, if that is not reasoning, text and calls:
    `{"type": "reasoning"}` is the next block of `reasoning`, `{"type": "call"}` the next of `tool_calls`, `{"type":
    "text", "length": n}` the next n characters of `content`, with their `citations` and the `server` of these, and
    `{"type": "block", "server": ..., "block": ...}` a block that only that server can read. A text or a call may have
    an `item`: the rest of the item that its `server` wants to be sent again. `details` of an answer has the other data
    that came with it: `logprobs`, `annotations`.

    Only `role` and `content` are always present: a field of `OPTIONAL` that is None, False or an empty list is left
    out.
    """

    __slots__ = ()
    required = ("role",)

    def __init__(self, /, role: str, content: Content = "", **optional: Any) -> None:
        if not isinstance(role, str):
            raise _wrong_type("role", role, str)
        if not isinstance(content, str):
            content = _list_of_dicts("content", content)
        present: dict[str, Any] = {"role": role, "content": content}
        for name, value in optional.items():
            kind = OPTIONAL.get(name)
            if kind is None:
                present[name] = value
            elif value is None or value is False or (kind is list and not value):
                continue
            elif kind is list:
                present[name] = _calls_of(value) if name == "tool_calls" else _list_of_dicts(name, value)
            elif not isinstance(value, kind):
                raise _wrong_type(name, value, kind)
            else:
                present[name] = value
        super().__init__(present)

    def __missing__(self, name: str) -> Any:
        """Return the default of a field that the message does not have."""
        if name not in OPTIONAL:
            raise KeyError(name)
        return {list: [], bool: False}.get(OPTIONAL[name])

    @property
    def role(self) -> str:
        """The role of the message's author."""
        role: str = self["role"]
        return role

    @property
    def content(self) -> Content:
        """The content: text, or blocks."""
        content: Content = self["content"]
        return content

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of an answer."""
        calls: list[ToolCall] = self.get("tool_calls", [])
        return calls

    @property
    def tool_call_id(self) -> str | None:
        """The id of the call that this message is the result of, or None."""
        return self.get("tool_call_id")

    @property
    def is_error(self) -> bool:
        """True if this is the result of a call that failed."""
        return bool(self.get("is_error", False))

    @property
    def name(self) -> str | None:
        """The name of the tool whose result this is, or of the message's author."""
        return self.get("name")

    @property
    def reasoning(self) -> list[dict[str, Any]]:
        """The blocks of reasoning of an answer."""
        blocks: list[dict[str, Any]] = self.get("reasoning", [])
        return blocks

    @property
    def order(self) -> list[dict[str, Any]]:
        """The parts of an answer in the order of their arrival, if that is not the usual one."""
        parts: list[dict[str, Any]] = self.get("order", [])
        return parts

    @property
    def details(self) -> Any:
        """The other data that came with the message."""
        return self.get("details")

    @property
    def stop_reason(self) -> str | None:
        """The reason why an answer ended before it was complete, or None."""
        return self.get("stop_reason")

    @property
    def error_message(self) -> str | None:
        """The error that interrupted an answer, or None."""
        return self.get("error_message")


OPTIONAL: dict[str, type] = {
    "tool_calls": list,
    "tool_call_id": str,
    "is_error": bool,
    "name": str,
    "reasoning": list,
    "order": list,
    "details": object,
    "stop_reason": str,
    "error_message": str,
}
"""The fields of a message besides its role and its content, each with its type. Other fields are the user's own."""

_KINDS: dict[type, str] = {str: "text", bool: "True or False", dict: "a dict"}


def _wrong_type(name: str, value: object, kind: type) -> InvalidArguments:
    return InvalidArguments(f"{name}: must be {_KINDS[kind]}, got {value!r:.80}.")


def _list_of_dicts(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        text = "text or a list of blocks" if name == "content" else "a list"
        raise InvalidArguments(f"{name}: must be {text}, got {value!r:.80}.")
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidArguments(f"{name}[{number}]: must be a dict, got {item!r:.80}.")
    return list(value)


def _calls_of(value: Any) -> list[ToolCall]:
    if not isinstance(value, (list, tuple)):
        raise InvalidArguments(f"tool_calls: must be a list, got {value!r:.80}.")
    read: list[ToolCall] = []
    for call in value:
        if not isinstance(call, dict):
            raise InvalidArguments(f"tool_calls[{len(read)}]: must be a dict, got {call!r:.80}.")
        try:
            read.append(ToolCall.of(call))
        except InvalidArguments as error:
            raise InvalidArguments(f"tool_calls[{len(read)}].{error}") from None
    return read


def to_message(value: Any) -> Message:
    """Return a message from a message, a mapping, an object with `role` and `content`, or text (a user message).

    A null field counts as absent, and calls may have OpenAI's format. Raises InvalidArguments for anything else.
    """
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return Message(role="user", content=value)
    if not (isinstance(value, Mapping) or is_message_object(value)):
        raise InvalidArguments(f"A message is text, or a mapping with role and content, not {value!r:.200}.")
    found = {name: field for name, field in _fields_of(value).items() if field is not None}
    if isinstance(found.get("tool_calls"), (list, tuple)):
        found["tool_calls"] = [_read_call(call) for call in found["tool_calls"]]
    if isinstance(found.get("content"), (list, tuple)):
        found["content"] = [_block_of(block) for block in found["content"]]
    try:
        return Message.of(to_plain(found))  # a copy: a later change of the dict does not reach the run
    except InvalidArguments as error:
        raise InvalidArguments(
            f"A message is text, or a mapping with role and content, not {value!r:.200}. {error}"
        ) from error


def is_message_object(value: Any) -> bool:
    """Return True for a message of another library: an object with `role` and `content`, not a mapping or a class."""
    if isinstance(value, (str, Mapping, type)):
        return False
    return isinstance(getattr(value, "role", None), str) and hasattr(value, "content")


def plain_message(value: Any) -> Any:
    """Return a message object as a message; any other value unchanged."""
    return to_message(value) if is_message_object(value) else value


def _block_of(value: Any) -> Any:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    return _fields_of(value) if hasattr(value, "type") else value


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a mapping or an object, by name."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "__dict__"):
        return {name: field for name, field in vars(value).items() if not name.startswith("_")}
    return {name: getattr(value, name) for name in ("role", "content", *OPTIONAL) if hasattr(value, name)}


def _read_call(call: Any) -> Any:
    """Return a call of an assistant's message in agentnb's format.

    In OpenAI's format, the field `function` has the name and the arguments; the arguments are JSON text.
    """
    if isinstance(call, ToolCall):
        return call
    found = _fields_of(call)
    if "function" in found:
        found = {"id": found.get("id"), **_fields_of(found["function"])}
    elif found.get("type") in ("function", "tool_call"):
        del found["type"]
    if not isinstance(found.get("arguments"), dict):
        found["arguments"], malformed = parse_arguments(found.get("arguments"))
        if malformed is not None:
            found["malformed"] = malformed
    return {name: field for name, field in found.items() if field is not None}


def to_sent_message(value: Any) -> Message:
    """Return a message that a user or code sends to a run. Raises UsageError for a tool call or a tool result."""
    blocks = attached_blocks(value)
    message = to_message({"role": "user", "content": blocks} if blocks is not None else value)
    if message.role == "tool" or message.tool_calls:
        raise UsageError("Tool calls and tool results cannot be sent as user messages. Send their content as text.")
    return message


def to_messages(value: Any) -> list[Message]:
    """Return the input of a run as messages: from None, text, a message, or a sequence of these."""
    if value is None:
        return []
    if isinstance(value, (str, Mapping)) or is_message_object(value):
        return [to_message(value)]
    if isinstance(value, Sequence):
        return [to_message(item) for item in value]
    return [Message(role="user", content=str(value))]


def input_messages(input: Any) -> list[Message]:
    """Return the recorded input of a run as messages.

    A picture, a document or a sound, or a list of these and of texts, becomes one message. Any other object or list
    without messages becomes JSON text.
    """
    if (blocks := attached_blocks(input)) is not None:
        return [Message(role="user", content=blocks)]
    items = input if isinstance(input, list) else [input] if isinstance(input, dict) else []
    if all(isinstance(item, str) or (isinstance(item, dict) and item.keys() & {"role", "content"}) for item in items):
        return to_messages(input)
    return [Message(role="user", content=to_json(input).decode())]


def text_of(content: Content) -> str:
    """Return the text in `content`, without blocks of other types."""
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text", "")) for block in content if block.get("type", "text") == "text")


def is_broken_off(message: Mapping[str, Any]) -> bool:
    """Return True for an answer that failed or was aborted. It is not sent to a model."""
    return message.get("role") == "assistant" and message.get("stop_reason") in ("error", "aborted")


def without_broken_off(messages: Iterable[Message]) -> Iterator[tuple[int, Message]]:
    """Yield the messages that a model may be sent, each with its position.

    Interrupted answers and their results are left out.
    """
    skips = False
    for position, message in enumerate(messages):
        if message.role != "tool":  # the results of an answer follow it
            skips = is_broken_off(message)
        if not skips:
            yield position, message


def parts_in_order(message: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the parts of an answer in the order of their arrival, each with its content.

    `text` parts have their `text`, `reasoning` parts their `reasoning`, `call` parts their `call`; blocks and citations
    are as in `order`. None if the message has no order of its own, or was changed since so that the order no longer
    fits.
    """
    order, text = message.get("order"), message.get("content")
    thoughts, calls = list(message.get("reasoning") or ()), list(message.get("tool_calls") or ())
    if not order or not isinstance(text, str):
        return None
    # Test that the order fits the message: the same numbers of blocks and calls, and the same length of text.
    kinds = [part["type"] for part in order]
    if (kinds.count("reasoning"), kinds.count("call")) != (len(thoughts), len(calls)):
        return None
    if sum(part["length"] for part in order if part["type"] == "text") != len(text):
        return None
    # Add to each part its piece of the text, its reasoning or its call.
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
