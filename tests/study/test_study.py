"""A study runs a loop over a grid of arms, inputs and repeats: what it runs, how it ends, and what it asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import RunFailed, SessionLoop, Store, tool
from agentnb.core.errors import AlreadyDecided
from agentnb.core.events import ModelStart, RunStart
from agentnb.studies import Study, StudyRun
from agentnb.testing import ScriptedLLM, call, delay
from tests.study.loops import asking, talking
from tests.worlds import until


def study(make_loop: Any, inputs: Any = ("go",), repeats: int = 1, **options: Any) -> Study:
    return agentnb.study(make_loop, inputs, repeats, progress=False, **options)


def start_of(run: StudyRun) -> RunStart:
    recording = run.recording
    assert recording is not None
    start = recording.events[0]
    assert isinstance(start, RunStart)
    return start


async def waiting_for(study: Study, calls: int) -> None:
    await until(lambda: len(study.pending) == calls)


# --- the grid ---------------------------------------------------------------------------------------------------------


async def test_there_is_a_run_for_each_arm_input_and_repeat() -> None:
    done = await study(talking, ["x", "y"], 3, arms={"model": ["a", "b"]})
    assert len(done) == 12
    assert {(run.arm["model"], run.input, run.repeat) for run in done} == {
        (model, input, repeat) for model in "ab" for input in "xy" for repeat in range(3)
    }
    assert all(run.output == f"{run.arm['model']} is done" for run in done)
    assert done.counts["done"] == 12


async def test_factors_are_combined_and_arms_run_side_by_side() -> None:
    made = study(lambda model, warmth: talking(model), repeats=2, arms={"model": ["a", "b"], "warmth": [0.0, 1.0]})
    arms = [tuple(run.arm.values()) for run in made]
    assert arms[:4] == [("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0)]
    assert arms[4:] == arms[:4]


async def test_values_have_labels() -> None:
    one, other = ScriptedLLM(["from one"]), ScriptedLLM(["from other"])
    done = await study(lambda llm: SessionLoop(llm, []), arms={"llm": {"first": one, "second": other}})
    assert [(run.arm["llm"], run.output) for run in done] == [("first", "from one"), ("second", "from other")]


async def test_a_function_as_a_value_has_its_name_as_label() -> None:
    def polite() -> str:
        return "please"

    (run,) = await study(lambda style: talking(style()), arms={"style": [polite]})
    assert (run.arm, run.output) == ({"style": "polite"}, "please is done")


async def test_a_policy_can_be_an_arm() -> None:
    done = await study(asking, arms={"approve": {"strict": False, "lenient": True}})
    results = [[message.content for message in run.run.messages if message.role == "tool"] for run in done if run.run]
    assert results == [["Rejected: The policy of this run approves no calls."], ["sent to a"]]


async def test_each_run_has_a_seed_of_its_own_which_depends_on_its_cell_only() -> None:
    seen: list[int] = []

    def make_loop(model: str, seed: int) -> SessionLoop:
        seen.append(seed)
        return talking(model)

    few = study(make_loop, ["x"], 2, arms={"model": ["a", "b"]}, seed=7)
    many = study(make_loop, ["y", "x"], 3, arms={"model": ["b", "a"]}, seed=7)
    other = study(make_loop, ["x"], 2, arms={"model": ["a", "b"]}, seed=8)
    seeds = {(run.arm["model"], run.input, run.repeat): run.seed for run in many}
    assert len(set(seeds.values())) == 12
    assert all(seeds[run.arm["model"], run.input, run.repeat] == run.seed for run in few)
    assert {run.seed for run in few}.isdisjoint(run.seed for run in other)
    seen.clear()
    await few
    assert sorted(seen) == sorted(run.seed for run in few)


async def test_a_run_is_recorded_with_its_place_in_the_study(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    done = await study(
        talking, ["x"], 2, arms={"model": ["a", "b"]}, store=store, name="pilot", seed=3, tags=["first try"]
    )
    assert len(store.find(tag="study:pilot")) == 4
    assert len(store.find(tag="model:a")) == 2
    assert len(store.find(tag="first try")) == 4
    run = done.runs[3]
    assert store.find(name="pilot/b/0.1")[0].id == run.id
    data = start_of(run).data
    assert {name: data[name] for name in ("study", "arm", "input", "repeat", "seed", "study_seed")} == {
        "study": "pilot",
        "arm": {"model": "b"},
        "input": 0,
        "repeat": 1,
        "seed": run.seed,
        "study_seed": 3,
    }


# --- driving ----------------------------------------------------------------------------------------------------------


async def test_at_most_so_many_runs_work_at_once() -> None:
    working, most = 0, 0

    @tool
    async def work() -> None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await asyncio.sleep(0.002)
        working -= 1

    def make_loop() -> SessionLoop:
        return SessionLoop(ScriptedLLM([[call("work")], [call("work")], "done"]), [work])

    done = await study(make_loop, repeats=20, at_once=3)
    assert done.counts["done"] == 20
    assert most == 3


async def test_a_study_runs_in_the_background_and_can_be_waited_for_from_a_thread() -> None:
    started = study(talking, repeats=5).start()
    assert started.start() is started  # it is not started twice
    assert await asyncio.to_thread(started.result, 10) is started
    assert started.counts["done"] == 5


def test_a_study_can_be_waited_for_without_an_event_loop() -> None:
    assert study(talking, repeats=3).result(timeout=10).counts["done"] == 3


async def test_a_failed_run_is_a_row_and_not_the_end() -> None:
    def make_loop(model: str) -> SessionLoop:
        return SessionLoop(ScriptedLLM(["fine"] if model == "good" else [ConnectionError("no route")]), [])

    done = await study(make_loop, repeats=3, arms={"model": ["good", "bad"]})
    assert done.counts["done"] == done.counts["failed"] == 3
    assert {run.error for run in done if run.arm["model"] == "bad"} == {"ConnectionError: no route"}
    assert repr(done) == "<Study study: 3 of 6 done, 3 failed>"


async def test_a_loop_that_cannot_be_made_is_a_failed_run() -> None:
    made = 0

    def make_loop() -> SessionLoop:
        nonlocal made
        made += 1
        if made == 4:
            raise OSError("disk full")
        return talking()

    done = await study(make_loop, repeats=5, at_once=1)
    assert [run.status for run in done].count("failed") == 1
    assert [run.error for run in done if run.error] == ["OSError: disk full"]


async def test_failed_runs_are_run_again_only_on_request() -> None:
    down = True

    def answer(messages: Any) -> str:
        if down:
            raise ConnectionError("down")
        return "up"

    made = await study(lambda: SessionLoop(ScriptedLLM([answer], repeat=True), []), repeats=3)
    assert made.counts["failed"] == 3
    down = False
    await made.start()
    assert made.counts["failed"] == 3
    await made.start(retry_failed=True)
    assert [run.output for run in made] == ["up"] * 3


async def test_a_study_is_cancelled_as_one_and_continues_later(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    made = study(asking, repeats=6, at_once=2, store=store, name="pilot").start()
    await waiting_for(made, 6)  # the questions of all runs: one that waits leaves its place to the next
    assert made.cancel("lunch")
    await made
    assert made.counts["cancelled"] == 6
    assert not made.cancel()

    made.start()
    await waiting_for(made, 6)
    made.approve(made.pending)
    await made
    assert {run.output for run in made} == {"a is done"}
    assert study(asking, repeats=6, store=store, name="pilot").counts["done"] == 6


async def test_a_cancelled_study_starts_no_further_runs() -> None:
    made = study(lambda: SessionLoop(ScriptedLLM([[delay(30), *[]]]), []), repeats=10, at_once=2).start()
    await until(lambda: made.counts["running"] == 2)
    made.cancel()
    await made
    assert made.counts == {**dict.fromkeys(made.counts, 0), "cancelled": 2, "not started": 8}


async def test_a_caller_that_is_cancelled_cancels_the_study_it_has_started() -> None:
    made = study(asking, repeats=2)
    caller = asyncio.ensure_future(made)
    await waiting_for(made, 2)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await made
    assert made.counts["cancelled"] == 2


async def test_a_wait_ends_at_its_timeout_and_the_study_continues() -> None:
    made = study(asking, repeats=2).start()
    await waiting_for(made, 2)
    with pytest.raises(TimeoutError, match="2 waiting for you"):
        await asyncio.to_thread(made.result, 0.01)
    made.approve(made.pending)
    assert (await made).counts["done"] == 2


# --- questions --------------------------------------------------------------------------------------------------------


async def test_the_questions_of_all_runs_are_in_one_list() -> None:
    made = study(asking, repeats=3, arms={"model": ["a", "b"]}).start()
    await waiting_for(made, 6)
    assert {(made.run_of(item).arm["model"], item.arguments["to"]) for item in made.pending} == {("a", "a"), ("b", "b")}
    await until(lambda: made.counts["waiting"] == 6)

    assert made.approve(item for item in made.pending if item.arguments["to"] == "a") == 3
    await waiting_for(made, 3)
    assert made.reject(made.pending[0], "not this one") == 1
    first, second = made.pending
    made.edit(first, {"to": "c"})
    made.answer(second, "it was sent before")
    await made
    results = sorted(
        message.content for run in made if run.run is not None for message in run.run.messages if message.role == "tool"
    )
    assert results == [
        "Rejected: not this one",
        "it was sent before",
        "sent to a",
        "sent to a",
        "sent to a",
        "sent to c",
    ]


async def test_a_question_is_decided_once() -> None:
    made = study(asking, repeats=2).start()
    await waiting_for(made, 2)
    items = made.pending
    assert made.approve(items) == 2
    assert made.approve(items) == 0
    with pytest.raises(AlreadyDecided):
        made.reject(items[0])
    await made
    with pytest.raises(AlreadyDecided):
        made.approve(items[0])


async def test_items_of_other_studies_are_refused() -> None:
    made, other = study(asking).start(), study(asking, name="other").start()
    await waiting_for(made, 1)
    await waiting_for(other, 1)
    with pytest.raises(agentnb.UsageError, match="has no run with the id"):
        made.approve(other.pending)
    with pytest.raises(agentnb.UsageError, match=r"items of study\.pending"):
        made.approve(made.pending[0].id)  # type: ignore[arg-type]
    made.cancel()
    other.cancel()
    await made
    await other


async def test_a_policy_decides_for_all_runs() -> None:
    done = await study(asking, repeats=3, approve=True)
    assert done.counts["done"] == 3


async def test_without_a_person_the_declared_policy_decides_once_a_caller_waits_for_the_study() -> None:
    agentnb.headless("approve", after=0.01)
    made = study(asking, repeats=3).start()
    await waiting_for(made, 3)  # in the background the questions are left to later code for a minute
    async with asyncio.timeout(30):
        await made
    assert {run.output for run in made} == {"a is done"}


async def test_limits_hold_for_each_run() -> None:
    done = await study(asking, repeats=2, approve=True, limits={"turns": 1})
    assert [run.stop_reason for run in done] == ["limit", "limit"]
    with pytest.raises(agentnb.LimitReached):
        await done.runs[0].run  # type: ignore[misc]


async def test_options_data_and_on_limit_are_those_of_each_run() -> None:
    arms = {"model": ["a"], "options": {"cold": {"temperature": 0}, "warm": {"temperature": 1, "top_p": None}}}
    options: Any = {"options": {"seed": 7, "top_p": 0.9}, "data": {"dose": 5}, "on_limit": "end"}
    done = await study(talking, arms=arms, **options)
    starts = {run.arm["options"]: start_of(run) for run in done}
    assert starts["cold"].model_options == {"seed": 7, "top_p": 0.9, "temperature": 0}
    assert starts["warm"].model_options == {"seed": 7, "top_p": None, "temperature": 1}
    assert starts["cold"].data["dose"] == 5
    assert starts["cold"].data["arm"] == {"model": "a", "options": "cold"}
    run = done.runs[0].run
    assert run is not None
    sent = next(event.options for event in run.events if isinstance(event, ModelStart))
    assert (sent["seed"], sent["temperature"]) == (7, 0)


async def test_runs_that_pause_at_a_limit_can_be_resumed() -> None:
    made = study(asking, repeats=3, approve=True, limits={"turns": 1}, on_limit="ask").start()
    await until(lambda: sum(one.is_paused for one in made) == 3)
    first = made.runs[0]
    assert made.resume(first) == 1
    await until(lambda: first.status == "done")
    assert made.resume() == 2
    assert (await made).counts["done"] == 3
    assert made.resume() == 0
    with pytest.raises(agentnb.UsageError, match="Pass runs of this study"):
        made.resume(first.id)  # type: ignore[arg-type]


async def test_a_live_run_of_a_study_is_a_run_like_any_other() -> None:
    made = study(asking).start()
    await waiting_for(made, 1)
    run = made.runs[0].run
    assert run is not None
    run.approve(run.pending[0])
    assert await run == "a is done"
    await made


async def test_a_table_shows_the_runs_by_arm() -> None:
    done = await study(talking, repeats=2, arms={"model": ["a<b", "c"]})
    table = done._repr_html_()
    assert "model=a&lt;b" in table
    assert "4 of 4 done" in table


async def test_a_failed_run_can_be_awaited_for_its_error() -> None:
    (run,) = await study(lambda: SessionLoop(ScriptedLLM([ConnectionError("no route")]), []))
    assert run.run is not None
    with pytest.raises(RunFailed, match="no route"):
        await run.run
