"""Rows of runs: what happened in each run of a study or a store, in one row.

A row is computed in one pass over the events, without a fold, and a store is read in bulk, so that thousands of runs
take seconds. Events of nested loops count for their run. Events that are counted in another source do not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentnb.analysis.places import Place
from agentnb.analysis.rows import Paid, arguments_text, cost_of, json_text, model_of, saved_by
from agentnb.analysis.sources import NEVER, Source, counted_once, not_continued, sources
from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallStart,
    ErrorInfo,
    Event,
    ModelEnd,
    ModelFailed,
    ModelStart,
    RunEnd,
    RunResumed,
    RunStart,
)
from agentnb.run.event_data import input_as_json
from agentnb.store import Store
from agentnb.studies import Study, StudyRun
from agentnb.widgets.views.spans import Figures

_NO_POLICY = frozenset({"human", "code", "remembered", "deadline", "headless", "fork"})
"""The authors of decisions (`ApprovalDecision.by`) that have a column of their own. All others are policies."""


@dataclass(slots=True, kw_only=True)
class RunRow:
    """One run; the fields are the columns of `agentnb.analysis.runs`."""

    run: str
    id: str = ""
    study: str | None = None
    loop: str = ""
    outcome: str
    stop_reason: str | None = None
    output: Any = None
    error: str | None = None
    turns: int = 0
    calls: int = 0
    retries: int = 0
    repeated: int = 0
    call_errors: int = 0
    model_errors: int = 0
    input_tokens: float = NEVER
    output_tokens: float = NEVER
    cost: float = NEVER
    cost_is_estimated: bool = False
    without_price: str | None = None
    cache_read_tokens: float = NEVER
    cache_saved: float = NEVER
    time: float = NEVER
    began: float = NEVER
    seconds: float = NEVER
    waited: float = NEVER
    paused: float = 0.0
    away: float = 0.0
    decisions: int = 0
    by_human: int = 0
    by_code: int = 0
    by_policy: int = 0
    by_remembered: int = 0
    by_deadline: int = 0
    by_absent: int = 0
    by_fork: int = 0
    withdrawn: int = 0
    reviewers: str | None = None
    model: str | None = None
    events: int = 0
    tags: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    arm: str = ""
    treatment: str | None = None
    input: int | None = None
    input_key: str | None = None
    input_text: str = ""
    repeat: int | None = None
    seed: int | None = None


class TaggedSource(NamedTuple):
    """A recorded run with its current tags in the store, or None if the tags are those of its start."""

    source: Source
    tags: tuple[str, ...] | None = None


def tagged_sources(of: Any) -> tuple[list[TaggedSource], list[StudyRun]]:
    """Return the recordings in `of`, read in bulk from a store or a study, and a study's runs without events.

    Otherwise as `sources`. Damaged runs of a store are left out, with a warning.
    """
    if isinstance(of, Study):
        without = [run for run in of.runs if run.id is None and run.run is None]
        if of.store is not None:
            ids = {run.id for run in of.runs if run.id is not None}
            stored = {one.source.events[0].run_id: one for one in _stored(of.store, f"study:{of.name}", ids)}
            return [stored[run.id] for run in of.runs if run.id in stored], without
        found = [Source(run.name, run.run.recording) for run in of.runs if run.run is not None and run.run.recording]
        return [TaggedSource(source) for source in found], without
    if isinstance(of, Store):
        return list(_stored(of)), []
    return [TaggedSource(source) for source in sources(of)], []


def _stored(store: Store, tag: str | None = None, ids: Collection[str] | None = None) -> Iterator[TaggedSource]:
    """Return the recordings of a store, only those with these `ids` if they are given."""
    used: dict[str, int] = {}
    found, tags = [], []
    for recording in not_continued(store.recordings(tag=tag)):
        if ids is not None and recording.id not in ids:
            continue
        name = recording.name or recording.id
        times = used[name] = used.get(name, 0) + 1
        found.append(Source(name if times == 1 else f"{name}#{times}", recording.events))
        tags.append(recording.tags)
    return map(TaggedSource, counted_once(found), tags)


# -- one run -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Counts:
    """What is counted in one pass over the events of a run."""

    retries: int = 0
    call_errors: int = 0
    model_errors: int = 0
    usage: dict[str, float] = field(default_factory=dict)
    models: dict[str, None] = field(default_factory=dict)
    cost: float = NEVER
    without_price: dict[str, None] = field(default_factory=dict)
    cost_is_estimated: bool = False
    cache_saved: float = NEVER
    options: dict[str, Any] | None = None
    """The options that a restored run was given last."""
    decisions: dict[str, int] = field(default_factory=dict)
    withdrawn: int = 0
    reviewers: dict[str, None] = field(default_factory=dict)
    are_waits_known: bool = True
    """False if the time of a question or of its decision is not known."""
    failure: ErrorInfo | None = None
    """The failure of the newest request, until the model is asked again."""

    def add_usage(self, end: Paid, request: ModelStart | None) -> None:
        """Add the tokens of an answer, complete or not, its cost, and what a cache has saved, if they are known."""
        if not end.usage and not isinstance(end, ModelEnd):
            return
        for name, amount in end.usage.items():
            self.usage[name] = self.usage.get(name, 0) + amount
        cost, is_estimated = cost_of(end, request)
        if not math.isnan(cost):
            self.cost = cost if math.isnan(self.cost) else self.cost + cost
            self.cost_is_estimated = self.cost_is_estimated or is_estimated
        elif end.usage:
            name = model_of(end) or (request.model if request is not None else "")
            self.without_price[name or "a model without a name"] = None
        saved = saved_by(end, request)
        if not math.isnan(saved):
            self.cache_saved = saved if math.isnan(self.cache_saved) else self.cache_saved + saved


def run_row(source: Source, place: Place, tags: tuple[str, ...] | None = None) -> RunRow:
    """Return the row of a recording that has events. tags: None for the tags that the run was started with."""
    events = source.events
    start, last = events[0], events[-1]
    assert isinstance(start, RunStart)
    end = last if isinstance(last, RunEnd) and last.terminal else None
    counts = _counts(events, source.elsewhere)
    about = imported(start)
    if isinstance(totals := about.get("usage"), Mapping):  # a file may have them for the whole run only
        counts.usage = {**{name: amount for name, amount in totals.items() if name != "cost"}, **counts.usage}
        if "cost" in totals and (math.isnan(counts.cost) or counts.cost_is_estimated):
            counts.cost, counts.cost_is_estimated, counts.without_price = float(totals["cost"]), False, {}
    figures, before = _figures(events, source.elsewhere)
    error = end.error if end is not None else counts.failure
    by = counts.decisions
    began = next((event.time for event in events if not event.untimed), NEVER)
    return RunRow(
        run=source.name,
        id=start.run_id,
        study=place.study,
        loop=start.loop,
        outcome="ended" if end is None and about.get("ended") and not counts.failure else _outcome(end, counts.failure),
        stop_reason=end.reason if end is not None else None,
        output=end.output if end is not None else None,
        error=f"{error.type}: {error.message}" if error is not None else None,
        turns=figures.turns - before.turns,
        calls=figures.calls - before.calls,
        retries=counts.retries,
        repeated=figures.repeated - before.repeated,
        call_errors=counts.call_errors,
        model_errors=counts.model_errors,
        input_tokens=counts.usage.get("input_tokens", NEVER),
        output_tokens=counts.usage.get("output_tokens", NEVER),
        cost=counts.cost,
        cost_is_estimated=counts.cost_is_estimated,
        without_price=", ".join(counts.without_price) or None,
        cache_read_tokens=counts.usage.get("cache_read_tokens", NEVER),
        cache_saved=counts.cache_saved,
        time=began,
        began=began,
        seconds=max(_lasted(events) - figures.rest - before.seconds, 0.0),  # in this order, so that NaN stays
        waited=figures.waited - before.waited if counts.are_waits_known else NEVER,
        paused=figures.paused - before.paused,
        away=figures.idle - before.idle,
        decisions=sum(by.values()),
        by_human=by.get("human", 0),
        by_code=by.get("code", 0),
        by_policy=sum(number for author, number in by.items() if author not in _NO_POLICY),
        by_remembered=by.get("remembered", 0),
        by_deadline=by.get("deadline", 0),
        by_absent=by.get("headless", 0),
        by_fork=by.get("fork", 0),
        withdrawn=counts.withdrawn,
        reviewers=", ".join(counts.reviewers) or None,
        model=", ".join(counts.models) or None,
        events=len(events),
        tags=sorted(start.tags if tags is None else tags),
        options=counts.options if counts.options is not None else start.model_options,
        arm=place.arm_text,
        treatment=place.treatment,
        input=place.input,
        input_key=place.input_key,
        input_text=place.input_text,
        repeat=place.repeat,
        seed=place.seed,
    )


def row_without_events(run: StudyRun, study: str) -> RunRow:
    """Return the row of a study's run that was not started, or whose loop could not be made."""
    return RunRow(
        run=run.name,
        study=study,
        outcome=run.status,
        error=run.error,
        arm=Place(arm=run.arm).arm_text,
        input=run.cell.input_number,
        input_key=run.cell.input_key,
        input_text=json_text(input_as_json(run.input)),
        repeat=run.repeat,
        seed=run.seed,
    )


