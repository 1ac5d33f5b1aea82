"""SessionLoop as session_loop/SEMANTICS.md describes it, claim by claim, through the public names only."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from agentnb import AgentnbError, SessionLoop, tool
from agentnb.loops.session_loop import MessageQueue
from tests.claims import Model, answered_once, asks, collect, says, short, words


class World:
    """Tools t1, t2, t3 that note when they run and do what a test wants meanwhile."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.during: dict[str, Any] = {}
        self.tools = [self._tool(name) for name in ("t1", "t2", "t3")]

    def _tool(self, name: str) -> Any:
        async def perform(value: int = 0) -> str:
            """Do it."""
            self.ran.append(name)
            if name in self.during:
                done = self.during[name]()
                if asyncio.iscoroutine(done):
                    done = await done
                if isinstance(done, BaseException):
                    raise done
                if done is not None:
                    return done
            return f"R:{name}"

        perform.__name__ = name
        return tool(perform)


def batch(*ids: str) -> list[Any]:
    return asks(*((id, id, {}) for id in ids))


def contents(messages: Any) -> dict[str, Any]:
    return {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}


# -- turns and their events ------------------------------------------------------------------------------------------


async def test_pi_01_text_only() -> None:
    loop = SessionLoop(Model("hello"), [])
    events = await collect(loop.run("hi"))
    assert short(events) == ["AS", "TS", "M(user:hi)", "M(A)", "TE[]", "AE(2)"]
    assert [m["role"] for m in loop.messages] == ["user", "assistant"]


async def test_every_event_is_one_of_the_ten_and_json() -> None:
    world = World()
    events = await collect(SessionLoop(Model(batch("t1"), "x y"), world.tools).run("hi"))
    ten = {
        *("agent_start", "agent_end", "turn_start", "turn_end", "message_start", "message_update", "message_end"),
        *("tool_execution_start", "tool_execution_update", "tool_execution_end"),
    }
    assert {e.type for e in events} <= ten
    for event in events:
        assert json.loads(event.model_dump_json())["type"] == event.type


async def test_text_arrives_in_updates_between_the_message_s_start_and_end() -> None:
    model = Model([*says("he"), *says("llo")])
    events = await collect(SessionLoop(model, []).run("hi"))
    kinds = [e.type for e in events]
    start = len(kinds) - 1 - kinds[::-1].index("message_start")
    assert kinds[start : start + 4] == ["message_start", "message_update", "message_update", "message_end"]
    assert events[start + 3].message.content == "hello"


async def test_no_updates_are_made_for_users_and_results() -> None:
    world = World()
    events = await collect(SessionLoop(Model(batch("t1"), "x"), world.tools).run("hi"))
    open_role = None
    for event in events:
        if event.type == "message_start":
            open_role = event.message.role
        if event.type == "message_update":
            assert open_role == "assistant"


async def test_pi_02_one_call() -> None:
    world, model = World(), Model(batch("t1"), "done")
    events = await collect(SessionLoop(model, world.tools).run("hi"))
    assert short(events) == words("AS TS M(user:hi) M(A) XS(t1) XE(t1) M(result:t1) TE[t1] TS M(A) TE[] AE(4)")
    assert model.heard(1) == ["user:hi", "assistant", "t1"]
    assert model.contexts[1][2]["content"] == "R:t1"


async def test_the_turn_s_end_carries_its_message_and_its_results() -> None:
    world = World()
    events = await collect(SessionLoop(Model(batch("t1", "t2"), "x"), world.tools).run("hi"))
    ended = next(e for e in events if e.type == "turn_end")
    assert [c.id for c in ended.message.tool_calls] == ["t1", "t2"]
    assert [m.content for m in ended.tool_results] == ["R:t1", "R:t2"]


