"""Awaiting: to drive a run to its end, or wait for whoever does, and be given what it came to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from agentnb.core.errors import RunFailed, UsageError, WaitTimeoutError
from agentnb.run import host as hosting
from agentnb.run.driver.claims import TAKEN_HERE, Driving
from agentnb.run.effects.calling import check_not_within
from agentnb.run.output import output_of


async def to_the_end(run: Driving) -> Any:
    """Drive, or wait for who does, until the run is settled; gives its output."""
    _check_may_wait(run)
    while not run.settled:
        if not hosting.environment.hosted and run.claim("await"):
            await _drain(run)
        else:
            await _wait_for_the_others(run)
    if run.state.over:
        await run.driver.close()
    return outcome(run)


def result(run: Driving, timeout: float | None) -> Any:
    """Block until the run is settled; gives its output. Raises TimeoutError after `timeout` seconds."""
    _check_may_wait(run)
    if run.is_taken_in_this_task():
        raise UsageError(TAKEN_HERE)
    until = time.monotonic() + timeout if timeout is not None else None
    while not run.settled:
        try:
            with run.released() as released:
                if run.driver.news.is_here():
                    raise UsageError("result() would block the event loop that drives this run; await the run instead.")
                with run.driver.unattended.waited_for():
                    left = max(0.0, until - time.monotonic()) if until is not None else None
                    hosting.environment.wait(released, left, run.decisions)
        except TimeoutError:
            asked = ", ".join(call.name for call in run.decisions.pending)
            waits = f" It waits for a decision about {asked} (run.pending)." if asked else ""
            on = "is paused (run.paused_for) until run.resume()" if run.state.paused else "goes on"
            raise WaitTimeoutError(f"The run is not over after {timeout:g} s; it {on}.{waits}") from None
        except KeyboardInterrupt as stop:
            _stopped(run, stop)
            raise
    return outcome(run)


def outcome(run: Driving) -> Any:
    """The output of a run that is settled. Raises RunFailed, RunCancelled or LimitReached where it has none."""
    state, driver = run.state, run.driver
    if not (state.over or driver.is_stuck):
        raise driver.failed()
    output = output_of(state, run.journal.root.design, cause=driver.cause)
    if (crash := driver.crash) is not None:  # it came to an end, and that could not be recorded
        raise RunFailed(f"{type(crash).__name__}: {crash}") from crash
    return output


def _check_may_wait(run: Driving) -> None:
    """Raise UsageError where the run goes on only when the caller does, who would wait for ever."""
    check_not_within(run.journal)
    if run.is_taken_here():
        raise UsageError(TAKEN_HERE)


async def _drain(run: Driving) -> None:
    try:
        run.go_on_if_paused()
        async for _ in run.driver.pump("drain"):
            pass
    except asyncio.CancelledError:
        run.leave("whoever awaited it was cancelled")
        if not run.is_left:
            await run.driver.close()
        raise
    except RunFailed:
        pass  # `outcome` raises it
    finally:
        run.release()


async def _wait_for_the_others(run: Driving) -> None:
    try:
        with run.released() as released, run.driver.unattended.waited_for():
            await hosting.environment.wait_async(released, run.decisions)
    except asyncio.CancelledError as stop:
        if hosting.environment.hosted and not run.is_watched:  # Stop in the cell that waits
            _stopped(run, stop)
        elif run.is_for_others:  # for this one, too
            run.leave("whoever awaited it was cancelled")
            if not run.is_left:
                await run.driver.close()
        raise


def _stopped(run: Driving, stop: BaseException) -> None:
    run.cancel("interrupted")
    hosting.environment.stopped(stop, hosting.STOPPED)
