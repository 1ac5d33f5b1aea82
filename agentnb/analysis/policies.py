"""Back-tests: a policy's decisions compared with the recorded decisions of people (`backtest`).

The policy is asked about every call that a person approved, edited, replaced, answered or rejected, in the same way as
by `approve=`. Nothing runs. The person's decision is the reference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from agentnb.analysis.frames import frame_of
from agentnb.analysis.rows import DecisionRow, decision_rows
from agentnb.analysis.sources import Source, sources
from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallEnd
from agentnb.core.evolve import evolve
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.core.tools import Tool
from agentnb.run.approvals.context import PolicyContext, contexts_at
from agentnb.run.approvals.policy import FAILED, ProposedCall, Verdict, make_policy, proposed_call
from agentnb.run.host import host
from agentnb.run.past.divergence import DecisionCheck
from agentnb.run.validation import shown
from agentnb.widgets.text import one_line, visible

if TYPE_CHECKING:
    from pandas import DataFrame

Question = tuple[int, str, str]
"""A question to a policy: the number of events when it was or would have been asked, and the call's path and id."""

Comparison = Literal["agrees", "missed", "refused", "asks"]
"""The comparison of a policy's decision with that of a person; `COLUMNS["compared"]` describes the values."""

COLUMNS = {
    "run": "the recording: its name, or else the run's id",
    "seq": "the position of the person's decision in the recording",
    "path": 'the path of the nested loop that made the call, "" for the outermost loop',
    "call_id": "the id of the call",
    "tool": "the call's tool",
    "arguments": "the arguments that it was going to run with; a dict",
    "person": "the person's decision: approve, reject, edit, replace, answer",
    "policy": "the policy's decision: approve, reject, edit, ask",
    "reason": "the policy's reason",
    "compared": "agrees; asks: the person would be asked as before; missed: the call would run with arguments that the"
    " person did not permit; refused: the call would not run, and the person permitted it",
    "waited": "from the question to the person's decision, s",
    "arguments_text": "the arguments as JSON text, for grouping",
    "inherited": "whether it was decided in the run that this run was forked from; if both are read, it is counted only"
    " there",
}
"""The meaning of each column of `Backtest.frame`."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One decision of a person, with the policy's decision about the same call."""

    run: str
    seq: int
    path: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    person: str
    policy: str
    reason: str
    compared: Comparison
    waited: float
    arguments_text: str = "{}"
    inherited: bool = False


@dataclass(frozen=True, slots=True)
class Backtest:
    """A policy's decisions compared with those of people. As the last line of a cell it is shown as a summary."""

    decisions: list[Judged] = field(repr=False)

    @property
    def prompts(self) -> int:
        """The number of questions that people decided."""
        return len(self.decisions)

    @property
    def saved(self) -> int:
        """The number of these questions that the policy decides without asking."""
        return self.prompts - len(self._compared_as("asks"))

    @property
    def seconds_saved(self) -> float:
        """The time in seconds that people took to decide the saved questions."""
        return sum(one.waited for one in self.decisions if one.compared != "asks")

    @property
    def missed(self) -> list[Judged]:
        """The calls that the policy permits with arguments that the person did not permit; check these first."""
        return self._compared_as("missed")

    @property
    def refused(self) -> list[Judged]:
        """The calls that the policy stops and that a person permitted."""
        return self._compared_as("refused")

    @property
    def failed(self) -> list[Judged]:
        """The calls for which the policy failed. In a run the person would be asked, with the error as the reason."""
        return [one for one in self._compared_as("asks") if one.reason.startswith(FAILED)]

    @property
    def agreement(self) -> float:
        """The share of the saved questions that the policy decides as the person did, from 0 to 1; NaN if none."""
        return len(self._compared_as("agrees")) / self.saved if self.saved else float("nan")

    @property
    def frame(self) -> DataFrame:
        """A pandas frame with a row for each decision; `COLUMNS` describes the columns.

        Raises UsageError if pandas is not installed.
        """
        return frame_of(self.decisions, Judged, COLUMNS)

    def _compared_as(self, compared: Comparison) -> list[Judged]:
        return [one for one in self.decisions if one.compared == compared]

    def __repr__(self) -> str:
        if not self.prompts:
            return "<Backtest: nobody was asked about a call in these recordings>"
        text = f"{self.saved} of {self.prompts} questions saved ({self.seconds_saved:.3g} s)"
        if self.saved:
            text += f", {self.agreement:.0%} as the person decided"
        text += f", {len(self.missed)} missed, {len(self.refused)} refused"
        if self.failed:
            how = one_line(visible(self.failed[0].reason.removeprefix(FAILED)))
            text += f"; the policy failed at {len(self.failed)} of them, first with {how}"
        return f"<Backtest: {text}>"


