"""A loop design and its three roles: the loop, its model requests and its calls.

The **loop** (`Design`) is one pure decision, and a table of the phases that it moves through. Its **requests**
(`Requests`) say what the model is sent and how the answer is read. Its **calls** (`Calls`) say which calls may start,
who performs them, and with what. The default requests send the history, and the default calls all run concurrently.

`advance(state)` is called whenever nothing is in flight and no effect is required. It returns the next event,
unstamped: ask the model (`ModelStart`), take a queued message (`MessageAdded`), propose a call of the loop's own
(`CallProposed`), set the loop's own state (`StateUpdate`), enter a phase (`PhaseChange`), end (`RunEnd`). It does no
input or output, reads no clock and awaits nothing; the same state always gives the same event. It returns one event at
a time, because a run may be stopped and restored between any two.

`phases` is a table that maps each phase to the phases that may follow it; a run begins in the first one. `opened_by`
maps the types of events that open a phase to that phase. Diagrams are drawn from the table. A transition that is not in
the table raises `IllegalTransition` and changes nothing.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic_core import to_json

from agentnb.core.errors import IllegalTransition, UsageError, printable
from agentnb.core.events import EVENT_TYPES, CallEnd, Event, ModelEnd, RunEnd, RunStart
from agentnb.core.graph import CallDependencies
from agentnb.core.json import to_plain
from agentnb.core.messages import Message
from agentnb.core.protocols import LoopMailbox
from agentnb.core.reply import Reply
from agentnb.core.required_effects import Effect, required_effects
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool, specification


class Result(NamedTuple):
    """The result of an activity that also yields events. It is the last item that the activity yields."""

    value: Any


_TYPES = frozenset(EVENT_TYPES)
MANY_TOOLS = 8
"""The maximum number of tools that the `repr` of a loop names."""


class Requests:
    """The model requests of a loop: what the model is sent, and how its answer is read.

    A loop that changes this sets `requests_class` to a subclass. Each run of the loop makes one object of that class.

    loop: the loop. tools: its tools, by name.
    """

    answers_overlap: ClassVar[bool] = False
    """True if calls of an answer run before the answer has ended. The model request then runs concurrently with
    everything else.
    """

    def __init__(self, loop: Design, tools: Mapping[str, Tool]) -> None:
        self.loop = loop
        self.tools = tools

    @property
    def system_prompt(self) -> str | None:
        """The text that is sent before the history: `system_prompt` of the loop."""
        return self.loop.system_prompt

    @property
    def prepare(self) -> Callable[[Sequence[Message]], Any] | None:
        """The function that makes the messages from the history: `prepare` of the loop. None to send the history."""
        return self.loop.prepare

    def options(self) -> dict[str, Any]:
        """Return the options that every request has in addition to the messages."""
        return {"tools": [specification(tool) for tool in self.tools.values()]} if self.tools else {}

    def messages(self, state: State) -> list[dict[str, Any]] | None:
        """Return the messages to send if they are not those of the history, or None to send the history.

        The list must be a new one for each call: the caller inserts the system prompt into it.
        """
        return None

    @classmethod
    def replacements(cls, state: State) -> Mapping[int, dict[str, Any]]:
        """Return the messages to send in place of those at these positions of the history.

        The history is not changed. The messages are computed from the state alone, so that this also works for a
        recording without its loop.
        """
        return {}

    @classmethod
    def recorded_messages(cls, state: State, config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
        """Return the result of `messages` for a loop with this configuration, for a recording without its loop."""
        return None

    def new_reply(self, state: State) -> Reply:
        """Return the object that assembles the model's answer."""
        return Reply(state.turn, state.at_path.ids)

    def read_again(self, message: Message) -> Message:
        """Return an answer whose text was replaced, parsed as if the model had sent it with this text."""
        return message

    def after_reply(self, reply: ModelEnd) -> dict[str, Any]:
        """Return how the calls of this answer are to be run, as fields of its `ModelEnd`."""
        return {}