def imported(start: Event) -> Mapping[str, Any]:
    """Return what an imported recording has besides its events; empty for other runs."""
    about = start.config.get("imported") if isinstance(start, RunStart) else None
    return about if isinstance(about, Mapping) else {}


def _outcome(end: RunEnd | None, failure: ErrorInfo | None) -> str:
    if end is None:
        return "open" if failure is None else "failed"
    return {"error": "failed", "cancelled": "cancelled"}.get(end.reason, "done")


def _figures(events: Iterable[Event], elsewhere: frozenset[int]) -> tuple[Figures, Figures]:
    """Return the figures of a run, and the part of them that is counted elsewhere: of inherited events."""
    figures, before = Figures(), Figures()
    for event in events:
        figures.take(event)
        if event.seq in elsewhere:
            before = copy(figures)
    return figures, before


def _counts(events: Iterable[Event], elsewhere: frozenset[int]) -> _Counts:
    """Count the events that are not counted elsewhere."""
    counts = _Counts()
    called: set[tuple[str, str, str]] = set()
    own: set[tuple[str, str]] = set()
    requests: dict[str, ModelStart] = {}
    for event in events:
        if event.seq in elsewhere:
            continue
        match event:
            case ModelStart():
                requests[event.path] = event
                counts.failure = None
            case ModelEnd():
                counts.add_usage(event, requests.get(event.path))
                if event.model is not None:
                    counts.models[event.model] = None
            case RunResumed():
                counts.add_usage(event, requests.get(event.path))
                counts.options = event.model_options if event.model_options is not None else counts.options
            case ModelFailed():
                counts.add_usage(event, requests.get(event.path))
                counts.model_errors += 1
                counts.failure = event.error
            case RunEnd():
                counts.add_usage(event, requests.get(event.path))
            case CallStart() if event.own:
                own.add((event.path, event.call_id))
            case CallStart(attempt=1):
                made = event.path, event.name, arguments_text(event.arguments)
                counts.retries += made in called
                called.add(made)
            case CallEnd():
                counts.call_errors += event.is_error and (event.path, event.call_id) not in own
            case ApprovalRequest():
                counts.are_waits_known = counts.are_waits_known and not event.untimed
            case ApprovalDecision(call_id=""):  # a remembered decision is forgotten
                pass
            case ApprovalDecision(decision="ask"):
                counts.withdrawn += 1
            case ApprovalDecision():
                counts.decisions[event.by] = counts.decisions.get(event.by, 0) + 1
                if event.reviewer is not None:
                    counts.reviewers[event.reviewer] = None
                counts.are_waits_known = counts.are_waits_known and not event.untimed
            case _:
                pass
    return counts


def _lasted(events: Sequence[Event]) -> float:
    """Return the seconds from the first to the last event whose times are known; NEVER if only one of many is known."""
    first = next((event for event in events if not event.untimed), None)
    last = next((event for event in reversed(events) if not event.untimed), None)
    if first is None or last is None or (first is last and len(events) > 1):
        return NEVER
    return last.time - first.time
