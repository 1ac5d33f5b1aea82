"""Tools as JSON schemas: latent ones, and those that an activity performs (SEMANTICS.md, 3. Calls and tools).

A tool may be given as the design writes it: a JSON schema whose names with an underscore are not parameters. Where no
activity of its name (or of the name in `_activity`) is known, it is latent: the model has given the result in
`_output`, and a call without it is a mistake. An activity is called with the call (data in place of its references),
the tool and the context; one that is not async runs in a thread. `_scopes` says what of the context that is (`scopes`),
`_delegate` who performs the call instead (`delegates`); what of these and of the fields of a call is no constant, but a
schema, is shown to the model, for it to choose. A constant `_outputPath`, `_outputMethod` or `_instance` is that of
every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.tools import Invocation, Progress
from agentnb.json_schema import JsonSchema
from agentnb.loops import functions
from agentnb.loops.base import name_as_tool
from agentnb.loops.execution_loop.messages import is_tool_message, tools_offered
from agentnb.loops.execution_loop.scopes import Choice, check_scopes
from agentnb.loops.execution_loop.values import Call, parameters

_CHOSEN = ("_reasoningForCall", "_instance", "_scopes", "_delegate", "_outputPath", "_outputMethod")

_WRITING = ("_instance", "_outputPath", "_outputMethod")
"""Of these, what says where a call's result goes, and how."""

Activity = Callable[[Call, "SchemaTool", list[dict[str, Any]]], Any]


class SchemaTool:
    """A tool that was given as a JSON schema."""

    sequential = False

    def __init__(self, schema: Mapping[str, Any], activities: Mapping[str, Activity]) -> None:
        """`schema` may also say `approve, idempotent, timeout, needs, detached`, as `@tool` does. Raises UsageError."""
        properties = schema.get("properties", {})
        self.schema = dict(schema)
        self.name = _constant(schema.get("_tool", schema.get("name", properties.get("_tool"))))
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"A tool's schema names the tool in `_tool`; this one does not: {dict(schema)!r}.")
        self.description = str(schema.get("description", ""))
        self.parameters = dict(schema.get("parameters") or _parameters(schema))
        self.output = schema.get("_output", properties.get("_output"))
        activity = _constant(schema.get("_activity", properties.get("_activity"))) or self.name
        self.activity: Activity | None = activity if callable(activity) else activities.get(activity)
        asks = schema.get("approve", False)
        self.approve = asks if callable(asks) else bool(asks)
        self.timeout: float | None = schema.get("timeout")
        self.needs: tuple[str, ...] = tuple(schema.get("needs", ()))
        self.detached = bool(schema.get("detached", False))
        self.delegate = Choice(schema.get("_delegate", properties.get("_delegate")))
        self.scopes = Choice(schema.get("_scopes", properties.get("_scopes")))
        self.idempotent = bool(schema.get("idempotent", self.is_latent))  # the model has said what a latent one gives
        check_scopes(self.scopes.constant)
        beside = {name: Choice(schema.get(name, properties.get(name))) for name in _CHOSEN}
        self.constants = {name: beside[name].constant for name in _WRITING if beside[name].constant is not None}
        """What every call of it says about its result, whatever the model says."""
        chosen = {name: choice.schema for name, choice in beside.items()}
        if self.delegate and not self.scopes:
            chosen["_scopes"] = {"type": "array", "items": {"type": "string"}}
        self.beside = {name: said for name, said in chosen.items() if said is not None}
        """What a call says beside its parameters that the model is to choose."""

    @property
    def is_latent(self) -> bool:
        """Whether the model itself gives the result, unless it delegates the call."""
        return self.activity is None and self.delegate.constant is None

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """The call with these arguments, made by nobody in particular. Raises InvalidArguments."""
        return self.prepare(Call.made_of(self.name, arguments), list)

    def scopes_of(self, call: Call) -> list[str] | None:
        """What the call may see: what the schema says, or else the call itself; None where neither does."""
        if self.scopes.constant is not None:
            return list(self.scopes.constant)
        said = call.get("_scopes")
        if said is not None and self.scopes.schema is not None:
            _validate(f"the `_scopes` of {self.name}", self.scopes.schema, said)
        return said

    def prepare(
        self, call: Call, context: Callable[[], list[dict[str, Any]]], *, delegated: bool = False
    ) -> Invocation:
        """The call, ready to run. Raises InvalidArguments that names what is at fault."""
        _validate(self.name, self.parameters, call.arguments)
        for name in _WRITING:
            if name in call and name in self.beside:
                _validate(f"the `{name}` of {self.name}", self.beside[name], call[name])
        self.scopes_of(call)
        if delegated:
            return _never
        if self.activity is not None:
            activity = self.activity

            async def act(progress: Progress) -> Any:
                return await functions.call(activity, call, self, context())

            return act
        if "_output" not in call:
            raise InvalidArguments(f"{self.name} has no activity: its call needs `_output`, the result.")
        if self.output:
            _validate(f"the `_output` of {self.name}", self.output, call["_output"])

        async def give(progress: Progress) -> Any:
            return call["_output"]

        return give


