"""Conversion: messages, tools and schemas in the form that providers accept; what both dialects share.

A run sends the whole history with each request. If each request converted all messages, the cost of a run would be
quadratic in its length; so each message is converted once, and the result is kept.
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from agentnb.core.errors import UsageError

if TYPE_CHECKING:
    from agentnb.llms.protocol import JsonObject, Message, ToolSpecification

MIN_KEPT = 4096
KEPT_PER_HISTORY = 4
"""The cache keeps `MIN_KEPT` conversions, or this many times the length of the history if that is more, so that several
runs can share one model."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""The roles that providers know. Messages of other roles belong to the loop, and are not sent."""

T = TypeVar("T")


class MessageCache(Generic[T]):
    """Converts each message object once.

    Messages are not hashable and are not compared by content: the key is the identity of the object. The cache also
    keeps the message, so that its identity is not reused while the entry exists.

    convert: converts one message. Callers must not change its results.
    """

    def __init__(self, convert: Callable[[Message], T]) -> None:
        self._convert = convert
        self._kept: OrderedDict[int, tuple[Message, T]] = OrderedDict()
        self._lock = threading.Lock()

    def convert(self, messages: Sequence[Message]) -> list[T]:
        """Return the conversion of each message, in order."""
        with self._lock:
            converted: list[T] = []
            for message in messages:
                kept = self._kept.get(id(message))
                if kept is not None and kept[0] is message:
                    self._kept.move_to_end(id(message))
                else:
                    kept = self._kept[id(message)] = (message, self._convert(message))
                converted.append(kept[1])
            while len(self._kept) > max(MIN_KEPT, KEPT_PER_HISTORY * len(messages)):
                self._kept.popitem(last=False)
        return converted

    def number_known(self, messages: Sequence[Message]) -> int:
        """Return the number of messages at the start that were converted before."""
        with self._lock:
            for number, message in enumerate(messages):
                if (kept := self._kept.get(id(message))) is None or kept[0] is not message:
                    return number
            return len(messages)

    def __reduce__(self) -> tuple[type[MessageCache[T]], tuple[Callable[[Message], T]]]:
        return MessageCache, (self._convert,)  # in another process, no message is the same object


def safe_name(name: str) -> str:
    """Return a tool's name in the characters that providers allow. The name may be one that a model has invented."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


def short_id(call_id: str, length: int | None) -> str:
    """Return the id of a call in at most `length` characters, None for no limit. Different ids stay different."""
    if length is None or len(call_id) <= length:
        return call_id
    return f"{call_id[: length - 9]}_{zlib.crc32(call_id.encode()):08x}"


def name_and_arguments(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and the arguments of a call.

    A call that the user's `convert_to_llm` returns may have OpenAI's form, with both in a field `function`.
    """
    function = call.get("function", call)
    return function["name"], function["arguments"]


class Picture(NamedTuple):
    """A picture in a message: its data in base64 with the media type, or its address."""

    media_type: str
    data: str
    url: str

    @property
    def address(self) -> str:
        """The address of the picture. It is a `data:` URL if the picture is given by its data."""
        return self.url or f"data:{self.media_type};base64,{self.data}"

    @property
    def label(self) -> str:
        """The kind of the picture and its size, or its address."""
        return f"image: {_size(self.media_type, self.data, self.url)}"

    @property
    def placeholder(self) -> str:
        """The text in place of the picture, for a model that accepts no pictures."""
        return f"[{self.label}; not sent, because this model is asked without images]"


def picture(block: Any) -> Picture | None:
    """Return the picture in a block in the form of either provider or of MCP; None if the block is not a picture."""
    match block:
        case {"type": "image", "source": {"type": "base64", "data": str(data), **source}}:
            return Picture(str(source.get("media_type") or "image/png"), data, "")
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return Picture("", "", url)
        case {"type": "image", "data": str(data)}:
            kind = block.get("mimeType") or block.get("mime_type") or block.get("media_type")
            return Picture(str(kind or "image/png"), data, "")
        case {"type": "image_url" | "input_image", "image_url": str(url) | {"url": str(url)}}:
            given = re.fullmatch(r"data:([\w.+/-]+)(?:;[^,]*)?;base64,(.*)", url, re.DOTALL)
            return Picture(given[1], given[2], "") if given else Picture("", "", url)
        case _:
            return None


class Attachment(NamedTuple):
    """A document or a sound in a message: its data in base64 with the media type, or its address."""

    kind: str
    media_type: str
    data: str
    url: str
    name: str = ""

    @property
    def address(self) -> str:
        """The address of the data. It is a `data:` URL if it is given by its data."""
        return self.url or f"data:{self.media_type};base64,{self.data}"

    @property
    def label(self) -> str:
        """The kind of the data and its size, or its address."""
        return f"{self.kind}: {_size(self.media_type, self.data, self.url)}"

    def placeholder(self, why: str) -> str:
        """Return the text in place of the data. why: the reason for which it was left out."""
        return f"[{self.label}; not sent, because {why}]"


def _size(media_type: str, data: str, url: str) -> str:
    return f"{media_type}, {len(data) * 3 // 4:,} bytes" if data else f"{url:.200}"


