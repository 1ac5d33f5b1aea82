"""Loops in generator form: valid yields, how results are returned, and restoring a run at any event."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

from agentnb import Loop, LoopAgent, RunFailed, SessionLoop, Snapshot, Store, ToolError, UsageError, restore, tool
from agentnb.core.events import CallEnd, CallProposed, Delta, Event, ModelEnd
from agentnb.core.evolve import fold
from agentnb.errors import IllegalTransition, NotSerializable, RecordingMismatch
from agentnb.loops import want
from agentnb.loops.base import GeneratorCalls, GeneratorLoop
from agentnb.loops.want import ask, phase, say
from agentnb.testing import ScriptedLLM, call
from agentnb.widgets.views.loops import Loops
from tests.benchmarks.measure import no_collections
from tests.worlds import (
    asks,
    assert_folds,
    assert_one_terminal_event_last,
    collect,
    finished_calls,
    output_of,
    payload,
    provider_faults,
    started_calls,
    types,
    until,
)

Steps = Generator[Any, Any, Any]


class World:
    """A factory of a loop with all kinds of yields, as in a new process. It records what the loop does."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def loop(self, asked: int = 0) -> GeneratorLoop:
        """Return the loop. Its model has already answered `asked` requests."""

        @tool
        async def echo(value: str) -> str:
            self.did.append(f"echo {value}")
            return f"R:{value}"

        @tool(idempotent=True)
        async def look(value: str) -> str:
            self.did.append(f"look {value}")
            return f"L:{value}"

        def length(text: str) -> int:
            self.did.append(f"length {text}")
            return len(text)

        async def boom(text: str) -> str:
            self.did.append(f"boom {text}")
            raise ValueError(f"no {text}")

        @Loop.from_generator(name="reviewer")
        def reviewer(draft: str) -> Steps:
            long = yield want.call(length, draft)
            return f"{draft} has {long}"

        turns = [asks("a", "b"), "first", "second"]

        @Loop.from_generator(llm=ScriptedLLM(turns[asked:]), tools=[echo, look], phases=["drafting", "reviewing"])
        def writer(topic: str) -> Steps:
            yield say(f"Be brief about {topic}.")
            reply = yield ask("Write.", temperature=0)
            while reply.tool_calls:
                reply = yield ask()
            yield phase("reviewing")
            yield phase("drafting")
            yield phase("reviewing")
            lengths = yield [want.call(length, word) for word in (topic, reply.content)]
            try:
                yield want.call(boom, topic)
            except ToolError as error:
                lengths.append(str(error))
            seen = yield want.call("look", value=topic)
            review = yield want.call(reviewer, reply.content)
            yield phase("drafting")
            reply = yield ask(f"Review: {review}")
            return [lengths, seen, reply.content]

        return writer


OUTPUT = [[4, 5, "ValueError: no cats"], "L:cats", "second"]


def at(events: Any, position: int) -> Snapshot:
    """Return the snapshot at a position, by way of JSON."""
    return Snapshot.from_json(Snapshot.of(events[:position]).to_json())


def answers(events: Any) -> int:
    return sum(isinstance(event, ModelEnd) for event in events)


# -- valid yields ----------------------------------------------------------------------------------------------------


async def test_the_statements_of_a_generator_run_in_order() -> None:
    world = World()
    run = world.loop().start("cats")
    assert await run == OUTPUT
    assert [m.role for m in run.messages] == [
        *("user", "user", "assistant", "tool", "tool", "assistant", "user", "assistant"),
    ]
    assert provider_faults(run.messages) == []
    assert sorted(world.did) == sorted(
        ["echo a", "echo b", "length cats", "length first", "boom cats", "look cats", "length first"]
    )
    assert_folds(run)
    assert_one_terminal_event_last(run.events)
    assert run.stop_reason == "completed"


async def test_ask_returns_the_message_after_its_calls_have_results() -> None:
    seen: list[Any] = []

    @tool
    async def echo(value: str) -> str:
        return f"R:{value}"

    llm = ScriptedLLM([asks("a"), "done"])

    @Loop.from_generator(llm=llm, tools=[echo])
    def react(question: str) -> Steps:
        reply = yield ask(question)
        seen.append((reply.role, [made.name for made in reply.tool_calls]))
        while reply.tool_calls:
            reply = yield ask()
        return reply.content

    assert await react.start("hi") == "done"
    assert seen == [("assistant", ["echo"])]
    assert [message["content"] for message in llm.requests[1].messages] == ["hi", "", "R:a"]


