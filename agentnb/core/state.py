"""State: where a run stands, folded from its events and from nothing else (`agentnb.core.evolve`). Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentnb.core import events as e
from agentnb.core.json_data import same_json
from agentnb.core.messages import Message, ToolCall, to_plain

CallStatus = Literal["proposed", "asking", "ready", "running", "ended"]


@dataclass(init=False, slots=True)
class CallState:
    """One call of the current turn, from the moment it was proposed to its result.

    `name` and `arguments` are what runs, `proposed` is the call as it was made, `replaced` what the loop has put in its
    place, `undecided` what it was before somebody else decided to change it. `detached`: it runs, and nothing but the
    end of the run waits for it; `let_go`: the history says so. `unchecked` are the arguments that a hook has chosen,
    which are not checked against the tool's schema.
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
    detached: bool = False
    let_go: bool = False
    undecided: ToolCall | None = None
    unchecked: dict[str, Any] | None = None

    def __init__(self, call: ToolCall, hidden: bool = False) -> None:
        self.id, self.name, self.arguments, self.proposed = call.id, call.name, call.arguments, call
        self.malformed, self.hidden, self.status, self.attempt = call.malformed, hidden, "proposed", 0
        self.approval = self.decision = self.end = self.replaced = self.undecided = None
        self.unchecked = None
        self.detached = self.let_go = False

    def is_as_a_hook_made_it(self, arguments: dict[str, Any]) -> bool:
        """Whether a hook has chosen these arguments, which are not checked against the tool's schema then."""
        return self.unchecked is not None and same_json(arguments, self.unchecked)

    @property
    def made(self) -> ToolCall:
        """The call as the model made it, or as the loop has put another in its place."""
        return self.replaced or self.proposed


class Inside(NamedTuple):
    """What was said in a loop that was run inside another: behind how many of the other one's messages it began."""

    position: int
    messages: list[Message]
    inside: list[Inside]
    broken_off: list[Message]


@dataclass(slots=True)
class Place:
    """What the runs of a loop at one path have in common: how many have begun there, and the ids of all their calls."""

    runs: int = 1
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class State:
    """Where one loop stands. Plain data; read it, and leave the changing to `evolve`.

    `model` is `asked` while an answer is wanted; `has_called` says whether it has made a call since the loop began.
    `calls` are those of the current turn in the order they were made,
    `open` those of them without a result, and those of earlier turns that are `detached` and run on; of these there are
    `detached` many. `queues` hold what the user has said and nobody has heard yet, `heard` where
    the messages since the last request to the model came from. `values` is the loop's own state. `own_calls` are the
    hidden calls it has made since it began, `entered` the phases it has gone to by `PhaseChange`, each in order: with
    `messages`, what a loop that is written top to bottom has done. `unsaid`: the turn has results that are not in
    `messages` yet. `position` counts the events folded so far.

    `broken_off` is the answer that failed, or that the end of the run broke off, with one result for each of its calls.
    It ends the conversation until the model is asked again, and is no part of `messages`, which a model may be sent.

    `children` are the loops that were run inside this one, each by the name it has in `path`, as they stand or ended;
    one that is run again begins anew. `call` is the call of the loop above that a nested loop performs. `requests`,
    `calls_started` (of tools, not of what a loop does itself) and `usage` (tokens, cost) add up, nested loops included,
    and so do `failure` and `rules`, the decisions that are remembered. `approve` and `limits` are those of the whole
    run, as they were recorded.

    `own_usage` is that part of `usage` that was not inherited from the run that this one was forked from.

    `listens` says whether the loop has a conversation of its own. Where it has none, `inside` has what was said in each
    loop that it has run, and `conversation` has it all.

    `place` is shared with the earlier runs of the loop at its path, so that no two calls there have the same id;
    `places`, in the outermost loop's state, are those of all paths.

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
    broken_off: list[Message] = field(default_factory=list)
    turn: int = 0
    attempt: int = 0
    model: Literal["idle", "asked"] = "idle"
    options: dict[str, Any] = field(default_factory=dict)
    reply: e.ModelEnd | None = None
    has_called: bool = False
    failure: e.ErrorInfo | None = None
    calls: dict[str, CallState] = field(default_factory=dict)
    open: dict[str, CallState] = field(default_factory=dict)
    asking: dict[str, CallState] = field(default_factory=dict)
    detached: int = 0
    requests: int = 0
    calls_started: int = 0
    rules: list[e.ApprovalDecision] = field(default_factory=list)
    queues: dict[e.Queue, list[Message]] = field(default_factory=lambda: {"input": [], "steering": [], "follow_up": []})
    heard: list[e.Origin] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    own_usage: dict[str, float] = field(default_factory=dict)
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
    listens: bool = True
    max_result_chars: int | None = None
    inside: list[Inside] = field(default_factory=list)
    place: Place = field(default_factory=Place)
    places: dict[str, Place] = field(default_factory=dict)
    approve: Any = None
    limits: dict[str, float] = field(default_factory=dict)
    memo: Any = field(default=None, compare=False, repr=False)

    @property
    def over(self) -> bool:
        """True once the run has ended."""
        return self.stop_reason is not None

    @property
    def conversation(self) -> list[Message]:
        """What was said: the messages, the answer that broke off, and where the loop has no conversation of its own
        those of the loops it ran.

        What was said in one of these stays together, and stands where that began, however many ran at the same time.
        """
        return _in_order(self.messages, self.inside, self.broken_off)

    def own_id(self, id: str) -> str:
        """`id`, which is unique among the loop's own calls of one run, as one that is unique among those of all runs.

        The second run of a loop at its path makes `id#2`, the third `id#3`.
        """
        return id if self.place.runs == 1 else f"{id}#{self.place.runs}"

    def running(self, path: str = "") -> Iterator[tuple[str, State]]:
        """The loop itself and those that are being run inside it, the outermost first, each with its path."""
        yield path, self
        for name, child in self.children.items():
            if child.stop_reason is None and child.call in self.open:
                yield from child.running(f"{path}/{name}" if path else name)

    def dump(self) -> dict[str, Any]:
        """The state as plain JSON data."""
        plain: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            if name not in ("calls", "open", "asking", "own_calls", "children", "inside", "place", "places", "memo"):
                plain[name] = _plain(getattr(self, name))
        plain["children"] = {name: child.dump() for name, child in self.children.items()}
        plain["calls"] = [_plain_call(call) for call in self.calls.values()]
        plain["own_calls"] = [_plain_call(call) for call in self.own_calls]
        return plain


def _in_order(messages: list[Message], inside: list[Inside], broken_off: list[Message]) -> list[Message]:
    said: list[Message] = []
    begun = 0
    for position, messages_inside, deeper, broken_off_inside in inside:
        said += messages[begun:position]
        said += _in_order(messages_inside, deeper, broken_off_inside)
        begun = position
    return said + messages[begun:] + broken_off


def _plain_call(call: CallState) -> dict[str, Any]:
    return {name: _plain(getattr(call, name)) for name in call.__dataclass_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, (e.Event, e.ErrorInfo)):
        return value.model_dump(mode="json", exclude_none=True)
    return to_plain(value)
