"""A store finds what was said in its runs: by the user, by models, in calls and in errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

import agentnb
from agentnb import SessionLoop, Store, UsageError, tool
from agentnb.testing import ScriptedLLM, call


@tool
def read(page: str) -> Any:
    if page == "torn":
        raise ValueError("the page is torn")
    return {"page": page, "lines": ["It's 1874,", 'said "Ada"\nin Łódź.']}


def reading(page: str = "first", answer: str = "The answer is 1874.") -> SessionLoop:
    def turn(messages: Sequence[Any]) -> Any:
        return answer if messages[-1]["role"] == "tool" else call("read", {"page": page})

    return SessionLoop(ScriptedLLM([turn], repeat=True), [read])


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("when was it", ["run_start"]),  # once, although it is also a message
        ("WHEN WAS", ["run_start"]),
        ("first", ["call_start", "call_end"]),
        ("it's 1874", ["call_end"]),
        ("1874", ["call_end", "model_end"]),
        ('"ada"', ["call_end"]),
        ('"Ada"\nin', ["call_end"]),
        ("ŁÓDŹ", ["call_end"]),
        ("call_end", []),  # the names in recordings were not said
        ("answer is 1875", []),
        ("100%_", []),
    ],
)
async def test_a_text_is_found_where_it_was_said(store: Store, text: str, types: list[str]) -> None:
    run = reading().start("When was it?", store=store, name="one")
    await run
    found = store.search(text)
    assert [one.type for one in found] == types
    assert all(run.events[one.event].type == one.type and (one.run_id, one.name) == (run.id, "one") for one in found)


async def test_an_error_is_found_and_an_excerpt_is_one_line(store: Store) -> None:
    await reading("torn", answer="x" * 100 + "\nthe needle\t" + "y" * 100).start("go", store=store)
    (error,) = store.search("is torn")
    assert error.type == "call_end"
    (found,) = store.search("needle")
    assert found.excerpt.startswith("…xxx")
    assert " the needle yyy" in found.excerpt
    assert found.excerpt.endswith("yyy…")
    assert len(found.excerpt) < 140


async def test_the_newest_run_comes_first_and_a_limit_holds(store: Store) -> None:
    for name in ("old", "middle", "new"):
        await reading(answer="done").start("go", store=store, name=name)
    assert [one.name for one in store.search("go")] == ["new", "middle", "old"]
    assert [one.name for one in store.search("go", limit=2)] == ["new", "middle"]


async def test_only_the_runs_of_an_arm_are_searched(store: Store) -> None:
    arms = {"answer": ["yes", "no"], "page": ["a", "b"]}
    await agentnb.study(reading, ["go"], 2, arms=arms, store=store, name="pilot", progress=False)
    assert len(store.search("go")) == 8
    found = store.search("go", arm={"answer": "yes", "page": "b"})
    assert [one.name for one in found] == ["pilot/yes/b/0.1", "pilot/yes/b/0.0"]
    assert store.search("no", arm={"answer": "yes"}) == []
    assert len(store.search("go", tag="answer:*")) == 8
    assert store.search("go", tag="study:other") == []


async def test_what_a_fork_shares_is_found_in_its_origin(store: Store) -> None:
    run = reading().start("go", store=store, name="origin")
    await run
    fork = run.fork(3, name="fork")
    await fork
    assert {one.name for one in store.search("1874")} == {"origin", "fork"}
    assert sorted(str(one.name) for one in store.search("go")) == ["fork", "origin"]  # event 0 is each run's own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": " "}, "needs a text"),
        ({"text": 5}, "search"),
        ({"text": "a", "limit": 0}, "at least 1, not 0"),
        ({"text": "a", "arm": "large"}, r"as \{\"model\": \"large\"\}, not 'large'"),
    ],
)
def test_a_wrong_argument_is_refused(store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        store.search(**options)


@tool(approve=True)
def delete(path: str) -> str:
    return "gone"


DECIDED: dict[str, Any] = {
    "approved": lambda run: run.approve(run.pending[0]),
    "rejected": lambda run: run.reject(run.pending[0]),
    "edited": lambda run: run.edit(run.pending[0], {"path": "other.txt"}),
    "answered": lambda run: run.answer(run.pending[0], "done already"),
    "waiting": lambda run: None,
}


async def decided_run(store: Any, decide: Any, path: str = "secrets/keys.txt") -> Any:
    run = SessionLoop(ScriptedLLM([call("delete", {"path": path}), "done"]), [delete]).start("q", store=store)
    await run.step("turn")
    decide(run)
    if not run.pending:
        await run
    return run


@pytest.mark.parametrize("decide", DECIDED.values(), ids=DECIDED)
async def test_what_a_model_asked_for_is_found_once_whatever_became_of_the_call(decide: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    await decided_run(store, decide)
    assert len(store.search("secrets/keys")) == 1


@pytest.mark.parametrize("decide", DECIDED.values(), ids=DECIDED)
async def test_a_run_is_found_by_a_tool_that_a_model_asked_for(decide: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = await decided_run(store, decide)
    assert [info.id for info in store.find(tool="delete")] == [run.id]


@pytest.mark.parametrize("decide", DECIDED.values(), ids=DECIDED)
async def test_a_call_that_a_model_asked_for_counts_whatever_became_of_it(decide: Any, tmp_path: Path) -> None:
    run = await decided_run(Store(tmp_path / "runs.db"), decide)
    assert agentnb.analysis.runs(run)["calls"].tolist() == [1]


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("sought", ["NFC", "NFD"])
async def test_composed_and_decomposed_letters_are_the_same(stored: str, sought: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    await decided_run(store, DECIDED["rejected"], normalize(stored, "Straße/Müll.txt"))
    assert len(store.search(normalize(sought, "müll"))) == 1