async def test_the_start_of_a_tool_has_its_name_and_raw_arguments() -> None:
    world = World()
    events = await collect(SessionLoop(Model(asks(("c", "t1", {"value": "7"}))), world.tools).run("hi"))
    started = next(e for e in events if e.type == "tool_execution_start")
    assert (started.tool_call_id, started.tool_name, started.args) == ("c", "t1", {"value": "7"})


async def test_parallel_is_the_default() -> None:
    world = World()
    both = asyncio.Barrier(2)
    world.during = {"t1": lambda: _meet(both), "t2": lambda: _meet(both)}
    events = await collect(SessionLoop(Model(batch("t1", "t2")), world.tools).run("hi"))
    assert short(events)[-4:] == ["TS", "M(A)", "TE[]", "AE(5)"]


async def _meet(barrier: asyncio.Barrier) -> None:
    await barrier.wait()


async def test_pi_16_ends_in_completion_order_results_in_source_order() -> None:
    world, model = World(), Model(batch("t1", "t2"), "x")
    second = asyncio.Event()
    world.during = {"t1": lambda: _wait(second), "t2": lambda: second.set()}
    notes = short(await collect(SessionLoop(model, world.tools).run("hi")))
    assert [n for n in notes if n.startswith("XE")] == ["XE(t2)", "XE(t1)"]
    assert [n for n in notes if "result" in n] == ["M(result:t1)", "M(result:t2)"]
    assert "TE[t1,t2]" in notes
    assert model.heard(1) == ["user:hi", "assistant", "t1", "t2"]


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_sequential_runs_one_after_the_other() -> None:
    world = World()
    notes = short(
        await collect(SessionLoop(Model(batch("t2", "t1")), world.tools, tool_execution="sequential").run("hi"))
    )
    assert world.ran == ["t2", "t1"]
    assert [n for n in notes if n[0] == "X"] == ["XS(t2)", "XE(t2)", "XS(t1)", "XE(t1)"]


# -- steering and follow-ups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool_execution", ["sequential", "parallel"])
async def test_pi_03_steering_waits_for_the_batch(tool_execution: Any) -> None:
    world, model = World(), Model(batch("t1", "t2"), "ok")
    loop = SessionLoop(model, world.tools, tool_execution=tool_execution)
    world.during = {"t1": lambda: loop.steer("STEER")}
    notes = short(await collect(loop.run("hi")))
    assert world.ran == ["t1", "t2"]
    assert "XE(t1)" in notes
    assert "XE(t2)" in notes
    at = notes.index("M(result:t2)")
    assert "M(result:t1)" in notes[:at]
    assert notes[at:] == words("M(result:t2) TE[t1,t2] TS M(user:STEER) M(A) TE[] AE(6)")
    assert model.heard(1) == ["user:hi", "assistant", "t1", "t2", "user:STEER"]


async def test_pi_05_discard_replaces_what_was_already_computed() -> None:
    world, model = World(), Model(batch("t1", "t2"), "ok")
    loop = SessionLoop(model, world.tools, tool_execution="sequential", steering_mode="discard")
    world.during = {"t2": lambda: loop.steer("STEER")}
    await collect(loop.run("hi"))
    assert model.heard(1) == ["user:hi", "assistant", "t1", "t2", "user:STEER"]
    for message in model.contexts[1][2:4]:
        assert message["content"] == "Skipped due to queued user message."
        assert message["is_error"]


async def test_skip_pending_keeps_what_has_run_and_skips_the_rest() -> None:
    world, model = World(), Model(batch("t1", "t2", "t3"), "ok")
    loop = SessionLoop(model, world.tools, tool_execution="sequential", steering_mode="skip_pending")
    world.during = {"t1": lambda: loop.steer("STEER")}
    await collect(loop.run("hi"))
    assert world.ran == ["t1"]
    skipped = "Skipped due to queued user message."
    assert contents(model.contexts[1]) == {"t1": "R:t1", "t2": skipped, "t3": skipped}
    assert model.heard(1)[-1] == "user:STEER"


