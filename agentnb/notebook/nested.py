"""Nested event loops, for users whose own code calls `asyncio.run` inside a cell.

agentnb needs none of this: a run lives on a thread of its own. nest-asyncio patches the event loop's class for the
whole process, and with it cancellation and time-outs no longer reach nested code; so it is applied when asked, and
never at import.
"""

from __future__ import annotations

import asyncio
import sys

from agentnb.core.errors import UsageError


def allow_nested_asyncio() -> None:
    """Let `asyncio.run` and `run_until_complete` be called inside a cell. Cannot be undone in this process.

    Raises UsageError where nest-asyncio is missing, breaks Python (3.14 and newer), or cannot patch this event loop.
    """
    if sys.version_info >= (3, 14):
        raise UsageError("nest-asyncio breaks asyncio on Python 3.14; `await` instead, which a cell can do by itself.")
    try:
        import nest_asyncio  # noqa: TID251 - the one place that may, because it was asked to
    except ImportError as error:
        raise UsageError('nest-asyncio is not installed: pip install "agentnb-toolkit[nested]"') from error
    try:
        nest_asyncio.apply()
    except ValueError as error:
        loop = type(asyncio.get_event_loop()).__name__
        raise UsageError(f"nest-asyncio cannot patch this kernel's event loop ({loop}).") from error
