"""What every fact has, and what is none: `Delta`. `agentnb.core.events` has the facts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from agentnb.core.record import Record


class ErrorInfo(Record):
    """An error as data: the exception's type, its message, and the traceback where it is ours to show.

    `details`: what a model's server said about it: `status`, `code`, `param`, `request_id`, each where it was given.
    """

    type: str
    message: str
    traceback: str | None = None
    details: dict[str, Any] | None = None


class Event(Record):
    """What every fact has; `seq` is -1 and `time` 0 until the driver has stamped it.

    `inherited`: it happened in the run that this one was forked from, and cost this one nothing.
    """

    seq: int = -1
    time: float = 0.0
    run_id: str = ""
    path: str = ""
    phase: str | None = None
    inherited: bool = False
    type: str

    @property
    def terminal(self) -> bool:
        """True on the one event that ends the run."""
        return False


@dataclass(slots=True, repr=False)  # not frozen, which would double what it costs: there is one for every token
class Delta:
    """Something on its way: shown to whoever is watching, then gone.

    `text_delta` and `reasoning_delta` have `content`; `tool_call_delta` has `index, id, name, arguments` (a fragment of
    JSON text); `call_delta`, a tool's progress, has `call_id` and `data`; `retry_delta` has the attempt in `data`.
    """

    seq: ClassVar[None] = None
    terminal: ClassVar[bool] = False

    type: str
    content: str = ""
    run_id: str = ""
    path: str = ""
    index: int = 0
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    call_id: str | None = None
    data: Any = None

    def __repr__(self) -> str:
        """What is not at its default, as records show themselves."""
        said = ((field, getattr(self, field.name)) for field in fields(self))
        return f"Delta({', '.join(f'{field.name}={value!r}' for field, value in said if value != field.default)})"