async def test_steering_before_the_run_is_heard_by_the_first_request() -> None:
    model = Model("x")
    loop = SessionLoop(model, [])
    loop.steer("STEER")
    notes = short(await collect(loop.run("hi")))
    assert notes == words("AS TS M(user:hi) M(user:STEER) M(A) TE[] AE(3)")
    assert model.heard(0) == ["user:hi", "user:STEER"]


async def test_steering_during_the_final_text_turn_is_delivered() -> None:
    loop = SessionLoop(model := Model([*says("a"), lambda: loop.steer("STEER"), *says("b")], "ok"), [])
    notes = short(await collect(loop.run("hi")))
    assert notes == words("AS TS M(user:hi) M(A) TE[] TS M(user:STEER) M(A) TE[] AE(4)")
    assert model.heard(1) == ["user:hi", "assistant", "user:STEER"]


async def test_two_steering_messages_are_delivered_one_at_a_time() -> None:
    world, model = World(), Model(batch("t1"), "x", "y")
    loop = SessionLoop(model, world.tools)

    def twice() -> None:
        loop.steer("S1")
        loop.steer("S2")

    world.during = {"t1": twice}
    await collect(loop.run("hi"))
    assert model.heard(1)[-1] == "user:S1"
    assert model.heard(2)[-2:] == ["assistant", "user:S2"]
    assert len(model.contexts) == 3


async def test_drain_all_delivers_them_together() -> None:
    world, model = World(), Model(batch("t1"), "x")
    loop = SessionLoop(model, world.tools, drain="all")

    def twice() -> None:
        loop.steer("S1")
        loop.steer("S2")

    world.during = {"t1": twice}
    await collect(loop.run("hi"))
    assert model.heard(1)[-2:] == ["user:S1", "user:S2"]
    assert len(model.contexts) == 2


async def test_a_follow_up_comes_when_it_would_stop() -> None:
    world, model = World(), Model(batch("t1"), "x", "y")
    loop = SessionLoop(model, world.tools)
    loop.follow_up("MORE")
    notes = short(await collect(loop.run("hi")))
    assert notes[-8:] == words("TS M(A) TE[] TS M(user:MORE) M(A) TE[] AE(6)")
    assert model.heard(1) == ["user:hi", "assistant", "t1"]


@pytest.mark.parametrize(("drain", "requests"), [("one-at-a-time", 3), ("all", 2)])
async def test_follow_ups_drain_as_told(drain: Any, requests: int) -> None:
    model = Model()
    loop = SessionLoop(model, [], drain=drain)
    loop.follow_up("F1")
    loop.follow_up("F2")
    await collect(loop.run("hi"))
    assert len(model.contexts) == requests
    assert [m["content"] for m in loop.messages if m["role"] == "user"] == ["hi", "F1", "F2"]


async def test_steering_goes_before_follow_ups() -> None:
    model = Model([lambda: loop.follow_up("F"), lambda: loop.steer("S"), *says("a")])
    loop = SessionLoop(model, [])
    await collect(loop.run("hi"))
    assert [m["content"] for m in loop.messages if m["role"] == "user"] == ["hi", "S", "F"]


async def test_a_queue_of_one_s_own_is_used_from_another_thread() -> None:
    queue = MessageQueue()
    model = Model()
    loop = SessionLoop(model, [], queue=queue)
    thread = threading.Thread(target=lambda: queue.add_followup("F"))
    thread.start()
    thread.join()
    await collect(loop.run("hi"))
    assert model.heard(1)[-1] == "user:F"


def test_the_queue_gives_what_was_put_in_and_then_nothing() -> None:
    queue = MessageQueue()
    queue.add_steering("a")
    queue.add_steering("b")
    queue.add_followup("c")
    first = queue.dequeue_steering()
    assert first
    rest = queue.dequeue_steering()
    assert not queue.dequeue_steering()
    assert len(first) + len(rest) == 2
    assert len(queue.dequeue_followup()) == 1
    assert not queue.dequeue_followup()


