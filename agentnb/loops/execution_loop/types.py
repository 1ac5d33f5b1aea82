"""The execution loop's own values: Call, Solution, ErrorMessage, Reject (SEMANTICS.md, 3. Calls and tools)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from agentnb.core.errors import UsageError
from agentnb.core.record import Record
from agentnb.core.state import CallState

FIELDS = frozenset(
    {"_outputPath", "_outputMethod", "_instance", "_output", "_scopes", "_delegate", "_activity", "_reasoningForCall"}
)
"""What a call may say beside its tool and its parameters."""


class Call(dict[str, Any]):
    """A call as the model writes it: `{"_tool": name, parameter: value, ..., "_outputPath": path}`, and its `id`.

    Every key is also an attribute, with or without its underscore. `name` is its tool, `arguments` are its parameters
    alone. `Call("fetch", u=1)` says the same as `Call(tool="fetch", u=1)`, `Call(_tool="fetch", u=1)` and
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
        """The call as it is about to run: its parameters in place of its references."""
        return as_it_runs(call, call.arguments)

    @classmethod
    def as_made(cls, call: CallState) -> Call:
        """The call as it was made, its references and all."""
        return cls.made_of(call.made.name, call.made.arguments)

    @classmethod
    def made_of(cls, name: str, arguments: Mapping[str, Any], id: str = "") -> Call:
        """A call of a tool."""
        return cls({"_tool": name, **arguments}, id=id)

    @property
    def name(self) -> str:
        """The name of its tool."""
        return str(self.get("_tool", ""))

    @property
    def arguments(self) -> dict[str, Any]:
        """Its parameters, without what begins with an underscore."""
        return parameters(self)

    def __getattr__(self, name: str) -> Any:
        for key in (name, f"_{name}"):
            if key in self:
                return self[key]
        raise AttributeError(f"The call has no {name}.")


def parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What of a call's fields its tool is given."""
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def as_it_runs(call: CallState, arguments: Mapping[str, Any]) -> Call:
    """The call with these parameters, and what is said beside them."""
    return Call.made_of(call.name, {**arguments, **said_beside(call)}, call.id)


def said_beside(call: CallState) -> dict[str, Any]:
    """What of a call's fields is for the loop: where its result goes, and how."""
    return {name: value for name, value in call.made.arguments.items() if name.startswith("_")}


class Solution(Record):
    """What the model answers with: calls to run, and an output once it is done.

    `done` ends the loop with the output as it is, also where that is null; an output of `{"value": null}` says the
    same.
    """

    meta: Any = None
    calls: list[dict[str, Any]] = Field(default_factory=list)
    output: Any = None
    done: bool = False

    def to_json(self) -> str:
        """The text a model would answer with."""
        return self.model_dump_json(exclude_defaults=True)


class ErrorMessage(Record):
    """A call that failed, as a data message for the model: `data` is `{call, error}`.

    `call` is the whole call as the model wrote it, null where the answer itself was at fault.
    """

    type: Literal["data"] = "data"
    kind: Literal["error"] = "error"
    data: dict[str, Any]

    @property
    def call(self) -> dict[str, Any] | None:
        """The call that failed."""
        call: dict[str, Any] | None = self.data.get("call")
        return call

    @property
    def error(self) -> Any:
        """What went wrong."""
        return self.data["error"]


@dataclass(frozen=True)
class Reject:
    """What `confirm` returns to reject a call: the model is told the reason, a text. Raises UsageError for another."""

    reason: str = ""

    def __post_init__(self) -> None:
        reason: object = self.reason
        if not isinstance(reason, str):
            raise UsageError(f"Reject(reason) takes a text, not {reason!r}.")
