"""Tool calls for models that have none: every reply is one JSON object, either a call or the answer.

A small local model often has a chat template without tools: the server ignores the tools silently, or the model writes
a call as prose. Such servers do enforce a schema. So the schemas of the tools and one more alternative, the answer,
become one union that the reply must follow. The system message describes the tools. Calls and results of earlier turns
become plain turns, which any template accepts. One reply holds one call.

    {"tool": "add", "arguments": {"a": 2, "b": 3}}     or     {"answer": "The sum is 5."}

A reply is read as it comes: the text of an answer is streamed while its JSON string is still open. If a server does not
enforce the schema, models put the object into a fence or a tag, with text around it, or use the keys of the calls that
they were trained on. All of these are read as calls, also several in one reply.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import UsageError
from agentnb.json_schema import hoist_definitions
from agentnb.llms.conversion import all_text_of, name_and_arguments
from agentnb.llms.reader import ObjectText, parse_object

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification

_INSTRUCTIONS = """Reply with one JSON object and nothing else.
To call a tool: {"tool": "<name>", "arguments": {...}}
To answer: {"answer": <answer>}
Tools:"""

_MAX_OPENING = 1000
"""The number of characters within which a reply must show what it is. A longer one is read at its end, by `finish`."""
_OBJECT_OPENS = re.compile(
    r'\s*\{\s*(?:"(?:tool|name)"\s*:\s*"(?P<tool>[^"\\]*)"\s*,\s*"(?:arguments|parameters)"|"answer")\s*:\s*(?=\{)'
)
"""The start of a call, or of an answer that is an object, up to the start of that object."""
_ANSWER_OPENS = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_STRING_PART = re.compile(  # text, an escape sequence, or a whole surrogate pair: it can be decoded alone
    r'[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
)

_LONGEST_PART = 12
"""The length of the longest part of a string that cannot be decoded in halves: a surrogate pair in escape sequences."""

_WRAPPING_OPENS = re.compile(r"(?:```(?:json)?|(?P<tag><tool_call>))\s*(?=\{)")
_FENCE_CLOSES = re.compile(r"\}\s*```")
_TAG_CLOSES = re.compile(r"\}\s*</tool_call>")


def choose_tools(tools: Sequence[ToolSpecification], choice: object) -> tuple[list[ToolSpecification], bool]:
    """Apply a `tool_choice`. Return the tools that may be called, and True if an answer is allowed.

    Raises UsageError if the choice names none of the tools.
    """
    match choice:
        case None | "auto":
            return list(tools), True
        case "none":
            return [], True
        case "required" | "any":
            return list(tools), False
        case {"function": {"name": name}} | {"name": name} | str(name):
            chosen = [tool for tool in tools if tool["name"] == name]
            if chosen:
                return chosen, False
        case _:
            pass
    names = ", ".join(str(tool["name"]) for tool in tools) or "none"
    raise UsageError(f"tool_choice {choice!r} does not name one of the tools, which are: {names}")


def union_schema(tools: Sequence[ToolSpecification], answer: Mapping[str, Any] | None = None) -> JsonObject:
    """Return the schema of a reply: a call of one of the tools, or an answer that follows `answer` if it is given."""
    definitions: JsonObject = {}
    alternatives = [
        _closed_object(
            tool={"const": tool["name"]},
            arguments=hoist_definitions(tool.get("parameters") or {"type": "object"}, f"tool{index}_", definitions),
        )
        for index, tool in enumerate(tools)
    ]
    if answer is not None:
        alternatives.append(_closed_object(answer=hoist_definitions(answer, "answer_", definitions)))
    union: JsonObject = {"anyOf": alternatives}
    return union | {"$defs": definitions} if definitions else union


def with_bounded_texts(schema: Any, longest: int) -> Any:
    """Return a schema with `maxLength` for every string that has no limit: a small model may never end a string."""
    if isinstance(schema, list):
        return [with_bounded_texts(part, longest) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    bounded = {name: with_bounded_texts(part, longest) for name, part in schema.items()}
    kinds = schema.get("type")
    is_text = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    if is_text and not {"maxLength", "enum", "const", "format", "pattern"} & schema.keys():
        bounded["maxLength"] = longest
    return bounded


def message_without_tools(message: Message) -> JsonObject:
    """Return a message as a plain turn: a call as the JSON of the reply that made it, a result as text of the user."""
    role, content = message["role"], all_text_of(message.get("content"))
    if role == "tool":
        outcome = "failed" if message.get("is_error") else "returned"
        return {"role": "user", "content": f"The tool {message.get('name') or 'called last'} {outcome}: {content}"}
    role = "system" if role == "developer" else role
    made = map(name_and_arguments, message.get("tool_calls") or ())
    calls = [json.dumps({"tool": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in made]
    return {"role": role, "content": "\n".join([content, *calls] if content else calls)}


def plain_turns(turns: Sequence[JsonObject], tools: Sequence[ToolSpecification]) -> list[JsonObject]:
    """Join adjacent turns of one role, as strict templates require, and describe the tools in a system message."""
    joined: list[JsonObject] = []
    if tools:
        lines = [
            f"- {tool['name']}: {tool.get('description') or ''} Arguments: {json.dumps(tool.get('parameters') or {})}"
            for tool in tools
        ]
        joined.append({"role": "system", "content": "\n".join([_INSTRUCTIONS, *lines])})
    for turn in turns:
        if joined and joined[-1]["role"] == turn["role"]:
            joined[-1] = {"role": turn["role"], "content": f"{joined[-1]['content']}\n\n{turn['content']}"}
        else:
            joined.append(turn)
    return joined


class ReplyReader:
    """Turns the text of one reply into chunks as it comes."""

    def __init__(self, tool_names: Collection[str]) -> None:
        self._tool_names = frozenset(tool_names)
        self._pieces: list[str] = []
        self._rest = ""  # what is not read yet: the opening of the reply, then the rest of the string
        self._is_answer = False
        self._deferred = False  # the rest is read by `finish`
        self._object: ObjectText | None = None  # the arguments of a call, or an answer that is an object
        self._object_shown = 0  # the number of its characters that are in chunks
        self._is_call = False
        self._shown: list[str] = []

    def feed(self, text: str) -> list[Chunk]:
        """Read the next piece of the reply. Return the chunks of what is certain to be a call or an answer."""
        self._pieces.append(text)
        if self._object is not None:
            return self._feed_object(text)
        if self._deferred or (not self._is_answer and len(self._rest) > _MAX_OPENING):
            return []
        self._rest += text

        # Find out what the reply is: an object that is a call's arguments or an answer, or an answer that is a string.
        if not self._is_answer:
            if (opening := _OBJECT_OPENS.match(self._rest)) is not None:
                name, rest = opening["tool"], self._rest[opening.end() :]
                whole = ObjectText()
                whole.add(rest)
                if (name is not None and name not in self._tool_names) or whole.has_closed():
                    self._deferred = True  # not a call of a tool, or a complete object: `finish` decides
                    return []
                self._object, self._is_call = ObjectText(), name is not None
                chunks: list[Chunk] = []
                if name is not None:
                    chunks = [{"type": "tool_call_delta", "index": 0, "id": _new_id(), "name": name, "arguments": ""}]
                return [*chunks, *self._feed_object(rest)]
            opening = _ANSWER_OPENS.match(self._rest)
            if opening is None:
                return []
            self._is_answer, self._rest = True, self._rest[opening.end() :]

        # Decode the string up to an escape sequence that is not complete.
        end = 0
        while part := _STRING_PART.match(self._rest, end):
            end = part.end()
        decodable, self._rest = self._rest[:end], self._rest[end:]
        if self._rest.startswith('"') or len(self._rest) >= _LONGEST_PART:
            self._deferred = True  # the string has ended, or is not valid
        return self._show(json.loads(f'"{decodable}"', strict=False))

    def _feed_object(self, text: str) -> list[Chunk]:
        assert self._object is not None
        before, shown = self._object.size, self._object_shown
        self._object.add(text)
        end = self._object.length if self._object.has_closed() else self._object.size
        if end <= shown:  # this piece comes after the end of the object
            return []
        self._object_shown = end
        piece = text[: end - before]
        if self._is_call:
            return [{"type": "tool_call_delta", "index": 0, "arguments": piece}] if piece else []
        return self._show(piece)

    def finish(self, reason: str) -> list[Chunk]:
        """Return the rest of the chunks: calls, the end of the answer, or the text if it is neither; `stop` last."""
        whole = "".join(self._pieces)
        objects, around = _objects_in(whole)
        calls = [call for reply in objects if (call := self._call(reply)) is not None]
        if self._is_call:
            assert self._object is not None
            others = calls[1:] if len(calls) == len(objects) else []  # the first one is in chunks already
            return [*others, {"type": "stop", "reason": "tool_calls" if self._object.has_closed() else reason}]
        if self._object is not None:
            return [{"type": "stop", "reason": reason}]
        if calls and len(calls) == len(objects):
            return [*self._show(around), *calls, {"type": "stop", "reason": "tool_calls"}]
        reply = objects[0] if len(objects) == 1 else {}
        if "answer" in reply and not around:
            answer = reply["answer"]
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            chunks = self._show(text.removeprefix("".join(self._shown)))
        else:  # truncated, or from a server that does not enforce schemas
            chunks = [] if self._shown else self._show(whole)
        return [*chunks, {"type": "stop", "reason": reason}]

    def _call(self, reply: JsonObject) -> Chunk | None:
        function = reply.get("function")
        named = function if isinstance(function, dict) else reply
        name = named.get("tool", named.get("name"))
        arguments = named.get("arguments", named.get("parameters"))
        if isinstance(arguments, str):
            arguments = parse_object(arguments)
        if not (isinstance(name, str) and name in self._tool_names and isinstance(arguments, dict)):
            return None
        return {"type": "tool_call", "id": _new_id(), "name": name, "arguments": arguments}

    def _show(self, text: str) -> list[Chunk]:
        if not text:
            return []
        self._shown.append(text)
        return [{"type": "text_delta", "content": text}]


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex}"


def _objects_in(reply: str) -> tuple[list[JsonObject], str]:
    """Return the JSON objects in a reply, and the text around them.

    They are the whole reply, or one in each line (as calls of earlier turns are shown to the model), or in fences and
    tags.
    """
    for pieces in ([reply], reply.split("\n")):
        texts = [piece for piece in pieces if piece.strip()]
        parsed = [found for text in texts if (found := parse_object(text)) is not None]
        if parsed and len(parsed) == len(texts):
            return parsed, ""

    # A fence ends at the last fence of the reply, because its text may contain fences. A tag ends at the next end tag.
    wrapped, around, at = [], [], 0
    fence_end = next(reversed(list(_FENCE_CLOSES.finditer(reply))), None)
    tag_ends = _TAG_CLOSES.finditer(reply)
    tag_end = next(tag_ends, None)
    for opening in _WRAPPING_OPENS.finditer(reply):
        while tag_end is not None and tag_end.start() < opening.end():
            tag_end = next(tag_ends, None)
        end = tag_end if opening["tag"] else fence_end
        if opening.start() < at or end is None or end.start() < opening.end():
            continue
        wrapped.append(parse_object(reply[opening.end() : end.start() + 1]) or {})
        around.append(reply[at : opening.start()])
        at = end.end()
    around.append(reply[at:])
    return wrapped, "\n".join(filter(None, map(str.strip, around)))


def _closed_object(**properties: Any) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
