"""Frames: the loops that are being run, as a stack of calls is: the outermost, and those that calls of it perform."""

from __future__ import annotations

from msgspec.structs import replace

from agentnb.core.events import Event, RunEnd
from agentnb.core.loop import Design, check_tables, configured, phase_opened
from agentnb.core.messages import Message
from agentnb.core.reply import Reply
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool, fingerprint_of
from agentnb.run.portable import portable_start
from agentnb.tools import as_tools, loop_of

UNASKED = object()
"""In place of what stands beside a loop, while nobody has asked for it."""
UNKNOWN = object()
"""In place of where a kind of move leads, before it has been made."""


class Frame:
    """One loop that is being run.

    `path` says where it is: `""` the outermost, `"review/critic"` the one by the name `critic` in the one at `review`.
    `above` is the loop whose call `call` it performs, `state` where it stands, in the state of the whole run. `said`
    are the messages that were said to this loop itself, and not to whoever in the run listens. `finishes_calls`: a
    pause waits for the end of what its calls run, because it, or a loop above, does not pause inside
    (`Design.pauses_inside`); `finishes_first`: it waits for the end of the loop itself. `has_loops_inside`: some calls
    may be performed by loops. `recorded` is how many facts of the run there were when it was taken up from a recording,
    `companion` what stands beside it, once that is asked for (`run.companions`). `hearing` is what the loop knows of
    the run, and holds on to no longer than anybody has the run. `views` are what tools have made of the arguments of
    calls for a person, by call, with the number of the question. `reply` is the answer that its model is giving, while
    the model is asked.
    """

    __slots__ = (
        "_fingerprints",
        "_performs_loops",
        "above",
        "call",
        "companion",
        "design",
        "finishes_calls",
        "finishes_first",
        "has_loops_inside",
        "hearing",
        "moves",
        "path",
        "recorded",
        "reply",
        "said",
        "state",
        "tools",
        "views",
    )

    def __init__(
        self, design: Design, state: State, *, name: str = "", above: Frame | None = None, call: str = ""
    ) -> None:
        check_tables(design)
        self.design = design
        self.moves: dict[tuple[str | None, str | None, type[Event]], str | None] = {}
        self.path: str = f"{above.path}/{name}" if above is not None and above.path else name
        self.recorded = 0
        self.companion: object = UNASKED
        self.above = above
        self.finishes_first: bool = above is not None and above.finishes_calls
        self.finishes_calls: bool = self.finishes_first or not design.pauses_inside
        self.call = call
        self.state = state
        self.said: list[Message] = []
        self.views: dict[str, tuple[int, str]] = {}
        self.hearing: object = None
        self.reply: Reply | None = None
        self.tools: dict[str, Tool] = as_tools(design.tools)
        self._fingerprints: dict[str, str] | None = None
        self._performs_loops = type(design).loop_for is not Design.loop_for
        has_loop_tools = any(loop_of(tool) is not None for tool in self.tools.values())
        self.has_loops_inside: bool = self._performs_loops or has_loop_tools
        design.has_tools(self.tools)

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each tool, by its name."""
        if self._fingerprints is None:
            self._fingerprints = {name: fingerprint_of(tool) for name, tool in self.tools.items()}
        return self._fingerprints

    def loop_for(self, call: CallState) -> Design | None:
        """The loop that performs this call, where no tool and no activity does."""
        loop = self.design.loop_for(call, self.state) if self._performs_loops else None
        if loop is None and self.has_loops_inside and not self.is_own(call):
            loop = loop_of(self.tools.get(call.name))
        return loop

    def is_own(self, call: CallState) -> bool:
        """Whether the loop performs this call itself, and not one of its tools."""
        return call.hidden and (call.name in self.design.activities or call.name not in self.tools)

    def asks_where_it_was_lost(self, call: CallState) -> bool:
        """Whether only a person can say how this call ended, where whoever started it is gone."""
        tool = self.tools.get(call.name)
        may_run_again = self.is_own(call) or self.loop_for(call) is not None or (tool is not None and tool.idempotent)
        return call.status == "running" and not may_run_again

    def opens(self, event: Event) -> str | None:
        """The phase that an event opens, None where the loop stays in its own; found once for each kind of move.

        Raises IllegalTransition.
        """
        phase = phase_opened(self.design, self.state.phase, event)
        if not isinstance(event, RunEnd):  # which may come in any phase, where it comes from outside
            self.moves[self.state.phase, event.phase, type(event)] = phase
        return phase

    def begin(self, input: object) -> Event:
        """The fact this loop starts with, as the performer of a call of the loop above."""
        first = portable_start(self.design.begin(input))
        self.said += [message for messages in first.queued.values() for message in messages]
        return replace(first, call=self.call, **configured(self.design, self.fingerprints))
