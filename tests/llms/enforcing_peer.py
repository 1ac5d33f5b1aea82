"""Servers that enforce what a protocol demands of a conversation with reasoning and calls, over a real socket.

A server answers from a script. It refuses, with status 400 and a sentence, a request in which a part of one of its
answers is missing, changed or at another position, in which anything before an answer differs from the request that
was answered, and in which a call has no result. `refused` has the messages. Each byte is a chunk of its own if
`chopped` is True.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.llms.peer import END, Peer, Request, body, head, part

Json = dict[str, Any]


def digest(items: Sequence[Json]) -> str:
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:12]


def pieces(text: str) -> list[str]:
    return [text[n : n + 7] for n in range(0, len(text), 7)]


def server_sent(events: Iterator[Json]) -> bytes:
    """Return events as they are sent, with their type as a name."""
    sent = []
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        sent.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
    return b"".join(sent)


class EnforcingPeer(Peer):
    """A server with rules. `turns`: the parts of each answer of a conversation, or a function that returns them."""

    def __init__(self, turns: Sequence[Sequence[Any]] | Callable[[int], Sequence[Any]], *, chopped: bool = False):
        super().__init__()
        self._turns = turns if callable(turns) else turns.__getitem__
        self._chopped = chopped
        self._made: dict[str, tuple[Any, str]] = {}  # an answer and the digest of its request, by its mark
        self.refused: list[str] = []

    @abstractmethod
    def _accepted(self, payload: Json) -> int:
        """Return the number of answers in a request. Raises AssertionError if it breaks a rule."""

    @abstractmethod
    def _answer(self, turn: int, payload: Json) -> bytes:
        """Return the answer of a turn, and keep it with what was asked."""

    def _fault(self, message: str) -> object:
        """Return the body of an error."""
        return {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": None}}

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        payload = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(Request(first.split()[1], headers, payload))
        try:
            turn = self._accepted(payload)
        except (AssertionError, ValueError) as error:
            self.refused.append(str(error))
            for step in body(400, self._fault(str(error))):
                assert isinstance(step, bytes)
                writer.write(step)
            return True
        sent = self._answer(turn, payload)
        writer.write(head())
        for piece in (sent[n : n + 1] for n in range(len(sent))) if self._chopped else [sent]:
            writer.write(part(piece))
        writer.write(END)
        await writer.drain()
        return True


class AnthropicPeer(EnforcingPeer):
    """Anthropic's messages API with interleaved thinking. An answer is a list of blocks; the server adds the marks."""

    def _answer(self, turn: int, payload: Json) -> bytes:
        number = len(self._made)
        blocks: list[Json] = []
        for position, given in enumerate(self._turns(turn)):
            block = dict(given)
            mark = f"{number}_{position}"
            if block["type"] == "thinking":
                block["signature"] = f"SIG-{mark}+/=="
            elif block["type"] == "redacted_thinking":
                block["data"] = f"DATA-{mark}+/=="
            elif block["type"] == "tool_use":
                block["id"] = f"toolu_{mark}"
            blocks.append(block)
        self._made[_mark_of(blocks)] = blocks, digest(_unmarked(payload["messages"]))
        return server_sent(_anthropic_events(blocks))

    def _accepted(self, payload: Json) -> int:
        messages, turns = _unmarked(payload["messages"]), 0
        open_calls: list[str] = []
        for at, message in enumerate(messages):
            blocks = message["content"]
            if message["role"] == "assistant":
                made = self._made.get(_mark_of(blocks))
                assert made is not None, f"messages.{at}: the thinking before a tool_use was lost or reordered."
                answer, request = made
                assert blocks == answer, f"messages.{at}: the blocks of this answer were lost, altered or reordered."
                assert digest(messages[:at]) == request, f"messages.{at}: what was answered is not what was asked."
                open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
                turns += 1
                continue
            results = [block["tool_use_id"] for block in blocks[: len(open_calls)] if block["type"] == "tool_result"]
            assert sorted(results) == sorted(open_calls), f"messages.{at}: tool_use without tool_result after it."
            open_calls = []
        assert messages[-1]["role"] == "user", "the conversation must end with a user message."
        return turns

    def _fault(self, message: str) -> object:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _mark_of(blocks: Sequence[Json]) -> str:
    """Return what identifies an answer: the mark of its first block that has one, else its text."""
    for name in ("signature", "data", "id"):
        for block in blocks:
            if block.get(name):
                return str(block[name]).partition("-")[2] or str(block[name])
    return json.dumps(blocks)


