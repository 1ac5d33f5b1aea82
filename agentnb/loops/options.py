"""The options of `Loop.start`, as a type for functions that forward them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from agentnb.store import Store


class StartOptions(TypedDict, total=False):
    """The keyword options of `Loop.start`, which documents them."""

    name: str | None
    store: Store | None
    approve: Any
    breakpoints: Sequence[Any]
    limits: Mapping[str, float] | None
