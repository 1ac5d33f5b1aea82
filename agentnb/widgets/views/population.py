"""The population of a study: a row for each run, with its strip in miniature, and the sums of each arm.

The rows follow the runs: those in this process by their events, all others by the store. A row has the number of the
change that made it, so that a page gets the rows that it lacks, and only these.
"""

from __future__ import annotations

import json
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.errors import AgentnbError
from agentnb.core.json import repair_text
from agentnb.store.said import said_in
from agentnb.studies import Resampling, Study, StudyRun
from agentnb.widgets.text import on_a_line, one_line
from agentnb.widgets.views.about import NAME, state_in_words
from agentnb.widgets.views.miniature import Miniature
from agentnb.widgets.views.shares import difference, half_width, interval
from agentnb.widgets.views.steps import step_name

OUTCOME = 60
"""Characters of an outcome."""
OUTCOMES = 6
"""The maximum number of outcomes whose share is offered."""
INPUTS, INPUT = 200, 400
"""The maximum number of inputs that a page gets, and of characters of each."""
SEARCHED = 20_000
"""The maximum number of events in which a text is found in a store: for a frequent one, those of the newest runs."""
FOLLOWED_FOR = 0.1
"""The seconds that one `follow` may take, about."""

_AT_REST = ("done", "failed", "cancelled", "interrupted")
_WORDS = {"waiting": "waits for you"}
"""The words for a status, if they are not the status itself."""


@dataclass(eq=False)
class Line:
    """The row of one run. `changed` is the number of the change that made it what it is.

    has_asked: a call has waited for a person since the population began to follow the run.
    """

    number: int
    run: StudyRun
    arm: int
    changed: int = 1
    id: str | None = None
    status: str = ""
    mini: Miniature = field(default_factory=Miniature)
    is_complete: bool = False
    has_asked: bool = False
    _outcome: tuple[Any, tuple[str, str]] = (None, ("", ""))

    def outcome(self) -> tuple[str, str]:
        """Return the kind of the outcome, and its words. The kind is the status; `stopped` if a limit ended the run."""
        now = self.run.status, self.mini.position
        if self._outcome[0] != now:
            self._outcome = now, self._in_words()
        return self._outcome[1]

    def _in_words(self) -> tuple[str, str]:
        status = self.run.status
        if status == "failed":
            return status, one_line(repair_text(self.run.error or "failed"), OUTCOME)
        if status != "done":
            return status, _WORDS.get(status, status)
        reason = str(self.run.stop_reason or self.mini.reason or "completed").replace("_", " ")
        sign, words = state_in_words(reason, 0, self.mini.turns)
        if sign != "done":
            return "stopped", words
        output = self.mini.output
        text = output if isinstance(output, str) else on_a_line(output) if output is not None else ""
        return "done", one_line(repair_text(text), OUTCOME) or "done"


