"""Tools and the performers of their calls: schemas, scopes, delegates (SEMANTICS.md, 3. Calls and tools).

A tool may be given as the design writes it: a JSON schema in which names that start with an underscore are not
parameters. If an activity with the tool's name (or the name in `_activity`) is known, it performs the calls: it is
called with the call (data in place of references), the tool's schema and the context, in a thread unless it is async.
Without an activity the tool is latent: the model gives the result in `_output`.

In the schema, a field for the loop (`_outputPath`, `_scopes`, `_delegate`, ...) is either a constant, which holds for
every call, or a schema, by which the model chooses a value for each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from agentnb.core.call_events import ApprovalDecision, name_of_function
from agentnb.core.errors import THROWN_IN, InvalidArguments, UsageError
from agentnb.core.json import number_in, same_json
from agentnb.core.loop import Design
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, ReportProgress, Tool
from agentnb.json_schema import schema_faults
from agentnb.loops import functions
from agentnb.loops.base import name_as_tool
from agentnb.loops.execution_loop.messages import is_tool_message, tools_offered
from agentnb.loops.execution_loop.references import DAGGER, copied_value, parse_expression
from agentnb.loops.execution_loop.types import Call, Reject, parameters

_LOOP_FIELDS = ("_reasoningForCall", "_instance", "_scopes", "_delegate", "_outputPath", "_outputMethod")
"""Fields of a call for the loop that the model may be asked to choose."""

_WRITE_FIELDS = ("_outputPath", "_outputMethod", "_instance")
"""Those of `_LOOP_FIELDS` that say where a call's result is written, and how."""


# -- tools as JSON schemas -----------------------------------------------------------------------------------------


class Choice:
    """A field for the loop in a tool's schema: missing, a constant, or a schema by which the model chooses."""

    def __init__(self, given: Any) -> None:
        is_schema = isinstance(given, Mapping) and "const" not in given
        self.schema: dict[str, Any] | None = dict(given) if is_schema else None
        self.constant: Any = None if is_schema else _constant(given)

    def __bool__(self) -> bool:
        return self.schema is not None or self.constant is not None


