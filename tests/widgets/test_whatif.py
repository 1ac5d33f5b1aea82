"""What if: the changes that are possible at an event, the branches of a run, and their comparison, without a page."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentnb
from agentnb import SessionLoop, tool
from agentnb.core.errors import UsageError
from agentnb.testing import ScriptedLLM, call, text
from agentnb.widgets import FORKS, MODELS, Panel
from agentnb.widgets.branching import BranchHandlers, decide_as_in
from agentnb.widgets.text import as_json
from agentnb.widgets.views.branches import Branches
from agentnb.widgets.views.compare import compared
from agentnb.widgets.views.trace import Trace
from agentnb.widgets.views.whatif import editor, options, value_of
from tests.designs import WORLDS
from tests.widgets.support import HOSTILE, play, until, worker

BIG = 12345678901234567891


@tool
def compare_splits(years: list[int]) -> list[dict[str, Any]]:
    """Compare splits."""
    return [{"year": year, "unexplained": round(0.5 + (year % 7) / 10, 4), "source": f"table {year}"} for year in years]


@tool(approve=True)
def write_report(path: str, text: str = "") -> str:
    """Write the report."""
    return f"wrote {path}"


def nile(**started: Any) -> Any:
    """Return a finished run: a comparison, a report that a person approves, an answer that depends on both."""
    turns = [
        [*text("I compare first."), call("compare_splits", {"years": [1898, 1899, 1900]}, id="c1")],
        lambda messages: [*text("Now the report."), call("write_report", {"path": "nile.md"}, id="w1")],
        _answer,
    ]
    run = SessionLoop(ScriptedLLM(turns), [compare_splits, write_report]).start("When?", name="nile", **started)
    play(run)
    until(lambda: run.pending)
    run.approve(run.pending[0])
    until(lambda: run.state.over)
    return run


def _answer(messages: Any) -> str:
    """The year with the least unexplained, and whether the report was written."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    rows = json.loads(results[0])
    best = min(rows, key=lambda row: row["unexplained"])["year"]
    return f"{best}; {results[-1]}; {sum(message['role'] == 'user' for message in messages)}"


@pytest.fixture
def run() -> Iterator[Any]:
    before = set(FORKS)
    made = nile()
    yield made
    for name in set(FORKS) - before:
        FORKS.pop(name).cancel()
    MODELS.clear()


def seq_of(run: Any, type: str, number: int = 0) -> int:
    """Return the number of an event of this type."""
    return [event.seq for event in run.events if event.type == type][number]


def kinds(run: Any, seq: int) -> dict[str, dict[str, Any]]:
    """Return what can be changed at an event, by kind."""
    return {kind["kind"]: kind for kind in options(run, Trace(), seq)["kinds"]}


