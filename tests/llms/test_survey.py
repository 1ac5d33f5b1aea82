"""The survey of recorded answers: the formats of recordings, what is compared, and what is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.llms import sent_back
from tests.llms.recordings import answers
from tests.llms.survey import files, survey

pytest.importorskip("openai")
yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.other_body("the survey asks with tools without a schema", fields=["tools", "extra_content"])

CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}


def chat(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **fields}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "i", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "i", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def response(text: str) -> dict[str, Any]:
    said = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [said]}
    return {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item]}


def interaction(path: str, body: Any, status: int = 200, **given: Any) -> dict[str, Any]:
    headers = {"Content-Type": ["application/json"]}
    request = {"method": "POST", "uri": f"https://api.openai.com/v1{path}", "body": "{}"}
    return {"request": request, "response": {"status": {"code": status}, "headers": headers, "body": body, **given}}


def write(folder: Path) -> None:
    """Write a file in each format."""
    cassette = {
        "interactions": [
            interaction("/chat/completions", {"string": json.dumps(chat())}),
            interaction("/chat/completions", {"string": gzip.compress(json.dumps(chat("zipped")).encode())}),
            interaction("/chat/completions", {"string": json.dumps({"error": {"message": "No."}})}, status=400),
            interaction("/responses", None, parsed_body=response("yes")),
            interaction("/threads/t/messages", {"string": "{}"}),
        ]
    }
    (folder / "python.yaml").write_text(yaml.safe_dump(cassette), encoding="utf-8")
    ruby = interaction("/chat/completions", {"encoding": "UTF-8", "string": json.dumps(chat("ruby"))})
    (folder / "ruby.yml").write_text(yaml.safe_dump({"http_interactions": [ruby]}), encoding="utf-8")
    streamed = [chunk(role="assistant"), chunk(content="he"), chunk(tool_calls=[CALL]), chunk("tool_calls")]
    (folder / "packages" / "groq" / "fixtures").mkdir(parents=True)
    lines = "\n".join(map(json.dumps, streamed))
    (folder / "packages" / "groq" / "fixtures" / "a.chunks.txt").write_text(lines, encoding="utf-8")
    typed = [{"__type__": "Chunk", "__data__": one} for one in streamed]
    (folder / "typed.json").write_text(json.dumps(interaction("/chat/completions", typed)), encoding="utf-8")
    tagged = chat("<reasoning>Hm.</reasoning>hi") | {"model": "openai.gpt-oss-20b-1:0"}
    (folder / "bedrock.json").write_text(json.dumps(tagged), encoding="utf-8")
    (folder / "odd.json").write_text(json.dumps(chat([{"name": "Ann"}])), encoding="utf-8")
    (folder / "other.json").write_text('{"some": "settings"}', encoding="utf-8")


def test_the_answers_in_files_of_all_formats_are_found(tmp_path: Path) -> None:
    write(tmp_path)
    found = list(files([tmp_path]))
    assert [(one.provider, one.dialect, one.status) for one in answers(tmp_path / "python.yaml")] == [
        *[("openai", "chat", 200)] * 2,
        ("openai", "chat", 400),
        ("openai", "responses", 200),
    ]
    assert len(found) == 9
    assert {one.provider for one in found} >= {"openai", "groq"}


@pytest.mark.parametrize("chopped", [False, pytest.param(True, marks=pytest.mark.sampled(1000))])
async def test_what_agrees_and_what_differs_is_counted(tmp_path: Path, chopped: bool) -> None:
    write(tmp_path)
    found = await survey(files([tmp_path]), chopped=chopped)
    rows = list(found.rows.values())
    counts = [sum(getattr(row, name) for row in rows) for name in ("answers", "agree", "explained", "differ", "failed")]
    assert counts == [8, 7, 1, 0, 0]  # one was recorded twice
    assert list(found.reasons) == ["Bedrock's reasoning in the text, in tags, is reasoning"]
    assert "| groq | chat | 1 | 1 | 0 | 0 | 0 |" in found.table()


async def test_what_is_sent_back_is_compared_with_what_came(tmp_path: Path) -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "ENC"}
    called = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": '{"n": 1}'}
    (tmp_path / "r.json").write_text(json.dumps(response("yes") | {"output": [thought, called]}), encoding="utf-8")
    signed = {**CALL, "extra_content": {"google": {"thought_signature": "SIG"}}}
    (tmp_path / "g.json").write_text(json.dumps(chat(None, tool_calls=[signed])), encoding="utf-8")
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "SIG"}
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"n": 1}}
    whole = {"type": "message", "role": "assistant", "content": [thinking, use], "stop_reason": "tool_use", "usage": {}}
    (tmp_path / "a.json").write_text(json.dumps(whole), encoding="utf-8")
    counts, differing = await sent_back.survey(files([tmp_path]))
    assert (dict(counts), differing) == ({(api, "equal"): 1 for api in ("responses", "chat", "anthropic")}, [])
    assert [len(sent_back.parts_of(one)) for one in files([tmp_path])] == [2, 1, 2]