class Calls:
    """The calls of a loop: which of them may start, what is checked before, who performs them and with what.

    They are the calls that the model makes, and those that the loop proposes itself (hidden calls). A loop that changes
    something about them sets `calls_class` to a subclass. Each run of the loop makes one object of that class.

        class InBackground(Calls):
            def detaches(self, call):
                return call.name == "train"  # the loop continues while this call runs

        class Trainer(Loop):
            calls_class = InBackground
            ...

    loop: the loop. tools: its tools, by name.
    """

    checks_in_order: ClassVar[bool] = False
    """True if hooks and policies check the calls of a turn one after the other, and no call runs before all are
    checked.
    """

    pauses_inside: ClassVar[bool] = True
    """True if a requested pause may take effect while a nested loop performs a call of this loop: the nested loop then
    stops at its current position. Otherwise the nested loop, and the loops inside it, first continue to their end,
    regardless of their own setting.
    """

    call_graph: Callable[[State], CallDependencies] | None = None
    """A function that returns the calls of the current request and which of them read the results of others, if calls
    depend on one another. It must be a pure function of the state. Only views call it, at any time.
    """

    def __init__(self, loop: Design, tools: Mapping[str, Tool]) -> None:
        self.loop = loop
        self.tools = tools

    # -- which calls may start, and what is checked before ---------------------------------------------------------

    def required(self, state: State) -> Sequence[Effect]:
        """Return the effects that must be in flight: the model request, questions, and the calls that may start."""
        return required_effects(state)

    def within_limit(self, calls: Sequence[CallState], state: State) -> Sequence[CallState]:
        """Select the checked calls that may start now under the concurrency limit.

        Calls that await approval do not count against it.
        """
        return calls

    @property
    def before_call(self) -> Callable[[CallState, State], Any] | None:
        """The hook that runs before each of the model's calls: `before_call` of the loop."""
        return self.loop.before_call

    def arguments(self, call: CallState, state: State) -> dict[str, Any]:
        """Return the arguments that the call runs with, computed before the check and again before the start.

        If they change between the two, the call is checked again, and a person who approved it is asked again. Raises
        InvalidArguments if the call can never run.
        """
        return call.arguments

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Return the call, ready to run. Raises InvalidArguments."""
        return tool.bind(arguments)

    # -- how a call is performed -----------------------------------------------------------------------------------

    def detaches(self, call: CallState) -> bool:
        """Return True if the loop continues while this call runs; only the end of the loop waits for it."""
        return False

    def skip(self, call: CallState, state: State) -> CallEnd | None:
        """Return the result of a tool call that is skipped after its start was recorded, or None to run it."""
        return None

    def perform(self, call: CallState, state: State) -> Any:
        """Perform one of the loop's own calls: call its activity.

        As for an activity, the returned value may be awaitable or an async generator.
        """
        return self.loop.activities[call.name](call.arguments, state)

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """Return the loop that performs this call, or None. The events of that loop are nested in this loop's events.

        The scheduler passes the state of this loop. Code that only inspects the structure of the loops passes None.
        """
        return None

    def input_for(self, call: CallState, state: State) -> Any:
        """Return the input for the loop that performs this call."""
        return call.arguments.get("input")

    def may_call(self) -> Collection[str]:
        """Return the names of functions that the loop may call besides its tools and activities.

        They are read from the loop's code. A name that the code computes is missing.
        """
        return ()

    # -- its result ------------------------------------------------------------------------------------------------

    def outcome(self, value: Any) -> dict[str, Any]:
        """Return what a tool returned, as fields of its `CallEnd`."""
        return {"result": value}

    @property
    def after_call(self) -> Callable[[CallState, CallEnd, State], Any] | None:
        """The hook that runs after each of the model's calls: `after_call` of the loop."""
        return self.loop.after_call

    def result_given(self, call: CallState, result: Any) -> Any:
        """Return a result given from outside for one of the loop's own calls, as the call would have returned it.

        Raises UsageError if the result is not valid for this call.
        """
        return result

    def answer_to(self, id: str, result: Any, state: State) -> Event | None:
        """Return the event that answers the request for which the loop was suspended, or None.

        Raises AlreadyDecided if the request was answered before.
        """
        return None


class LoopFrame(Protocol):
    """A loop in a run: its state, its calls, its mailbox, and the frame of its parent, if it is nested."""

    state: State
    calls: Calls

    @property
    def mailbox(self) -> LoopMailbox:
        """The mailbox for messages to this loop itself. It lives as long as the run."""

    @property
    def above(self) -> LoopFrame | None:
        """The frame of the parent loop; None for the outermost loop."""


