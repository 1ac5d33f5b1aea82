"""`<think>` in the text of a server without a reasoning parser becomes reasoning, wherever the text is cut."""

import json

import pytest

from agentnb.llms import OpenAI
from agentnb.llms.openai_reader import THINK, ChatCompletionReader
from agentnb.llms.sse import ServerSentEvent

ANSWER = "\n<think>They want 2.</think>\n\nTwo."


def chunks_of(*deltas: dict[str, object], tag: str | None = THINK) -> list[dict[str, object]]:
    reader = ChatCompletionReader("model.test", tag=tag)
    chunks: list[dict[str, object]] = []
    for delta in deltas:
        event = {"choices": [{"index": 0, "delta": delta}]}
        chunks += reader.read(ServerSentEvent(json.dumps(event), "message"))
    reader.read(
        ServerSentEvent(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}), "message")
    )
    return [*chunks, *reader.finish()]


def read(*texts: str) -> tuple[str, str]:
    """Return the reasoning and the text of an answer that comes in these pieces."""
    chunks = chunks_of(*({"content": text} for text in texts))
    return tuple(
        "".join(str(chunk["content"]) for chunk in chunks if chunk["type"] == kind)
        for kind in ("reasoning_delta", "text_delta")
    )


@pytest.mark.parametrize("at", range(1, len(ANSWER)))
def test_thoughts_are_separated_wherever_the_text_is_cut(at: int) -> None:
    assert read(ANSWER[:at], ANSWER[at:]) == ("They want 2.", "Two.")


def test_thoughts_are_separated_in_a_stream_of_single_characters() -> None:
    assert read(*ANSWER) == ("They want 2.", "Two.")


def test_thoughts_are_shown_while_they_come() -> None:
    first = chunks_of({"content": "<think>They"}, {"content": " want 2.</think>Two."})[0]
    assert (first["type"], first["content"]) == ("reasoning_delta", "They")


@pytest.mark.parametrize("text", ["Write <think>so</think>.", "<thin", "<thinking>a</thinking>", "< think>a"])
def test_other_text_stays_text(text: str) -> None:
    assert read(*text) == ("", text)


def test_a_server_that_separates_reasoning_itself_is_believed() -> None:
    chunks = chunks_of({"reasoning_content": "Hm."}, {"content": "<think>"}, {"content": "is a tag."})
    assert "".join(str(chunk["content"]) for chunk in chunks if chunk["type"] == "text_delta") == "<think>is a tag."


def test_a_tag_of_openais_own_server_is_text() -> None:
    _, new_reader = OpenAI("gpt-4o", api="chat")._prepare([{"role": "user", "content": "q"}], [], None, {})
    chunks = new_reader().read(ServerSentEvent(json.dumps({"choices": [{"delta": {"content": ANSWER}}]}), "message"))
    assert chunks == [{"type": "text_delta", "content": ANSWER}]