# -- failures --------------------------------------------------------------------------------------------------------


async def test_a_tool_that_raises_is_an_error_result_and_the_loop_goes_on() -> None:
    world, model = World(), Model(batch("t1"), "x")
    world.during = {"t1": lambda: RuntimeError("api down")}
    notes = short(await collect(SessionLoop(model, world.tools).run("hi")))
    assert "XE(t1!)" in notes
    assert model.contexts[1][2]["is_error"]
    assert "api down" in model.contexts[1][2]["content"]


async def test_an_unknown_tool_is_an_error_result_with_its_start_and_end() -> None:
    model = Model(asks(("c", "nope", {})), "x")
    notes = short(await collect(SessionLoop(model, World().tools).run("hi")))
    assert "XS(c)" in notes
    assert "XE(c!)" in notes
    assert "nope" in model.contexts[1][2]["content"]
    assert "not found" in model.contexts[1][2]["content"]


async def test_arguments_that_do_not_fit_are_an_error_result_and_nothing_runs() -> None:
    world, model = World(), Model(asks(("c", "t1", {"value": "many"})), "x")
    notes = short(await collect(SessionLoop(model, world.tools).run("hi")))
    assert "XE(c!)" in notes
    assert world.ran == []
    answered_once(model.contexts[1])


async def test_a_model_that_raises_ends_the_stream_in_the_full_form() -> None:
    model = Model([RuntimeError("down")])
    loop = SessionLoop(model, [])
    loop.follow_up("kept")
    events: list[Any] = []
    async with asyncio.timeout(60):
        async for event in loop.run("hi"):
            events.append(event)
    assert short(events) == words("AS TS M(user:hi) M(A) TE[] AE(2)")
    assert events[-2].message["role"] == "assistant"
    assert "down" in events[-1].model_dump_json()


async def test_calls_of_a_message_that_failed_are_not_run() -> None:
    world = World()
    model = Model([{"type": "tool_call", "id": "t1", "name": "t1", "arguments": {}}, RuntimeError("down")], "ok")
    loop = SessionLoop(model, world.tools)
    await _drained(loop.run("hi"))
    assert world.ran == []
    await collect(loop.run("again"))
    answered_once(model.contexts[-1])
    assert model.heard(-1) == ["user:hi", "user:again"]


async def _drained(stream: Any) -> list[Any]:
    """A stream's events, whether or not it raises at its end."""
    events: list[Any] = []
    try:
        async with asyncio.timeout(60):
            async for event in stream:
                events.append(event)
    except AgentnbError:
        pass
    return events


async def test_a_failed_run_can_be_gone_on_with() -> None:
    world, model = World(), Model(batch("t1"), [RuntimeError("down")], "ok")
    loop = SessionLoop(model, world.tools)
    await _drained(loop.run("hi"))
    await collect(loop.run("again"))
    assert model.heard(-1) == ["user:hi", "assistant", "t1", "user:again"]
    assert world.ran == ["t1"]


async def test_calls_cut_off_by_the_length_are_failed_unexecuted() -> None:
    world, model = World(), Model([*batch("t1", "t2"), {"type": "stop", "reason": "length"}], "x")
    notes = short(await collect(SessionLoop(model, world.tools).run("hi")))
    assert world.ran == []
    assert [n for n in notes if n.startswith("XE")] == ["XE(t1!)", "XE(t2!)"]
    assert "output token limit" in model.contexts[1][2]["content"]


async def test_a_second_call_of_the_same_id_does_not_run_twice_under_it() -> None:
    world = World()
    model = Model(asks(("c", "t1", {}), ("c", "t2", {})), "x")
    await collect(SessionLoop(model, world.tools).run("hi"))
    ids = [m["tool_call_id"] for m in model.contexts[1] if m["role"] == "tool"]
    calls = [c["id"] for m in model.contexts[1] if m.get("tool_calls") for c in m["tool_calls"]]
    assert ids == calls
    assert len(set(ids)) == 2
    assert sorted(world.ran) == ["t1", "t2"]


