"""Frames: the active loops of a run, organised like a call stack: the outermost loop, and the nested loops."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from agentnb.core.events import Event, RunEnd, RunStart
from agentnb.core.loop import Calls, Design, Requests, check_loop, configured, phase_opened
from agentnb.core.messages import Message
from agentnb.core.place import Inside
from agentnb.core.protocols import LoopMailbox
from agentnb.core.reply import Reply
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool, fingerprint_of
from agentnb.run.event_data import start_as_json
from agentnb.tools import as_tools, loop_of

NOT_MADE = object()
"""The value of `Frame.loop_context` until the context is first requested."""
UNKNOWN = object()
"""The default for a kind of transition that is not in `Frame.moves` yet."""


class Frame:
    """One loop that is being run.

    path: `""` for the outermost loop, `"review/critic"` for the loop named `critic` inside the one at `review`.
    inside: the calls that this loop performs (`agentnb.core.place`).
    above, call: the parent loop, and the id of its call that this loop performs; None and `""` for the outermost.
    state: the state of this loop, a part of the state of the run.
    said: the messages that were addressed to this loop, not to the run.
    finishes_calls: a pause waits until the calls of this loop have ended, because this loop or one above it does not
    pause inside (`Calls.pauses_inside`).
    finishes_first: a pause waits until this loop itself has ended.
    requests, calls: the two other roles of the loop (`agentnb.core.loop`).
    has_loop_tools: some tools of this loop are loops.
    recorded: the number of events of the recording that the run resumed from; 0 if it started in this process.
    loop_context: the context of the loop's own code, once it was requested (`run.loop_context`).
    mailbox: the mailbox for messages to this loop. The frame keeps it alive as long as the run.
    moves: the phase that each kind of transition leads to, by phase, phase of the event and event type.
    views: the tools' own views of calls, by call id, each with the number of its question.
    reply: the answer that streams in from the model, during a request.
    """

    __slots__ = (
        "_fingerprints",
        "above",
        "call",
        "calls",
        "design",
        "finishes_calls",
        "finishes_first",
        "has_loop_tools",
        "inside",
        "loop_context",
        "mailbox",
        "moves",
        "path",
        "recorded",
        "reply",
        "requests",
        "said",
        "state",
        "tools",
        "views",
    )

    def __init__(
        self, design: Design, state: State, *, name: str = "", above: Frame | None = None, call: str = ""
    ) -> None:
        check_loop(design)
        self.design = design
        self.tools: dict[str, Tool] = as_tools(design.tools)
        self.requests: Requests = design.requests_class(design, self.tools)
        self.calls: Calls = design.calls_class(design, self.tools)
        self.moves: dict[tuple[str | None, str | None, type[Event]], str | None] = {}
        self.path: str = f"{above.path}/{name}" if above is not None and above.path else name
        self.inside: Inside = (*above.inside, (above.path, call)) if above is not None else ()
        self.recorded = 0
        self.loop_context: object = NOT_MADE
        self.above = above
        self.finishes_first: bool = above is not None and above.finishes_calls
        self.finishes_calls: bool = self.finishes_first or not self.calls.pauses_inside
        self.call = call
        self.state = state
        self.said: list[Message] = []
        self.views: dict[str, tuple[int, str]] = {}
        self.mailbox: LoopMailbox
        self.reply: Reply | None = None
        self.has_loop_tools: bool = any(loop_of(tool) is not None for tool in self.tools.values())
        self._fingerprints: dict[str, str] | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each tool, by its name. Computed on first use."""
        if self._fingerprints is None:
            self._fingerprints = {name: fingerprint_of(tool) for name, tool in self.tools.items()}
        return self._fingerprints

    def loop_for(self, call: CallState) -> Design | None:
        """Return the loop that performs this call; None if a tool or an activity does."""
        loop = self.calls.loop_for(call, self.state)
        if loop is None and self.has_loop_tools and not self.is_own(call):
            loop = loop_of(self.tools.get(call.name))
        return loop

    def is_own(self, call: CallState) -> bool:
        """Return True if the loop's own code performs this call, and not one of its tools."""
        return call.hidden and (call.name in self.design.activities or call.name not in self.tools)

    def asks_where_it_was_lost(self, call: CallState) -> bool:
        """Return True if a person must decide about this call after a crash: it was running, and is not safe to repeat.

        A call is safe to repeat if its tool is idempotent, or if the loop itself or a nested loop performs it.
        """
        tool = self.tools.get(call.name)
        may_run_again = self.is_own(call) or self.loop_for(call) is not None or (tool is not None and tool.idempotent)
        return call.status == "running" and not may_run_again

    def opens(self, event: Event) -> str | None:
        """Return the phase that an event opens; None if the phase does not change.

        The result is stored in `moves` for each kind of transition. Raises IllegalTransition if the loop's table of
        phases does not have it.
        """
        phase = phase_opened(self.design, self.state.phase, event)
        if not isinstance(event, RunEnd):  # whether it is legal depends on its reason: an end from outside always is
            self.moves[self.state.phase, event.phase, type(event)] = phase
        return phase

    def begin(self, input: object, history: Sequence[Message] = ()) -> RunStart:
        """Return the first event of this loop, with its configuration and the call of the parent that it performs."""
        fields = configured(self.design, self.fingerprints)
        prompt = self.requests.system_prompt
        if prompt != fields["config"].get("system_prompt"):  # it depends on the tools, for example
            fields["system_prompt"] = prompt
        first = start_as_json(replace(self.design.begin(input, history), call=self.call, **fields))
        if self.above is not None:
            self.said += [message for messages in first.queued.values() for message in messages]
        return first
