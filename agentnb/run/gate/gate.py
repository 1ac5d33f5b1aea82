"""The gate: whether something new may start.

Three things close it: a pause that somebody asked for, a breakpoint, and a step whose permit is used up. What is in
flight is never held back by it and always becomes a fact when it ends; only starting is. That is all
there is to stepping: a permit is out until the event arrives that ends the step. A step of a loop's own that says
things on its way (an async generator) is not in flight where it has said one: to let it go on is to start something.

A breakpoint at the start of a call stops before that: the start is not recorded, and nothing of the call has happened.
A breakpoint at any other event stops right behind the event. A call whose start is recorded when the gate closes is
launched all the same, because for the record it is running.

Whoever asks for a pause wants the run to come to rest where its loops do: a loop that performs the call of one which
does not pause inside is in flight as a whole (`Frame.finishes_first`). A breakpoint and a step name one event, and the
run stands behind that, wherever it is.

Limits are looked at here too, before anything starts.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentnb.core.errors import UsageError
from agentnb.core.events import CallStart, Event
from agentnb.core.foreign import plain_number
from agentnb.core.state import State
from agentnb.core.unicode import mended
from agentnb.run.gate.breakpoints import Breakpoint, Breakpoints
from agentnb.run.gate.words import Names
from agentnb.run.given import shown
from agentnb.run.portable import words_of

Unit = Literal["event", "call", "turn", "phase"]
Owner = Literal["pull", "await", "play", "step"]
"""Who drives a run: a consumer that pulls its events, a caller that awaits it, the background, or a step."""
UNITS: tuple[Unit, ...] = ("event", "call", "turn", "phase")
Pauser = Literal["human", "step", "breakpoint"]
"""What a pause comes from (`RunPaused.by`)."""
LIMITS = frozenset({"turns", "calls", "seconds", "tokens", "cost"})


@dataclass
class Permit:
    """Leave to go on up to the end of the next `unit`; `done` is set when that has come.

    `begins` is how many events there were when the step began.
    """

    unit: Unit
    begins: int = 0
    done: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)

    def release(self) -> None:
        """The step is over."""
        if not self.done.done():
            self.done.set_result(None)


class Gate:
    """What holds a run back, and the limits that end it."""

    def __init__(
        self,
        breakpoints: Sequence[Any],
        limits: Mapping[str, Any] | None,
        known: Callable[[], Names] = Names,
    ) -> None:
        """`known` gives the names of the run's tools and phases."""
        self.breakpoints = Breakpoints(breakpoints, known)
        self.breakpoints.failed = self._stop_where_one_fails
        self.limits = check_limits(limits or {})
        self.pausing: str | None = None
        """Why a pause is to come, where one is."""
        self.pausing_by: Pauser = "human"
        """What that pause comes from."""
        self.pausing_before: tuple[str, str] | None = None
        """The path and id of the call that a breakpoint stops before, where that is what the pause comes from."""
        self.at_once = False
        """Whether that pause comes where the run is, whatever would have to be finished first."""
        self.permit: Permit | None = None
        self.owner: Owner | None = None
        """Who drives the run."""
        self.suspends_at_questions = False
        """Whether the run ends in this process where it waits for nobody but a person."""
        self._turn_ends: set[int] = set()
        self._driven_since: float | None = None

    def seconds_driven(self) -> float:
        """The time since the run was first driven, here: how old a recording is that it goes on from does not count."""
        if self._driven_since is None:
            self._driven_since = time.monotonic()
        return time.monotonic() - self._driven_since

    def release_permit(self) -> None:
        """The step is over, whether or not its end has come."""
        if self.permit is not None:
            self.permit.release()
            self.permit = None

    def is_open(self, state: State, *, finishing: bool = False) -> bool:
        """Whether something new may start now; `finishing`: in a loop that a pause waits for."""
        if self.permit is not None or state.cancelled is not None:  # a cancelled run starts nothing, and is to end
            return True
        if state.paused or self.owner in (None, "step"):  # a step goes as far as its permit
            return False
        return self.pausing is None or (finishing and not self.at_once)

    def ask_for_pause(self, reason: str, by: Pauser = "human") -> None:
        """Close it until the run is paused, or the pause is taken back."""
        self.pausing, self.pausing_by, self.at_once = mended(reason), by, by != "human"
        self.pausing_before = None

    def pause_for_a_step(self) -> None:
        """Close it where the step that now begins ends; a pause that is to come already comes there."""
        if self.pausing is None:
            self.ask_for_pause("step", "step")
        self.at_once = True

    def observe(self, event: Event, state: State, run: State) -> None:
        """Let an event of the loop that stands at `state` use up the permit, or hit a breakpoint."""
        if _ends_turn(event, state):
            self._turn_ends.add(event.seq)
        if self.permit is not None and self._ends(self.permit.unit, event):
            self.release_permit()
        if event.type != "call_start" and (hit := self.breakpoints.hit(event, state, run)) is not None:
            self._stop_at(event, hit.label)

    def stops_before(self, start: CallStart, state: State, run: State) -> bool:
        """Ask the breakpoints about a call that would start now; return whether the run stops before it.

        start: the event as it would be recorded next. state: of the loop whose call it is. run: of the whole run.
        """
        earlier = self.pausing
        hit = self.breakpoints.hit(start, state, run)
        # Whoever steps a paused run from right before the call has seen where it stands: the step starts the call.
        if self.permit is not None and run.paused and self.permit.begins == run.position:
            return False
        if hit is not None:
            self._stop_at(start, hit.label)
        if self.pausing is earlier:
            return False
        self.pausing_before = (start.path, start.call_id)
        return True

    def _stop_where_one_fails(self, breakpoint: Breakpoint, event: Event, error: BaseException) -> None:
        """As a debugger does; and switch it off, for it would fail at the next event too."""
        breakpoint.enabled = False
        words = f"{breakpoint.label} failed and is switched off ({words_of(error)})"
        self._stop_at(event, words)

    def _stop_at(self, event: Event, words: str) -> None:
        """Pause here; a step that was to go further ends here too."""
        where = f"(seq {event.seq})"
        if isinstance(event, CallStart):
            where = f"of {event.name} ({event.call_id}), which has not begun"
        self.ask_for_pause(f"breakpoint at {event.type} {where}: {words}", "breakpoint")
        self.release_permit()

    def boundary(self, unit: Unit, events: Sequence[Event]) -> int | None:
        """How many of these events a step by `unit` takes in, None where they do not reach its end."""
        return next((number for number, event in enumerate(events, 1) if self._ends(unit, event)), None)

    def _ends(self, unit: Unit, event: Event) -> bool:
        if unit == "event" or event.terminal or event.type == "model_error":
            return True
        if unit == "call":
            return event.type == "call_end"
        if unit == "phase":
            return event.phase is not None and event.type != "run_start"
        return event.seq in self._turn_ends

    def limit_reached(
        self, state: State, *, starting: Literal["model", "call", "own"], more: Mapping[str, float] | None = None
    ) -> str | None:
        """Why nothing more may start in a run that stands at `state`, where a limit says so.

        Calls are those of tools, in all loops of the run together; what a loop does itself (`own`) is none. more: what
        an answer that has not come to its end has used.
        """
        usage = dict(state.usage)
        for name, amount in (more or {}).items():
            usage[name] = usage.get(name, 0) + amount
        tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        used: dict[str, float] = {
            "turns": state.requests if starting == "model" else -1,
            "calls": state.calls_started if starting == "call" else -1,
            "seconds": self.seconds_driven(),
            "tokens": tokens,
            "cost": usage.get("cost", 0),
        }
        for name, limit in self.limits.items():
            if name == "cost" and usage and "cost" not in usage:  # a budget that nobody counts is none
                return f"The limit of {limit:g} cost cannot be kept: the model tells tokens and no cost. Limit those."
            if used[name] >= limit:
                return f"The limit of {limit:g} {name} is reached."
        return None