async def test_ask_takes_a_schema_and_options() -> None:
    class Verdict(pydantic.BaseModel):
        good: bool

    llm = ScriptedLLM(['{"good": true}', "x"])

    @Loop.from_generator(llm=llm)
    def judge(text: str) -> Steps:
        reply = yield ask({"role": "system", "content": "Judge."}, text, schema=Verdict, temperature=0.5)
        yield ask("Again", schema={"type": "object"}, tools=None)
        return json.loads(reply.content)["good"]

    assert await judge.start("a text") is True
    first, second = llm.requests
    assert first.schema == Verdict.model_json_schema()
    assert first.options == {"temperature": 0.5}
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert (second.schema, second.tools) == ({"type": "object"}, None)


async def test_functions_are_called_with_the_given_arguments() -> None:
    def positional(a: int, /, *rest: int, key: str = "k", **more: int) -> list[Any]:
        return [a, rest, key, more]

    class Scorer:
        async def __call__(self, text: str) -> int:
            return len(text)

    @Loop.from_generator
    def caller(_: Any) -> Steps:
        return [
            (yield want.call(positional, 1, 2, 3, key="x", more=4)),
            (yield want.call(functools.partial(positional, 1), 2)),
            (yield want.call(Scorer(), "four")),
            (yield want.call(lambda: 7)),
            (yield [want.call(lambda n=n: n * n) for n in range(4)]),
            (yield []),
            (yield (want.call(lambda: {1: (2, {3})}),)),
        ]

    run = caller.start(None)
    assert await run == [[1, [2, 3], "x", {"more": 4}], [1, [2], "k", {}], 4, 7, [0, 1, 4, 9], [], [{"1": [2, [3]]}]]
    names = [event.call.name for event in run.events if isinstance(event, CallProposed)]
    assert names[:4] == ["positional", "positional", "Scorer", "<lambda>"]


async def test_calls_yielded_in_a_list_run_concurrently() -> None:
    met = asyncio.Barrier(3)

    async def meet(number: int) -> int:
        await met.wait()
        return number

    @Loop.from_generator
    def together(_: Any) -> Steps:
        return (yield [want.call(meet, n) for n in (1, 2, 3)])

    assert await asyncio.wait_for(output_of(together.start(None)), 60) == [1, 2, 3]


async def test_a_failed_call_raises_at_its_yield() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    @Loop.from_generator
    def careful(_: Any) -> Steps:
        try:
            yield [want.call(lambda: 1), want.call(fail)]
        except ToolError as error:
            return [str(error), "in fail" in error.__notes__[0]]

    assert await careful.start(None) == ["ValueError: broken", True]


async def test_a_failed_call_that_is_not_caught_ends_the_run_with_both_tracebacks() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    @Loop.from_generator
    def careless(_: Any) -> Steps:
        yield want.call(fail)

    run = careless.start(None)
    with pytest.raises(RunFailed, match="ToolError: ValueError: broken"):
        await run
    assert run.state.error is not None
    assert run.state.error.traceback is not None
    assert "yield want.call(fail)" in run.state.error.traceback
    assert "in fail" in run.state.error.traceback


async def test_the_result_of_a_call_is_a_copy_of_the_recorded_result() -> None:
    @Loop.from_generator
    def spoiler(given: Any) -> Steps:
        given.append("spoiled")
        results = yield want.call(lambda: [{"n": [1]}])
        results[0]["n"].append(2)
        return results

    run = spoiler.start(["x"])
    assert await run == [{"n": [1, 2]}]
    assert [event.result for event in run.events if isinstance(event, CallEnd)] == [[{"n": [1]}]]
    assert run.state.input == ["x"]


# -- tools and loops ------------------------------------------------------------------------------------------------


def sending(sent: list[str], **options: Any) -> GeneratorLoop:
    @tool(approve=True, **options)
    async def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    @Loop.from_generator(llm=ScriptedLLM([[call("send", {"to": "Bob"}, id="m1")], "done"]), tools=[send])
    def sender(_: Any) -> Steps:
        try:
            own = yield want.call(send, "Ann")
        except ToolError as error:
            own = str(error)
        reply = yield ask("Send it to Bob too.")
        if reply.tool_calls:
            reply = yield ask()
        return [own, reply.content]

    return sender


