"""Breakpoints: the forms in which they are given, and that they stop a run."""

from __future__ import annotations

import asyncio
import threading
import time
from math import nan
from typing import Any

import pytest

from agentnb import LoopAgent, SessionLoop, UsageError, replay, restore, tool
from agentnb.core.events import RunPaused
from agentnb.run.gate.breakpoints import Breakpoints
from agentnb.run.gate.conditions import OPERATORS, Argument
from agentnb.testing import ScriptedLLM, call
from tests.run.agents import Agent
from tests.widgets.support import asking_inside, engine
from tests.worlds import asks, types, until

TURN = [call("echo", {"value": "a"}, id="1"), call("look", {"value": "b"}, id="2")]


async def pauses(run: Any) -> list[str]:
    """Return the reasons of the pauses of the run up to its end, from its events."""
    run.play()
    while not run.state.over:
        await until(lambda: run.state.paused or run.state.over)
        run.resume()
    return [event.reason for event in run.events if isinstance(event, RunPaused)]


@pytest.mark.parametrize(
    ("conditions", "at"),
    [
        ({"event": "model_end"}, ["model_end", "model_end"]),
        ({"tool": "echo"}, ["call_start"]),
        ({"tool": "l*k"}, ["call_start"]),
        ({"tool": "nothing"}, []),
        ({"tool": "look", "event": "call_end"}, ["call_end"]),
        ({"tool": "look", "event": "model_end"}, ["model_end"]),
        ({"phase": "acting"}, ["call_start"]),
        ({"arguments": [("value", "is", "b")]}, ["call_start"]),
        ({"arguments": [{"field": "value", "operator": "is not", "value": "b"}]}, ["call_start"]),
        ({"tool": "echo", "arguments": [("value", "is", "b")]}, []),
        ({"tool": "echo", "phase": "acting", "event": "call_start", "cost_above": 9}, []),
    ],
)
@pytest.mark.parametrize("form", ["mapping", "names"])
async def test_a_breakpoint_stops_where_all_its_conditions_hold(
    form: str, conditions: dict[str, Any], at: list[str]
) -> None:
    given = [conditions] if form == "mapping" else []
    run = Agent().loop(TURN, "done").start("hi", breakpoints=given)
    if form == "names":
        run.breakpoints.add(**conditions)
    assert [reason.split()[2] for reason in await pauses(run)] == at
    assert run.breakpoints[0].hits == len(at)


@pytest.mark.parametrize(
    ("operator", "value", "fits"),
    [
        ("is", 5, True), ("is", 5.0, True), ("is", True, False), ("is not", 5, False), ("is not", "5", True),
        ("above", 4, True), ("above", 5, False), ("below", 5.5, True), ("contains", 5, False), ("matches", "5", True),
    ],
)  # fmt: skip
def test_numbers_are_compared_as_in_json(operator: Any, value: Any, fits: bool) -> None:
    assert Argument("n.m", operator, value).fits({"n": {"m": 5}}) is fits


@pytest.mark.parametrize(
    ("operator", "value", "found", "fits"),
    [
        ("contains", "b", "abc", True), ("contains", "b", ["a", "b"], True), ("contains", "b", {"b": 1}, True),
        ("contains", 1, [True], False), ("matches", "/e*", "/etc/passwd", True), ("matches", "/etc", "/etc/x", False),
        ("above", 1, "2", False), ("is", None, None, True), ("is", {"a": [1]}, {"a": [1]}, True),
    ],
)  # fmt: skip
def test_values_are_compared_by_each_operator(operator: Any, value: Any, found: Any, fits: bool) -> None:
    assert Argument("x", operator, value).fits({"x": found}) is fits


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_missing_argument_matches_only_is_not(operator: Any) -> None:
    assert Argument("a.b", operator, 1).fits({"a": 1}) is (operator == "is not")