# -- hooks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_before_tool_call_blocks_with_its_reason(is_async: bool) -> None:
    world, model = World(), Model(batch("t1", "t2", "t3"), "x")

    def decide(context: Any) -> Any:
        return {"block": True, "reason": "not today"} if context.tool_call.name == "t2" else None

    async def later(context: Any) -> Any:
        return decide(context)

    loop = SessionLoop(model, world.tools, before_tool_call=later if is_async else decide)
    notes = short(await collect(loop.run("hi")))
    assert sorted(world.ran) == ["t1", "t3"]
    assert "XE(t2!)" in notes
    assert model.heard(1) == ["user:hi", "assistant", "t1", "t2", "t3"]
    assert "not today" in contents(model.contexts[1])["t2"]


async def test_before_tool_call_is_given_call_arguments_and_messages() -> None:
    seen: list[Any] = []
    loop = SessionLoop(Model(asks(("c", "t1", {"value": 3}))), World().tools, before_tool_call=seen.append)
    await collect(loop.run("hi"))
    assert (seen[0].tool_call.id, seen[0].args) == ("c", {"value": 3})
    assert [m["role"] for m in seen[0].messages] == ["user", "assistant"]


async def test_a_hook_that_raises_before_is_an_error_result() -> None:
    def fail(context: Any) -> None:
        raise ValueError("bad hook")

    world, model = World(), Model(batch("t1"), "x")
    notes = short(await collect(SessionLoop(model, world.tools, before_tool_call=fail).run("hi")))
    assert world.ran == []
    assert "XE(t1!)" in notes
    assert "bad hook" in contents(model.contexts[1])["t1"]


async def test_a_hook_that_raises_after_is_an_error_result() -> None:
    def fail(context: Any) -> None:
        raise ValueError("bad hook")

    world, model = World(), Model(batch("t1"), "x")
    notes = short(await collect(SessionLoop(model, world.tools, after_tool_call=fail).run("hi")))
    assert world.ran == ["t1"]
    assert "XE(t1!)" in notes
    assert "bad hook" in contents(model.contexts[1])["t1"]


async def test_after_tool_call_replaces_field_by_field() -> None:
    answers = {"t1": {"content": "new"}, "t2": {"is_error": True}, "t3": None}
    world, model = World(), Model(batch("t1", "t2", "t3"), "x")
    loop = SessionLoop(model, world.tools, after_tool_call=lambda context: answers[context.tool_call.name])
    notes = short(await collect(loop.run("hi")))
    assert contents(model.contexts[1]) == {"t1": "new", "t2": "R:t2", "t3": "R:t3"}
    assert {"XE(t1)", "XE(t2!)", "XE(t3)"} <= set(notes)


async def test_after_tool_call_can_make_an_error_a_success() -> None:
    world, model = World(), Model(batch("t1"), "x")
    world.during = {"t1": lambda: RuntimeError("down")}
    seen: list[Any] = []

    async def mend(context: Any) -> dict[str, Any]:
        seen.append((context.result, context.is_error))
        return {"content": "fine", "is_error": False}

    notes = short(await collect(SessionLoop(model, world.tools, after_tool_call=mend).run("hi")))
    assert seen[0][1] is True
    assert "XE(t1)" in notes
    assert contents(model.contexts[1]) == {"t1": "fine"}


async def test_after_tool_call_is_not_asked_about_immediate_errors() -> None:
    seen: list[str] = []
    model = Model(asks(("a", "nope", {}), ("b", "t1", {"value": "x"}), ("c", "t2", {}), ("d", "t3", {})), "x")
    loop = SessionLoop(
        model,
        World().tools,
        before_tool_call=lambda c: {"block": True, "reason": "no"} if c.tool_call.id == "c" else None,
        after_tool_call=lambda c: seen.append(c.tool_call.id),
    )
    await collect(loop.run("hi"))
    assert seen == ["d"]
    assert [m["tool_call_id"] for m in model.contexts[1] if m["role"] == "tool"] == ["a", "b", "c", "d"]


