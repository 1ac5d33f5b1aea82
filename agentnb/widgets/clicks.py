"""What a person does in the panel, done to the run.

A decision comes in one message, with the arguments as the form gave them and a digest of the question that was on
screen, and is answered by one. So a click that crossed a change of the arguments decides nothing, and of two clicks in
two tabs the first wins (the run raises on the second). Nothing here may raise: whatever goes wrong is the answer.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
from collections.abc import Callable
from typing import Any

from agentnb.core.errors import AgentnbError, InvalidArguments, UnknownCall, UsageError
from agentnb.core.events import plain_event
from agentnb.widgets.forms import merge
from agentnb.widgets.rows import full_text
from agentnb.widgets.standing import UNITS, digest, question_id

Answer = Callable[[dict[str, Any]], object]

SNAPSHOTS: dict[str, Any] = {}
"""The snapshots taken with the button in this process, by the name the panel showed for each: run@position."""

logger = logging.getLogger("agentnb")


class Clicks:
    """Does to `run` what messages from the page ask for, and answers each by `answer`."""

    def __init__(self, run: Any, answer: Answer) -> None:
        self._run = run
        self._answer = answer
        self._decisions: dict[str, Callable[[Any, dict[str, Any]], object]] = {
            "approve": lambda item, message: run.approve(question_id(item)),
            "reject": lambda item, message: run.reject(question_id(item), str(message.get("reason") or "")),
            "edit": lambda item, message: run.edit(question_id(item), _arguments(message, item)),
            "replace": lambda item, message: run.replace(
                question_id(item), str(message["name"]), _arguments(message, item)
            ),
            "answer": lambda item, message: run.answer(question_id(item), _result(message)),
        }
        self._controls: dict[str, Callable[[dict[str, Any]], str | None]] = {
            "Step": self._step,
            "Play": lambda message: _done(run.play()),
            "Pause": lambda message: _done(run.pause(), "What is in flight is finished first."),
            "Cancel": lambda message: _done(run.cancel("cancelled in the panel")),
            "Snapshot": self._snapshot,
            "Steer": lambda message: _done(run.steer(str(message["text"]))),
            "Follow up": lambda message: _done(run.follow_up(str(message["text"]))),
        }

    def decide(self, message: dict[str, Any]) -> None:
        """Do what a `decision` message says; answered by `decided`."""
        self._respond("decided", message, self._decide)

    def control(self, message: dict[str, Any]) -> None:
        """Press the button that a `control` message names; answered by `done`."""
        self._respond("done", message, self._press)

    def show(self, message: dict[str, Any]) -> None:
        """Give all of an event's data, or of a waiting call's arguments; answered by `shown`."""
        try:
            shows_event = "seq" in message
            value = self._event_data(int(message["seq"])) if shows_event else self._item(str(message["id"])).arguments
        except AgentnbError as error:
            value = str(error)
        self._answer({"type": "shown", "token": message.get("token"), **full_text(value)})

    def _respond(self, type: str, message: dict[str, Any], act: Callable[[dict[str, Any]], str | None]) -> None:
        answer: dict[str, Any] = {"type": type, "token": message.get("token"), "ok": True}
        try:
            note = act(message)
        except AgentnbError as error:
            answer |= {"ok": False, "error": str(error)}
        except Exception as error:
            # A click has no caller to raise to: the person gets the error beside the button, the log the traceback.
            logger.exception("A click on run %s failed", self._run.id)
            answer |= {"ok": False, "error": f"{type_name(error)}: {error}"}
        else:
            if note is None:
                return  # answered later
            answer["note"] = note
        self._answer(answer)

    def _decide(self, message: dict[str, Any]) -> str:
        decide = self._decisions.get(str(message.get("decision")))
        if decide is None:
            raise UsageError(f"There is no decision {message.get('decision')!r}.")
        with self._run.lock:  # what is looked at is what is decided
            item = self._item(str(message.get("id")))
            if message.get("digest", "") != digest(item.name, item.arguments):
                raise UsageError("The call has changed since it was shown; look at it again.")
            decide(item, message)
        return ""

    def _item(self, id: str) -> Any:
        for item in self._run.pending:
            if question_id(item) == id:
                return item
        raise UnknownCall(f"The call {id!r} is not waiting any more.")

    def _press(self, message: dict[str, Any]) -> str | None:
        press = self._controls.get(str(message.get("action")))
        if press is None:
            raise UsageError(f"There is no button {message.get('action')!r}.")
        return press(message)

    def _step(self, message: dict[str, Any]) -> None:
        unit = str(message.get("unit") or "event")
        if unit not in UNITS:
            raise UsageError(f"A step is by one of {', '.join(UNITS)}, not by {unit!r}.")
        token = message.get("token")

        def finished(future: concurrent.futures.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            told = {"ok": True} if error is None else {"ok": False, "error": str(error) or type_name(error)}
            self._answer({"type": "done", "token": token, **told})

        self._run.submit_step(unit).add_done_callback(finished)

    def _snapshot(self, message: dict[str, Any]) -> str:
        name = f"{self._run.name or self._run.id}@{self._run.state.position}"
        SNAPSHOTS[name] = self._run.snapshot(name)
        return f"Snapshot taken: {name}"

    def _event_data(self, seq: int) -> Any:
        events = self._run.events
        return plain_event(events[seq]) if 0 <= seq < len(events) else {}


def _done(did: Any, note: str = "") -> str:
    """What the person is told; the run's control methods say False where there was nothing to do."""
    return "There was nothing to do." if did is False else note


def type_name(error: BaseException) -> str:
    """The name of an error's type."""
    return type(error).__name__


def _arguments(message: dict[str, Any], item: Any) -> dict[str, Any]:
    """The arguments as the form gave them: JSON text, so that its numbers are exact, or an object."""
    given = message.get("arguments")
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise InvalidArguments(f"The arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments must be a JSON object.")
    merged: dict[str, Any] = merge(arguments, message.get("kept") or [], item.arguments)
    return merged


def _result(message: dict[str, Any]) -> Any:
    """The result a person gave: JSON where it is JSON, else the text."""
    text = str(message.get("result", ""))
    try:
        return json.loads(text)
    except ValueError:
        return text
