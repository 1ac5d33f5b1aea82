"""Tool calls of servers with OpenAI's protocol, each in the form that was reported for it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from agentnb import Agent, ExecutionLoop, SessionLoop, tool
from agentnb.llms import OpenAI
from tests.llms.collecting import ask, calls, stop
from tests.llms.peer import HELLO, Peer, completion, delta

TOOLS = [{"name": name} for name in ("add", "edit_file", "now", "today")]
TWO = [("add", {"a": 1}), ("add", {"a": 2})]


def piece(
    index: int | str | None = None, id: str | None = None, name: str | None = None, text: Any = ""
) -> dict[str, Any]:
    """Return a fragment of a call, without fields that are None."""
    fields = {"index": index, "id": id, "type": "function"}
    function = {"name": name, "arguments": text}
    return {key: value for key, value in fields.items() if value is not None} | {
        "function": {key: value for key, value in function.items() if value is not None}
    }


HABITS: dict[str, tuple[list[list[dict[str, Any]]], list[tuple[str, dict[str, Any]]]]] = {
    "two in one event, with neither index nor id": (
        [[piece(name="add", text='{"a": 1}'), piece(name="add", text='{"a": 2}')]],
        TWO,
    ),
    "one after the other, with neither index nor id": (
        [[piece(name="add", text='{"a": 1}')], [piece(name="add", text='{"a": 2}')]],
        TWO,
    ),
    "all at index 0, the id empty": (
        [[piece(0, "", "add", '{"a": 1}')], [piece(0, "", "add", '{"a": 2}')]],
        TWO,
    ),
    "opened by a name alone, with neither index nor id": (
        [
            [piece(name="add")],
            [piece(text='{"a": 1}')],
            [piece(name="add")],
            [piece(text='{"a":')],
            [piece(text=" 2}")],
        ],
        TWO,
    ),
    "the same id for all, in every fragment, and no index": (
        [[piece(None, "x", "add", text)] for text in ('{"a"', ": 1}", '{"a": ', "2}")],
        TWO,
    ),
    "opened by {}, with neither index nor id, the name in every fragment": (
        [[piece(name="add", text="{}")], [piece(name="add", text='{"a"')], [piece(name="add", text=": 1}")]],
        TWO[:1],
    ),
    "all at index 0, the id the tool's name": (
        [[piece(0, "add", "add", '{"a": 1}')], [piece(0, "add", "add", '{"a": 2}')]],
        TWO,
    ),
    "without arguments, all at index 0, no id": (
        [[piece(0, name="now")], [piece(0, name="today")]],
        [("now", {}), ("today", {})],
    ),
    "without an index, side by side": (
        [
            [piece(name="add", text='{"a"'), piece(name="add", text='{"a"')],
            [piece(text=": 1}"), piece(text=": 2}")],
        ],
        TWO,
    ),
    "id and name empty behind the first fragment": (
        [[piece(0, "c", "add", "")], [piece(0, "", "", '{"a"')], [piece(0, "", "", ": 1}")]],
        TWO[:1],
    ),
    "another id behind the first fragment": (
        [[piece(0, "c", "add", "")], [piece(0, "d", None, '{"a"')], [piece(0, "d", None, ": 1}")]],
        TWO[:1],
    ),
    "another index in each fragment, the id the same": (
        [[piece(0, "c", "add", '{"a"')], [piece(1, "c", None, ": 1}")]],
        TWO[:1],
    ),
    "an id that is a number": ([[piece(0, 7, "add", '{"a"')], [piece(0, 7, None, ": 1}")]], TWO[:1]),  # type: ignore[arg-type]
    "the name in every fragment": (
        [[piece(0, "c", "add", '{"a"')], [piece(0, "c", "add", ": 1}")], [piece(0, "c", "add", "")]],
        TWO[:1],
    ),
    "the name in pieces": (
        [[piece(0, "c", "edit")], [piece(0, None, "_file")], [piece(0, text='{"a": 1}')]],
        [("edit_file", {"a": 1})],
    ),
    "the name so far in every fragment": (
        [[piece(0, "c", "edit")], [piece(0, "c", "edit_file", '{"a": 1}')]],
        [("edit_file", {"a": 1})],
    ),
    "the name behind the arguments": (
        [[piece(0, "c", None, '{"a": ')], [piece(0, None, None, "1}")], [piece(0, None, "add")]],
        TWO[:1],
    ),
    "opened by {}": ([[piece(0, "c", "add", "{}")], [piece(0, text='{"a"')], [piece(0, text=": 1}")]], TWO[:1]),
    "opened by {}, the name and id in every fragment": (
        [[piece(0, "c", "add", "{}")], [piece(0, "c", "add", '{"a": 1}')]],
        TWO[:1],
    ),
    "two that are {} and no more": ([[piece(0, None, "now", "{}")], [piece(0, None, "now", "{}")]], [("now", {})] * 2),
    "one call instead of a list": (
        [{"index": 0, "id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        TWO[:1],
    ),  # type: ignore[list-item]
    "name and arguments not nested": ([[{"index": 0, "id": "c", "name": "add", "arguments": {"a": 1}}]], TWO[:1]),
    "the second opened at the first one's index, and filled at its own": (
        [
            *([piece(0, "c", "add")], [piece(0, text='{"a": 1}')]),
            *([piece(0, "d", "add")], [piece(1, text='{"a"')], [piece(1, text=": 2}")]),
        ],
        TWO,
    ),
    "two alike, all at index 0, without ids": (
        [[piece(0, None, "add")], [piece(0, text='{"a": 1}')]] * 2,
        TWO[:1] * 2,
    ),
    "all of it once more": (
        [[piece(0, "c", "add", '{"a"')], [piece(0, text=": 1}")], [piece(0, "c", "add", '{"a":1}')]],
        TWO[:1],
    ),
    "all of it once more, as the text of a text": (
        [[piece(0, "c", "add", '{"a": 1}')], [piece(0, "c", "add", json.dumps('{"a": 1}'))]],
        TWO[:1],
    ),
    "all of it once more, at another index": (
        [[piece(0, "c", "add", '{"a": 1}')], [piece(1, "c", "add", '{"a": 1}')]],
        TWO[:1],
    ),
    "its arguments once more": (
        [[piece(0, "c", "add")], [piece(0, text='{"a": 1}')], [piece(0, text='{"a": 1}')]],
        TWO[:1],
    ),
    "all of it once more, without arguments": (
        [[piece(0, "c", "now", "{}")], [piece(0, "c", "now", "{}")]],
        [("now", {})],
    ),
    "an index that is no number": (
        [[piece({"n": 0}, "c", "add", '{"a"')], [piece({"n": 0}, "c", None, ": 1}")]],
        TWO[:1],
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("habit", HABITS)
async def test_calls_are_read_in_the_forms_of_all_servers(peer: Peer, habit: str) -> None:
    events, made = HABITS[habit]
    peer.replies(completion(*[delta(tool_calls=fragments) for fragments in events], delta("stop")))
    chunks = await ask(OpenAI("m", peer.url), tools=TOOLS)
    assert [(call["name"], json.loads(call["arguments"])) for call in calls(chunks)] == made
    ids = [call["id"] for call in calls(chunks)]
    assert all(ids)
    assert stop(chunks) == "tool_calls"


async def test_a_legacy_function_call_is_read_as_a_tool_call(peer: Peer) -> None:
    events = [{"name": "add", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ": 1}"}]
    peer.replies(completion(*[delta(function_call=event) for event in events], delta("function_call")))
    (call,) = calls(await ask(OpenAI("m", peer.url), tools=TOOLS))
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"a": 1})


async def test_an_extra_brace_is_not_another_call(peer: Peer) -> None:
    fragments = [piece(0, "c", "add", '{"a": 1}'), piece(0, "c", "add", "}"), piece(0, None, "add", " }")]
    peer.replies(completion(*[delta(tool_calls=[fragment]) for fragment in fragments], delta("stop")))
    (call,) = calls(await ask(OpenAI("m", peer.url), tools=TOOLS))
    assert call["arguments"] == '{"a": 1}} }'


async def test_a_call_without_arguments_is_complete_when_the_next_one_starts(peer: Peer) -> None:
    first, second = [piece(0, "c", "now", "{}")], [piece(1, "d", "add", '{"a": 1}')]
    peer.replies(completion(delta(tool_calls=first), delta(tool_calls=second), delta("tool_calls")))
    chunks = await ask(OpenAI("m", peer.url), tools=TOOLS)
    assert [(chunk["index"], chunk["arguments"]) for chunk in chunks if chunk["type"] == "tool_call_delta"] == [
        (0, ""),
        (0, "{}"),
        (1, '{"a": 1}'),
    ]


@pytest.mark.parametrize("design", [Agent, SessionLoop, partial(ExecutionLoop, native=True, max_requests=3)])
@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("arguments", ["", "{}"])
async def test_a_call_whose_answer_is_cut_off_before_its_arguments_does_not_run(
    peer: Peer, design: Any, reason: str, arguments: str
) -> None:
    deleted: list[str] = []

    @tool
    def delete(path: str = "/") -> None:
        """Delete a file, or everything."""
        deleted.append(path)

    peer.replies(completion(delta(tool_calls=[piece(0, "c", "delete", arguments)]), delta(reason)), HELLO)
    await design(OpenAI("m", peer.url), [delete]).start("Tidy up.")
    assert deleted == []
    (told,) = [message for message in peer.requests[1].body["messages"] if message["role"] == "tool"]
    assert told["content"].startswith("Error: ")
