"""How a tool's function says how far it is: in one value, or as it is used to from elsewhere.

progress(0.5)    progress("reading")    progress({"done": 3, "total": 8})
progress(3, 8, "a.txt")    progress(done=3, total=8)    await progress(0.5)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentnb.core.tools import Progress


class _Said:
    """What has been said, and need not be awaited; where it is, everybody else has a turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_SAID = _Said()


def teller(progress: Progress) -> Callable[..., _Said]:
    """What the function gets: it puts what is said into one value, and hands that on."""

    def tell(*said: Any, **named: Any) -> _Said:
        progress(said[0] if len(said) == 1 and not named else _in_one(said, named))
        return _SAID

    return tell


def _in_one(said: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    numbers = iter(("done", "total"))
    fields = {"message" if isinstance(value, str) else next(numbers, "more"): value for value in said}
    return {**fields, **named}
