"""The promises (ARCHITECTURE.md, 4. Promises), tested with random runs: any script, any interference, at every event.

A script is a list of turns. A turn is text and calls. Each call succeeds, fails, takes time, needs approval, or names a
tool that does not exist. An interference is an act of a person after the n-th event of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentnb import RunCancelled, RunFailed, SessionLoop, Snapshot, restore, tool
from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, Event, ModelEnd
from agentnb.core.evolve import evolve, fold
from agentnb.core.state import State
from agentnb.testing import ScriptedLLM, call, text
from tests.worlds import (
    assert_one_terminal_event_last,
    by_loop,
    collect,
    facts,
    notation,
    provider_faults,
    running_tasks,
    started_calls,
    types,
)

PROMISE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@tool
async def good(n: int) -> dict[str, int]:
    return {"n": n}


@tool
async def bad(n: int) -> None:
    raise RuntimeError(f"bad {n}")


@tool
async def slow(n: int) -> str:
    for _ in range(n % 4 + 1):
        await asyncio.sleep(0)
    return f"slow {n}"


@tool(approve=True)
async def asking(n: int) -> str:
    return f"allowed {n}"


TOOLS = [good, bad, slow, asking]


@dataclass(frozen=True)
class Script:
    """Turns, each a list of tool names; how the session is set up; whether the model fails before it answers."""

    turns: tuple[tuple[str, ...], ...]
    failing: frozenset[int]
    tool_execution: str
    steering_mode: str
    drain: str

    def chunks(self) -> list[Any]:
        made: list[Any] = []
        for number, names in enumerate(self.turns):
            if number in self.failing:
                made.append([*text("so far"), ConnectionError("cut")])
            calls = [call(name, {"n": n}, id=f"t{number}_{n}") for n, name in enumerate(names)]
            made.append([*text(f"turn {number}"), *calls])
        return [*made, *(f"extra {n}" for n in range(12))]  # messages of the user need further answers

    def loop(self, *, answered: int = 0, failed: int = 0) -> SessionLoop:
        return SessionLoop(
            ScriptedLLM(self.chunks()[answered + failed :]),
            TOOLS,
            tool_execution=self.tool_execution,  # type: ignore[arg-type]
            steering_mode=self.steering_mode,  # type: ignore[arg-type]
            drain=self.drain,  # type: ignore[arg-type]
        )


names = st.sampled_from(["good", "bad", "slow", "asking", "missing"])
scripts = st.builds(
    Script,
    turns=st.lists(st.lists(names, max_size=4).map(tuple), min_size=1, max_size=3).map(lambda t: (*t, ())),
    failing=st.frozensets(st.integers(0, 3), max_size=1),
    tool_execution=st.sampled_from(["parallel", "sequential"]),
    steering_mode=st.sampled_from(["after_batch", "skip_pending", "discard"]),
    drain=st.sampled_from(["one-at-a-time", "all"]),
)
calm_scripts = scripts.map(lambda s: Script(s.turns, frozenset(), s.tool_execution, s.steering_mode, s.drain))
decisions = st.sampled_from(["approve", "reject", "edit", "replace", "answer"])
interferences = st.dictionaries(
    st.integers(0, 25),
    st.sampled_from(["pause", "steer", "follow_up", "snapshot", "cancel"]) | st.just("steer"),
    max_size=4,
)


def decide(run: Any, id: str, decision: str) -> None:
    {
        "approve": lambda: run.approve(id),
        "reject": lambda: run.reject(id, "no"),
        "edit": lambda: run.edit(id, {"n": 7}),
        "replace": lambda: run.replace(id, "good", {"n": 8}),
        "answer": lambda: run.answer(id, {"said": id}),
    }[decision]()


def person(run: Any, decision: str) -> Callable[[], None]:
    """Return a function that decides about all pending calls; it is called in every turn of the event loop."""

    def look() -> None:
        for item in run.pending:
            with suppress(UsageError):
                decide(run, item.id, decision)

    return look


def interfere(run: Any, plan: dict[int, str], snapshots: list[str]) -> None:
    """Perform the acts of the plan, each as soon as its event has happened."""

    def act(event: Any) -> None:
        what = plan.get(event.seq) if event.seq is not None and not event.terminal else None
        if what == "pause":
            run.pause()
        elif what in ("steer", "follow_up"):
            with suppress(UsageError):  # the run may be cancelled already
                getattr(run, what)(f"{what} {event.seq}")
        elif what == "snapshot":
            snapshots.append(run.snapshot().to_json())
        elif what == "cancel":
            run.cancel("enough")

    run.watch(act)


async def drive(run: Any, decision: str) -> None:
    """Play the run to its end: decide, resume the run when it is paused, and repeat failed model requests."""
    run.play()
    look = person(run, decision)
    async with asyncio.timeout(60):
        while not run.state.over or run.driven:
            look()
            if run.state.paused or run.state.failure is not None:
                run.resume()
                run.play()
            await asyncio.sleep(0)


def check_results(events: list[Event]) -> None:
    """Assert promise 3: one result per call, and every call of the model has one."""
    state = fold(events)
    asked = [made.id for event in events if isinstance(event, ModelEnd) for made in event.message.tool_calls]
    told = [m.tool_call_id for m in state.messages if m.role == "tool"]
    assert told == asked
    kept = [e.call_id for e in events if isinstance(e, CallEnd) and e.outcome != "skipped"]
    assert len(kept) == len(set(kept))
    assert provider_faults(state.messages) == []


def check_every_prefix(events: list[Event]) -> None:
    """Assert promise 1: every prefix folds to the state, and the history is valid at every model request."""
    state = State()
    for position, event in enumerate(events):
        if event.type == "model_start":
            evolve(state, event)
            assert provider_faults(state.messages) == []
        else:
            evolve(state, event)
        assert state.position == position + 1
        assert provider_faults(state.messages, unfinished=True) == []


def check(run: Any) -> None:
    assert_one_terminal_event_last(run.events)
    assert [event.seq for event in run.events] == list(range(len(run.events)))
    assert fold(run.events) == run.state
    check_every_prefix(run.events)
    check_results(run.events)
    assert run.pending == []
    assert running_tasks() == set()


@PROMISE
@given(scripts, interferences, decisions)
def test_the_promises_hold_for_random_interference(script: Script, plan: dict[int, str], decision: str) -> None:
    async def scenario() -> None:
        run = script.loop().start("hi")
        snapshots: list[str] = []
        states: list[tuple[int, dict[str, Any]]] = []
        interfere(run, plan, snapshots)
        run.watch(lambda event: event.seq is not None and states.append((event.seq, run.state.dump())))
        await drive(run, decision)
        check(run)
        for request in run.loop.llm.requests:
            assert provider_faults(request.messages) == []
        for text_of_snapshot in snapshots:
            taken = Snapshot.from_json(text_of_snapshot)
            assert list(taken.events) == run.events[: taken.position]
        if not plan:
            for seq, dumped in states:
                assert fold(run.events[: seq + 1]).dump() == dumped
        if "cancel" not in plan.values():
            assert run.stop_reason == "completed"
            waiting = [m for queue in run.state.queues.values() for m in queue]
            assert waiting == []  # every queued message was sent

    asyncio.run(scenario())


@PROMISE
@given(scripts, decisions, st.data())
def test_a_run_restored_at_every_event_has_the_same_result(script: Script, decision: str, data: st.DataObject) -> None:
    """With an effect in flight the events may differ, but not the result.

    The order of concurrent calls is not promised.
    """

    async def scenario() -> None:
        whole = script.loop().start("hi")
        await drive(whole, decision)
        position = data.draw(st.integers(1, len(whole.events) - 1), label="position")
        taken = Snapshot.from_json(Snapshot.of(whole.events[:position]).to_json())
        answered, failed = (types(taken.events).count(kind) for kind in ("model_end", "model_error"))
        again = restore(taken, script.loop(answered=answered, failed=failed))
        assert again.state == fold(whole.events[:position])
        in_flight = again.state.model == "asked" or bool(again.state.open)
        await drive(again, decision)
        check(again)
        assert again.stop_reason == whole.stop_reason
        assert again.output == whole.output
        for id in {e.call_id for e in taken.events if isinstance(e, CallEnd)}:
            assert started_calls(again.events).count(id) == started_calls(taken.events).count(id)
        if not in_flight:
            assert by_loop(again.events) == by_loop(whole.events)

    asyncio.run(scenario())


@PROMISE
@given(scripts, st.integers(0, 30), decisions)
def test_closing_a_consumer_anywhere_ends_every_task(script: Script, position: int, decision: str) -> None:
    async def scenario() -> None:
        run = script.loop().start("hi")
        look = person(run, decision)
        seen = 0
        async with asyncio.timeout(60), aclosing(aiter(run)) as events:
            with suppress(RunFailed):
                while seen < position:
                    if run.pending:
                        look()
                    news = asyncio.ensure_future(anext(events, None))
                    while not news.done():
                        look()
                        await asyncio.sleep(0)
                    if await news is None:
                        break
                    seen += 1
        assert running_tasks() == set()
        if run.events and run.state.failure is None:
            check(run)

    asyncio.run(scenario())


@PROMISE
@given(calm_scripts, st.sampled_from(["event", "call", "turn", "phase"]), decisions)
def test_a_stepped_run_has_the_same_result_as_a_played_one(script: Script, unit: Any, decision: str) -> None:
    async def scenario() -> None:
        played = script.loop().start("hi")
        await drive(played, decision)
        stepped = script.loop().start("hi")
        events: list[Event] = []
        async with asyncio.timeout(60):
            while not stepped.state.over or len(events) < len(stepped.events):
                events += await stepped.step(unit)
                person(stepped, decision)()
        assert events == stepped.events
        check(stepped)
        assert stepped.output == played.output
        assert [m.plain for m in stepped.messages] == [m.plain for m in played.messages]

    asyncio.run(scenario())


@PROMISE
@given(scripts, interferences, decisions)
def test_the_stream_of_a_session_is_well_formed(script: Script, plan: dict[int, str], decision: str) -> None:
    async def scenario() -> None:
        loop = script.loop()
        stream = loop.run("hi")
        quiet = {seq: what for seq, what in plan.items() if what != "pause"}  # no code resumes the run here
        interfere(stream.run, quiet, [])
        look = person(stream.run, decision)
        reading = asyncio.ensure_future(collect(stream))
        async with asyncio.timeout(60):
            while not reading.done():
                look()
                await asyncio.sleep(0)
        said = notation(await reading)
        assert said[0] == "AS"
        assert said[-1].startswith("AE(")
        assert [word[:2] for word in said].count("AE") == 1
        assert said.count("TS") == sum(word.startswith("TE") for word in said)
        depth = 0
        for word in said:
            depth += (word == "TS") - word.startswith("TE")
            assert depth in (0, 1)
            assert depth == 1 or not word.startswith(("M(", "XS", "XE"))
        for event in (word for word in said if word.startswith("XS")):
            id = event[3:-1]
            assert said.count(f"XS({id})") == 1
            assert sum(word in (f"XE({id})", f"XE({id}!)") for word in said) == 1
        results = [word[9:].rstrip(")!") for word in said if word.startswith("M(result:")]
        asked = [m.id for message in loop.messages for m in message.tool_calls]
        assert results == asked
        assert running_tasks() == set()

    asyncio.run(scenario())


@PROMISE
@given(calm_scripts, st.integers(0, 40), st.booleans())
def test_cancel_at_any_event_results_in_one_result_per_call(script: Script, position: int, from_a_task: bool) -> None:
    async def scenario() -> None:
        run = script.loop().start("hi")
        look = person(run, "approve")
        run.watch(lambda event: not from_a_task and event.seq == position and not event.terminal and run.cancel("now"))
        run.play()
        async with asyncio.timeout(60):
            while not run.state.over:
                look()
                if from_a_task and len(run.events) > position and run.cancel("now"):
                    assert run.stop_reason == "cancelled"
                    assert provider_faults(run.messages) == []
                await asyncio.sleep(0)
            with suppress(RunCancelled):
                await run
        check(run)
        again = restore(Snapshot.from_json(run.snapshot().to_json()), script.loop(answered=_answered(run)))
        await drive(again, "approve")
        check(again)

    asyncio.run(scenario())


def _answered(run: Any) -> int:
    return sum(isinstance(event, ModelEnd) for event in run.events)


@PROMISE
@given(calm_scripts, decisions)
def test_every_consumer_gets_the_same_events(script: Script, decision: str) -> None:
    async def scenario() -> None:
        run = script.loop().start("hi")
        watching = [asyncio.ensure_future(collect(run)) for _ in range(3)]
        look = person(run, decision)
        async with asyncio.timeout(60):
            while not all(task.done() for task in watching):
                look()
                await asyncio.sleep(0)
        for task in watching:
            assert facts(task.result()) == run.events
        check(run)

    asyncio.run(scenario())
