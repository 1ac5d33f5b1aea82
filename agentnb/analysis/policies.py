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

from agentnb.analysis.call_rows import DecisionRow, decision_rows
from agentnb.analysis.frames import frame_of
from agentnb.analysis.sources import Source, sources
from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallEnd
from agentnb.core.evolve import evolve
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.core.tools import Tool
from agentnb.run.approvals.context import PolicyContext, contexts_at
from agentnb.run.approvals.policy import FAILED, ProposedCall, Verdict, make_policy, propose
from agentnb.run.host import host
from agentnb.run.past.divergence import Check
from agentnb.run.validation import shown
from agentnb.widgets.text import one_line, visible

if TYPE_CHECKING:
    from pandas import DataFrame

Place = tuple[int, str, str]
"""The number of events when a policy was asked, or would have been, and the path and the id of the call."""

Comparison = Literal["agrees", "missed", "refused", "asks"]
"""The comparison of a policy's decision with that of a person; `COLUMNS["compared"]` describes the values."""

COLUMNS = {
    "run": "the recording: its name, or else the run's id",
    "seq": "the person's decision: its position in the recording",
    "path": "where in nested loops the call was",
    "call_id": "the call",
    "tool": "its tool",
    "arguments": "what it was going to run with; a dict",
    "person": "what the person decided: approve, reject, edit, replace, answer",
    "policy": "what the policy decides: approve, reject, edit, ask",
    "reason": "the policy's reason",
    "compared": "agrees; asks: the person would be asked as before; missed: it would run, and the person did not let it"
    " run as it was; refused: it would not run, and the person let it",
    "waited": "how long the person took, s",
    "arguments_text": "the arguments as JSON text, to group by",
    "inherited": "whether it was decided in the run this one was forked from; read together, it is counted in that one"
    " alone",
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
        return self.prompts - len(self._that("asks"))

    @property
    def seconds_saved(self) -> float:
        """The time in seconds that people took to decide the saved questions."""
        return sum(one.waited for one in self.decisions if one.compared != "asks")

    @property
    def missed(self) -> list[Judged]:
        """The calls that the policy permits with arguments that the person did not permit: the dangerous ones."""
        return self._that("missed")

    @property
    def refused(self) -> list[Judged]:
        """The calls that the policy stops and that a person permitted."""
        return self._that("refused")

    @property
    def failed(self) -> list[Judged]:
        """The calls for which the policy failed. In a run the person would be asked, with the error as the reason."""
        return [one for one in self._that("asks") if one.reason.startswith(FAILED)]

    @property
    def agreement(self) -> float:
        """The share of the saved questions that it decides as the person did, from 0 to 1; NaN if it saves none."""
        return len(self._that("agrees")) / self.saved if self.saved else float("nan")

    @property
    def frame(self) -> DataFrame:
        """A pandas frame with a row for each decision; `COLUMNS` describes the columns.

        Raises UsageError if pandas is not installed.
        """
        return frame_of(self.decisions, Judged, COLUMNS)

    def _that(self, compared: Comparison) -> list[Judged]:
        return [one for one in self.decisions if one.compared == compared]

    def __repr__(self) -> str:
        if not self.prompts:
            return "<Backtest: nobody was asked about anything in these recordings>"
        told = f"{self.saved} of {self.prompts} questions saved ({self.seconds_saved:.3g} s)"
        if self.saved:
            told += f", {self.agreement:.0%} as the person decided"
        told += f", {len(self.missed)} missed, {len(self.refused)} refused"
        if self.failed:
            how = one_line(visible(self.failed[0].reason.removeprefix(FAILED)))
            told += f"; the policy failed at {len(self.failed)} of them, first with {how}"
        return f"<Backtest: {told}>"


def backtest(approve: Any, of: Any, *, loop: Design | None = None) -> Backtest:
    """Compare a policy's decisions with the recorded decisions of people.

    approve: a policy as for `start(approve=)`; a callable may be async. of: recordings, as for `decisions`. loop: the
    loop that made the calls. The policy then sees its tools and those of its nested loops as `call.tool`, rules on
    `needs` can match, and the arguments of an edit are checked against the tool's schema.

    Raises UsageError if `approve` is not a policy or `loop` is not a loop.
    """
    if not isinstance(loop, (Design, NoneType)):
        raise UsageError(f"loop= takes the loop whose tools were called, not {shown(loop)}.")
    policy = make_policy(approve)
    if policy is None:
        raise UsageError("A back-test needs a policy: True, False, a callable of the call, or rules.")
    rows: list[DecisionRow] = []
    calls: list[ProposedCall] = []
    said: list[Verdict | Awaitable[Verdict]] = []
    # Ask the policy about the call of each decision, with the context that it had, or would have had, in the run.
    for source in sources(of):
        tools = _tools_of(source, loop)
        decided = _decided_by_people(decision_rows(source))
        seen = _seen(source)
        places = {row.seq: (seen[row.seq], row.path, row.call_id) for row in decided}
        contexts = _contexts_of(source, places.values())
        for row in decided:
            rows.append(row)  # the policy receives a copy: its changes to a call must not change the recording
            tool = tools.get(row.seq, {}).get(row.tool)
            call = propose(row.call_id, row.tool, row.arguments, tool)
            calls.append(call)
            said.append(policy(call, partial(contexts, places[row.seq])))
    verdicts = map(_fitting, _verdicts(said), calls)
    return Backtest([_judged(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)])


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


def _contexts_of(source: Source, places: Iterable[Place]) -> Callable[[Place], PolicyContext]:
    """Return a function that returns the context at one of these places. It reads the recording at its first call."""

    @cache
    def all_of_them() -> dict[Place, PolicyContext]:
        calls: dict[int, list[tuple[str, str]]] = {}
        for seen, path, id in places:
            calls.setdefault(seen, []).append((path, id))
        return contexts_at(source.events, calls)

    return lambda place: all_of_them()[place]


def _tools_of(source: Source, loop: Design | None) -> dict[int, Mapping[str, Tool]]:
    """Map each decision to the tools of the loop that made its call; return an empty mapping without a loop."""
    if loop is None:
        return {}
    check, state = Check(loop), State()
    found: dict[int, Mapping[str, Tool]] = {}
    for event in source.events:
        evolve(state, event)
        check.take(event, state)
        if isinstance(event, ApprovalDecision):
            found[event.seq] = check.tools(event.path)
    return found


def _fitting(verdict: Verdict, call: ProposedCall) -> Verdict:
    """Return the verdict, or a question if the verdict's arguments do not fit the tool's schema, as in a run."""
    if verdict.arguments is None or call.tool is None:
        return verdict
    try:
        call.tool.bind(deepcopy(verdict.arguments))
    except InvalidArguments as error:
        return Verdict("ask", f"{FAILED}{error}")
    return verdict


def _verdicts(said: Sequence[Verdict | Awaitable[Verdict]]) -> list[Verdict]:
    """Return the verdicts of a sync or async policy. agentnb's event loop awaits them: a notebook's is running."""
    there = [one for one in said if isinstance(one, Verdict)]
    if len(there) == len(said):
        return there

    async def awaited() -> list[Verdict]:
        return [one if isinstance(one, Verdict) else await one for one in said]

    return asyncio.run_coroutine_threadsafe(awaited(), host.loop).result()


def _decided_by_people(rows: Iterable[DecisionRow]) -> list[DecisionRow]:
    """Return the last decision about each question if a person made it and it was not withdrawn."""
    held: dict[tuple[str, str, float], DecisionRow] = {}
    for row in rows:
        call = (row.path, row.call_id, row.asked)
        held.pop(call, None)
        if row.by in ("human", "code") and row.decision != "ask":
            held[call] = row
    return list(held.values())


def _judged(row: DecisionRow, verdict: Verdict) -> Judged:
    """Return a decision of a person with the policy's verdict about the same call."""
    where = (row.run, row.seq, row.path, row.call_id, row.tool, row.arguments)
    compared = _compare(row, verdict)
    return Judged(
        *where,
        person=row.decision,
        policy=verdict.decision,
        reason=verdict.reason,
        compared=compared,
        waited=row.waited,
        arguments_text=row.arguments_text,
        inherited=row.inherited,
    )


def _compare(row: DecisionRow, verdict: Verdict) -> Comparison:
    """Compare the two decisions by the arguments that the call would run with; None means that it would not run."""
    if verdict.decision == "ask":
        return "asks"
    let = {"approve": row.arguments, "edit": row.instead}.get(row.decision)
    lets = {"approve": row.arguments, "edit": verdict.arguments}.get(verdict.decision)
    if let == lets:
        return "agrees"
    return "missed" if lets is not None else "refused"