class SchemaTool:
    """A tool that was given as a JSON schema."""

    sequential = False

    def __init__(self, schema: Mapping[str, Any], activities: Mapping[str, Activity]) -> None:
        """Read the schema.

        schema: may also have `approve, idempotent, timeout, needs, detached`, as `@tool` does. activities: functions
        by name. Raises UsageError if the schema names no tool, InvalidArguments if its constant scopes are malformed.
        """
        properties = schema.get("properties", {})
        self.schema = dict(schema)
        self.name = _constant(schema.get("_tool", schema.get("name", properties.get("_tool"))))
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"A tool's schema must name the tool in `_tool`; this one does not: {dict(schema)!r}.")
        self.description = str(schema.get("description", ""))

        # The parameters: given apart, or those properties whose names do not start with an underscore.
        if schema.get("parameters"):
            self.parameters = dict(schema["parameters"])
        else:
            self.parameters = {"type": "object", "properties": parameters(properties)}
            if required := [name for name in schema.get("required", ()) if not name.startswith("_")]:
                self.parameters["required"] = required

        # Who performs the calls.
        activity = _constant(schema.get("_activity", properties.get("_activity"))) or self.name
        self.activity: Activity | None = activity if callable(activity) else activities.get(activity)
        self.delegate = Choice(schema.get("_delegate", properties.get("_delegate")))
        self.output = schema.get("_output", properties.get("_output"))

        # How they are performed, as for `@tool`. To repeat a latent call is safe: the model has given its result.
        approve = schema.get("approve", False)
        self.approve = approve if callable(approve) else bool(approve)
        self.timeout: float | None = schema.get("timeout")
        self.needs: tuple[str, ...] = tuple(schema.get("needs", ()))
        self.detached = bool(schema.get("detached", False))
        self.idempotent = bool(schema.get("idempotent", self.is_latent))

        # The fields for the loop.
        self.scopes = Choice(schema.get("_scopes", properties.get("_scopes")))
        check_scopes(self.scopes.constant)
        choices = {name: Choice(schema.get(name, properties.get(name))) for name in _LOOP_FIELDS}
        self.constants = {name: choices[name].constant for name in _WRITE_FIELDS if choices[name].constant is not None}
        """Fields that say where and how results are written, the same for every call."""
        self.chosen = {name: choice.schema for name, choice in choices.items() if choice.schema is not None}
        """Fields that the model chooses, with their schemas."""
        if self.delegate and not self.scopes:
            self.chosen["_scopes"] = {"type": "array", "items": {"type": "string"}}

    @property
    def is_latent(self) -> bool:
        """True if there is neither an activity nor a constant delegate: the model gives the result or delegates."""
        return self.activity is None and self.delegate.constant is None

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Return a call with these arguments, made outside of a run. Raises InvalidArguments."""
        return self.prepare(Call.made_of(self.name, arguments), list)

    def scopes_of(self, call: Call) -> list[str] | None:
        """Return the scopes of a call: those of the schema, else those of the call; None if neither has any.

        Raises InvalidArguments if those of the call do not fit the schema.
        """
        if self.scopes.constant is not None:
            return list(self.scopes.constant)
        scopes = call.get("_scopes")
        if scopes is not None and self.scopes.schema is not None:
            _validate(f"the `_scopes` of {self.name}", self.scopes.schema, scopes)
        return scopes

    def prepare(
        self, call: Call, context: Callable[[], list[dict[str, Any]]], *, delegated: bool = False
    ) -> Invocation:
        """Check the call, and return it ready to run.

        context: returns the part of the context that the activity may see. delegated: a nested loop performs the call.
        Raises InvalidArguments that says what does not fit.
        """
        _validate(self.name, self.parameters, call.arguments)
        for name in _WRITE_FIELDS:
            if name in call and name in self.chosen:
                _validate(f"the `{name}` of {self.name}", self.chosen[name], call[name])
        self.scopes_of(call)
        if delegated:
            return _never
        activity = self.activity

        # The activity performs the call.
        if activity is not None:

            async def act(progress: ReportProgress) -> Any:
                return await functions.call(activity, call, ToolSchema(self), context())

            return act

        # The call is latent: its result is the model's.
        if "_output" not in call:
            raise InvalidArguments(f"{self.name} has no activity: its call needs `_output`, the result.")
        if self.output:
            _validate(f"the `_output` of {self.name}", self.output, call["_output"])

        async def give(progress: ReportProgress) -> Any:
            return call["_output"]

        return give


class ToolSchema(dict[str, Any]):
    """The schema of a tool, for its activity: `tool["_tool"]` is its name. Attributes are those of the tool."""

    def __init__(self, tool: SchemaTool) -> None:
        super().__init__({"_tool": tool.name, **tool.schema})
        self.__dict__["_of"] = tool

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_of" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_of"], name)


Activity = Callable[[Call, ToolSchema, list[dict[str, Any]]], Any]
"""A function that performs the calls of a tool: it gets the call, the tool's schema and the context."""


def _never(progress: object) -> Any:
    raise AssertionError("a delegate is run by the driver")  # pragma: no cover


def _constant(value: Any) -> Any:
    return value.get("const") if isinstance(value, Mapping) else value


def is_detached(tool: Any) -> bool:
    """Return True if the loop continues while a call of this tool runs (SEMANTICS.md, 10. Detached tools)."""
    return bool(getattr(tool, "detached", False))


# -- the tools of a loop -------------------------------------------------------------------------------------------


def split_offered(tools: Any, context: Any) -> tuple[Any, Any]:
    """Return the tools together with those that messages of the context offer, and the context without these messages.

    Raises UsageError for a malformed offer. A context that is not a list of messages is returned unchanged; the loop's
    constructor refuses it.
    """
    if isinstance(context, (str, Mapping)) or not isinstance(context, Iterable):
        return tools, context
    given = list(context)
    offered = [tool for message in given if is_tool_message(message) for tool in tools_offered(message)]
    if not offered:
        return tools, given
    rest = [message for message in given if not is_tool_message(message)]
    if isinstance(tools, Mapping):
        named = {SchemaTool(tool, {}).name if isinstance(tool, Mapping) else tool.name: tool for tool in offered}
        return {**tools, **named}, rest
    return [*(tools or ()), *offered], rest