class Design(ABC):
    """A loop design. `agentnb.Loop` is the class to subclass; it adds `start` and `run`."""

    phases: ClassVar[Mapping[str, Sequence[str]]] = {"running": ["done"], "done": []}
    opened_by: ClassVar[Mapping[str, str]] = {"run_end": "done"}

    requests_class: ClassVar[type[Requests]] = Requests
    """The class of the loop's model requests."""

    calls_class: ClassVar[type[Calls]] = Calls
    """The class of the loop's calls."""

    limits_that_raise: ClassVar[frozenset[str]] = frozenset()
    """The stop reasons for which awaiting the run raises LimitReached instead of returning the output."""

    name: str
    llm: Any = None
    tools: Sequence[Any] | Mapping[str, Any] = ()
    system_prompt: str | None = None
    """A text that is sent to the model before the history, and is not part of the history."""

    activities: Mapping[str, Callable[[dict[str, Any], State], Any]] = {}
    """The functions that perform the loop's own calls, by name. A hidden `CallProposed` requests such a call.

    An activity may be async, or an async generator that yields events, or a `Delta` that is only displayed. A hidden
    call of one of `tools` that is not an activity is checked, approved and run like the model's calls.
    """

    listens: ClassVar[bool] = True
    """True if the loop has a conversation of its own and receives the user's messages in it. If not, the loops that are
    nested in it have conversations.
    """

    max_result_chars: int | None = 100_000
    """The maximum number of characters of a call's result that the model is sent; None for no limit.

    The text says how much is left out; the event of the result has the whole result. Set it on the loop before a run is
    started.
    """

    prepare: Callable[[Sequence[Message]], Any] | None = None
    """A function that makes the messages for the model from the history, if the plain history is not suitable. May be
    async.
    """

    before_call: Callable[[CallState, State], Any] | None = None
    """A hook that runs before each of the model's calls. If it returns a text, the call is blocked, with the text as
    the reason. May be async.

    If it changes the arguments of the call that it receives, the call is edited: the new arguments are not checked
    against the schema again. It may also return an unstamped event: a `CallEnd` is the call's result; an
    `ApprovalDecision` rejects the call or replaces it by another one. With `recheck`, the other call is checked as the
    first one was.
    """

    after_call: Callable[[CallState, CallEnd, State], Any] | None = None
    """A hook that runs after each of the model's calls. If it returns a mapping, this replaces fields of the result.
    May be async.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            if base is cls or not issubclass(base, Design):  # the classes that were not checked yet
                check_not_moved(cls, vars(base))

    @abstractmethod
    def advance(self, state: State) -> Event | None:
        """Return the next event, or None to wait for detached calls. Nothing else is in flight when this is called."""

    def __repr__(self) -> str:
        names = [str(getattr(tool, "name", None) or getattr(tool, "__name__", tool)) for tool in self.tools]
        shown = ", ".join(names if len(names) <= MANY_TOOLS else [*names[:MANY_TOOLS], "..."])
        return printable(f"<{type(self).__name__} {getattr(self, 'name', '')}{': ' * bool(shown)}{shown}>")

    def begin(self, input: Any, history: Sequence[Message] = ()) -> RunStart:
        """Return the event that a run starts with. The run adds the configuration, the tools and the system prompt."""
        return RunStart(
            loop=self.kind(),
            name=self.name,
            input=to_plain(input),
            history=list(history),
            listens=self.listens,
            max_result_chars=self.max_result_chars,
        )

    def attached(self, frame: LoopFrame) -> None:
        """Receive the frame of this loop in a run that was created, restored or forked, nested or not."""
        return

    def make_context(self, state: State, recording: Sequence[Event], outer: object) -> object:
        """Return the object that the loop's own code needs during a run; the code finds it in `loop_context`.

        state: the loop's state; it stays current. recording: the events that the loop resumes from, its own and those
        of the loops inside it. outer: the context of the parent loop, whose call this loop performs. By default it is
        returned, so both loops share it.
        """
        return outer

    def kept_after_error(self, events: Sequence[Event]) -> int:
        """Return how many events a restored run keeps of a recording that ends with an error.

        By default it keeps all of them, so that the run remains ended.
        """
        return len(events)

    def repeated_after_error(self, events: Sequence[Event]) -> Mapping[str, list[str]]:
        """Return the calls whose failure has ended this recording, by the path of their loop.

        A restored run makes them again.
        """
        return {}

    def read_output(self, recorded: Any) -> Any:
        """Return the recorded output of a run as awaiting the run returns it: by default, unchanged."""
        return recorded

    def config(self) -> dict[str, Any]:
        """Return the configuration that determines the loop's behavior, as plain data.

        A recording is checked against it when it is restored.
        """
        return {}

    @classmethod
    def kind(cls) -> str:
        """Return the design's name in recordings."""
        return cls.__name__


