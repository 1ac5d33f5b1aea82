"""The keyboard: asks the person by `input()` if no page shows the question that a cell waits for.

If a run waits for a person and a cell waits for the run, there is a deadlock: no other cell can run. The panel's
buttons resolve it. But a front end without widgets (`jupyter console`, plain IPython) has no buttons, and a panel that
was never displayed has none either. So at each tick, a waiting cell checks if a page shows the run, has sent a message,
and can deliver clicks. If not, the cell asks by `input()`. All front ends with a keyboard support it; the answer comes
over a separate channel. Without a keyboard (nbclient, papermill, Voila), the cell stops waiting and raises an error
that says what to do; the run continues.

Only the main thread asks, because Stop interrupts `input()` only there. It asks about all runs that any thread waits
for, including a run that a tool of another run has started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Protocol

from agentnb.core.errors import AgentnbError, UsageError
from agentnb.notebook.kernel import in_kernel
from agentnb.run.approvals.decisions import Decisions, decided_by_person
from agentnb.run.approvals.pending import Pending
from agentnb.widgets.comms import Audience
from agentnb.widgets.text import for_reading, one_line, visible

UNSEEN = 1.0  # seconds in which code may decide a question without a panel, before the person is asked
PERIOD = 0.1  # seconds between two checks
SILENT = 5.0  # seconds in which the page of a panel may load and send its first message, before the person is asked

NO_KEYBOARD = """\
{name} ({id}) waits for a decision, and this front end shows neither the panel's buttons nor an input field while a \
cell waits. Start the run in the background, run.play(), and decide in the next cell: run.approve({id!r}) or \
run.reject({id!r}, "why"); then wait for it. If no cell can run in between, show the panel instead of waiting \
(`run` as the last line of a cell), or pass a policy that decides: loop.start(..., approve=...)."""


Question = tuple[str, str, object]
"""The identity of a question: its run, its path and its number."""


class Seen(Protocol):
    """A function that returns the audience of a run."""

    def __call__(self, run_id: str) -> Audience:
        """Return the audience of this run: no panel, a panel without a page, or a page that has sent a message."""


class Keyboard:
    """The keyboard, at which a person is asked about the calls of all runs that cells or threads wait for."""

    def __init__(self, seen: Seen, absence: Callable[[], str | None]) -> None:
        """Create a keyboard.

        seen: returns the audience of a run. absence: returns the reason why no person can be asked, or None. If there
        is a reason, the keyboard does not ask, and the run's declared policy decides.
        """
        self._seen = seen
        self._absence = absence
        self._listening: list[Decisions] = []
        self._since: dict[Question, float] = {}
        self._answered: set[str] = set()  # the runs whose questions have been answered here
        self._asking = False
        self._due = 0.0

    @contextmanager
    def listening(self, decisions: Decisions) -> Iterator[None]:
        """Ask about this run too, as long as the context is active."""
        self._listening.append(decisions)
        try:
            yield
        finally:
            self._listening.remove(decisions)

    def look(self) -> None:
        """Ask the questions that no page shows and that have waited long enough. Called by waits at each tick.

        Raises UsageError if there is no keyboard, KeyboardInterrupt on Stop.
        """
        now = time.monotonic()
        if now < self._due or self._asking or threading.current_thread() is not threading.main_thread():
            return
        self._due = now + PERIOD
        if self._listening and self._absence() is not None:
            return
        for decisions in list(self._listening):
            audience = self._seen(decisions.id)
            if audience is Audience.ACTIVE:
                continue
            for item in decisions.pending:
                # Ask at once if the person has answered here before; otherwise give the page or code some time.
                patience = UNSEEN if audience is Audience.NONE else SILENT
                since = self._since.setdefault(_identity(item), time.monotonic())
                if decisions.id in self._answered or time.monotonic() - since >= patience:
                    self._ask(decisions, item)

    def _ask(self, decisions: Decisions, item: Pending) -> None:
        """Ask about a call until it is decided.

        Without a keyboard, return for the first `SILENT` seconds of the question, then raise UsageError.
        """
        self._asking = True
        try:
            with _interruptible():
                question, shown_at = f"{_question_text(item)}\n", time.monotonic()
                while not _ask_once(decisions, item, question, shown_at):
                    question = ""
        except NotImplementedError as error:  # IPython's StdinNotImplementedError
            if time.monotonic() - self._since[_identity(item)] < SILENT:
                return  # a page may still open, or code may decide
            raise UsageError(NO_KEYBOARD.format(name=item.name, id=item.id)) from error
        finally:
            self._asking = False
        self._since.pop(_identity(item))
        self._answered.add(decisions.id)


