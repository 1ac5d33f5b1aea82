"""What an execution loop tells its model beside the context: how to answer, and with which tools.

Solutions as they stream: a call exists when its own object has closed (SEMANTICS.md, 3. Calls and tools).

The text of an answer goes through an incremental JSON parser (ijson, in C where it can), so that no call is ever made
of part of an object. The parser reads a text or a number that has not ended again with each piece; so it gets one when
it has ended, and reading an answer is linear in its length. What is no Solution is a fault, in words for the model;
the calls that were complete before it stand. A model that makes its calls by the provider's own means is read too:
there text without calls is the output.

A request that is asked again, because its answer broke off or because the process that asked is gone, may be answered
with the same calls as before. Those are taken up and not made a second time, so that nothing runs twice. Nor is
a call that the text makes and the provider's own means repeat, as a recorded model does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from string import ascii_letters, digits
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from agentnb.core.errors import UsageError
from agentnb.core.events import CUT_OFF_REASONS, Delta, ModelEnd
from agentnb.core.messages import Message, ToolCall, text_of
from agentnb.core.readable import parse_arguments, readable
from agentnb.core.reply import Reply
from agentnb.core.schemas import hoist_definitions, misfits, why_none
from agentnb.core.tools import Tool
from agentnb.core.unicode import mended
from agentnb.loops.execution_loop.references import DAGGER
from agentnb.loops.execution_loop.tools import SchemaTool, check_schema, is_detached, schema_faults
from agentnb.loops.execution_loop.writes import METHODS

_REFERENCE = {"type": "string", "pattern": f"^{DAGGER}"}
_BESIDE: dict[str, Any] = {
    "_outputPath": {**_REFERENCE, "description": "Where the result is written; without it the result is dropped."},
    "_outputMethod": {"enum": list(METHODS), "description": "How it is written there; set by default."},
}

REFERENCES = f"""\
A parameter that is as a whole a text like {DAGGER}state.profile or {DAGGER}input.user stands for that data; \
{DAGGER}a || {DAGGER}b is the first that is found, {DAGGER}a && {DAGGER}b needs both. \
`_outputPath` (such as {DAGGER}state.profile) says where a call's result is written. \
Calls start as soon as the data they refer to is there, side by side. \
A text that is to begin with {DAGGER} is written with two."""

JSON = f"""\
Answer with one JSON object and nothing else: {{"calls": [...], "output": ...}}.
`calls` are the calls to run now, each {{"_tool": name, parameter: value, ..., "_outputPath": path}}.
`output` is null until the task is done, and then its result; {{"value": null}} says that the result is null.
{REFERENCES}"""


PLANS = {
    "eager": "The message of kind plan has the calls of your last request: follow them, add to them, or drop them.",
    "lazy": "No call starts before your answer is complete, and none where calls wait for one another in a circle.",
}
"""What the model is told where plans are enabled; a lazy plan is told both."""

DETACHED = "It runs on by itself: its result, if it is written anywhere, is there in a later request."


def instructions(tools: Sequence[Tool], output: Mapping[str, Any] | None) -> str:
    """How to answer in JSON, for models whose provider enforces no schema."""
    words = [JSON]
    if tools:
        words.append("Tools:")
        words += [f"- {tool.name}: {_description(tool)} Parameters: {_json(_tool_schema(tool))}" for tool in tools]
    if output is not None:
        words.append(f"The output follows this JSON schema: {_json(output)}")
    return "\n".join(words)


def _json(value: Any) -> str:
    return to_json(value).decode()


def _description(tool: Tool) -> str:
    return f"{tool.description} {DETACHED}".strip() if is_detached(tool) else tool.description


def solution_schema(tools: Sequence[Tool], output: Mapping[str, Any] | None) -> dict[str, Any]:
    """The JSON schema of a Solution; calls come before the output, so that they are written before it."""
    definitions: dict[str, Any] = {}
    calls = [hoist_definitions(_call_schema(tool), f"{tool.name}_", definitions) for tool in tools]
    wanted = (
        {"anyOf": [hoist_definitions(output, "output_", definitions), {"type": "null"}]} if output is not None else {}
    )
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "calls": {"type": "array", "items": {"anyOf": calls} if calls else {"type": "object"}},
            "output": wanted,
        },
        "required": ["calls", "output"],
    }
    return {**schema, "$defs": definitions} if definitions else schema


