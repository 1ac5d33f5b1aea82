"""A server of the Responses API that enforces the rules of the protocol, over a real socket; and the items it sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.llms.enforcing_peer import EnforcingPeer, digest, pieces, server_sent

Item = dict[str, Any]


def reasoning(summary: str = "") -> Item:
    parts = [{"type": "summary_text", "text": text} for text in summary.split("|") if text]
    return {"type": "reasoning", "summary": parts, "encrypted_content": ""}


def message(text: str, **fields: Any) -> Item:
    content = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text}]
    return {"type": "message", "status": "completed", "role": "assistant", "content": content, **fields}


def refusal(text: str) -> Item:
    return message("") | {"content": [{"type": "refusal", "refusal": text}]}


def called(name: str, **arguments: Any) -> Item:
    return {"type": "function_call", "status": "completed", "name": name, "arguments": json.dumps(arguments)}


def custom_called(name: str, text: str) -> Item:
    return {"type": "custom_tool_call", "status": "completed", "name": name, "input": text}


SEARCH: Item = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "moss"}}


def sent_events(items: Sequence[Item], response: Item) -> Iterator[Item]:
    """Yield the events of an answer as OpenAI sends them."""
    yield {"type": "response.created", "response": {**response, "status": "in_progress", "output": [], "usage": None}}
    yield {"type": "response.in_progress", "response": {**response, "status": "in_progress", "output": []}}
    for position, item in enumerate(items):
        at = {"output_index": position, "item_id": item["id"]}
        opened = {**item, "status": "in_progress"} if "status" in item else {**item}
        empty = {"message": {"content": []}, "function_call": {"arguments": ""}, "custom_tool_call": {"input": ""}}
        opened |= empty.get(item["type"], {"summary": []} if item["type"] == "reasoning" else {})
        yield {"type": "response.output_item.added", "output_index": position, "item": opened}
        if item["type"] == "message":
            for index, shown in enumerate(item["content"]):
                kind = "refusal" if shown["type"] == "refusal" else "output_text"
                here = at | {"content_index": index}
                text = shown.get("text", shown.get("refusal"))
                yield {"type": "response.content_part.added", **here, "part": {**shown, kind[-4:]: ""}}
                for piece in pieces(text):
                    yield {"type": f"response.{kind}.delta", **here, "delta": piece}
                yield {"type": f"response.{kind}.done", **here, "text": text}
                yield {"type": "response.content_part.done", **here, "part": shown}
        elif item["type"] == "reasoning":
            for index, shown in enumerate(item["summary"]):
                here = at | {"summary_index": index}
                yield {"type": "response.reasoning_summary_part.added", **here, "part": {**shown, "text": ""}}
                for piece in pieces(shown["text"]):
                    yield {"type": "response.reasoning_summary_text.delta", **here, "delta": piece}
                yield {"type": "response.reasoning_summary_part.done", **here, "part": shown}
        elif item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            yield {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]}
        elif item["type"] == "custom_tool_call":
            for piece in pieces(item["input"]):
                yield {"type": "response.custom_tool_call_input.delta", **at, "delta": piece}
        else:
            yield {"type": f"response.{item['type']}.in_progress", **at}
        yield {"type": "response.output_item.done", "output_index": position, "item": item}
    yield {"type": f"response.{response['status']}", "response": {**response, "output": list(items)}}


def stream(events: Iterator[Item]) -> bytes:
    return server_sent({**event, "sequence_number": number} for number, event in enumerate(events))


class ResponsesPeer(EnforcingPeer):
    """OpenAI's Responses API. An answer is a list of items; the server adds their ids and what is encrypted."""

    def __init__(self, turns: Sequence[Sequence[Item]] | Callable[[int], Sequence[Item]], *, chopped: bool = False):
        super().__init__(turns, chopped=chopped)
        self._ids: set[str] = set()

    def _answer(self, turn: int, payload: Item) -> bytes:
        number = len(self._made)
        items: list[Item] = []
        for position, given in enumerate(self._turns(turn)):
            item = {"id": f"{given['type'][:2]}_{number}_{position}", **given}
            if item["type"].endswith("_call") and item["type"] != "web_search_call":
                item["call_id"] = f"call_{number}_{position}"
            if item["type"] == "reasoning":
                item["encrypted_content"] = f"ENC-{number}-{position}-" + "x" * 20
            items.append(item)
        self._made[items[0]["id"]] = items, digest(payload["input"])
        self._ids |= {item["id"] for item in items}
        used = {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 20}
        used |= {"output_tokens_details": {"reasoning_tokens": 12}, "total_tokens": 110}
        response = {"id": f"resp_{number}", "object": "response", "model": "gpt-x-2026", "service_tier": "default"}
        return stream(sent_events(items, response | {"status": "completed", "error": None, "usage": used}))

    def _accepted(self, payload: dict[str, Any]) -> int:
        """Return the number of answers in a request. Raises AssertionError if it breaks a rule."""
        assert payload["stream"] is True
        assert payload["store"] is False
        assert "reasoning.encrypted_content" in payload["include"], "the reasoning would be lost"
        items, at, turns = payload["input"], 0, 0
        open_calls: dict[str, str] = {}
        while at < len(items):
            item = items[at]
            kind = item.get("type", "message")
            if item.get("id") in self._ids:
                assert item["id"] in self._made, f"Item {item['id']!r} was provided without the items before it."
                answer, request = self._made[item["id"]]
                sent = items[at : at + len(answer)]
                assert sent == answer, f"The items of the answer of {item['id']!r} were lost, altered or reordered."
                assert digest(items[:at]) == request, f"The input before {item['id']!r} is not what was answered."
                open_calls |= {one["call_id"]: one["type"] for one in answer if "call_id" in one}
                turns, at = turns + 1, at + len(answer)
                continue
            if kind.endswith("_call_output"):
                made = open_calls.pop(item["call_id"], None)
                assert f"{made}_output" == kind, f"No tool call found for {kind} with call_id {item['call_id']}."
            else:
                assert not open_calls, f"No tool output found for function call {next(iter(open_calls))}."
                assert item.get("role") in ("user", "system", "developer"), f"Unknown item {item}"
            at += 1
        assert not open_calls, f"No tool output found for function call {next(iter(open_calls))}."
        return turns
