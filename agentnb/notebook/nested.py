"""Nested event loops, for users whose own code calls `asyncio.run` inside a cell.

agentnb does not need them, because its runs use a separate thread. nest-asyncio2 patches the event loop's class for the
whole process; with the patch, cancellation and time-outs do not reach nested code. So it is applied only by an explicit
call and never at import. nest-asyncio, which is no longer maintained, is the fallback; it breaks Python 3.14.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from importlib.util import find_spec

from agentnb.core.errors import UsageError


def allow_nested_asyncio() -> None:
    """Allow calls of `asyncio.run` and `run_until_complete` inside a cell. This cannot be undone in the process.

    Raises UsageError if neither nest-asyncio2 nor nest-asyncio is installed, if only nest-asyncio is and Python is 3.14
    or newer, or if this kernel's event loop cannot be patched.
    """
    if find_spec("nest_asyncio2") is not None:
        name = "nest_asyncio2"
    elif find_spec("nest_asyncio") is None:
        raise UsageError('nest-asyncio2 is not installed: pip install "agentnb-toolkit[nested]"')
    elif sys.version_info >= (3, 14):
        raise UsageError(
            "nest-asyncio breaks asyncio on Python 3.14. Install nest-asyncio2 in its place, "
            "or use `await`, which works in a cell."
        )
    else:
        name = "nest_asyncio"
    try:
        import_module(name).apply()
    except ValueError as error:
        loop = type(asyncio.get_event_loop()).__name__
        raise UsageError(
            f"{name} cannot patch this kernel's event loop ({loop}). Use `await` in place of asyncio.run()."
        ) from error
