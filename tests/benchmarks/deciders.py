"""Questions of several processes that two people decide from two others: `python -m tests.benchmarks.deciders`.

Three processes drive studies in one store, in PostgreSQL or in a file (`--sqlite`). Two more processes decide their
questions, each as fast as it can, so both often decide the same one. It prints the time from a decision to the next
event of the run, and fails if a question was decided twice or lost, or a run has a wrong result.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentnb
from agentnb import AlreadyDecided, SessionLoop, Store, tool
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallStart
from agentnb.testing import ScriptedLLM, call
from tests.store.postgres import PostgresServer


@tool(approve=True, idempotent=False)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


def asking(to: str) -> SessionLoop:
    """Return a loop that asks about one call, and ends with its result."""

    def answer(messages: Sequence[Any]) -> Any:
        return messages[-1]["content"] if messages[-1]["role"] == "tool" else call("send", {"to": to})

    return SessionLoop(ScriptedLLM([answer], repeat=True), [send])


def study_of(store: Store, name: str, questions: int) -> agentnb.studies.Study:
    """Return a study whose runs ask one question each."""
    arms = {"to": [f"{name}-{number}" for number in range(questions)]}
    return agentnb.study(asking, ["go"], arms=arms, store=store, name=name, progress=False)


def drive(place: str, name: str, questions: int) -> None:
    """Drive such a study to its end."""
    agentnb.headless(None, attended=True)
    with closing(Store(place)) as store:
        study = study_of(store, name, questions).result()
        assert study.counts["done"] == questions, study


def decide(place: str, reviewer: str, questions: int, seed: int) -> dict[str, Any]:
    """Decide questions until all of the store are decided, and return which ones, when, and how many came too late."""
    chance = random.Random(seed)
    decided: dict[str, tuple[str, float]] = {}
    late = 0
    with closing(Store(place)) as store, closing(store.inbox()) as inbox:
        while sum(run.stop_reason is not None for run in store.runs()) < questions:
            for item in chance.sample(found := inbox.wait(0.2), min(len(found), 5)):
                method = "approve" if chance.random() < 0.8 else "reject"
                clicked = time.time()
                try:
                    getattr(inbox, method)(item, reviewer=reviewer)
                    decided[item.run_id] = method, clicked
                except AlreadyDecided:
                    late += 1
    return {"decided": decided, "late": late}


@dataclass
class Counts:
    """What happened: the milliseconds from each decision to the next event, and the decisions that came too late."""

    milliseconds: list[float]
    late: int

    @property
    def p95(self) -> float:
        return sorted(self.milliseconds)[int(0.95 * len(self.milliseconds))]


def check(place: str, questions: int, people: dict[str, dict[str, Any]]) -> Counts:
    """Compare the store with what the deciders were told: one decision a question, with its author and its result."""
    milliseconds = []
    claimed = [id for one in people.values() for id in one["decided"]]
    assert len(claimed) == len(set(claimed)) == questions, "a decision was lost, or counts for two people"
    with closing(Store(place)) as store:
        runs = store.runs()
        assert {run.id for run in runs} == set(claimed)
        for run in runs:
            events = store.events(run.id)
            (asked,) = (event for event in events if isinstance(event, ApprovalRequest))
            (decision,) = (event for event in events if isinstance(event, ApprovalDecision))
            method, clicked = people[str(decision.reviewer)]["decided"][run.id]
            assert (decision.decision, decision.question) == (method, asked.seq)
            starts = [event for event in events if isinstance(event, CallStart)]
            assert len(starts) == (method == "approve")
            to = events[0].data["arm"]["to"]  # type: ignore[attr-defined]
            assert events[-1].output == (f"sent to {to}" if starts else "Rejected by the user.")  # type: ignore[attr-defined]
            milliseconds.append(1e3 * (events[decision.seq + 1].time - clicked))
    return Counts(milliseconds, sum(one["late"] for one in people.values()))


def command(*arguments: object) -> subprocess.Popen[str]:
    """Start a process of this module."""
    module = [sys.executable, "-m", "tests.benchmarks.deciders", *map(str, arguments)]
    return subprocess.Popen(module, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def decided_by_two(place: str, questions: int, drivers: int = 3) -> Counts:
    """Start the processes, wait for their ends, and check what is in the store."""
    parts = [questions // drivers + (number < questions % drivers) for number in range(drivers)]
    with closing(Store(place)):
        pass  # its tables
    driving = [command("drive", place, f"part{number}", part) for number, part in enumerate(parts)]
    deciding = {name: command("decide", place, name, questions, seed) for seed, name in enumerate(("Ada", "Bob"))}
    outputs = {name: process.communicate(timeout=60)[0] for name, process in deciding.items()}
    assert [process.wait(timeout=60) for process in driving] == [0] * drivers
    for process in driving:
        process.communicate()
    return check(place, questions, {name: json.loads(output) for name, output in outputs.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", nargs="*")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--sqlite", action="store_true")
    options = parser.parse_args()
    if options.do:
        name, place, *rest = options.do
        if name == "drive":
            drive(place, rest[0], int(rest[1]))
        else:
            print(json.dumps(decide(place, rest[0], int(rest[1]), int(rest[2]))))
        return
    began = time.monotonic()
    if options.sqlite:
        with tempfile.TemporaryDirectory() as folder:
            counts = decided_by_two(f"{folder}/runs.db", options.questions)
    else:
        server = PostgresServer()
        try:
            counts = decided_by_two(server.url, options.questions)
        finally:
            server.stop()
    late = sorted(counts.milliseconds)
    print(
        f"{options.questions} questions of 3 processes, decided by 2 others in {time.monotonic() - began:.1f} s: none"
        f" twice, none lost, {counts.late} too late. From a decision to the next event: median"
        f" {statistics.median(late):.0f} ms, p95 {counts.p95:.0f} ms, most {late[-1]:.0f} ms"
    )


if __name__ == "__main__":
    main()
