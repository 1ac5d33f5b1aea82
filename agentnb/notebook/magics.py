"""The magics: a run stepped, paused, saved and restored in a line each.

They act on the run that was started or restored last. Each is a method of `Run`, or a function, in other words; what
they print is for reading, and what they return can be used (`events = %step turn`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from IPython.core.magic import Magics, line_magic, magics_class

from agentnb.core.errors import AgentnbError, UsageError
from agentnb.core.events import Event, plain_event
from agentnb.loops.base import Loop
from agentnb.run import Run, Snapshot, latest_run, restore
from agentnb.run import host as hosting
from agentnb.run.gate import UNITS
from agentnb.store import Store
from agentnb.widgets import SNAPSHOTS

NAMES = ("step", "pause", "resume", "snapshot", "restore", "runs")
SUFFIX = ".agentnb.json"
_SHOWN = 100

T = TypeVar("T")


@magics_class
class RunMagics(Magics):
    """`%step [unit]`, `%pause`, `%resume`, `%snapshot NAME`, `%restore NAME [LOOP]`, `%runs`."""

    @line_magic
    def step(self, line: str) -> list[Event] | None:
        """`%step [event|call|turn|phase]`: go on to the end of the next one; gives the events of that step."""
        return _say_what_went_wrong(lambda: self._step(line.strip() or "event"))

    @line_magic
    def pause(self, line: str) -> None:
        """`%pause`: start nothing new."""
        print("pausing" if _current().pause() else "nothing to pause")  # noqa: T201  # a magic prints

    @line_magic
    def resume(self, line: str) -> None:
        """`%resume`: go on, also after a failure of the model."""
        run = _current()
        run.play()
        print(repr(run))  # noqa: T201

    @line_magic
    def snapshot(self, line: str) -> Snapshot | None:
        """`%snapshot NAME`: save where the run stands, as NAME.agentnb.json and in the run's store if it has one."""
        return _say_what_went_wrong(lambda: self._snapshot(line.strip()))

    @line_magic
    def restore(self, line: str) -> Run | None:
        """`%restore NAME [LOOP]`: a run that goes on from there, as `run`; LOOP is the variable with its loop.

        Where a store of this notebook has the run, it goes on there.
        """
        return _say_what_went_wrong(lambda: self._restore(line.split()))

    @line_magic
    def runs(self, line: str) -> None:
        """`%runs`: the runs in the stores of this notebook, newest first."""
        for name, store in self._stores().items():
            print(f"{name}: {store.path}")  # noqa: T201
            for info in store.runs():
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.created))
                state = info.stop_reason or "not over"
                print(f"  {info.name or info.id:24} {info.loop:16} {info.events:6} events  {state:12} {when}")  # noqa: T201
        run = latest_run()
        print(f"current: {run!r}" if run is not None else "No run has been started in this kernel.")  # noqa: T201

    def _step(self, unit: str) -> list[Event]:
        if unit not in UNITS:
            raise UsageError(f"%step takes {', '.join(UNITS)}, not {unit!r}.")
        run = _current()
        step = run.submit_step(unit)
        hosting.environment.wait(step)
        events = step.result()
        for event in events:
            print(one_line(event))  # noqa: T201
        if run.pending:
            print("waiting for you: " + ", ".join(f"{call.name} ({call.id})" for call in run.pending))  # noqa: T201
        elif not events:
            print(f"nothing left: {run!r}")  # noqa: T201
        return Quiet(events)

    def _snapshot(self, name: str) -> Snapshot:
        if not name or Path(name).name != name:
            raise UsageError("%snapshot takes a name, which becomes a file's: %snapshot before-writing")
        snapshot = _current().snapshot(name)
        path = snapshot.save(name + SUFFIX)
        print(f"{snapshot.position} events in {path}")  # noqa: T201
        return snapshot

    def _restore(self, words: list[str]) -> Run:
        if not words or len(words) > 2:
            raise UsageError(
                "%restore takes a name and, where there are several loops, the variable of the one to use."
            )
        snapshot = self._find(words[0])
        loop = self._loop(snapshot, words[1] if len(words) == 2 else None)
        kept_in = next((store for store in self._stores().values() if store.position(snapshot.run_id)), None)
        run = restore(snapshot, loop, store=kept_in)
        self._variables()["run"] = run
        return run

    def _find(self, name: str) -> Snapshot:
        if Path(name + SUFFIX).exists():
            return Snapshot.load(name + SUFFIX)
        for store in self._stores().values():
            try:
                return store.load(name)
            except AgentnbError:
                continue
        if name in SNAPSHOTS:
            taken: Snapshot = SNAPSHOTS[name]
            return taken
        stores = ", ".join(self._stores()) or "none in this notebook"
        raise UsageError(
            f"There is no snapshot {name!r}: no file {name + SUFFIX} here, none taken in a panel,"
            f" and none in a store ({stores})."
        )

    def _loop(self, snapshot: Snapshot, variable: str | None) -> Loop:
        loops = {name: value for name, value in self._variables().items() if isinstance(value, Loop)}
        if variable is not None:
            if variable not in loops:
                raise UsageError(f"{variable!r} is no loop; loops here: {', '.join(loops) or 'none'}.")
            return loops[variable]
        fitting = {name: loop for name, loop in loops.items() if loop.kind() == snapshot.start.loop}
        distinct = list({id(loop): loop for name, loop in fitting.items() if not name.startswith("_")}.values())
        if len(distinct) == 1:
            return distinct[0]
        found = ", ".join(fitting) or "none"
        raise UsageError(f"Which {snapshot.start.loop} is it of? Say %restore NAME LOOP; loops here: {found}.")

    def _variables(self) -> dict[str, Any]:
        assert self.shell is not None  # magics are made for a shell
        variables: dict[str, Any] = self.shell.user_ns
        return variables

    def _stores(self) -> dict[str, Store]:
        values = self._variables().items()
        return {name: value for name, value in values if isinstance(value, Store) and not name.startswith("_")}


class Quiet(list[Event]):
    """A list a notebook does not print: the magic has said it in fewer words."""

    def _ipython_display_(self) -> None:
        """Show nothing."""


def _current() -> Run:
    run = latest_run()
    if run is None:
        raise UsageError("No run has been started in this kernel: run = loop.start(...) makes one.")
    return run


def _say_what_went_wrong(act: Callable[[], T]) -> T | None:
    """A user's mistake is one line, without agentnb's own traceback."""
    try:
        return act()
    except AgentnbError as error:
        print(f"{type(error).__name__}: {error}")  # noqa: T201
        return None


def one_line(event: Event) -> str:
    """An event in one line: its position, its type, and what it is about."""
    skip = ("seq", "time", "run_id", "type", "path", "timing", "config", "fingerprint")
    about = {name: value for name, value in plain_event(event).items() if name not in skip}
    text = " ".join(f"{name}={value}" for name, value in about.items()).replace("\n", " ")
    return f"{event.seq:5} {event.type:18} {text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}"