async def test_transform_then_convert_once_a_request_and_nothing_is_written_back() -> None:
    asked: list[str] = []

    def transform(messages: Any) -> Any:
        asked.append("transform")
        return [*messages, {"role": "user", "content": "extra"}]

    async def convert(messages: Any) -> Any:
        asked.append("convert")
        assert messages[-1]["content"] == "extra"
        return list(messages)[:1] + list(messages)[-1:]

    model = Model("x")
    loop = SessionLoop(model, [], transform_context=transform, convert_to_llm=convert)
    await collect(loop.run("hi"))
    assert asked == ["transform", "convert"]
    assert model.heard(0) == ["user:hi", "user:extra"]
    assert [m["content"] for m in loop.messages] == ["hi", "x"]


async def test_roles_of_one_s_own_are_kept_and_left_out_by_the_converter() -> None:
    model = Model("x")
    loop = SessionLoop(model, [], convert_to_llm=lambda ms: [m for m in ms if m["role"] != "note"])
    await collect(loop.run({"role": "note", "content": "private"}))
    assert loop.messages[0]["role"] == "note"
    assert model.contexts[0] == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_should_stop_after_turn_stops_before_any_queue_is_polled(is_async: bool) -> None:
    async def later(*context: Any) -> bool:
        return True

    world, model = World(), Model(batch("t1"), "never")
    loop = SessionLoop(model, world.tools, should_stop_after_turn=later if is_async else lambda *c: True)
    loop.follow_up("F")
    world.during = {"t1": lambda: loop.steer("S")}
    notes = short(await collect(loop.run("hi")))
    assert notes[-2:] == ["TE[t1]", "AE(3)"]
    assert len(model.contexts) == 1
    said = [m["content"] for m in loop.messages if m["role"] == "user"]
    assert said == ["hi"]


async def test_only_a_batch_that_terminates_as_one_ends_the_run() -> None:
    world, model = World(), Model(batch("t1"), "never")
    world.during = {"t1": lambda: {"content": "last", "terminate": True}}
    notes = short(await collect(SessionLoop(model, world.tools).run("hi")))
    assert len(model.contexts) == 1
    assert notes[-2:] == ["TE[t1]", "AE(3)"]

    world, model = World(), Model(batch("t1", "t2"), "goes on")
    world.during = {"t1": lambda: {"content": "last", "terminate": True}}
    await collect(SessionLoop(model, world.tools).run("hi"))
    assert len(model.contexts) == 2
    assert contents(model.contexts[1])["t1"] == "last"


# -- limits, abort, continue -----------------------------------------------------------------------------------------


async def test_max_turns_is_reported_and_means_at_most_that_many() -> None:
    model = Model(*[batch("t1")] * 9)
    run = SessionLoop(model, World().tools, max_turns=3).start("hi")
    await run
    assert len(model.contexts) == 3
    assert run.stop_reason == "max_turns"
    answered_once(run.messages)


async def test_pi_19_abort_answers_what_has_not_started_and_leaves_the_queues() -> None:
    queue = MessageQueue()
    world = World()
    loop = SessionLoop(Model(batch("t1", "t2")), world.tools, queue=queue, tool_execution="sequential")

    def abort() -> None:
        loop.steer("S")
        loop.follow_up("F")
        loop.abort()

    world.during = {"t1": abort}
    notes = short(await collect(loop.run("hi")))
    assert world.ran == ["t1"]
    assert "M(result:t2!)" in notes
    assert notes[-3:] == ["M(A)", "TE[]", notes[-1]]
    assert notes[-1].startswith("AE")
    assert contents(loop.messages)["t2"] == "Operation aborted"
    answered_once(loop.messages)
    assert len(queue.dequeue_steering()) == 1
    assert len(queue.dequeue_followup()) == 1


