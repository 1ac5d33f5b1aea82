"""The first difference of two recordings, and its consequences."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentnb import ExecutionLoop, Loop, RunFailed, SessionLoop, Snapshot, UsageError, tool
from agentnb.analysis import diff
from agentnb.loops.want import say
from agentnb.run.past.alignment import How, Pair
from agentnb.testing import ScriptedLLM, call
from tests.analysis.recordings import researcher
from tests.designs import WORLDS, double, loop_agent

OTHER_SIDE: dict[How, How] = {"left": "right", "right": "left"}
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


async def done(**options: Any) -> Any:
    run = researcher(**options).start("Look it up.", approve=True)
    await run
    return run


def hows(difference: Any) -> set[str]:
    return {pair.how for pair in difference.events}


@every_world
async def test_a_run_does_not_differ_from_itself(world: Callable[[], Any]) -> None:
    run = world().start("go", approve=True)
    await run
    same = diff(run, run)
    assert not same
    assert same.first is None
    assert same.state == []
    assert hows(same) == {"same"}
    assert same.common == len(run.events)


async def test_times_and_run_ids_are_not_a_difference() -> None:
    assert not diff(await done(), await done())


async def test_a_fork_is_equal_up_to_its_change(run: Any) -> None:
    at = next(event.seq for event in run.events if event.type == "approval_decision" and event.call_id == "w3")
    fork = run.fork(at, decision="reject", loop=researcher(answer="It is done."), approve=True)
    await fork
    difference = diff(run, fork)
    assert difference.common == at
    first = difference.first
    assert (first.how, first.left.seq) == ("changed", at)
    assert (first.left.decision, first.right.decision) == ("approve", "reject")


async def test_a_different_text_is_one_change_and_all_other_events_are_equal() -> None:
    difference = diff(await done(answer="Yes."), await done(answer="No."))
    changed = [(pair.how, pair.left.type) for pair in difference.events if pair.how != "same"]
    assert changed == [("changed", "model_end"), ("changed", "run_end")]
    assert ("output", "Yes.", "No.") in difference.state
    assert ("messages[9].content", "Yes.", "No.") in difference.state


async def test_a_difference_late_in_a_long_text_is_shown() -> None:
    same = "The level changed in 1899, and this is how sure we can be of it. " * 5
    difference = diff(await done(answer=f"{same}It is written."), await done(answer=f"{same}There is none."))
    for told in (str(difference), difference._repr_html_()):
        for words in ("It is written.", "There is none."):
            assert told.count(words) == 4  # the answer, the run's end, its last message and its output


async def test_a_value_that_is_a_prefix_of_the_other_is_shown_as_different() -> None:
    difference = diff(await done(answer="a" * 400), await done(answer="a" * 401))
    left, right = next(line for line in str(difference).splitlines() if line.startswith("  output: "))[10:].split(" | ")
    assert (left, right) == ("…" + "a" * 40, "…" + "a" * 41)


def said(*words: str) -> Any:
    def sayings(_: Any) -> Any:
        for word in words:
            yield say(word)

    return Loop.from_generator(sayings, name="sayings").start("")


async def test_after_an_inserted_message_the_remaining_events_are_paired() -> None:
    one, other = said("a", "b", "c", "d"), said("a", "x", "b", "c", "d")
    await one
    await other
    difference = diff(one, other)
    apart = [(pair.how, pair.right.message.content) for pair in difference.events if pair.how != "same"]
    assert apart == [("right", "x")]
    assert difference.common == difference.events.index(next(p for p in difference.events if p.how != "same"))


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_every_event_of_both_sides_occurs_once_and_in_order(left: list[str], right: list[str]) -> None:
    one, other = said(*left), said(*right)
    asyncio.run(_both(one, other))
    pairs = diff(one, other).events
    assert [pair.left for pair in pairs if pair.left is not None] == list(one.events)
    assert [pair.right for pair in pairs if pair.right is not None] == list(other.events)
    assert bool(diff(one, other)) is (left != right)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_the_first_difference_does_not_depend_on_the_side(left: list[str], right: list[str]) -> None:
    one, other = said(*left), said(*right)
    asyncio.run(_both(one, other))
    same = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    difference = diff(one, other)
    if left != right:
        assert difference.common == 1 + same  # after the start of the run
    mirrored = [Pair(OTHER_SIDE.get(pair.how, pair.how), pair.right, pair.left) for pair in difference.events]
    assert diff(other, one).events == mirrored


async def test_repeated_events_after_a_change_are_paired() -> None:
    one, other = said("x", *"ab" * 200, "z"), said("y", *"ab" * 200, "v")
    await _both(one, other)
    assert [pair.how for pair in diff(one, other).events].count("changed") == 2


async def test_recordings_without_equal_texts_are_paired_event_by_event() -> None:
    one, other = said(*(f"x{n}" for n in range(400))), said(*(f"y{n}" for n in range(400)))
    await _both(one, other)
    assert [pair.how for pair in diff(one, other).events].count("changed") == 400


class Fails(Loop):
    """Ends in an error whose traceback is another each time."""

    times = 0

    def advance(self, state: Any) -> Any:
        Fails.times += 1
        exec("\n" * Fails.times + "raise RuntimeError('no')")  # from another line


def asked_for_a_while() -> Any:
    return researcher().start("go", approve=[{"tool": "read", "decision": "approve"}, {"deadline": 0.1}])


def written() -> Any:
    solutions = ['{"calls": [{"_tool": "double", "n": 1, "_outputPath": "†state.two"}]}', '{"output": "†state.two"}']
    return ExecutionLoop(ScriptedLLM(solutions), [double], plan="lazy").start("go")


@pytest.mark.parametrize("start", [asked_for_a_while, written, lambda: loop_agent().start("go")])
async def test_times_and_ids_in_messages_are_not_a_difference(start: Callable[[], Any]) -> None:
    one, other = start(), start()
    await _both(one, other)
    difference = diff(one, other)
    assert str(difference.first) == "None"
    assert difference.state == []


async def test_the_traceback_of_an_error_is_not_a_difference() -> None:
    one, other = Fails().start("go"), Fails().start("go")
    for run in (one, other):
        with pytest.raises(RunFailed):
            await run
    assert one.state.error.traceback != other.state.error.traceback
    assert not diff(one, other)


async def asked_twice(ids: str, *, first: int = 1, prompt: str = "") -> Any:
    """Return a run with two concurrent calls and another call, with ids as a provider generates them."""
    turns = [[call("double", {"n": n}, id=f"{ids}{n}") for n in (first, 2)], [call("double", {"n": 3}, id=ids)], "done"]
    loop = SessionLoop(ScriptedLLM(turns), [double], system_prompt=prompt, tool_execution="sequential")
    run = loop.start("go")
    await run
    return run


async def test_ids_of_calls_are_not_a_difference() -> None:
    difference = diff(await asked_twice("call_a"), await asked_twice("call_b"))
    assert not difference
    assert difference.state == []


async def test_a_different_call_is_one_change_and_its_id_is_not_shown() -> None:
    one, other = await asked_twice("call_a"), await asked_twice("call_b", first=7)
    difference = diff(one, other)
    changed = [(pair.left.type, pair.how) for pair in difference.events if pair.how != "same"]
    assert changed == [("model_end", "changed"), ("call_start", "changed"), ("call_end", "changed")]
    for told in (str(difference), difference._repr_html_()):
        assert "call_a" not in told
        assert "call_b" not in told


async def test_the_order_in_which_concurrent_calls_end_is_a_difference() -> None:
    def came_back(*order: int) -> Any:
        @tool
        async def wait(n: int) -> None:
            await turn[n].wait()
            for later in order[order.index(n) + 1 :][:1]:
                turn[later].set()

        turn = {n: asyncio.Event() for n in order}
        turn[order[0]].set()
        calls = [call("wait", {"n": n}, id=f"{order}{n}") for n in (1, 2)]
        return SessionLoop(ScriptedLLM([calls, "done"]), [wait]).start("go")

    one, other = came_back(1, 2), came_back(2, 1)
    await _both(one, other)
    assert diff(one, other)


async def test_the_difference_of_two_configurations_is_shown() -> None:
    text = str(diff(await asked_twice("a", prompt="Be brief."), await asked_twice("a", prompt="Be kind.")))
    assert "Be brief." in text
    assert "Be kind." in text


@pytest.mark.parametrize("opaque", [{"signature": "abc"}, {"redacted": "abc"}, {"provider": {"server": "there"}}])
async def test_opaque_provider_data_is_not_a_difference(opaque: dict[str, Any]) -> None:
    def thinker(thought: str, **opaque: Any) -> Any:
        thoughts = [
            {"type": "reasoning_delta", "content": thought},
            {"type": "reasoning_delta", "content": "", **opaque},
        ]
        return SessionLoop(ScriptedLLM([[*thoughts, {"type": "text_delta", "content": "done"}]]), [])

    runs = [thinker("Hm.", **opaque).start("go"), thinker("Hm.").start("go"), thinker("Oh.").start("go")]
    for run in runs:
        await run
    assert not diff(runs[0], runs[1])
    assert diff(runs[1], runs[2])


async def test_call_ids_in_a_given_history_are_not_a_difference() -> None:
    runs = [await asked_twice(ids) for ids in ("call_a", "call_b")]
    later = [SessionLoop(ScriptedLLM(["Yes."]), [double], messages=run.messages).start("and?") for run in runs]
    await _both(*later)
    assert not diff(*later)


async def test_two_runs_of_one_session_do_not_differ() -> None:
    session = SessionLoop(ScriptedLLM(["Yes."] * 2))
    runs = session.start("go"), session.start("go")
    await _both(*runs)
    assert not diff(*runs)


async def _both(one: Any, other: Any) -> None:
    await one
    await other


async def test_two_snapshots_of_a_run_differ_in_the_later_events(run: Any) -> None:
    difference = diff(run.at(3).snapshot(), run)
    assert hows(difference) == {"same", "right"}
    assert difference.common == 4
    where = {change.where for change in difference.state}
    assert "stop_reason" in where
    assert not where & {"position", "run_id", "started"}


async def test_the_text_form_shows_the_differences_and_their_places(run: Any) -> None:
    text = str(diff(await done(answer="Yes."), await done(answer="No.")))
    assert "- " in text
    assert "model_end Yes." in text
    assert "model_end No." in text
    assert "output: Yes. | No." in text
    assert str(diff(run, run)) == f"nile (left) and nile (right) are the same in all {len(run.events)} events."


async def test_recorded_text_in_a_difference_is_escaped_in_html() -> None:
    hostile = "<script>alert(1)</script>\u202egnp.exe\x1b[31m"
    page = diff(await done(answer=hostile), await done(answer="No."))._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert page.startswith("<table")


def test_exactly_two_recordings_are_compared(run: Any) -> None:
    with pytest.raises(UsageError, match="Exactly one recording is needed, got 2"):
        diff([run, run], run)


async def test_two_nan_results_are_not_a_difference() -> None:
    @tool
    async def measure() -> float:
        return nan

    run = SessionLoop(ScriptedLLM([[call("measure", id="m1")], "done"]), [measure]).start("go")
    await run
    assert not diff(run, Snapshot.from_json(run.snapshot().to_json()))
