"""Resampling: the steps of a run, drawn again many times, to measure how far each step decides the outcome.

A step is a request to a model. `agentnb.resample` forks the run there: the events before the step are shared by all
samples, they are folded once, and the model is sent the messages that it was sent in the run. A sample ends with the
step, or it continues to the end of the run. The samples are driven as the runs of a study are.

A value is measured in each sample, and in the recorded run as it was at the same position. The share of the samples
whose value differs from the recorded one is the flip rate of the step.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentnb.core.errors import UsageError, printable
from agentnb.core.events import Event, ModelEnd, ModelStart
from agentnb.core.json import plain_number
from agentnb.core.lazy import optional_module
from agentnb.core.loop import Design
from agentnb.core.messages import text_of
from agentnb.core.place import sample_of_run
from agentnb.run import Recording, Run, Snapshot, replay
from agentnb.run.validation import shown
from agentnb.studies.driving import StudyRun, status_of
from agentnb.studies.grid import (
    Cell,
    Grid,
    at_once_of,
    cell_key,
    check_factory,
    check_options,
    input_key,
    seed_of,
    whole_number,
)
from agentnb.studies.intervals import mean_intervals, share_interval
from agentnb.studies.study import Study

if TYPE_CHECKING:
    from pandas import DataFrame

Until = Literal["step", "end"]
Value = str | int | float | bool | None
Measure = Callable[[Recording], Value]

_AFTER = frozenset({"model_start", "model_end", "call_start", "approval_request", "run_paused", "cancel"})
"""The types of the events that begin what comes after a step, or are of another step."""

STEP_IS_OVER = "the sample ends with its step"
"""The reason for which a sample is cancelled after its step."""


def resample(
    run: Recording | Snapshot | str | Path,
    at: int | None = None,
    n: int = 20,
    *,
    every: Literal["turn"] | None = None,
    until: Until = "end",
    measure: Measure | None = None,
    loop: Design | Callable[..., Design] | None = None,
    approve: Any = None,
    limits: Mapping[str, float] | None = None,
    at_once: int = 8,
    seed: int = 0,
    progress: bool = True,
) -> Resampling:
    """Return the samples of one step of a run, or of each of its steps. No sample is drawn yet.

        drawn = agentnb.resample(run, at=40, n=100, measure=lambda run: "1888" in run.output)
        await drawn  # or drawn.start(), in the background
        drawn.distribution()  # the values, with intervals

        drawn = await agentnb.resample(run, every="turn", until="step")
        drawn.flip_rates()  # a row for each step: which one decides?

    A step is a request to a model. A sample is a fork of the run at this request: the model is sent the same messages
    again, and nothing before the step is repeated.

    run: a run, a replay, a snapshot, or the path of a saved one.

    at: the number of an event; the step to which it belongs is drawn. every: "turn" for every step of the run, in
    nested loops too. One of the two is needed. n: the number of samples of a step.

    until: "end" continues each sample to the end of the run, and so runs tools. "step" ends it when the model has
    answered: neither a call nor another request starts, not even one that the design starts while the answer
    streams, or one of a loop beside it.

    measure: a function that is passed a sample (which can be read like a run) and returns a text, a number, True, False
    or None. It is called when a table is made, in the thread that asks for the table, and for the panel in a thread of
    the panel's own. Without it, the value is the
    output of the run or, with until="step", the names of the called tools or else the text of the answer.

    loop: the loop of the samples, if it is not that of the run; or a function that returns a new loop for each sample,
    which may take its `seed`. Recorded tools (`agentnb.testing.Recorded(run).tools`) keep what is not to vary.

    approve, limits: as for `start`; those of the run unless given. A sample that asks a person waits, and is in
    `pending`; the other samples continue. at_once, seed, progress: as for `agentnb.study`.

    Raises UsageError, before anything is drawn, if an argument is not valid, if the run has no such event or step, or
    if its loop is not known; RecordingMismatch if the loop is of another kind.
    """
    recording = run if isinstance(run, Recording) else replay(run)
    count, seed = whole_number("n", n, 1), whole_number("seed", seed, 0)
    if until not in get_args(Until):
        raise UsageError(f"until= must be 'step' or 'end', not {shown(until)}.")
    if measure is not None and not callable(measure):
        raise UsageError(f"measure= must be a function that takes a run, not {shown(measure)}.")
    check_options(approve=approve, limits=limits)
    options = {name: value for name, value in (("approve", approve), ("limits", limits)) if value is not None}
    steps = _steps(recording, plain_number(at), every)
    source = _Source(recording, until, _loops(loop), options)
    source.fork(steps[0], seed)  # raises the error of a loop that cannot continue the run
    return Resampling(
        _Steps(recording, steps, count, seed),
        source,
        measure or (_output if until == "end" else None),
        at_once=at_once_of(at_once),
        progress=progress,
    )


# -- steps -------------------------------------------------------------------------------------------------------------


def _steps(recording: Recording, at: Any, every: Any) -> list[ModelStart]:
    """Return the requests that are drawn. Raises UsageError if the run has no such event or step."""
    if (at is None) == (every is None):
        raise UsageError('Pass either at=, the number of an event, or every="turn", for all steps of the run.')
    if every not in (None, "turn"):
        raise UsageError(f'every= must be "turn", not {shown(every)}.')
    events = recording.recording
    requests = [event for event in events if isinstance(event, ModelStart) and event.attempt == 1]
    if every is not None:
        if not requests:
            raise UsageError("The run has made no request to a model, so it has no step that can be drawn.")
        return requests
    if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < len(events):
        raise UsageError(f"at= must be the number of an event of the run, 0 to {len(events) - 1}, not {shown(at)}.")

    # The event belongs to the last request of its loop or, before the first request, to that one.
    path = events[at].path
    of_loop = [request for request in requests if request.path == path]
    if not of_loop:
        where = f"The loop at {path!r}" if path else "The outermost loop"
        raise UsageError(
            f"{where}, to which event {at} belongs, has made no request to a model. Pass the number of an event of a"
            f" loop that has: {', '.join(str(request.seq) for request in requests[:10]) or 'this run has none'}."
        )
    before = [request for request in of_loop if request.seq <= at]
    return [before[-1] if before else of_loop[0]]


def end_of_step(events: Sequence[Event], step: ModelStart) -> int:
    """Return the number of events until a step is over: before the first of something else after the answer."""
    is_answered = False
    for event in islice(events, step.seq, None):
        if event.path == step.path and event.type in ("model_end", "model_error"):
            is_answered = True
        elif event.path == step.path and isinstance(event, ModelStart) and event.attempt > 1:
            is_answered = False  # the answer is continued, or asked for again
        elif is_answered and event.type in _AFTER:
            return event.seq
    return len(events)


class _Steps(Grid):
    """The grid of a resampling: its steps, each drawn a number of times."""

    def __init__(self, recording: Recording, steps: Sequence[ModelStart], n: int, seed: int) -> None:
        self.name = f"resample {recording.name or recording.id[:8]}"
        self.seed = seed
        self.steps = {step.seq: step for step in steps}
        self.factors = {"at": [(at, step) for at, step in self.steps.items()]}
        input, key = recording.input, input_key(recording.input)
        self.cells = [
            Cell(
                name=f"{recording.name or recording.id}@{at}/{repeat}",
                arm={"at": at},
                input=input,
                input_number=0,
                repeat=repeat,
                seed=seed_of(seed, cell_key({"at": at}, key, repeat)),
                input_key=key,
                values={"at": step},
            )
            for repeat in range(n)
            for at, step in self.steps.items()
        ]


# -- samples -----------------------------------------------------------------------------------------------------------

MakeLoop = Callable[[int], Design | None]
"""Returns the loop of the sample with a seed; None for the loop of the run."""


def _loops(loop: Any) -> MakeLoop:
    if loop is None or isinstance(loop, Design):
        return lambda seed: loop
    takes_seed = check_factory(loop, {})
    return lambda seed: loop(seed=seed) if takes_seed else loop()


@dataclass(frozen=True, slots=True)
class _Source:
    """The run from which samples are drawn, and how."""

    recording: Recording
    until: Until
    make_loop: MakeLoop
    options: dict[str, Any]

    def fork(self, step: ModelStart, seed: int) -> Run:
        """Return a fork that makes the request of a step again. It is not kept in the store of the recorded run."""
        return self.recording.fork(step.seq - 1, loop=self.make_loop(seed), store=None, **self.options)

    def sample(self, step: ModelStart, seed: int) -> Run:
        """Return a fork that ends as a sample does."""
        run = self.fork(step, seed)
        sample_of_run[run.id] = step.seq, seed
        if self.until == "step":
            run.end_after(step, STEP_IS_OVER)
        return run


class Sample(StudyRun):
    """One sample of a step. `drawn` is the sample as it is measured, which can be read like a run; None if it failed.

    `drawn` is None before the end, too. `status` is "done" after the step as well, if the sample ends there.
    """

    drawn: Recording | None = None

    @property
    def step(self) -> ModelStart:
        """The request of the recorded run that was drawn."""
        step = self.cell.values["at"]
        assert isinstance(step, ModelStart)
        return step

    def end(self, run: Run) -> None:
        """Note how the sample has ended, and where its step is over."""
        super().end(run)
        sample_of_run.pop(run.id, None)
        if run.state.cancelled == STEP_IS_OVER:
            self.stop_reason = "step"
            self.drawn = run.at(end_of_step(run.recording, self.step) - 1)
        elif status_of(self.stop_reason) == "done":
            self.drawn = run


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measured:
    """The value of a recording, or the error of the measure."""

    value: Value = None
    error: str | None = None

    @classmethod
    def of(cls, recording: Recording, measure: Measure) -> _Measured:
        try:
            value = plain_number(measure(recording))
        except Exception as error:  # of the user's function: a row has it, and the others remain
            return cls(error=f"{type(error).__name__}: {error}")
        if isinstance(value, (str, int, float, bool, type(None))):
            return cls(value)
        return cls(error=f"The measure must return a text, a number, True, False or None, not {shown(value)}.")

    def differs_from(self, other: _Measured) -> bool | None:
        """Return True if the values differ; None if one of them is missing. NaN does not differ from NaN."""
        if self.error is not None or other.error is not None:
            return None
        return self.value != other.value and not (self.value != self.value and other.value != other.value)


@dataclass(frozen=True, slots=True)
class StepSum:
    """The samples of one step until now. `at`, `path` and `turn` identify the step.

    recorded: the value of the recorded run. n: the number of samples with a value, of which `flips` differ from the
    recorded run. failed: the number of those that have ended without a value. values: how many samples have each value.
    """

    at: int
    path: str
    turn: int
    recorded: Value
    n: int
    flips: int
    failed: int
    values: Counter[Value]


class Resampling(Study):
    """The samples of the steps of a run. `agentnb.resample` creates it. All methods are safe from every thread.

    It is driven, awaited and cancelled like a study. `table`, `distribution` and `flip_rates` return frames of pandas.
    The last two are about the samples that have ended so far.
    """

    _kind_of_run = Sample

    def __init__(
        self, steps: _Steps, source: _Source, measure: Measure | None, *, at_once: int, progress: bool
    ) -> None:
        self._steps = steps.steps
        self._source = source
        self._measure = measure
        self._of_samples: dict[Sample, _Measured] = {}
        super().__init__(steps, store=None, at_once=at_once, tags=(), data={}, add=False, progress=progress)

    def _make(self, one: StudyRun) -> Run:
        assert isinstance(one, Sample)
        return self._source.sample(one.step, one.seed)

    @property
    def samples(self) -> list[Sample]:
        """All samples, in the order in which they start."""
        return [run for run in self.runs if isinstance(run, Sample)]

    @property
    def recording(self) -> Recording:
        """The run whose steps are drawn."""
        return self._source.recording

    @property
    def steps(self) -> dict[int, ModelStart]:
        """The requests of that run that are drawn, by the number of their event."""
        return self._steps

    @property
    def until(self) -> Until:
        """Where a sample ends: "step" or "end"."""
        return self._source.until

    def table(self) -> DataFrame:
        """Return a frame of pandas with a row for each sample: its step, its seed, its status and its value.

        `recorded` is the value of the recorded run, `differs` tells if that of the sample is another one, and `error`
        has the failure of the sample or of the measure.
        """
        rows = []
        for sample in self.samples:
            measured, recorded = self._measured(sample), self._recorded[sample.step.seq]
            row = {
                **self._of_step(sample.step.seq),
                "sample": sample.repeat,
                "seed": sample.seed,
                "status": sample.status,
            }
            row |= {"value": None, "recorded": recorded.value, "differs": None, "error": sample.error}
            if measured is not None:
                row |= {"value": measured.value, "differs": measured.differs_from(recorded)}
                row["error"] = measured.error or sample.error
            rows.append(row)
        columns = (*_STEP, "sample", "seed", "status", "value", "recorded", "differs", "error")
        frame = _frame(rows, columns)
        frame["differs"] = frame["differs"].astype("boolean")
        for name in ("value", "recorded", "error"):  # pandas would turn None into NaN, and True with 1.5 into numbers
            frame[name] = frame[name].astype(object)
        return frame

    def distribution(self, confidence: float = 0.95) -> DataFrame:
        """Return a frame of pandas with the distribution of the values of each step.

        Numbers: a row for each step, with the mean and its bootstrap interval. Other values: a row for each value of
        each step, with its share and Wilson's interval. `low` and `high` are the ends of the interval. The mean and the
        shares are those of the `n` samples with a value; `failed` is the number of those that have ended without one.

        Raises UsageError if pandas or SciPy is not installed.
        """
        _check_confidence(confidence)
        values = {at: [one.value for one in self._ended_at(at)] for at in self._steps}
        rows = []
        if _are_numbers(value for of_step in values.values() for value in of_step):
            numbers = [[value for value in of_step if isinstance(value, (int, float))] for of_step in values.values()]
            intervals = mean_intervals(numbers, confidence, seed=self._grid.seed)
            for at, of_step, (low, high) in zip(values, numbers, intervals, strict=True):
                row = {**self._of_step(at), "n": len(of_step), "failed": self._failed_at(at)}
                rows.append({**row, "mean": fmean(of_step) if of_step else math.nan, "low": low, "high": high})
            return _frame(rows, (*_STEP, "n", "failed", "mean", "low", "high"))
        for at, found in values.items():
            for value, count in Counter(found).most_common():
                low, high = share_interval(count, len(found), confidence)
                row = {**self._of_step(at), "value": value, "count": count, "n": len(found)}
                row |= {"failed": self._failed_at(at), "share": count / len(found)}
                rows.append({**row, "low": low, "high": high})
        return _frame(rows, (*_STEP, "value", "count", "n", "failed", "share", "low", "high"))

    def flip_rates(self, confidence: float = 0.95) -> DataFrame:
        """Return a frame of pandas with a row for each step: the share of samples that differ from the recorded run.

        The rate is that of the `n` samples with a value; `low` and `high` are the ends of Wilson's interval. `failed`
        is the number of samples that have ended and cannot be compared: the sample has failed, or the measure has, for
        the sample or for the recorded run.

        Raises UsageError if pandas or SciPy is not installed.
        """
        _check_confidence(confidence)
        rows = []
        for step in self.step_sums():
            n, flips = step.n, step.flips
            low, high = share_interval(flips, n, confidence)
            row = {**self._of_step(step.at), "recorded": step.recorded, "n": n, "failed": step.failed}
            rows.append({**row, "flips": flips, "rate": flips / n if n else math.nan, "low": low, "high": high})
        return _frame(rows, (*_STEP, "recorded", "n", "failed", "flips", "rate", "low", "high"))

    def step_sums(self) -> list[StepSum]:
        """Return what the samples of each step have shown until now. New samples are measured."""
        found = []
        for at, of_step in self._samples_by_step.items():
            ended = [sample for sample in of_step if sample.status in ("done", "failed")]
            measured = [one for sample in of_step if (one := self._measured(sample)) is not None and one.error is None]
            differs = [one.differs_from(self._recorded[at]) for one in measured]
            n = len(differs) - differs.count(None)
            values = Counter(one.value for one in measured)
            recorded, flips = self._recorded[at].value, differs.count(True)
            found.append(
                StepSum(at, self._steps[at].path, self._steps[at].turn, recorded, n, flips, len(ended) - n, values)
            )
        return found

    @cached_property
    def _samples_by_step(self) -> dict[int, list[Sample]]:
        found: dict[int, list[Sample]] = {at: [] for at in self._steps}
        for sample in self.samples:
            found[sample.step.seq].append(sample)
        return found

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _measured(self, sample: Sample) -> _Measured | None:
        """Return what was measured in a sample; None before its end."""
        if sample.drawn is None:
            return None
        if sample not in self._of_samples:
            self._of_samples[sample] = self._value_of(sample.drawn, sample.step)
        return self._of_samples[sample]

    @cached_property
    def _recorded(self) -> dict[int, _Measured]:
        """What is measured in the recorded run, by step: at its end it is the same for all steps."""
        recording = self._source.recording
        events = recording.recording
        if self._source.until == "end":
            last = self._steps[max(self._steps)]
            return dict.fromkeys(self._steps, self._value_of(recording.at(len(events) - 1), last))
        ends = {at: end_of_step(events, step) for at, step in self._steps.items()}
        return {at: self._value_of(recording.at(end - 1), self._steps[at]) for at, end in ends.items()}

    def _value_of(self, recording: Recording, step: ModelStart) -> _Measured:
        """Return what is measured in a recording; without a measure, the answer to the request of the step."""
        return _Measured.of(recording, self._measure or (lambda run: _answer(run, step)))

    def _ended_at(self, at: int) -> list[_Measured]:
        """Return what was measured at a step, without errors."""
        found = [self._measured(sample) for sample in self._samples_by_step[at]]
        return [one for one in found if one is not None and one.error is None]

    def _failed_at(self, at: int) -> int:
        """Return the number of samples of a step that have ended without a value."""
        ended = [sample for sample in self._samples_by_step[at] if sample.status in ("done", "failed")]
        return len(ended) - len(self._ended_at(at))

    def _of_step(self, at: int) -> dict[str, Any]:
        return dict(zip(_STEP, (at, self._steps[at].path, self._steps[at].turn), strict=True))

    # -- showing -------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return printable(f"<Resampling of {self.name}: {self._summary}>")

    def _repr_html_(self) -> str:
        """Return a table with a row for each step: its flip rate as a bar, and with Wilson's interval (95 %)."""
        cells = "".join(f'<th style="text-align: left">{name}</th>' for name in _HEADS)
        body = ""
        for step in self.step_sums():
            at, flips, n = step.at, step.flips, step.n
            bar = f'<meter value="{flips}" max="{max(n, 1)}" aria-label="flip rate"></meter>'
            rate = f"{bar} {flips / n:.0%} ({flips} of {n}{_interval_text(flips, n)})" if n else "no samples yet"
            rate += f"; {step.failed} failed" if step.failed else ""
            texts = (at, escape(printable(step.path)), step.turn, rate)
            body += "<tr>" + "".join(f'<td style="text-align: left">{text}</td>' for text in texts) + "</tr>"
        title = escape(printable(f"{self.name}: {self._summary}"))
        return (
            f'<table aria-label="Resampling"><caption>{title}</caption><thead><tr>{cells}</tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )


def _interval_text(count: int, total: int) -> str:
    """Return an interval as text; empty if SciPy is not installed."""
    try:
        low, high = share_interval(count, total)
    except UsageError:
        return ""
    return f"; 95 %: {low:.0%} to {high:.0%}"


_HEADS = ("event", "loop", "turn", "flip rate of the samples with a value")
"""The heads of the columns of a resampling in a cell."""
_STEP = ("at", "path", "turn")
"""The columns that identify a step: the number of its event, the position of its loop, and its turn there."""


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> DataFrame:
    frame: DataFrame = optional_module("pandas", "Frames need pandas", "analysis").DataFrame(rows, columns=columns)
    return frame


def _are_numbers(values: Iterable[Value]) -> bool:
    kinds = {type(value) for value in values}
    return bool(kinds) and kinds <= {int, float}


def _check_confidence(confidence: float) -> None:
    number = plain_number(confidence)
    if not isinstance(number, float) or not 0 < number < 1:
        raise UsageError(f"confidence must be between 0 and 1, as 0.95, not {shown(confidence)}.")


def _output(run: Recording) -> Value:
    """Return the output of a run, as text if it is data."""
    output = run.output
    return output if isinstance(output, (str, int, float, bool, type(None))) else json.dumps(output, sort_keys=True)


def _answer(run: Recording, step: ModelStart) -> Value:
    """Return the names of the tools that the answer of a step calls, or else its text.

    Raises ValueError if there is no answer.
    """
    events = islice(run.events, step.seq, None)
    answer = next((event for event in events if isinstance(event, ModelEnd) and event.path == step.path), None)
    if answer is None:
        raise ValueError("The request of the step has no answer.")
    return ", ".join(call.name for call in answer.message.tool_calls) or text_of(answer.message.content)