def _call_schema(tool: Tool) -> dict[str, Any]:
    schema = _tool_schema(tool)
    properties = {"_tool": {"const": tool.name}, **schema["properties"]}
    required = ["_tool", *schema.get("required", ())]
    return {**schema, "type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _tool_schema(tool: Tool) -> dict[str, Any]:
    """A tool's parameters, each of which may also be a reference, and where its result goes."""
    schema = dict(tool.parameters)
    given = schema.get("properties", {})
    schema["properties"] = {name: {"anyOf": [part, _REFERENCE]} for name, part in given.items()} | _BESIDE
    if isinstance(tool, SchemaTool):
        schema["properties"] |= tool.beside
        for name in tool.constants:
            schema["properties"].pop(name, None)
        if tool.is_latent:
            schema["properties"]["_output"] = tool.output or {}
            if not tool.delegate:
                schema["required"] = [*schema.get("required", ()), "_output"]
    return schema


def native_specifications(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as a provider is told of them."""
    return [
        {"name": tool.name, "description": _description(tool), "parameters": {"type": "object", **_tool_schema(tool)}}
        for tool in tools
    ]


class OutputCheck:
    """What a loop's output must be: nothing in particular, a JSON schema, or a type that pydantic knows."""

    def __init__(self, output: Any) -> None:
        self.schema: dict[str, Any] | None = None
        self._adapter: TypeAdapter[Any] | None = None
        try:
            if isinstance(output, Mapping):
                self.schema = dict(output)
                check_schema(self.schema)
            elif output is not None:
                self._adapter = TypeAdapter(output)
                self.schema = self._adapter.json_schema()
        except Exception as error:  # pydantic raises several kinds for a type it has no schema for
            raise UsageError(f"output= takes a JSON schema, or a type that has one: {why_none(error)}.") from None

    def read(self, value: Any) -> tuple[Any, str | None]:
        """The output as it is kept, and what is wrong with it."""
        if self._adapter is not None:
            try:
                return self._adapter.dump_python(self._adapter.validate_python(value), mode="json"), None
            except ValidationError as error:
                return None, f"Invalid output: {misfits(error, 'output')}."
            except ValueError as error:  # a validator's own, where the output is written
                return None, f"Invalid output: {error}"
        if self.schema is not None and (faults := list(schema_faults(self.schema, value))):
            return None, f"Invalid output: {'; '.join(faults)}."
        return value, None


_KNOWN = frozenset({"calls", "output", "meta", "done"})
_OPENS = frozenset({"start_map", "start_array"})
_CLOSES = frozenset({"end_map", "end_array"})
_MARK = re.compile(r'\\.?|"', re.DOTALL)
_WORD = f"{ascii_letters}{digits}-+."
"""What numbers and words have, which may go on with the next piece."""
_LONGEST = 5000
"""Characters of a number that can be read."""
_UNREADABLE = "it has a value with more levels, or a number with more digits, than can be read"


class SolutionText:
    """Reads the JSON text of one Solution."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.fault: str | None = None
        self._parser: Any = None
        self._value: Any = None
        self._depth = 0
        self._key: str | None = None
        self._is_object: bool | None = None
        self._in_calls = False
        self._held: list[str] = []
        """What has come of a text or a number that has not ended."""
        self._in_text = self._escaped = False
        self.closed = False
        """Whether the object has closed."""

    def feed(self, text: str) -> list[Any]:
        """Take the next piece of text; gives the calls that have closed with it."""
        if self.fault is not None or not text:
            return []
        whole = self._whole_tokens(text)
        return self._parse(whole) if whole else []

    def _whole_tokens(self, text: str) -> str:
        """What the parser gets with this piece: all up to the beginning of a text or a number that has not ended."""
        begins = 0  # in this piece: where what is behind the last quotation mark begins, or the text that it opens
        marks = _MARK.finditer(text, 1 if self._escaped else 0)
        self._escaped = False
        for mark in marks:
            if mark[0] == '"':
                self._in_text = not self._in_text
                begins = mark.start() if self._in_text else mark.end()
            elif self._in_text:
                self._escaped = len(mark[0]) == 1  # the next piece begins with what it escapes
        word = begins if self._in_text else max(begins, len(text.rstrip(_WORD)))
        if self._held and not word and (self._in_text or text.rstrip(_WORD) == ""):
            self._held.append(text)  # all of it belongs to what has not ended before
            if not self._in_text and sum(map(len, self._held)) > _LONGEST:
                self._is_object, self.fault = False, _UNREADABLE
            return ""
        whole = "".join([*self._held, text[:word]])
        self._held = [text[word:]] if word < len(text) else []
        return whole

    def _parse(self, text: str) -> list[Any]:
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            encoded = mended(text).encode()
        return self._read(lambda parser: parser.send(encoded))

    def end(self) -> None:
        """There is no more text."""
        if self.fault is None and self._held:
            self._parse("".join(self._held))
        if self.fault is None:
            self._read(lambda parser: parser.close())
        if self.fault is None and self.fields and not _KNOWN & set(self.fields):
            self.fault = "the object has neither `calls` nor `output`"

    def _read(self, parse: Callable[[Any], Any]) -> list[Any]:
        closed: list[Any] = []
        if self._parser is None:  # an answer of native calls has no text
            self._begin()
        try:
            parse(self._parser)
        except self._json.JSONError as error:
            self.fault = str(error).split("\n", 1)[0].strip()[:200]
        except (ValueError, SystemError) as error:  # of int(), as it is and as the parser in C hands it on
            self.fault = _UNREADABLE
            if isinstance(error, SystemError):
                del self._events[-1:]  # that number, of which there is nothing: to look at it ends the process
        for event, value in self._events:
            self._take(event, value, closed)
        self._events.clear()
        return closed

    def _begin(self) -> None:
        import ijson  # 7 ms, which only a run of such a loop is to pay

        self._json = ijson
        self._events: Any = ijson.sendable_list()
        self._parser = ijson.basic_parse_coro(self._events)

    def _take(self, event: str, value: Any, closed: list[Any]) -> None:
        if self._is_object is False:
            return  # nothing of it is a Solution's, or of what has become none
        if self._value is not None:
            self._build(event, value, closed)
        elif event == "map_key":
            self._key = value
        elif self._is_object is None:
            self._is_object = event == "start_map"
            if not self._is_object:
                self.fault = self.fault or "it is no JSON object"
        elif event == "start_array" and self._key == "calls" and not self._in_calls:
            self._in_calls = True
            self.fields["calls"] = None  # they are given as they come
        elif event == "end_array" and self._in_calls:
            self._in_calls = False
        elif event == "end_map":
            self.closed = True
        else:
            self._value = self._json.ObjectBuilder()
            self._build(event, value, closed)

    def _build(self, event: str, value: Any, closed: list[Any]) -> None:
        self._value.event(event, float(value) if isinstance(value, Decimal) else value)
        self._depth += (event in _OPENS) - (event in _CLOSES)
        if self._depth > 0:
            return
        try:
            built, self._value = readable(self._value.value), None
        except (ValueError, RecursionError):
            self._is_object, self.fault = False, self.fault or _UNREADABLE
            return
        if self._in_calls:
            closed.append(built)
        elif self._key == "calls" and built is not None:
            self.fault = self.fault or "`calls` is no list"
        elif self._key is not None:
            self.fields[self._key] = built


_Made = tuple[str, dict[str, Any], str | None]
"""A call as it was made: name, arguments, and their text where that is no JSON object."""


class SolutionReply(Reply):
    """An answer that makes its calls as it comes."""

    def __init__(
        self,
        turn: int,
        made: int,
        earlier: Sequence[ToolCall],
        *,
        native: bool,
        run: int = 1,
        constants: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """`made`: calls of the run so far. `earlier`: those that this request's broken answers have made.

        `run`: which run of the loop it is, counted where that runs again and again inside another. `constants`: what
        every call of a tool says, by the tool.
        """
        super().__init__(turn)
        self._calls = list(earlier)
        self._made = made
        self._earlier: list[_Made] = [(call.name, call.arguments, call.malformed) for call in earlier]
        self._of_run = f"_{run}" if run > 1 else ""
        self._constants = constants
        self._native = native
        self._has_native_calls = False
        self._solution = SolutionText()
        self._in_text: list[_Made] = []
        self._arguments: dict[int, SolutionText] = {}
        self._closed: dict[int, str] = {}

    def feed(self, chunk: Any, milliseconds: int) -> Delta | None:
        """Take in one chunk; the calls that are complete with it are in `proposed`."""
        delta = super().feed(chunk, milliseconds)
        if delta is not None and delta.type == "text_delta":
            for item in self._solution.feed(self._text[-1]):  # the piece itself: what is shown of it is mended
                self._propose_item(item)
        return delta

    def end(self) -> ModelEnd:
        """The finished answer; its message's `details` have the Solution's output, or what is wrong with it."""
        end = super().end()
        details = {**(end.message.details or {}), **self._solution_details()}
        return replace(end, message=end.message.model_copy(update={"details": details}))

    def _solution_details(self) -> dict[str, Any]:
        solution, text = self._solution, self.text
        if self._has_native_calls and not text:
            return {"native": True, "output": None}
        solution.end()
        fields = {name: value for name, value in solution.fields.items() if name in _KNOWN and name != "calls"}
        if self._has_native_calls or (self._native and solution.fault is not None):
            output = text if text and not self._has_native_calls else None
            return {"native": True, "output": output, **({} if solution.fault is not None else fields)}
        if solution.fault is None:
            return {"output": None, **fields}
        begins = f" It begins with {text[:60]!r}." if text else ""
        cut_off = f" It was cut off ({self._stop_reason})." if self._stop_reason in CUT_OFF_REASONS else ""
        return {
            "output": None,
            "fault": f"The answer is not a Solution in JSON, and nothing else: {solution.fault}.{begins}{cut_off}",
        }

    # -- calls -----------------------------------------------------------------------------------------------------

    def _fragment(self, chunk: Mapping[str, Any]) -> Delta:
        index = chunk.get("index") or 0
        if index in self._closed and (chunk.get("id") or "") not in ("", self._closed[index]):
            del self._closed[index], self._arguments[index]  # another call in the place of one that is complete
        delta = super()._fragment(chunk)
        arguments = self._arguments.setdefault(index, SolutionText())
        arguments.feed(self._fragments[int(index)]["arguments"][-1])  # the piece itself: what is shown of it is mended
        if arguments.closed:
            call = self._put_together(index)  # what follows a complete call is no other one
            if index not in self._closed:
                self._closed[index] = call["id"]
                self._add(call)
        return delta

    def _whole(self, call: Mapping[str, Any]) -> None:
        self._add(call)  # complete, and so it may start

    def _add(self, call: Mapping[str, Any]) -> None:
        function = call.get("function", call)
        arguments, malformed = parse_arguments(function.get("arguments"))
        made = (mended(function.get("name") or ""), arguments, malformed)
        if not _taken_from(self._in_text, made):
            self._has_native_calls = True
            self._propose(made)

    def _propose_item(self, item: Any) -> None:
        made: _Made
        if not isinstance(item, dict):
            made = "", {}, to_json(item).decode()
        elif isinstance(name := item.get("_tool"), str):
            made = name, {key: value for key, value in item.items() if key != "_tool"}, None
        else:
            made = "", item, None
        self._in_text.append(made)
        self._propose(made)

    def _propose(self, made: _Made) -> None:
        name, arguments, malformed = made
        if malformed is None and name in self._constants:
            arguments = {**arguments, **self._constants[name]}
        if _taken_from(self._earlier, (name, arguments, malformed)):
            return
        self._made += 1
        call = ToolCall(id=f"c{self._made}{self._of_run}", name=name, arguments=arguments, malformed=malformed)
        self._calls.append(call)
        self.proposed.append(call)


def _taken_from(known: list[_Made], made: _Made) -> bool:
    """Whether a call is one of those that are known; it stands for one of them, which is taken away."""
    if made not in known:
        return False
    known.remove(made)
    return True


def read_again(message: Message, *, native: bool) -> dict[str, Any]:
    """What an answer says that nobody has read as it came: one that was put in the place of another."""
    reply = SolutionReply(0, 0, (), native=native)
    reply._has_native_calls = native and bool(message.tool_calls)
    reply.feed({"type": "text_delta", "content": text_of(message.content)}, 0)
    details: dict[str, Any] = reply.end().message.details
    return details