def with_schemas(tools: Sequence[Any] | Mapping[str, Any] | None, activities: Mapping[str, Activity]) -> Any:
    """Return the tools with a SchemaTool for each schema. A later definition of a name replaces the earlier one."""
    if isinstance(tools, Mapping):
        return {
            name: SchemaTool({"_tool": name, **item}, activities) if isinstance(item, Mapping) else item
            for name, item in tools.items()
        }
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        return tools  # the constructor of Loop refuses it
    made = [SchemaTool(item, activities) if isinstance(item, Mapping) else item for item in tools]
    return list({name_as_tool(tool): tool for tool in made}.values())


# -- checking against JSON schemas ---------------------------------------------------------------------------------


def _validate(what: str, schema: Mapping[str, Any], value: Any) -> None:
    try:
        faults = schema_faults(schema, value)
    except Exception as error:  # the schema is user-supplied and may be invalid
        raise InvalidArguments(f"The arguments of {what} cannot be checked: {error}") from error
    if faults:
        raise InvalidArguments(f"Invalid arguments for {what}: {'; '.join(faults)}.")


# -- scopes --------------------------------------------------------------------------------------------------------


def check_scopes(scopes: Any) -> None:
    """Raise InvalidArguments if this is not a list of valid scopes or None.

    A scope is a kind of data, a path such as `†state.profile`, or `text` or `system` for messages without data.
    """
    if scopes is None:
        return
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope for scope in scopes):
        raise InvalidArguments(f"`_scopes` must be a list of kinds and paths, not {scopes!r}.")
    for scope in scopes:
        if scope.startswith(DAGGER):
            parse_expression(scope)


# -- delegates -----------------------------------------------------------------------------------------------------

ANONYMOUS = "anonymous"


class Delegates:
    """The delegates of a loop: nested loops that perform calls, by name (SEMANTICS.md, 8. Scopes and delegates).

    A name is looked up only among the given delegates, never as a path or an address. A call of a tool whose schema has
    no `_delegate` cannot be delegated, since the person or policy that approves a tool must know what runs.

    `anonymous` is always known. For a tool without an activity it is a new loop that is asked for the tool's `_output`.
    For a tool with an activity it is the activity, which then sees only what the scopes allow.
    """

    def __init__(self, given: Mapping[str, Any], make: Callable[..., Design]) -> None:
        """Build the delegates.

        given: loops, and saved requests: mappings of `context`, `schema` (of the output) and other options of
        ExecutionLoop. make: constructs an execution loop with the same model from options. Raises UsageError.
        """
        self._make = make
        self._anonymous: dict[str, Design] = {}
        self._named: dict[str, Design] = {}
        for name, delegate in given.items():
            if isinstance(delegate, Design):
                self._named[name] = delegate
                continue
            if not isinstance(delegate, Mapping):
                raise UsageError(
                    f"The delegate {name!r} must be a loop or a saved request (a mapping), not {delegate!r:.80}."
                )
            if name == ANONYMOUS:
                raise UsageError(f"A saved request cannot be named {name!r}, which is reserved. Use another name.")
            options = {"output" if option == "schema" else option: value for option, value in delegate.items()}
            try:
                self._named[name] = make(**{"name": name, **options})
            except TypeError as error:
                raise UsageError(f"The saved request {name!r} has an unknown option: {error}") from error

    @property
    def names(self) -> list[str]:
        """The given names, sorted."""
        return sorted(self._named)

    def name_for(self, tool: Tool | None, call: CallState) -> str | None:
        """Return the name of the delegate that performs the call; None if its tool does.

        Raises InvalidArguments if the call may not be delegated, or not to this delegate.
        """
        made = call.made
        is_unchanged = tool is not None and made.name == tool.name  # a decision may replace the call by another
        requested = made.arguments.get("_delegate") if is_unchanged else None
        choice = tool.delegate if isinstance(tool, SchemaTool) else None
        if not choice:
            if requested is not None:
                raise InvalidArguments(f"Calls of {call.name} are not delegated; `_delegate` is {requested!r}.")
            return None
        name = choice.constant if choice.constant is not None else requested
        if choice.schema is not None and name is not None and (faults := schema_faults(choice.schema, name)):
            raise InvalidArguments(f"Invalid `_delegate` for {call.name}: {'; '.join(faults)}.")
        if name is not None and name != ANONYMOUS and name not in self._named:
            known = ", ".join([ANONYMOUS, *self.names])
            raise InvalidArguments(f"There is no delegate {name!r}. Delegates: {known}.")
        return name

    def loop_for(self, tool: Tool | None, call: CallState) -> Design | None:
        """Return the loop that performs the call, or None. Raises InvalidArguments, as `name_for` does."""
        if not isinstance(tool, SchemaTool) or not tool.delegate:
            return None
        name = self.name_for(tool, call)
        if name is None or (name == ANONYMOUS and tool.activity is not None):
            return None
        if name != ANONYMOUS:
            return self._named[name]
        if tool.name not in self._anonymous:
            prompt = tool.description or None
            self._anonymous[tool.name] = self._make(output=tool.output, system_prompt=prompt, name=tool.name)
        return self._anonymous[tool.name]