class Population:
    """The rows of a study and their sums. Safe to use from any thread."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._lock = threading.RLock()
        arms = list({json.dumps(run.arm): run.arm for run in study.runs}.values())
        self.arms: list[dict[str, Any]] = arms
        if isinstance(study, Resampling):
            self.arm_names = [f"{step_name(step)}, #{at}" for at, step in study.steps.items()]
        else:
            self.arm_names = [arm_name(arm) for arm in arms]
        numbers = {json.dumps(arm): number for number, arm in enumerate(arms)}
        self.lines = [Line(number, run, numbers[json.dumps(run.arm)]) for number, run in enumerate(study.runs)]
        self._has_inputs = any(line.run.cell.input_number for line in self.lines)
        self._change = 1
        self.is_read = study.store is None or all(run.id is None for run in study.runs)
        """True if the runs that the store had before were read."""

    # -- following the runs ---------------------------------------------------------------------------------------

    def read(self, each: Any = None) -> None:
        """Read the runs that the store has, all in bulk. This takes a while: call it in a thread of its own.

        each: called without arguments from time to time, when there are new rows.
        """
        store, told = self.study.store, time.monotonic()
        by_id = {line.run.id: line for line in self.lines if line.run.id is not None}
        try:
            tag = f"study:{self.study.name}"
            for recording in store.recordings(tag, outlined=True) if store is not None else ():
                line = by_id.get(recording.id)
                if line is None:
                    continue
                with self._lock:
                    if line.mini.position == 0 and line.run.run is None:
                        line.id = line.run.id
                        line.mini.follow(recording.outlines or recording.events)
                        self._note(line)
                if each is not None and time.monotonic() - told > FOLLOWED_FOR:
                    told = time.monotonic()
                    each()
        finally:
            self.is_read = True
            if each is not None:
                each()

    def follow(self) -> bool:
        """Take what has happened in the runs. Return True if there is more to take."""
        until = time.monotonic() + FOLLOWED_FOR
        with self._lock:
            for line in self.lines:
                if line.is_complete and line.run.status == line.status:
                    continue
                if time.monotonic() > until:
                    return True
                self._follow(line)
        return False

    def _follow(self, line: Line) -> None:
        one, status = line.run, line.run.status
        if one.id != line.id:  # it was started, or started again as another run
            line.id, line.mini = one.id, Miniature()
        before = line.mini.position
        events: Sequence[Any] = ()
        if one.run is not None:
            events = one.run.events[before:]
        elif one.id is not None and self.study.store is not None and self.is_read and not self._has_end(line):
            try:
                events = self.study.store.events(one.id, before)
            except AgentnbError:  # the store is closed, or the run is damaged: the row keeps what it has
                events = ()
        line.mini.follow(events)
        line.has_asked = line.has_asked or any(event.type == "approval_request" for event in events)
        if events or status != line.status:
            self._note(line)
        line.status = status
        line.is_complete = status in _AT_REST and (self.is_read or one.run is not None)

    @staticmethod
    def _has_end(line: Line) -> bool:
        """Return True if the end of a run at rest was read, so that its store need not be asked."""
        reason = line.mini.reason
        return reason is not None and reason == line.run.stop_reason and line.run.status in _AT_REST

    def _note(self, line: Line) -> None:
        self._change += 1
        line.changed = self._change

    def saying(self, text: str) -> list[int]:
        """Return the numbers of the runs in which a text was said. It takes a while: call it in a thread of its own."""
        store = self.study.store
        if store is not None:
            found = store.search(text, tag=f"study:{self.study.name}", limit=SEARCHED)
            ids = {one.run_id for one in found}
            return [line.number for line in self.lines if line.run.id in ids]
        matches = re.compile(re.escape(text), re.IGNORECASE).search
        begun = [(line.number, line.run.run) for line in self.lines if line.run.run is not None]
        return [
            number
            for number, run in begun
            if any(matches(said) is not None for event in run.events for _, said in said_in(event))
        ]

    def name_of(self, line: Line) -> str:
        """Return the name of a run as its row has it: its arm and its number."""
        if isinstance(self.study, Resampling):
            return f"{self.arm_names[line.arm]} · {line.run.repeat}"
        number = f"{line.run.cell.input_number}.{line.run.repeat}" if self._has_inputs else line.run.repeat
        return f"{self.arm_names[line.arm] if self.arms[line.arm] else 'run'} {number}"

    # -- what a page gets -----------------------------------------------------------------------------------------

    def changes(self, after: int, limit: int) -> tuple[list[str], int]:
        """Return the rows that have changed after a change, as JSON, and the number of the last change among them.

        limit: the number of characters after which the other rows are left for the next time.
        """
        with self._lock:
            due = sorted((line for line in self.lines if line.changed > after), key=lambda line: line.changed)
            made, reached = [], after
            for position, line in enumerate(due):
                made.append(_row(line))
                reached = line.changed
                limit -= len(made[-1])
                # Rows of the same change belong together.
                if limit <= 0 and (position + 1 == len(due) or due[position + 1].changed > reached):
                    break
            return made, reached

    def head(self) -> dict[str, Any]:
        """Return the sums of the study and of its arms."""
        with self._lock:
            study, lines = self.study, self.lines
            counts = Counter(line.run.status for line in lines)
            begun = [line for line in lines if line.mini.position]
            outcomes = [line.outcome() for line in lines]
            offered = _offered(text for kind, text in outcomes if kind == "done")
            sign, words = _state(study, counts, len(lines))
            inputs = {line.run.cell.input_number: line.run.input for line in lines}
            took = 0.0
            if begun:
                took = max(line.mini.last for line in begun) - min(line.mini.own_began for line in begun)
            head: dict[str, Any] = {
                "name": one_line(repair_text(study.name), NAME),
                "sign": sign,
                "words": words,
                "runs": len(lines),
                "repeats": 1 + max(line.run.repeat for line in lines),
                "counts": {status: number for status, number in counts.items() if number},
                "loops": sorted({line.mini.loop for line in begun}),
                "seconds": took,
                "factors": {name: [_text(arm[name]) for arm in self.arms] for name in self.arms[0]},
                "inputs": [_input(inputs[number]) for number in sorted(inputs)[:INPUTS]],
                "outcomes": offered,
                "can": _can(study, counts),
                "arms": [
                    self._arm(number, [(line, out) for line, out in zip(lines, outcomes, strict=True)
                                       if line.arm == number], offered)
                    for number in range(len(self.arms))
                ],
            }  # fmt: skip
            return head | {"differences": _differences(head["arms"], len(offered))}

    def _arm(
        self, number: int, lines: Sequence[tuple[Line, tuple[str, str]]], offered: Sequence[str]
    ) -> dict[str, Any]:
        counts = Counter(line.run.status for line, _ in lines)
        # A run that has failed has ended, too: without it, arms that fail at different inputs could not be compared.
        done = [(line, text) for line, (kind, text) in lines if kind in ("done", "stopped")]
        ended = len(done) + sum(kind == "failed" for _, (kind, _) in lines)
        ends = Counter(text for _, text in done)
        minis = [line.mini for line, _ in done]
        waits = [mini.waited for mini in minis if mini.waited > 0]
        return {
            "name": self.arm_names[number],
            "runs": len(lines),
            "counts": dict(counts),
            "ended": ended,
            "shares": [[ends[text], *interval(ends[text], ended)] for text in offered],
            "turns": round(statistics.fmean(mini.turns for mini in minis), 2) if minis else None,
            "turns_within": half_width([mini.turns for mini in minis]),
            "tokens": round(statistics.fmean(mini.tokens for mini in minis)) if minis else None,
            "tokens_within": half_width([mini.tokens for mini in minis]),
            "seconds": round(statistics.median(mini.seconds for mini in minis), 3) if minis else None,
            "waited": round(statistics.median(waits), 3) if waits else None,
        }


def arm_name(arm: Mapping[str, Any]) -> str:
    """Return the short name of an arm: the labels of its factors. Labels that are no words follow their factor."""
    labels = (label if isinstance(label, str) else f"{factor} {label}" for factor, label in arm.items())
    return one_line(repair_text(" · ".join(labels)), NAME) or "all runs"


def _offered(texts: Any) -> list[str]:
    """Return the outcomes that several runs have, the most frequent first."""
    return [text for text, number in Counter(texts).most_common(OUTCOMES) if number > 1]


def _differences(arms: Sequence[Mapping[str, Any]], outcomes: int) -> list[tuple[float, float, float]]:
    """Return for each outcome the difference of its shares with its interval, if there are two arms; else nothing.

    While runs wait or are running there is none: those that ask a person may be those that will end otherwise.
    """
    if len(arms) != 2 or not all(arm["ended"] == arm["runs"] for arm in arms):
        return []
    one, other = arms
    return [
        difference((one["shares"][at][0], one["ended"]), (other["shares"][at][0], other["ended"]))
        for at in range(outcomes)
    ]


def _can(study: Study, counts: Mapping[Any, int]) -> str:
    """Return what a person can do with a study: the name of its button, or an empty text."""
    if study.is_running:
        return "Cancel"
    if all(status in ("done", "failed", "not started") for status, number in counts.items() if number):
        return "Start" if counts.get("not started") else "Retry failed" if counts.get("failed") else ""
    return "Continue"


def _state(study: Study, counts: Mapping[Any, int], total: int) -> tuple[str, str]:
    """Return the sign of the state of a study, and its words."""
    waiting = counts.get("waiting", 0)
    if waiting:
        return "waiting", f"{waiting:,} wait{'s' if waiting == 1 else ''} for you"
    if study.is_running:
        return "running", "running"
    if counts.get("done", 0) == total:
        return "done", "done"
    if counts.get("not started", 0) == total:
        return "ready", "ready"
    if paused := counts.get("paused"):
        return "stopped", f"{paused:,} paused"
    if counts.get("failed"):
        return "failed", f"{counts['failed']:,} failed"
    return "stopped", "stopped"


def _row(line: Line) -> str:
    mini, (kind, words) = line.mini, line.outcome()
    return json.dumps(
        {
            "n": line.number,
            "arm": line.arm,
            "input": line.run.cell.input_number,
            "repeat": line.run.repeat,
            "kind": kind,
            "outcome": words,
            "turns": mini.turns,
            "calls": mini.calls,
            "tokens": round(mini.tokens),
            "began": mini.began,
            "seconds": round(mini.seconds, 3),
            "waited": round(mini.waited, 3),
            "strip": mini.strip(),
        },
        separators=(",", ":"),
    )


def _text(value: Any) -> str:
    return one_line(repair_text(str(value)), NAME)


def _input(value: Any) -> str:
    return one_line(repair_text(value if isinstance(value, str) else on_a_line(value)), INPUT)
