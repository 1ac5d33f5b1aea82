"""The magics: step, pause, save and restore a run with one line each; and the completion of their arguments.

They act on the run that was started or restored last. Each is a short form of a function of `agentnb.notebook`. Their
output is for people; their return values can be used in code (`events = %step turn`).

The completion offers units for `%step`, names and then loops for `%restore` and `%replay`, and stores for `%runs`.
IPython calls the completion hook of the line's first word. JupyterLab asks the kernel, which asks IPython.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

from IPython.core.error import TryNext
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from agentnb.core.errors import AgentnbError, UsageError
from agentnb.core.events import Event
from agentnb.loops.base import Loop
from agentnb.notebook import commands
from agentnb.notebook.attaching import headline
from agentnb.notebook.kernel import in_kernel
from agentnb.notebook.runs_table import runs
from agentnb.notebook.stores import stores
from agentnb.notebook.tracebacks import shorten_to_one_line
from agentnb.run import Replay, Run, Snapshot, latest_run
from agentnb.run.gate.gate import UNITS
from agentnb.store import Store
from agentnb.widgets.text import one_line, visible
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.rows import GROUPS, row

NAMES = ("step", "pause", "resume", "snapshot", "restore", "replay", "runs")
LINE = 100
"""The maximum number of characters of an event's line: the width of a cell's output next to JupyterLab's file list."""
PATH = 24
"""The maximum number of characters of a loop's path."""
_TYPES = max(map(len, GROUPS))
_SHOWN = 20
"""The maximum number of names in an error message."""

T = TypeVar("T")


def _in_one_line(magic: Callable[[RunMagics, str], T]) -> Callable[[RunMagics, str], T]:
    """Show an AgentnbError of a magic in one line. It is still raised, so that the following cells do not run."""

    @wraps(magic)
    def run_magic(self: RunMagics, line: str) -> T:
        try:
            return magic(self, line.strip())
        except AgentnbError as error:
            shorten_to_one_line(error)
            raise

    return run_magic


@magics_class
class RunMagics(Magics):
    """`%step [unit]`, `%pause`, `%resume`, `%snapshot NAME`, `%restore` and `%replay NAME [LOOP]`, `%runs [STORE]`."""

    @line_magic
    @_in_one_line
    def step(self, line: str) -> list[Event]:
        """Advance the run to the end of the next event, call, turn or phase.

            %step          the next event
            %step call     up to the end of the next tool call
            %step turn     up to the end of the model's next answer and all of its calls
            %step phase    up to the point at which the loop enters its next phase
            events = %step turn

        Prints the events of the step, and the calls that wait for your decision. As a function:
        agentnb.notebook.step(unit).
        """
        run = commands.current()
        events = commands.step(line or "event", run)
        for line in _lines(events, run):
            print(line)  # noqa: T201
        if run.pending:
            calls = ", ".join(f"{call.name} ({call.id})" for call in run.pending)
            how = "" if events else "; decide in its panel, or with run.approve(id), reject, edit or replace"
            print(f"waiting for you: {visible(one_line(calls))}{how}")  # noqa: T201
        elif not events:
            print(f"no more steps: {headline(run)}")  # noqa: T201
        return Quiet(events)

    @line_magic
    @_in_one_line
    def pause(self, line: str) -> None:
        """Pause the run: finish what is in flight, and start nothing new. `%resume` resumes it.

        As a function: agentnb.notebook.pause(), or run.pause().
        """
        _check_no_argument("pause", line)
        print("pausing" if commands.pause() else "nothing to pause")  # noqa: T201  # a magic prints

    @line_magic
    @_in_one_line
    def resume(self, line: str) -> None:
        """Resume the run in the background, after a pause, a step, or a failure of the model.

        As a function: agentnb.notebook.resume(), or run.play().
        """
        _check_no_argument("resume", line)
        print(headline(commands.resume()))  # noqa: T201

    @line_magic
    @_in_one_line
    def snapshot(self, line: str) -> Snapshot:
        """Save a snapshot of the run, also in the middle of a call or an approval.

            %snapshot before-writing
            snapshot = %snapshot before-writing

        The snapshot is saved as the file before-writing.agentnb.json, and in the run's store if it has one. `%restore`
        takes its name. As a function: agentnb.notebook.snapshot(name).
        """
        snapshot = commands.snapshot(line)
        print(visible(f"{snapshot.position} events in {line}{commands.SUFFIX}"))  # noqa: T201
        return snapshot

    @line_magic
    @_in_one_line
    def restore(self, line: str) -> Run:
        """Make a run that resumes a snapshot, or a run of a store; it becomes the variable `run`.

            %restore before-writing
            %restore before-writing loop
            %restore snapshot loop          from a variable

        The second word is the variable of the run's loop. It may be omitted if only one loop fits, or if the run was
        started in this kernel. If a store has the run, the new run is kept there. As a function:
        agentnb.notebook.restore(name, loop).
        """
        name, loop = self._name_and_loop("%restore", line.split(), "if several loops fit, the variable of the loop")
        run: Run = commands.restore(name, loop, loops=self._loops())
        self._variables()["run"] = run
        return run

    @line_magic
    @_in_one_line
    def replay(self, line: str) -> Replay:
        """Make a replay, a run that performs nothing and moves in both directions; it becomes the variable `recording`.

            %replay before-writing
            %replay before-writing loop     stops at the first event that the loop would decide differently

        Move it with recording.step(), recording.back() and recording.to(seq). As a function:
        agentnb.notebook.replay(name, loop).
        """
        name, loop = self._name_and_loop("%replay", line.split(), "to check a loop, the variable of the loop")
        recording: Replay = commands.replay(name, loop)
        self._variables()["recording"] = recording
        return recording

    @line_magic
    @_in_one_line
    def runs(self, line: str) -> None:
        """Show the runs of this kernel and of the stores as a table: name, design, status, turns, calls, cost, time.

            %runs
            %runs runs.db      of one store, by its path or its variable

        Without a store: the runs of all open stores and of all stores in the working directory (*.db). As a function,
        which returns the table: agentnb.runs(store). agentnb.attach() shows the panels of the runs that have not ended.
        """
        store = self._variables().get(line, line or None)
        display(runs(store))  # type: ignore[no-untyped-call]  # IPython's is untyped
        if (run := latest_run()) is not None:
            print(f"current: {headline(run)}")  # noqa: T201

    def _name_and_loop(self, magic: str, words: list[str], second: str) -> tuple[str | Snapshot | Run, Loop | None]:
        """Return the snapshot or run, and the loop, that are named in the line of a magic.

        words: the words of the line. second: the meaning of the second word, for the error message. Raises UsageError
        if the last word should be the variable of a loop and is not.
        """
        whole = " ".join(words)
        if len(words) == 1 or commands.is_name(whole):
            return self._named(whole), None
        loops = self._loops()
        *name, last = words or [""]
        if last in loops:
            return self._named(" ".join(name)), loops[last]
        if len(words) == 2:
            raise UsageError(f"{last!r} is not the variable of a loop; loops here: {', '.join(loops) or 'none'}.")
        known = ", ".join(commands.snapshot_names()[:_SHOWN]) or "none yet"
        raise UsageError(f"{magic} takes a name and, {second}. Names: {known}.")

    def _named(self, name: str) -> str | Snapshot | Run:
        """Return the snapshot or run in the variable `name`, or `name` itself.

        The name itself is returned if a snapshot, run or file has it, or if no such variable has a snapshot or a run.
        """
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


