"""Command handlers: perform the commands of a person in the panel.

Each message from the page is answered by one message with the same token. No handler raises an error: the answer has
the error.

A decision is one message, with the identity of its question (run, path and event number), the arguments in the form,
and the digest of the displayed data. A message may have the decisions about many calls. So a click has no effect if the
question has changed meanwhile, and of two clicks in two tabs the first one wins: the answer to the second one names the
decision, the person and the time.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import threading
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite, isinf
from typing import Any

from agentnb.core.errors import AgentnbError, AlreadyDecided, InvalidArguments, ReplayDiverged, UsageError
from agentnb.core.events import Event, ModelEnd, plain_event
from agentnb.core.json import repair_text
from agentnb.core.messages import text_of
from agentnb.run.approvals.decisions import decided_by_person
from agentnb.run.approvals.pending import Pending
from agentnb.run.approvals.too_late import too_late
from agentnb.run.gate.gate import UNITS
from agentnb.widgets.exporting import file_name, page_of
from agentnb.widgets.views.forms import merge
from agentnb.widgets.views.questions import identity, shown_arguments
from agentnb.widgets.views.rows import FULL_LIMIT, full_text
from agentnb.widgets.views.status import digest, state_data

Answer = Callable[[dict[str, Any]], object]
Message = dict[str, Any]
QuestionKey = tuple[object, ...]
"""The identity of a question: run, path and event number; before it is recorded, the call and its attempt instead."""

SNAPSHOTS: dict[str, Any] = {}
"""The snapshots taken with the button in this process, by the name that the panel showed for each."""
FORKS: dict[str, Any] = {}
"""The runs forked with the button in this process, by the name that the panel showed for each."""

PART, FILES = 512 * 1024, 3
"""The number of characters of an exported file in one message, and of files that are kept until a page has them."""

logger = logging.getLogger("agentnb")


class CommandHandlers:
    """Performs the commands in the page's messages on `run`, and sends each answer by `answer`.

    handlers: the function that handles each type of message.
    """

    def __init__(self, run: Any, answer: Answer) -> None:
        self._run = run
        self._answer = answer
        self._files: dict[str, list[str]] = {}  # exported files in parts, until a page has them
        self._controls: dict[str, Callable[[Message], Any]] = {
            "Step": self._step,
            "Play": lambda message: _note(run.play()),
            "Pause": lambda message: _note(run.pause(), "Requests and calls in flight finish first."),
            "Cancel": lambda message: _note(run.cancel("cancelled in the panel")),
            "Snapshot": self._snapshot,
            "Fork": self._fork,
            "Steer": lambda message: _note(run.steer(str(message["text"]))),
            "Follow up": lambda message: _note(run.follow_up(str(message["text"]))),
        }
        self.handlers: dict[str, Callable[[Message], object]] = {
            "decision": lambda message: self.respond("decided", message, self._decide),
            "undo": lambda message: self.respond("done", message, self._undo),
            "forget": lambda message: self.respond("done", message, self._forget),
            "control": lambda message: self.respond("done", message, self._control),
            "withdraw": lambda message: self.respond("done", message, self._withdraw),
            "breakpoint": lambda message: self.respond("done", message, self._breakpoint),
            "position": lambda message: self.respond("moved", message, self._move),
            "export": self._export,
            "show": self._show,
            "state": lambda message: self.respond("state", message, self._state),
            "typed": self._show_answer,
        }

    def respond(self, type: str, message: Message, act: Callable[[Message], Mapping[str, Any] | None]) -> None:
        """Answer a message with the fields that `act` returns, or with its error. If it returns None, it answers."""
        if (answer := answer_to(type, message, act, f"run {self._run.id}")) is not None:
            self._answer(answer)

    # -- decisions

    def _decide(self, message: Message) -> dict[str, Any]:
        """Apply the decision of a message, or each of its decisions.

        For several decisions, return the errors of those that failed, by position, and the positions of those that were
        too late because the call was already decided.
        """
        with self._run.lock:  # no other decision may come between the check and this one
            waiting = self._waiting()
            if "decisions" not in message:
                self._apply(message, waiting)
                return {}
            return decide_each(message["decisions"], lambda one: self._apply(one, waiting, several=True), waiting)

    def _apply(self, message: Message, waiting: Mapping[QuestionKey, Pending], *, several: bool = False) -> None:
        item, remember = self._find(message, waiting), message.get("remember") or None
        if several:
            check_is_known(message, item)
        if message.get("digest", "") != item.shown:
            raise UsageError("The call has changed since it was shown. Check it and decide again.")

        person = decided_by_person(self._run, measured_seconds(message))
        method, arguments = decision_in(message, item)
        if remember and method in ("approve", "reject"):
            arguments["remember"] = remember
        getattr(person, method)(item, **arguments)

    def _undo(self, message: Message) -> dict[str, Any]:
        """Withdraw the decision of the event in the message; without one, those about all calls not yet started."""
        person = decided_by_person(self._run, None)
        with self._run.lock:
            if message.get("event") is None:
                undone = self._run.decided
                for item in undone:
                    person.undo(item)
                return {"note": f"{len(undone):,} withdrawn; the calls wait for a decision again."}
            for item in self._run.decided:
                if item.event == message.get("event"):
                    person.undo(item)
                    return {"note": f"Withdrawn; {item.name} waits for a decision again."}
        raise UsageError("This decision can no longer be withdrawn: the call has started, or it was withdrawn already.")

    def _forget(self, message: Message) -> dict[str, Any]:
        """Forget the rule that the decision of this event created."""
        event: Any = message.get("event")
        decided_by_person(self._run, None).forget(event)
        return {"note": "Forgotten; later calls need a decision again."}

    def _waiting(self) -> dict[QuestionKey, Pending]:
        return {question_key(identity(item)): item for item in self._run.pending}

    def _find(self, message: Message, waiting: Mapping[QuestionKey, Pending]) -> Pending:
        """Return the waiting call that a message concerns. Raises AlreadyDecided if none waits."""
        found = waiting.get(question_key(message))
        if found is None:
            run = self._run
            raise late(message, run.events, run.name or run.id, str(message.get("path", "")))
        return found

    # -- buttons

    def _control(self, message: Message) -> Mapping[str, Any] | None:
        act = self._controls.get(str(message.get("action")))
        if act is None:
            raise UsageError(f"There is no button {message.get('action')!r}.")
        note = act(message)
        return {"note": note} if note is not None else None

    def _step(self, message: Message) -> None:
        """Step, and answer when the step has ended. If it returned only events that the page has, step again."""
        unit = str(message.get("unit") or "event")
        if unit not in UNITS:
            raise UsageError(f"The unit of a step must be one of {', '.join(UNITS)}, got {unit!r}.")
        token, shown = message.get("token"), len(self._run.events)

        def step() -> None:
            self._run.submit_step(unit).add_done_callback(finished)

        def finished(future: concurrent.futures.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled() and (events := future.result()) and events[-1].seq < shown:
                step()  # a decision, for example
                return
            result = {"ok": True} if error is None else {"ok": False, "error": str(error) or type_name(error)}
            self._answer({"type": "done", "token": token, **result})

        step()

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
        where = "Its line below the strip opens it; in code it is"
        return f"Branch {name}, from #{at}. {where} agentnb.widgets.FORKS[{name!r}]."

    def _withdraw(self, message: Message) -> dict[str, Any]:
        """Withdraw the queued message that was shown."""
        with self._run.lock:
            for queue, queued in self._run.queued:
                same = digest(queue, {"message": queued}) == message.get("digest")
                if same and self._run.withdraw(queue, queued):
                    return {"note": "Withdrawn; the run will not receive this message."}
        raise UsageError("This message can no longer be withdrawn: it was delivered, or withdrawn already.")

    def _breakpoint(self, message: Message) -> dict[str, Any]:
        breakpoints = self._run.breakpoints
        if message.get("do") == "remove":
            breakpoints.remove(int(message["number"]))
        elif message.get("do") != "add":
            breakpoints.by_number(int(message["number"])).enabled = bool(message.get("enabled"))
        else:
            # The form has strings; an empty one is no condition.
            conditions: dict[str, Any] = {
                name: str(message.get(name) or "").strip() for name in ("event", "tool", "phase")
            }
            if cost := str(message.get("cost") or "").strip():
                conditions["cost_above"] = _json_or_text(cost)
            if field := str(message.get("field") or "").strip():
                value = _json_or_text(str(message.get("value") or ""))
                conditions["arguments"] = [(field, str(message.get("operator")), value)]
            breakpoints.add(conditions)
        return {}

    def _move(self, message: Message) -> Mapping[str, Any]:
        """Move a replay to the position after that many events, and on to the end of the next `unit` if it is given.

        It stops at a divergence, which `status` shows.
        """
        with suppress(ReplayDiverged):
            self._run.to(int(message["position"]) - 1)
            if unit := message.get("unit"):
                self._run.step(unit)
        return {"place": self._run.place}

    # -- the exported file

    def _export(self, message: Message) -> None:
        """Send a part of the exported file. The first request makes the file, which takes a while, in a thread."""
        if message.get("file"):
            self.respond("exported", message, self._part)
        else:
            make = partial(self.respond, "exported", message, self._make_file)
            threading.Thread(target=make, name="agentnb-export", daemon=True).start()

    def _make_file(self, message: Message) -> dict[str, Any]:
        text, name = page_of(self._run), uuid.uuid4().hex
        self._files[name] = [text[at : at + PART] for at in range(0, len(text), PART)]
        for old in list(self._files)[:-FILES]:  # their pages have not asked for all of them
            del self._files[old]
        return self._part({"file": name, "part": 0})

    def _part(self, message: Message) -> dict[str, Any]:
        file, part = str(message["file"]), int(message["part"])
        parts = self._files.get(file, [])
        if not 0 <= part < len(parts):
            raise UsageError("The file is no longer here. Export the run again.")
        if part == len(parts) - 1:
            del self._files[file]
        return {"file": file, "name": file_name(self._run), "parts": len(parts), "text": parts[part]}

    # -- requests for data

    def _show(self, message: Message) -> None:
        """Send the complete data of an event, or one field of it, or the complete arguments of a waiting call."""
        answer: dict[str, Any]
        try:
            if "seq" not in message:
                arguments = self._find(message, self._waiting()).arguments
                answer = {"text": "", **shown_arguments(arguments, FULL_LIMIT)}
            else:
                events, seq = self._run.events, int(message["seq"])
                value: Any = plain_event(events[seq]) if 0 <= seq < len(events) else {}
                for name in message.get("field") or ():
                    value = value[name] if isinstance(value, Mapping) and name in value else None
                answer = {**full_text(value), "json": not isinstance(value, str)}
        except AgentnbError as error:
            answer = full_text(str(error))
        self._answer({"type": "shown", "token": message.get("token"), **answer})

    def _state(self, message: Message) -> dict[str, Any]:
        """Return the state of a loop as it was after so many events."""
        state = self._run.at(int(message["position"]) - 1).state
        for name in filter(None, str(message.get("path") or "").split("/")):
            if name not in state.children:
                raise UsageError("This loop has no state: it has not begun.")
            state = state.children[name]
        return state_data(state)

    def _show_answer(self, message: Message) -> None:
        """Send the model's answer in the event `seq`, with the times of its parts.

        In a replay, the event may be after the current position.
        """
        events, seq = self._run.recording, int(message["seq"])
        event = events[seq] if 0 <= seq < len(events) else None
        answer: dict[str, Any] = {"text": "", "timing": []}
        if isinstance(event, ModelEnd):
            answer = {"text": repair_text(text_of(event.message.content)[:FULL_LIMIT]), "timing": event.timing}
        self._answer({"type": "typed", "token": message.get("token"), **answer})


def check_is_known(message: Message, item: Pending) -> None:
    """Raise UsageError if a call may have run already, and is decided together with others. `unknown` allows it."""
    if item.unknown and message.get("unknown") is not True:
        raise UsageError(
            f"Nobody knows whether {item.name} has run: its process has exited. It is left out of a decision about"
            " several calls; decide it by itself."
        )


def late(message: Message, events: Sequence[Event], run: str, path: str) -> AlreadyDecided:
    """Return the error for a question that is no longer open. events, run: those of its run, and the run's name."""
    return too_late(events, run, path, str(message.get("id", "")), question=message.get("event"))


