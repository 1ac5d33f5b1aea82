"""An answer that is interrupted by a cancellation or a failure is kept, and is not sent to a model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentnb import (
    Agent,
    ConversationEngine,
    ExecutionLoop,
    Loop,
    RunCancelled,
    RunFailed,
    SessionLoop,
    Snapshot,
    Store,
    analysis,
    replay,
    restore,
    tool,
)
from agentnb.core.evolve import fold
from agentnb.errors import LimitReached
from agentnb.loops.want import ask
from agentnb.testing import ScriptedLLM, call, delay, text
from tests.worlds import provider_faults

DESIGNS = ["session", "agent", "execution", "generator", "engine"]
PARTIAL = [*text("Let me delete"), call("look", {"path": "a"}, id="c1")]


@tool
def look(path: str) -> str:
    return "seen"


def make(design: str, turns: list[Any]) -> Any:
    """A loop of this design."""
    llm = ScriptedLLM(turns)
    if design == "session":
        return SessionLoop(llm, [look])
    if design == "agent":
        return Agent(llm, [look])
    if design == "execution":
        return ExecutionLoop(llm, native=True)
    if design == "engine":
        return ConversationEngine(llm=llm)

    @Loop.from_generator(llm=llm, tools=[look])
    def asks(question: str) -> Any:
        return (yield ask(question)).content

    return asks


async def said(run: Any, words: str) -> None:
    """Play the run until its model has sent this text."""
    heard: list[str] = []
    event = asyncio.Event()

    def watch(news: Any) -> None:
        if news.type == "text_delta":
            heard.append(news.content)
        if words in "".join(heard):
            event.set()

    run.watch(watch)
    run.play()
    await asyncio.wait_for(event.wait(), 5)


async def failed(design: str, turns: list[Any]) -> tuple[Any, Any]:
    """A run whose model has failed, and its loop."""
    loop = make(design, turns)
    run = loop.start("go")
    with pytest.raises(RunFailed):
        await run
    return run, loop


def ending(run: Any) -> list[tuple[Any, ...]]:
    """Return the interrupted answer and the messages after it."""
    messages = list(run.messages)
    at = next(at for at, message in enumerate(messages) if message.stop_reason is not None)
    answer, *results = messages[at:]
    told = [(result.role, result.tool_call_id, result.is_error) for result in results]
    return [(answer.role, answer.content, answer.stop_reason, answer.error_message), *told]


@pytest.mark.parametrize("design", DESIGNS)
async def test_the_partial_answer_of_a_failed_model_ends_the_history(design: str) -> None:
    run, _ = await failed(design, [[*text("Let me delete"), RuntimeError("down")]])
    assert ending(run) == [("assistant", "Let me delete", "error", "down")]


@pytest.mark.parametrize("design", DESIGNS)
async def test_the_partial_answer_of_a_cancelled_run_ends_the_history(design: str) -> None:
    run = make(design, [[*text("Let me delete"), delay(60)]]).start("go")
    await said(run, "Let me delete")
    run.cancel("stop")
    assert ending(run) == [("assistant", "Let me delete", "aborted", "stop")]
    with pytest.raises(RunCancelled):
        await run


async def test_the_partial_answer_of_a_run_at_its_limit_ends_the_history() -> None:
    run = SessionLoop(ScriptedLLM([[*text("Let me delete"), delay(60)]])).start("go", limits={"seconds": 0.05})
    with pytest.raises(LimitReached):
        await run
    assert run.messages[-1].content == "Let me delete"
    assert run.messages[-1].stop_reason == "aborted"


@pytest.mark.parametrize("design", ["session", "agent", "generator"])
async def test_each_call_of_a_failed_answer_has_a_result(design: str) -> None:
    run, _ = await failed(design, [[*PARTIAL, RuntimeError("down")]])
    assert ending(run) == [("assistant", "Let me delete", "error", "down"), ("tool", "c1", True)]
    assert provider_faults(run.messages) == []


@pytest.mark.parametrize("design", ["session", "agent", "generator"])
async def test_each_call_of_a_cancelled_answer_has_a_result(design: str) -> None:
    run = make(design, [[*PARTIAL, {"type": "text_delta", "content": "!"}, delay(60)]]).start("go")
    await said(run, "!")
    run.cancel("stop")
    assert ending(run) == [("assistant", "Let me delete!", "aborted", "stop"), ("tool", "c1", True)]
    assert provider_faults(run.messages) == []


async def test_a_partial_call_is_kept_as_received() -> None:
    half = {"type": "tool_call_delta", "index": 0, "id": "c1", "name": "look", "arguments": '{"pa'}
    run, _ = await failed("agent", [[half, RuntimeError("down")]])
    (made,) = run.messages[-2].tool_calls
    assert (made.id, made.name, made.malformed) == ("c1", "look", '{"pa')
    assert provider_faults(run.messages) == []


async def test_calls_that_ended_before_the_model_failed_keep_their_results() -> None:
    llm = ScriptedLLM([[call("look", {"path": "a"}), delay(0.02), *text("and"), RuntimeError("down")]])
    run = ExecutionLoop(llm, [look], native=True).start("go")
    with pytest.raises(RunFailed):
        await run
    answer, result = run.messages[-2:]
    assert (answer.content, answer.stop_reason) == ("and", "error")
    assert (result.content, result.tool_call_id) == ("seen", answer.tool_calls[0].id)
    run.cancel("stop")
    assert run.messages[-2:] == [answer, result]


@pytest.mark.parametrize("design", DESIGNS)
async def test_a_repeated_request_does_not_contain_the_failed_answer(design: str) -> None:
    answer = '{"tasks": [{"id": "a"}]}' if design == "engine" else "fine"
    run, loop = await failed(
        design, [[*PARTIAL[: -1 if design in ("execution", "engine") else None], RuntimeError("down")], answer]
    )
    assert run.resume()
    await run
    first, second = (request.messages for request in loop.llm.requests)
    assert second == first
    assert all(message.stop_reason is None for message in run.messages)


@pytest.mark.parametrize("design", ["session", "agent", "generator"])
async def test_the_request_of_a_restored_run_does_not_contain_the_cancelled_answer(design: str, tmp_path: Path) -> None:
    run = make(design, [[*PARTIAL, {"type": "text_delta", "content": "!"}, delay(60)]]).start("go")
    await said(run, "!")
    run.cancel("stop")
    loop = make(design, ["fine"])
    again = restore(run.snapshot().save(tmp_path / "s.json"), loop)
    assert await again == "fine"
    assert [message["content"] for message in loop.llm.requests[0].messages] == ["go"]
    assert [message.content for message in again.messages] == ["go", "fine"]


@pytest.mark.parametrize("how", ["cancelled", "failed"])
@pytest.mark.parametrize("design", ["session", "agent", "generator"])
async def test_a_snapshot_a_store_and_a_replay_have_the_same_messages(design: str, how: str, tmp_path: Path) -> None:
    end = delay(60) if how == "cancelled" else RuntimeError("down")
    store = Store(tmp_path / "runs.db")
    run = make(design, [[*PARTIAL, {"type": "text_delta", "content": "!"}, end]]).start("go", store=store, name="x")
    await said(run, "!")
    if how == "cancelled":
        run.cancel("stop")
    else:
        with pytest.raises(RunFailed):
            await run
    told = list(run.messages)
    assert told[1].content == "Let me delete!"
    assert fold(run.events).conversation == told
    assert Snapshot.load(run.snapshot().save(tmp_path / "s.json")).state.conversation == told
    assert store.load("x").state.conversation == told
    assert replay(run, make(design, [])).to(len(run.events) - 1).messages == told
    store.close()


async def test_a_cancelled_run_without_a_recorded_end_is_restored_before_the_cancellation() -> None:
    run = SessionLoop(ScriptedLLM([[*text("Let me delete"), delay(60)]])).start("go")
    await said(run, "Let me delete")
    run.cancel("stop")
    for position in range(len(run.events) - 3, len(run.events)):
        cut = Snapshot.of(run.events[: position + 1])
        assert await restore(cut, SessionLoop(ScriptedLLM(["fine"]))) == "fine"


async def test_the_request_of_a_fork_does_not_contain_the_interrupted_answer() -> None:
    run = SessionLoop(ScriptedLLM([[*text("Let me delete"), delay(60)]])).start("go")
    await said(run, "Let me delete")
    run.cancel("stop")
    fork = run.fork(loop=SessionLoop(ScriptedLLM(["fine"])))
    assert await fork == "fine"
    assert [message.content for message in fork.messages] == ["go", "fine"]


async def test_the_conversation_of_an_outer_loop_has_the_interrupted_answer_of_a_nested_one() -> None:
    inner = SessionLoop(ScriptedLLM([[*text("Let me delete"), delay(60)]]), name="inner")
    run = ConversationEngine(execute=inner).start("go")
    await said(run, "Let me delete")
    run.cancel("stop")
    assert run.messages[-1].content == "Let me delete"
    assert run.messages[-1].stop_reason == "aborted"
    assert run.state.failure is None


@pytest.mark.parametrize("design", ["session", "agent", "execution"])
async def test_a_run_that_continues_given_messages_does_not_send_the_interrupted_answer(design: str) -> None:
    run, _ = await failed("agent", [[*PARTIAL, RuntimeError("down")]])
    given = [*run.messages, {"role": "user", "content": "more"}]
    loop = make(design, ["fine"])
    assert await loop.start(given) == "fine"
    told = [message["content"] for message in loop.llm.requests[0].messages if message["role"] != "system"]
    assert told == ["go", "more"]


# -- a session -----------------------------------------------------------------------------------------------------


async def story(loop: Any, stream: Any) -> list[Any]:
    """Return the messages of the stream of a session, after a check that `result()` and `messages` agree."""
    ended = [event.message async for event in stream if event.type == "message_end"]
    assert await stream.result() == ended
    assert loop.messages == ended
    assert provider_faults(ended) == []
    return ended


@pytest.mark.parametrize("position", range(1, 14))
async def test_a_session_aborted_at_any_event_has_consistent_messages_and_events(position: int) -> None:
    turn = [*text("one two"), call("look", {"path": "a"}, id="c1")]
    loop = SessionLoop(ScriptedLLM([turn, "done"]), [look])
    stream = loop.run("hi")
    ended = []
    for _ in range(position):
        event = await anext(stream)
        ended += [event.message] if event.type == "message_end" else []
    loop.abort("enough")
    ended += [event.message async for event in stream if event.type == "message_end"]
    assert await stream.result() == ended
    assert loop.messages == ended
    assert (ended[-1].stop_reason or ended[-2].stop_reason) == "aborted"
    assert provider_faults(ended) == []


async def test_a_session_with_a_failed_model_has_consistent_messages_and_events() -> None:
    loop = SessionLoop(ScriptedLLM([[*PARTIAL, RuntimeError("down")]]), [look])
    ended = await story(loop, loop.run("hi"))
    assert [(m.role, m.stop_reason) for m in ended] == [("user", None), ("assistant", "error"), ("tool", None)]


async def test_a_session_with_a_model_that_failed_at_once_has_consistent_messages_and_events() -> None:
    loop = SessionLoop(ScriptedLLM([RuntimeError("down")]))
    ended = await story(loop, loop.run("hi"))
    assert [(m.content, m.stop_reason, m.error_message) for m in ended[1:]] == [("", "error", "down")]


async def test_a_session_with_a_failed_nested_loop_has_consistent_messages_and_events() -> None:
    inner = Agent(ScriptedLLM([RuntimeError("down")]), name="inner")
    loop = SessionLoop(ScriptedLLM([[call("inner", {"input": "x"}, id="c1")]]), [inner])
    ended = await story(loop, loop.run("hi"))
    assert [m.role for m in ended] == ["user", "assistant", "tool", "assistant"]
    assert ended[-1].error_message == "down"


@pytest.mark.parametrize("end", ["abort", "fail"])
async def test_the_request_of_a_continued_session_does_not_contain_the_interrupted_answer(end: str) -> None:
    loop = SessionLoop(
        ScriptedLLM([[*PARTIAL, {"type": "text_delta", "content": "!"}, RuntimeError("down")], "fine"]), [look]
    )
    async for event in loop.run("hi"):
        if end == "abort" and event.delta == "!":
            loop.abort()
    async for _ in loop.continue_():
        pass
    assert [message["content"] for message in loop.llm.requests[1].messages] == ["hi"]


# -- tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_the_table_of_messages_has_the_interrupted_answer(how: str) -> None:
    end = delay(60) if how == "cancelled" else RuntimeError("down")
    run = make("agent", [[*PARTIAL, {"type": "text_delta", "content": "!"}, end]]).start("go")
    await said(run, "!")
    if how == "cancelled":
        run.cancel("stop")
    else:
        with pytest.raises(RunFailed):
            await run
    table = analysis.messages(run)
    assert list(table["role"]) == [message.role for message in run.messages]
    assert list(table["content"]) == [message.content for message in run.messages]
    assert table["stop_reason"][1] == ("aborted" if how == "cancelled" else "error")


async def test_the_table_of_messages_says_which_answers_were_cut_off() -> None:
    run = Agent(ScriptedLLM([["half", {"type": "stop", "reason": "length"}]])).start("go")
    await run
    assert analysis.messages(run)["stop_reason"][1] == "length"
