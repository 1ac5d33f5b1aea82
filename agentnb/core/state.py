"""State: where a run stands, folded from its events and from nothing else (`agentnb.core.evolve`). Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall, to_plain

CallStatus = Literal["proposed", "asking", "ready", "running", "ended"]


@dataclass(init=False)
class CallState:
    """One call of the current turn, from the moment it was proposed to its result.

    `name` and `arguments` are what runs, `proposed` is the call as it was made, `replaced` what the loop has put in its
    place, `undecided` what it was before somebody else decided to change it.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    proposed: ToolCall
    malformed: str | None = None
    hidden: bool = False
    status: CallStatus = "proposed"
    attempt: int = 0
    approval: e.ApprovalRequest | None = None
    decision: e.ApprovalDecision | None = None
    end: e.CallEnd | None = None
    replaced: ToolCall | None = None
    undecided: ToolCall | None = None

    def __init__(self, call: ToolCall, *, hidden: bool = False) -> None:
        self.id, self.name, self.arguments, self.proposed = call.id, call.name, call.arguments, call
        if call.malformed is not None or hidden:  # the rest stays at the class's defaults until it changes
            self.malformed, self.hidden = call.malformed, hidden


@dataclass(slots=True)
class State:
    """Where one loop stands. Plain data; read it, and leave the changing to `evolve`.

    `model` is `asked` while an answer is wanted. `calls` are those of the current turn in the order they were made,
    `open` those of them without a result. `queues` hold what the user has said and nobody has heard yet, `heard` where
    the messages since the last request to the model came from. `values` is the loop's own state. `own_calls` are the
    hidden calls it has made since it began, `entered` the phases it has gone to by `PhaseChange`, each in order: with
    `messages`, what a loop that is written top to bottom has done. `unsaid`: the turn has results that are not in
    `messages` yet. `position` counts the events folded so far.

    `children` are the loops that were run inside this one, each by the name it has in `path`, as they stand or ended;
    one that is run again begins anew. `call` is the call of the loop above that a nested loop performs. `requests`,
    `calls_started` and `usage` (tokens, cost) add up, nested loops included, and so do `failure` and `rules`, the
    decisions that are remembered.

    `memo` is no part of it: a place for what the design has worked out from this state and could work out again.
    """

    run_id: str = ""
    loop: str = ""
    name: str = ""
    phase: str | None = None
    input: Any = None
    position: int = 0
    started: float | None = None
    messages: list[Message] = field(default_factory=list)
    turn: int = 0
    attempt: int = 0
    model: Literal["idle", "asked"] = "idle"
    options: dict[str, Any] = field(default_factory=dict)
    reply: e.ModelEnd | None = None
    failure: e.ErrorInfo | None = None
    calls: dict[str, CallState] = field(default_factory=dict)
    open: dict[str, CallState] = field(default_factory=dict)
    requests: int = 0
    calls_started: int = 0
    rules: list[e.ApprovalDecision] = field(default_factory=list)
    queues: dict[e.Queue, list[Message]] = field(default_factory=lambda: {"input": [], "steering": [], "follow_up": []})
    heard: list[e.Origin] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    paused: bool = False
    cancelled: str | None = None
    stop_reason: e.StopReason | None = None
    output: Any = None
    error: e.ErrorInfo | None = None
    own_calls: list[CallState] = field(default_factory=list)
    entered: list[str] = field(default_factory=list)
    unsaid: bool = False
    call: str = ""
    children: dict[str, State] = field(default_factory=dict)
    memo: Any = field(default=None, compare=False, repr=False)

    @property
    def over(self) -> bool:
        """True once the run has ended."""
        return self.stop_reason is not None

    def dump(self) -> dict[str, Any]:
        """The state as plain JSON data."""
        plain: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            if name not in ("calls", "open", "own_calls", "children", "memo"):
                plain[name] = _plain(getattr(self, name))
        plain["children"] = {name: child.dump() for name, child in self.children.items()}
        plain["calls"] = [_plain_call(call) for call in self.calls.values()]
        plain["own_calls"] = [_plain_call(call) for call in self.own_calls]
        return plain


def _plain_call(call: CallState) -> dict[str, Any]:
    return {name: _plain(getattr(call, name)) for name in call.__dataclass_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, (e.Event, e.ErrorInfo)):
        return value.model_dump(mode="json", exclude_none=True)
    return to_plain(value)
