"""Tool calls for models that have none: every reply is one JSON object, either a call or the answer.

A small local model is often served with a chat template that knows nothing of tools: the server drops them without
a word, or the model writes a call as prose. What such servers do enforce is a schema. So the tools' schemas and one
more alternative, the answer, become a single union that the reply must follow; the tools are told in the system
message; calls and results of earlier turns are told as plain turns, which any template accepts. One reply holds one
call.

    {"tool": "add", "arguments": {"a": 2, "b": 3}}     or     {"answer": "The sum is 5."}

A reply is read as it comes: the text of an answer streams on while its JSON string is still open. Where a server does
not enforce the schema, models put the object into a fence or a tag, with words around it, or use the words of the calls
that they were trained on: that is a call too, and so are several one after the other.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import UsageError
from agentnb.core.schemas import hoist_definitions
from agentnb.llms.conversion import all_text_of, name_and_arguments
from agentnb.llms.reader import ObjectText, parse_object

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification

_INSTRUCTIONS = """Reply with one JSON object and nothing else.
To call a tool: {"tool": "<name>", "arguments": {...}}
To answer: {"answer": <answer>}
Tools:"""

_BEGINNING = 1000
"""Characters within which a reply that is an answer says so."""
_OBJECT_OPENS = re.compile(
    r'\s*\{\s*(?:"(?:tool|name)"\s*:\s*"(?P<tool>[^"\\]*)"\s*,\s*"(?:arguments|parameters)"|"answer")\s*:\s*(?=\{)'
)
"""A call, or an answer that is an object, up to where that object begins."""
_ANSWER_OPENS = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_STRING_PART = re.compile(  # what can be decoded without knowing what follows: text, an escape, a whole surrogate pair
    r'[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
)

_LONGEST_PART = 12
"""Characters of the longest part of a string that cannot be decoded by halves: a surrogate pair in escapes."""

_WRAPPING_OPENS = re.compile(r"(?:```(?:json)?|(?P<tag><tool_call>))\s*(?=\{)")
_FENCE_CLOSES = re.compile(r"\}\s*```")
_TAG_CLOSES = re.compile(r"\}\s*</tool_call>")


def choose_tools(tools: Sequence[ToolSpecification], choice: object) -> tuple[list[ToolSpecification], bool]:
    """Apply a `tool_choice`: give the tools that may be called, and whether an answer may be given instead."""
    match choice:
        case None | "auto":
            return list(tools), True
        case "none":
            return [], True
        case "required" | "any":
            return list(tools), False
        case {"function": {"name": name}} | {"name": name}:
            chosen = [tool for tool in tools if tool["name"] == name]
            if chosen:
                return chosen, False
        case _:
            pass
    raise UsageError(f"tool_choice {choice!r} does not name one of the tools")


def union_schema(tools: Sequence[ToolSpecification], answer: Mapping[str, Any] | None = None) -> JsonObject:
    """Make the schema of a reply: a call of one of the tools, or an answer that follows `answer` if given."""
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
    """Give a schema with `maxLength` on every text that nothing bounds: a small model may never close a text."""
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


def plain_message(message: Message) -> JsonObject:
    """Rewrite a message as a plain turn: a call as the JSON it was made with, a result as something the user says."""
    role, content = message["role"], all_text_of(message.get("content"))
    if role == "tool":
        outcome = "failed" if message.get("is_error") else "returned"
        return {"role": "user", "content": f"The tool {message.get('name') or 'called last'} {outcome}: {content}"}
    role = "system" if role == "developer" else role
    asked = map(name_and_arguments, message.get("tool_calls") or ())
    calls = [json.dumps({"tool": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in asked]
    return {"role": role, "content": "\n".join([content, *calls] if content else calls)}


def plain_turns(turns: Sequence[JsonObject], tools: Sequence[ToolSpecification]) -> list[JsonObject]:
    """Join neighbours of one role, as strict templates need, and tell the tools in the system message."""
    joined: list[JsonObject] = []
    if tools:
        joined.append({"role": "system", "content": _describe(tools)})
    for turn in turns:
        if joined and joined[-1]["role"] == turn["role"]:
            joined[-1] = {"role": turn["role"], "content": f"{joined[-1]['content']}\n\n{turn['content']}"}
        else:
            joined.append(turn)
    return joined


class ReplyReader:
    """Turns the text of one reply into chunks, as it comes."""

    def __init__(self, tool_names: Collection[str]) -> None:
        self._tool_names = frozenset(tool_names)
        self._pieces: list[str] = []
        self._rest = ""  # what is not read yet: the answer's beginning, and then its open string from where it goes on
        self._is_answer = self._waits = False
        self._object: ObjectText | None = None  # the arguments of a call, or an answer that is an object
        self._object_shown = 0  # characters of it that have been given
        self._is_call = False
        self._shown: list[str] = []

    def feed(self, text: str) -> list[Chunk]:
        """Take the next piece; give what of a call or an answer can be shown by now."""
        self._pieces.append(text)
        if self._object is not None:
            return self._feed_object(text)
        if self._waits or (not self._is_answer and len(self._rest) > _BEGINNING):
            return []
        self._rest += text
        read = 0
        if not self._is_answer:
            if (opening := _OBJECT_OPENS.match(self._rest)) is not None:
                return self._open_object(opening)
            opening = _ANSWER_OPENS.match(self._rest)
            if opening is None:
                return []
            self._is_answer, self._rest = True, self._rest[opening.end() :]
        while part := _STRING_PART.match(self._rest, read):
            read = part.end()
        said, self._rest = self._rest[:read], self._rest[read:]
        if self._rest.startswith('"') or len(self._rest) >= _LONGEST_PART:
            self._waits = True  # the string has ended, or cannot be read any further
        return self._show(json.loads(f'"{said}"', strict=False))

    def _open_object(self, opening: re.Match[str]) -> list[Chunk]:
        """Begin a call, or an answer that is an object: it is given as it is written."""
        name = opening["tool"]
        if name is not None and name not in self._tool_names:
            self._waits = True  # no call, as far as anybody can say
            return []
        begun = ObjectText()
        begun.add(self._rest[opening.end() :])
        if begun.has_closed():  # all of it is there
            self._waits = True
            return []
        self._object, self._is_call = ObjectText(), name is not None
        call: list[Chunk] = []
        if name is not None:
            call.append({"type": "tool_call_delta", "index": 0, "id": _new_id(), "name": name, "arguments": ""})
        return [*call, *self._feed_object(self._rest[opening.end() :])]

    def _feed_object(self, text: str) -> list[Chunk]:
        assert self._object is not None
        before, shown = self._object.size, self._object_shown
        self._object.add(text)
        end = self._object.length if self._object.has_closed() else self._object.size
        if end <= shown:  # it has closed, and this is what follows
            return []
        self._object_shown = end
        piece = text[: end - before]
        if self._is_call:
            return [{"type": "tool_call_delta", "index": 0, "arguments": piece}] if piece else []
        return self._show(piece)

    def finish(self, reason: str) -> list[Chunk]:
        """Give the rest, and the reason: a call, the end of the answer, or what was said where it is neither."""
        whole = "".join(self._pieces)
        objects, around = _objects_in(whole)
        calls = [call for said in objects if (call := self._call(said)) is not None]
        if self._is_call:
            assert self._object is not None
            others = calls[1:] if len(calls) == len(objects) else []  # the first has been given
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
        else:  # cut short by its length, or a server that does not enforce schemas
            chunks = [] if self._shown else self._show(whole)
        return [*chunks, {"type": "stop", "reason": reason}]

    def _call(self, said: JsonObject) -> Chunk | None:
        function = said.get("function")
        named = function if isinstance(function, dict) else said
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
    """Give the objects that a reply is or has in it, and the words around them."""
    for pieces in ([reply], reply.split("\n")):  # a line each is how calls of earlier turns are told
        texts = [piece for piece in pieces if piece.strip()]
        said = [found for text in texts if (found := parse_object(text)) is not None]
        if said and len(said) == len(texts):
            return said, ""
    wrapped, around, at = [], [], 0
    fence_closes = next(reversed(list(_FENCE_CLOSES.finditer(reply))), None)  # what is fenced may have fences in it
    tags_close = _TAG_CLOSES.finditer(reply)
    tag_closes = next(tags_close, None)
    for opens in _WRAPPING_OPENS.finditer(reply):
        while tag_closes is not None and tag_closes.start() < opens.end():
            tag_closes = next(tags_close, None)
        closes = tag_closes if opens["tag"] else fence_closes
        if opens.start() < at or closes is None or closes.start() < opens.end():
            continue
        wrapped.append(parse_object(reply[opens.end() : closes.start() + 1]) or {})
        around.append(reply[at : opens.start()])
        at = closes.end()
    around.append(reply[at:])
    return wrapped, "\n".join(filter(None, map(str.strip, around)))


def _describe(tools: Sequence[ToolSpecification]) -> str:
    lines = [
        f"- {tool['name']}: {tool.get('description') or ''} Arguments: {json.dumps(tool.get('parameters') or {})}"
        for tool in tools
    ]
    return "\n".join([_INSTRUCTIONS, *lines])


def _closed_object(**properties: Any) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
