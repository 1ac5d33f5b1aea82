"""Scopes: which part of the context a call is performed with (SEMANTICS.md, 8. Scopes and delegates).

An allow-list: kinds of data (`state`, `input`, any other), paths (`†state.profile`), and `text` or `system` for the
messages that are no data. Who is let see data gets it as it stands when the call is launched, one message for each
object; with `_instance`, that instance's own and everybody's. A tool's schema provides the scopes (a constant), or lets
the model choose (a schema of a list); a call of a tool that says nothing may name any.

An activity without scopes is given the whole log, a delegate without scopes nothing (`delegates`). For a latent call
they are a hint to the model that makes it. References in parameters are the loop's to resolve, and are not restricted;
and what is scoped is not waited for: a call that needs it refers to it.


Tools as JSON schemas: latent ones, and those that an activity performs (SEMANTICS.md, 3. Calls and tools).

A tool may be given as the design writes it: a JSON schema whose names with an underscore are not parameters. Where no
activity of its name (or of the name in `_activity`) is known, it is latent: the model has given the result in
`_output`, and a call without it is a mistake. An activity is called with the call (data in place of its references),
the tool and the context; one that is not async runs in a thread. `_scopes` says what of the context that is (`scopes`),
`_delegate` who performs the call instead (`delegates`); what of these and of the fields of a call is no constant, but a
schema, is shown to the model, for it to choose. A constant `_outputPath`, `_outputMethod` or `_instance` is that of
every call.


Delegates: loops that perform calls, each in its own context (SEMANTICS.md, 8. Scopes and delegates).

A tool's schema names who performs its calls in `_delegate`: a constant, or a schema by which the model chooses; a call
of a tool that says nothing cannot be delegated, since the person or policy that lets a tool run must know what runs.
The names are those of `delegates=`, never a path or an address: nothing that a model or a recording says is loaded. A
delegate is any loop, or a saved request, a mapping of `context`, `schema` (of the output) and other options of
ExecutionLoop, asked of the same model unless it names another.

`anonymous` needs no name: of a tool without an activity it is one fresh loop, which is asked for the tool's `_output`
and knows nothing else, so that the model that calls need not see or write it; of a tool with an activity, that
activity, with nothing of the context but what is scoped.

A delegate's context is its own, then what the call's `_scopes` let it see, then the call's parameters as an Input; a
loop of another design is given these as text. Its output is the call's result, to be written where the call says. The
loop is nested: its events, questions, snapshots and limits are the run's.


confirm: the loop's own question about each call, right before its launch (SEMANTICS.md, 7. Confirmation).

It is asked about a copy of the call with its data, call by call, while the others go on (where it is not async, in a
thread), and before any policy or person is.
Only True lets a call run; a failure of `confirm` and every answer that is none are a no. A call that it puts in the
place of another is looked at again like any (it may be blocked, it may not fit its tool, a person may be asked about
it), and not confirmed again: it is itself the decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json, to_jsonable_python

from agentnb.core.call_events import ApprovalDecision, name_of_function
from agentnb.core.errors import THROWN_IN, InvalidArguments, UsageError
from agentnb.core.foreign import number_in
from agentnb.core.json_data import same_json
from agentnb.core.loop import Design
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Progress, Tool
from agentnb.json_schema import JsonSchema
from agentnb.loops import functions
from agentnb.loops.base import name_as_tool
from agentnb.loops.execution_loop.messages import is_tool_message, tools_offered
from agentnb.loops.execution_loop.references import DAGGER, copied, parse_expression
from agentnb.loops.execution_loop.types import Call, Reject, parameters


def check_scopes(scopes: Any) -> None:
    """Raises InvalidArguments for what is no list of scopes; None is none."""
    if scopes is None:
        return
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope for scope in scopes):
        raise InvalidArguments(f"`_scopes` must be a list of kinds and paths, not {scopes!r}.")
    for scope in scopes:
        if scope.startswith(DAGGER):
            parse_expression(scope)


class Choice:
    """What a tool's schema says of a field that is no parameter: nothing, a constant, or a schema to choose by."""

    def __init__(self, said: Any) -> None:
        self.schema: dict[str, Any] | None = None
        self.constant: Any = None
        if isinstance(said, Mapping) and "const" in said:
            self.constant = said["const"]
        elif isinstance(said, Mapping):
            self.schema = dict(said)
        else:
            self.constant = said

    def __bool__(self) -> bool:
        return self.schema is not None or self.constant is not None


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


ANONYMOUS = "anonymous"


