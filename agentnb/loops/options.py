"""The options of `Loop.start`, as a type for functions that forward them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from agentnb.core.protocols import RunStore


class StartOptions(TypedDict, total=False):
    """The keyword options of `Loop.start`, which documents them."""

    name: str | None
    store: RunStore | None
    approve: Any
    breakpoints: Sequence[Any]
    limits: Mapping[str, float] | None
