from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from agentnb import tool
from agentnb.content import Image, Pdf, message
from agentnb.core.loop import Requests
from agentnb.core.messages import Message
from agentnb.loops.execution_loop import ExecutionLoop
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, text
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.loops import Loops
from agentnb.widgets.views.trace import Trace
from agentnb.widgets.views.transcript import (
    CALLS,
    PICTURE,
    PICTURES,
    PREPARED,
    TEXT,
    Transcript,
    transcript_data,
)
from tests.widgets.support import HOSTILE, asking, asking_inside, search, session, until


def told(run: Any, path: str = "", last: int = 100) -> dict[str, Any]:
    loops = Loops(run.loop).follow(run.events)
    return transcript_data(Transcript(run, loops.design_at(path), Causes(), path), last)


def test_messages_are_shown_as_sent_to_the_model_with_results_next_to_their_calls() -> None:
    thought = {"type": "reasoning_delta", "content": "I had better look."}
    turns = [[thought, *text("Looking."), call("search", {"query": "x"}, id="c")], "Found."]
    run = SessionLoop(ScriptedLLM(turns), [search], system_prompt="Be brief.").start("go")
    run.result(30)
    answer = told(run)
    roles = [message["role"] for message in answer["messages"]]
    assert roles == ["system", "user", "assistant", "assistant"]
    assert answer["total"] == len(run.messages) + 1
    asked = answer["messages"][2]
    assert (asked["text"], asked["reasoning"]) == ("Looking.", "I had better look.")
    [made] = asked["calls"]
    assert (made["name"], made["words"], json.loads(made["result"])) == ("search", "returned", ["x 1", "x 2"])
    assert run.events[asked["position"]].type == "model_end"
    assert run.events[made["position"]].type == "call_end"
    assert answer["messages"][0]["position"] == -1


def test_a_call_is_shown_with_its_decision_or_its_reason_to_wait() -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    assert [made["words"] for made in told(run)["messages"][-1]["calls"]] == ["waiting for a decision"] * 2
    run.edit("c0", {"path": "/elsewhere"})
    run.reject("c1", "keep it")
    run.result(30)
    edited, rejected = next(message for message in told(run)["messages"] if message["calls"])["calls"]
    assert re.fullmatch(r"edited and approved by code at \S+ · returned", edited["words"])
    assert "/elsewhere" in edited["decision"]
    assert re.fullmatch(r"rejected by code at \S+ · rejected", rejected["words"])
    assert rejected["failed"]


def test_calls_with_the_same_id_have_separate_results() -> None:
    def turn(query: str) -> list[Any]:
        return [call("search", {"query": query}, id="same")]

    run = session([turn("first"), turn("second"), "ok"])
    run.result(30)
    made = [message["calls"][0] for message in told(run)["messages"] if message["calls"]]
    assert [json.loads(one["result"])[0] for one in made] == ["first 1", "second 1"]
    assert made[0]["position"] < made[1]["position"]


def test_each_nested_loop_has_a_separate_conversation() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    assert told(run)["messages"] == []
    assert told(run, "worker")["messages"][0]["text"] == "Write the draft"
    assert told(run, "nowhere")["total"] == 0
    run.cancel()


def test_an_earlier_nested_loop_of_the_same_path_keeps_its_conversation() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    run.approve("worker/c0")
    run.result(30)
    first, second = (event.seq for event in run.events if event.type == "run_start" and event.path)
    loops = Loops(run.loop).follow(run.events)
    design = loops.design_at("worker")
    for begun, words in ((first, "Write the draft"), (second, "Proof-read it"), (None, "Proof-read it")):
        messages = transcript_data(Transcript(run, design, Causes(), "worker", begun=begun), 100)["messages"]
        assert messages[0]["text"] == words
        assert run.events[messages[0]["position"]].message.content == words
    earlier = transcript_data(Transcript(run, design, Causes(), "worker", begun=first), 100)["messages"]
    (made,) = earlier[1]["calls"]
    assert re.fullmatch(r"approved by code at \S+ · returned", made["words"])


def test_only_the_events_of_shown_messages_are_looked_up() -> None:
    run = session(many_turns(60))
    run.result(30)
    loops = Loops(run.loop).follow(run.events)
    conversation = Transcript(run, loops.design_at(""), Causes(), reach=10)
    shown = transcript_data(conversation, 10)["messages"]
    assert all(message["position"] >= 0 for message in shown if message["role"] != "tool")
    assert all(made["position"] >= 0 for message in shown for made in message["calls"])
    assert next(conversation.entries(0, 1)).position == -1


def many_turns(count: int) -> list[Any]:
    """Turns with a call each, all of the same id, and an answer."""
    return [*([call("search", {"query": str(n)}, id="c")] for n in range(count)), "ok"]