async def test_calls_of_the_loop_and_of_the_model_need_approval_alike() -> None:
    sent: list[str] = []
    run = sending(sent).start(None)
    await run.step("turn")
    (pending,) = run.pending
    assert (pending.name, pending.arguments, sent) == ("send", {"to": "Ann"}, [])
    run.approve(pending)
    await run.step("turn")
    assert sent == ["Ann"]
    run.edit("m1", {"to": "Eve"})
    assert await run == ["sent to Ann", "done"]
    assert sent == ["Ann", "Eve"]
    assert provider_faults(run.messages) == []


@pytest.mark.parametrize(
    ("decide", "own"),
    [
        (lambda run, id: run.reject(id, "too late"), "Rejected: too late"),
        (lambda run, id: run.answer(id, "by hand"), "by hand"),
        (lambda run, id: run.edit(id, {"to": "Zoe"}), "sent to Zoe"),
    ],
)
async def test_decisions_are_kept_when_the_generator_runs_again(decide: Any, own: str) -> None:
    run = sending([]).start(None)
    await run.step("turn")
    decide(run, run.pending[0].id)
    await run.step("turn")
    restored = restore(at(run.events, len(run.events)), sending([]))
    restored.reject("m1")
    restored.loop.llm = ScriptedLLM(["done"])
    assert await restored == [own, "done"]


async def test_a_nested_loop_has_its_own_history() -> None:
    inner = SessionLoop(ScriptedLLM(["three drafts"], repeat=True), name="writer")

    @Loop.from_generator(llm=ScriptedLLM(["thanks"]))
    def outer(topic: str) -> Steps:
        drafts = yield [want.call(inner, f"{topic} {n}") for n in range(3)]
        reply = yield ask(f"{len(drafts)} came")
        return [drafts, reply.content]

    run = outer.start("cats")
    assert await run == [["three drafts"] * 3, "thanks"]
    assert [message.content for message in run.messages] == ["3 came", "thanks"]
    assert {event.path for event in run.events} == {"", "writer", "writer:writer_2", "writer:writer_3"}
    assert run.state.children["writer"].messages[0].content == "cats 0"


async def test_the_panel_draws_nested_loops() -> None:
    inner = Loop.from_generator(lambda given: (yield phase("b")), name="inner", phases=["a", "b"])

    def made() -> GeneratorLoop:
        @Loop.from_generator
        def outer(given: Any) -> Steps:
            yield want.call(inner, given)

        return outer

    run = made().start("x")
    while run.state.children.get("inner") is None:
        await run.step("event")
    for shown in (run, restore(at(run.events, len(run.events)), made())):
        (standing,) = Loops(shown.loop).follow(shown.events).nested()
        assert (standing.path, standing.design) == ("inner", inner)
    assert GeneratorCalls(made(), {}).loop_for(run.state.own_calls[0]) is None


async def test_a_loop_constructed_inside_the_generator_is_restored() -> None:
    def made() -> GeneratorLoop:
        @Loop.from_generator
        def outer(topics: list[str]) -> Steps:
            said = []
            for topic in topics:
                inner = Loop.from_generator(lambda given: (yield want.call(str.upper, given)), name=f"about_{topic}")
                said.append((yield want.call(inner, topic)))
            return said

        return outer

    run = made().start(["a", "b"])
    assert await run == ["A", "B"]
    for position in range(1, len(run.events)):
        assert await restore(at(run.events, position), made()) == ["A", "B"]


async def test_a_generator_loop_can_be_a_tool_and_a_sub_agent() -> None:
    @Loop.from_generator
    def shout(words: Any) -> Steps:
        """Say it loudly."""
        return (yield want.call(lambda: str(words if isinstance(words, str) else words["content"]).upper()))

    llm = ScriptedLLM([[call("shout", {"input": "hi"}, id="c")], "done"])
    run = SessionLoop(llm, [shout]).start("go")
    assert await run == "done"
    assert [message.content for message in run.messages][2] == "HI"
    assert llm.requests[0].tools is not None
    assert llm.requests[0].tools[0]["description"] == "Say it loudly."


async def test_the_error_of_a_nested_loop_raises_at_its_yield() -> None:
    @Loop.from_generator
    def broken(_: Any) -> Steps:
        yield phase("working")
        raise KeyError("lost")

    @Loop.from_generator
    def outer(_: Any) -> Steps:
        try:
            yield want.call(broken)
        except ToolError as error:
            return f"caught {error}"

    run = outer.start(None)
    with pytest.raises(RunFailed, match="lost"):  # an error in the code of a nested loop ends the run
        await run
    assert_one_terminal_event_last(run.events)


