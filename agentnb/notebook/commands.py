"""The functions behind the magics. They act on the given run, or on the run that was started or restored last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.loops.base import Loop
from agentnb.notebook.stores import stores
from agentnb.run import Replay, Run, Snapshot, environment, latest_run, runs_here
from agentnb.run import replay as replay_recording
from agentnb.run import restore as restore_run
from agentnb.run.gate.gate import UNITS
from agentnb.run.validation import check_text, shown
from agentnb.widgets import SNAPSHOTS

SUFFIX = ".agentnb.json"


def current(given: Run | None = None) -> Run:
    """Return the given run, or else the run that was started or restored last.

    Raises UsageError if `given` is not a run, or if no run has been started.
    """
    if not isinstance(given, (Run, type(None))):
        raise UsageError(f"run must be a run, got {shown(given)}.")
    run = given or latest_run()
    if run is None:
        raise UsageError(
            "No run has been started in this kernel. Start one: run = loop.start(...). agentnb.attach() shows the runs"
            " of the stores."
        )
    return run


def step(unit: str = "event", run: Run | None = None) -> list[Event]:
    """Advance the run to the end of the next event, call, turn or phase; return the events of that step.

    Blocks until the step has ended. unit: "event", "call", "turn" or "phase". run: None for the latest run.

    Raises UsageError for an unknown unit, and in the body of an `async for` that drives the run.
    """
    known_unit = next((known for known in UNITS if known == unit), None)
    if known_unit is None:
        raise UsageError(f"%step takes {', '.join(UNITS)}, not {unit!r}.")
    stepping = current(run).submit_step(known_unit, blocking=True)
    try:
        environment.current.wait(stepping)
    except KeyboardInterrupt as stop:
        environment.current.stopped(stop, environment.STEP_STOPPED)
        raise
    return stepping.result()


def pause(run: Run | None = None) -> bool:
    """Pause the run: nothing new is started. Return True if there was something to pause."""
    return current(run).pause()


def resume(run: Run | None = None) -> Run:
    """Resume the run in the background, also after a failure of the model; return the run."""
    run = current(run)
    run.play()
    return run


def snapshot(name: str, run: Run | None = None) -> Snapshot:
    """Save a snapshot of the run as NAME.agentnb.json, and in the run's store if it has one; return the snapshot.

    Raises UsageError if `name` is not a file name.
    """
    given: Any = name
    if not isinstance(given, str) or not name or Path(name).name != name:
        raise UsageError(f"%snapshot takes a file name without a folder, such as before-writing; got {name!r}.")
    taken = current(run).snapshot(name)
    taken.save(name + SUFFIX)
    return taken


def restore(
    snapshot: str | Snapshot | Run, loop: Loop | None = None, *, loops: Mapping[str, Loop] | None = None
) -> Run:
    """Return a run that resumes a snapshot or a run.

    snapshot: a snapshot, a run of this kernel, a name, or the path of a file. A name is searched in this order: a file
    NAME.agentnb.json in the working directory, a snapshot or a run in a store, a snapshot taken in a panel, a run of
    this kernel. loop: the loop of the run. Without it, the only loop of the run's kind in `loops` is used, or else the
    loop with which the run was started in this kernel. loops: the loops to choose from, by the names of the variables.

    If a store has the run, the new run is kept in that store. It has the name of the run, unless the store has events
    of the run that are later than the snapshot.

    Raises UsageError if the snapshot or the loop is not found.
    """
    found = find_snapshot(snapshot)

    # Choose the loop: the only one of the run's kind in `loops`, or else the loop of the run in this kernel, even if no
    # variable has it. Variables whose names start with "_" are left out, because IPython keeps outputs in them.
    if loop is None:
        kind = found.start.loop
        given: Mapping[str, Any] = loops or {}
        fitting = {name: one for name, one in given.items() if isinstance(one, Loop) and one.kind() == kind}
        distinct = {id(one): one for name, one in fitting.items() if not name.startswith("_")}
        own = next((run.loop for run in runs_here() if run.id == found.run_id and isinstance(run.loop, Loop)), None)
        if len(distinct) == 1:
            loop = next(iter(distinct.values()))
        elif own is not None:
            loop = own
        else:
            raise UsageError(
                f"Pass the loop of the run, a {kind}: %restore NAME LOOP. Loops of this kind here:"
                f" {', '.join(fitting) or 'none'}."
            )

    # Keep the new run in the store that has the run, under the run's name if the store has no later events.
    kept_in = next((store for store in stores() if store.position(found.run_id)), None)
    name = None
    if kept_in is not None and kept_in.position(found.run_id) <= found.position:
        name = next(info.name for info in kept_in.runs() if info.id == found.run_id)
    return restore_run(found, loop, store=kept_in, name=name)


def replay(name: str | Snapshot | Run, loop: Loop | None = None) -> Replay:
    """Return a replay of a snapshot or a run. A replay is a run that performs nothing.

    name: a snapshot, a run, a name or a path, as `restore` takes it. loop: the loop whose decisions are compared with
    the recording; None to compare nothing.

    Raises UsageError if `name` is not found.
    """
    return replay_recording(find_snapshot(name), loop)


def find_snapshot(name: str | Snapshot | Run) -> Snapshot:
    """Return the snapshot with this name, or a snapshot of the current state of a run.

    Raises UsageError if no snapshot has this name; the message lists the known names.
    """
    if isinstance(name, Snapshot):
        return name
    if isinstance(name, Run):
        return name.snapshot()
    check_text("The name of a snapshot", name)
    if Path(name + SUFFIX).exists():
        return Snapshot.load(name + SUFFIX)
    for store in stores():
        if name in store.names() or store.position(name):
            return store.load(name)
    if name in SNAPSHOTS:
        taken: Snapshot = SNAPSHOTS[name]
        return taken
    if run := run_here(name):
        return run.snapshot()
    if Path(name).is_file():
        return Snapshot.load(name)
    known = ", ".join(snapshot_names()[:20]) or "none"
    raise UsageError(
        f"There is no snapshot {name!r}, neither as a file {name + SUFFIX} nor in a store. Known: {known}."
    )


def snapshot_names() -> list[str]:
    """Return the names of snapshots: in the working directory, in the stores, and of those taken in a panel."""
    files = sorted(path.name.removesuffix(SUFFIX) for path in Path().glob(f"*{SUFFIX}"))
    return list(dict.fromkeys([*files, *(name for store in stores() for name in store.names()), *SNAPSHOTS]))


def is_name(text: str) -> bool:
    """Return True if the text is one of `snapshot_names`, the name or id of a run of this kernel, or a file."""
    return text in snapshot_names() or run_here(text) is not None or Path(text).is_file()


def run_here(name: str) -> Run | None:
    """Return the run of this kernel with this name or id, or None."""
    return next((run for run in runs_here() if name in (run.name, run.id)), None)
