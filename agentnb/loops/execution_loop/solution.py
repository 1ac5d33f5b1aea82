"""Solutions: the request for one, and the reading of the answer (SEMANTICS.md, 3. Calls and tools).

The model is sent instructions and the JSON schema of a Solution; with `native`, the tools in the provider's own format.

The text of the answer goes through an incremental JSON parser (ijson), so that a call exists when its own object has
closed, and never from a partial object. An answer that is not a Solution has a fault, which the model is sent; the
calls that were complete before the fault remain. With native tool calls, text without calls is the output.

A request that is repeated, because its answer broke off or its process exited, may be answered with the same calls as
before. SolutionReply recognizes these and does not make them again, so that nothing runs twice. Likewise, a call that
is both in the text and among the native tool calls is made once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from string import ascii_letters, digits
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace
from pydantic_core import to_json

from agentnb.core.events import CUT_OFF_REASONS, Delta, ModelEnd
from agentnb.core.json import parse_arguments, readable, repair_text
from agentnb.core.messages import Message, ToolCall, text_of
from agentnb.core.reply import Reply
from agentnb.core.tools import Tool
from agentnb.json_schema import hoist_definitions
from agentnb.loops.execution_loop.references import DAGGER
from agentnb.loops.execution_loop.tools import SchemaTool, is_detached
from agentnb.loops.execution_loop.writes import METHODS
from agentnb.loops.output import OutputType

# -- the request ---------------------------------------------------------------------------------------------------

_REFERENCE = {"type": "string", "pattern": f"^{DAGGER}"}
_WRITE_FIELDS: dict[str, Any] = {
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
"""Sent to the model with `plan=`; a lazy plan sends both."""

DETACHED = "It runs on by itself: its result, if it is written anywhere, is there in a later request."


def instructions(tools: Sequence[Tool], output: Mapping[str, Any] | None) -> str:
    """Return the text that says how to answer in JSON; it also works if the provider enforces no schema."""
    lines = [JSON]
    if tools:
        lines.append("Tools:")
    for tool in tools:
        parameters = to_json(_tool_schema(tool)).decode()
        lines.append(f"- {tool.name}: {_description(tool)} Parameters: {parameters}")
    if output is not None:
        lines.append(f"The output follows this JSON schema: {to_json(output).decode()}")
    return "\n".join(lines)


def solution_schema(tools: Sequence[Tool], output: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the JSON schema of a Solution. Calls come before the output, so that the model writes them first."""
    # Each call's schema: its tool's, and the tool's name. Definitions of all schemas are moved to the top.
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        schema = _tool_schema(tool)
        call = {
            **schema,
            "type": "object",
            "properties": {"_tool": {"const": tool.name}, **schema["properties"]},
            "required": ["_tool", *schema.get("required", ())],
            "additionalProperties": False,
        }
        calls.append(hoist_definitions(call, f"{tool.name}_", definitions))

    output_schema: dict[str, Any] = {}
    if output is not None:
        output_schema = {"anyOf": [hoist_definitions(output, "output_", definitions), {"type": "null"}]}
    solution: dict[str, Any] = {
        "type": "object",
        "properties": {
            "calls": {"type": "array", "items": {"anyOf": calls} if calls else {"type": "object"}},
            "output": output_schema,
        },
        "required": ["calls", "output"],
    }
    return {**solution, "$defs": definitions} if definitions else solution