async def test_a_failed_model_request_pauses_the_run() -> None:
    llm = ScriptedLLM([[RuntimeError("overloaded")], "done"])

    @Loop.from_generator(llm=llm)
    def asking(question: str) -> Steps:
        return (yield ask(question)).content

    run = asking.start("hi")
    with pytest.raises(RunFailed, match="overloaded"):
        await run
    assert run.stop_reason is None
    assert run.resume()
    assert await run == "done"
    assert [message.content for message in run.messages] == ["hi", "done"]


async def test_queued_user_messages_are_added_before_the_next_model_request() -> None:
    llm = ScriptedLLM(["one", "two"])

    def made() -> GeneratorLoop:
        @Loop.from_generator(llm=llm)
        def two(_: Any) -> Steps:
            yield ask("first")
            yield ask("second")
            return "end"

        return two

    run = made().start(None)
    await run.step("turn")
    run.follow_up("later")
    run.steer({"role": "assistant", "content": "now"})
    assert await run == "end"
    said = [message.content for message in run.messages]
    assert said == ["first", "one", "second", "now", "later", "two"]
    for position in range(1, len(run.events)):
        restored = restore(at(run.events, position), made())
        assert await restored == "end"


async def test_user_messages_to_a_loop_without_a_model_go_to_its_nested_loops() -> None:
    inner = SessionLoop(ScriptedLLM(["one", "two"]), name="inner")

    @Loop.from_generator
    def outer(_: Any) -> Steps:
        return (yield want.call(inner, "go"))

    run = outer.start(None)
    await until_type(run, "model_end")
    run.steer("more")
    assert await run == "two"


async def until_type(run: Any, kind: str) -> None:
    while kind not in types(run.events):
        await run.step("event")


# -- phases ---------------------------------------------------------------------------------------------------------


async def test_a_loop_without_declared_phases_has_default_phases() -> None:
    @Loop.from_generator(llm=ScriptedLLM(["x"]))
    def plain(_: Any) -> Steps:
        yield ask("hi")
        yield want.call(lambda: 1)

    run = plain.start(None)
    await run
    assert [event.phase for event in run.events if event.phase] == ["working", "asking", "acting", "done"]


async def test_a_generator_loop_can_be_stepped_by_phase_and_turn() -> None:
    run = World().loop().start("cats")
    await run.step("turn")
    assert [message.role for message in run.messages] == ["user", "user", "assistant", "tool", "tool"]
    await run.step("turn")
    assert run.messages[-1].content == "first"
    assert [event.phase for event in await run.step("phase")] == ["reviewing"]
    assert run.phase == "reviewing"
    await run.step("phase")
    assert run.phase == "drafting"
    await run.step("phase")
    await run.step("call")
    assert run.state.own_calls[0].name == "length"
    assert await run == OUTPUT


async def test_a_generator_loop_pauses_at_a_breakpoint_and_resumes() -> None:
    run = World().loop().start("cats", breakpoints=["reviewing"])
    run.play()
    for _ in range(2):  # the loop enters the phase twice
        await until(lambda: run.state.paused)
        assert run.phase == "reviewing"
        assert run.resume()
    assert await run == OUTPUT


async def test_a_transition_that_is_not_in_the_phase_table_ends_the_run() -> None:
    @Loop.from_generator(phases={"a": ["b"], "b": []})
    def wrong(_: Any) -> Steps:
        yield phase("b")
        yield phase("a")

    assert wrong.phases == {"a": ["b", "done"], "b": ["done"], "done": []}
    run = wrong.start(None)
    with pytest.raises(RunFailed, match="cannot go from 'b' to 'a'") as failed:
        await run
    assert isinstance(failed.value.__cause__, IllegalTransition)


async def test_an_undeclared_phase_is_refused_at_its_yield() -> None:
    @Loop.from_generator(phases=["a", "b"])
    def wrong(_: Any) -> Steps:
        try:
            yield phase("c")
        except UsageError as error:
            return str(error)

    assert "no phase 'c'" in await wrong.start(None)
    with pytest.raises(UsageError, match="at least one phase"):
        Loop.from_generator(lambda _: (yield), phases=[])


# -- restoring a run at any event -------------------------------------------------------------------------------------


def whatever_order(events: Any) -> list[str]:
    """Return the content of the events without their order: concurrent calls may end in any order."""
    return sorted(str({**payload(event), "seq": None}) for event in events)


async def finish(run: Any) -> Any:
    """Advance the run to its end; answer calls of unknown outcome."""

    def answer_or_over() -> bool:
        for pending in run.pending:
            run.answer(pending, f"R:{pending.arguments['value']}")
        return task.done()

    task = asyncio.ensure_future(output_of(run))
    await until(answer_or_over)
    return await task


