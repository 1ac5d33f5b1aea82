"""Decisions about calls: approve, reject, edit, replace, answer, and undo.

A decision applies to exactly the question that was shown (ARCHITECTURE.md, 4. Promises). A question is identified by
its run, its path and the number of its event; ids chosen by models, servers or users are not unique. An approved call
runs with exactly the arguments of its question. Edited arguments are checked against the tool's schema before anything
changes. The first decision is final unless it is undone before the call starts; then a new question about the call is
asked. A rule for later calls (`remember=`) is part of the decision event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from agentnb.core.errors import AlreadyDecided, InvalidArguments, UnknownCall, UsageError
from agentnb.core.events import ApprovalDecision, ApprovalRequest, Decision, Event, Remember
from agentnb.core.json import to_json_data, to_plain
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import carry_out, expire
from agentnb.run.approvals.outcomes import reject as refuse
from agentnb.run.approvals.pending import (
    Decided,
    Pending,
    open_question,
    question_to_ask,
    ready,
    schemas,
    shown_now,
    waiting,
)
from agentnb.run.approvals.remembered import Remembered, apply_to_waiting, remembering
from agentnb.run.approvals.reviewer import CODE, Decider
from agentnb.run.approvals.too_late import too_late
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.validation import check_text, shown

Found = tuple[Frame, CallState]


class Decisions:
    """The part of a run that records decisions about its calls. Every method is safe from every thread."""

    def __init__(
        self,
        journal: Journal,
        unasked: Callable[[], list[Found]],
        begin: Callable[[], None],
        decider: Decider = CODE,
    ) -> None:
        """Create the decisions of a run.

        unasked: returns the calls that wait for a person, but have no question yet. begin: appends the run's first
        event, unless it has been appended. decider: the author of the decisions.
        """
        self.id = journal.run_id
        """The id of the run."""
        self._journal = journal
        self._unasked = unasked
        self._begin = begin
        self._decider = decider

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of the journal. While a thread holds it, no other thread can append an event.

        Hold it to read `pending` and decide without a change in between.
        """
        return self._journal.lock

    def tool_schemas(self, path: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the JSON schema of the arguments of each tool, by name; with `path`, only of the loop at that path."""
        return schemas(self._journal.frames, path)

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for a person and whose deadline has not passed, each loop's in the order it made them."""
        with self._journal.lock:
            found, now = waiting(self._journal.frames, self._unasked(), run_id=self.id), self._journal.now()
        return [item for item in found if item.deadline is None or now < item.deadline]

    @property
    def decided(self) -> list[Decided]:
        """The calls that are decided and have not started, whose decisions `undo` can withdraw."""
        with self._journal.lock:
            return ready(self._journal.frames, run_id=self.id)

    def approve(self, id: str | Pending, *, remember: Remember | None = None, reviewer: str | None = None) -> None:
        """Approve a call: it runs with exactly the arguments of its question.

        id: an item of `pending`; or the id of the call, if exactly one question with this id waits. remember: also
        approve other waiting calls and later calls of this run: "tool" for all calls of the same tool, "arguments" for
        its calls with exactly the same arguments. reviewer: the name of the person who decided.

        Raises AlreadyDecided if the question is decided, was asked again since, or belongs to another run; UnknownCall
        if no question waits under this id; UsageError if several do.
        """
        with self._journal.saying():
            frame, call = self._waiting(id)
            rule = _remembering(call, remember)
            decision = ApprovalDecision(
                call_id=call.id, decision="approve", **self._decided_by(frame, call, reviewer), **rule
            )
            self._journal.append(decision, frame)
            if rule:
                apply_to_waiting(self._journal)

    def reject(
        self,
        id: str | Pending,
        reason: str = "",
        *,
        remember: Remember | None = None,
        reviewer: str | None = None,
    ) -> None:
        """Reject a call: it does not run, and its result tells the model the reason.

        The other arguments and the errors are those of `approve`.
        """
        check_text("reject(id, reason)", reason)
        with self._journal.saying():
            frame, call = self._waiting(id)
            rule = _remembering(call, remember)
            refuse(self._journal, frame, call, reason, **self._decided_by(frame, call, reviewer), **rule)
            if rule:
                apply_to_waiting(self._journal)

    def edit(self, id: str | Pending, arguments: dict[str, Any], *, reviewer: str | None = None) -> None:
        """Approve a call with other arguments.

        Raises InvalidArguments if they do not fit the tool's schema, and the errors of `approve`.
        """
        with self._journal.saying():
            self._replace(*self._waiting(id), "edit", None, arguments, reviewer)

    def replace(self, id: str | Pending, name: str, arguments: dict[str, Any], *, reviewer: str | None = None) -> None:
        """Run another tool instead of the call.

        name: the tool. Raises UnknownCall if the loop has no such tool, InvalidArguments if the arguments do not fit
        its schema, and the errors of `approve`.
        """
        with self._journal.saying():
            self._replace(*self._waiting(id), "replace", name, arguments, reviewer)

    def answer(self, id: str | Pending, result: Any, *, reviewer: str | None = None) -> None:
        """Provide the result of a call without running it, or the answer that a suspended loop waits for.

        Restore a suspended run before you answer it, and answer it before it continues. Raises UsageError if the run
        has ended with a suspension and was not restored, and the errors of `approve`.
        """
        with self._journal.saying():
            if self._answer_suspended_loop(id, result):
                return
            frame, call = self._waiting(id)
            decision = ApprovalDecision(
                call_id=call.id,
                decision="answer",
                result=to_json_data(result),
                **self._decided_by(frame, call, reviewer),
            )
            recorded = self._journal.append(decision, frame)
            # A watcher of the decision may have ended the run, and the call with it.
            carry_out(self._journal, frame, call, recorded)

    def undo(self, id: str | Decided | Pending, *, reviewer: str | None = None) -> None:
        """Withdraw the decision about a call that has not started. The call is asked about again.

        id: an item of `decided`, or the former item of `pending`; or the id of the call, if exactly one decided call
        has it. The new question has the same time limit as the first one. A rule that the decision created
        (`remember=`) is removed.

        Raises AlreadyDecided if the call has started or ended, the decision was withdrawn already, or it belongs to
        another run; UnknownCall if no open call has this id; UsageError if the call is not decided, or several decided
        calls have this id.
        """
        with self._journal.saying():
            frame, call = self._decided(id)
            decision, question = call.decision, call.approval
            assert decision is not None
            # Withdraw the decision. This restores the name and the arguments of the call if the decision changed them.
            withdrawal = ApprovalDecision(
                call_id=call.id,
                decision="ask",
                earlier=decision.seq,
                by=self._decider.by,
                reviewer=self._decider.name(reviewer),
            )
            self._journal.append(withdrawal, frame, call)
            # Ask again. A question about a call with unknown outcome keeps its arguments; another shows the arguments
            # that the call would run with now.
            time_limit = (
                question.deadline - question.time if question is not None and question.deadline is not None else None
            )
            new_question = ApprovalRequest(
                call_id=call.id,
                name=call.name,
                arguments=question.arguments
                if question is not None and question.unknown
                else _would_run_with(frame, call),
                reason=question.reason if question is not None else f"What {decision.by} decided was taken back.",
                deadline=self._journal.now() + time_limit if time_limit is not None else None,
                unknown=question.unknown if question is not None else False,
                earlier=question.seq if question is not None else None,
                note=question.note if question is not None else "",
            )
            self._journal.append(new_question, frame, call)

    def forget(self, event: int | Remembered, *, reviewer: str | None = None) -> None:
        """Remove a remembered decision, so that it decides no more calls. Earlier decisions by it remain.

        event: an item of `remembered`, or the number of its event. Raises UsageError if no such decision is remembered,
        or if the run has ended; AlreadyDecided if the item belongs to another run.
        """
        if isinstance(event, Remembered):
            if event.run_id != self.id:
                raise AlreadyDecided(
                    f"That decision is remembered in the run {event.run_id}, not in this one ({self.id}). Call forget()"
                    " of that run."
                )
            event = event.event
        with self._journal.saying():
            rule = next((rule for rule in self._journal.state.rules if rule.seq == event), None)
            if rule is None:
                known = ", ".join(str(rule.seq) for rule in self._journal.state.rules) or "none"
                raise UsageError(f"No decision of event {event} is remembered; remembered: {known}.")
            if self._journal.state.over:
                raise UsageError("The run has ended; there is nothing to decide.")
            name = self._decider.name(reviewer)
            self._journal.append(
                ApprovalDecision(call_id="", decision="ask", earlier=event, by=self._decider.by, reviewer=name)
            )

    # -- what a decision records -----------------------------------------------------------------------------------

    def _decided_by(self, frame: Frame, call: CallState, reviewer: str | None) -> dict[str, Any]:
        """Return the fields of a decision about a waiting call: author, question, and digest of the shown question."""
        question = call.approval
        assert question is not None
        return {
            "by": self._decider.by,
            "reviewer": self._decider.name(reviewer),
            "seconds": self._decider.seconds,
            "question": question.seq,
            "tool_fingerprint": frame.fingerprints.get(call.name),
            "shown": shown_now(frame, call) if self._decider.by != "remembered" else None,  # a rule is shown nothing
        }

    def _replace(
        self,
        frame: Frame,
        call: CallState,
        decision: Decision,
        name: str | None,
        arguments: dict[str, Any],
        reviewer: str | None,
    ) -> None:
        tool = frame.tools.get(name if name is not None else call.name)
        if tool is None:
            raise UnknownCall(
                f"There is no tool {name or call.name!r}; the tools are {', '.join(sorted(frame.tools))}."
            )
        frame.calls.bind(tool, call, to_plain(arguments), frame.state)  # raises InvalidArguments if they do not fit
        decided = ApprovalDecision(
            call_id=call.id,
            decision=decision,
            name=name,
            arguments=to_json_data(arguments),
            **{**self._decided_by(frame, call, reviewer), "tool_fingerprint": frame.fingerprints.get(tool.name)},
        )
        self._journal.append(decided, frame)

    # -- finding a question or a call ------------------------------------------------------------------------------

    def _waiting(self, item: str | Pending) -> Found:
        """Return the call of a waiting question. If its question is not recorded yet, record it now.

        Raises AlreadyDecided if the deadline has passed; before that, all calls whose deadline has passed are rejected.
        Also raises the errors of `approve`.
        """
        frame, call = self._find_item(item) if isinstance(item, Pending) else self._find_waiting(item)
        if (frame, call) in self._unasked():
            self._journal.append(question_to_ask(call), frame, call)
        question = open_question(call)
        if question is not None and (question.deadline is None or self._journal.now() < question.deadline):
            return frame, call
        expire(self._journal)
        raise self._too_late(frame.path, call, question.seq if question is not None else None)

    def _find_item(self, item: Pending) -> Found:
        """Return the call of an item of `pending`. Raises AlreadyDecided if its question no longer waits."""
        self._check_run(item)
        frame = self._journal.frame_at(item.path)
        call = _call_at(frame, item.id)
        if frame is None or call is None:
            raise self._too_late(item.path, item)
        # The question still waits: it is not recorded yet, or it is recorded and looks as it was shown.
        is_unasked = (frame, call) in self._unasked()
        if is_unasked and item.event is None and item.attempt == call.attempt:
            return frame, call
        if open_question(call) is not None and _is_question(item, call):
            if item.event is not None and item.shown not in ("", shown_now(frame, call)):
                raise AlreadyDecided(
                    f"The question about {item.name} ({_place(item.id, item.path)}) has changed since it was shown."
                    " Read the current question in run.pending."
                )
            return frame, call
        # Another question about the call waits, or none.
        if open_question(call) is not None or is_unasked:
            number = call.approval.seq if call.approval is not None else None
            raise self._too_late(
                item.path, item, then=f"It waits again: read the question of event {number} in run.pending."
            )
        raise self._too_late(item.path, item)

    def _find_waiting(self, id: object) -> Found:
        """Return the one call that waits under an id.

        Raises UsageError if several calls do, AlreadyDecided if a call with this id exists but does not wait,
        UnknownCall if there is no call with this id.
        """
        found = self._under(id, lambda frame, call: open_question(call) is not None or (frame, call) in self._unasked())
        if len(found) == 1:
            return found[0]
        if found:
            raise _several(found, "are waiting", "run.pending")
        known = self._under(id, lambda frame, call: True)
        if known:
            frame, call = known[-1]
            raise self._too_late(frame.path, call)
        waits = ", ".join(f"{p.id} ({p.name})" for p in self.pending) or "none"
        raise UnknownCall(f"No call {shown(id)} is waiting for a decision; waiting: {waits}.")

    def _under(self, id: object, fits: Callable[[Frame, CallState], bool]) -> list[Found]:
        """Return the calls with this id that `fits` accepts; if there are none, those whose path and id are `id`.

        Path and id are joined by a slash: "review/critic/call_1".
        """
        if not isinstance(id, str):
            return []
        by_id = [(frame, call) for frame in self._journal.frames if (call := _call_at(frame, id)) is not None]
        found = [item for item in by_id if fits(*item)]
        if found:
            return found
        inside = [frame for frame in self._journal.frames if frame.path and id.startswith(f"{frame.path}/")]
        by_path = [(frame, _call_at(frame, id.removeprefix(f"{frame.path}/"))) for frame in inside]
        return [(frame, call) for frame, call in by_path if call is not None and fits(frame, call)]

    def _decided(self, item: str | Decided | Pending) -> Found:
        """Return the call with a decision that can be withdrawn. Raises the errors of `undo`."""
        # Find the call.
        if not isinstance(item, Decided | Pending):
            found = self._under(item, lambda frame, call: call.status == "ready")
            if len(found) > 1:
                raise _several(found, "are decided", "run.decided")
            found = found or self._under(item, lambda frame, call: True)
            if not found:
                raise UnknownCall(f"No call {shown(item)} is open. run.decided lists the calls that can be undone.")
            frame, call = found[-1]
        else:
            self._check_run(item)
            item_frame = self._journal.frame_at(item.path)
            item_call = _call_at(item_frame, item.id)
            if item_frame is None or item_call is None:
                raise self._too_late(item.path, item, then="It has ended, so the decision can no longer be withdrawn.")
            frame, call = item_frame, item_call
        # Check that it is decided, has not started, and that the decision is the one that `item` refers to.
        if call.status in ("proposed", "asking"):
            raise _not_decided(item, call)
        if call.status != "ready":
            progress = "has started" if call.status == "running" else "has ended"
            then = f"It {progress}, so the decision can no longer be withdrawn."
            raise self._too_late(frame.path, call, then=then)
        decision = call.decision
        assert decision is not None
        is_it = (
            not isinstance(item, Decided | Pending)
            or (isinstance(item, Decided) and item.event == decision.seq)
            or (isinstance(item, Pending) and _is_question(item, call))
        )
        if not is_it:
            raise self._too_late(frame.path, call, then=f"It was decided again, in event {decision.seq}.")
        return frame, call

    def _too_late(
        self, path: str, call: CallState | Pending | Decided, question: int | None = None, then: str = ""
    ) -> AlreadyDecided:
        """Return the error about a call that no longer waits. question: the number of its question, if it is known."""
        if isinstance(call, Pending):
            question = call.event
        return too_late(
            self._journal.events, self._journal.run_name, path, call.id, name=call.name, question=question, then=then
        )

    def _check_run(self, item: Pending | Decided) -> None:
        if item.run_id != self.id:
            raise AlreadyDecided(
                f"The question about {item.name} belongs to the run {item.run_id}, not to this one ({self.id}). Nothing"
                " was decided."
            )

    def _answer_suspended_loop(self, id: str | Pending, result: Any) -> bool:
        """Record the answer that a suspended loop of this run waits for under this id.

        Returns False if no loop waits under this id. Raises AlreadyDecided if the answer was given before, UsageError
        if several questions wait under this id or the run has ended.
        """
        if not isinstance(id, str):
            return False
        events: list[tuple[Frame, Event]] = []
        answered: AlreadyDecided | None = None
        for frame in self._journal.frames:
            try:
                if (event := frame.calls.answer_to(id, to_json_data(result), frame.state)) is not None:
                    events.append((frame, event))
            except AlreadyDecided as error:  # another loop may still wait under this id
                answered = error
        waits = self._under(id, lambda frame, call: open_question(call) is not None or (frame, call) in self._unasked())
        if not events:
            if answered is not None and not waits:
                raise answered
            return False
        # Exactly one question must wait under the id, in a run that has not ended.
        if len(events) + len(waits) > 1:
            places = [frame.path or "the outermost loop" for frame, _ in [*events, *waits]]
            raise UsageError(
                f"{len(places)} questions with the id {id!r} are waiting: in {' and in '.join(places)}. To answer a"
                " call, pass its item of run.pending."
            )
        if self._journal.state.over:
            raise UsageError(
                "The run is suspended, and has ended in this process. Call restore(run.snapshot(), loop), and answer"
                f" {id!r} in the run that it returns."
            )
        frame, event = events[0]
        self._begin()
        self._journal.append(event, frame)
        self._journal.remember()
        return True


def decided_by_person(decisions: Decisions, seconds: float | None) -> Decisions:
    """Return the decisions of the same run in the name of a person who was shown the question `seconds` ago."""
    return Decisions(decisions._journal, decisions._unasked, decisions._begin, Decider("human", seconds))


def decided_by_rule(decisions: Decisions) -> Decisions:
    """Return the decisions of the same run in the name of a decision that was remembered outside this run."""
    return Decisions(decisions._journal, decisions._unasked, decisions._begin, Decider("remembered"))


def decide_about(decisions: Decisions, item: Pending, method: str, arguments: Mapping[str, Any]) -> None:
    """Call a method of `Run` that decides about a call. Raises as that method does.

    arguments: those of the method; `decider` among them is the author of the decision if it is not code: `["human",
    seconds since the question was shown]`, or `["remembered", None]` for a rule of a study.
    """
    by, seconds = arguments.get("decider") or ("code", None)
    author = {"human": lambda: decided_by_person(decisions, seconds), "remembered": lambda: decided_by_rule(decisions)}
    authored = author[by]() if by in author else decisions
    getattr(authored, method)(item, **{name: value for name, value in arguments.items() if name != "decider"})


def _call_at(frame: Frame | None, id: str) -> CallState | None:
    """Return the call with this id in a loop: an open call, or one of the current turn that has ended."""
    return (frame.state.open.get(id) or frame.state.calls.get(id)) if frame is not None else None


def _is_question(item: Pending, call: CallState) -> bool:
    """Return True if the newest question of the call is the one that `item` shows."""
    question = call.approval
    if question is None or call.attempt != item.attempt:
        return False
    if item.event is None:  # the item was made before the question was recorded: only the first question fits
        return question.unknown == item.unknown and question.earlier is None
    return question.seq == item.event


def _would_run_with(frame: Frame, call: CallState) -> dict[str, Any]:
    """Return the arguments that the call would run with now: with references resolved, if that is possible."""
    try:
        return to_plain(call.arguments if frame.is_own(call) else frame.calls.arguments(call, frame.state))  # type: ignore[no-any-return]
    except InvalidArguments:
        return call.arguments


def _place(id: str, path: str) -> str:
    return f"{id} in {path}" if path else id


def _several(found: Sequence[Found], do: str, items: str) -> UsageError:
    """Return the error for an id that several calls have."""
    which = " and ".join(
        f"{call.name}({', '.join(f'{name}={shown(value)}' for name, value in call.arguments.items())})"
        f" in {frame.path or 'the outermost loop'}"
        + (f" (event {question.seq})" if (question := call.approval) is not None else "")
        for frame, call in found
    )
    return UsageError(f"{len(found)} calls with the id {found[0][1].id!r} {do}: {which}. Pass an item of {items}.")


def _not_decided(item: str | Decided | Pending, call: CallState) -> UsageError:
    if isinstance(item, Decided):
        return AlreadyDecided(f"The decision about {call.id!r} was already withdrawn.")
    return UsageError(f"The call {call.id!r} is not decided; there is no decision to withdraw.")


def _remembering(call: CallState, remember: Remember | None) -> dict[str, Any]:
    """Return the fields of a decision that makes it a rule for later calls. Raises UsageError if that is impossible."""
    if remember not in (None, "tool", "arguments"):
        raise UsageError(f"remember= must be 'tool' or 'arguments', not {remember!r}.")
    question = call.approval
    if remember is not None and question is not None and question.unknown:
        raise UsageError("A decision about a call with an unknown outcome cannot be remembered; decide each such call.")
    return remembering(call, question.arguments if question is not None else call.arguments, remember)