def check_unit(unit: Unit) -> None:
    """Raise UsageError where this is no unit of a step."""
    if unit not in UNITS:
        raise UsageError(f"A step is one {', '.join(UNITS)}, not {unit!r}.")


def _ends_turn(event: Event, state: State) -> bool:
    """Whether a model's answer and all of its calls are done with this event, or an agent that asks no model is."""
    if event.type == "run_end":
        return not state.requests and not state.children
    if event.type not in ("model_end", "call_end", "call_start") or len(state.open) > state.detached:
        return False
    if event.type == "model_end":
        return True
    call = state.calls.get(getattr(event, "call_id", ""))
    if call is None or call.hidden or state.model == "asked":
        return False
    return event.type == "call_start" or not call.let_go


def check_limits(limits: Mapping[str, Any]) -> dict[str, float]:
    """Return limits as numbers of Python's. Raises UsageError for an unknown limit, or one that is no number."""
    numbers = {name: plain_number(limit) for name, limit in limits.items()}
    for name, limit in numbers.items():
        if name not in LIMITS:
            raise UsageError(f"limits= knows {', '.join(sorted(LIMITS))}, not {name!r}.")
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit >= 0
        if not is_number or (isinstance(limit, int) and limit.bit_length() > 1000):  # more than a float can hold
            raise UsageError(f"limits[{name!r}] must be a number that is not negative, not {shown(limit)}.")
    return numbers