MOVED: Mapping[str, str] = {
    "wanted": "Calls.required",
    "with_room": "Calls.within_limit",
    "checks_in_order": "Calls.checks_in_order",
    "pauses_inside": "Calls.pauses_inside",
    "arguments": "Calls.arguments",
    "bind": "Calls.bind",
    "detaches": "Calls.detaches",
    "instead_of": "Calls.skip",
    "perform": "Calls.perform",
    "loop_for": "Calls.loop_for",
    "input_for": "Calls.input_for",
    "may_call": "Calls.may_call",
    "outcome": "Calls.outcome",
    "result_given": "Calls.result_given",
    "answer_to": "Calls.answer_to",
    "call_graph": "Calls.call_graph",
    "has_tools": "Calls.__init__",
    "messages_for": "Requests.messages",
    "amended": "Requests.replacements",
    "sent_instead": "Requests.replacements",
    "sends": "Requests.recorded_messages",
    "request_options": "Requests.options",
    "answers_overlap": "Requests.answers_overlap",
    "new_reply": "Requests.new_reply",
    "read_again": "Requests.read_again",
    "after_reply": "Requests.after_reply",
    "taken_up": "attached",
    "hears": "attached",
    "runs_as": "attached",
    "companion": "make_context",
    "hears_as": "messages_from",
    "goes_on_after_an_error_from": "kept_after_error",
    "failed_steps": "repeated_after_error",
}
"""The replacements of the methods and flags that loops had in earlier versions, by the earlier names."""


def check_not_moved(loop: type[Design], attributes: Mapping[str, object]) -> None:
    """Raise UsageError if these attributes of a loop include a method or a flag of `MOVED`: it would be ignored.

    An attribute of another kind may have one of these names.
    """
    for name in MOVED.keys() & attributes.keys():
        value, now = attributes[name], MOVED[name]
        if callable(value) or isinstance(value, (bool, classmethod, staticmethod, property)):
            role = now.partition(".")[0]
            how = f" in a subclass of {role} (agentnb.core.loop), and set {role.lower()}_class of the loop to it"
            raise UsageError(f"{loop.__name__}.{name} has no effect: override {now}{how if role != now else ''}.")


_modules_of_designs: dict[str, str] = {}


def register_designs(modules: Mapping[str, str]) -> None:
    """Make designs known by the names that recordings have for them. modules: the module of each, by class name."""
    _modules_of_designs.update(modules)


def design_of(kind: str) -> type[Design] | None:
    """Return the design class that a recording names, or None if it is not registered.

    Its module is imported at this time. A recording can cause the import of registered modules only.
    """
    module = _modules_of_designs.get(kind)
    return getattr(import_module(module), kind) if module is not None else None


def configured(design: Design, tools: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a run's first event that describe the kind of its loop, its configuration and its tools.

    tools: the fingerprint of each tool, by its name.
    """
    kind, config = design.kind(), design.config()
    return {"loop": kind, "config": config, "tools": dict(tools), "fingerprint": fingerprint(kind, config, tools)}


def fingerprint(kind: str, config: Mapping[str, Any], tools: Mapping[str, str] | None = None) -> str:
    """Return a short hash of a loop's kind, its configuration, and the fingerprints of its tools."""
    parts: list[Any] = [kind, sorted(config.items()), *([sorted(tools.items())] if tools else [])]
    return hashlib.sha256(to_json(parts)).hexdigest()[:16]


ENDED_FROM_OUTSIDE = frozenset({"error", "cancelled", "limit", "suspended"})
"""Stop reasons imposed from outside. They are legal in every phase; if the table has no transition to the phase that
the end opens, the phase is left unchanged.
"""


def check_loop(design: Design) -> None:
    """Raise UsageError if a table of phases or the class of a role is not valid, or an attribute has no effect.

    With an invalid table, a run could not record its end.
    """
    check_not_moved(type(design), vars(design))
    roles: Any = ((Requests, design.requests_class), (Calls, design.calls_class))
    for role, given in roles:
        if not (isinstance(given, type) and issubclass(given, role)):
            name = f"{role.__name__.lower()}_class"
            raise UsageError(f"{design.kind()}.{name} must be a subclass of {role.__name__}, not {given!r:.80}.")
    phases: Any = design.phases
    opened_by: Any = design.opened_by
    if not phases or not isinstance(phases, Mapping) or any(map(_is_no_list, phases.values())):
        needed = 'map each phase to a list of the phases that may follow it, as {"drafting": ["done"], "done": []} does'
        raise UsageError(f"{design.kind()}.phases must {needed}, not {phases!r:.80}.")
    is_table = isinstance(opened_by, Mapping) and opened_by.keys() <= _TYPES
    if not is_table or not all(isinstance(phase, str) for phase in opened_by.values()):
        needed = 'map types of events to the phases that they open, as {"run_end": "done"} does'
        raise UsageError(f"{design.kind()}.opened_by must {needed}, not {opened_by!r:.80}.")


def _is_no_list(phases: object) -> bool:
    return isinstance(phases, str) or not isinstance(phases, Collection)


def phase_opened(design: Design, current: str | None, event: Event) -> str | None:
    """Return the phase that `event` opens, or None if the loop stays in `current`. Raises IllegalTransition."""
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
            f"from {current!r} it can go to {allowed}. To allow the change, add {phase!r} to phases[{current!r}]."
        )
    return phase
