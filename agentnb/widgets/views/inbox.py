"""The inbox of a study: the questions of all its runs, and the newest decisions about them.

A question is that of its run's own panel, with the name of its run before its path, and its arm as its group. So the
page shows, selects and decides it with the same code. Events of different runs have the same numbers, so the event of a
decision is a number that names its run, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import AgentnbError, UsageError
from agentnb.core.json import repair_text
from agentnb.run import Pending
from agentnb.studies import StudyRun
from agentnb.widgets.views.decisions import RECENT, DecisionLog, rule_row
from agentnb.widgets.views.population import Line, Population
from agentnb.widgets.views.questions import ASKED, Questions, identity

FOLLOWED = 200
"""The maximum number of runs whose decisions are followed: those that have asked last."""
RUN = 10**9
"""The event of a decision is the number of its run times this, and its number in the run."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """The waiting calls of a run, as `Questions` reads them. Another tool is chosen in the panel of the run."""

    pending: list[Pending]

    def tool_schemas(self, path: str | None) -> dict[str, Any]:
        return {}


class Inbox:
    """The questions and decisions of the runs of a population. `name` returns the name of a run."""

    def __init__(self, population: Population, name: Callable[[Line], str]) -> None:
        self._study = population.study
        self._population = population
        self._name = name
        self._questions: dict[int, Questions] = {}
        self._logs: dict[int, DecisionLog] = {}
        self._recent: dict[int, list[dict[str, Any]]] = {}

    def data(self) -> dict[str, Any]:
        """Return the oldest questions that fit in a message, how many there are, and the decisions."""
        asking = self._asking()
        shown: list[dict[str, Any]] = []
        room = ASKED
        for line, items in asking:
            self._follow(line)
            if room <= 0:
                continue
            group = self._population.arm_names[line.arm]
            questions = self._questions.setdefault(line.number, Questions())
            for question in questions.waiting(_Asking(items)):  # type: ignore[arg-type]
                room -= question["size"]
                shown.append({**question, "path": self._path(line, question["path"]), "group": group})
        for number in list(self._questions):
            if all(line.number != number for line, _ in asking):
                del self._questions[number]
        return {"pending": shown, "waiting": sum(len(items) for _, items in asking), "decisions": self._decisions()}

    def waiting(self) -> dict[tuple[Any, ...], tuple[StudyRun, Pending]]:
        """Return the waiting calls by the identity of their questions, as `question_key` returns it for the page's."""
        found = {}
        for line, items in self._asking():
            for item in items:
                made = {**identity(item), "path": self._path(line, repair_text(item.path))}
                found[_key(made)] = line.run, item
        return found

    def place(self, run: Any, path: str) -> tuple[StudyRun | None, str]:
        """Return the run with this id, or None, and the path in it of the loop that is shown as `path`."""
        line = next((line for line in self._population.lines if line.run.id == run), None)
        if line is None:
            return None, path
        return line.run, path.removeprefix(self._name(line)).removeprefix("/")

    def decided(self, event: int) -> tuple[StudyRun, int]:
        """Return the run of a decision, and its event there."""
        number, own = divmod(event, RUN)
        if number >= len(self._population.lines):
            raise UsageError("This decision is not one of the study.")
        return self._population.lines[number].run, own

    def undoable(self) -> list[int]:
        """Return the decisions that can be withdrawn."""
        return [one["event"] for rows in self._recent.values() for one in rows if one["undo"]]

    def _asking(self) -> list[tuple[Line, list[Pending]]]:
        lines = {line.run.id: line for line in self._population.lines if line.run.id is not None}
        by_run: dict[str, list[Pending]] = {}
        for item in self._study.pending:
            by_run.setdefault(item.run_id, []).append(item)
        return [(lines[run], items) for run, items in by_run.items() if run in lines]

    def _path(self, line: Line, path: str) -> str:
        name = self._name(line)
        return f"{name}/{path}" if path else name

    def _follow(self, line: Line) -> None:
        log = self._logs.pop(line.number, None) or DecisionLog()
        self._logs[line.number] = log
        while len(self._logs) > FOLLOWED:
            number = next(iter(self._logs))
            del self._logs[number]
            self._recent.pop(number, None)

    def _read(self, line: Line) -> None:
        """Read the decisions of a run from the store: a worker drives it, or it has ended."""
        store, id = self._study.store, line.run.id
        if store is not None and id is not None:
            with suppress(AgentnbError):  # the store is closed, or the run is damaged: the log keeps what it has
                self._logs[line.number].read(store, id)

    def _decisions(self) -> dict[str, Any]:
        # Follow also the runs whose questions were decided between two looks, by a deadline or a policy.
        for line in self._population.lines:
            if line.has_asked:
                line.has_asked = False
                self._follow(line)
        for number, log in self._logs.items():
            line = self._population.lines[number]
            if line.run.run is not None:
                recent = log.data(line.run.run)["recent"]
            else:
                if line.mini.position > log.position:
                    self._read(line)
                recent = log.recent()
            self._recent[number] = [
                one | {"event": number * RUN + one["event"], "path": self._path(line, one["path"])} for one in recent
            ]
        recent = sorted((one for rows in self._recent.values() for one in rows), key=lambda one: -one["time"])
        rules = [rule_row(rule, of_study=True) for rule in self._study.rules]
        return {"recent": recent[:RECENT], "open": len(self.undoable()), "rules": rules}


def _key(question: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the identity of a question, as `handlers.question_key` does for a message."""
    if question["event"] is not None:
        return question["run"], question["path"], question["event"]
    return question["run"], question["path"], question["id"], question["attempt"]
