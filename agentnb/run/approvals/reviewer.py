"""Reviewer: the name of the person who decides at the panel or the console, and the author of a decision."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.json import repair_text
from agentnb.run.validation import shown

REVIEWER_VARIABLE = "AGENTNB_REVIEWER"

_declared: str | None = None


@dataclass(frozen=True, slots=True)
class Decider:
    """The author of decisions that are made through a run: code, or a person who saw the question `seconds` ago."""

    by: str = "code"
    seconds: float | None = None

    def name(self, name: str | None) -> str | None:
        """Return the name to record: `name`, or the name declared in this process if a person decides."""
        if name is not None:
            return checked_name("reviewer=", name)
        return declared_reviewer() if self.by == "human" else None


CODE = Decider()


def reviewer(name: str | None) -> None:
    """Declare the name of the person who decides at the panel and the console, for this process.

    name: the person's name, or None for the one in the environment variable AGENTNB_REVIEWER. Raises UsageError if it
    is not a text or is empty.
    """
    global _declared
    _declared = checked_name("reviewer(name)", name) if name is not None else None


def declared_reviewer() -> str | None:
    """Return the person's name as declared by `reviewer`, or else by the environment; None if neither declares one."""
    return _declared or repair_text(os.environ.get(REVIEWER_VARIABLE, "")).strip() or None


def checked_name(argument: str, name: Any) -> str:
    """Return a person's name as it is recorded. Raises UsageError if it is not a text or is empty.

    argument: the name of the argument, for the error.
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{argument} must be a person's name, a non-empty string, not {shown(name)}.")
    return repair_text(name).strip()
