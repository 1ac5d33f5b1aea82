"""Decisions made in the panel, done to the run.

A decision comes in one message, with the arguments as the form gave them and a digest of the question that was on
screen; a message may have the decisions about many calls. So a click that crossed a change of the arguments decides
nothing, and of two clicks in two tabs the first wins: the second is told what was decided, by whom and when.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isinf
from typing import Any, NoReturn

from agentnb.core.errors import AgentnbError, AlreadyDecided, InvalidArguments, UnknownCall, UsageError
from agentnb.widgets.views.decisions import Decisions
from agentnb.widgets.views.forms import merge
from agentnb.widgets.views.standing import digest, question_id

Message = Mapping[str, Any]


class Deciding:
    """Decides about the calls of `run`, as messages say."""

    def __init__(self, run: Any, decisions: Decisions) -> None:
        self._run = run
        self._decisions = decisions

    def decide(self, message: Message) -> dict[str, Any]:
        """Do what one decision says, or each of many; of many, what went wrong is told call by call."""
        with self._run.lock:  # what is looked at is what is decided, and nobody else's decision comes between many
            waiting = {question_id(item): item for item in self._run.pending}
            if "decisions" not in message:
                self._decide(message, waiting)
                return {}
            failed: dict[str, str] = {}
            late: list[str] = []
            # What is to be remembered comes last: it decides others too, and not those with a decision of their own.
            for one in sorted(message["decisions"], key=lambda one: bool(one.get("remember"))):
                try:
                    self._decide(one, waiting)
                except AlreadyDecided as error:
                    if not one.get("remember"):  # otherwise by what the one before it is remembered for
                        failed[str(one.get("id"))] = str(error)
                except AgentnbError as error:
                    failed[str(one.get("id"))] = str(error)
                    late += [str(one.get("id"))] if isinstance(error, UnknownCall) else []
            return {"failed": failed, "late": late}

    def undo(self, message: Message) -> dict[str, Any]:
        """Take the decision of this event back; without one, those about all calls that have not begun."""
        with self._run.lock:
            if message.get("event") is None:
                taken = [self._run.undo(question_id(item)) for item in self._run.decided]
                return {"note": f"{len(taken):,} taken back; the calls are asked about again."}
            for item in self._run.decided:
                if item.event == message.get("event"):
                    self._run.undo(question_id(item))
                    return {"note": f"Taken back; {item.name} is asked about again."}
        raise UsageError("It is too late to take this back: the call has begun, or somebody else has taken it back.")

    def forget(self, message: Message) -> dict[str, Any]:
        """Forget the decision of this event."""
        self._run.forget(message.get("event"))
        return {"note": "Forgotten; later calls are asked about again."}

    def item(self, id: str) -> Any:
        """The waiting call of this id. Raises UnknownCall, which says who has decided it."""
        waiting = {question_id(item): item for item in self._run.pending}
        return waiting[id] if id in waiting else self._missing(id)

    def _missing(self, id: str) -> NoReturn:
        path, _, call_id = id.rpartition("/")
        last = self._decisions.last(self._run, path, call_id)
        raise UnknownCall(f"The call {id!r} is not waiting any more{f': it was {last}' if last else ''}.")

    def _decide(self, message: Message, waiting: Mapping[str, Any]) -> None:
        id, remember = str(message.get("id")), message.get("remember") or None
        item = waiting[id] if id in waiting else self._missing(id)
        if message.get("digest", "") != digest(item.name, item.arguments):
            raise UsageError("The call has changed since it was shown; look at it again.")
        match message.get("decision"):
            case "approve":
                self._run.approve(id, remember=remember)
            case "reject":
                self._run.reject(id, str(message.get("reason") or ""), remember=remember)
            case "edit":
                self._run.edit(id, _arguments(message, item))
            case "replace":
                self._run.replace(id, str(message["name"]), _arguments(message, item))
            case "answer":
                self._run.answer(id, json_or_text(str(message.get("result", ""))))
            case other:
                raise UsageError(f"There is no decision {other!r}.")


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