def _identity(item: Pending) -> Question:
    """Return the identity of a question.

    A question that is not recorded yet has no event number; the call's id and number of starts take its place.
    """
    return item.run_id, item.path, item.event if item.event is not None else (item.id, item.attempt)


def _question_text(item: Pending) -> str:
    """Return the text that the person sees: the call, the reason for the question, and the arguments."""
    why = item.reason or ("It is unknown how this call ended." if item.unknown else "This tool requires approval.")
    where = f" (in {item.path})" if item.path else ""
    view = f"{visible(item.view)}\n" if item.view else ""
    arguments = visible(for_reading(item.arguments))
    return f"{visible(one_line(item.name + where))} waits for your decision. {visible(why)}\n{view}{arguments}"


def _ask_once(decisions: Decisions, item: Pending, question: str, shown_at: float) -> bool:
    """Ask once and perform the answer. Return False if the question has to be asked again.

    question: the text of the question, "" if it has been shown. shown_at: the monotonic time at which it was shown, for
    the recorded duration.
    """
    # Read the answer: a word, and its text (a reason, arguments or a result), for which a second prompt may be needed.
    answers = "[y]es, [n]o, [e]dit" + (", [a]nswer" if item.unknown else "")
    if question:
        _discard_typed_ahead()
    try:
        word, _, text = input(f"{question}{answers}: ").strip().partition(" ")
        word = word.lower()
        if not text and word in ("e", "edit"):
            text = input("new arguments, as JSON: ")
        elif not text and word in ("a", "answer"):
            text = input("the result of the call: ")
    except EOFError:
        word, text = "n", "nobody answered"

    # Perform the answer.
    with decisions.lock:  # the decision must apply to the call as it was shown
        now = next((one for one in decisions.pending if _identity(one) == _identity(item)), None)
        if now is None or now.shown != item.shown:
            print("The call was decided or changed meanwhile.")  # noqa: T201
            return True
        person = decided_by_person(decisions, round(time.monotonic() - shown_at, 3))
        try:
            match word:
                case "y" | "yes":
                    person.approve(item)
                case "n" | "no":
                    person.reject(item, text)
                case "e" | "edit":
                    arguments = json.loads(text)
                    if not isinstance(arguments, dict):
                        raise ValueError("The arguments must be a JSON object.")
                    person.edit(item, arguments)
                case "a" | "answer" if item.unknown:
                    person.answer(item, text)
                case _:  # not one of the offered answers
                    return False
        except (AgentnbError, ValueError) as error:
            print(visible(str(error)))  # noqa: T201
            return False
    return True


def _discard_typed_ahead() -> None:
    """Discard terminal input that was typed before the question was shown, because it cannot be an answer to it.

    In a kernel, this applies to the terminals of the connected consoles on this machine. Input that was typed ahead in
    a console on another machine cannot be detected here and counts as an answer.
    """
    if sys.platform == "win32":
        import msvcrt

        while not in_kernel() and msvcrt.kbhit():
            msvcrt.getwch()
        return
    import termios

    if not in_kernel():
        with suppress(OSError, ValueError, termios.error):  # the input may be closed, or not a terminal
            if sys.stdin is not None:
                termios.tcflush(sys.stdin, termios.TCIFLUSH)
        return
    for console in _terminals_of_consoles():
        with suppress(OSError, termios.error):
            terminal = os.open(console, os.O_RDWR | os.O_NOCTTY)
            try:
                termios.tcflush(terminal, termios.TCIFLUSH)
            finally:
                os.close(terminal)


def _terminals_of_consoles() -> set[str]:
    """Return the terminals of each `jupyter console` that has started this kernel or is connected to it."""
    psutil: Any = import_module("psutil")  # ipykernel has it
    application: Any = import_module("ipykernel.kernelapp").IPKernelApp
    port = application.instance().stdin_port if application.initialized() else 0
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if not any("jupyter_console" in word or "jupyter-console" in word for word in process.cmdline()):
                continue
            connections = getattr(process, "net_connections", None) or process.connections  # its name before psutil 6
            if process.pid == os.getppid() or any(
                connection.raddr and connection.raddr.port == port for connection in connections("tcp")
            ):
                found.add(process.terminal())
    return {terminal for terminal in found if terminal is not None}


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Stop interrupt `input()`. In a cell that awaits, the kernel's handler would only cancel the cell's task."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