def attachment(block: Any) -> Attachment | None:
    """Return the document or the sound in a block, in the form of any provider; None if the block has none."""
    match block:
        case {"type": "document" | "audio" as kind, "source": {"type": "base64", "data": str(data), **source}}:
            name = str(block.get("title") or "")
            return Attachment(kind, str(source.get("media_type") or "application/pdf"), data, "", name)
        case {"type": "document", "source": {"type": "url", "url": str(url)}}:
            return Attachment("document", "", "", url, str(block.get("title") or ""))
        case {"type": "file", "file": {"file_data": str(url), **rest}} | {
            "type": "input_file",
            "file_data": str(url),
            **rest,
        }:
            given = re.fullmatch(r"data:([\w.+/-]+)(?:;[^,]*)?;base64,(.*)", url, re.DOTALL)
            return Attachment("document", given[1], given[2], "", str(rest.get("filename") or "")) if given else None
        case {"type": "input_file", "file_url": str(url)}:
            return Attachment("document", "", "", url)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            return Attachment("audio", f"audio/{form}", data, "")
        case _:
            return None


def part_in_words(block: Any) -> str | None:
    """Return a block that is a picture, a document or a sound in words, for people; None for another value."""
    if not isinstance(block, Mapping):
        return None
    if (shown := picture(block)) is not None:
        return f"[{shown.label}]"
    return f"[{file.label}]" if (file := attachment(block)) is not None else None


def all_text_of(content: object) -> str:
    """Return content as text: the text of the blocks, and the type of each block that has none."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return json.dumps(content, ensure_ascii=False, default=str)
    return "\n".join(_block_text(block) for block in content)


def _block_text(block: Any) -> str:
    if (found := picture(block)) is not None:
        return found.placeholder
    if (left_out := attachment(block)) is not None:
        return left_out.placeholder("only text can be sent here")
    match block:
        case {"type": "document", "source": {"type": "text", "data": str(data)}}:
            return data
        case {"type": "search_result", "content": list(parts)}:
            return "\n".join([str(block.get("title") or ""), *map(_block_text, parts)]).strip()
        case _:
            pass
    if isinstance(block, Mapping):
        return str(block["text"]) if "text" in block else f"[{block.get('type', 'content')}]"
    return str(block)


# Tools and schemas.

_FIELDS = ("name", "description", "parameters", "strict", "cache_control", "defer_loading")


def as_specification(tool: Any) -> ToolSpecification:
    """Return a tool as `protocol` describes it.

    tool: an object with the attributes of a tool, or a mapping in the form of `protocol` or of a provider.

    Raises UsageError if it is not a tool.
    """
    if isinstance(tool, Mapping):
        known = tool
    else:
        given = {name: getattr(tool, name, None) for name in _FIELDS}
        known = {name: value for name, value in given.items() if value is not None and not callable(value)}
    specification = known.get("function", known)
    if isinstance(tool, Mapping) and is_provider_tool(tool):
        return tool
    if not isinstance(specification, Mapping) or not isinstance(specification.get("name"), str):
        raise UsageError(
            f"A tool must have a name, and may have a description and parameters. This is not a tool: {tool!r:.200}."
        )
    if specification is not known:  # OpenAI's form, with fields of gateways next to it
        specification = {
            **specification,
            **{name: known[name] for name in ("cache_control", "defer_loading") if name in known},
        }
    schema = specification.get("input_schema")
    return specification if schema is None else {**specification, "parameters": schema}


def is_provider_tool(tool: ToolSpecification) -> bool:
    """Return True if a tool runs at the provider. Such a tool has a type of its own, for example a web search."""
    return tool.get("type") not in (None, "function", "custom") and "parameters" not in tool


def name_and_description(tool: ToolSpecification) -> JsonObject:
    """Return a tool's name and description, without an empty description, which Bedrock rejects."""
    name = {"name": tool["name"]}
    return name | {"description": tool["description"]} if tool.get("description") else name


def provider_schema(tool: ToolSpecification) -> JsonObject:
    """Return the schema of a tool's arguments as providers accept it: an object without alternatives at the top level.

    OpenAI and Anthropic reject `anyOf`, `oneOf` and `allOf` there. The object has the properties of all alternatives,
    and requires those that every alternative requires. The tool itself still checks the arguments by its own schema.
    """
    schema = dict(tool.get("parameters") or {})
    if _COMBINED & schema.keys():
        schema = _flattened(schema, schema, ())
    return {"type": "object", "properties": {}} | schema | {"type": "object"}


_COMBINED = frozenset({"anyOf", "oneOf", "allOf", "$ref", "not", "enum", "const", "if", "then", "else"})


def _flattened(schema: Mapping[str, Any], root: Mapping[str, Any], above: tuple[str, ...]) -> JsonObject:
    """Return a schema with the properties of all its alternatives. `above` are the references that led to it."""
    flat = {name: value for name, value in schema.items() if name not in _COMBINED}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in above:
        found = _found(reference, root)
        flat = _merged(flat, [_flattened(found, root, (*above, reference))], all_hold=True)
    for name in ("allOf", "anyOf", "oneOf"):
        parts = [part for part in schema.get(name) or () if isinstance(part, Mapping) and part.get("type") != "null"]
        flat = _merged(flat, [_flattened(part, root, above) for part in parts], all_hold=name == "allOf")
    return flat