async def test_a_run_restored_at_any_event_in_a_new_loop_has_the_same_result() -> None:
    whole = World().loop().start("cats")
    await whole
    events = list(whole.events)
    for position in range(1, len(events)):
        world, prefix = World(), events[:position]
        restored = restore(at(events, position), world.loop(asked=answers(prefix)))
        assert await finish(restored) == OUTPUT
        in_flight = set(started_calls(prefix)) - set(finished_calls(prefix)) or types(prefix)[-1] == "model_start"
        if not in_flight:
            assert whatever_order(restored.events[position:]) == whatever_order(events[position:])
        assert [message.plain for message in restored.messages] == [message.plain for message in whole.messages]
        assert len(finished_calls(restored.events)) == len(finished_calls(events))
        ended = [event for event in events[position:] if isinstance(event, CallEnd) and event.name != "reviewer"]
        assert len(world.did) <= len(ended)  # completed calls are not repeated
        assert_folds(restored)


async def test_advance_depends_only_on_the_state() -> None:
    loop = World().loop()
    run = loop.start("cats")
    await run
    positions = [n for n, event in enumerate(run.events) if n and not event.path and event.type == "phase_change"]
    for position in [*positions, *reversed(positions)]:
        fact = loop.advance(fold(run.events[:position]))
        assert (fact.type, fact.phase) == ("phase_change", run.events[position].phase)


async def test_a_call_interrupted_by_a_crash_is_repeated_and_a_tool_call_is_pending() -> None:
    sent: list[str] = []
    run = sending(sent).start(None, approve=True)
    started = next(n for n, event in enumerate(run_events(await _ended(run))) if event.type == "call_start")
    restored = restore(at(run.events, started + 1), sending(sent), approve=True)
    await restored.step("event")
    (pending,) = restored.pending
    assert pending.unknown
    restored.answer(pending, "it was sent")
    assert (await restored)[0] == "it was sent"


async def _ended(run: Any) -> Any:
    await run
    return run


def run_events(run: Any) -> list[Event]:
    return list(run.events)


