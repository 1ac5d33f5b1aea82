from __future__ import annotations

from typing import Any

import pytest

from agentnb.core.reply import Reply


def piece(index: int, id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "tool_call_delta", "index": index, "id": id, "name": "add", "arguments": arguments}


def whole(id: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": "add", "arguments": {}}


@pytest.mark.parametrize(
    "chunks",
    [
        [whole("a"), whole("b"), whole("c")],
        [piece(0, "a"), piece(1, "b"), piece(2, "c")],
        [piece(1, "b"), piece(0, "a"), piece(2, "c")],
        [piece(0, "a"), whole("b"), whole("c")],
        [whole("a"), piece(0, "b"), whole("c")],
        [piece(0, "a"), whole("b"), piece(1, "c")],
        [piece(0, "a", "{"), whole("b"), piece(0, "a", "}"), piece(1, "c")],
        [piece(0, "a"), {"type": "tool_calls", "tool_calls": [whole("b"), whole("c")]}],
    ],
)
def test_calls_stand_in_the_order_the_model_made_them(chunks: list[dict[str, Any]]) -> None:
    reply = Reply(1)
    for chunk in chunks:
        reply.feed(chunk, 0)
    made = reply.end().message.tool_calls
    assert [call.id for call in made] == ["a", "b", "c"]
    assert [call.malformed for call in made] == [None, None, None]