# -- confirmation --------------------------------------------------------------------------------------------------

Confirm = Callable[[Call], Any]


def confirmation(confirm: Confirm) -> Callable[[CallState, State], Any]:
    """Return the hook that asks `confirm` about a call (SEMANTICS.md, 7. Confirmation).

    `confirm` gets a copy of the call with its data, in a thread unless it is async, before any policy or person is
    asked. Only True lets the call run. A call that it returns replaces the call: it is checked again, and not confirmed
    again, since it is the decision.
    """
    by = name_of_function(confirm)

    def reject(call: Call, reason: str) -> ApprovalDecision:
        return ApprovalDecision(call_id=call.id, decision="reject", by=by, reason=reason)

    async def ask(state_of_call: CallState, state: State) -> ApprovalDecision | None:
        """Return None if the call may run, else the decision."""
        if state_of_call.decision is not None and state_of_call.decision.is_checked_again:
            return None
        call = Call.of(state_of_call)
        try:
            answer = await functions.call(confirm, Call(copied_value(call), id=call.id))
            if isinstance(flag := number_in(answer), bool):  # for example a comparison in numpy
                answer = flag
            if answer is True:
                return None
            if answer is False:
                return reject(call, "")
            if isinstance(answer, Reject):
                return reject(call, answer.reason)
            if not isinstance(answer, Mapping):
                return reject(call, f"confirm returned {answer!r}, which is not a decision")
            fields = to_jsonable_python(dict(answer), serialize_unknown=True)
            return None if same_json(fields, call) else _replacement(call, fields, by)
        except THROWN_IN:
            raise
        except BaseException as error:
            # A cancellation of this question is not an answer; a cancellation of what `confirm` awaits is.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            return reject(call, f"confirm failed: {type(error).__name__}: {error}")

    return ask


def _replacement(call: Call, fields: dict[str, Any], by: str) -> ApprovalDecision:
    """Return the decision that replaces a call by another, of these fields."""
    if set(fields) <= {"id", "name", "arguments"} and "name" in fields:
        fields = {"_tool": fields["name"], **fields.get("arguments", {})}

    # Without an output path of its own, the replacement writes where the call would have written: other calls may wait
    # for that data.
    if "_outputPath" not in fields:
        fields = {**{name: call[name] for name in _WRITE_FIELDS if name in call}, **fields}
    fields = {"_tool": call.name, **fields}
    name = str(fields.pop("_tool"))
    return ApprovalDecision(call_id=call.id, decision="replace", by=by, name=name, arguments=fields, recheck=True)
