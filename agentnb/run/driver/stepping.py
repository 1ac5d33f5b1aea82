"""Stepping: a permit to go on up to the end of the next event, call, turn or phase."""

from __future__ import annotations

import asyncio

from agentnb.core.errors import RunFailed, UsageError
from agentnb.core.events import Event, RunPaused, RunResumed
from agentnb.run.driver.claims import LOOK_SECONDS, TAKEN_HERE, Driving
from agentnb.run.gate.gate import Permit, Unit, check_unit


async def step(run: Driving, unit: Unit, *, taken_here: bool = False) -> list[Event]:
    """Go on to the end of the next `unit`; gives the events since the last step.

    Raises UsageError on another unit, and where the run would have to go on that is `taken_here`, by whoever steps it.
    """
    check_unit(unit)
    if run.gate.owner is None and (home := run.driver.home) is not None:
        return await _step_there(run, unit, home)
    gate = run.gate
    with run.journal.saying():
        if gate.permit is not None and run.is_driven:
            raise UsageError(
                "A step is under way already; another can begin when it has ended. run.cancel() ends the run."
            )
        if run.state.failure is not None:
            run.journal.append(RunResumed())
        _begin_behind_a_pause(run)
        if (done := _take(run, unit)) or run.state.over:
            return done
        if taken_here:
            raise UsageError(TAKEN_HERE)
        run.journal.observe(run.observe)
        begins = run.reported
        mine = run.claim("step")
        permit = gate.permit = Permit(unit, run.state.position)
        if not mine and not run.state.paused:  # it is playing: let it go on to the boundary, and no further
            gate.pause_for_a_step()
    if mine:
        await _drive(run)
    else:
        run.driver.news.nudge()
        stop = run.watch_releases(gate.release_permit)
        try:
            if not run.is_driven:
                gate.release_permit()
            await asyncio.wrap_future(permit.done)
        finally:
            stop()
        run.reported = begins  # where the run has ended meanwhile, whoever drove it has left off, but not this step
    if not (taken := _take(run, unit, whatever=True)) and not run.state.over:
        run.driver.unattended.stepped_in_vain()
        await asyncio.sleep(0)  # the person may be a task beside this one, which steps again at once
    return taken


async def _step_there(run: Driving, unit: Unit, home: asyncio.AbstractEventLoop) -> list[Event]:
    """Step in the event loop that has calls of the run in flight; where that ends its tasks, so does the step."""
    stepping = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step(run, unit), home))
    try:
        while not (await asyncio.wait([stepping], timeout=LOOK_SECONDS))[0] and not home.is_closed():
            run.check_not_gone()
    except asyncio.CancelledError:
        stepping.cancel()
        raise
    if stepping.done() and not stepping.cancelled():
        return stepping.result()
    run.check_not_gone()
    return _take(run, unit, whatever=True)


def _begin_behind_a_pause(run: Driving) -> None:
    """Where somebody else drives and has come to rest, what happened before that is not part of a step."""
    if run.gate.owner in (None, "step") or not run.state.paused:
        return
    unreported = reversed(run.journal.events[run.reported :])
    pause = next((event for event in unreported if isinstance(event, RunPaused)), None)
    if pause is not None and pause.by != "step":
        run.reported = pause.seq + 1


async def _drive(run: Driving) -> None:
    try:
        async for _ in run.driver.pump("step"):
            pass
    except RunFailed:
        if run.state.failure is None:  # the model's failure is an event of this step; ours is raised
            raise
    except asyncio.CancelledError:  # where others read the run, it is theirs to go on with
        run.leave_to_others()
        raise
    finally:
        run.gate.permit = None
        run.release()


def _take(run: Driving, unit: Unit, *, whatever: bool = False) -> list[Event]:
    """The events since the last step, up to the end of the next unit; all of them for `whatever`."""
    with run.journal.lock:
        events = run.journal.events[run.reported :]
        end = run.gate.boundary(unit, events)
        if end is None:
            if not whatever:
                return []
            end = len(events)
        run.reported += end
        return events[:end]
