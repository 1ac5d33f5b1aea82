"""Pictures, documents and sound in messages and in results of tools: translated, or named where they are left out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentnb import Agent, RunFailed, SessionLoop, Snapshot, UsageError, restore, tool
from agentnb.content import Audio, Image, Part, Pdf, message
from agentnb.core.messages import input_messages, text_of
from agentnb.llms import Anthropic, OpenAI
from agentnb.testing import ScriptedLLM, call
from tests.llms.collecting import collect
from tests.llms.peer import HELLO, Peer, body, event, head, said

PNG = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
PDF = Pdf.from_bytes(b"%PDF-1.7 a paper")
WAV = Audio.from_bytes(b"RIFF\0\0\0\0WAVE sound")
LINK = Image.from_url("https://e.org/a.png")
PDF_LINK = Pdf.from_url("https://e.org/a.pdf")


def data(part: Part) -> str:
    return str(part.model_dump()["source"]["data"])


ITEM = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "hello"}]}
DIALECTS: dict[str, Any] = {
    "chat": (lambda url: OpenAI("m", url), HELLO),
    "responses": (
        lambda url: OpenAI("m", url, api="responses"),
        [
            head(),
            event({"type": "response.output_item.done", "output_index": 0, "item": ITEM}),
            event({"type": "response.completed", "response": {"status": "completed", "output": [ITEM]}}),
            b"0\r\n\r\n",
        ],
    ),
    "anthropic": (
        lambda url: Anthropic("m", url),
        body(200, {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}),
    ),
}
EACH = pytest.mark.parametrize("dialect", DIALECTS)
FORMS: dict[str, dict[str, Any]] = {
    "chat": {
        "PNG": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data(PNG)}"}},
        "LINK": {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}},
        "PDF": {
            "type": "file",
            "file": {"filename": "document.pdf", "file_data": f"data:application/pdf;base64,{data(PDF)}"},
        },
        "WAV": {"type": "input_audio", "input_audio": {"data": data(WAV), "format": "wav"}},
        "PDF_LINK": "[document: https://e.org/a.pdf; not sent, because chat completions have no form for it]",
    },
    "responses": {
        "PNG": {"type": "input_image", "image_url": f"data:image/png;base64,{data(PNG)}", "detail": "auto"},
        "LINK": {"type": "input_image", "image_url": "https://e.org/a.png", "detail": "auto"},
        "PDF": {
            "type": "input_file",
            "filename": "document.pdf",
            "file_data": f"data:application/pdf;base64,{data(PDF)}",
        },
        "PDF_LINK": {"type": "input_file", "file_url": "https://e.org/a.pdf"},
        "WAV": "[audio: audio/wav, 18 bytes; not sent, because the Responses API takes no sound]",
    },
    "anthropic": {
        "PNG": PNG.model_dump(),
        "LINK": LINK.model_dump(),
        "PDF": PDF.model_dump(),
        "PDF_LINK": PDF_LINK.model_dump(),
        "WAV": "[audio: audio/wav, 18 bytes; not sent, because Anthropic's API takes no sound]",
    },
}
PARTS: dict[str, Part] = {"PNG": PNG, "LINK": LINK, "PDF": PDF, "PDF_LINK": PDF_LINK, "WAV": WAV}


async def sent(peer: Peer, dialect: str, llm: Any, *messages: Any) -> Any:
    peer.replies(DIALECTS[dialect][1])
    await collect(llm.stream(list(messages)))
    request = peer.requests[-1].body
    return request.get("messages") or request["input"]


@EACH
async def test_a_part_of_a_message_is_translated_or_named(peer: Peer, dialect: str) -> None:
    llm = DIALECTS[dialect][0](peer.url)
    for name, form in FORMS[dialect].items():
        (told,) = await sent(peer, dialect, llm, message("What is this?", PARTS[name]))
        assert told["content"][1] == form or told["content"][1]["text"] == form


@pytest.mark.parametrize("loop", [SessionLoop, Agent])
async def test_parts_without_a_message_become_one(peer: Peer, loop: Any) -> None:
    picture = FORMS["chat"]["PNG"]
    text = {"type": "text", "text": "What is this?"}
    for given, content in (
        (PNG, [picture]),
        (["What is this?", PNG], [text, picture]),
        ({"role": "user", "content": ["What is this?", PNG]}, [text, picture]),
    ):
        peer.replies(HELLO, HELLO)
        run = loop(OpenAI("m", peer.url)).start(given)
        if loop is SessionLoop and not isinstance(given, dict):
            run.follow_up(given)
        await run
        told = [message for message in peer.requests[-1].body["messages"] if message["role"] == "user"]
        assert [message["content"] for message in told] in ([content], [content] * 2)
    assert json.loads(text_of(input_messages([{"type": "text", "text": "data"}])[0].content))  # as before


def test_a_message_has_a_part_and_a_known_role() -> None:
    with pytest.raises(UsageError, match="at least one part"):
        message()
    with pytest.raises(UsageError, match=r"one of user, system, .*, not 'robot'"):
        message("hello", role="robot")


async def test_parts_of_a_failed_result_are_named_for_anthropic(peer: Peer) -> None:
    failed = {"role": "tool", "tool_call_id": "c", "name": "plot", "is_error": True}
    failed["content"] = [{"type": "text", "text": "No axes."}, PNG.model_dump(), PDF.model_dump()]
    asked = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "plot", "arguments": {}}]}
    told = await sent(peer, "anthropic", Anthropic("m", peer.url), {"role": "user", "content": "?"}, asked, failed)
    texts = [block["text"] for block in told[-1]["content"][0]["content"]]
    assert [text.partition(",")[0] for text in texts] == ["No axes.", "[image: image/png", "[document: application/pdf"]


def result_of(dialect: str, told: list[dict[str, Any]]) -> Any:
    """Return what the model sees of a result: its text, and the parts after it."""
    if dialect == "anthropic":
        return told[-1]["content"][0]["content"]
    if dialect == "responses":
        return told[-1]["output"]
    after = told[3]["content"] if len(told) > 3 else []
    return [{"type": "text", "text": told[2]["content"]}, *after]


@EACH
async def test_a_part_of_a_result_is_translated_or_named(peer: Peer, dialect: str) -> None:
    llm = DIALECTS[dialect][0](peer.url)
    asked = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "read", "arguments": {}}]}
    for name, form in FORMS[dialect].items():
        content = [{"type": "text", "text": "here"}, PARTS[name].model_dump()]
        result = {"role": "tool", "tool_call_id": "c", "name": "read", "content": content}
        shown = result_of(dialect, await sent(peer, dialect, llm, {"role": "user", "content": "go"}, asked, result))
        assert "here" in shown[0]["text"]
        if isinstance(form, str):
            assert form in "".join(str(part["text"]) for part in shown)
        else:
            assert form in shown
            assert dialect != "chat" or "1 of 1: in the next message of the user" in shown[0]["text"]


@EACH
async def test_the_form_of_another_dialect_is_translated_too(peer: Peer, dialect: str) -> None:
    llm = DIALECTS[dialect][0](peer.url)
    for other in ("chat", "anthropic"):
        for name in ("PNG", "PDF") if dialect == "responses" else ("PNG", "PDF", "WAV"):
            if not isinstance(given := FORMS[other][name], str):
                (told,) = await sent(peer, dialect, llm, {"role": "user", "content": [given]})
                assert FORMS[dialect][name] in (told["content"][0], told["content"][0].get("text"))


@pytest.mark.parametrize("part", [PNG, PDF, WAV])
@pytest.mark.parametrize("alone", [True, False])
async def test_a_tool_returns_a_part_and_a_restored_run_still_has_it(part: Part, alone: bool, tmp_path: Path) -> None:
    @tool
    def read() -> Any:
        """Read it."""
        return part if alone else ["here", part]

    llm = ScriptedLLM([[call("read", id="c")], "done"])
    run = SessionLoop(llm, [read]).start(message("Read", part))
    await run
    assert part.model_dump() in llm.requests[0].messages[0]["content"]
    assert part.model_dump() in llm.requests[1].messages[-1]["content"]
    kept = Snapshot.load(run.snapshot().save(tmp_path / "run.json"))
    assert restore(kept, SessionLoop(llm, [read])).state.messages == run.state.messages


@EACH
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "This model does not support image input."),  # Ollama
        (400, "At most 0 image(s) may be provided in one prompt."),  # vLLM
        (500, "image input is not supported - hint: you may need to provide the mmproj"),  # llama.cpp
    ],
)
async def test_a_refused_picture_is_reported_at_once_in_the_words_of_the_server(
    peer: Peer, dialect: str, status: int, words: str
) -> None:
    peer.replies(body(status, said(words)))
    with pytest.raises(RunFailed) as caught:
        await SessionLoop(DIALECTS[dialect][0](peer.url)).start(message("What?", PNG))
    assert len(peer.requests) == 1  # it is not tried again
    for expected in (words, peer.url[7:], "(..., images=False) sends a text in place of each picture"):
        assert expected in str(caught.value)


async def test_another_error_about_pictures_has_no_advice_if_none_was_sent(peer: Peer) -> None:
    peer.replies(body(400, said("No image model is loaded.")))
    with pytest.raises(RunFailed) as caught:
        await SessionLoop(OpenAI("m", peer.url)).start("What?")
    assert "images=False" not in str(caught.value)


@pytest.mark.parametrize(("kind", "data"), [(Image, b"RIFF\0\0\0\0WAVEfmt "), (Audio, b"RIFF\0\0\0\0WEBPVP8 ")])
def test_a_sound_is_no_picture_although_its_file_begins_like_one(kind: type[Part], data: bytes) -> None:
    with pytest.raises(UsageError, match="by its first bytes"):
        kind.from_bytes(data)


def test_parts_are_read_from_files_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "paper"
    path.write_bytes(base64.b64decode(data(PDF)))
    assert Pdf.from_file(path) == PDF
    with pytest.raises(UsageError, match=r"paper is none of image/png, .*%PDF"):
        Image.from_file(path)
    with pytest.raises(UsageError, match="is none of audio/wav"):
        Audio.from_bytes(b"OggS")
    with pytest.raises(UsageError, match="begins with https"):
        Image.from_url("file:///etc/passwd")
    with pytest.raises(UsageError, match="must be a part of the message"):
        Audio.from_url("https://e.org/a.wav")
    with pytest.raises(UsageError, match="A message has texts, and parts"):
        message("hi", 5)  # type: ignore[arg-type]
    for wrong in ("###", base64.b64encode(b"<svg/>").decode()):
        with pytest.raises(ValidationError, match=r"source\.data is not"):
            Image.model_validate({"source": {"type": "base64", "media_type": "image/png", "data": wrong}})