class Page:
    """As much of a page as asks about branches."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.branches = Branches(run, lambda: None)
        self.handlers = BranchHandlers(run, self.branches, Trace(), lambda branch: {"opened": branch.id}).handlers

    def ask(self, type: str, **message: Any) -> Any:
        return self.handlers[type](message)

    def branch(self, seq: int, kind: str, **message: Any) -> Any:
        """Start a branch, wait for its end, and return it."""
        made = self.ask("branch", seq=seq, kind=kind, **message)
        branch = self.branches.find(made["id"])
        assert branch is not None
        assert FORKS[made["name"]] is branch
        until(lambda: branch.state.over or branch.pending)
        return branch


# -- what can be changed -----------------------------------------------------------------------------------------------


def test_a_call_offers_its_result_its_arguments_and_to_skip_it(run: Any) -> None:
    found = kinds(run, seq_of(run, "call_start"))
    assert list(found) == ["result", "arguments", "skip", "then", "model"]
    end = seq_of(run, "call_end")
    assert found["result"]["at"] == end
    assert (
        found["result"]["then"]
        == f"#0 to #{end - 1} stay as they are. From turn 2 on the model is asked and tools run."
    )
    assert "compare_splits runs with these arguments." in found["arguments"]["then"]
    assert [field["label"] for field in found["arguments"]["fields"]] == ["years"]
    assert not any(kind["off"] for kind in found.values())


def test_a_decided_call_offers_the_decision(run: Any) -> None:
    found = kinds(run, seq_of(run, "approval_request"))
    assert list(found) == ["decision", "result", "arguments", "then", "model"]
    assert found["decision"]["decision"] == "approve"
    assert found["decision"]["at"] == seq_of(run, "approval_decision")


def test_an_answer_a_message_and_the_start_offer_their_texts(run: Any) -> None:
    assert kinds(run, seq_of(run, "model_end"))["answer"]["text"] == "I compare first."
    assert kinds(run, seq_of(run, "message"))["message"]["text"] == "When?"
    assert kinds(run, 0)["input"]["then"].startswith("The run starts again")


def test_a_recording_without_its_loop_says_why_nothing_can_run(run: Any) -> None:
    recording = agentnb.replay(run.snapshot())
    found = kinds(recording, seq_of(run, "call_end"))
    assert all("does not have the loop" in kind["off"] for kind in found.values())


def test_a_call_inside_another_loop_takes_no_message_and_no_model() -> None:
    inner = worker([call("search", {"query": "x"}, id="s1")], "Found.")
    outer = SessionLoop(ScriptedLLM([[call("worker", {"input": "look"}, id="k1")], "Over."]), [inner]).start("go")
    outer.result(30)
    seq = next(event.seq for event in outer.events if event.type == "call_end" and event.path)
    found = kinds(outer, seq)
    assert found["result"]["off"] == ""
    assert "inside another" in found["then"]["off"]
    assert found["model"]["off"]


def test_a_question_that_still_waits_can_be_decided_in_a_branch() -> None:
    run = SessionLoop(ScriptedLLM([[call("write_report", {"path": "a"}, id="w")], "Done."]), [write_report]).start("go")
    play(run)
    until(lambda: run.pending)
    found = kinds(run, seq_of(run, "approval_request"))
    assert found["decision"]["decision"] == ""
    assert not found["decision"]["off"]
    page = Page(run)
    branch = page.branch(seq_of(run, "approval_request"), "decision", decision="reject", reason="no", name="refused")
    assert branch.state.over
    assert run.pending
    run.cancel()
    FORKS.pop("refused")


def test_editors_follow_the_shape_of_a_value() -> None:
    table = editor([{"year": 1898, "name": "a"}, {"year": BIG, "name": "b"}])
    assert (table["shape"], table["columns"], table["kinds"]) == ("table", ["year", "name"], ["json", "string"])
    assert table["rows"] == [["1898", "a"], [str(BIG), "b"]]
    assert editor({"a": 1, "b": "x"})["shape"] == "object"
    assert editor("text") == {"shape": "text", "text": "text"}
    assert editor([1, 2])["shape"] == "json"
    assert editor(None)["text"] == "null"
    assert editor("x" * 100_000)["shape"] == "long"
    as_json(editor([{"a": HOSTILE}, {"a": HOSTILE}]))


def test_changed_cells_keep_every_other_value_exactly() -> None:
    current = [{"year": 1898, "id": BIG, "name": "\ud800"}, {"year": 1899, "id": BIG, "name": "b"}]
    assert value_of({"cells": [[1, 0, "1901"], [1, 2, "7"]]}, current) == [
        current[0],
        {"year": 1901, "id": BIG, "name": "7"},
    ]
    with pytest.raises(UsageError, match="Row 2, year: 'x' is not a number"):
        value_of({"cells": [[1, 0, "x"]]}, current)
    with pytest.raises(UsageError, match="no cell"):
        value_of({"cells": [[9, 0, "1"]]}, current)
    with pytest.raises(UsageError, match="not JSON"):
        value_of({"json": "{"}, current)


# -- branches ----------------------------------------------------------------------------------------------------------


def test_another_result_runs_a_branch_that_differs(run: Any) -> None:
    page = Page(run)
    branch = page.branch(seq_of(run, "call_end"), "result", cells=[[1, 1, "0.01"]], approvals="then")
    until(lambda: branch.state.over)
    assert branch.output == "1899; wrote nile.md; 1" != run.output
    decided = [event for event in branch.events if event.type == "approval_decision" and not event.inherited]
    assert [(event.decision, event.by) for event in decided] == [("approve", "code")]
    assert branch.name == "other compare_splits"
    assert run.state.over
    assert len([e for e in run.events if e.type == "call_end"]) == 2


def test_a_branch_asks_as_its_parent_does(run: Any) -> None:
    branch = Page(run).branch(seq_of(run, "call_end"), "result", cells=[[1, 1, "0.01"]], name="asks")
    assert [item.name for item in branch.pending] == ["write_report"]


def test_other_arguments_ask_even_if_decided_then(run: Any) -> None:
    branch = run.fork(at=seq_of(run, "call_end"), name="other")
    decide_as_in(run, branch)
    branch.play()
    until(lambda: branch.state.over)
    other = run.fork(at=seq_of(run, "model_end", 1), message={"role": "assistant", "content": "", "tool_calls": [
        {"id": "w2", "name": "write_report", "arguments": {"path": "elsewhere.md"}}]})  # fmt: skip
    decide_as_in(run, other)
    other.play()
    until(lambda: other.pending)
    assert other.pending[0].arguments["path"] == "elsewhere.md"
    other.cancel()


@pytest.mark.parametrize(
    ("event", "kind", "message", "expected"),
    [
        ("call_start", "arguments", {"fields": '{"years": [1950, 1951]}'}, "1950; wrote nile.md; 1"),
        ("message", "message", {"text": "Why?"}, None),
        ("model_start", "answer", {"text": "Compare."}, None),
        ("call_end", "then", {"text": "Think of the dam."}, None),
        ("run_start", "input", {"text": "What?"}, None),
    ],
)
def test_each_change_runs(run: Any, event: str, kind: str, message: dict[str, Any], expected: str | None) -> None:
    branch = Page(run).branch(seq_of(run, event), kind, approvals="then", **message)
    until(lambda: branch.state.over)
    assert branch.stop_reason == "completed"
    if expected is not None:
        assert branch.output == expected
    if kind == "then":
        assert branch.output.endswith("; 2")
    assert [event.seq for event in branch.events] == list(range(len(branch.events)))


def test_a_skipped_call_does_not_run(run: Any) -> None:
    page = Page(run)
    seq = seq_of(run, "call_start")
    made = page.ask("branch", seq=seq, kind="skip", text="Not today.")
    branch = page.branches.find(made["id"])
    until(lambda: branch.state.over or branch.state.failure or branch.pending)
    ended = next(event for event in branch.events if event.type == "call_end")
    assert ended.outcome == "rejected"
    assert "Not today." in str(ended.result)


def test_a_rejected_report_is_a_branch(run: Any) -> None:
    branch = Page(run).branch(seq_of(run, "call_end", 1), "decision", decision="reject", reason="Too long.")
    assert "Too long." in branch.output
    assert branch.name == "write_report rejected"


def test_an_edited_decision_is_a_branch(run: Any) -> None:
    given = {"decision": "edit", "fields": '{"path": "other.md"}'}
    assert "wrote other.md" in Page(run).branch(seq_of(run, "approval_request"), "decision", **given).output


def test_a_message_after_an_answer_comes_after_its_calls(run: Any) -> None:
    found = kinds(run, seq_of(run, "model_end"))["then"]
    assert seq_of(run, "call_end") <= found["at"] < seq_of(run, "model_start", 1)


def test_another_model_answers_from_there_on(run: Any) -> None:
    MODELS["brief"] = ScriptedLLM(["Short."])
    found = kinds(run, seq_of(run, "model_start", 2))["model"]
    assert not found["off"]
    page = Page(run)
    listed = page.ask("whatif", seq=seq_of(run, "model_start", 2))["options"]["kinds"][-1]
    assert "brief" in listed["models"]
    assert listed["by_name"]
    branch = page.branch(seq_of(run, "model_start", 2), "model", model="brief")
    assert branch.output == "Short."
    assert branch.name == "with brief"
    assert run.loop.llm is not branch.loop.llm


def test_a_model_by_name_is_one_of_the_same_provider(run: Any) -> None:
    branch = Page(run).branch(seq_of(run, "model_start", 2), "model", model="script-2")
    assert branch.loop.llm.model == "script-2"
    assert run.loop.llm.model == "script"
    assert next(e.model for e in reversed(branch.events) if e.type == "model_start") == "script-2"


def test_bad_input_changes_nothing(run: Any) -> None:
    page, before, forks = Page(run), len(run.events), dict(FORKS)
    end = seq_of(run, "call_end")
    for message, words in [
        ({"kind": "result", "cells": []}, "Nothing is changed"),
        ({"kind": "result", "json": "{"}, "not JSON"),
        ({"kind": "arguments", "fields": '{"years": "x"}'}, "years"),
        ({"kind": "then", "text": " "}, "empty"),
        ({"kind": "model", "model": ""}, "Choose a model"),
        ({"kind": "nonsense"}, "nonsense"),
    ]:
        with pytest.raises(UsageError, match=words):
            page.ask("branch", seq=end, **message)
    with pytest.raises(UsageError, match="no event"):
        page.ask("branch", seq=999, kind="result", json="1")
    assert dict(FORKS) == forks
    assert len(run.events) == before
    assert not page.branches.data()


# -- the list of branches ----------------------------------------------------------------------------------------------


def test_branches_made_in_code_are_listed_too(run: Any) -> None:
    page = Page(run)
    fork = run.fork(at=seq_of(run, "call_end"), name="by code")
    (listed,) = page.branches.data()
    assert (listed["name"], listed["at"], listed["outcome"]) == ("by code", seq_of(run, "call_end"), "not playing")
    fork.play()
    until(lambda: fork.pending)
    page.branches._due = 0
    assert page.branches.data()[0]["outcome"] == "waits for you"
    fork.approve(fork.pending[0])
    fork.result(30)
    page.branches._due = 0
    (listed,) = page.branches.data()
    assert listed["outcome"] == "the same answer"
    assert listed["over"]
    kinds_of_bars = {bar[0] for bar in listed["bars"]}
    assert kinds_of_bars == {"model", "call"}
    began = run.events[listed["at"]].time
    assert all(began - 0.001 <= start <= end for _, start, end in listed["bars"])
    assert max(end for *_, end in listed["bars"]) < began + 5
    as_json(listed)


def test_a_branch_is_not_kept_alive_by_the_list(run: Any) -> None:
    page = Page(run)
    run.fork(at=1, name="dropped")
    gc.collect()
    page.branches._due = 0
    assert page.branches.data() == []
    assert page.branches.names() == set()


def test_a_branch_is_renamed_also_in_code(run: Any) -> None:
    page = Page(run)
    branch = page.branch(seq_of(run, "call_end"), "then", text="hello", name="first")
    assert page.ask("rename", id=branch.id, name="second") == {"name": "second"}
    assert FORKS["second"] is branch
    assert "first" not in FORKS
    assert branch.name == "second"
    with pytest.raises(UsageError, match="not empty"):
        page.ask("rename", id=branch.id, name=" ")
    other = page.branch(seq_of(run, "call_end"), "then", text="hello", name="third")
    with pytest.raises(UsageError, match="already"):
        page.ask("rename", id=other.id, name="second")
    with pytest.raises(UsageError, match="already"):
        page.ask("branch", seq=2, kind="then", text="x", name="second")


# -- compare -----------------------------------------------------------------------------------------------------------


def test_a_comparison_folds_what_is_common_and_marks_what_differs(run: Any) -> None:
    page = Page(run)
    branch = page.branch(seq_of(run, "call_end"), "result", cells=[[1, 1, "0.01"]], approvals="then", name="levelled")
    until(lambda: branch.state.over)
    made = page.ask("compare", id=branch.id)["compared"]
    end = seq_of(run, "call_end")
    assert made["names"] == ["nile", "levelled"]
    assert made["common"] == end
    assert made["words"] == f"#0 to #{end - 1} are the same in both: 1 turn"
    first = made["rows"][made["fork"]]
    assert first["kind"] == "call"
    assert first["left"]
    assert first["right"]
    answer = made["rows"][-1]
    assert [part for part in answer["right"] if part[1]] == [["1899", True]]
    sums = {line["name"]: line for line in made["sum"]}
    assert sums["turns"]["left"] == sums["turns"]["right"] == "3"
    assert sums["calls"]["left"] == "2"
    assert sums["asked you"] == {"name": "asked you", "left": "0", "right": "0", "differs": False}
    as_json(made)


def test_a_row_that_one_side_lacks_is_not_here(run: Any) -> None:
    page = Page(run)
    branch = page.branch(seq_of(run, "call_end"), "then", text="Think of the dam.", approvals="then")
    until(lambda: branch.state.over)
    rows = page.ask("compare", id=branch.id)["compared"]["rows"]
    alone = [row for row in rows if row["left"] is None]
    assert [row["kind"] for row in alone] == ["message"]
    assert alone[0]["person"]
    assert all(row["right"] is not None for row in rows)


def test_two_equal_recordings_have_one_line(run: Any) -> None:
    made = compared(run.events, run.events, ("a", "b"))
    assert made["rows"] == []
    assert made["words"].startswith("All events are the same in both")


# -- a panel of the branch ---------------------------------------------------------------------------------------------


class Sent(Panel):
    """A panel whose messages are kept."""

    def __init__(self, run: Any) -> None:
        self.outbox: list[Any] = []
        super().__init__(run)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.outbox.append(content)


@pytest.fixture
def panel(run: Any) -> Iterator[Callable[[], Sent]]:
    made: list[Sent] = []

    def make() -> Sent:
        made.append(Sent(run))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_branch_is_opened_inside_its_parents_panel(run: Any, panel: Callable[[], Sent]) -> None:
    shown = panel()
    branch = run.fork(at=seq_of(run, "call_end"), name="inner")
    until(lambda: shown.branches)
    shown._receive(shown, {"type": "open", "id": branch.id, "token": "t"}, [])
    (answer,) = [message for message in shown.outbox if message.get("type") == "open"]
    assert answer["ok"]
    assert answer["state"]["status"]["run"] == "inner"
    assert not any(name.startswith("_") for name in answer["state"])
    inside = {"type": "inside", "id": answer["inside"]}

    # The page asks for its rows, and decides in it.
    shown._receive(shown, {**inside, "content": {"type": "sync", "have": 0}}, [])
    shown._receive(shown, {**inside, "content": {"type": "control", "action": "Play", "token": "p"}}, [])
    until(lambda: branch.pending)
    until(lambda: any(_state(message).get("pending") for message in shown.outbox))
    question = next(_state(message)["pending"][0] for message in shown.outbox if _state(message).get("pending"))
    decision = {**{name: question[name] for name in ("run", "path", "event", "id", "attempt", "digest")},
                "type": "decision", "decision": "approve", "seconds": 1, "token": "d"}  # fmt: skip
    shown._receive(shown, {**inside, "content": decision}, [])
    branch.result(30)
    assert branch.state.over
    assert not run.pending

    # Opened again it is the same panel; closed with its parent's.
    shown._receive(shown, {"type": "open", "id": branch.id, "token": "u"}, [])
    assert [message["inside"] for message in shown.outbox if message.get("type") == "open"] == [answer["inside"]] * 2
    shown.close()
    assert all(inner.comm is None for inner in shown._opened.values())


def _state(message: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = message.get("data", {}).get("state", {}) if message.get("type") == "inside" else {}
    return state


def test_an_error_is_answered_in_words(run: Any, panel: Callable[[], Sent]) -> None:
    shown = panel()
    shown._receive(shown, {"type": "branch", "seq": 4, "kind": "then", "text": "", "token": "t"}, [])
    (answer,) = [message for message in shown.outbox if message.get("type") == "branch"]
    assert not answer["ok"]
    assert answer["error"] == "The message is empty."


# -- every design ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", sorted(WORLDS))
def test_every_event_of_every_design_offers_changes_or_says_why_not(design: str) -> None:
    loop = WORLDS[design]()
    run = loop.start("go", name="designed", approve=True)
    run.result(60)
    trace = Trace()
    offered = 0
    for event in run.events:
        for kind in options(run, trace, event.seq)["kinds"]:
            assert kind["off"] or kind["then"]
            assert kind["off"] or 0 <= kind["at"] < len(run.events)
            offered += not kind["off"]
    assert offered


@pytest.mark.parametrize("design", sorted(WORLDS))
def test_another_model_takes_over_in_every_design_that_asks_one(design: str) -> None:
    loop = WORLDS[design]()
    run = loop.start("go", name="designed", approve=True)
    run.result(60)
    seq = next((event.seq for event in run.events if event.type == "model_start" and not event.path), 1)
    found = kinds(run, seq)["model"]
    if loop.llm is None:
        assert found["off"]
        return
    assert not found["off"]
    MODELS["same"] = copy.copy(loop.llm)
    try:
        branch = Page(run).branch(seq, "model", model="same", name=f"of {design}")
        until(lambda: branch.state.over)
        assert branch.stop_reason == run.stop_reason
        assert branch.loop.llm is MODELS["same"]
    finally:
        MODELS.clear()
        FORKS.pop(f"of {design}", None)
