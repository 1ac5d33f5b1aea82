"""What a cell shows of an error that agentnb raises on purpose: what, where, and what to do, in one screen.

Such an error says in its own words what was wrong; the frames of agentnb and of the event loop between the cell and the
place that found it out help nobody who did not write them. IPython asks an exception for `_render_traceback_` before it
makes a traceback of its own; this module gives agentnb's errors that method. What is left are the frames of the cell
and of the user's modules, and, where something of the user's has failed behind it (a model, a tool, a loop), that
error with its own frames.

`%tb` shows the whole traceback, as for any error: it asks when nothing is being handled any more. The environment
variable AGENTNB_TRACEBACK=full shows it at once, always.
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
"""Frames that are shown of one error, the innermost ones."""
AROUND = 2
"""Lines before and after the one at fault."""
MESSAGE = 4000
"""Characters of a message."""

_RED, _GREEN, _DIM, _OFF = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_OURS = str(Path(__file__).parents[1]) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = sysconfig.get_path("purelib") + os.sep
_KERNEL = (
    f"{_INSTALLED}IPython{os.sep}",
    f"{_INSTALLED}ipykernel{os.sep}",
    "zmq/",
)  # pyzmq's, compiled, have no folder

Frame = tuple[str, int, str]
"""A frame's file, line and function."""


def show_mistakes_in_one_screen() -> None:
    """Let IPython render agentnb's errors by this module; twice is once."""
    AgentnbError._render_traceback_ = _render  # type: ignore[attr-defined]  # IPython's protocol, not the core's


def show_in_one_screen(error: BaseException) -> None:
    """Let IPython render this one error by this module, whose type is not agentnb's."""
    error._render_traceback_ = partial(_render, error)  # type: ignore[attr-defined]


def show_in_one_line(error: BaseException) -> None:
    """Let IPython show its type and its words alone: a magic's line is the whole of what was done."""
    error._render_traceback_ = partial(_render, error, in_short=_said)  # type: ignore[attr-defined]


def _render(error: BaseException, in_short: Callable[[BaseException], Iterable[str]] | None = None) -> list[str]:
    """What IPython prints for the error, in parts."""
    if os.environ.get(VARIABLE) == "full" or sys.exc_info()[1] is not error:
        return _whole(error)
    return ["\n".join((in_short or _in_short)(error))]


def _whole(error: BaseException) -> list[str]:
    shell = current_shell()
    if shell is None:
        return traceback.format_exception(error)
    parts: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__, tb_offset=1)
    return parts


def _in_short(error: BaseException) -> Iterator[str]:
    for cause in reversed(list(_causes(error))):
        if frames := _frames_behind(error, cause):
            yield from _one(cause, frames)
            yield f"\n{_DIM}and so{_OFF}\n"
    frames = list(_frames(error.__traceback__))
    # How a library was used on the way tells nothing, and takes the room of the cell that is at fault.
    yield from _one(error, [frame for frame in frames if not frame[0].startswith(_INSTALLED)] or frames)
    yield f"\n{_DIM}%tb shows the whole traceback.{_OFF}"


def _frames_behind(error: BaseException, cause: BaseException) -> list[Frame]:
    """What to show of an error behind the one that was raised; nothing where that one says it all."""
    frames = list(_frames(cause.__traceback__))
    if isinstance(cause, AgentnbError):  # it names its reason: how a library was used on the way tells nothing
        return [frame for frame in frames if not frame[0].startswith(_INSTALLED)]
    if not frames and isinstance(error, RunFailed):  # a mistake of ours is not hidden
        return list(_frames(cause.__traceback__, everything=True))
    return frames


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors behind it, nearest first, that are not agentnb's own words for the same thing."""
    seen = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _frames(trace: TracebackType | None, *, everything: bool = False) -> Iterator[Frame]:
    """The frames that are neither agentnb's nor Python's nor the kernel's own."""
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        of_python = file.startswith((_PYTHON, "<frozen", "<string>")) and not file.startswith(_INSTALLED)
        if everything or not (of_python or file.startswith((_OURS, *_KERNEL))):
            yield file, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _one(error: BaseException, frames: list[Frame]) -> Iterator[str]:
    """One error: where it came from, and what it says."""
    for file, line, function in frames[-FRAMES:]:
        inside = "" if function == "<module>" else f" in {function}"
        yield f"{_GREEN}{visible(_place(file))}{_OFF}, line {line}{inside}"
        yield from _source(file, line)
    yield from _said(error)


def _said(error: BaseException) -> list[str]:
    """Its type, and its words."""
    text = str(error.args[0]) if isinstance(error, AgentnbError) and error.args else str(error)  # its str() has escapes
    words = visible("\n".join([text, *getattr(error, "__notes__", ())]).strip())
    return [f"{_RED}{type(error).__name__}{_OFF}: {words[:MESSAGE]}{'…' if len(words) > MESSAGE else ''}"]


def _place(file: str) -> str:
    """A file as people know it: a cell by its number."""
    shell = current_shell()
    named: Any = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(named) if named else file


def _source(file: str, line: int) -> Iterator[str]:
    for number in range(max(1, line - AROUND), line + AROUND + 1):
        text = linecache.getline(file, number).rstrip("\n")
        if text.strip() or number == line:
            arrow = f"{_GREEN}---->{_OFF}" if number == line else "     "
            yield f"{arrow} {number:3} {visible(text)}"
