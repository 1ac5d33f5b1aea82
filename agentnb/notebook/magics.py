"""The magics: step, pause, save and restore a run with one line each.

They act on the run that was started or restored last. Each is a short form of a function of `agentnb.notebook`. Their
output is for people; their return values can be used in code (`events = %step turn`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from agentnb.core.errors import AgentnbError, UsageError
from agentnb.core.events import Event
from agentnb.loops.base import Loop
from agentnb.notebook import commands
from agentnb.notebook.attaching import headline
from agentnb.notebook.kernel import in_kernel
from agentnb.notebook.mistakes import show_in_one_line
from agentnb.notebook.table import runs
from agentnb.run import Replay, Run, Snapshot, latest_run
from agentnb.widgets.text import one_line, visible
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.rows import GROUPS, row

NAMES = ("step", "pause", "resume", "snapshot", "restore", "replay", "runs")
LINE = 100
"""The maximum number of characters of an event's line: the width of a cell's output next to JupyterLab's file list."""
PLACE = 24
"""The maximum number of characters of a loop's path."""
_TYPES = max(map(len, GROUPS))

T = TypeVar("T")


def _in_one_line(magic: Callable[[RunMagics, str], T]) -> Callable[[RunMagics, str], T]:
    """Show an AgentnbError of a magic in one line. It is still raised, so that the following cells do not run."""

    @wraps(magic)
    def said(self: RunMagics, line: str) -> T:
        try:
            return magic(self, line.strip())
        except AgentnbError as error:
            show_in_one_line(error)
            raise

    return said