async def test_a_run_in_a_store_can_be_restored(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = World().loop().start("cats", name="x", store=store)
    await run.step("turn")
    await run.step("turn")
    restored = restore(store.load("x"), World().loop(asked=2), store=store)
    assert await restored == OUTPUT


async def test_a_corrected_generator_continues_before_its_error() -> None:
    asked = ScriptedLLM(["one"])

    def made(*, broken: bool) -> GeneratorLoop:
        def counting(_: Any) -> Steps:
            reply = yield ask("first")
            if broken:
                raise KeyError("typo")
            return f"{reply.content} and more"

        return Loop.from_generator(counting, asked)

    run = made(broken=True).start(None)
    with pytest.raises(RunFailed, match="typo"):
        await run
    assert await restore(at(run.events, len(run.events)), made(broken=False)) == "one and more"


# -- differences from the recording -----------------------------------------------------------------------------------


def differing(*steps: Any) -> GeneratorLoop:
    def recorded(_: Any) -> Steps:
        for step in steps:  # noqa: UP028 - a tuple cannot be sent the results
            yield step
        yield want.call(lambda: 0)

    return Loop.from_generator(recorded, ScriptedLLM(["x"], repeat=True), phases=["a", "b", "c"])


def one(n: int) -> int:
    return n


def two(n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("recorded", "now", "step", "shown"),
    [
        ([say("x"), say("y")], [say("x"), say("z")], 2, ["a message with role user: 'y'", "say('z')"]),
        ([ask("x")], [ask("z")], 1, ["'x'", "ask('z')"]),
        ([want.call(one, 1)], [want.call(one, 2)], 1, ["call(one, n=1)", "call(one, n=2)"]),
        ([want.call(one, 1)], [want.call(two, 1)], 1, ["call(one, n=1)", "call(two, n=1)"]),
        ([[want.call(one, 1), want.call(one, 2)]], [[want.call(one, 1), want.call(two, 2)]], 1, ["call(two, n=2)"]),
        ([want.call(one, 1)], [ask("x")], 1, ["call(one, n=1)", "ask('x')"]),
        ([ask("x")], [want.call(one, 1)], 1, ["'x'", "call(one, n=1)"]),
        ([ask("x")], [[want.call(one, 1)]], 1, ["'x'", "[call(one, n=1)]"]),
        ([say("x")], [phase("b")], 1, ["'x'", "phase('b')"]),
        ([phase("b"), phase("c")], [phase("b"), phase("a")], 2, ["phase('c')", "phase('a')"]),
        ([phase("b")], [say("x")], 1, ["phase('b')", "say('x')"]),
        ([say("x"), say("y")], [say("x")], 2, ["'y'", "call(<lambda>)"]),
    ],
)
async def test_a_generator_that_differs_from_its_recording_is_an_error_with_the_step(
    recorded: Any, now: Any, step: int, shown: list[str]
) -> None:
    run = differing(*recorded).start(None)
    await run
    last = next(n for n, event in enumerate(run.events) if isinstance(event, CallProposed) and "<l" in event.call.name)
    with pytest.raises((RunFailed, RecordingMismatch), match=f"Step {step} differs") as failed:
        await restore(at(run.events, last), differing(*now))
    assert all(words in str(failed.value) for words in shown)


async def test_a_generator_that_ends_before_its_recording_is_an_error() -> None:
    run = differing(say("x"), say("y")).start(None)
    await run.step("event")
    await run.step("event")
    await run.step("event")

    def short(_: Any) -> Steps:
        yield say("x")

    with pytest.raises(RunFailed, match=r"(?s)Step 2 differs.*'y'.*its end"), pytest.warns(UserWarning, match="phases"):
        await restore(at(run.events, 3), Loop.from_generator(short, name="recorded"))


async def test_a_nondeterministic_generator_is_an_error_when_it_runs_again() -> None:
    draws = iter(range(100))

    @Loop.from_generator
    def gambling(_: Any) -> Steps:
        for _turn in range(3):
            yield want.call(one, next(draws))

    run = gambling.start(None)
    await run.step("call")
    with pytest.raises(RunFailed, match=r"(?s)Step 1 differs.*recorded: call\(one, n=0\).*now: +call\(one, n=1\)"):
        await restore(at(run.events, 5), gambling)


async def test_restoring_with_another_function_warns() -> None:
    def first(_: Any) -> Steps:
        yield say("x")

    def second(_: Any) -> Steps:
        yield say("x")

    run = Loop.from_generator(first).start(None)
    await run.step("event")
    with pytest.warns(UserWarning, match="function"):
        restore(run.snapshot(), Loop.from_generator(second))


# -- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nonsense", "words"),
    [
        (None, "not None"),
        ("ask", "not 'ask'"),
        (asyncio.sleep, "not <function sleep"),
        ([ask("a"), ask("b")], "A list may contain only calls"),
        ([1], "only calls, not 1"),
    ],
)
async def test_the_error_for_an_invalid_yield_states_the_valid_values(nonsense: Any, words: str) -> None:
    @Loop.from_generator(llm=ScriptedLLM([]))
    def wrong(_: Any) -> Steps:
        yield nonsense

    run = wrong.start(None)
    with pytest.raises(RunFailed, match="UsageError: A loop must yield ask") as failed:
        await run
    assert words in str(failed.value)
    assert run.state.error is not None
    assert "yield nonsense" in str(run.state.error.traceback)


async def test_an_exception_in_the_generator_ends_the_run_with_its_traceback() -> None:
    @Loop.from_generator
    def broken(_: Any) -> Steps:
        yield want.call(one, 1)
        raise KeyError("lost")

    run = broken.start(None)
    with pytest.raises(RunFailed, match="KeyError: 'lost'") as failed:
        await run
    assert isinstance(failed.value.__cause__, KeyError)
    assert run.stop_reason == "error"
    assert 'raise KeyError("lost")' in str(run.state.error and run.state.error.traceback)
    assert run.state.memo is None


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (lambda: want.call(one, object()), NotSerializable),
        (lambda: want.call(one, np.array([1, 2])), NotSerializable),
        (lambda: want.call(one), TypeError),
        (lambda: want.call(one, m=1), TypeError),
        (lambda: want.call(7), UsageError),  # type: ignore[arg-type]
        (lambda: want.call("one", 1), UsageError),
        (lambda: say({"role": "tool", "content": "x", "tool_call_id": "y"}), UsageError),
        (lambda: ask("x", temperature=object()), NotSerializable),
    ],
)
async def test_an_invalid_request_is_refused_where_it_is_constructed(mistake: Callable[[], Any], error: Any) -> None:
    with pytest.raises(error):
        mistake()


