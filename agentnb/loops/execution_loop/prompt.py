"""What an execution loop tells its model beside the context: how to answer, and with which tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from agentnb.core.errors import UsageError
from agentnb.core.schemas import hoist_definitions, misfits, why_none
from agentnb.core.tools import Tool
from agentnb.loops.execution_loop.data import METHODS
from agentnb.loops.execution_loop.references import DAGGER
from agentnb.loops.execution_loop.tools import SchemaTool, check_schema, is_detached, schema_faults

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