async def test_abort_while_the_model_speaks_ends_the_stream() -> None:
    never = asyncio.Event()
    model = Model([*says("par"), lambda: loop.abort(), lambda: never.wait()])
    loop = SessionLoop(model, [])
    loop.follow_up("F")
    notes = short(await collect(loop.run("hi")))
    assert notes == words("AS TS M(user:hi) M(A) TE[] AE(2)")
    assert model.closed == 1


async def test_after_an_abort_the_session_takes_a_new_message() -> None:
    world, model = World(), Model(batch("t1", "t2"), "fine")
    loop = SessionLoop(model, world.tools, tool_execution="sequential")
    world.during = {"t1": lambda: loop.abort()}
    await collect(loop.run("hi"))
    await collect(loop.run("again"))
    answered_once(model.contexts[-1])
    assert model.heard(-1)[:4] == ["user:hi", "assistant", "t1", "t2"]
    assert model.heard(-1)[-1] == "user:again"
    assert loop.messages[-1]["content"] == "fine"


async def test_abort_when_nothing_runs_changes_nothing() -> None:
    loop = SessionLoop(Model("x"), [])
    loop.abort()
    assert short(await collect(loop.run("hi")))[-1] == "AE(2)"
    loop.abort()
    assert short(await collect(loop.run("more")))[-1] == "AE(2)"


async def test_agent_end_has_only_the_new_messages() -> None:
    loop = SessionLoop(model := Model("a", "b"), [])
    await collect(loop.run("one"))
    events = await collect(loop.run("two"))
    assert [m["content"] for m in events[-1].messages] == ["two", "b"]
    assert model.heard(1) == ["user:one", "assistant", "user:two"]


async def test_run_while_it_runs_is_refused_and_harms_nothing() -> None:
    refused: list[Exception] = []

    async def again() -> None:
        try:
            await collect(loop.run("second"))
        except AgentnbError as error:
            refused.append(error)

    loop = SessionLoop(Model([again, *says("x")]), [])
    assert short(await collect(loop.run("hi"))) == words("AS TS M(user:hi) M(A) TE[] AE(2)")
    assert len(refused) == 1


async def test_pi_20_continue_with_nothing_is_an_error() -> None:
    with pytest.raises(AgentnbError, match="No messages to continue from"):
        await collect(SessionLoop(Model(), []).continue_())


async def test_pi_20_continue_from_an_answer_with_empty_queues_is_an_error() -> None:
    loop = SessionLoop(Model("x"), [])
    await collect(loop.run("hi"))
    with pytest.raises(AgentnbError, match="Cannot continue from message role: assistant"):
        await collect(loop.continue_())


async def test_pi_20_continue_from_a_result() -> None:
    world, model = World(), Model(batch("t1"), "ok")
    loop = SessionLoop(model, world.tools, max_turns=1)
    await collect(loop.run("hi"))
    assert loop.messages[-1]["role"] == "tool"
    events = await collect(loop.continue_())
    assert short(events) == words("AS TS M(A) TE[] AE(1)")


async def test_pi_20_continue_with_steering_takes_one_at_a_time() -> None:
    model = Model("a", "b", "c")
    loop = SessionLoop(model, [])
    await collect(loop.run("hi"))
    loop.steer("S1")
    loop.steer("S2")
    events = await collect(loop.continue_())
    assert [m["role"] for m in events[-1].messages] == ["user", "assistant", "user", "assistant"]
    assert len(model.contexts) == 3


async def test_pi_20_continue_with_a_follow_up() -> None:
    loop = SessionLoop(Model("a", "b"), [])
    await collect(loop.run("hi"))
    loop.follow_up("F")
    events = await collect(loop.continue_())
    assert [m["content"] for m in events[-1].messages] == ["F", "b"]