@pytest.mark.parametrize(
    "wrong",
    [{}, {"event": "explosion"}, {"evnt": "x"}, {"cost_above": "much"}, {"cost_above": nan},
     {"arguments": [("x", "eval", "1")]}, {"arguments": [("x", "above", "y")]},
     {"arguments": [("", "is", 1)]}, {"arguments": [("x",)]}, 7],
)  # fmt: skip
def test_a_value_that_is_not_a_breakpoint_is_refused(wrong: Any) -> None:
    run = Agent().loop("done").start("hi")
    with pytest.raises(UsageError, match="breakpoint"):
        run.breakpoints.add(wrong)
    assert list(run.breakpoints) == []


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("modle_end", "model_end"),
        ("Call_Start", "call_start"),
        ({"event": "model_ended"}, "model_end"),
        ({"where": 'event.type == "modle_end"'}, "model_end"),
        ({"where": '"cal_end" != event["type"] or tool == "echo"'}, "call_end"),
        ({"where": 'event.type in ("call_end", "cal_start")'}, "call_start"),
    ],
)
def test_a_misspelt_event_is_refused_with_the_closest_match(wrong: Any, meant: str) -> None:
    run = Agent().loop("done").start("hi")
    with pytest.raises(UsageError, match=f"Did you mean '{meant}'"):
        run.breakpoints.add(wrong)
    assert list(run.breakpoints) == []


@pytest.mark.parametrize("inside", [False, True])
async def test_a_name_close_to_an_event_may_be_a_tool_of_the_run(inside: bool) -> None:
    @tool
    async def call_ends() -> str:
        return "R"

    loop = SessionLoop(ScriptedLLM([[call("call_ends", id="c1")], "done"]), [call_ends], name="worker")
    if inside:
        loop = SessionLoop(ScriptedLLM([[call("worker", {"input": "go"}, id="c1")], "done"]), [loop])
    run = loop.start("hi", breakpoints=["call_ends"])
    run.play()
    await until(lambda: run.state.paused)
    assert run.paused_for.startswith("breakpoint at call_start of call_ends (c1)")
    assert run.breakpoints[0].hits == 1
    run.cancel()
    replayed = replay(run.snapshot())
    assert replayed.breakpoints.add("call_ends").enabled


def test_an_unknown_name_is_accepted_unless_it_is_close_to_an_event() -> None:
    run = LoopAgent("outer", [Agent().loop("done", name="inner")], 1).start("hi", breakpoints=["echo", "wandering"])
    assert len(run.breakpoints) == 2
    with pytest.raises(UsageError, match="tool='messages'"):
        run.breakpoints.add("messages")
    run.breakpoints.add(tool="messages")


@pytest.mark.parametrize("where", ['"end" in event.type', 'event.type[:5] == "model"', 'event.type < "c"'])
def test_a_condition_may_compare_a_part_of_an_event_name(where: str) -> None:
    assert len(Breakpoints([{"where": where}])) == 1


def test_breakpoints_have_a_readable_repr() -> None:
    breakpoints = Breakpoints(["call_end"])
    assert repr(breakpoints) == f"Breakpoints([{breakpoints[0]!r}])"


def test_a_breakpoint_is_given_in_one_form_only() -> None:
    with pytest.raises(UsageError, match="not both"):
        Agent().loop("done").start("hi").breakpoints.add("model_end", tool="x")


def test_an_async_function_is_refused_as_a_condition() -> None:
    async def never(event: Any, state: Any) -> bool:
        return False

    with pytest.raises(UsageError, match=r"must not be async.*never"):
        Agent().loop("done").start("hi", breakpoints=[never])


async def test_the_reason_of_a_pause_names_the_breakpoint() -> None:
    run = Agent().loop(TURN, "done").start("hi", breakpoints=[{"tool": "look", "arguments": [("value", "is", "b")]}])
    run.play()
    await until(lambda: run.state.paused)
    assert run.paused_for == ('breakpoint at call_start of look (2), which has not started: tool look, value is "b"')
    (start,) = [event for event in run.events if event.type == "call_start"]
    assert (start.name, run.breakpoints[0].hits, run.breakpoints[0].last) == ("echo", 1, start.seq)
    restored = restore(run.snapshot(), Agent().loop("done"))
    assert restored.paused_for == run.paused_for
    run.cancel()
    assert run.paused_for is None


