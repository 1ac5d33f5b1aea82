"""The gate: decides whether new effects may start. It also checks the limits of the run.

The gate is closed by a requested pause, by a breakpoint, and by a step whose permit is used up. A permit is valid until
the event is recorded that ends the step. The gate only prevents starts: effects in flight continue, and their ends are
always recorded. A loop's own call that yields events (an async generator) is not in flight after it has yielded one:
resuming it counts as a start.

A breakpoint at the start of a call stops the run before the call: the start is not recorded, and the call has no
effect. A breakpoint at any other event stops the run directly after the event. If the start of a call was recorded
before the gate closes, the call is launched nevertheless, because it is recorded as running.

A requested pause takes effect at a position at which all loops can pause. A nested loop whose parent does not pause
inside a call finishes first (`Frame.finishes_first`). A breakpoint and a step concern one event, and the run stops
directly after that event, in every loop.
"""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from agentnb.core.errors import UsageError
from agentnb.core.events import CallStart, Event, RunPaused, RunResumed, RunStart
from agentnb.core.json import plain_number, repair_text
from agentnb.core.state import State
from agentnb.llms.prices import INSTALL, has_prices
from agentnb.run.event_data import error_text
from agentnb.run.gate.breakpoints import Breakpoint, Breakpoints
from agentnb.run.gate.names import Names
from agentnb.run.spending import UNPRICED
from agentnb.run.validation import shown

Unit = Literal["event", "call", "turn", "phase"]
Owner = Literal["pull", "await", "play", "step"]
"""The owner of a run: a consumer that pulls, a task for the callers that wait, one in the background, or a step."""
UNITS: tuple[Unit, ...] = ("event", "call", "turn", "phase")
Pauser = Literal["human", "step", "breakpoint", "limit"]
"""The source of a pause (`RunPaused.by`)."""
LIMITS = frozenset({"turns", "calls", "seconds", "tokens", "cost"})


class OnlyRequest(NamedTuple):
    """The only effect that a run may start: the request of the loop at `path` with this turn.

    reason: for which the run is cancelled when the answer is there, and nothing but an effect can follow.
    """

    path: str
    turn: int
    reason: str


@dataclass
class Permit:
    """Permission to advance to the end of the next `unit`. `done` is completed when the step ends.

    `begins` is the number of events when the step started.
    """

    unit: Unit
    begins: int = 0
    done: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)

    def release(self) -> None:
        """Complete `done`, because the step has ended. Without effect if it is complete."""
        if not self.done.done():
            self.done.set_result(None)