def _unmarked(messages: Sequence[Json]) -> list[Json]:
    """Return the messages without the marks for the cache."""

    def plain(block: Json) -> Json:
        return {name: value for name, value in block.items() if name != "cache_control"}

    return [{**message, "content": [plain(block) for block in message["content"]]} for message in messages]


def _anthropic_events(blocks: Sequence[Json]) -> Iterator[Json]:
    """Yield the events of a message as Anthropic sends them."""
    usage = {"input_tokens": 90, "output_tokens": 1}
    yield {"type": "message_start", "message": {"id": "msg_1", "model": "claude-x", "content": [], "usage": usage}}
    for index, block in enumerate(blocks):
        empty = {"thinking": "", "signature": "", "text": "", "input": {}}
        opened = block | {name: value for name, value in empty.items() if name in block}
        yield {"type": "content_block_start", "index": index, "content_block": opened}
        deltas: list[Json] = []
        if block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        elif block["type"] == "tool_use":
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text)]]
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


class GeminiPeer(EnforcingPeer):
    """Gemini's chat completions. An answer is `{"thought": ..., "content": ..., "calls": [(name, arguments), ...]}`.

    The first call of an answer is signed, or the text if there is none. Calls have no id and no index.
    """

    def _answer(self, turn: int, payload: Json) -> bytes:
        number = len(self._made)
        (given,) = self._turns(turn)
        signed = {"extra_content": {"google": {"thought_signature": f"SIG-{number}+/=="}}}
        answer: Json = {"content": given.get("content", "")}
        if calls := given.get("calls"):
            made = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
            answer["tool_calls"] = [{"function": one, **(signed if n == 0 else {})} for n, one in enumerate(made)]
        else:
            answer |= signed
        self._made[f"SIG-{number}+/=="] = answer, digest(payload["messages"])
        return server_sent(_gemini_events(given.get("thought", ""), answer)) + b"data: [DONE]\n\n"

    def _accepted(self, payload: Json) -> int:
        messages, turns = payload["messages"], 0
        open_calls: list[str] = []
        seen: set[str] = set()
        for at, message in enumerate(messages):
            if message["role"] == "tool":
                assert message["tool_call_id"] in open_calls, f"Message {at} is the result of no call."
                open_calls.remove(message["tool_call_id"])
                continue
            assert not open_calls, "The number of function responses is not that of the function calls."
            if message["role"] != "assistant":
                continue
            calls = message.get("tool_calls", [])
            parts = [message, *calls]
            signatures = [
                one["extra_content"]["google"]["thought_signature"] for one in parts if "extra_content" in one
            ]
            assert len(signatures) == 1, "Function call is missing a thought_signature in functionCall parts."
            assert signatures[0] in self._made, "Corrupted thought signature."
            answer, request = self._made[signatures[0]]
            kept = {name: message[name] for name in ("content", "extra_content") if name in message}
            if calls:
                kept["tool_calls"] = [
                    {name: value for name, value in call.items() if name not in ("id", "type")} for call in calls
                ]
            assert kept == answer, f"Message {at}: an answer was altered, or its signature is at another position."
            assert digest(messages[:at]) == request, f"What was asked before message {at} is not what was answered."
            open_calls = [call["id"] for call in calls]
            assert not seen & set(open_calls), "Two calls have the same id."
            assert len(set(open_calls)) == len(open_calls), "Two calls have the same id."
            seen |= set(open_calls)
            turns += 1
        assert not open_calls, "The number of function responses is not that of the function calls."
        return turns

    def _fault(self, message: str) -> object:
        return [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]


def _gemini_events(thought: str, answer: Json) -> Iterator[Json]:
    """Yield the events of an answer as Gemini sends them."""
    deltas: list[Json] = []
    marked = {"extra_content": {"google": {"thought": True}}}
    deltas += [{"content": piece, **marked} for piece in pieces(f"<thought>{thought}")] if thought else []
    deltas += [{"content": piece} for piece in pieces("</thought>" * bool(thought) + answer["content"])]
    deltas += [{"tool_calls": [{"id": "", "type": "function", **call}]} for call in answer.get("tool_calls", ())]
    if "extra_content" in answer:
        deltas.append({"content": None, "extra_content": answer["extra_content"]})
    for number, delta in enumerate(deltas, 1):
        choice = {"index": 0, "delta": {"role": "assistant", **delta}}
        ends = {"finish_reason": "stop"} if number == len(deltas) else {}
        usage = {"prompt_tokens": 90, "completion_tokens": number, "total_tokens": 100 + number}
        yield {"id": "g", "model": "gemini-3-x", "choices": [choice | ends], "usage": usage}