def is_detached(tool: Any) -> bool:
    """Whether the loop goes on while a call of this tool runs (SEMANTICS.md, 10. Detached tools)."""
    return bool(getattr(tool, "detached", False))


def _never(progress: object) -> Any:
    raise AssertionError("a delegate is run by the driver")  # pragma: no cover


def _constant(value: Any) -> Any:
    return value.get("const") if isinstance(value, Mapping) else value


def _parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    required = [name for name in schema.get("required", ()) if not name.startswith("_")]
    given = {"type": "object", "properties": parameters(schema.get("properties", {}))}
    return {**given, "required": required} if required else given


def _validate(what: str, schema: Mapping[str, Any], value: Any) -> None:
    try:
        faults = list(schema_faults(schema, value))
    except Exception as error:  # the schema is the user's, and may be none
        raise InvalidArguments(f"The arguments of {what} cannot be checked: {error}") from error
    if faults:
        raise InvalidArguments(f"Invalid arguments for {what}: {'; '.join(faults)}.")


def schema_faults(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Return what of a value does not follow a JSON schema, in words. Raises ValueError for one that is none."""
    read = JsonSchema(schema)
    if read.unread:
        raise ValueError(f"{read.unread[0]}.")
    return read.faults(value)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise ValueError where this is no JSON, or no JSON schema."""
    to_json(schema)
    if unread := JsonSchema(schema).unread:
        raise ValueError(unread[0])


def with_offered(tools: Any, context: Any) -> tuple[Any, Any]:
    """The tools with those that messages of the context offer, and the context without these messages."""
    if isinstance(context, (str, Mapping)) or not isinstance(context, Iterable):
        return tools, context  # what cannot be a context is refused where every loop is made
    given = list(context)
    offered = [tool for message in given if is_tool_message(message) for tool in tools_offered(message)]
    if not offered:
        return tools, given
    told = [message for message in given if not is_tool_message(message)]
    if isinstance(tools, Mapping):
        named = {SchemaTool(tool, {}).name if isinstance(tool, Mapping) else tool.name: tool for tool in offered}
        return {**tools, **named}, told
    return [*(tools or ()), *offered], told


def with_schemas(tools: Sequence[Any] | Mapping[str, Any] | None, activities: Mapping[str, Activity]) -> Any:
    """The tools, with those that are schemas as tools; the latest definition of a name wins in this design."""
    if isinstance(tools, Mapping):
        return {
            name: SchemaTool({"_tool": name, **item}, activities) if isinstance(item, Mapping) else item
            for name, item in tools.items()
        }
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        return tools  # what cannot be tools is told where every loop is made
    made = [SchemaTool(item, activities) if isinstance(item, Mapping) else item for item in tools]
    return list({name_as_tool(tool): tool for tool in made}.values())
