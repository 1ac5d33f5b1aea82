"""A loop design: one pure decision, and a table of the phases it moves through.

`advance(state)` is asked whenever nothing is in flight and nothing is wanted. It answers with the one fact that comes
next, unstamped: ask the model (`ModelStart`), take a queued message (`MessageAdded`), propose a call of
its own (`CallProposed`), set its own state (`StateUpdate`), enter a phase (`PhaseChange`), end (`RunEnd`). It does no
input or output, reads no clock and awaits nothing; the same state always gives the same answer. One fact at a time,
because a run may be stopped and restored between any two.

Phases are a table, `phases`, from each phase to those that may follow it; the first is where a run begins. `opened_by`
names the events that open a phase by themselves. Diagrams are drawn from the table, and a transition that is not in it
raises `IllegalTransition` and changes nothing.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

from pydantic_core import to_json

from agentnb.core.errors import IllegalTransition, UsageError
from agentnb.core.events import EVENT_TYPES, CallEnd, Event, ModelEnd, RunEnd, RunStart
from agentnb.core.graph import CallGraph
from agentnb.core.messages import Message, to_plain, without_broken_off
from agentnb.core.reply import Reply
from agentnb.core.running import Frame, Hearing, Stoppable
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool, specification
from agentnb.core.unicode import printable
from agentnb.core.wanted import Effect, wanted

beside: ContextVar[object] = ContextVar("agentnb_beside", default=None)
"""What stands beside the loop one of whose own calls this code performs (`Design.companion`)."""


class Result(NamedTuple):
    """What an activity that says things on its way comes to: the last thing it yields."""

    value: Any


_TYPES = frozenset(EVENT_TYPES)
MANY_TOOLS = 8
"""As many are named where a loop is shown."""


class Design(ABC):
    """What makes a loop this loop. `agentnb.Loop` is the class to subclass; it adds `start` and `run`."""

    phases: ClassVar[Mapping[str, Sequence[str]]] = {"running": ["done"], "done": []}
    opened_by: ClassVar[Mapping[str, str]] = {"run_end": "done"}

    checks_in_order: ClassVar[bool] = False
    """Whether hooks and policies see the calls of a turn one after the other, and none runs before all are seen."""

    limits_that_raise: ClassVar[frozenset[str]] = frozenset()
    """Stop reasons for which awaiting the run raises LimitReached instead of giving the output."""

    name: str
    llm: Any = None
    tools: Sequence[Any] | Mapping[str, Any] = ()
    system_prompt: str | None = None
    """Said to the model before the history, and not part of it."""

    activities: Mapping[str, Callable[[dict[str, Any], State], Any]] = {}
    """The loop's own calls by name: what is asked for by a hidden `CallProposed`. They may be async, or async
    generators, which say events on their way, or a `Delta` that is only shown. A hidden call of one of `tools` that is
    no activity is checked, asked about and run as the model's calls are."""

    answers_overlap: ClassVar[bool] = False
    """Whether calls of an answer run before it has ended: the model is asked beside everything else then."""

    listens: ClassVar[bool] = True
    """Whether the loop has a conversation of its own, and hears what the user says in it; where it has none, the loops
    inside it have theirs."""

    pauses_inside: ClassVar[bool] = True
    """Whether a pause that somebody asks for may come while another loop performs a call of this one: that loop then
    stands where it is. Otherwise it goes on to its end first, and the loops inside it too, whatever they say here."""

    max_result_chars: int | None = 100_000
    """Characters of a call's result that the model is sent at most; None for all. What is left out is said in the text,
    and the event of the result has it all. Set it on the loop before a run is started."""

    prepare: Callable[[Sequence[Message]], Any] | None = None
    """Makes what the model is sent from the history, where the plain history will not do. May be async."""

    before_call: Callable[[CallState, State], Any] | None = None
    """Asked before each of the model's calls; a text it returns blocks the call, and says why. May be async.

    Where it changes the arguments of the call that it is given, the call is edited: they are not checked against the
    schema again. It may also return an unstamped `CallEnd`, which is the call's result, or an `ApprovalDecision`: a
    rejection, or another call instead, which with `recheck` is checked as the first one was."""

    after_call: Callable[[CallState, CallEnd, State], Any] | None = None
    """Asked after each of the model's calls; a mapping it returns replaces fields of the result. May be async."""

    call_graph: Callable[[State], CallGraph] | None = None
    """Tells the calls of the current request and which of them read what others write, where calls depend on one
    another. A pure function of the state, for views alone: it is asked whenever somebody looks."""

    @abstractmethod
    def advance(self, state: State) -> Event | None:
        """The fact that comes next, now that nothing is in flight but what is detached; None to wait for that."""

    def __repr__(self) -> str:
        names = [str(getattr(tool, "name", None) or getattr(tool, "__name__", tool)) for tool in self.tools]
        shown = ", ".join(names if len(names) <= MANY_TOOLS else [*names[:MANY_TOOLS], "..."])
        return printable(f"<{type(self).__name__} {getattr(self, 'name', '')}{': ' * bool(shown)}{shown}>")

    def detaches(self, call: CallState) -> bool:
        """Whether the loop goes on while this call runs, and only its end waits for it."""
        return False

    def begin(self, input: Any, history: Sequence[Message] = ()) -> RunStart:
        """The fact a run starts with."""
        return RunStart(  # validated, unlike other facts: the input is the user's
            **configured(self, {}),
            name=self.name,
            input=to_plain(input),
            history=list(history),
            listens=self.listens,
            max_result_chars=self.max_result_chars,
            system_prompt=self.system_prompt if self.system_prompt != self.config().get("system_prompt") else None,
        )

    def wanted(self, state: State) -> Sequence[Effect]:
        """What must be in flight while there are open calls; a design that holds calls back overrides this."""
        return wanted(state)

    def with_room(self, calls: Sequence[CallState], state: State) -> Sequence[CallState]:
        """Of calls that nothing objects to, those that begin now: one that is only asked about takes no room."""
        return calls

    def instead_of(self, call: CallState, state: State) -> CallEnd | None:
        """The end of a call of a tool that is said to begin and does not run yet, where it is passed over after all."""
        return None

    def companion(self, state: State, recording: Sequence[Event], above: object) -> object:
        """What the loop's code needs beside it as long as it is being run, and finds in `beside`.

        state: where the loop stands, and will. recording: what it goes on from, its own facts and those of the loops
        inside it. above: what stands beside the loop whose call it performs; unless a design says otherwise, the same.
        """
        return above

    def perform(self, call: CallState, state: State) -> Any:
        """Do one of the loop's own calls; as an activity, what comes of it may be async, or an async generator."""
        return self.activities[call.name](call.arguments, state)

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The loop that performs this call, where one does: its events are nested in this loop's.

        The driver says where this loop stands; whoever only wants to know what the other one looks like does not.
        """
        return None

    def input_for(self, call: CallState, state: State) -> Any:
        """What the loop that performs this call is given."""
        return call.arguments.get("input")

    def result_given(self, call: CallState, result: Any) -> Any:
        """What somebody gives as the result of one of the loop's own calls, as the call itself would have given it.

        Raises UsageError where it can be no such result.
        """
        return result

    def answer_to(self, id: str, result: Any, state: State) -> Event | None:
        """The fact that answers what the loop was suspended for; None where there is none. Raises AlreadyDecided."""
        return None

    def read_again(self, message: Message) -> Message:
        """An answer of the model's whose text somebody has put in the place of another, read as if it had come so."""
        return message

    def has_tools(self, tools: dict[str, Tool]) -> None:
        """These are its tools by name, for whoever runs it, or only looks at a recording with it."""
        return

    def taken_up(self, frame: Frame) -> None:
        """A run of this loop is made or restored, alone or inside another; it finds here where that stands."""
        return

    def hears(self, run: Hearing) -> None:
        """A run of this loop has begun, alone or inside another: what is said to the loop itself is for that run."""
        return

    def runs_as(self, run: Stoppable) -> None:
        """A run of this loop itself, and not inside another, is made or restored, and is not over."""
        return

    def messages_for(self, state: State) -> list[dict[str, Any]] | None:
        """What the model is sent, where the loop puts it together itself; None for the history.

        A new list each time, which is given up: what goes before it is put into it.
        """
        return None

    @classmethod
    def sends(cls, state: State, config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """What the model of such a loop, configured like that, is sent where it stands at `state`, by the events alone.

        For whoever has a recording and not its loop; what `prepare` makes of the history, or the system prompt, is no
        part of it.
        """
        instead = cls.sent_instead(state)
        return [instead.get(position, message) for position, message in without_broken_off(state.messages)]

    @classmethod
    def sent_instead(cls, state: State) -> Mapping[int, dict[str, Any]]:
        """What `sends` has in place of the messages at these positions of the history."""
        return {}

    def request_options(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """What every request to the model carries beside the messages."""
        return {"tools": [specification(tool) for tool in tools]} if tools else {}

    def new_reply(self, state: State) -> Reply:
        """What puts the model's answer together."""
        return Reply(state.turn, state.place.ids)

    def arguments(self, call: CallState, state: State) -> dict[str, Any]:
        """What the call runs with as things stand, looked at right before it is checked and before it is launched.

        Where it changes between the two, the call is checked again, and whoever has approved it is asked again. Raises
        InvalidArguments where it can never run.
        """
        return call.arguments

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """The call, ready to run. Raises InvalidArguments."""
        return tool.bind(arguments)

    def goes_on_after_an_error_from(self, events: Sequence[Event]) -> int:
        """How many events of a recording that ends with an error a restored run keeps; all of them: it stays over."""
        return len(events)

    def failed_steps(self, events: Sequence[Event]) -> Mapping[str, list[str]]:
        """The calls whose failure has ended this recording, by the path of their loop: a restored run makes them
        again.
        """
        return {}

    def outcome(self, value: Any) -> dict[str, Any]:
        """What a tool returned, as fields of its `CallEnd`."""
        return {"result": value}

    def amended(self, state: State) -> Mapping[int, dict[str, Any]]:
        """What the model is sent in place of the messages at these positions of the history, which stays as it is."""
        return {}

    def after_reply(self, reply: ModelEnd) -> dict[str, Any]:
        """How the calls of this answer are to be run, as fields of its `ModelEnd`."""
        return {}

    def may_call(self) -> Collection[str]:
        """Names of functions that the loop may call besides its tools and activities, as far as its code tells."""
        return ()

    def config(self) -> dict[str, Any]:
        """What decides how this loop behaves, as plain data: a recording is checked against it when it is restored."""
        return {}

    @classmethod
    def kind(cls) -> str:
        """The design's name in recordings."""
        return cls.__name__


def configured(design: Design, tools: Mapping[str, str]) -> dict[str, Any]:
    """What the first fact of a run says of the kind of its loop, of how that is configured, and of its tools.

    tools: the fingerprint of each, by its name.
    """
    kind, config = design.kind(), design.config()
    return {"loop": kind, "config": config, "tools": dict(tools), "fingerprint": fingerprint(kind, config, tools)}


def fingerprint(kind: str, config: Mapping[str, Any], tools: Mapping[str, str] | None = None) -> str:
    """A short hash of a loop's kind, its configuration, and the fingerprints of its tools."""
    parts: list[Any] = [kind, sorted(config.items()), *([sorted(tools.items())] if tools else [])]
    return hashlib.sha256(to_json(parts)).hexdigest()[:16]


ENDED_FROM_OUTSIDE = frozenset({"error", "cancelled", "limit", "suspended"})
"""Reasons that are no decision of the design's: such an end comes in every phase, whatever the table says, and where
the table has no way from there to the end the phase stays what it was."""


def check_tables(design: Design) -> None:
    """Raise UsageError where its tables of phases are none: they could not tell the end of the run either."""
    phases: Any = design.phases
    opened_by: Any = design.opened_by
    if not phases or not isinstance(phases, Mapping) or any(map(_is_no_list, phases.values())):
        is_one = 'a table of what may follow each, {"drafting": ["done"], "done": []} for one'
        raise UsageError(f"{design.kind()}.phases is {is_one}, not {phases!r:.80}.")
    is_table = isinstance(opened_by, Mapping) and opened_by.keys() <= _TYPES
    if not is_table or not all(isinstance(phase, str) for phase in opened_by.values()):
        is_one = "a table of the phases that types of events open"
        raise UsageError(f"{design.kind()}.opened_by is {is_one}, not {opened_by!r:.80}.")


def _is_no_list(phases: object) -> bool:
    return isinstance(phases, str) or not isinstance(phases, Collection)


def phase_opened(design: Design, current: str | None, event: Event) -> str | None:
    """The phase that `event` opens, None where the loop stays in `current`. Raises IllegalTransition."""
    if event.type == "run_start":
        return next(iter(design.phases))
    phase = event.phase if event.phase is not None else design.opened_by.get(event.type)
    if phase is None or phase == current:
        return None
    if current is None or phase not in design.phases.get(current, ()):
        if isinstance(event, RunEnd) and event.reason in ENDED_FROM_OUTSIDE:
            return None
        allowed = ", ".join(design.phases.get(current or "", ())) or "nothing"
        raise IllegalTransition(
            f"{design.kind()} cannot go from {current!r} to {phase!r} ({event.type}); "
            f"from {current!r} it can go to {allowed}."
        )
    return phase