class Delegates:
    """The delegates of one loop, by name. Raises UsageError for what cannot be one."""

    def __init__(self, given: Mapping[str, Any], make: Callable[..., Design]) -> None:
        """`make` makes an execution loop on the same model, of its options."""
        self._make = make
        self._named = {name: self._made(name, one) for name, one in given.items()}
        self._anonymous: dict[str, Design] = {}

    @property
    def names(self) -> list[str]:
        """Those that were given, sorted."""
        return sorted(self._named)

    def _made(self, name: str, given: Any) -> Design:
        if isinstance(given, Design):
            return given
        if not isinstance(given, Mapping) or name == ANONYMOUS:
            raise UsageError(f"A delegate is a loop or a saved request, under a name of its own; {name!r} is not.")
        options = {"output" if option == "schema" else option: value for option, value in given.items()}
        try:
            return self._make(**{"name": name, **options})
        except TypeError as error:
            raise UsageError(f"The saved request {name!r} has what no request has: {error}") from error

    def name_for(self, tool: Tool | None, call: CallState) -> str | None:
        """Who performs the call, None where its tool does. Raises InvalidArguments where that cannot be."""
        made = call.made
        is_its_own = tool is not None and made.name == tool.name  # a person may put in another
        said = made.arguments.get("_delegate") if is_its_own else None
        offered = tool.delegate if isinstance(tool, SchemaTool) else None
        if not offered:
            if said is not None:
                raise InvalidArguments(f"Calls of {call.name} are not delegated; `_delegate` is {said!r}.")
            return None
        name = offered.constant if offered.constant is not None else said
        if offered.schema is not None and name is not None and (faults := list(schema_faults(offered.schema, name))):
            raise InvalidArguments(f"Invalid `_delegate` for {call.name}: {'; '.join(faults)}.")
        if name is not None and name != ANONYMOUS and name not in self._named:
            known = ", ".join([ANONYMOUS, *self.names])
            raise InvalidArguments(f"There is no delegate {name!r}. Delegates: {known}.")
        return name

    def loop_for(self, tool: Tool | None, call: CallState) -> Design | None:
        """The loop that performs the call, where one does."""
        if not isinstance(tool, SchemaTool) or not tool.delegate:
            return None
        name = self.name_for(tool, call)
        if name is None or (name == ANONYMOUS and tool.activity is not None):
            return None
        if name != ANONYMOUS:
            return self._named[name]
        if tool.name not in self._anonymous:
            words = tool.description or None
            self._anonymous[tool.name] = self._make(output=tool.output, system_prompt=words, name=tool.name)
        return self._anonymous[tool.name]


Confirm = Callable[[Call], Any]

_KEPT = ("_outputPath", "_outputMethod", "_instance")
"""What a replacement that names no path of its own keeps of the call: those who wait for its result still get it."""


def confirmation(confirm: Confirm) -> Callable[[CallState, State], Any]:
    """`confirm` as the core asks it: None lets the call run, a decision does not."""
    by = name_of_function(confirm)

    async def ask(call: CallState, state: State) -> ApprovalDecision | None:
        if call.decision is not None and call.decision.is_checked_again:
            return None
        asked = Call.of(call)
        try:
            return _decision(asked, await functions.call(confirm, Call(copied(asked), id=call.id)), by)
        except THROWN_IN:
            raise
        except BaseException as error:  # it has not said yes
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # the question itself is cancelled, and not what `confirm` has waited for
            return _reject(call.id, f"confirm failed: {type(error).__name__}: {error}", by)

    return ask


def _decision(asked: Call, said: Any, by: str) -> ApprovalDecision | None:
    if isinstance(yes := number_in(said), bool):  # what a comparison of columns gives
        said = yes
    if said is True:
        return None
    if isinstance(said, Mapping):
        fields = to_jsonable_python(dict(said), serialize_unknown=True)
        return None if same_json(fields, asked) else _replace(asked, fields, by)
    if said is False:
        return _reject(asked.id, "", by)
    if isinstance(said, Reject):
        return _reject(asked.id, said.reason, by)
    return _reject(asked.id, f"confirm returned {said!r}, which is no decision", by)


def _replace(asked: Call, fields: dict[str, Any], by: str) -> ApprovalDecision:
    if set(fields) <= {"id", "name", "arguments"} and "name" in fields:
        fields = {"_tool": fields["name"], **fields.get("arguments", {})}
    kept = () if "_outputPath" in fields else _KEPT
    fields = {**{name: asked[name] for name in kept if name in asked}, "_tool": asked.name, **fields}
    name = str(fields.pop("_tool"))
    return ApprovalDecision(call_id=asked.id, decision="replace", by=by, name=name, arguments=fields, recheck=True)


def _reject(call_id: str, reason: str, by: str) -> ApprovalDecision:
    return ApprovalDecision(call_id=call_id, decision="reject", by=by, reason=reason)