class Gate:
    """The reasons that prevent a run from starting effects, and the limits that end it."""

    def __init__(
        self,
        breakpoints: Sequence[Any],
        limits: Mapping[str, Any] | None,
        known: Callable[[], Names] = Names,
    ) -> None:
        """`breakpoints`: their specs. `limits`: by name (`LIMITS`). `known` returns the names of tools and phases."""
        self.breakpoints = Breakpoints(breakpoints, known)
        self.breakpoints.failed = self._pause_after_failure
        self.limits = check_limits(limits or {})
        self.asks_at_limits = False
        """True if the run pauses at a limit, until a person resumes it."""
        self.spent_before: Mapping[str, float] = {}
        """The cost of the answers in the recording that a run continues, as far as it was not recorded."""
        self.unpriced_model: Callable[[], str] = str
        """A function that returns the name of the model whose price is not known, for errors."""
        self.pausing: str | None = None
        """The reason of the requested pause, or None if no pause is requested."""
        self.asked: Callable[[], object] = lambda: None
        """A callback, called after a pause was requested."""
        self.pausing_by: Pauser = "human"
        """The source of the requested pause."""
        self.pausing_before: tuple[str, str] | None = None
        """The path and id of the call before which a breakpoint pauses the run, or None for any other pause."""
        self.at_once = False
        """True if the requested pause does not wait for loops that must finish first."""
        self.permit: Permit | None = None
        self.owner: Owner | None = None
        """The owner of the run, or None if no one drives it."""
        self.hold: Callable[[], bool] = bool
        """A function that returns True while no model request may start: of a study whose limit is reached."""
        self.is_held = False
        """True if a model request has not started for this reason."""
        self.only_request: OnlyRequest | None = None
        """The only effect that may start: of the sample of one step. None if every effect may start."""
        self.suspends_at_questions = False
        """True if the run ends in this process (suspended) when it waits only for a person."""
        self._turn_ends: set[int] = set()
        self._driven_since: float | None = None

    def seconds_driven(self) -> float:
        """Return the seconds since this run was first driven in this process; the first call starts the clock.

        The age of the recording that a run was restored from does not count.
        """
        if self._driven_since is None:
            self._driven_since = time.monotonic()
        return time.monotonic() - self._driven_since

    def release_permit(self) -> None:
        """End the current step, also before the end of its unit. Without effect if there is no permit."""
        if self.permit is not None:
            self.permit.release()
            self.permit = None

    def is_open(self, state: State, *, finishing: bool = False) -> bool:
        """Return True if new effects may start now.

        state: the state of the whole run. finishing: the effect belongs to a loop that a requested pause waits for.
        """
        if self.permit is not None or state.cancelled is not None:  # a cancelled run requires no effects, and must end
            return True
        if state.paused or self.owner in (None, "step"):  # a step without a permit has ended
            return False
        return self.pausing is None or (finishing and not self.at_once)

    def holds_requests(self) -> bool:
        """Return True if no model request may start now."""
        self.is_held = self.hold()
        return self.is_held

    def excludes(self, kind: str, path: str, turn: int) -> bool:
        """Return True if an effect of the loop at `path`, in this turn, may never start: only a request may."""
        only = self.only_request
        return only is not None and (kind != "model" or (path, turn) != only[:2])

    def ask_for_pause(self, reason: str, by: Pauser = "human") -> None:
        """Request a pause: close the gate until the run is paused, or the request is withdrawn.

        A pause from a person waits for loops that must finish first; a pause from a step or a breakpoint does not.
        """
        self.pausing, self.pausing_by, self.at_once = repair_text(reason), by, by != "human"
        self.pausing_before = None
        self.asked()

    def pause_for_a_step(self) -> None:
        """Request a pause at the end of the step that starts now. A pause requested before takes effect there too."""
        if self.pausing is None:
            self.ask_for_pause("step", "step")
        self.at_once = True

    def observe(self, event: Event, state: State, run: State) -> None:
        """Check whether a recorded event ends the current step or hits a breakpoint.

        state: the state of the event's loop. run: the state of the whole run.
        """
        if _ends_turn(event, state):
            self._turn_ends.add(event.seq)
        if self.permit is not None and self._ends(self.permit.unit, event):
            self.release_permit()
        if event.type != "call_start" and (hit := self.breakpoints.hit(event, state, run)) is not None:
            self._stop_at(event, hit.label)

    def stops_before(self, start: CallStart, state: State, run: State) -> bool:
        """Ask the breakpoints about a call that would start now. Return True if the run stops before the call.

        start: the event that would be recorded next. state: the state of the loop that made the call. run: the state of
        the whole run.
        """
        earlier = self.pausing
        hit = self.breakpoints.hit(start, state, run)
        # A step of a paused run that begins directly before the call starts the call: the run has stopped here already.
        if self.permit is not None and run.paused and self.permit.begins == run.position:
            return False
        if hit is not None:
            self._stop_at(start, hit.label)
        if self.pausing is earlier:
            return False
        self.pausing_before = (start.path, start.call_id)
        return True

    def _pause_after_failure(self, breakpoint: Breakpoint, event: Event, error: BaseException) -> None:
        """Pause the run because a breakpoint raised an error, and disable it: it would fail at the next event too."""
        breakpoint.enabled = False
        self._stop_at(event, f"{breakpoint.label} failed and was disabled ({error_text(error)})")

    def _stop_at(self, event: Event, label: str) -> None:
        """Request a pause at a breakpoint, and end the current step. `label`: its label, or the error it raised."""
        position = f"(seq {event.seq})"
        if isinstance(event, CallStart):
            position = f"of {event.name} ({event.call_id}), which has not started"
        self.ask_for_pause(f"breakpoint at {event.type} {position}: {label}", "breakpoint")
        self.release_permit()

    def boundary(self, unit: Unit, events: Sequence[Event]) -> int | None:
        """Return the number of these events that belong to a step by `unit`, or None if the step does not end in them.

        The events must have been observed, because the ends of turns are recorded by `observe`.
        """
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
        """Return the message of the limit that prevents a start, or None if the start is within all limits.

        state: the state of the whole run. starting: a model request, a tool call, or a loop's own call. The limit
        "turns" applies to model requests only, and "calls" to tool calls only, of all loops together; the other limits
        always apply. more: the usage of a model's answer that is not complete.
        """
        usage = self._usage(state, more or {})
        used = self._used(state, usage)
        if starting != "model":
            used["turns"] = -1
        if starting != "call":
            used["calls"] = -1
        # A limit without a known cost would have no effect.
        if "cost" in self.limits and usage.get(UNPRICED):
            model = self.unpriced_model()
            why = f"the price of {model} is not known" if has_prices() and model else f"prices need {INSTALL}"
            return (
                f"The limit of {self.limits['cost']:g} cost cannot be enforced: the model reports tokens but no cost."
                f" Limit the tokens instead. It cannot be estimated either: {why}."
            )
        reached = [limit_message(name, limit) for name, limit in self.limits.items() if used[name] >= limit]
        return " ".join(reached) or None

    def stop_at_limit(self, why: str) -> bool:
        """Request a pause because a limit is reached, and end the current step. Return False if the run ends instead.

        A cost that is not known ends the run: to allow the same amount once more would have no effect.
        """
        if not self.asks_at_limits or "cannot be enforced" in why:
            return False
        self.ask_for_pause(f"{why} resume() allows the same amount once more.", "limit")
        self.release_permit()
        return True

    def resumed(self, state: State, events: Sequence[Event]) -> RunResumed:
        """Return the event that resumes a paused run. After a limit, it allows the same amount once more.

        It raises only the limits that the pause has named. state, events: of the whole run.
        """
        if (paused := pause_at_limit(state, events)) is None:
            return RunResumed()
        amounts = _given_limits(events)
        used = self._used(state, self._usage(state))
        raised = {
            name: used[name] + amounts.get(name, limit) if limit_message(name, limit) in paused.reason else limit
            for name, limit in self.limits.items()
        }
        self.limits = raised
        return RunResumed(limits=raised, raised=True)

    def _usage(self, state: State, more: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
        """Return the usage of the whole run, with that of an answer that is not complete."""
        usage = dict(state.usage)
        for name, amount in [*self.spent_before.items(), *more.items()]:
            usage[name] = usage.get(name, 0) + amount
        return usage

    def _used(self, state: State, usage: Mapping[str, float]) -> dict[str, float]:
        return {
            "turns": state.requests,
            "calls": state.calls_started,
            "seconds": self.seconds_driven(),
            "tokens": usage.get("input_tokens", 0) + usage.get("output_tokens", 0),
            "cost": usage.get("cost", 0) + usage.get("cost_estimate", 0),
        }


def check_unit(unit: Unit) -> None:
    """Raise UsageError if this is not a unit of a step."""
    if unit not in UNITS:
        raise UsageError(f"A step must be one of {', '.join(UNITS)}, not {unit!r}.")


def _ends_turn(event: Event, state: State) -> bool:
    """Return True if this event ends a turn, that is, a model's answer and all of its calls.

    The end of a loop that has made no model request and has no nested loops ends a turn too. Detached calls do not
    delay the end of a turn. state: the state of the event's loop.
    """
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


def pause_at_limit(state: State, events: Sequence[Event]) -> RunPaused | None:
    """Return the pause of a run that a limit has paused; None if it is not paused, or by something else.

    state, events: of the whole run.
    """
    if not state.paused:
        return None
    paused = next((event for event in reversed(events) if isinstance(event, RunPaused)), None)
    return paused if paused is not None and paused.by == "limit" else None


def limit_message(name: str, limit: float) -> str:
    """Return the text that a run has reached a limit."""
    return f"The limit of {limit if isinstance(limit, int) else f'{limit:g}'} {name} is reached."


def _given_limits(events: Sequence[Event]) -> Mapping[str, float]:
    """Return the limits that a person has given last, at the start of the run or when it was restored."""
    for event in reversed(events):
        if isinstance(event, RunResumed) and event.limits is not None and not event.raised:
            return event.limits
    return events[0].limits if isinstance(events[0], RunStart) else {}


def check_limits(limits: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits as Python numbers, without infinite ones, which JSON does not have.

    Raises UsageError if a limit is unknown or not a non-negative number.
    """
    numbers = {name: plain_number(limit) for name, limit in limits.items()}
    for name, limit in numbers.items():
        if name in ("total_cost", "total_tokens"):
            raise UsageError(f"limits[{name!r}] is a limit of a whole study: pass it to agentnb.study(limits=...).")
        if name not in LIMITS:
            raise UsageError(f"limits= has no limit {name!r}; the limits are {', '.join(sorted(LIMITS))}.")
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit >= 0
        if not is_number or (isinstance(limit, int) and limit.bit_length() > 1000):  # more than a float can hold
            raise UsageError(f"limits[{name!r}] must be a non-negative number, not {shown(limit)}.")
    return {name: limit for name, limit in numbers.items() if limit < math.inf}