@pytest.mark.parametrize("number", [np.int64(3), np.float32(0.5), np.bool_(True)], ids=["int", "float", "bool"])
async def test_a_numpy_number_is_accepted_as_an_argument(number: Any) -> None:
    @Loop.from_generator
    def doubling(_: Any) -> Steps:
        return (yield want.call(lambda value: [value, value], number))

    assert await doubling.start(None) == [number.item()] * 2


async def test_a_tool_that_is_not_a_tool_of_the_loop_is_refused() -> None:
    @tool(approve=True)
    async def send(to: str) -> str:
        return to

    def wrong(other: Any) -> Steps:
        yield want.call({"tool": send, "name": "send", "other": len}[other], to="x") if other != "other" else None

    for given in ("tool", "name"):
        with pytest.raises(RunFailed, match=r"has no tool 'send'\. Its tools are: none"):
            await (Loop.from_generator(wrong) if given == "tool" else Loop.from_generator(named)).start(given)

    async def other(to: str) -> str:
        return to

    other.__name__ = "send"
    with pytest.raises(RunFailed, match="another object of that name"):
        await Loop.from_generator(lambda _: (yield want.call(other, "x")), tools=[send], name="n").start(None)


def named(_: Any) -> Steps:
    yield want.call("send", to="x")


async def test_a_plain_function_in_tools_is_called_as_a_tool() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    @Loop.from_generator(tools=[add])
    def adder(_: Any) -> Steps:
        return (yield want.call(add, 1, 2))

    run = adder.start(None, approve=[{"tool": "add", "decision": "ask"}])
    await run.step("call")
    run.approve(run.pending[0].id)
    assert await run == 3


@pytest.mark.parametrize("given", [{"topic": "x"}, [1, [2]], None, 3.5, "x", [{"role": "user", "content": "hi"}]])
async def test_the_input_can_be_any_json(given: Any) -> None:
    @Loop.from_generator
    def same(input: Any) -> Steps:
        yield phase("working")
        return input

    run = same.start(given)
    assert await run == given
    assert await restore(at(run.events, 1), same) == given


async def test_an_input_that_is_not_json_is_converted_to_text() -> None:
    class Thing:
        def __str__(self) -> str:
            return "a thing"

    @Loop.from_generator
    def same(input: Any) -> Steps:
        yield phase("working")
        return input

    assert await same.start({"x": Thing()}) == {"x": "a thing"}


async def test_an_output_that_is_not_json_is_an_error() -> None:
    @Loop.from_generator
    def wrong(_: Any) -> Steps:
        yield phase("working")
        return object()

    run = wrong.start(None)
    with pytest.raises(RunFailed, match=r"The output of wrong.*JSON"):
        await run
    assert_one_terminal_event_last(run.events)


@pytest.mark.parametrize("function", [one, asyncio.sleep, 7])
def test_a_function_that_is_not_a_generator_function_is_refused(function: Any) -> None:
    with pytest.raises(UsageError, match="not a generator function"):
        Loop.from_generator(function)


def test_a_generator_function_without_one_parameter_is_refused_by_name() -> None:
    def nothing() -> Steps:
        yield phase("working")

    with pytest.raises(
        UsageError, match=r"^nothing must accept the run's input as its only argument: too many positional"
    ):
        Loop.from_generator(nothing)


# -- cancelling, and many at once -----------------------------------------------------------------------------------


async def test_closing_at_any_event_ends_the_run_once() -> None:
    whole = World().loop().start("cats")
    length = len(await collect(whole))
    for taken in range(1, length):
        world = World()
        run = world.loop().start("cats")
        stream = run.__aiter__()
        for _ in range(taken):
            await anext(stream)
        await stream.aclose()
        assert_one_terminal_event_last(run.events)
        assert provider_faults(run.messages) == []
        assert_folds(run)


async def test_a_generator_is_closed_with_its_run() -> None:
    dropped: list[int] = []

    @Loop.from_generator
    def watched(number: int) -> Steps:
        try:
            yield want.call(lambda: 1)
            yield want.call(lambda: 2)
        finally:
            dropped.append(number)

    ended = watched.start(1)
    await ended
    assert dropped == [1]
    cancelled = watched.start(2)
    await cancelled.step("call")
    cancelled.cancel()
    await asyncio.sleep(0)
    del cancelled
    gc.collect()
    assert dropped == [1, 2]


async def test_another_loop_can_advance_the_same_state() -> None:
    run = World().loop().start("cats")
    await run.step("turn")
    other = World().loop()
    assert other.advance(run.state) == run.loop.advance(run.state)


