"""The design's own types: Call, Solution, ErrorMessage, Reject (SEMANTICS.md, 3. Calls and tools)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from agentnb.core.errors import UsageError
from agentnb.core.record import Record
from agentnb.core.state import CallState


class Call(dict[str, Any]):
    """A call as the model writes it: `{"_tool": name, parameter: value, ..., "_outputPath": path}`, and its `id`.

    Each key is also an attribute, with or without its underscore. `name` is the name of the tool, `arguments` are the
    parameters alone. `Call("fetch", u=1)` is equal to `Call(tool="fetch", u=1)`, `Call(_tool="fetch", u=1)` and
    `Call({"_tool": "fetch", "u": 1})`.
    """

    def __init__(self, *fields: Mapping[str, Any] | str, id: str = "", **more: Any) -> None:
        super().__init__()
        for given in fields:
            self.update({"_tool": given} if isinstance(given, str) else given)
        if "_tool" not in self and "_tool" not in more and "tool" in more:
            more["_tool"] = more.pop("tool")
        self.update(more)
        self.__dict__["id"] = id

    @classmethod
    def of(cls, call: CallState) -> Call:
        """Return the call as it is about to run: data in place of its references."""
        return as_it_runs(call, call.arguments)

    @classmethod
    def as_made(cls, call: CallState) -> Call:
        """Return the call as it was made, with its references."""
        return cls.made_of(call.made.name, call.made.arguments)

    @classmethod
    def made_of(cls, name: str, arguments: Mapping[str, Any], id: str = "") -> Call:
        """Return a call of the tool `name`. arguments: the parameters and the fields that start with an underscore."""
        return cls({"_tool": name, **arguments}, id=id)

    @property
    def name(self) -> str:
        """The name of the tool."""
        return str(self.get("_tool", ""))

    @property
    def arguments(self) -> dict[str, Any]:
        """The parameters, without the fields that start with an underscore."""
        return parameters(self)

    def __getattr__(self, name: str) -> Any:
        for key in (name, f"_{name}"):
            if key in self:
                return self[key]
        raise AttributeError(f"The call has no {name}.")


def parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a call that its tool receives: those that do not start with an underscore."""
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def loop_fields(call: CallState) -> dict[str, Any]:
    """Return the fields of a call that are for the loop, such as `_outputPath`: those that start with an underscore."""
    return {name: value for name, value in call.made.arguments.items() if name.startswith("_")}


def as_it_runs(call: CallState, arguments: Mapping[str, Any]) -> Call:
    """Return the call with these parameters and its own fields for the loop."""
    return Call.made_of(call.name, {**arguments, **loop_fields(call)}, call.id)


class Solution(Record):
    """The model's answer: calls to run, and an output once the task is done.

    `done` ends the loop with `output`, even if the output is null. An output of `{"value": null}` ends it with null.
    """

    meta: Any = None
    calls: list[dict[str, Any]] = Field(default_factory=list)
    output: Any = None
    done: bool = False

    def to_json(self) -> str:
        """Return the JSON text with which a model gives this answer."""
        return self.model_dump_json(exclude_defaults=True)


class ErrorMessage(Record):
    """The data message by which the model learns of a failed call: `data` is `{call, error}`.

    `call` is the whole call as the model wrote it, or null if the error is about the answer itself.
    """

    type: Literal["data"] = "data"
    kind: Literal["error"] = "error"
    data: dict[str, Any]

    @property
    def call(self) -> dict[str, Any] | None:
        """The call that failed, or None."""
        call: dict[str, Any] | None = self.data.get("call")
        return call

    @property
    def error(self) -> Any:
        """The error: text for the model."""
        return self.data["error"]


@dataclass(frozen=True)
class Reject:
    """The return value of `confirm` that rejects a call. The model is sent the reason.

    Raises UsageError if the reason is not a string.
    """

    reason: str = ""

    def __post_init__(self) -> None:
        reason: object = self.reason
        if not isinstance(reason, str):
            raise UsageError(f"Reject(reason) takes a string, not {reason!r}.")