def _check_no_argument(magic: str, line: str) -> None:
    if line:
        raise UsageError(f"%{magic} takes no argument, got {line!r}.")


def _lines(events: Sequence[Event], run: Run) -> Iterator[str]:
    """Yield a line for each event, as in the panel's rows: position, type, the path of its loop, its summary."""
    width = LINE if in_kernel() else shutil.get_terminal_size((LINE, 0)).columns
    causes = Causes()
    if any(event.type == "approval_decision" for event in events):  # the summary of a decision needs the call's name
        causes.follow(run.events, events[-1].seq + 1)
    paths = [one_line(visible(f"in {event.path}"), PATH) if event.path else "" for event in events]
    widest = max(map(len, paths), default=0)
    for event, path in zip(events, paths, strict=True):
        head = f"{event.seq:5} {event.type:{_TYPES}} " + (f"{path:{widest}} " if widest else "")
        yield head + one_line(visible(row(event, causes)["summary"]), width - len(head))


# -- completion -------------------------------------------------------------------------------------------------------


Complete = Callable[[Any, str], list[str]]


def _units(shell: Any, line: str) -> list[str]:
    return list(UNITS) if _word_index(line) == 1 else []


def _names_and_loops(shell: Any, line: str) -> list[str]:
    if _word_index(line) == 1:
        return commands.snapshot_names()
    if _word_index(line) == 2:
        return [name for name, value in shell.user_ns.items() if isinstance(value, Loop) and not name.startswith("_")]
    return []


def _stores(shell: Any, line: str) -> list[str]:
    if _word_index(line) != 1:
        return []
    variables = [name for name, value in shell.user_ns.items() if isinstance(value, Store) and not name.startswith("_")]
    return [*(found.where for found in stores()), *variables]


def _word_index(line: str) -> int:
    """Return the index of the word that is being typed; 0 is the magic itself."""
    return len(line.split()) - (not line[-1:].isspace())


_HOOKS: dict[str, Complete] = {
    "%step": _units,
    "%restore": _names_and_loops,
    "%replay": _names_and_loops,
    "%runs": _stores,
}
_loaded: set[int] = set()


def load_completion(shell: Any) -> None:
    """Complete the arguments of the magics in this shell. Further calls have no effect."""
    hooks = shell.strdispatchers.get("complete_command")  # None if no hook was ever set
    for magic, complete in _HOOKS.items():
        is_set = hooks is not None and any(True for _ in hooks.s_matches(magic))
        if id(shell) not in _loaded and not is_set:
            shell.set_hook("complete_command", _hook(complete), str_key=magic)
    _loaded.add(id(shell))


def unload_completion(shell: Any) -> None:
    """Disable the completion in this shell; IPython's own completion remains."""
    _loaded.discard(id(shell))


def _hook(complete: Complete) -> Callable[[Any, Any], list[str]]:
    """Return an IPython hook that completes with `complete`. After `unload_completion`, IPython itself completes."""

    def completed(shell: Any, event: Any) -> list[str]:
        if id(shell) not in _loaded:  # unloaded: IPython cannot remove a hook
            raise TryNext
        try:
            found = complete(shell, event.text_until_cursor)
        except (AgentnbError, OSError):  # for example an unreadable store; its error is shown when the store is used
            raise TryNext from None
        return [name for name in found if name.startswith(event.symbol)]

    return completed