async def test_a_breakpoint_is_added_disabled_and_removed_while_the_run_continues() -> None:
    agent = Agent()
    turns = [asks(str(n)) for n in range(30)]
    run = agent.loop(asks("hold"), *turns, "done").start("hi")
    run.play()
    await agent.holding.wait()
    made: list[Any] = []
    thread = threading.Thread(
        target=lambda: made.append(run.breakpoints.add(tool="echo", arguments=[("value", "is", "3")]))
    )
    thread.start()
    thread.join()
    ending = run.breakpoints.add("call_end")
    ending.enabled = False
    agent.release.set()
    await until(lambda: run.state.paused)
    assert agent.ran[-1] == "2"
    run.breakpoints.remove(made[0])
    ending.enabled = True
    run.resume()
    await until(lambda: agent.ran[-1] == "3" and run.state.paused)
    run.breakpoints.remove(ending.number)
    with pytest.raises(UsageError):
        run.breakpoints.remove(ending)
    with pytest.raises(UsageError):
        run.breakpoints.by_number(99)
    run.resume()
    assert await run == "done"
    assert (made[0].hits, ending.hits) == (1, 1)
    assert types(run.events).count("run_paused") == 2


async def test_a_breakpoint_on_cost_stops_at_the_first_event_above_it() -> None:
    def turn(id: str) -> list[Any]:
        return [*asks(id), {"type": "usage", "cost": 0.25, "input_tokens": 1}]

    run = Agent().loop(turn("a"), turn("b"), turn("c"), "done").start("hi", breakpoints=[{"cost_above": 0.4}])
    assert [reason.split()[2] for reason in await pauses(run)] == ["model_end"]
    assert run.usage["cost"] == 0.75
    assert run.breakpoints[0].label == "cost above 0.4"


async def test_a_step_stops_at_a_breakpoint() -> None:
    run = Agent().loop(asks("a"), "done").start("hi", breakpoints=[{"event": "model_start"}])
    assert types(await run.step("turn"))[-2:] == ["model_start", "run_paused"]
    assert run.breakpoints[0].hits == 1
    run.cancel()


@pytest.mark.parametrize("unit", ["event", "call", "turn", "phase"])
async def test_a_run_that_is_paused_can_be_stepped_past_the_next_breakpoint(unit: Any) -> None:
    run = Agent().loop(TURN, TURN, "done").start("hi", breakpoints=["model_end"])
    async with asyncio.timeout(60):
        while not run.state.over:
            await run.step(unit)
    assert run.breakpoints[0].hits == 3
    assert types(run.events).count("run_paused") == 1  # it was paused all the time


async def test_a_breakpoint_stops_at_a_call_of_a_nested_loop() -> None:
    run = asking_inside()
    run.breakpoints.add(event="approval_request", tool="delete_file", arguments=[("path", "matches", "/*")])
    run.play()
    await until(lambda: run.pending)
    await until(lambda: run.breakpoints[0].hits)
    assert run.events[run.breakpoints[0].last].path == "worker"
    run.cancel()


# -- what is queued --------------------------------------------------------------------------------------------------


async def test_queued_messages_are_listed_and_one_is_withdrawn() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done", "fine").start("hi")
    run.play()
    await agent.holding.wait()
    for words in ("one", "two", "three"):
        run.steer(words)
    run.follow_up("last")
    assert [(queue, message.content) for queue, message in run.queued] == [
        ("steering", "one"), ("steering", "two"), ("steering", "three"), ("follow_up", "last"),
    ]  # fmt: skip
    two = run.queued[1][1]
    assert run.withdraw("steering", two) == [two]
    assert run.withdraw("steering", two) == []
    assert [message.content for _, message in run.queued] == ["one", "three", "last"]
    assert run.events[-1].model_dump(include={"queue", "count", "first"}) == {
        "queue": "steering",
        "count": 1,
        "first": 1,
    }
    agent.release.set()
    await until(lambda: any(message.content == "one" for message in run.messages))
    assert not any(message.content == "two" for message in run.messages)
    run.cancel()
    assert run.queued == []
    assert run.withdraw("follow_up", two) is None


