"""What of a run's policy its recording keeps: rules, True and False. A function stays with its process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentnb.core.call_events import name_of_function
from agentnb.core.errors import NotSerializable, UsageError
from agentnb.core.json_data import json_of, same_json
from agentnb.run.given import shown


def read_policy(approve: Any) -> Any:
    """Return what `approve=` means: where it is the path of a JSON file, the rules, True or False in that.

    Raises UsageError where the file cannot be read.
    """
    if not isinstance(approve, (str, os.PathLike)):
        return approve
    try:
        text = Path(approve).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            "approve= takes True, False, a callable, rules, or the path of a JSON file with rules;"
            f" {shown(str(approve))} cannot be read as that: {why}."
        ) from None
    try:
        rules = json.loads(text)
    except ValueError as error:
        raise UsageError(f"approve={shown(str(approve))}: the file is not JSON: {error}.") from None
    if not isinstance(rules, bool | list | dict):
        raise UsageError(f"approve={shown(str(approve))}: the file has rules, true or false, not {shown(rules)}.")
    return rules


def recorded_policy(approve: Any) -> Any:
    """Return a policy as it stands in a recording: JSON, and of a function only the name, `{"function": "check"}`."""
    if approve is None or isinstance(approve, bool):
        return approve
    if callable(approve):
        return {"function": getattr(approve, "recorded_as", None) or name_of_function(approve)}
    rules = [dict(rule) for rule in ([approve] if isinstance(approve, Mapping) else approve)]
    try:
        as_json = json_of(rules, "approve")
        is_kept = same_json(as_json, json.loads(json.dumps(rules, default=_refuse)))
    except (NotSerializable, TypeError, ValueError):
        is_kept = False
    return as_json if is_kept else {"function": "rules with values that are not JSON"}


def _refuse(value: object) -> Any:
    raise TypeError(f"{value!r} is not JSON")


def policy_of_a_recording(recorded: Any) -> Any:
    """Return the policy of a recorded run, as `approve=` takes it; where that was a function, one that always asks."""
    name = lost_function(recorded)
    return AsksInstead(name) if name is not None else recorded


def lost_function(recorded: Any) -> str | None:
    """Return the name of the function that a recorded run had as its policy; None where it had another, or none."""
    return str(recorded["function"]) if isinstance(recorded, Mapping) and "function" in recorded else None


class AsksInstead:
    """The policy of a run whose own was a function, which its recording does not have: a person is asked each time."""

    def __init__(self, name: str) -> None:
        self.recorded_as = name

    def __call__(self, call: object) -> dict[str, Any]:
        """Leave the call to a person, and say why."""
        reason = f"The policy of this run was {self.recorded_as}, which its recording does not keep; approve= gives it."
        return {"decision": "ask", "reason": reason}
