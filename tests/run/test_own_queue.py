"""Messages sent to a session itself are delivered while it is nested in another loop, as when it runs alone."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from agentnb import ConversationEngine, Loop, LoopAgent, RunCancelled, SessionLoop, Snapshot, restore, tool
from agentnb.loops.session_loop import MessageQueue
from agentnb.testing import ScriptedLLM, call
from tests.loops.loop_agents import K
from tests.worlds import assert_folds


class World:
    """A session with a tool; a message is sent during its first call."""

    def __init__(self, *turns: Any, **options: Any) -> None:
        self.during: Callable[[], Any] = lambda: None
        self.ran: list[str] = []

        @tool(idempotent=True)
        async def work(n: str = "a") -> str:
            """Work."""
            self.ran.append(n)
            during, self.during = self.during, lambda: None
            await asyncio.to_thread(during)
            return "worked"

        self.queue = MessageQueue()
        self.llm = ScriptedLLM(turns or [[call("work", id="c1")], "heard", "and that"])
        self.session = SessionLoop(self.llm, [work], queue=self.queue, name="session", **options)

    def heard(self) -> list[str]:
        """Return the user messages of the last request."""
        return [m["content"] for m in self.llm.requests[-1].messages if m["role"] == "user"]


def as_a_tool(session: Loop) -> Loop:
    return SessionLoop(ScriptedLLM([[call("session", {"input": "go"}, id="h")], "fin"]), [session], name="boss")


def in_a_loop_agent(session: Loop) -> Loop:
    return LoopAgent("outer", [LoopAgent("inner", [session], 1), K("A")], 1)


def in_an_engine(session: Loop) -> Loop:
    return ConversationEngine(execute=session)


def alone(session: Loop) -> Loop:
    return session


@pytest.mark.parametrize("around", [alone, as_a_tool, in_a_loop_agent, in_an_engine])
async def test_a_message_is_delivered_in_the_run_in_which_it_was_sent(around: Callable[[Loop], Loop]) -> None:
    world = World()
    run = around(world.session).start("go")

    def say() -> None:
        world.session.steer("mind this")
        world.queue.add_followup("and then that")

    world.during = say
    await run
    assert world.heard()[-2:] == ["mind this", "and then that"]
    assert world.queue.dequeue_steering() == world.queue.dequeue_followup() == []
    assert_folds(run)


@pytest.mark.parametrize("around", [alone, as_a_tool])
async def test_steering_skips_calls_that_have_not_started(around: Callable[[Loop], Loop]) -> None:
    turn = [call("work", {"n": "a"}, id="a"), call("work", {"n": "b"}, id="b")]
    world = World(turn, "heard", steering_mode="skip_pending", tool_execution="sequential")
    world.during = lambda: world.session.steer("stop")
    await around(world.session).start("go")
    assert world.ran == ["a"]
    assert world.heard()[-1] == "stop"


async def test_an_undelivered_message_is_for_the_next_run_of_the_session_only() -> None:
    world = World([call("work", id="c1")], "two", "three", max_turns=1)
    other = ScriptedLLM(["said"] * 2)
    world.during = lambda: world.session.steer("late")
    run = LoopAgent("outer", [world.session, SessionLoop(other, name="other")], 2).start("go")
    await run
    assert all("late" not in str(request.messages) for request in other.requests)
    assert world.heard()[-1] == "late"
    assert len(world.llm.requests) == 2


async def test_an_undelivered_message_stays_in_the_queue_after_the_run_has_ended() -> None:
    world = World([call("work", id="c1")], max_turns=1)
    world.during = lambda: world.session.follow_up("later")
    await as_a_tool(world.session).start("go")
    assert [m.content for m in world.queue.dequeue_followup()] == ["later"]


async def test_a_message_to_the_run_is_not_delivered_to_the_session() -> None:
    world = World([call("work", id="c1")], max_turns=1)
    other = ScriptedLLM(["said"])
    run = LoopAgent("outer", [world.session, SessionLoop(other, name="other")], 1).start("go")
    world.during = lambda: run.steer("for whoever hears")
    await run
    assert "for whoever hears" in str(other.requests[0].messages)
    assert world.queue.dequeue_steering() == []


async def test_a_message_to_a_session_can_be_withdrawn() -> None:
    world = World()
    taken: list[Any] = []

    def change_one_s_mind() -> None:
        world.session.steer("never mind")
        assert world.queue.waiting()["steering"]
        taken.extend(world.queue.dequeue_steering())

    world.during = change_one_s_mind
    await as_a_tool(world.session).start("go")
    assert [m.content for m in taken] == ["never mind"]
    assert "never mind" not in str(world.llm.requests[-1].messages)


async def test_a_restored_nested_session_gets_the_message() -> None:
    world = World()
    run = as_a_tool(world.session).start("go")
    while not any(e.type == "call_proposed" or (e.type == "model_end" and e.path) for e in run.events):
        await run.step()
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    elsewhere = World("heard", "and that")
    elsewhere.during = lambda: elsewhere.session.steer("mind this")
    again = restore(snapshot, SessionLoop(ScriptedLLM(["fin"]), [elsewhere.session], name="boss"))
    assert await again == "fin"
    assert elsewhere.heard()[-1] == "mind this"
    run.cancel()


@pytest.mark.parametrize("how", ["restored", "forked"])
async def test_a_run_continued_from_a_recording_gets_the_message(how: str) -> None:
    run = World().session.start("go")
    await run
    made = next(event.seq for event in run.events if event.type == "model_end")
    elsewhere = World("heard", "and that")
    elsewhere.during = lambda: elsewhere.session.steer("mind this")
    if how == "restored":
        again = restore(Snapshot.from_json(run.at(made).snapshot().to_json()), elsewhere.session)
    else:
        again = run.fork(at=made, loop=elsewhere.session)
    await again
    assert elsewhere.heard() == ["go", "mind this"]


async def test_a_message_in_the_file_and_in_the_session_is_delivered_once() -> None:
    world = World([call("work", id="c1")], "one", "two", "three")
    run = world.session.start("go")

    def say_and_end() -> None:
        world.session.steer("once")
        run.cancel()

    world.during = say_and_end
    with pytest.raises(RunCancelled):
        await run
    queued = next(event.seq for event in run.events if event.type == "queued")
    await restore(Snapshot.from_json(run.at(queued).snapshot().to_json()), world.session)
    assert world.heard() == ["go", "once"]
    assert world.queue.dequeue_steering() == []


async def test_restoring_an_ended_run_does_not_queue_its_message_again() -> None:
    world = World(max_turns=1)
    world.during = lambda: world.session.steer("once")
    run = world.session.start("go")
    assert (await run, run.stop_reason) == ("", "max_turns")
    assert restore(Snapshot.from_json(run.snapshot().to_json()), world.session).state.over
    assert [message.content for message in world.queue.dequeue_steering()] == ["once"]


async def test_a_recorded_message_of_a_restored_run_is_delivered_once() -> None:
    world = World([call("work", id="c1")], "one", "two", "three")
    boss = as_a_tool(world.session)
    run = boss.start("go")

    def say_and_end() -> None:
        world.session.steer("once")
        run.cancel()

    world.during = say_and_end
    with pytest.raises(Exception, match="cancelled"):
        await run
    again = restore(run.snapshot(), boss)
    await again
    assert world.heard().count("once") == 1
    assert world.queue.dequeue_steering() == []


async def test_many_threads_can_send_messages_while_runs_start_and_end() -> None:
    world = World(*["said"] * 400)
    stop, said = threading.Event(), 0

    def talk() -> None:
        nonlocal said
        while not stop.is_set() and said < 200:
            said += 1
            world.session.follow_up(f"n{said}.")
            stop.wait(0.0005)

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    run = LoopAgent("outer", [world.session, K("A")], 30).start("go")
    await asyncio.wait_for(run, 60)
    stop.set()
    await asyncio.to_thread(thread.join, 5)
    heard = [m.content for m in run.messages if m.role == "user" and m.content.startswith("n")]
    left = [m.content for m in world.queue.dequeue_followup()]
    assert heard + left == [f"n{n}." for n in range(1, said + 1)]


@pytest.mark.parametrize("around", [alone, as_a_tool, in_a_loop_agent, in_an_engine])
async def test_a_loop_keeps_no_unreferenced_run_alive(around: Callable[[Loop], Loop]) -> None:
    world = World()
    run = around(world.session).start("go")
    while not world.ran:
        assert await run.step()
    kept = weakref.ref(run)
    del run
    gc.collect()
    assert kept() is None


async def test_steering_is_delivered_to_the_referenced_run() -> None:
    world = World()
    run = world.session.start("go")
    world.session.start("and this is dropped")
    gc.collect()
    world.session.steer("mind this")
    assert [message.content for _, message in run.queued] == ["mind this"]


async def test_undelivered_messages_of_a_garbage_collected_run_are_kept() -> None:
    world = World()
    run = world.session.start("go")
    world.session.steer("mind this")
    run.cancel()
    del run
    gc.collect()
    assert [message.content for message in world.queue.waiting()["steering"]] == ["mind this"]


async def test_a_run_referenced_only_by_its_driver_gets_messages_to_its_loop() -> None:
    world = World()
    gc.collect()
    world.during = lambda: (gc.collect(), world.session.steer("mind this"))
    async for _ in world.session.start("go"):
        pass
    assert world.heard()[-1] == "mind this"