def _merged(flat: JsonObject, parts: Sequence[JsonObject], *, all_hold: bool) -> JsonObject:
    """Return an object schema with the properties of `parts`, of which all hold (`all_hold`) or only one."""
    if not parts:
        return flat
    properties = dict(flat.get("properties") or {})
    for part in parts:
        for name, schema in (part.get("properties") or {}).items():
            there = properties.setdefault(name, schema)
            if there != schema:
                known = there["anyOf"] if isinstance(there, Mapping) and list(there) == ["anyOf"] else [there]
                properties[name] = {"anyOf": known if schema in known else [*known, schema]}
    required = [set(part.get("required") or ()) for part in parts]
    needed = set(flat.get("required") or ()) | (set.union(*required) if all_hold else set.intersection(*required))
    merged = {name: value for name, value in flat.items() if name != "required"} | {"properties": properties}
    if any(part.get("additionalProperties", True) is not False for part in parts) and not all_hold:
        merged.pop("additionalProperties", None)
    if needed:
        merged["required"] = [name for name in properties if name in needed]
    for part in parts:
        for name in ("$defs", "definitions"):
            if name in part:
                merged[name] = {**part[name], **merged.get(name, {})}
        if part.get("description") and "description" not in merged and len(parts) == 1:
            merged["description"] = part["description"]
    return merged


def _found(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of the schema that a reference points to, {} if there is none."""
    found: Any = root
    for name in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#") else ["?"]:
        key = name.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if key and isinstance(found, Mapping) else found if not key else None
    return found if isinstance(found, Mapping) else {}


def close_objects(schema: Any) -> Any:
    """Return the schema with `additionalProperties: false` in every object that does not set it.

    Anthropic rejects a schema for structured output without it.
    """
    if isinstance(schema, list):
        return [close_objects(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: close_objects(part) for name, part in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def strict_schema(schema: Any) -> Any:
    """Return a schema that OpenAI can enforce: every object is closed and requires all its properties."""
    if isinstance(schema, list):
        return [strict_schema(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {
        name: {key: strict_schema(one) for key, one in part.items()}
        if name in ("properties", "$defs", "definitions") and isinstance(part, Mapping)
        else strict_schema(part)
        for name, part in schema.items()
        if name != "default"
    }
    if schema.get("type") == "object":
        made |= {"additionalProperties": False, "required": list(made.setdefault("properties", {}))}
    return made


_CHOICES = frozenset({"auto", "none", "required", "any", "validated"})
"""The words that `tool_choice` may be. Servers that are not OpenAI's have further ones."""


def named_tool(choice: Any) -> str | None:
    """Return the name that a `tool_choice` has, as a name or in the form of one of the APIs; else None."""
    match choice:
        case str(name) if name not in _CHOICES:
            return name
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function" | "tool", "name": str(name)}:
            return name
        case _:
            return None


def chosen_tool(choice: Any, tools: Sequence[ToolSpecification]) -> str | None:
    """Return the name of the tool that a `tool_choice` demands, or None.

    Raises UsageError for a name that no tool has: some servers would ignore it.
    """
    if isinstance(choice, str) and any(tool.get("name") == choice for tool in tools):  # also one that is called `auto`
        return choice
    name = named_tool(choice)
    if isinstance(choice, str) and name is not None:
        known = ", ".join(str(tool.get("name") or tool.get("type")) for tool in tools) or "none"
        raise UsageError(
            f'tool_choice={name!r} is neither "auto", "none", "required" nor a tool of this request, whose tools'
            f" are: {known}."
        )
    return name


_NOT_IN_STRICT_MODE = frozenset(
    {
        *("allOf", "contains", "default", "dependentRequired", "dependentSchemas", "else", "if", "maxContains"),
        *("maxLength", "maxProperties", "minContains", "minLength", "minProperties", "not", "oneOf"),
        *("patternProperties", "prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
        "uniqueItems",
    }
)
"""Keywords of a schema that OpenAI does not enforce, and rejects if it is asked to."""
_OF_NAMES = frozenset({"properties", "$defs", "definitions"})
"""Keywords whose value has schemas by names, which may be those of keywords."""
_OF_DATA = frozenset({"const", "enum", "examples"})


def is_strict(schema: Any) -> bool:
    """Return True if OpenAI can enforce the schema: every object is closed and requires all its properties."""
    if isinstance(schema, list):
        return all(is_strict(part) for part in schema)
    if not isinstance(schema, Mapping):
        return True
    if not _NOT_IN_STRICT_MODE.isdisjoint(schema):
        return False
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
    parts = [
        list(part.values()) if name in _OF_NAMES and isinstance(part, Mapping) else part
        for name, part in schema.items()
        if name not in _OF_DATA
    ]
    return is_strict(parts)