@magics_class
class RunMagics(Magics):
    """`%step [unit]`, `%pause`, `%resume`, `%snapshot NAME`, `%restore` and `%replay NAME [LOOP]`, `%runs [STORE]`."""

    @line_magic
    @_in_one_line
    def step(self, line: str) -> list[Event]:
        """Go on to the end of the next event, call, turn or phase.

            %step          the next event
            %step call     up to the end of the next call of a tool
            %step turn     up to the end of the model's next answer and all of its calls
            %step phase    up to where the loop enters its next phase
            events = %step turn

        Prints the events of that step, and what waits for you. As a function: agentnb.notebook.step(unit).
        """
        run = commands.current()
        events = commands.step(line or "event", run)
        for line in _lines(events, run):
            print(line)  # noqa: T201
        if run.pending:
            calls = ", ".join(f"{call.name} ({call.id})" for call in run.pending)
            how = "" if events else "; its panel decides, or run.approve(id), reject, edit or replace"
            print(f"waiting for you: {visible(one_line(calls))}{how}")  # noqa: T201
        elif not events:
            print(f"nothing left: {headline(run)}")  # noqa: T201
        return Quiet(events)

    @line_magic
    @_in_one_line
    def pause(self, line: str) -> None:
        """Start nothing new; what is in flight is finished first. `%resume` goes on.

        As a function: agentnb.notebook.pause(), or run.pause().
        """
        _take_nothing("pause", line)
        print("pausing" if commands.pause() else "nothing to pause")  # noqa: T201  # a magic prints

    @line_magic
    @_in_one_line
    def resume(self, line: str) -> None:
        """Go on in the background, after a pause, a step, or a failure of the model.

        As a function: agentnb.notebook.resume(), or run.play().
        """
        _take_nothing("resume", line)
        print(headline(commands.resume()))  # noqa: T201

    @line_magic
    @_in_one_line
    def snapshot(self, line: str) -> Snapshot:
        """Save where the run stands, also in the middle of a call or an approval.

            %snapshot before-writing
            snapshot = %snapshot before-writing

        The name becomes a file's, before-writing.agentnb.json, and the run's store keeps it if there is one.
        `%restore` takes it. As a function: agentnb.notebook.snapshot(name).
        """
        snapshot = commands.snapshot(line)
        print(visible(f"{snapshot.position} events in {line}{commands.SUFFIX}"))  # noqa: T201
        return snapshot

    @line_magic
    @_in_one_line
    def restore(self, line: str) -> Run:
        """Make a run that goes on from a snapshot, or from where a store has a run; it becomes the variable `run`.

            %restore before-writing
            %restore before-writing loop
            %restore snapshot loop          from a variable

        The second word is the variable of the loop to go on with; it may be left out where only one fits, or where none
        does and the run was started in this kernel. Where a store has the run, it goes on there. As a function:
        agentnb.notebook.restore(name, loop).
        """
        why = "where there are several loops, the variable of the one"
        name, loop = self._name_and_loop("%restore", line.split(), why)
        run: Run = commands.restore(name, loop, loops=self._loops())
        self._variables()["run"] = run
        return run

    @line_magic
    @_in_one_line
    def replay(self, line: str) -> Replay:
        """Make a recording a run that performs nothing, to be walked forwards and backwards; the variable `recording`.

            %replay before-writing
            %replay before-writing loop     stops where the loop decides otherwise than recorded

        Then recording.step(), recording.back(), recording.to(seq). As a function: agentnb.notebook.replay(name, loop).
        """
        why = "to check it against a loop, the variable of the loop"
        name, loop = self._name_and_loop("%replay", line.split(), why)
        recording: Replay = commands.replay(name, loop)
        self._variables()["recording"] = recording
        return recording

    @line_magic
    @_in_one_line
    def runs(self, line: str) -> None:
        """Show the runs of this kernel and of the stores as a table: name, design, where each stands, what it took.

            %runs
            %runs runs.db      of one store, by its path or its variable

        Without a store: all that are open, and those that lie in the working directory as *.db. As a function, which
        gives the table: agentnb.runs(store). agentnb.attach() shows the panels of those that are not over.
        """
        store = self._variables().get(line, line or None)
        display(runs(store))  # type: ignore[no-untyped-call]  # IPython's is untyped
        if (run := latest_run()) is not None:
            print(f"current: {headline(run)}")  # noqa: T201

    def _name_and_loop(self, magic: str, words: list[str], why: str) -> tuple[str | Snapshot | Run, Loop | None]:
        """Return the snapshot or run and the loop that the words name. Raises UsageError if there is no such loop."""
        whole = " ".join(words)
        if len(words) == 1 or commands.is_name(whole):
            return self._meant(whole), None
        loops = self._loops()
        *name, last = words or [""]
        if last in loops:
            return self._meant(" ".join(name)), loops[last]
        if len(words) == 2:
            raise UsageError(f"{last!r} is no loop; loops here: {', '.join(loops) or 'none'}.")
        known = ", ".join(commands.snapshot_names()[:20]) or "none yet"
        raise UsageError(f"{magic} takes a name and, {why} to use. Names: {known}.")

    def _meant(self, name: str) -> str | Snapshot | Run:
        """Return the snapshot or run in the variable `name`, or `name` itself if it is a known name or no variable."""
        value = self._variables().get(name)
        return value if isinstance(value, (Snapshot, Run)) and not commands.is_name(name) else name

    def _loops(self) -> dict[str, Loop]:
        return {name: value for name, value in self._variables().items() if isinstance(value, Loop)}

    def _variables(self) -> dict[str, Any]:
        assert self.shell is not None  # magics are made for a shell
        variables: dict[str, Any] = self.shell.user_ns
        return variables


class Quiet(list[Event]):
    """A list of events that a notebook does not display, because the magic has printed a short form."""

    def _ipython_display_(self) -> None:
        """Display nothing."""


def _take_nothing(magic: str, line: str) -> None:
    if line:
        raise UsageError(f"%{magic} takes nothing behind it, and was given {line!r}.")


def _lines(events: Sequence[Event], run: Run) -> Iterator[str]:
    """Yield a line for each event, as in the panel's rows: position, type, the path of its loop, its summary."""
    room = LINE if in_kernel() else shutil.get_terminal_size((LINE, 0)).columns
    causes = Causes()
    if any(event.type == "approval_decision" for event in events):  # the summary of a decision needs the call's name
        causes.follow(run.events, events[-1].seq + 1)
    places = [one_line(visible(f"in {event.path}"), PLACE) if event.path else "" for event in events]
    widest = max(map(len, places), default=0)
    for event, place in zip(events, places, strict=True):
        head = f"{event.seq:5} {event.type:{_TYPES}} " + (f"{place:{widest}} " if widest else "")
        yield head + one_line(visible(row(event, causes)["summary"]), room - len(head))
