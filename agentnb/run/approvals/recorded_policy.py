"""Policies in files and in recordings.

A policy file has rules, true or false as JSON. A recording has the same data; but if the policy is a function, it has
only the name of the function, and a restored run asks a person about every call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentnb.core.call_events import name_of_function
from agentnb.core.errors import NotSerializable, UsageError
from agentnb.core.json import require_json, same_json
from agentnb.run.validation import shown


def read_policy(approve: Any) -> Any:
    """Return the policy for `approve=`: the content of the file if it is a path, otherwise the value itself.

    The file has rules, true or false as JSON. Raises UsageError if it cannot be read or has other content.
    """
    if not isinstance(approve, (str, os.PathLike)):
        return approve
    try:
        text = Path(approve).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(
            "approve= must be True, False, a callable, rules, or the path of a JSON file with rules."
            f" The file {shown(str(approve))} cannot be read: {cause}."
        ) from None
    try:
        rules = json.loads(text)
    except ValueError as error:
        raise UsageError(f"approve={shown(str(approve))}: the file is not JSON: {error}.") from None
    if not isinstance(rules, bool | list | dict):
        raise UsageError(
            f"approve={shown(str(approve))}: the file must contain rules, true or false, not {shown(rules)}."
        )
    return rules


def recorded_policy(approve: Any) -> Any:
    """Return a policy as it is recorded: as JSON data; for a function, its name as `{"function": "check"}`."""
    if approve is None or isinstance(approve, bool):
        return approve
    if callable(approve):
        return {"function": getattr(approve, "recorded_as", None) or name_of_function(approve)}
    rules = [dict(rule) for rule in ([approve] if isinstance(approve, Mapping) else approve)]
    try:
        as_json = require_json(rules, "approve")
        is_kept = same_json(as_json, json.loads(json.dumps(rules, default=_refuse)))
    except (NotSerializable, TypeError, ValueError):
        is_kept = False
    return as_json if is_kept else {"function": "rules with values that are not JSON"}


def _refuse(value: object) -> Any:
    raise TypeError(f"{value!r} is not JSON")


def policy_of_a_recording(recorded: Any) -> Any:
    """Return the policy of a recorded run, as `approve=` takes it; for a function, a policy that always asks."""
    name = lost_function(recorded)
    return LostPolicy(name) if name is not None else recorded


def lost_function(recorded: Any) -> str | None:
    """Return the name of the function that a recorded run had as its policy; None if the policy was not a function."""
    return str(recorded["function"]) if isinstance(recorded, Mapping) and "function" in recorded else None


class LostPolicy:
    """The policy of a restored run whose policy was a function, which is not recorded: always ask a person."""

    def __init__(self, name: str) -> None:
        self.recorded_as = name

    def __call__(self, call: object) -> dict[str, Any]:
        """Return the decision to ask a person, with the reason."""
        reason = f"The policy of this run was {self.recorded_as}, which its recording does not keep; approve= gives it."
        return {"decision": "ask", "reason": reason}
