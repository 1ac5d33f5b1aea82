"""State: the state of a run, folded from its events and from nothing else (`agentnb.core.evolve`). Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentnb.core import events as e
from agentnb.core.json import same_json, to_plain
from agentnb.core.messages import Message, ToolCall

CallStatus = Literal["proposed", "asking", "ready", "running", "ended"]


@dataclass(init=False, slots=True)
class CallState:
    """One call of the current turn, from its proposal to its result.

    `name` and `arguments` are those that run; `proposed` is the call as it was made; `replaced` is the call that the
    loop has put in its place; `undecided` is the call before a decision changed it. `detached`: the call runs, and only
    the end of the run waits for it; `let_go`: the history has a message about that. `unchecked` are the arguments that
    a hook has chosen, which are not checked against the tool's schema.
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
        self.id, self.name, self.arguments, self.proposed = call["id"], call["name"], call["arguments"], call
        self.malformed, self.hidden, self.status, self.attempt = call.get("malformed"), hidden, "proposed", 0
        self.approval = self.decision = self.end = self.replaced = self.undecided = None
        self.unchecked = None
        self.detached = self.let_go = False

    def is_as_a_hook_made_it(self, arguments: dict[str, Any]) -> bool:
        """Return True if a hook has chosen these arguments. They are then not checked against the tool's schema."""
        return self.unchecked is not None and same_json(arguments, self.unchecked)

    @property
    def made(self) -> ToolCall:
        """The call as the model made it, or the call that the loop has put in its place."""
        return self.replaced or self.proposed


class NestedMessages(NamedTuple):
    """The messages of a nested loop. `position` is the number of messages its parent had when it started.

    `name` is the loop's name in `path`.
    """

    position: int
    messages: list[Message]
    inside: list[NestedMessages]
    broken_off: list[Message]
    name: str = ""


@dataclass(slots=True)
class RunsAtPath:
    """Data shared by the runs of a loop at one path: how many have begun there, and the ids of all their calls."""

    runs: int = 1
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class State:
    """The state of one loop. Plain data; only `evolve` changes it.

    - `model` is `asked` while an answer is required. `has_called`: the model has made a call since the loop began.
    - `calls` are the calls of the current turn in the order they were made. `open` are those of them without a result,
      and the `detached` calls of earlier turns that still run; `detached` is the number of detached calls in `open`.
    - `queues` hold the user's messages that are not delivered yet; `heard` are the origins of the messages that were
      delivered since the last request to the model.
    - `values` is the loop's own state. `own_calls` are the hidden calls that it has made since it began, `entered` the
      phases that it has entered by `PhaseChange`, each in order. Together with `messages`, these are the progress of a
      loop that is written from top to bottom.
    - `unsaid`: the turn has results that are not in `messages` yet.
    - `position` is the number of events folded so far.
    - `broken_off` is the answer that failed or was interrupted by the end of the run, with one result for each of its
      calls. It ends the conversation until the model is asked again, and is not part of `messages`, which a model may
      be sent.
    - `children` are the states of the loops that were run inside this one, by their name in `path`, also of those that
      have ended. A loop that is run again begins with a new state. `call` is the call of the parent that a nested loop
      performs.
    - `requests`, `calls_started` (tool calls, not the loop's own calls) and `usage` (tokens, cost) include those of
      nested loops, and so do `failure` and `rules`, the decisions that are remembered. `own_usage` is the part of
      `usage` that was not inherited from the run that this one was forked from.
    - `approve`, `limits`, `model_options` and `on_limit` are those of the whole run, as recorded.
    - `listens`: the loop has a conversation of its own. If not, `inside` has the messages of each loop that it has run,
      and `conversation` has all of them.
    - `at_path` is shared with the earlier runs of the loop at its path, so that no two calls there have the same id.
      `by_path`, in the outermost loop's state, has those of all paths.
    - `memo` is not part of the state: a cache for data that the design has computed from this state and could compute
      again.
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
    inside: list[NestedMessages] = field(default_factory=list)
    at_path: RunsAtPath = field(default_factory=RunsAtPath)
    by_path: dict[str, RunsAtPath] = field(default_factory=dict)
    approve: Any = None
    limits: dict[str, float] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    on_limit: Literal["end", "ask"] = "end"
    memo: Any = field(default=None, compare=False, repr=False)

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.stop_reason is not None

    @property
    def conversation(self) -> list[Message]:
        """All messages: the loop's own, the interrupted answer, and if the loop does not listen, those of nested loops.

        The messages of one nested loop stay together, at the position where that loop began, even if several ran
        concurrently.
        """
        return _in_order(self.messages, self.inside, self.broken_off)

    def own_id(self, id: str) -> str:
        """Return an id that none of the loop's own calls at its path has, even if the loop runs there several times.

        id: an id that is unique within one run of the loop. The second run at the path makes `id#2`, the third `id#3`.
        """
        return id if self.at_path.runs == 1 else f"{id}#{self.at_path.runs}"

    def running(self, path: str = "") -> Iterator[tuple[str, State]]:
        """Yield the loop itself and the loops that are running inside it, the outermost first, each with its path."""
        yield path, self
        for name, child in self.children.items():
            if child.stop_reason is None and child.call in self.open:
                yield from child.running(f"{path}/{name}" if path else name)

    def dump(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""
        plain: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            if name not in ("calls", "open", "asking", "own_calls", "children", "inside", "at_path", "by_path", "memo"):
                plain[name] = _plain(getattr(self, name))
        plain["children"] = {name: child.dump() for name, child in self.children.items()}
        plain["calls"] = [_plain_call(call) for call in self.calls.values()]
        plain["own_calls"] = [_plain_call(call) for call in self.own_calls]
        return plain


def _in_order(messages: list[Message], inside: list[NestedMessages], broken_off: list[Message]) -> list[Message]:
    ordered: list[Message] = []
    start = 0
    for position, nested_messages, deeper, nested_broken_off, _ in inside:
        ordered += messages[start:position]
        ordered += _in_order(nested_messages, deeper, nested_broken_off)
        start = position
    return ordered + messages[start:] + broken_off


def _plain_call(call: CallState) -> dict[str, Any]:
    return {name: _plain(getattr(call, name)) for name in call.__dataclass_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, (e.Event, e.ErrorInfo)):
        return value.model_dump(mode="json", exclude_none=True)
    return to_plain(value)