def native_specifications(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the tools in the form that a provider is sent."""
    return [
        {"name": tool.name, "description": _description(tool), "parameters": {"type": "object", **_tool_schema(tool)}}
        for tool in tools
    ]


def _description(tool: Tool) -> str:
    return f"{tool.description} {DETACHED}".strip() if is_detached(tool) else tool.description


def _tool_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's parameters, each of which may be a reference, and of the fields for the loop."""
    schema = dict(tool.parameters)
    given = schema.get("properties", {})
    schema["properties"] = {name: {"anyOf": [part, _REFERENCE]} for name, part in given.items()} | _WRITE_FIELDS
    if isinstance(tool, SchemaTool):
        schema["properties"] |= tool.chosen
        for name in tool.constants:
            schema["properties"].pop(name, None)
        if tool.is_latent:
            schema["properties"]["_output"] = tool.output or {}
            if not tool.delegate:
                schema["required"] = [*schema.get("required", ()), "_output"]
    return schema


# -- the output ----------------------------------------------------------------------------------------------------


class OutputCheck(OutputType):
    """The check of a loop's output, if a type is given."""

    def read(self, answer: Mapping[str, Any]) -> tuple[Any, str | None]:
        """Return the output of an answer as it is recorded, and the fault if the output does not fit, else None.

        answer: the fields that `SolutionReply` read.
        """
        output = answer.get("output")
        value, fault = self.validate(output)

        # The answer is a text without calls. If the text does not fit, read it as JSON and try that value.
        if answer.get("native"):
            if fault is None or not isinstance(output, str):
                return value, fault
            try:
                parsed = json.loads(output, strict=False)
            except ValueError:
                return value, fault
            return self.validate(parsed)

        # `{"value": null}` means null, unless the schema accepts that very object.
        if output == {"value": None} and (self.schema is None or fault is not None):
            return self.validate(None)
        return value, fault


# -- the text of an answer -----------------------------------------------------------------------------------------

_FIELDS = frozenset({"calls", "output", "meta", "done"})
"""The fields of a Solution."""

_OPENING = frozenset({"start_map", "start_array"})
_CLOSING = frozenset({"end_map", "end_array"})
_QUOTE_OR_ESCAPE = re.compile(r'\\.?|"', re.DOTALL)
_WORD_CHARACTERS = f"{ascii_letters}{digits}-+."
"""The characters of numbers, true, false and null, which may continue in the next piece."""
_MAX_NUMBER = 5000
"""Maximal number of characters of a number."""
_UNREADABLE = "it has a value with more levels, or a number with more digits, than can be read"


class SolutionText:
    """Reads the JSON text of one Solution, piece by piece, in time linear in its length."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        """The fields so far; `calls` is None, since calls are returned by `feed`."""
        self.fault: str | None = None
        """Why the text is not a Solution."""
        self.closed = False
        """True if the object has closed."""

        # The tokenizer: an unfinished string or number, in pieces; whether a string is open; whether the last piece
        # ended with a backslash.
        self._unfinished: list[str] = []
        self._in_string = self._escaped = False

        # The parser: whether the text is an object (None before its first token), the current key, whether the list of
        # calls is open, and the value that is being built, with its depth.
        self._json: Any = None
        self._parser: Any = None
        self._events: Any = None
        self._is_object: bool | None = None
        self._key: str | None = None
        self._in_calls = False
        self._value: Any = None
        self._depth = 0

    def feed(self, text: str) -> list[Any]:
        """Read the next piece of text. Returns the calls that closed with it."""
        if self.fault is not None or not text:
            return []
        tokens = self._whole_tokens(text)
        return self._parse(tokens) if tokens else []

    def end(self) -> None:
        """Finish: there is no more text."""
        if self.fault is None and self._unfinished:
            self._parse("".join(self._unfinished))
        if self.fault is None:
            self._parse(None)
        if self.fault is None and self.fields and not _FIELDS & set(self.fields):
            self.fault = "the object has neither `calls` nor `output`"

    def _whole_tokens(self, text: str) -> str:
        """Return the text up to the start of an unfinished string or number, and keep the rest.

        The parser would read an unfinished token again with each piece. So it gets a token only when the token is
        complete, and the time for reading is linear.
        """
        # Find where the last string of this piece starts, or the text after it.
        start = 0
        marks = _QUOTE_OR_ESCAPE.finditer(text, 1 if self._escaped else 0)
        self._escaped = False
        for mark in marks:
            if mark[0] == '"':
                self._in_string = not self._in_string
                start = mark.start() if self._in_string else mark.end()
            elif self._in_string:
                self._escaped = len(mark[0]) == 1  # the escaped character comes with the next piece

        # Outside of a string, a number or a word at the end may be unfinished.
        outside = len(text.rstrip(_WORD_CHARACTERS))
        end = start if self._in_string else max(start, outside)

        # The whole piece continues an unfinished token.
        if self._unfinished and not end and (self._in_string or not outside):
            self._unfinished.append(text)
            if not self._in_string and sum(map(len, self._unfinished)) > _MAX_NUMBER:
                self._is_object, self.fault = False, _UNREADABLE
            return ""

        tokens = "".join([*self._unfinished, text[:end]])
        self._unfinished = [text[end:]] if end < len(text) else []
        return tokens

    def _parse(self, text: str | None) -> list[Any]:
        """Parse whole tokens; None for the end of the text. Returns the calls that closed."""
        if self._parser is None:
            import ijson  # deferred: takes 7 ms, which only the runs of this loop should pay

            self._json = ijson
            self._events = ijson.sendable_list()
            self._parser = ijson.basic_parse_coro(self._events)
        encoded = repair_text(text).encode() if text is not None else None
        try:
            if encoded is None:
                self._parser.close()
            else:
                self._parser.send(encoded)
        except self._json.JSONError as error:
            self.fault = str(error).split("\n", 1)[0].strip()[:200]
        except ValueError:  # int() refuses a number with too many digits
            self.fault = _UNREADABLE
        except SystemError:  # the same from the parser in C; its last event has no value, and reading it would crash
            self.fault = _UNREADABLE
            del self._events[-1:]
        closed: list[Any] = []
        for event, value in self._events:
            self._take(event, value, closed)
        self._events.clear()
        return closed

    def _take(self, event: str, value: Any, closed: list[Any]) -> None:
        """Process one event of the parser; a call that closes with it is added to `closed`."""
        if self._is_object is False:
            return

        # Between the values of the Solution's fields.
        if self._value is None:
            if event == "map_key":
                self._key = value
                return
            if self._is_object is None:
                self._is_object = event == "start_map"
                if not self._is_object:
                    self.fault = self.fault or "it is not a JSON object"
                return
            if event == "start_array" and self._key == "calls" and not self._in_calls:
                self._in_calls = True
                self.fields["calls"] = None
                return
            if event == "end_array" and self._in_calls:
                self._in_calls = False
                return
            if event == "end_map":
                self.closed = True
                return
            self._value = self._json.ObjectBuilder()

        # Inside of a value: build it.
        self._value.event(event, float(value) if isinstance(value, Decimal) else value)
        self._depth += (event in _OPENING) - (event in _CLOSING)
        if self._depth > 0:
            return

        # The value is complete: a call, or the value of a field.
        try:
            built, self._value = readable(self._value.value), None
        except (ValueError, RecursionError):
            self._is_object, self.fault = False, self.fault or _UNREADABLE
            return
        if self._in_calls:
            closed.append(built)
        elif self._key == "calls" and built is not None:
            self.fault = self.fault or "`calls` is not a list"
        elif self._key is not None:
            self.fields[self._key] = built


# -- the answer ----------------------------------------------------------------------------------------------------

_Made = tuple[str, dict[str, Any], str | None]
"""A call as the model made it: name, arguments, and their text if that is not a JSON object."""


class SolutionReply(Reply):
    """An answer that makes its calls while it streams."""

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
        """Start an answer.

        made: number of calls of the run so far. earlier: the calls that broken-off answers to this request made.
        native: text that is not a Solution is the output. run: the number of this run of the loop, if it runs several
        times inside another. constants: fields that each call of a tool gets, by the tool's name.
        """
        super().__init__(turn)
        self._calls = list(earlier)
        self._made = made
        self._earlier: list[_Made] = [(call.name, call.arguments, call.malformed) for call in earlier]
        self._suffix = f"_{run}" if run > 1 else ""
        self._constants = constants
        self._native = native
        self._has_native_calls = False
        self._solution = SolutionText()
        self._in_text: list[_Made] = []
        """The calls of the text that no native tool call has repeated."""
        self._arguments: dict[int, SolutionText] = {}
        self._closed: dict[int, str] = {}
        """For native tool calls that stream in pieces, by index: the reader of the arguments in `_arguments`, and the
        id of each complete call in `_closed`."""

    def feed(self, chunk: Any, milliseconds: int) -> Delta | None:
        """Read one chunk. The calls that are complete with it are added to `proposed`."""
        delta = super().feed(chunk, milliseconds)
        if delta is not None and delta.type == "text_delta":
            # The piece itself: the delta's text is sanitized, and half a character may be completed by the next piece.
            for item in self._solution.feed(self._text[-1]):
                made: _Made
                if not isinstance(item, dict):
                    made = "", {}, to_json(item).decode()
                elif isinstance(name := item.get("_tool"), str):
                    made = name, {key: value for key, value in item.items() if key != "_tool"}, None
                else:
                    made = "", item, None
                self._in_text.append(made)
                self._propose(made)
        return delta

    def end(self) -> ModelEnd:
        """Return the finished answer. `details` of its message have the fields of the Solution, or the fault."""
        end = super().end()
        details = {**(end.message.details or {}), **self._solution_details()}
        return replace(end, message=end.message.model_copy(update={"details": details}))

    def _solution_details(self) -> dict[str, Any]:
        solution, text = self._solution, self.text
        if self._has_native_calls and not text:
            return {"native": True, "output": None}
        solution.end()
        fields = {name: value for name, value in solution.fields.items() if name in _FIELDS and name != "calls"}

        # With native tool calls text is not the output; without calls it is, unless it is a Solution.
        if self._has_native_calls or (self._native and solution.fault is not None):
            output = text if text and not self._has_native_calls else None
            return {"native": True, "output": output, **({} if solution.fault is not None else fields)}

        if solution.fault is None:
            return {"output": None, **fields}
        start = f" It begins with {text[:60]!r}." if text else ""
        cut_off = f" It was cut off ({self._stop_reason})." if self._stop_reason in CUT_OFF_REASONS else ""
        return {
            "output": None,
            "fault": f"The answer is not a Solution in JSON, and nothing else: {solution.fault}.{start}{cut_off}",
        }

    def _fragment(self, chunk: Mapping[str, Any]) -> Delta:
        """Read a piece of a native tool call. The call may start when its arguments have closed."""
        index = chunk.get("index") or 0
        if index in self._closed and (chunk.get("id") or "") not in ("", self._closed[index]):
            del self._closed[index], self._arguments[index]  # another call reuses the index of a complete one
        delta = super()._fragment(chunk)
        arguments = self._arguments.setdefault(index, SolutionText())
        arguments.feed(self._fragments[int(index)]["arguments"][-1])  # the piece itself, not the sanitized one
        if arguments.closed:
            call = self._assemble(index)  # pieces that follow a complete call add nothing to it
            if index not in self._closed:
                self._closed[index] = call["id"]
                self._add(call)
        return delta

    def _add_complete_call(self, call: Mapping[str, Any]) -> None:
        """Read a native tool call that came as a whole."""
        self._add(call)

    def _add(self, call: Mapping[str, Any]) -> None:
        """Make a native tool call, unless the text has made it."""
        function = call.get("function", call)
        arguments, malformed = parse_arguments(function.get("arguments"))
        made = (repair_text(function.get("name") or ""), arguments, malformed)
        if not _remove(self._in_text, made):
            self._has_native_calls = True
            self._propose(made)

    def _propose(self, made: _Made) -> None:
        """Make the call, unless an earlier answer to this request has made it."""
        name, arguments, malformed = made
        if malformed is None and name in self._constants:
            arguments = {**arguments, **self._constants[name]}
        if _remove(self._earlier, (name, arguments, malformed)):
            return
        self._made += 1
        call = ToolCall(id=f"c{self._made}{self._suffix}", name=name, arguments=arguments, malformed=malformed)
        self._calls.append(call)
        self.proposed.append(call)


def _remove(known: list[_Made], made: _Made) -> bool:
    """Remove one equal call from the list. Returns True if there was one."""
    if made not in known:
        return False
    known.remove(made)
    return True


def read_again(message: Message, *, native: bool) -> dict[str, Any]:
    """Return the fields of the Solution in an answer that was not read while it streamed, because it was replaced."""
    reply = SolutionReply(0, 0, (), native=native)
    reply._has_native_calls = native and bool(message.tool_calls)
    reply.feed({"type": "text_delta", "content": text_of(message.content)}, 0)
    details: dict[str, Any] = reply.end().message.details
    return details
