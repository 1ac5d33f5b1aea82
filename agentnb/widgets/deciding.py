"""Decisions made in the panel, done to the run.

A decision comes in one message, with what identifies its question (run, path, number of its event), the arguments as
the form gave them and the digest of what was on screen; a message may have the decisions about many calls. So a click
that crossed a change of the question decides nothing, and of two clicks in two tabs the first wins: the second is told
what was decided, by whom and when.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, isinf
from typing import Any

from agentnb.core.errors import AgentnbError, AlreadyDecided, InvalidArguments, UsageError
from agentnb.run.approvals.decisions import decided_by_person
from agentnb.run.approvals.pending import Pending
from agentnb.widgets.views.decisions import Decisions
from agentnb.widgets.views.forms import merge
from agentnb.widgets.views.standing import identity

Message = Mapping[str, Any]
Question = tuple[object, ...]
"""What identifies a question: run, path and number; one that was not asked yet, by its call and how often it began."""


class Deciding:
    """Decides about the calls of `run`, as messages say."""

    def __init__(self, run: Any, decisions: Decisions) -> None:
        self._run = run
        self._decisions = decisions

    def decide(self, message: Message) -> dict[str, Any]:
        """Do what one decision says, or each of many; of many, say by position which could not be done, and why."""
        with self._run.lock:  # what is looked at is what is decided, and nobody else's decision comes between many
            waiting = self._waiting()
            if "decisions" not in message:
                self._decide(message, waiting)
                return {}
            failed: dict[str, str] = {}
            late: list[int] = []
            # What is to be remembered comes last: it decides others too, and not those with a decision of their own.
            for at, one in sorted(enumerate(message["decisions"]), key=lambda item: bool(item[1].get("remember"))):
                try:
                    self._decide(one, waiting)
                except AlreadyDecided as error:
                    if question_of(one) not in waiting:
                        late.append(at)
                    elif one.get("remember"):  # by what the one before it is remembered for
                        continue
                    failed[str(at)] = str(error)
                except AgentnbError as error:
                    failed[str(at)] = str(error)
            return {"failed": failed, "late": late}

    def undo(self, message: Message) -> dict[str, Any]:
        """Take the decision of this event back; without one, those about all calls that have not begun."""
        person = decided_by_person(self._run, None)
        with self._run.lock:
            if message.get("event") is None:
                taken = self._run.decided
                for item in taken:
                    person.undo(item)
                return {"note": f"{len(taken):,} taken back; the calls are asked about again."}
            for item in self._run.decided:
                if item.event == message.get("event"):
                    person.undo(item)
                    return {"note": f"Taken back; {item.name} is asked about again."}
        raise UsageError("It is too late to take this back: the call has begun, or somebody else has taken it back.")

    def forget(self, message: Message) -> dict[str, Any]:
        """Forget the decision of this event."""
        event: Any = message.get("event")
        decided_by_person(self._run, None).forget(event)
        return {"note": "Forgotten; later calls are asked about again."}

    def item(self, message: Message) -> Pending:
        """The waiting call of the question that a message identifies. Raises AlreadyDecided, with who decided it."""
        return self._find(message, self._waiting())

    def _waiting(self) -> dict[Question, Pending]:
        return {question_of(identity(item)): item for item in self._run.pending}

    def _find(self, message: Message, waiting: Mapping[Question, Pending]) -> Pending:
        found = waiting.get(question_of(message))
        if found is None:
            path, call_id = str(message.get("path", "")), str(message.get("id", ""))
            last = self._decisions.last(self._run, path, call_id)
            raise AlreadyDecided(
                f"The question about the call {call_id!r} is not waiting any more{f': it was {last}' if last else ''}."
            )
        return found

    def _decide(self, message: Message, waiting: Mapping[Question, Pending]) -> None:
        item, remember = self._find(message, waiting), message.get("remember") or None
        if message.get("digest", "") != item.shown:
            raise UsageError("The call has changed since it was shown; look at it again.")
        person = decided_by_person(self._run, _seconds(message.get("seconds")))
        match message.get("decision"):
            case "approve":
                person.approve(item, remember=remember)
            case "reject":
                person.reject(item, str(message.get("reason") or ""), remember=remember)
            case "edit":
                person.edit(item, _arguments(message, item))
            case "replace":
                person.replace(item, str(message["name"]), _arguments(message, item))
            case "answer":
                person.answer(item, json_or_text(str(message.get("result", ""))))
            case other:
                raise UsageError(f"There is no decision {other!r}.")


def question_of(message: Message) -> Question:
    """What identifies the question that a message, or a waiting call, is about."""
    run, path, event = message.get("run"), message.get("path"), message.get("event")
    return (run, path, event) if event is not None else (run, path, message.get("id"), message.get("attempt"))


def _seconds(given: Any) -> float | None:
    """The time that the page measured from showing the question to the click; None where it did not."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return round(float(given), 3) if is_number and isfinite(given) and given >= 0 else None


def _arguments(message: Message, item: Any) -> dict[str, Any]:
    """The arguments as the form gave them: JSON text, so that its numbers are exact, or an object."""
    given = message.get("arguments")
    try:
        arguments = json.loads(given, parse_float=_finite) if isinstance(given, str) else given
    except ValueError as error:
        raise InvalidArguments(f"The arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments must be a JSON object.")
    merged: dict[str, Any] = merge(arguments, message.get("kept") or [], item.arguments)
    return merged


def _finite(text: str) -> float:
    """The number that was typed, and not the infinity that Python makes of one too large for it."""
    number = float(text)
    if isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


def json_or_text(text: str) -> Any:
    """JSON where it is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
