"""Limits that pause and ask (`on_limit="ask"`), and limits of tokens and cost where a server reports none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentnb import LimitReached, RunCancelled, SessionLoop, UsageError, restore, tool
from agentnb.analysis import messages, runs
from agentnb.content import Image, message
from agentnb.core.events import RunPaused, RunResumed
from agentnb.llms.prices import has_prices
from agentnb.run import headless
from agentnb.testing import ScriptedLLM, call


@tool
def work() -> str:
    """Work."""
    return "done"


def turn(number: int, **usage: float) -> list[Any]:
    return [call("work", id=f"c{number}"), *([{"type": "usage", **usage}] if usage else [])]


def session(*, turns: int = 4, model: str = "", **usage: float) -> SessionLoop:
    llm = ScriptedLLM([*(turn(number, **usage) for number in range(turns)), "fin"])
    if model:
        llm.model, llm.provider = model, "openai"  # type: ignore[attr-defined]
    return SessionLoop(llm, [work])


async def until_paused(run: Any, *, resumed: bool = False) -> str:
    """Play the run, or resume it, until it pauses, and return the reason."""
    paused = asyncio.Event()
    here = asyncio.get_running_loop()
    stop = run.watch(lambda event: here.call_soon_threadsafe(paused.set) if isinstance(event, RunPaused) else None)
    if resumed:
        run.resume()
    else:
        run.play()
    await asyncio.wait_for(paused.wait(), 10)
    stop()
    return str(run.paused_for)


TOKENS = {"input_tokens": 90, "output_tokens": 10}


async def test_a_limit_pauses_the_run_and_resuming_allows_the_same_amount_once_more() -> None:
    run = session(turns=5, **TOKENS).start("go", limits={"tokens": 200}, on_limit="ask")
    assert "The limit of 200 tokens is reached" in await until_paused(run)
    assert run.state.usage["input_tokens"] == 180
    assert "The limit of 400 tokens is reached" in await until_paused(run, resumed=True)
    raised = [event.limits for event in run.events if isinstance(event, RunResumed)]
    assert raised == [{"tokens": 400}]
    run.resume()
    assert await run == "fin"
    assert [event.by for event in run.events if isinstance(event, RunPaused)] == ["limit", "limit"]


@pytest.mark.parametrize("limits", [{"turns": 2}, {"calls": 2}])
async def test_every_limit_asks(limits: dict[str, float]) -> None:
    run = session(turns=3).start("go", limits=limits, on_limit="ask")
    assert "is reached" in await until_paused(run)
    run.cancel("enough")
    with pytest.raises(RunCancelled, match="enough"):
        await run


async def test_a_restored_run_still_asks_and_continues_when_it_is_awaited() -> None:
    run = session(turns=2, **TOKENS).start("go", limits={"tokens": 100}, on_limit="ask")
    await until_paused(run)
    restored = restore(run.snapshot(), SessionLoop(ScriptedLLM(["fin"]), [work]))
    run.cancel()
    assert restored.state.on_limit == "ask"
    assert await restored == "fin"


async def paused_amounts(run: Any, times: int) -> list[float]:
    """Return the tokens that a run has used at each of its next pauses."""
    used = []
    for number in range(times):
        await until_paused(run, resumed=number > 0)
        used.append(run.state.usage["input_tokens"] + run.state.usage["output_tokens"])
    return used


async def test_limits_that_a_restored_run_was_given_are_allowed_once_more_each_time(tmp_path: Path) -> None:
    run = session(turns=5, **TOKENS).start("go")
    await run.step("turn")
    loop = session(turns=30, **TOKENS)
    restored = restore(run.snapshot(), loop, limits={"tokens": 300}, on_limit="ask")
    assert await paused_amounts(restored, 4) == [300, 600, 900, 1200]
    path = restored.snapshot().save(tmp_path / "run.json")
    again = restore(path, loop)
    assert await paused_amounts(again, 2) == [1500, 1800]
    other = restore(path, loop, limits={"tokens": 1300})
    assert await paused_amounts(other, 2) == [1300, 2600]
    for one in (run, restored, again, other):
        one.cancel()


async def test_resuming_raises_the_limits_that_the_pause_has_named_and_no_other() -> None:
    limits = {"tokens": 200, "cost": 0.5, "calls": 2}
    run = session(turns=9, **TOKENS, cost=0.25).start("go", limits=limits, on_limit="ask")
    both = "The limit of 200 tokens is reached. The limit of 0.5 cost is reached."
    assert (await until_paused(run)).startswith(both)
    assert "The limit of 2 calls is reached" in await until_paused(run, resumed=True)
    assert run.state.limits == {"tokens": 400, "cost": 1.0, "calls": 2}
    run.cancel()


def test_an_infinite_limit_is_none() -> None:
    run = session().start("go", limits={"tokens": float("inf"), "turns": 3})
    assert run.snapshot().start.limits == {"turns": 3}


async def test_a_step_stops_at_the_limit() -> None:
    run = session(turns=3, **TOKENS).start("go", limits={"tokens": 100}, on_limit="ask")
    for _ in range(8):
        await run.step("event")
    before = len(run.events)
    assert await run.step("turn") == []
    assert len(run.events) == before


@pytest.mark.parametrize("policy", [None, "approve"])
async def test_without_a_person_the_run_is_cancelled_and_names_the_limit(
    monkeypatch: pytest.MonkeyPatch, policy: str | None
) -> None:
    monkeypatch.setattr(headless, "_declared", None)
    if policy is not None:  # to approve calls is not to approve another budget
        monkeypatch.setenv("AGENTNB_HEADLESS", policy)
    monkeypatch.setattr(headless, "_has_page", False)
    monkeypatch.setattr(headless, "PATIENCE", 0.05)
    run = session(turns=3, **TOKENS).start("go", limits={"tokens": 100}, on_limit="ask")
    with pytest.raises(
        RunCancelled, match=r"The limit of 100 tokens is reached.*no person is present.*raise the limit"
    ):
        await run


async def test_a_fork_may_end_at_the_limit_at_which_its_run_asks() -> None:
    run = session(turns=3, **TOKENS).start("go", limits={"tokens": 100}, on_limit="ask")
    await until_paused(run)
    other = run.fork(0, loop=session(turns=3, **TOKENS), on_limit="end")
    with pytest.raises(LimitReached, match="100 tokens"):
        await other
    run.cancel()


def test_another_value_is_refused() -> None:
    with pytest.raises(UsageError, match='on_limit= takes "end" or "ask"'):
        session().start("go", on_limit="stop")  # type: ignore[arg-type]


async def test_tokens_are_counted_by_characters_where_the_server_reports_none() -> None:
    run = session(turns=9).start("go " * 400, limits={"tokens": 800})
    with pytest.raises(LimitReached, match="800 tokens"):
        await run
    usage = run.state.usage
    assert 300 <= usage["input_tokens"] / usage["estimated_answers"] <= 400
    assert usage["estimated_answers"] == 3
    assert session().start("go").state.usage == {}


async def test_a_server_that_reports_zeros_has_reported_nothing() -> None:
    run = session(turns=9, input_tokens=0, output_tokens=0).start("go " * 400, limits={"tokens": 800})
    with pytest.raises(LimitReached, match="800 tokens"):
        await run
    assert run.state.usage["estimated_answers"] == 3


async def test_a_picture_is_estimated_by_one_number_and_calls_count_too() -> None:
    plot = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100_000))
    run = session(turns=0).start(message("What is this?", plot), limits={"tokens": 5_000})
    await run
    assert 1_000 <= run.state.usage["input_tokens"] <= 1_010
    used = []
    for text in ("", "x" * 4_000):
        llm = ScriptedLLM([call("work", {"text": text}, id="c"), "fin"])
        run = SessionLoop(llm, [work]).start("go", limits={"tokens": 50_000})
        await run
        used.append(run.state.usage["input_tokens"])
    assert used[1] - used[0] >= 1_000


async def test_without_a_limit_nothing_is_estimated() -> None:
    run = session(turns=1).start("go", limits={"turns": 9})
    await run
    assert run.state.usage == {}


# Prices.

PRICED = pytest.mark.skipif(not has_prices(), reason="needs genai-prices")
MILLION = {"input_tokens": 1_000_000, "output_tokens": 0}


@PRICED
async def test_the_cost_is_estimated_for_a_limit_where_the_server_reports_none() -> None:
    run = session(model="gpt-5-mini", **MILLION).start("go", limits={"cost": 0.4})
    with pytest.raises(LimitReached, match=r"The limit of 0\.4 cost is reached"):
        await run
    assert run.state.usage["cost_estimate"] == pytest.approx(0.5)
    assert "cost" not in run.state.usage


async def test_a_price_that_is_not_known_names_the_model() -> None:
    run = session(model="nonsense-1", **MILLION).start("go", limits={"cost": 0.4}, on_limit="ask")
    named = r"nonsense-1 \(openai\) is not known" if has_prices() else r"agentnb-toolkit\[prices\]"
    with pytest.raises(LimitReached, match=rf"cannot be enforced.*{named}"):
        await run


@PRICED
async def test_a_model_without_a_price_inside_a_loop_with_one_is_named() -> None:
    inner = session(model="nonsense-1", turns=20, **MILLION)
    inner.name = "inner"
    llm: Any = ScriptedLLM([[call("inner", {"input": "go"}), {"type": "usage", **MILLION}], "fin"])
    llm.model, llm.provider = "gpt-5-mini", "openai"
    run = SessionLoop(llm, [inner]).start("go", limits={"cost": 5})
    with pytest.raises(LimitReached, match=r"cannot be enforced.*nonsense-1 \(openai\) is not known"):
        await run
    assert run.state.usage["answers_without_price"] == 1


@PRICED
async def test_what_was_spent_before_the_limit_was_given_counts() -> None:
    loop = session(model="gpt-5-mini", turns=9, **MILLION)
    run = loop.start("go")
    await run.step("turn")
    restored = restore(run.snapshot(), loop, limits={"cost": 0.5}, on_limit="ask")
    assert "The limit of 0.5 cost is reached" in await until_paused(restored)
    assert restored.state.usage["cost_estimate"] == pytest.approx(0.25)  # of the second answer
    assert "is reached" in await until_paused(restored, resumed=True)
    assert restored.state.usage["cost_estimate"] == pytest.approx(0.75)
    restored.cancel()


@PRICED
async def test_a_model_without_a_price_in_the_recording_is_named() -> None:
    run = session(model="nonsense-1", **MILLION).start("go")
    await run.step("turn")
    restored = restore(run.snapshot(), session(model="gpt-5-mini", **MILLION), limits={"cost": 5})
    with pytest.raises(LimitReached, match=r"nonsense-1 \(openai\) is not known"):
        await restored


@PRICED
async def test_a_paused_answer_has_an_estimated_cost_too() -> None:
    part = ["a part", {"type": "usage", **MILLION}, {"type": "stop", "reason": "pause"}]
    for limit, answers in ((5, 4), (0.5, 2)):
        llm: Any = ScriptedLLM([part, part, part, ["the end", {"type": "usage", **MILLION}]])
        llm.model, llm.provider = "gpt-5-mini", "openai"
        run = SessionLoop(llm).start("go", limits={"cost": limit})
        if limit == 5:
            await run
            assert run.state.usage["cost_estimate"] == pytest.approx(1)
        else:
            with pytest.raises(LimitReached, match=r"The limit of 0\.5 cost is reached"):
                await run
        assert len(llm.requests) == answers


@PRICED
async def test_the_tables_have_the_estimated_cost() -> None:
    cached = {**MILLION, "cache_read_tokens": 900_000}
    run = session(turns=1, model="gpt-5-mini", **cached).start("go")
    await run
    (row,) = runs(run).to_dict("records")
    assert row["cost"] == pytest.approx(0.1 * 0.25 + 0.9 * 0.025)
    assert row["cost_is_estimated"]
    assert row["cache_saved"] == pytest.approx(0.9 * 0.225)
    assert messages(run).cost_is_estimated.sum() == 1


async def test_the_tables_keep_a_reported_cost_and_name_a_model_without_a_price() -> None:
    run = session(turns=1, model="nonsense-1", **MILLION, cost=0.7).start("go")
    await run
    (row,) = runs(run).to_dict("records")
    assert (row["cost"], row["cost_is_estimated"]) == (0.7, False)
    assert row["without_price"] != "nonsense-1"
    run = session(turns=1, model="nonsense-1", **MILLION).start("go")
    await run
    (row,) = runs(run).to_dict("records")
    assert row["cost"] != row["cost"]
    assert row["without_price"] == "nonsense-1"
