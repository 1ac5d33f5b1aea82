"""An answer that was cut off is not complete: by its length, by a content filter, or as a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentnb import Agent, ConversationEngine, ExecutionLoop, Loop, RunFailed, SessionLoop, replay, restore, tool
from agentnb.loops.want import ask
from agentnb.testing import ScriptedLLM, call, text
from tests.worlds import until

REASONS = ["length", "content_filter", "refusal"]
DESIGNS = ["session", "agent", "execution", "generator"]


def cut(reason: str, *chunks: Any) -> list[Any]:
    """A turn that ends for this reason."""
    return [*chunks, {"type": "stop", "reason": reason}]


def make(design: str, turns: list[Any], tools: list[Any] | None = None) -> Any:
    """A loop of this design; a turn of text is its final answer."""
    llm, tools = ScriptedLLM(turns), tools or []
    if design == "session":
        return SessionLoop(llm, tools)
    if design == "agent":
        return Agent(llm, tools)
    if design == "execution":
        return ExecutionLoop(llm, tools, native=True)

    @Loop.from_generator(llm=llm, tools=tools)
    def asks(question: str) -> Any:
        reply = yield ask(question)
        while reply.tool_calls:
            reply = yield ask()
        return reply.content

    return asks


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("design", DESIGNS)
async def test_a_cut_off_final_answer_is_the_output_and_the_stop_reason_says_why(design: str, reason: str) -> None:
    run = make(design, [cut(reason, *text("half of it"))]).start("go")
    assert await run == "half of it"
    assert run.stop_reason == reason
    assert replay(run, make(design, [])).to(len(run.events) - 1).stop_reason == reason


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("design", DESIGNS)
async def test_the_message_of_a_cut_off_answer_says_why(design: str, reason: str) -> None:
    run = make(design, [cut(reason, *text("half of it"))]).start("go")
    await run
    assert run.messages[-1].stop_reason == reason


@pytest.mark.parametrize("reason", ["stop", "a word of the server's own"])
@pytest.mark.parametrize("design", DESIGNS)
async def test_an_answer_with_another_stop_reason_is_complete(design: str, reason: str) -> None:
    run = make(design, [cut(reason, *text("all of it"))]).start("go")
    await run
    assert run.stop_reason == "completed"


@pytest.mark.parametrize("chunks", [[], [{"type": "reasoning_delta", "content": "hmm"}], ["\n"]])
@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("design", DESIGNS)
async def test_a_cut_off_answer_without_text_and_calls_is_a_failure_of_the_model(
    design: str, reason: str, chunks: list[Any]
) -> None:
    run = make(design, [cut(reason, *chunks), "again"]).start("go")
    with pytest.raises(RunFailed, match=reason):
        await run
    assert run.stop_reason is None
    assert run.events[-1].type == "model_error"
    assert run.resume()
    assert await run == "again"
    assert run.stop_reason == "completed"


async def test_the_reasoning_of_a_cut_off_answer_is_in_the_failure() -> None:
    run = SessionLoop(ScriptedLLM([cut("length", {"type": "reasoning_delta", "content": "hmm"})])).start("go")
    with pytest.raises(RunFailed):
        await run
    assert run.messages[-1].reasoning == [{"text": "hmm"}]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("design", ["session", "agent", "generator"])
async def test_calls_of_a_cut_off_answer_fail_without_running_and_the_loop_continues(design: str, reason: str) -> None:
    ran: list[str] = []

    @tool
    def look(path: str) -> str:
        ran.append(path)
        return "seen"

    calls = [call("look", {"path": "a"}, id="c1"), call("look", {"path": "b"}, id="c2")]
    loop = make(design, [cut(reason, *text("let me"), *calls), "done"], [look])
    run = loop.start("go")
    assert await run == "done"
    assert run.stop_reason == "completed"
    assert ran == []
    told = {message["tool_call_id"]: message["content"] for message in loop.llm.requests[1].messages[2:]}
    assert list(told) == ["c1", "c2"]
    assert all(words.startswith("Not executed: the answer that made this call") for words in told.values())
    assert [end.outcome for end in run.events if end.type == "call_end" and end.call_id in told] == ["skipped"] * 2


async def test_no_approval_is_requested_for_calls_of_a_cut_off_answer() -> None:
    @tool(approve=True)
    def delete(path: str) -> str:
        return "gone"

    asked: list[str] = []
    llm = ScriptedLLM([cut("length", call("delete", {"path": "a"})), "done"])
    loop = SessionLoop(llm, [delete], before_tool_call=lambda context: asked.append(context.tool_call.name))
    await loop.start("go", approve=lambda call: asked.append(call.name))
    assert asked == []


async def test_a_call_of_a_cut_off_answer_does_not_run_in_a_restored_run() -> None:
    ran: list[str] = []

    @tool
    def look(path: str) -> str:
        ran.append(path)
        return "seen"

    run = Agent(ScriptedLLM([cut("length", call("look", {"path": "a"}))]), [look]).start("go")
    while not run.state.open:
        await run.step()
    assert await restore(run.snapshot(), Agent(ScriptedLLM(["done"]), [look])) == "done"
    assert ran == []


@pytest.mark.parametrize("reason", REASONS)
async def test_the_last_event_of_an_agent_says_why_the_answer_was_cut_off(reason: str) -> None:
    events = [event async for event in Agent(ScriptedLLM([cut(reason, *text("half"))])).execute("go")]
    assert events[-1].type == "agent_finish"
    assert (events[-1].content, events[-1].metadata) == ("half", {"stop_reason": reason})


@pytest.mark.parametrize("reason", REASONS)
async def test_the_last_message_of_a_session_stream_says_why_the_answer_was_cut_off(reason: str) -> None:
    events = [event async for event in SessionLoop(ScriptedLLM([cut(reason, *text("half"))])).run("go")]
    assert events[-1].type == "agent_end"
    assert events[-1].messages[-1].stop_reason == reason


@pytest.mark.parametrize("reason", REASONS)
async def test_the_last_event_of_an_execution_loop_says_why_its_output_was_cut_off(reason: str) -> None:
    solution = '{"calls": [], "output": "half"}'
    events = [event async for event in ExecutionLoop(ScriptedLLM([cut(reason, solution)])).run("go")]
    assert (events[-1].type, events[-1].reason, events[-1].output) == ("loop_completed", reason, "half")


async def test_a_solution_cut_off_by_its_length_is_requested_again() -> None:
    loop = ExecutionLoop(ScriptedLLM([cut("length", '{"calls": [], "outp'), '{"output": "all"}']))
    run = loop.start("go")
    assert await run == "all"
    assert run.stop_reason == "completed"
    assert "cut off (length)" in str(loop.llm.requests[1].messages)


@pytest.mark.parametrize("reason", ["content_filter", "refusal"])
async def test_a_refused_solution_is_not_requested_again(reason: str) -> None:
    run = ExecutionLoop(ScriptedLLM([cut(reason, "I will not.")])).start("go")
    assert await run == "I will not."
    assert run.stop_reason == reason


async def test_the_error_of_an_engine_says_that_its_plan_was_cut_off() -> None:
    run = ConversationEngine(llm=ScriptedLLM([cut("length", '{"tasks": [{"id": "a"')])).start("go")
    with pytest.raises(RunFailed, match=r"cut off \(length\)"):
        await run


@pytest.mark.parametrize("name", ["stop_reason", "finish_reason"])
@pytest.mark.parametrize(("theirs", "reason"), [("length", "length"), ("max_tokens", "length"), ("refusal", "refusal")])
async def test_an_answer_without_streaming_may_have_the_reason_for_the_cut(name: str, theirs: str, reason: str) -> None:
    class Whole:
        async def complete(self, messages: Any) -> dict[str, Any]:
            return {"content": "half", name: theirs}

    run = Agent(Whole()).start("go")
    assert await run == "half"
    assert run.stop_reason == reason


async def test_the_result_of_a_nested_loop_says_that_its_answer_was_cut_off() -> None:
    inner = Agent(ScriptedLLM([cut("length", *text("half"))]), name="inner")
    run = Agent(ScriptedLLM([[call("inner", {"input": "x"})], "done"]), [inner]).start("go")
    await run
    (end,) = (event for event in run.events if event.type == "call_end")
    assert (end.result, end.details) == ("half", {"stop_reason": "length"})


async def test_a_follow_up_is_answered_after_a_cut_off_answer() -> None:
    run = SessionLoop(ScriptedLLM([cut("length", *text("half")), "whole"])).start("go")
    run.follow_up("Go on.")
    assert await run == "whole"
    assert run.stop_reason == "completed"


# -- calls that begin while the answer still comes -------------------------------------------------------------------


class Waiting:
    """Tools of an ExecutionLoop whose model continues its answer after they have started, and is then cut off."""

    def __init__(self, reason: str, *parts: Any) -> None:
        self.ran: list[str] = []
        self.ended: list[str] = []
        self.begun = asyncio.Event()
        self.reason = reason
        self.parts = parts
        self.requests = 0

    async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
        self.requests += 1
        if self.requests > 1:
            yield '{"output": "end"}'
            return
        for part in self.parts:
            if isinstance(part, str):
                yield part
            else:
                await (part or self.begun.wait)()
        yield {"type": "stop", "reason": self.reason}

    def tools(self) -> list[Any]:
        @tool
        async def wait(n: int) -> None:
            self.ran.append(f"wait {n}")
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.append(f"wait {n}")

        @tool
        def quick() -> str:
            self.ran.append("quick")
            return "there"

        @tool(approve=True)
        def careful() -> str:
            self.ran.append("careful")
            return "done"

        return [wait, quick, careful]


def ends(run: Any) -> dict[str, tuple[str, Any]]:
    return {end.name: (end.outcome, end.result) for end in run.events if end.type == "call_end"}


@pytest.mark.parametrize("pace", ["await", "pull", "step"])
@pytest.mark.parametrize("reason", REASONS)
async def test_running_calls_of_a_cut_off_answer_are_cancelled_and_results_are_kept(reason: str, pace: str) -> None:
    async def quick_is_done() -> None:
        await llm.begun.wait()
        await until(lambda: "quick" in ends(run) and bool(run.pending))

    calls = '{"calls": [{"_tool": "quick"}, {"_tool": "careful"}, {"_tool": "wait", "n": 1}'
    llm = Waiting(reason, calls, quick_is_done)
    run = ExecutionLoop(llm, llm.tools()).start("go")
    if pace == "pull":
        async for _ in run:
            pass
    while pace == "step" and not run.state.over:
        await run.step("event")
    assert await asyncio.wait_for(run, 10) == "end"
    assert sorted(llm.ran) == ["quick", "wait 1"]
    assert llm.ended == ["wait 1"]
    ended = ends(run)
    assert ended["quick"] == ("returned", "there")
    assert ended["wait"][0] == "aborted"
    assert ended["wait"][1].startswith("Broken off: the answer that made this call")
    assert ended["careful"][0] == "skipped"
    assert run.pending == []


async def test_a_nested_loop_that_performs_a_call_of_a_cut_off_answer_is_cancelled() -> None:
    llm = Waiting("length", '{"calls": [{"_tool": "inner", "input": "x"}', None)
    inner = SessionLoop(ScriptedLLM([[call("wait", {"n": 2})], "late"]), llm.tools(), name="inner")
    run = ExecutionLoop(llm, [inner]).start("go")
    assert await asyncio.wait_for(run, 10) == "end"
    assert llm.ended == ["wait 2"]
    assert [(end.path, end.reason) for end in run.events if end.type == "run_end"] == [
        ("inner", "cancelled"),
        ("", "completed"),
    ]
    assert ends(run)["inner"][0] == "aborted"


async def test_a_call_approved_during_the_answer_does_not_start_if_it_is_cut_off() -> None:
    async def decide() -> None:
        await until(lambda: bool(run.pending))
        run.pause()
        run.approve(run.pending[0])

    llm = Waiting("length", '{"calls": [{"_tool": "careful"}', decide)
    run = ExecutionLoop(llm, llm.tools()).start("go")
    run.play()
    await until(lambda: run.state.paused)
    run.resume()
    assert await asyncio.wait_for(run, 10) == "end"
    assert llm.ran == []
    assert ends(run)["careful"][0] == "skipped"


async def test_a_call_that_depends_on_a_call_of_a_cut_off_answer_fails() -> None:
    calls = '{"calls": [{"_tool": "wait", "n": 1, "_outputPath": "†state.a"}, {"_tool": "wait", "n": "†state.a"}'
    llm = Waiting("length", calls, None)
    run = ExecutionLoop(llm, llm.tools()).start("go")
    assert await asyncio.wait_for(run, 10) == "end"
    assert [end.outcome for end in run.events if end.type == "call_end"] == ["aborted", "skipped"]


async def test_a_restored_run_does_not_restart_calls_of_a_cut_off_answer() -> None:
    llm = Waiting("length", '{"calls": [{"_tool": "wait", "n": 1}', None)
    run = ExecutionLoop(llm, llm.tools()).start("go")
    while not any(event.type == "model_end" for event in run.events):
        await run.step("event")
    taken = run.snapshot()
    run.cancel()
    again = restore(taken, ExecutionLoop(llm, llm.tools()))
    assert await asyncio.wait_for(again, 10) == "end"
    assert llm.ran == ["wait 1"]
    assert ends(again)["wait"][0] == "aborted"