def test_a_loop_that_composes_its_messages_is_shown_with_them() -> None:
    turns = [[call("search", {"query": "x"}, id="c")], "It is done."]
    loop = ExecutionLoop(ScriptedLLM(turns), [search], native=True)
    run = loop.start("go")
    run.result(30)
    sent = loop.llm.requests[1].messages
    shown = told(run)["messages"]
    assert shown[0]["role"] == sent[0]["role"] == "system"
    assert shown[0]["text"][:200] == sent[0]["content"][:200]


def test_messages_that_are_not_sent_and_a_preparing_hook_are_marked() -> None:
    def keep(messages: Sequence[Message]) -> Any:
        raise AssertionError("only a run may ask it")

    run = SessionLoop(ScriptedLLM(["ok"]), transform_context=keep).start([{"role": "note", "content": "aside"}])
    run.submit_step("event").result(30)
    run.submit_step("event").result(30)
    run.submit_step("event").result(30)
    answer = told(run)
    assert answer["note"] == PREPARED
    assert [(message["role"], message["sent"]) for message in answer["messages"]] == [("note", False)]


def test_a_design_with_a_failing_messages_for_is_shown_by_its_history(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenRequests(Requests):
        def messages(self, state: Any) -> Any:
            if broken:
                raise ValueError("broken")

    class Broken(SessionLoop):
        requests_class = BrokenRequests

    broken: list[int] = []
    run = Broken(ScriptedLLM(["Hello."])).start("go")
    run.result(30)
    broken.append(1)
    assert [message["text"] for message in told(run)["messages"]] == ["go", "Hello."]
    assert "could not build the messages of its next request" in caplog.text


def test_reading_the_messages_does_not_change_the_memo_of_a_design() -> None:
    loop = ExecutionLoop(ScriptedLLM([[call("search", {"query": "x"}, id="c")], "done"]), [search], native=True)
    run = loop.start("go")
    run.submit_step("turn").result(30)
    kept = run.state.memo
    told(run)
    assert run.state.memo is kept
    run.result(30)


def test_a_long_conversation_is_sent_as_a_bounded_valid_message() -> None:
    many = [call("search", {"query": HOSTILE * 500}, id=f"c{n}") for n in range(2 * CALLS)]
    run = session([[*text(HOSTILE * 1000), *many], *([HOSTILE * 1000] * 1)])
    run.result(30)
    answer = told(run)
    encoded = json.dumps(answer, ensure_ascii=False).encode()  # a lone surrogate would not encode
    assert len(encoded) < 1_000_000
    asked = next(message for message in answer["messages"] if message["calls"])
    assert (len(asked["calls"]), asked["more"]) == (CALLS, CALLS)
    assert len(asked["text"]) < TEXT + 60
    assert "characters in all" in asked["text"]
    assert told(run, last=1)["left"] == answer["total"] - 1


async def test_pictures_that_are_part_of_a_message_are_shown_and_nothing_else() -> None:
    png, gif = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9)), Image.from_bytes(b"GIF89a")

    @tool
    def shot() -> Any:
        """Take a picture."""
        return {"seen": 3, "plot": png}

    svg = base64.b64encode(b"<svg onload='alert(1)'/>").decode()
    false = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": svg}}
    parts = message("What?", gif, Image.from_url("https://e.org/a.png"), Pdf.from_bytes(b"%PDF-1.7"))
    parts["content"].append(false)
    run = SessionLoop(ScriptedLLM([[call("shot", id="c")], "done"]), [shot]).start(parts)
    await run
    user, answer, last = told(run)["messages"]
    assert user["pictures"] == [f"data:image/gif;base64,{gif.model_dump()['source']['data']}"]
    assert answer["calls"][0]["pictures"] == [f"data:image/png;base64,{png.model_dump()['source']['data']}"]
    assert "pictures" not in answer
    assert "pictures" not in last
    assert (
        "[image: image/gif, 6 bytes]\n[image: https://e.org/a.png]\n[document: application/pdf, 9 bytes]"
        in user["text"]
    )
    assert "[image: image/png, 18 bytes]" in answer["calls"][0]["result"]
    assert "base64" not in answer["calls"][0]["result"] + answer["calls"][0]["returned"]


async def test_a_message_of_a_picture_alone_has_a_row_in_the_trace() -> None:
    run = SessionLoop(ScriptedLLM(["one", "two"])).start("Go.")
    run.follow_up(message(Image.from_bytes(b"GIF89a")))
    await run
    rows = Trace().follow(run.events).rows()
    assert [row.text for row in rows if row.kind == "message"] == ["[image: image/gif, 6 bytes]"]


async def test_large_pictures_are_not_sent_to_the_page() -> None:
    large = Image.from_bytes(b"GIF89a" + bytes(PICTURE))
    half = Image.from_bytes(b"GIF89a" + bytes(PICTURE * 3 // 4 - 100))
    run = SessionLoop(ScriptedLLM(["done"])).start(message(large, half, half, half))
    await run
    assert len(told(run)["messages"][0]["pictures"]) == 1 + (PICTURES - PICTURE) // PICTURE