async def test_a_message_queued_for_a_nested_loop_is_withdrawn() -> None:
    run = engine([call("delete_file", {"path": "/a"}, id="c0")], "Drafted.", "Heard.", "Proof-read.")
    run.steer("early")
    assert [message.content for _, message in run.queued] == ["early"]
    run.play()
    await until(lambda: run.pending)
    run.steer("late")
    ((_, late),) = run.queued
    assert run.withdraw("steering", late) == [late]
    assert run.events[-1].path == "worker"
    assert run.queued == []
    run.cancel()


# -- typed conditions, and the n-th hit ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "at"),
    [
        ('tool == "echo" and arguments.value == "b"', ["call_start"]),
        ('event.type == "call_end" and len(event.result) > 1', ["call_end"]),
        ('event.type == "model_start" and turn == 2', ["model_start"]),
        ('arguments.nothing == "b"', []),
        ("messages > 3 and phase == 'thinking'", ["model_start", "model_end"]),
        ('event.type == "call_start" and arguments["value"] in ["a", "c"]', ["call_start"]),
        ("cost > 0", []),
    ],
)
async def test_a_condition_may_be_a_text(where: str, at: list[str]) -> None:
    run = Agent().two_turns().start("hi")
    run.breakpoints.add(where=where, event=None if "event" in where or "messages" in where else "call_start")
    assert [reason.split()[2] for reason in await pauses(run)] == at


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__[0].__subclasses__()",
        "open('/etc/passwd')",
        "event.type.format(event)",
        "state.messages",
        "lambda: 1",
        "x := 1",
        "print(1)",
        'tool = "echo"',
        'tool == "look"; True',
        "tool ==",
        "len",
        "max(['a'], key=len)",
        "f'{1:1000000000}'",
        "any([any([0 for turn in values]) for phase in values])",
        "...",
        "\ud800",
        "-" * 1000 + "1",
        "1" + " + 1" * 1000,
        "tool" + ".a" * 900,
        7,
    ],
)
def test_a_condition_that_uses_more_than_data_is_refused(where: str) -> None:
    run = Agent().loop("done").start("hi")
    with pytest.raises(UsageError):
        run.breakpoints.add(where=where)
    assert list(run.breakpoints) == []


@pytest.mark.parametrize(
    ("where", "instead"),
    [
        ('event == "call_start"', "event.type"),
        ('"call_start" == event', "event.type"),
        ('tool == "look" and event in ("call_start", "call_end")', "event.type"),
        ("usage > 1000", "usage.output_tokens"),
    ],
)
def test_a_comparison_of_a_composite_value_is_refused(where: str, instead: str) -> None:
    with pytest.raises(UsageError, match=instead):
        Breakpoints().add(where=where)


@pytest.mark.parametrize("where", ["arguments == {}", '"path" in arguments', "event != None"])
def test_a_composite_value_may_be_inspected(where: str) -> None:
    assert len(Breakpoints([{"where": where}])) == 1


@pytest.mark.parametrize(
    "where",
    [
        "9 ** 9 ** 9 > 0",
        " + ".join(f"{base} ** 4000000" for base in range(3999990, 4000000)),
        "'x' * 10 ** 9 == tool",
        "'%1000000000d' % 5 != ''",
        "str([[[[1] * 9999] * 9999] * 9999] * 9999) != ''",
        "event.__class__",
        "event.type.upper",
        "usage.pop",
        "1 / turn > 0",
    ],
)
async def test_a_condition_that_cannot_be_evaluated_is_false_and_fast(where: str) -> None:
    run = Agent().two_turns().start("hi")
    run.breakpoints.add(where=where, event="run_start")
    began = time.perf_counter()
    assert await pauses(run) == []
    assert run.stop_reason == "completed"
    assert time.perf_counter() - began < 10  # and not minutes


async def test_an_argument_may_have_the_name_of_a_python_method() -> None:
    turn = [call("echo", {"value": "a", "items": [1], "get": 2}, id="1")]
    run = Agent().loop(turn, "done").start("hi")
    run.breakpoints.add(where="arguments.items == [1] and event.message.tool_calls[0].arguments.get == 2")
    assert [reason.split()[2] for reason in await pauses(run)] == ["model_end"]