def decide_each(
    messages: Sequence[Message], apply: Callable[[Message], object], waiting: Container[QuestionKey]
) -> dict[str, Any]:
    """Apply several decisions. Return the errors of those that failed, by position, and the positions of the late ones.

    A decision is late if its call did not wait any more when the decisions arrived: it is not among `waiting`.
    """
    failed: dict[str, str] = {}
    late: list[int] = []
    # Decisions to be remembered come last: they decide other calls too, but not those decided here.
    for at, one in sorted(enumerate(messages), key=lambda item: bool(item[1].get("remember"))):
        try:
            apply(one)
        except AlreadyDecided as error:
            if question_key(one) not in waiting:
                late.append(at)
            elif one.get("remember"):  # decided by a decision before it, which is remembered
                continue
            failed[str(at)] = str(error)
        except AgentnbError as error:
            failed[str(at)] = str(error)
    return {"failed": failed, "late": late}


def decision_in(message: Message, item: Pending) -> tuple[str, dict[str, Any]]:
    """Return the method of a run that applies the decision of a message, and its arguments. Raises UsageError."""
    match message.get("decision"):
        case "approve":
            return "approve", {}
        case "reject":
            return "reject", {"reason": str(message.get("reason") or "")}
        case "edit":
            return "edit", {"arguments": _arguments(message, item)}
        case "replace":
            return "replace", {"name": str(message["name"]), "arguments": _arguments(message, item)}
        case "answer":
            return "answer", {"result": _json_or_text(str(message.get("result", "")))}
        case other:
            raise UsageError(f"The decision must be approve, reject, edit, replace or answer, got {other!r}.")