def backtest(approve: Any, of: Any, *, loop: Design | None = None) -> Backtest:
    """Compare a policy's decisions with the recorded decisions of people.

    approve: a policy as for `start(approve=)`; a callable may be async. of: recordings, as for `decisions`. loop: the
    loop that made the calls. The policy then sees its tools and those of its nested loops as `call.tool`, rules on
    `needs` can match, and the arguments of an edit are checked against the tool's schema.

    Raises UsageError if `approve` is not a policy or `loop` is not a loop.
    """
    if not isinstance(loop, (Design, NoneType)):
        raise UsageError(f"loop must be the loop whose tools were called, got {shown(loop)}.")
    policy = make_policy(approve)
    if policy is None:
        raise UsageError("backtest() needs a policy: True, False, a callable that takes the call, or rules.")
    rows: list[DecisionRow] = []
    calls: list[ProposedCall] = []
    answers: list[Verdict | Awaitable[Verdict]] = []
    # Ask the policy about the call of each decision, with the context that it had, or would have had, in the run.
    for source in sources(of):
        tools = _tools_of(source, loop)
        decided = _decided_by_people(decision_rows(source))
        seen = _seen(source)
        questions = {row.seq: (seen[row.seq], row.path, row.call_id) for row in decided}
        contexts = _contexts_of(source, questions.values())
        for row in decided:
            rows.append(row)
            tool = tools.get(row.seq, {}).get(row.tool)
            # The policy receives a copy of the call: its changes must not change the recording.
            call = proposed_call(row.call_id, row.tool, row.arguments, tool)
            calls.append(call)
            answers.append(policy(call, partial(contexts, questions[row.seq])))

    # Compare each verdict with the decision of the person.
    judged: list[Judged] = []
    for row, call, verdict in zip(rows, calls, _verdicts(answers), strict=True):
        verdict = _checked(verdict, call)
        judged.append(
            Judged(
                run=row.run,
                seq=row.seq,
                path=row.path,
                call_id=row.call_id,
                tool=row.tool,
                arguments=row.arguments,
                person=row.decision,
                policy=verdict.decision,
                reason=verdict.reason,
                compared=_compare(row, verdict),
                waited=row.waited,
                arguments_text=row.arguments_text,
                inherited=row.inherited,
            )
        )
    return Backtest(judged)


def _seen(source: Source) -> dict[int, int]:
    """Map each decision to the number of events that a policy saw, or would have seen, when asked about its call."""
    asked: dict[tuple[str, str], int] = {}
    seen: dict[int, int] = {}
    for event in source.events:
        if isinstance(event, CallEnd):
            asked.pop((event.path, event.call_id), None)
        elif isinstance(event, ApprovalRequest):
            if event.seen is not None:
                asked[event.path, event.call_id] = event.seen
            else:  # no policy was asked; a withdrawn decision keeps the position of the first question
                asked.setdefault((event.path, event.call_id), event.seq)
        elif isinstance(event, ApprovalDecision):
            seen[event.seq] = asked.get((event.path, event.call_id), event.seq)
    return seen


def _contexts_of(source: Source, questions: Iterable[Question]) -> Callable[[Question], PolicyContext]:
    """Return a function that returns the context of one of these questions. Its first call reads the recording."""

    @cache
    def contexts() -> dict[Question, PolicyContext]:
        calls: dict[int, list[tuple[str, str]]] = {}
        for seen, path, id in questions:
            calls.setdefault(seen, []).append((path, id))
        return contexts_at(source.events, calls)

    return lambda question: contexts()[question]


def _tools_of(source: Source, loop: Design | None) -> dict[int, Mapping[str, Tool]]:
    """Map each decision to the tools of the loop that made its call; return an empty mapping without a loop."""
    if loop is None:
        return {}
    check, state = DecisionCheck(loop), State()
    found: dict[int, Mapping[str, Tool]] = {}
    for event in source.events:
        evolve(state, event)
        check.applied(event, state)
        if isinstance(event, ApprovalDecision):
            found[event.seq] = check.tools(event.path)
    return found


def _checked(verdict: Verdict, call: ProposedCall) -> Verdict:
    """Return the verdict, or a question if the verdict's arguments do not fit the tool's schema, as in a run."""
    if verdict.arguments is None or call.tool is None:
        return verdict
    try:
        call.tool.bind(deepcopy(verdict.arguments))
    except InvalidArguments as error:
        return Verdict("ask", f"{FAILED}{error}")
    return verdict


def _verdicts(answers: Sequence[Verdict | Awaitable[Verdict]]) -> list[Verdict]:
    """Return the verdicts of a sync or async policy.

    They are awaited on agentnb's own event loop, because the event loop of a notebook is already running.
    """
    verdicts = [answer for answer in answers if isinstance(answer, Verdict)]
    if len(verdicts) == len(answers):
        return verdicts

    async def awaited() -> list[Verdict]:
        return [answer if isinstance(answer, Verdict) else await answer for answer in answers]

    return asyncio.run_coroutine_threadsafe(awaited(), host.loop).result()


def _decided_by_people(rows: Iterable[DecisionRow]) -> list[DecisionRow]:
    """Return the last decision about each question if a person made it and it was not withdrawn."""
    decided: dict[tuple[str, str, float], DecisionRow] = {}
    for row in rows:
        call = (row.path, row.call_id, row.asked)
        decided.pop(call, None)
        if row.by in ("human", "code") and row.decision != "ask":
            decided[call] = row
    return list(decided.values())


def _compare(row: DecisionRow, verdict: Verdict) -> Comparison:
    """Compare the two decisions by the arguments that the call would run with; None means that it would not run."""
    if verdict.decision == "ask":
        return "asks"
    by_person = {"approve": row.arguments, "edit": row.instead}.get(row.decision)
    by_policy = {"approve": row.arguments, "edit": verdict.arguments}.get(verdict.decision)
    if by_person == by_policy:
        return "agrees"
    return "missed" if by_policy is not None else "refused"
