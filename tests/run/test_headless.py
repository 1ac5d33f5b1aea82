"""Who decides about a call that awaits approval if no person is present."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from typing import Any

import pytest

import agentnb
from agentnb.run import headless
from agentnb.testing import ScriptedLLM, call
from tests.kernels import REPOSITORY
from tests.worlds import collect, until

ran: list[str] = []


@agentnb.tool(approve=True)
def write(path: str) -> str:
    """Write a file."""
    ran.append(path)
    return f"wrote {path}"


def start(*turns: Any, **options: Any) -> agentnb.Run:
    turn = [call("write", {"path": "a.txt"}, id="w")]
    return agentnb.SessionLoop(ScriptedLLM([*(turns or (turn,)), "done"]), [write]).start("go", **options)


def result_of(run: agentnb.Run) -> str:
    return next(str(event.result) for event in run.events if event.type == "call_end")  # type: ignore[attr-defined]


async def told(run: agentnb.Run, type: str) -> None:
    """Wait until the background run has an event of this type."""
    heard, loop = asyncio.Event(), asyncio.get_running_loop()
    stop = run.watch(lambda event: event.type == type and loop.call_soon_threadsafe(heard.set))
    run.play()
    await heard.wait()
    stop()


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    monkeypatch.setattr(headless, "_declared", None)
    monkeypatch.setattr(headless, "_has_page", False)
    monkeypatch.setattr(headless, "PATIENCE", 0.05)


async def test_without_a_policy_the_call_is_rejected_with_the_reason_and_how_to_declare_one() -> None:
    run = start()
    assert await run == "done"
    said = result_of(run)
    assert "Nobody is there to decide: this is a script" in said
    assert 'agentnb.headless("approve")' in said
    assert "AGENTNB_HEADLESS=approve" in said
    decision = next(event for event in run.events if event.type == "approval_decision")
    assert (decision.decision, decision.by) == ("reject", "headless")  # type: ignore[attr-defined]
    assert ran == []


async def test_the_rejection_names_the_failure_of_the_policy_of_the_run_first() -> None:
    run = start(approve=lambda proposed: proposed["path"].startswith("a"))
    await run
    said = result_of(run)
    assert said.startswith("Rejected: The policy failed: TypeError: ")
    assert ". Nobody is there to decide: this is a script" in said


@pytest.mark.parametrize("wait", ["await", "result", "async for", "second consumer", "played and awaited"])
async def test_the_run_ends_for_every_way_to_wait_for_it(wait: str) -> None:
    run = start()
    if wait == "await":
        await run
    elif wait == "result":
        await asyncio.to_thread(run.result, 10)
    elif wait == "async for":
        assert [event async for event in run][-1].type == "run_end"
    elif wait == "second consumer":
        run.play()
        assert [event async for event in run][-1].type == "run_end"
    else:
        await told(run, "approval_request")
        await run
    assert "Nobody is there" in result_of(run)


async def test_the_run_ends_for_the_stream_of_a_design() -> None:
    turn = [call("write", {"path": "a.txt"}, id="w")]
    agent = agentnb.Agent(ScriptedLLM([turn, "done"]), [write])
    assert await agent.run("go") == "done"
    assert ran == []


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ("approve", "wrote a.txt"),
        (True, "wrote a.txt"),
        (lambda call: call.arguments["path"].endswith(".txt"), "wrote a.txt"),
        (lambda call: {"arguments": {"path": "b.txt"}}, "wrote b.txt"),
        ([{"tool": "wri*", "decision": "approve"}], "wrote a.txt"),
        ([{"tool": "read", "decision": "approve"}], "No rule of the policy matches this call."),
        ("reject", "the policy declared for that says so"),
        (lambda call: None, "The policy leaves it to you."),
        (lambda call: 1 / 0, "The policy failed: ZeroDivisionError"),
        (lambda call: {"arguments": {"depth": 1}}, "The policy failed"),
    ],
)
async def test_a_declared_policy_decides(policy: Any, outcome: str) -> None:
    agentnb.headless(policy, after=0)
    run = start()
    assert await run == "done"
    assert outcome in result_of(run)


async def test_an_async_policy_decides_and_is_cancelled_with_the_run() -> None:
    asked, forever = asyncio.Event(), asyncio.Event()

    async def policy(call: Any) -> bool:
        asked.set()
        try:
            return await asyncio.wait_for(forever.wait(), 0.05 if call.arguments["path"] == "a.txt" else None) or True
        except TimeoutError:
            return True

    agentnb.headless(policy, after=0)
    run = start()
    assert await run == "done"
    assert result_of(run) == "wrote a.txt"
    asked.clear()
    run = start([call("write", {"path": "never"}, id="w")])
    waiting = asyncio.ensure_future(asyncio.wait_for(_output(run), 60))
    await asked.wait()
    run.cancel("enough")
    with pytest.raises(agentnb.RunCancelled):
        await waiting


async def _output(run: agentnb.Run) -> Any:
    return await run


async def test_an_environment_variable_declares_the_policy_and_an_unknown_value_rejects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headless, "DECLARED_PATIENCE", 0.05)
    monkeypatch.setenv("AGENTNB_HEADLESS", "approve")
    await (run := start())
    assert result_of(run) == "wrote a.txt"
    monkeypatch.setenv("AGENTNB_HEADLESS", "perhaps")
    await (run := start())
    assert "Nobody is there" in result_of(run)


async def test_code_that_decides_takes_precedence_over_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    agentnb.headless("reject", after=5)
    run = start()
    await told(run, "approval_request")
    waiting = asyncio.ensure_future(_output(run))
    await asyncio.sleep(0)
    run.approve("w")
    assert await waiting == "done"
    agentnb.headless("reject", after=0)
    run = start()
    async for event in run:
        if event.type == "approval_request":
            run.approve("w")
    assert ran == ["a.txt", "a.txt"]


async def test_a_question_of_a_stepped_run_is_left_to_the_code_that_steps() -> None:
    agentnb.headless("reject", after=0)
    run = start()
    while await run.step():
        pass
    await asyncio.sleep(0.1)
    assert [waiting.id for waiting in run.pending] == ["w"]
    assert await run.step() == []
    run.approve("w")
    assert await run == "done"


async def test_repeated_steps_that_meet_the_same_question_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentnb.run.headless.STEPPED", 0.1)
    run = start()
    while not run.state.over:  # the code that should decide does not exist
        await run.step("turn")
        await asyncio.sleep(0.01)
    assert "Nobody is there" in result_of(run)


PAUSES = {
    "breakpoint": ({"breakpoints": ["model_end"]}, "breakpoint at model_end"),
    "breakpoint at the question": ({"breakpoints": ["approval_request"]}, "breakpoint at approval_request"),
}


@pytest.mark.parametrize("wait", ["await", "result", "async for"])
@pytest.mark.parametrize("pause", list(PAUSES))
async def test_a_pause_without_a_person_cancels_the_run_with_the_reason(pause: str, wait: str) -> None:
    options, words = PAUSES[pause]
    run = start(**options)
    words = f"{words}.*no person is present to resume it: this is a script.*run.resume"
    if wait == "async for":
        assert [event async for event in run][-1].type == "run_end"
    else:
        with pytest.raises(agentnb.RunCancelled, match=words):
            await (run if wait == "await" else asyncio.to_thread(run.result, 10))
    assert re.search(words, str(run.state.cancelled))
    assert ran == []


async def test_a_paused_run_that_is_stepped_is_not_cancelled() -> None:
    agentnb.headless(attended=False, after=0.3)
    turns = [[call("write", {"path": f"{n}.txt"}, id=f"w{n}")] for n in range(3)]
    run = start(*turns, approve=True, breakpoints=["model_start"])
    waiting = asyncio.create_task(_output(run))
    await until(lambda: run.state.paused)
    while not run.state.over:  # in steps of which all together take longer than a pause may
        await asyncio.sleep(0.05)
        await run.step("event")
    assert await waiting == "done"


@pytest.mark.parametrize("wait", ["await", "async for"])
async def test_a_pause_by_code_lasts_until_code_resumes_the_run(wait: str) -> None:
    run = start()
    stop = run.watch(lambda event: event.type == "model_start" and run.pause("looking"))

    async def await_it() -> None:
        await run

    waiting = asyncio.create_task(await_it() if wait == "await" else collect(run))
    await until(lambda: run.state.paused)
    await asyncio.sleep(0.15)  # three times the patience of a question
    assert run.paused_for == "looking"
    stop()
    agentnb.headless("approve", after=0.05)
    assert run.resume()
    await waiting
    assert run.output == "done"


@pytest.mark.parametrize("reason", ["step", "breakpoint at noon"])
async def test_a_pause_by_code_with_a_misleading_reason_lasts_until_code_resumes_the_run(reason: str) -> None:
    agentnb.headless("approve", after=0)
    run = start()
    stop = run.watch(lambda event: event.type == "model_start" and run.pause(reason))
    waiting = asyncio.create_task(_output(run))
    await until(lambda: run.state.paused)
    await asyncio.sleep(0.05)
    assert run.paused_for == reason
    stop()
    assert run.resume()
    assert await waiting == "done"


async def test_a_pause_is_left_to_code_and_ends_if_everything_is_approved() -> None:
    run = start(breakpoints=["model_end"])
    await told(run, "run_paused")
    await asyncio.sleep(0.15)  # no caller waits for it
    assert run.paused_for is not None
    agentnb.headless("approve", after=0.05)
    assert await asyncio.to_thread(run.result, 10) == "done"
    run = start()
    run.play()
    await run.step("event")  # which pauses a background run, and blocks nothing
    agentnb.headless("reject", after=0.05)
    assert await run == "done"


async def test_a_background_run_is_left_to_later_code_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    await told(run, "approval_request")
    await asyncio.sleep(0.15)  # three times the patience of a caller that waits
    assert run.pending
    run.cancel()
    monkeypatch.setattr("agentnb.run.headless.IN_BACKGROUND", 0.1)
    run = start()
    await told(run, "run_end")
    assert "Nobody is there" in result_of(run)


async def test_a_policy_never_decides_about_a_call_of_unknown_outcome(tmp_path: Any) -> None:
    run = start()
    await run.step("turn")
    run.approve("w")
    while run.events[-1].type != "call_start":
        await run.step()
    half = run.snapshot()
    await run
    ran.clear()
    agentnb.headless("approve", after=0)
    again = agentnb.restore(half, agentnb.SessionLoop(ScriptedLLM(["done"]), [write]))
    assert await again == "done"
    assert "nobody knows how it ended" in result_of(again)
    assert ran == []


async def test_no_decision_is_made_if_a_person_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    for attend in (
        lambda: agentnb.headless("reject", after=0, attended=True),
        lambda: monkeypatch.setenv("AGENTNB_ATTENDED", "yes"),
        lambda: headless.note_page(),
    ):
        monkeypatch.setattr(headless, "_declared", None)
        attend()
        run = start()
        await told(run, "approval_request")
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(run.result, 0.2)
        assert run.pending
        run.cancel()
        monkeypatch.delenv("AGENTNB_ATTENDED", raising=False)


def test_a_value_that_is_not_a_policy_is_refused() -> None:
    for wrong in ("maybe", 3, [{"tol": "x"}]):
        with pytest.raises(agentnb.UsageError):
            agentnb.headless(wrong)
    with pytest.raises(agentnb.UsageError, match="after="):
        agentnb.headless(after=-1)
    assert "reject" in repr(agentnb.headless(None))


SCRIPT = """
import agentnb
from agentnb.testing import ScriptedLLM, call

