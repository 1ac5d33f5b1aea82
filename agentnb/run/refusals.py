"""The ends that calls get in words, in place of what a tool gives: for the model, which has to go on from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CallEnd, CutOff, Outcome
from agentnb.core.state import CallState
from agentnb.core.tools import Tool
from agentnb.run.portable import error_info, portable


@dataclass(frozen=True, slots=True)
class Refusal:
    """A check's no: the result the call gets instead of running."""

    end: CallEnd


def end_in_words(call: CallState, words: str, outcome: Outcome, error: BaseException | None = None) -> CallEnd:
    """The end of a call that has not given a result, and the exception behind it where there is one."""
    fields: dict[str, Any] = {"result": portable(words), "is_error": True, "outcome": outcome}
    if error is not None:
        fields["error"] = error_info(error)
    return CallEnd(call_id=call.id, name=call.name, **fields)


def misfit(call: CallState, tools: Mapping[str, Tool]) -> Refusal:
    """The no to a call of no tool, or with arguments that are not JSON."""
    if call.name not in tools:
        known = ", ".join(sorted(tools)) or "none"
        return _refusal(call, f"Tool {call.name} not found. Available tools: {known}.")
    said = (call.malformed or "")[:200]
    return _refusal(call, f"The arguments of {call.name} are not a JSON object: {said}")


_CUT_OFF: Mapping[CutOff, str] = {
    "length": "hit the output token limit",
    "content_filter": "was stopped by a content filter",
    "refusal": "ended as a refusal",
}


def cut_off(call: CallState, why: CutOff) -> CallEnd:
    """Return the end of a call of an answer that was cut off, for its arguments may be, too; it may run by then."""
    has_begun = call.status == "running"
    words = f"{'Broken off' if has_begun else 'Not executed'}: the answer that made this call {_CUT_OFF[why]}."
    return end_in_words(call, words, "aborted" if has_begun else "skipped")


def unfit(call: CallState, error: InvalidArguments) -> Refusal:
    """The no to a call whose arguments do not fit."""
    return _refusal(call, str(error))


def blocked(call: CallState, words: str) -> Refusal:
    """The no of a loop's own hook."""
    return _refusal(call, words, "blocked")


def _refusal(call: CallState, words: str, outcome: Outcome = "invalid") -> Refusal:
    return Refusal(end_in_words(call, words, outcome))
