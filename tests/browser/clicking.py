"""Runs that ask for many decisions, and a person who clicks Approve for each of them, in cells of one shape.

A click has arrived when the call that it approves has started. Both clocks are those of this machine: the page notes
the time of the click, the tool the time of its start. Every second click is a double click. It must decide one
question, and not the next one, which is in the same place by then.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from playwright.sync_api import TimeoutError as TooLate

if TYPE_CHECKING:
    from tests.browser.notebook import Notebook

PATIENCE = 60.0  # seconds until a click that has not arrived is lost

SETUP = """
import json, time
import agentnb
from agentnb.testing import ScriptedLLM, call

resumed, runs = [], []

@agentnb.tool(approve=True)
async def decide(number: int) -> str:
    resumed.append((number, time.time()))
    return "went on"

def start(first, count):
    turns = [[call("decide", {"number": number}, id=f"c{number}")] for number in range(first, first + count)]
    runs.append(agentnb.SessionLoop(ScriptedLLM([*turns, "done"]), [decide]).start("go"))
    return runs[-1]
"""
REPORT = """
ends = [run.result(30) for run in runs]
decisions = [e.call_id for run in runs for e in run.events if e.type == "approval_decision"]
print(json.dumps({"resumed": resumed, "decisions": decisions, "ends": ends}))
"""
IDLE = "pass"
AWAIT, BLOCK = "print('waits'); print('got', await runs[-1])", "print('waits'); print('got', runs[-1].result())"
SHAPES: dict[str, list[str]] = {  # the cells after the one that shows the first run
    "background": [IDLE, IDLE, IDLE],
    "await": [AWAIT, IDLE, IDLE],
    "blocking": [BLOCK, IDLE, IDLE],
    "run all": [AWAIT, "{show}", BLOCK],
}
CELLS = [SETUP, IDLE, IDLE, IDLE, IDLE, REPORT]
SHOW, WAIT, SHOW_SECOND, WAIT_SECOND, LOOK = range(1, 6)

NOTE_CLICKS = """() => { window.clicked = {}; document.addEventListener("click", event => {
    const number = event.target.closest(".agentnb-call")?.querySelector("dd")?.textContent;
    if (number !== undefined && event.target.dataset.do === "approve") window.clicked[number] ??= Date.now() / 1000;
}, true); }"""


@dataclass
class Outcome:
    """The result of the clicks in cells of one shape; `latencies` in seconds from a click to its call."""

    clicks: int = 0
    latencies: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median latency, which does not change if the machine is busy for a moment."""
        return statistics.median(self.latencies)

    @property
    def p95(self) -> float:
        """The latency that 95 of 100 clicks keep within."""
        return sorted(self.latencies)[math.ceil(0.95 * len(self.latencies)) - 1]


def click_through(notebook: Notebook, shape: str, clicks: int, per_round: int = 10) -> Outcome:
    """Approve that many calls in runs of `per_round` calls each; stop at the first click that does not arrive.

    The notebook must have been opened with CELLS, and its first cell run.
    """
    outcome = Outcome()
    for first in range(0, clicks, per_round):
        _round(notebook, shape, range(first, min(clicks, first + per_round)), outcome)
        if outcome.faults:
            break
    return outcome


def _round(notebook: Notebook, shape: str, numbers: range, outcome: Outcome) -> None:
    notebook.do(lambda page: page.evaluate(NOTE_CLICKS))
    halves = [numbers] if shape != "run all" else [numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]]
    shows = [f"run = start({half.start}, {len(half)}); run" for half in halves]
    if shape == "background":
        shows = [show.replace("; run", "; run.play(); run") for show in shows]
    sources = [shows[0], *(source.format(show=shows[-1]) for source in SHAPES[shape])]
    for cell, source in enumerate(sources, SHOW):
        notebook.set_cell(cell, source)
    outcome.clicks += len(numbers)
    arrived = "the clicks"
    try:
        _start(notebook, shape)
        for number in numbers:
            arrived = f"click {number}"
            _approve(notebook, number)
        arrived = "the end of the cells"
        if shape == "run all":
            notebook.wait_cell(LOOK, PATIENCE)
        elif shape != "background":
            notebook.wait_cell(WAIT, PATIENCE)
        if shape != "run all":
            notebook.run(LOOK, PATIENCE)
        _compare(notebook, numbers, outcome)
    except TooLate:
        outcome.faults.append(f"stuck at {arrived}")


def _start(notebook: Notebook, shape: str) -> None:
    if shape == "run all":
        notebook.run_all()
        return
    notebook.run(0)
    notebook.run(SHOW)
    if shape != "background":
        notebook.run_cell(WAIT)
        notebook.wait_output(WAIT, "waits")


def _approve(notebook: Notebook, number: int) -> None:
    def click(page: Any) -> None:
        call = page.locator(".agentnb-call", has=page.locator("dd", has_text=re.compile(f"^{number}$")))
        approve = call.get_by_role("button", name="Approve", exact=True)
        approve.scroll_into_view_if_needed(timeout=PATIENCE * 1000)  # a call can be approved once its end was in sight
        approve.click(click_count=1 + number % 2, timeout=PATIENCE * 1000)

    notebook.do(click)


def _compare(notebook: Notebook, numbers: range, outcome: Outcome) -> None:
    """Compare the report of the kernel with the clicks: every click has one decision and one call."""
    told: dict[str, Any] = json.loads(notebook.outputs(LOOK).strip().splitlines()[-1])
    clicked = {int(number): at for number, at in notebook.do(lambda page: page.evaluate("() => clicked")).items()}
    ran = [number for number, _ in told["resumed"]]
    if ran != list(numbers):
        outcome.faults.append(f"ran {ran} for clicks {list(numbers)}")
    if told["decisions"] != [f"c{number}" for number in numbers]:
        outcome.faults.append(f"decided {told['decisions']} for clicks {list(numbers)}")
    if set(told["ends"]) != {"done"}:
        outcome.faults.append(f"ended as {told['ends']}")
    outcome.latencies += [at - clicked[number] for number, at in told["resumed"] if number in clicked]