@agentnb.tool(approve=True)
def write(path: str) -> str:
    "Write a file."
    return f"wrote {path}"

agentnb.headless(None, after=0.1)
run = agentnb.SessionLoop(ScriptedLLM([[call("write", {"path": "a"})], "done"]), [write]).start("go")
print(run.result(), run.messages[2].content)
"""


def test_a_script_ends_and_an_interactive_prompt_waits_for_the_person() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=True
    )
    assert "done Rejected: Nobody is there" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("agentnb: The call of 'write' with {'path': ")
    assert 'To decide in advance: start(approve=...), or agentnb.headless("approve")' in line
    prompt = subprocess.Popen(
        [sys.executable, "-q", "-i", "-c", SCRIPT.replace("run.result()", "run.result(1)")],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    began = time.monotonic()
    said, _ = prompt.communicate("print([waiting.name for waiting in run.pending])\n", timeout=30)
    assert "TimeoutError" in said
    assert "['write']" in said
    assert time.monotonic() - began > 1


async def test_one_line_reports_a_refused_call_and_none_an_approved_one(capsys: Any) -> None:
    await start([call("write", {"path": "a\n\x1b[31mb"}, id="w")])
    line, rest = capsys.readouterr().err.split("\n")
    assert rest == ""
    assert line.startswith(
        "agentnb: The call of 'write' with {'path': 'a\\n\\x1b[31mb'} was rejected, because no person is"
    )
    agentnb.headless("approve", after=0)
    await start()
    assert capsys.readouterr().err == ""


async def test_one_line_reports_a_run_cancelled_because_of_a_pause(capsys: Any) -> None:
    run = start(breakpoints=["model_end"])
    async for _ in run:
        pass
    assert run.stop_reason == "cancelled"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("agentnb: The run of 'session_loop' was cancelled: it was paused (breakpoint at model_end")


async def test_a_policy_that_never_answers_does_not_block_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(call: Any) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(headless, "ANSWERS_WITHIN", 0.05)
    agentnb.headless(silent)
    run = start()
    assert await run == "done"
    assert "The policy has not answered in 0.05 s." in result_of(run)
    assert ran == []
