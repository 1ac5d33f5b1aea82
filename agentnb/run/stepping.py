"""Steps: continue a run to the end of the next event, call, turn or phase, and return the events of that step.

A step drives a run that has no owner. If another owner drives, the run continues to the end of the step and pauses.
"""

from __future__ import annotations

import asyncio

from agentnb.core.errors import RunFailed, UsageError
from agentnb.core.events import Event, RunPaused, RunResumed
from agentnb.run import ownership
from agentnb.run.gate.gate import Permit, Unit, check_unit
from agentnb.run.ownership import TAKEN_HERE, Ownership


async def step(run: Ownership, unit: Unit, *, taken_here: bool = False) -> list[Event]:
    """Continue to the end of the next `unit`. Returns the events since the last step.

    Raises UsageError for an unknown unit, if another step is under way, and if the run would have to advance although
    the caller iterates over it (`taken_here`).
    """
    check_unit(unit)
    if run.gate.owner is None and (home := run.driver.home) is not None:
        return await _step_there(run, unit, home)
    gate = run.gate
    with run.journal.saying():
        if gate.permit is not None and run.is_driven:
            raise UsageError(
                "A step is running already. Start another one after it has ended; run.cancel() ends the run."
            )
        if run.state.failure is not None:
            run.journal.append(RunResumed())
        _begin_after_a_pause(run)
        if (done := _take(run, unit)) or run.state.over:
            return done
        if taken_here:
            raise UsageError(TAKEN_HERE)
        run.journal.observe(run.observe)
        begins = run.reported
        mine = run.claim("step")
        permit = gate.permit = Permit(unit, run.state.position)
        if not mine and not run.state.paused:  # it is playing: let it continue to the end of the step, and no further
            gate.pause_for_a_step()
    if mine:
        await _drive_step(run)
    else:
        run.driver.wakeup.nudge()
        stop = run.watch_releases(gate.release_permit)
        try:
            if not run.is_driven:
                gate.release_permit()
            await asyncio.wrap_future(permit.done)
        finally:
            stop()
        run.reported = begins  # `release` has moved it if the run has ended, but this step returns these events too
    if not (taken := _take(run, unit, all_of_them=True)) and not run.state.over:
        run.driver.unattended.stepped_in_vain()
        await asyncio.sleep(0)  # another task may decide; the caller may step again immediately
    return taken


async def _step_there(run: Ownership, unit: Unit, home: asyncio.AbstractEventLoop) -> list[Event]:
    """Step in the event loop that has calls of the run in flight. If that loop cancels its tasks, the step ends."""
    stepping = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step(run, unit), home))
    try:
        while not (await asyncio.wait([stepping], timeout=ownership.LOOK_SECONDS))[0] and not home.is_closed():
            run.check_not_gone()
    except asyncio.CancelledError:
        stepping.cancel()
        raise
    if stepping.done() and not stepping.cancelled():
        return stepping.result()
    run.check_not_gone()
    return _take(run, unit, all_of_them=True)


def _begin_after_a_pause(run: Ownership) -> None:
    """If another owner drives and has paused, exclude the events before the pause from the step."""
    if run.gate.owner in (None, "step") or not run.state.paused:
        return
    unreported = reversed(run.journal.events[run.reported :])
    pause = next((event for event in unreported if isinstance(event, RunPaused)), None)
    if pause is not None and pause.by != "step":
        run.reported = pause.seq + 1


async def _drive_step(run: Ownership) -> None:
    try:
        async for _ in run.driver.pump("step"):
            pass
    except RunFailed:
        if run.state.failure is None:  # a failure of the model is an event of this step; another error is raised
            raise
    except asyncio.CancelledError:  # others that read the run may continue it
        run.leave()
        raise
    finally:
        run.gate.permit = None
        run.release()


def _take(run: Ownership, unit: Unit, *, all_of_them: bool = False) -> list[Event]:
    """Return the events since the last step, up to the end of the next unit.

    If they do not reach its end, return an empty list; with `all_of_them`, return all.
    """
    with run.journal.lock:
        events = run.journal.events[run.reported :]
        end = run.gate.boundary(unit, events)
        if end is None:
            if not all_of_them:
                return []
            end = len(events)
        run.reported += end
        return events[:end]
