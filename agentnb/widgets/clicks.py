"""What a person does in the panel, done to the run.

Each message from the page is answered by one, under the message's token. Nothing here may raise: whatever goes wrong is
the answer.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from agentnb.core.errors import AgentnbError, AlreadyDecided, ReplayDiverged, UsageError
from agentnb.core.events import ModelEnd, plain_event
from agentnb.core.messages import text_of
from agentnb.core.unicode import mended
from agentnb.run.gate.gate import UNITS
from agentnb.widgets.deciding import Deciding, json_or_text
from agentnb.widgets.text import for_reading
from agentnb.widgets.views.decisions import Decisions
from agentnb.widgets.views.rows import FULL_LIMIT, full_text
from agentnb.widgets.views.standing import digest

Answer = Callable[[dict[str, Any]], object]
Message = dict[str, Any]

SNAPSHOTS: dict[str, Any] = {}
"""The snapshots taken with the button in this process, by the name the panel showed for each."""
FORKS: dict[str, Any] = {}
"""The runs forked with the button in this process, by the name the panel showed for each."""

logger = logging.getLogger("agentnb")


class Clicks:
    """Does to `run` what messages from the page ask for, and answers each by `answer`.

    `handlers`: what does it, by the type of the message.
    """

    def __init__(self, run: Any, answer: Answer, decisions: Decisions) -> None:
        self._run = run
        self._answer = answer
        self._deciding = deciding = Deciding(run, decisions)
        self._controls: dict[str, Callable[[Message], Any]] = {
            "Step": self._step,
            "Play": lambda message: _done(run.play()),
            "Pause": lambda message: _done(run.pause(), "What is in flight is finished first."),
            "Cancel": lambda message: _done(run.cancel("cancelled in the panel")),
            "Snapshot": self._snapshot,
            "Fork": self._fork,
            "Steer": lambda message: _done(run.steer(str(message["text"]))),
            "Follow up": lambda message: _done(run.follow_up(str(message["text"]))),
        }
        self.handlers: dict[str, Callable[[Message], object]] = {
            "decision": lambda message: self._respond("decided", message, deciding.decide),
            "undo": lambda message: self._respond("done", message, deciding.undo),
            "forget": lambda message: self._respond("done", message, deciding.forget),
            "control": lambda message: self._respond("done", message, self._press),
            "withdraw": lambda message: self._respond("done", message, self._withdraw),
            "breakpoint": lambda message: self._respond("done", message, self._breakpoint),
            "position": lambda message: self._respond("moved", message, self._go_to),
            "show": self._show,
            "typed": self._tell_typed,
        }

    def _show(self, message: Message) -> None:
        """Give all of an event's data, or of a waiting call's arguments."""
        try:
            shows_event = "seq" in message
            item = None if shows_event else self._deciding.item(message)
            value = self._event_data(int(message["seq"])) if item is None else for_reading(item.arguments)
        except AgentnbError as error:
            value = str(error)
        self._answer({"type": "shown", "token": message.get("token"), **full_text(value)})

    def _respond(self, type: str, message: Message, act: Callable[[Message], Mapping[str, Any] | None]) -> None:
        answer: Message = {"type": type, "token": message.get("token"), "ok": True, "note": ""}
        try:
            told = act(message)
        except AgentnbError as error:
            answer |= {"ok": False, "error": str(error)}
            if isinstance(error, AlreadyDecided):  # by somebody else: the page has nowhere left to say it at
                answer["late"] = [0]
        except Exception as error:
            # A click has no caller to raise to: the person gets the error beside the button, the log the traceback.
            logger.exception("A click on run %s failed", self._run.id)
            answer |= {"ok": False, "error": f"{type_name(error)}: {error}"}
        else:
            if told is None:
                return  # answered later
            answer |= told
        self._answer(answer)

    def _press(self, message: Message) -> Mapping[str, Any] | None:
        press = self._controls.get(str(message.get("action")))
        if press is None:
            raise UsageError(f"There is no button {message.get('action')!r}.")
        note = press(message)
        return {"note": note} if note is not None else None

    def _step(self, message: Message) -> None:
        unit = str(message.get("unit") or "event")
        if unit not in UNITS:
            raise UsageError(f"A step is by one of {', '.join(UNITS)}, not by {unit!r}.")
        token = message.get("token")
        shown = len(self._run.events)

        def finished(future: concurrent.futures.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled() and (events := future.result()) and events[-1].seq < shown:
                go_on()  # the step was of what the page shows already, a decision say
                return
            told = {"ok": True} if error is None else {"ok": False, "error": str(error) or type_name(error)}
            self._answer({"type": "done", "token": token, **told})

        def go_on() -> None:
            self._run.submit_step(unit).add_done_callback(finished)

        go_on()

    def _go_to(self, message: Message) -> Mapping[str, Any]:
        """Move a replay to behind so many of its events, or as far as its loop agrees: then `status` tells the rest."""
        with suppress(ReplayDiverged):
            self._run.to(int(message["position"]) - 1)
        return {"place": self._run.place}

    def _tell_typed(self, message: Message) -> None:
        """Give what a model has answered in the event `seq`, with when it came; also of an event yet to be replayed."""
        events, seq = self._run.recording, int(message["seq"])
        event = events[seq] if 0 <= seq < len(events) else None
        told: dict[str, Any] = {"text": "", "timing": []}
        if isinstance(event, ModelEnd):
            told = {"text": mended(text_of(event.message.content)[:FULL_LIMIT]), "timing": event.timing}
        self._answer({"type": "typed", "token": message.get("token"), **told})

    def _snapshot(self, message: Message) -> str:
        given = str(message.get("name") or "").strip()
        name = given or f"{self._run.name or self._run.id}@{self._run.state.position}"
        snapshot = SNAPSHOTS[name] = self._run.snapshot(name)
        where = getattr(self._run.store, "where", None)
        kept = f", and in {where}: store.load({name!r})" if where is not None else ""
        return f"Snapshot taken of {snapshot.position} events: agentnb.widgets.SNAPSHOTS[{name!r}]{kept}"

    def _fork(self, message: Message) -> str:
        at = message.get("at")
        at = int(at) if at is not None else self._run.state.position - 1
        plain = f"{self._run.name or self._run.id} fork@{at}"
        names = (plain, *(f"{plain} ({number})" for number in range(2, len(FORKS) + 2)))
        name = next(name for name in names if name not in FORKS)
        FORKS[name] = self._run.fork(at=at, name=name)
        return f"Forked at event {at}: agentnb.widgets.FORKS[{name!r}]"

    def _withdraw(self, message: Message) -> dict[str, Any]:
        """Take one queued message back, the one that was shown."""
        with self._run.lock:
            for queue, queued in self._run.queued:
                same = digest(queue, {"message": queued}) == message.get("digest")
                if same and self._run.withdraw(queue, queued):
                    return {"note": "Taken back; the run will not hear it."}
        raise UsageError("It is too late to take this back: it was heard, or taken back elsewhere.")

    def _breakpoint(self, message: Message) -> dict[str, Any]:
        breakpoints = self._run.breakpoints
        if message.get("do") == "add":
            breakpoints.add(_conditions(message))
        elif message.get("do") == "remove":
            breakpoints.remove(int(message["number"]))
        else:
            breakpoints.by_number(int(message["number"])).enabled = bool(message.get("enabled"))
        return {}

    def _event_data(self, seq: int) -> Any:
        events = self._run.events
        return plain_event(events[seq]) if 0 <= seq < len(events) else {}


def _conditions(message: Message) -> dict[str, Any]:
    """The conditions in a form: texts, of which the empty ones ask for nothing."""
    conditions: dict[str, Any] = {name: str(message.get(name) or "").strip() for name in ("event", "tool", "phase")}
    if cost := str(message.get("cost") or "").strip():
        conditions["cost_above"] = json_or_text(cost)
    if field := str(message.get("field") or "").strip():
        value = json_or_text(str(message.get("value") or ""))
        conditions["arguments"] = [(field, str(message.get("operator")), value)]
    return conditions


def _done(did: Any, note: str = "") -> str:
    """What the person is told; the run's control methods say False where there was nothing to do."""
    return "There was nothing to do." if did is False else note


def type_name(error: BaseException) -> str:
    """The name of an error's type."""
    return type(error).__name__
