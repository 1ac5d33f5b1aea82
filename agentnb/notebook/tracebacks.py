"""Short tracebacks: the display of agentnb's deliberate errors in a cell, on one screen.

The message of such an error says what was wrong, where, and what to do. The frames of agentnb and of the event loop
are of no use to users, so they are left out. IPython calls an exception's `_render_traceback_`, if it has this method,
instead of formatting the traceback; this module adds the method to agentnb's errors. The short form has the frames of
the cell and of the user's modules. If the cause is an error in user-supplied code (a model, a tool, a loop), that error
is shown with its own frames.

`%tb` shows the whole traceback, as for any error. `_render` recognizes `%tb` by the fact that no exception is being
handled then. With the environment variable AGENTNB_TRACEBACK=full, the whole traceback is always shown immediately.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from agentnb.core.errors import AgentnbError, RunFailed
from agentnb.notebook.kernel import current_shell
from agentnb.widgets.text import visible

VARIABLE = "AGENTNB_TRACEBACK"
FRAMES = 4
"""The maximum number of frames shown for one error; the innermost ones are shown."""
AROUND = 2
"""The number of source lines shown before and after the line that raised the error."""
MESSAGE = 4000
"""The maximum number of characters of a message."""

_RED, _GREEN, _DIM, _OFF = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_OURS = str(Path(__file__).parents[1]) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = sysconfig.get_path("purelib") + os.sep
_KERNEL = (
    f"{_INSTALLED}IPython{os.sep}",
    f"{_INSTALLED}ipykernel{os.sep}",
    "zmq/",
)  # the compiled files of pyzmq have relative names

Frame = tuple[str, int, str]
"""The file, the line and the function of a frame."""


def shorten_tracebacks() -> None:
    """Let IPython show all errors of agentnb in the short form. Further calls have no effect."""
    AgentnbError._render_traceback_ = _render  # type: ignore[attr-defined]  # IPython's protocol, not the core's


def shorten(error: BaseException) -> None:
    """Let IPython show this error in the short form, although its type is not one of agentnb's."""
    error._render_traceback_ = partial(_render, error)  # type: ignore[attr-defined]


def shorten_to_one_line(error: BaseException) -> None:
    """Let IPython show only the type and the message of this error, without frames, as a magic is one line of code."""
    error._render_traceback_ = partial(_render, error, short_form=_message)  # type: ignore[attr-defined]


def _render(error: BaseException, short_form: Callable[[BaseException], Iterable[str]] | None = None) -> list[str]:
    """Return the text that IPython prints for the error, in parts.

    short_form: yields the lines of the short form; None for the form with frames.
    """
    if os.environ.get(VARIABLE) == "full" or sys.exc_info()[1] is not error:
        shell = current_shell()
        if shell is None:
            return traceback.format_exception(error)
        formatter = shell.InteractiveTB
        parts: list[str] = formatter.structured_traceback(type(error), error, error.__traceback__, tb_offset=1)
        return parts
    return ["\n".join((short_form or _with_frames)(error))]


def _with_frames(error: BaseException) -> Iterator[str]:
    """Yield the lines of the short form: the error with its causes, each with the frames of the user's code."""
    # The innermost cause comes first, the raised error last.
    for cause in reversed(list(_causes(error))):
        if frames := _frames_of_cause(error, cause):
            yield from _one(cause, frames)
            yield f"\n{_DIM}which caused{_OFF}\n"
    frames = list(_frames(error.__traceback__))
    # Frames of libraries are left out: they do not help, and they would displace the frame of the cell.
    yield from _one(error, [frame for frame in frames if not frame[0].startswith(_INSTALLED)] or frames)
    yield f"\n{_DIM}%tb shows the whole traceback.{_OFF}"


def _frames_of_cause(error: BaseException, cause: BaseException) -> list[Frame]:
    """Return the frames of a cause that are shown. If there are none, only the raised error is shown."""
    frames = list(_frames(cause.__traceback__))
    if isinstance(cause, AgentnbError):  # its message has the reason, so frames of libraries do not help
        return [frame for frame in frames if not frame[0].startswith(_INSTALLED)]
    if not frames and isinstance(error, RunFailed):  # an error in agentnb itself must not be hidden
        return list(_frames(cause.__traceback__, everything=True))
    return frames


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the chain of causes of an error, nearest first. A cycle ends the chain."""
    seen = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _frames(trace: TracebackType | None, *, everything: bool = False) -> Iterator[Frame]:
    """Yield the frames that do not belong to agentnb, Python or the kernel; with `everything=True`, all frames."""
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        of_python = file.startswith((_PYTHON, "<frozen", "<string>")) and not file.startswith(_INSTALLED)
        if everything or not (of_python or file.startswith((_OURS, *_KERNEL))):
            yield file, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _one(error: BaseException, frames: list[Frame]) -> Iterator[str]:
    """Yield the lines of one error: its innermost frames with their source, then its message."""
    for file, line, function in frames[-FRAMES:]:
        inside = "" if function == "<module>" else f" in {function}"
        yield f"{_GREEN}{visible(_file_name(file))}{_OFF}, line {line}{inside}"
        yield from _source(file, line)
    yield from _message(error)


def _message(error: BaseException) -> list[str]:
    """Return the type and the message of an error, with its notes."""
    text = str(error.args[0]) if isinstance(error, AgentnbError) and error.args else str(error)  # its str() has escapes
    message = visible("\n".join([text, *getattr(error, "__notes__", ())]).strip())
    return [f"{_RED}{type(error).__name__}{_OFF}: {message[:MESSAGE]}{'…' if len(message) > MESSAGE else ''}"]


def _file_name(file: str) -> str:
    """Return the name of a file as IPython shows it: a cell with its number."""
    shell = current_shell()
    named: Any = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(named) if named else file


def _source(file: str, line: int) -> Iterator[str]:
    for number in range(max(1, line - AROUND), line + AROUND + 1):
        text = linecache.getline(file, number).rstrip("\n")
        if text.strip() or number == line:
            arrow = f"{_GREEN}---->{_OFF}" if number == line else "     "
            yield f"{arrow} {number:3} {visible(text)}"