async def test_a_condition_sees_every_field_of_an_event() -> None:
    run = Agent().two_turns().start("hi")
    run.breakpoints.add(where='event.type == "call_end" and not event.is_error and event.path == ""')
    assert {reason.split()[2] for reason in await pauses(run)} == {"call_end"}


async def test_a_breakpoint_with_nth_stops_at_the_nth_hit_and_later_ones() -> None:
    run = Agent().two_turns().start("hi")
    second = run.breakpoints.add("message", nth=2)
    messages = [event.seq for event in run.events if event.type == "message"]
    stopped = await pauses(run)
    messages = [event.seq for event in run.events if event.type == "message"]
    assert len(stopped) == max(0, len(messages) - 1)
    assert second.hits == len(messages)


@pytest.mark.parametrize("nth", [0, -1, True, "2"])
def test_nth_must_be_a_positive_number(nth: Any) -> None:
    with pytest.raises(UsageError, match="nth must be the number of the hit"):
        Agent().loop("done").start("hi").breakpoints.add("message", nth=nth)


# -- on a replay -----------------------------------------------------------------------------------------------------


async def test_a_replay_moves_between_breakpoints_in_both_directions() -> None:
    run = Agent().two_turns().start("hi")
    await run
    replayed = replay(run)
    starts = [event.seq for event in run.events if event.type == "call_start"]
    here = replayed.breakpoints.add("call_start")
    for seq in starts:
        assert replayed.continue_() is here
        assert replayed.position == seq
    assert replayed.continue_() is None
    assert replayed.position == len(run.events)
    for seq in reversed(starts):
        assert replayed.continue_(backwards=True) is here
        assert replayed.position == seq
    assert replayed.continue_(backwards=True) is None
    assert replayed.position == 0


async def test_a_condition_is_evaluated_in_a_replay_as_in_the_run() -> None:
    run = Agent().two_turns().start("hi")
    await run
    replayed = replay(run)
    replayed.breakpoints.add(where='tool == "echo" and arguments.value == "b"', event="call_start")
    assert replayed.continue_() is not None
    (coming,) = replayed.step()
    assert coming.arguments == {"value": "b"}


async def test_in_a_replay_the_nth_hit_is_the_nth_of_the_recording() -> None:
    run = Agent().loop(asks("a"), asks("b"), asks("c"), "done").start("hi")
    await run
    _, second, third = [event.seq for event in run.events if event.type == "call_start"]
    replayed = replay(run)
    here = replayed.breakpoints.add("call_start", nth=2)
    stopped = []
    for backwards in (False, False, True, True, False):
        replayed.continue_(backwards=backwards)
        stopped.append((replayed.position, here.hits))
    assert stopped == [(second, 2), (third, 3), (second, 2), (0, 0), (second, 2)]


async def test_in_a_replay_a_cost_is_found_in_both_directions() -> None:
    turns = [[*asks(id), {"type": "usage", "cost": 0.25}] for id in "abc"]
    run = Agent().loop(*turns, "done").start("hi")
    await run
    second = [event.seq for event in run.events if event.type == "model_end"][1]
    replayed = replay(run)
    replayed.breakpoints.add(cost_above=0.4)
    for backwards in (False, True, False):
        replayed.to(len(run.events) - 1 if backwards else -1).continue_(backwards=backwards)
        assert replayed.position - 1 == second


async def test_a_failing_condition_in_a_replay_raises_and_keeps_the_position() -> None:
    run = Agent().two_turns().start("hi")
    await run
    replayed = replay(run).to(3)
    replayed.breakpoints.add(lambda event, state: event.no_such_field)
    with pytest.raises(AttributeError, match="no_such_field"):
        replayed.continue_()
    assert replayed.position == 4


async def test_waiting_for_a_paused_run_raises_and_names_resume() -> None:
    run = Agent().loop("done").start("hi", breakpoints=["model_start"])
    run.play()
    await until(lambda: run.state.paused)
    with pytest.raises(TimeoutError, match=r"it is paused \(run.paused_for\) until run.resume\(\)"):
        await asyncio.to_thread(run.result, timeout=0)
    run.resume()
    assert await run == "done"
