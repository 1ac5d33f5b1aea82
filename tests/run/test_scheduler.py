"""The scheduler decides from the state, the gate and the effects in flight. It performs nothing, without event loop."""

from __future__ import annotations

import asyncio

import pytest

import agentnb
from agentnb import Run, SessionLoop, tool
from agentnb.core.required_effects import Effect
from agentnb.run.gate.gate import Permit
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.scheduler import Action, Pace, next_actions
from agentnb.testing import ScriptedLLM, call


@tool
def read() -> str:
    """Read."""
    return "text"


@tool(idempotent=True)
def look() -> str:
    """Look."""
    return "text"


def stopped_after(*types: str, calls: str = "read", **options: object) -> Run:
    """Return a driven run that was restored directly after events of these types, in this order."""
    answer = [call(name, {}, id=name) for name in calls.split()]

    def loop() -> SessionLoop:
        return SessionLoop(ScriptedLLM([answer, "done"]), [read, look])

    whole = loop().start("go")
    asyncio.run(_end(whole))
    wanted = iter(types)
    position, next_type = 0, next(wanted)
    for position, event in enumerate(whole.events, 1):  # noqa: B007 - it is used after the loop
        if event.type == next_type and (next_type := next(wanted, "")) == "":
            break
    run = agentnb.restore(Snapshot.of(whole.events[:position]), loop(), **options)
    run._driver.begin()
    run._gate.owner = "await"
    return run


async def _end(run: Run) -> None:
    await run


def decided(run: Run, pace: Pace = "drain") -> Action:
    """The first action that the scheduler decides on."""
    driver = run._driver
    run._journal.fresh = False
    return next(iter(next_actions(run._journal, run._gate, driver._executor.loops, driver._inflight, pace)))


def name(action: Action) -> str:
    return type(action).__name__


@pytest.mark.parametrize(
    ("stopped", "calls", "action"),
    [
        (["run_start"], "read", "Advance"),
        (["model_start"], "read", "RequestAgain"),  # the process that sent the request has exited
        (["model_end"], "read", "Start"),
        (["model_end"], "unknown", "Settle"),
        (["call_start"], "read", "AskPerson"),  # the outcome of the call is unknown
        (["call_start"], "look", "Start"),  # it may run again
        (["call_end"], "read", "Advance"),
    ],
)
def test_the_action_follows_from_the_state(stopped: list[str], calls: str, action: str) -> None:
    assert name(decided(stopped_after(*stopped, calls=calls))) == action


def test_a_decision_of_the_scheduler_changes_nothing() -> None:
    run = stopped_after("model_end")
    before = len(run.events)
    assert decided(run) == decided(run)
    assert len(run.events) == before


def test_nothing_starts_while_the_gate_is_closed() -> None:
    run = stopped_after("model_end")
    run._gate.ask_for_pause("enough")
    assert name(decided(run)) == "Pause"


def test_a_permit_opens_the_gate_of_a_paused_run() -> None:
    run = stopped_after("model_end")
    run._gate.ask_for_pause("enough")
    run._gate.permit = Permit("event")
    assert name(decided(run, "step")) == "Start"


def test_an_effect_in_flight_that_is_not_required_is_cancelled() -> None:
    run = stopped_after("model_end")
    effect = Effect("call", "gone")
    run._driver._inflight[effect] = None  # type: ignore[assignment]  # no task: nothing is performed here
    action = decided(run)
    assert name(action) == "CancelAllBut"
    assert effect not in action.required  # type: ignore[union-attr]  # it is a CancelAllBut


def test_a_policy_checks_the_call_in_a_task() -> None:
    assert name(decided(stopped_after("model_end", approve=lambda call: "allow"))) == "Check"


def test_a_limit_ends_the_run_before_the_call() -> None:
    run = stopped_after("model_end", limits={"calls": 0})
    assert name(decided(run)) == "EndAtLimit"


def test_breakpoints_are_checked_before_the_call_starts() -> None:
    run = stopped_after("model_end")
    run.breakpoints.add("read")
    assert name(decided(run)) == "AskBreakpoints"


def test_a_call_stopped_by_a_breakpoint_starts_before_the_next_call_is_stopped() -> None:
    run = stopped_after("model_end", calls="read look")
    run.breakpoints.add("call_start")
    executor = run._driver._executor
    loop = executor.loops[0]
    loop._stopped_before["look"] = run.state.open["look"]
    actions = list(next_actions(run._journal, run._gate, executor.loops, run._driver._inflight, "drain"))
    starts = [action.call.id for action in actions if name(action) == "Start"]  # type: ignore[union-attr]  # a Start
    assert starts == ["look"]
    assert "AskBreakpoints" not in map(name, actions)