async def test_it_is_idle_once_the_end_was_delivered() -> None:
    loop = SessionLoop(Model("a", "b"), [])
    async for event in loop.run("hi"):
        if event.type == "agent_end":
            break
    assert short(await collect(loop.run("again")))[-1] == "AE(2)"


async def test_closing_the_stream_early_has_run_every_finally() -> None:
    world, ended = World(), []
    started = asyncio.Event()

    async def wait() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.append("t1")

    world.during = {"t1": wait}
    loop = SessionLoop(Model(batch("t1")), world.tools)
    stream = loop.run("hi")
    async for event in stream:
        if event.type == "tool_execution_start":
            await started.wait()
            break
    await stream.aclose()
    assert ended == ["t1"]
    answered_once(loop.messages)
    assert short(await collect(loop.run("again")))[-1].startswith("AE")


async def test_a_tool_s_progress_is_told_and_late_progress_is_not() -> None:
    kept: list[Any] = []

    @tool
    async def slow(progress: Any) -> str:
        """Tell how far it is."""
        progress("half")
        kept.append(progress)
        return "done"

    def late() -> None:
        kept[0]("too late")

    model = Model(asks(("c", "slow", {})), [late, *says("x")])
    events = await collect(SessionLoop(model, [slow]).run("hi"))
    updates = [e for e in events if e.type == "tool_execution_update"]
    assert [e.tool_call_id for e in updates] == ["c"]
    assert updates[0].partial_result == "half"


# -- the core's run over it ------------------------------------------------------------------------------------------


async def test_the_first_step_by_turn_ends_after_the_model_and_its_tools() -> None:
    world, model = World(), Model(batch("t1", "t2"), "x")
    run = SessionLoop(model, world.tools).start("hi")
    await run.step("turn")
    assert world.ran == ["t1", "t2"]
    assert len(model.contexts) == 1
    assert run.stop_reason is None
    await run.step("turn")
    assert len(model.contexts) == 2
    while await run.step("turn"):
        pass
    assert run.stop_reason == "completed"
    assert run.output == "x"
    assert await run.step() == []


async def test_steer_and_follow_up_of_the_run_reach_the_loop() -> None:
    world, model = World(), Model(batch("t1"), "x", "y")
    run = SessionLoop(model, world.tools).start("hi")
    run.follow_up("F")
    world.during = {"t1": lambda: run.steer("S")}
    await run
    assert [m["content"] for m in run.messages if m["role"] == "user"] == ["hi", "S", "F"]


async def test_cancel_gives_every_call_its_result_at_once() -> None:
    world = World()
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    world.during = {"t1": wait}
    run = SessionLoop(Model(batch("t1", "t2")), world.tools).start("hi")
    run.play()
    await asyncio.wait_for(started.wait(), 60)
    run.cancel("enough")
    answered_once(run.messages)
    assert run.stop_reason == "cancelled"


async def test_a_model_with_only_the_seed_s_interface_is_understood() -> None:
    class Seed:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        async def generate_with_tools(self, messages: Any, tools: Any) -> Any:
            self.asked.append([m["role"] for m in messages])
            if len(self.asked) == 1:
                return {"content": "", "tool_calls": [{"id": "c", "name": "t1", "arguments": {}}]}
            return {"content": "fin", "tool_calls": []}

    model = Seed()
    loop = SessionLoop(model, World().tools)
    assert short(await collect(loop.run("hi")))[-1] == "AE(4)"
    assert model.asked[1] == ["user", "assistant", "tool"]
    assert loop.messages[-1]["content"] == "fin"


async def test_tools_as_objects_with_a_name_and_run() -> None:
    class Plain:
        name = "plain"

        async def run(self, x: int) -> str:
            return f"got {x}"

    model = Model(asks(("c", "plain", {"x": 4})), "x")
    await collect(SessionLoop(model, [Plain()]).run("hi"))
    assert contents(model.contexts[1]) == {"c": "got 4"}
