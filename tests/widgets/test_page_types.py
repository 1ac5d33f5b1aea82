"""The types of the JavaScript (`page/types.d.ts`) agree with the data that the kernel sends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentnb.widgets import Panel
from agentnb.widgets.bundle import PAGE
from agentnb.widgets.views.spans import Spans
from tests.widgets.support import asking_everywhere, engine, until

TYPES = (PAGE / "types.d.ts").read_text()
FRONT_ENDS_OWN = {"layout", "tabbable", "tooltip"}  # traits that every widget has


def fields(name: str) -> dict[str, bool]:
    """The fields of a type, each with whether it may be missing."""
    declared = re.search(rf"^interface {name} (?:extends (\w+) )?\{{\n(.*?)^\}}", TYPES, re.MULTILINE | re.DOTALL)
    assert declared is not None, name
    inherited = fields(declared[1]) if declared[1] else {}
    return inherited | {field: bool(mark) for field, mark in re.findall(r"^  (\w+)(\??):", declared[2], re.MULTILINE)}


@pytest.fixture(scope="module")
def sent() -> Iterator[dict[str, dict[str, Any]]]:
    """Return a sample of each type: the data of a panel about a run with three pending loops and one decided call."""
    answers: list[Any] = []

    class Kept(Panel):
        def send(self, content: Any, buffers: Any = None) -> None:
            answers.append(content)

    run = asking_everywhere()
    run.breakpoints.add("run_end")
    run.play()
    until(lambda: len(run.pending) == 3)
    run.approve(run.pending[0], remember="tool")
    panel = Kept(run)
    fork = run.fork(name="other")
    until(lambda: panel.branches and panel.tables and panel.decisions["rules"])
    until(lambda: any(one["type"] == "events" for one in answers))
    panel._receive(panel, {"type": "messages", "token": "t", "path": "", "begun": None, "last": 10}, [])
    said = next(one for one in answers if one["type"] == "messages")
    message = next(one for one in said["messages"] if one["calls"])
    for asked in ({"type": "whatif", "seq": run.pending[0].event}, {"type": "compare", "id": fork.id}):
        panel._receive(panel, {**asked, "token": "t"}, [])
    options = next(one["options"] for one in answers if one["type"] == "whatif")
    comparison = next(one["compared"] for one in answers if one["type"] == "compare")
    batch = next(one for one in answers if one["type"] == "events")
    yield {
        "Traits": dict.fromkeys(
            name for name in panel.traits(sync=True) if name[0] != "_" and name not in FRONT_ENDS_OWN
        ),
        "Status": panel.status,
        "NestedLoop": panel.status["nested"][0],
        "PhaseTable": panel.tables[0],
        "Question": panel.pending[0],
        "Value": panel.pending[0]["values"][0],
        "FieldSpec": panel.pending[0]["fields"][0],
        "Decision": panel.decisions["recent"][0],
        "Rule": panel.decisions["rules"][0],
        "BreakpointChoices": panel.breakpoints,
        "BreakpointState": panel.breakpoints["list"][0],
        "EventRow": json.loads(batch["rows"])[0],
        "ShownMessage": message,
        "ShownCall": message["calls"][0],
        "BranchState": panel.branches[0],
        "WhatIfOptions": options,
        "WhatIfKind": options["kinds"][0],
        "Comparison": comparison,
        "ComparedRow": [*comparison["same"], *comparison["rows"]][0],
    }
    fork.cancel("done")
    run.cancel("done")
    panel.close()


@pytest.mark.parametrize(
    "name",
    [
        "Traits", "Status", "NestedLoop", "PhaseTable", "Question", "Value", "FieldSpec", "Decision", "Rule",
        "BreakpointChoices", "BreakpointState", "EventRow", "ShownMessage", "ShownCall", "BranchState",
        "WhatIfOptions", "WhatIfKind", "Comparison", "ComparedRow",
    ],
)  # fmt: skip
def test_the_fields_that_the_kernel_sends_are_declared(name: str, sent: dict[str, dict[str, Any]]) -> None:
    declared = fields(name)
    assert sent[name].keys() <= declared.keys()
    assert {field for field, optional in declared.items() if not optional} <= sent[name].keys()


def test_the_fields_of_spans_that_a_row_changes_are_declared() -> None:
    run = asking_everywhere()
    run.play()
    until(lambda: len(run.pending) == 3)
    run.approve(run.pending[0])
    spans = Spans().follow(run.events)
    changes = [json.loads(made) for position in range(len(run.events)) if (made := spans.changes(position))]
    run.cancel("done")
    assert set().union(*changes) <= fields("EventRow").keys()
    changed = [span for change in changes for span in change.get("spans", ())]
    assert set().union(*changed) <= fields("Span").keys()
    intervals = [interval for span in changed for interval in span.get("intervals", {}).values()]
    assert set().union(*intervals) <= fields("Interval").keys()
    assert all(change.get("spent", {}).keys() <= fields("Spent").keys() for change in changes)


def test_every_message_that_the_kernel_knows_is_declared() -> None:
    panel = Panel(engine("Drafted."))
    of_its_own = set(re.findall(r'^  \| \{ type: "(\w+)"; ', TYPES.partition("type ToKernel")[2], re.MULTILINE))
    assert set(panel._handlers) == fields("Questions").keys() | of_its_own
    assert fields("Questions").keys() == fields("Answers").keys()
    panel.close()