async def test_a_thousand_concurrent_runs_of_one_loop_are_independent() -> None:
    started = 0

    def counting(number: int) -> Steps:
        nonlocal started
        started += 1
        total = 0
        for turn in range(5):
            total += yield want.call(later, number * turn)
        return total

    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number

    loop = Loop.from_generator(counting)
    runs = [loop.start(number) for number in range(1000)]
    assert await asyncio.gather(*map(output_of, runs)) == [10 * number for number in range(1000)]
    assert started == 1000  # no step was repeated
    assert all(run.state.memo is None for run in runs)


async def test_one_recording_can_be_continued_in_two_runs() -> None:
    run = World().loop().start("cats")
    await run.step("turn")
    loop = World().loop()
    both = [restore(run.snapshot(), loop) for _ in range(2)]
    loop.llm = ScriptedLLM(["first", "second"])
    assert await asyncio.gather(*map(output_of, both)) == [OUTPUT, OUTPUT]


@pytest.mark.alone
async def test_the_cost_of_a_turn_is_constant_over_two_thousand_turns() -> None:
    marks: list[float] = []

    def long(turns: int) -> Steps:
        for _ in range(turns):
            marks.append(time.process_time())
            reply = yield ask("go")
            yield want.call(one, len(reply.content))
        return "end"

    growths = []
    with no_collections():
        for _ in range(3):
            marks.clear()
            llm = ScriptedLLM(["x"], repeat=True)
            assert await Loop.from_generator(long, llm).start(2000) == "end"
            growths.append((marks[-1] - marks[-201]) / (marks[200] - marks[0]))
    assert min(growths) < 2.5


@pytest.mark.alone
async def test_running_a_generator_again_takes_time_linear_in_its_length() -> None:
    def long(turns: int) -> Steps:
        for n in range(turns):
            yield want.call(one, n)
        return "end"

    seconds = {}
    for turns in (500, 2000):
        run = Loop.from_generator(long).start(turns)
        await run
        took = []
        for _ in range(3):
            loop = Loop.from_generator(long)
            state = fold(run.events[:-1])
            with no_collections():
                began = time.process_time()
                assert loop.advance(state).type == "run_end"
                took.append(time.process_time() - began)
        seconds[turns] = min(took)
    assert seconds[2000] < 12 * seconds[500]


async def test_deltas_of_a_generator_loop_are_streamed() -> None:
    llm = ScriptedLLM(["some words"])

    @Loop.from_generator(llm=llm)
    def talking(_: Any) -> Steps:
        return (yield ask("hi")).content

    news = await collect(talking.start(None))
    assert [item.content for item in news if isinstance(item, Delta)] == ["some", " words"]


async def test_a_generator_loop_in_a_loop_agent_runs_in_each_pass() -> None:
    @Loop.from_generator
    def first(given: Any) -> Steps:
        return (yield want.call(lambda: "one"))

    run = LoopAgent("team", [first], max_iterations=2).start("go")
    assert await run == "one"
    assert [event.path for event in run.events if event.type == "run_start"] == ["", "first", "first"]


async def test_a_generator_can_delegate_with_yield_from() -> None:
    def twice(function: Callable[[], int]) -> Steps:
        first = yield want.call(function)
        second = yield want.call(function)
        return first + second

    @Loop.from_generator
    def whole(_: Any) -> Steps:
        return (yield from twice(lambda: 2)) * (yield from twice(lambda: 3))

    assert await whole.start(None) == 24


async def test_a_running_batch_continues_in_another_process() -> None:
    holding, done = asyncio.Event(), []

    def made(*, held: bool) -> GeneratorLoop:
        async def work(n: int) -> int:
            if held and n == 1:
                holding.set()
                await asyncio.Event().wait()
            done.append(n)
            return n

        @tool
        async def send(n: int) -> int:
            return await work(n)

        @Loop.from_generator(tools=[send])
        def batch(_: Any) -> Steps:
            return (yield [want.call(work, 0), want.call(work, 1), want.call(send, 1), want.call(send, 2)])

        return batch

    run = made(held=True).start(None)
    run.play()
    await holding.wait()
    await until(lambda: len(finished_calls(run.events)) == 2)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run.cancel()
    restored = restore(snapshot, made(held=False))
    restored.play()
    await until(lambda: bool(restored.pending))
    assert [pending.name for pending in restored.pending] == ["send"]
    restored.reject("send_3", "unknown")
    with pytest.raises(RunFailed, match="Rejected: unknown"):
        await restored
    assert sorted(done) == [0, 1, 2]
