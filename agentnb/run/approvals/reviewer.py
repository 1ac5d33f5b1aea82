"""The name of the person who decides at the panel or at the console, and how a person's decision is recorded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.unicode import mended
from agentnb.run.given import shown

REVIEWER_VARIABLE = "AGENTNB_REVIEWER"

_declared: str | None = None


@dataclass(frozen=True, slots=True)
class Decider:
    """Who decides by way of a run: code, or a person who was shown the question `seconds` ago."""

    by: str = "code"
    seconds: float | None = None

    def name(self, given: str | None) -> str | None:
        """Return the name to record: the one given with the decision, or that of the person in this process."""
        if given is not None:
            return checked_name("reviewer=", given)
        return declared_reviewer() if self.by == "human" else None


CODE = Decider()


def reviewer(name: str | None) -> None:
    """Name the person whose decisions at the panel and the console are recorded. Holds for this process.

    name: the person's name, or None for the one in the environment variable AGENTNB_REVIEWER. Raises UsageError for
    what is no name.
    """
    global _declared
    _declared = checked_name("reviewer(name)", name) if name is not None else None


def declared_reviewer() -> str | None:
    """Return the person's name, as `reviewer` or else the environment declares it; None where neither does."""
    return _declared or mended(os.environ.get(REVIEWER_VARIABLE, "")).strip() or None


def checked_name(what: str, name: Any) -> str:
    """Return a person's name as it is recorded. Raises UsageError where it is no name."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{what} takes a person's name, a text that is not empty, not {shown(name)}.")
    return mended(name).strip()