def measured_seconds(message: Message) -> float | None:
    """Return the seconds from the display of the question to the click, which the page has measured if it could."""
    seconds: Any = message.get("seconds")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return round(float(seconds), 3) if is_number and isfinite(seconds) and seconds >= 0 else None


def snapshots_of(run: Any) -> list[int]:
    """Return the last event of each snapshot of this run that was taken in a panel."""
    taken = [snapshot for snapshot in list(SNAPSHOTS.values()) if snapshot.run_id == run.id]
    return sorted({snapshot.position - 1 for snapshot in taken})


def type_name(error: BaseException) -> str:
    """Return the name of an error's type."""
    return type(error).__name__


def _note(done: Any, note: str = "") -> str:
    """Return the note for the person. The run's control methods return False if there was nothing to do."""
    return "There was nothing to do." if done is False else note


def question_key(message: Mapping[str, Any]) -> QuestionKey:
    """Return the identity of the question that a message, or a waiting call, concerns."""
    run, path, event = message.get("run"), message.get("path"), message.get("event")
    return (run, path, event) if event is not None else (run, path, message.get("id"), message.get("attempt"))


def _arguments(message: Message, item: Any) -> dict[str, Any]:
    """Return the arguments of the form. They are JSON text, so that numbers are exact, or an object."""

    def finite(text: str) -> float:
        number = float(text)
        if isinf(number):  # Python reads a number that is too large as infinity
            raise ValueError(f"the number {text} is too large")
        return number

    given = message.get("arguments")
    try:
        arguments = json.loads(given, parse_float=finite) if isinstance(given, str) else given
    except ValueError as error:
        raise InvalidArguments(f"The arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments must be a JSON object.")
    merged: dict[str, Any] = merge(arguments, message.get("kept") or [], item.arguments)
    return merged


def _json_or_text(text: str) -> Any:
    """Return the value if the text is JSON, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def answer_to(
    type: str, message: Message, act: Callable[[Message], Mapping[str, Any] | None], clicked: str
) -> Message | None:
    """Return the answer to a message: the fields that `act` returns, or its error. None if `act` returns None.

    clicked: what the message is about, for the log.
    """
    answer: Message = {"type": type, "token": message.get("token"), "ok": True, "note": ""}
    try:
        result = act(message)
    except AgentnbError as error:
        answer |= {"ok": False, "error": str(error)}
        if isinstance(error, AlreadyDecided):  # by another person: the page no longer shows the call
            answer["late"] = [0]
    except Exception as error:
        # There is no caller to raise to: the error is shown next to the button, and the traceback is logged.
        logger.exception("A click on %s failed", clicked)
        answer |= {"ok": False, "error": f"{type_name(error)}: {error}"}
    else:
        if result is None:
            return None
        answer |= result
    return answer
