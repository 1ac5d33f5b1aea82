"""A survey of what is sent back: the items, blocks and signatures of recorded answers in the request after them.

    python -m tests.llms.sent_back FOLDER... [--differ]

Each recorded answer that has reasoning, a call or a signature is given to a run, and the next request of its
conversation is compared with it: encrypted reasoning, thinking with its signature, calls, and the blocks that only the
server can read have to be there as they came, and in their order. Prints a table in Markdown with a row for each API.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentnb import SessionLoop
from agentnb.errors import AgentnbError
from agentnb.llms import Anthropic, OpenAI
from tests.llms.peer import HELLO, Peer
from tests.llms.recordings import Answer
from tests.llms.survey import files, reply

Json = dict[str, Any]


def parts_of(answer: Answer) -> list[Json]:
    """Return what an answer has to be sent back of: items, blocks, or a message; [] if there is nothing to compare."""
    documents = _documents(answer)
    if answer.dialect == "responses":
        return _items(documents)
    if answer.dialect == "anthropic":
        return _blocks(documents)
    return _signed(documents)


def _documents(answer: Answer) -> list[Json]:
    """Return the JSON objects of an answer: one, or the events of a stream."""
    text = answer.body.decode("utf-8", "replace")
    lines = [line[5:] for line in text.splitlines() if line.startswith("data:")] if answer.is_stream else [text]
    found = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        found += [document] if isinstance(document, dict) else []
    return found


def _items(documents: Iterable[Json]) -> list[Json]:
    ends = [one.get("response", one) for one in documents if one.get("type") in (None, "response.completed")]
    if not ends or not isinstance(ends[-1].get("output"), list):
        return []
    # The last event has the items again, some encrypted anew.
    closed = [one for one in documents if one.get("type") == "response.output_item.done"]
    done = [one["item"] for one in sorted(closed, key=lambda one: one["output_index"])]
    output = done if len(done) == len(ends[-1]["output"]) else ends[-1]["output"]
    # Reasoning that is neither encrypted nor shown is found by the server by its id, if it has stored it.
    items = [
        item for item in output if item["type"] != "reasoning" or item.get("encrypted_content") or item.get("content")
    ]
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    wanted = ("type", "id", "encrypted_content", "summary", "name", "call_id", "namespace", "phase")
    kept = []
    for item in items:
        if item["type"] in ("message", "reasoning", "function_call"):
            part = {name: item[name] for name in wanted if item.get(name) is not None}
            if item["type"] == "message":
                part["text"] = "".join(str(one.get("text", one.get("refusal"))) for one in item["content"])
            if item["type"] == "function_call":
                part["arguments"] = _data(item["arguments"])
            kept.append(part)
        else:
            kept.append(item)
    kept = [part for part in kept if part.get("text") != ""]
    return kept if any(part["type"] != "message" for part in kept) else []


def _blocks(documents: Iterable[Json]) -> list[Json]:
    blocks: list[Json] = []
    for event in documents:
        match event.get("type"):
            case "message":
                blocks = [dict(block) for block in event["content"]]
            case "content_block_start":
                blocks.append({**event["content_block"], "_json": ""})
            case "content_block_delta":
                delta = event["delta"]
                for name in ("text", "thinking", "signature", "content"):
                    if isinstance(piece := delta.get(name), str):
                        blocks[-1][name] = (blocks[-1].get(name) or "") + piece
                if delta["type"] == "citations_delta":
                    blocks[-1]["citations"] = [*(blocks[-1].get("citations") or ()), delta["citation"]]
                blocks[-1]["_json"] += delta.get("partial_json", "")
            case _:
                pass
    for block in blocks:
        if text := block.pop("_json", ""):
            block["input"] = _data(text)
    kept = [block for block in blocks if block["type"] != "text" or block["text"].strip()]
    while kept and kept[-1]["type"] in ("thinking", "redacted_thinking"):
        kept.pop()
    return [_block(block) for block in kept] if any(block["type"] != "text" for block in kept) else []


def _block(block: Json) -> Json:
    """Return the fields of a block that have to come back."""
    if block["type"] == "tool_use":
        return {name: block[name] for name in ("type", "id", "name", "input")}
    return {name: value for name, value in block.items() if name != "cache_control" and value not in (None, [], "")}


def _signed(documents: Iterable[Json]) -> list[Json]:
    """Return the signatures and the reasoning of an answer of chat completions, if it has calls."""
    message: Json = {}
    calls: list[Json] = []
    for event in documents:
        for choice in (event.get("choices") or ())[:1]:
            delta = choice.get("message") or choice.get("delta") or {}
            for name in ("reasoning_content", "reasoning"):
                if isinstance(piece := delta.get(name), str) and piece:
                    message[name] = message.get(name, "") + piece
            for detail in delta.get("reasoning_details") or ():  # of OpenRouter, which wants these instead
                message["signed"] = message.get("signed", "") + _signature(detail)
            if delta.get("extra_content"):
                message["extra_content"] = delta["extra_content"]
            calls += delta.get("tool_calls") or ()
    extra = [call["extra_content"] for call in calls if call.get("extra_content")]
    if "signed" in message or "reasoning_content" in message:
        message.pop("reasoning", None)
    if "signed" in message:
        message.pop("reasoning_content", None)
    has_signs = bool(extra or message)
    return [message | ({"calls": extra} if extra else {})] if calls and has_signs else []


def _signature(detail: Json) -> str:
    """Return the text, the signature and the data of a reasoning detail."""
    return "".join(str(detail.get(name) or "") for name in ("text", "summary", "data", "signature"))


def _data(text: Any) -> Any:
    try:
        return json.loads(text or "{}") if isinstance(text, str) else text
    except ValueError:
        return text


class _Tool:
    description, parameters = "", {"type": "object", "properties": {}}

    def __init__(self, name: str) -> None:
        self.name = name

    async def execute(self, call_id: str, arguments: Any, signal: Any, on_update: Any) -> str:
        return "done"


async def sent_back(answer: Answer, peer: Peer, tools: Sequence[str]) -> list[Json]:
    """Return the answer as the next request of its conversation has it."""
    llm: Any = OpenAI(
        "m", f"{peer.url}/v1", api="responses" if answer.dialect == "responses" else "chat", max_retries=0
    )
    if answer.dialect == "anthropic":
        llm = Anthropic("m", peer.url, max_retries=0)
    peer.requests.clear()
    peer._replies.clear()
    peer.replies(reply(answer), HELLO, HELLO)  # what follows the request does not matter
    run = SessionLoop(llm, [_Tool(name) for name in tools], max_turns=2).start("x")
    with suppress(AgentnbError):
        await run
    if any(event.type == "model_end" for event in run.events) is False:
        await llm.aclose()
        raise ValueError("the answer was refused")
    if len(peer.requests) < 2:
        history = [dict(one) for one in run.state.messages if one.role in ("user", "assistant")]
        with suppress(AgentnbError):
            async for _ in llm.stream([*history, {"role": "user", "content": "On."}], tools=[]):
                pass
    await llm.aclose()
    body = peer.requests[1].body
    if answer.dialect == "responses":
        given = ("user", "function_call_output")
        items = [item for item in body["input"] if item.get("role") not in given and item.get("type") not in given]
        return [_as_part(item) for item in items]
    answers = [message for message in body["messages"] if message["role"] == "assistant"]
    if answer.dialect == "anthropic":
        return [_block(block) for message in answers for block in message["content"]]
    (message,) = answers
    extra = [call["extra_content"] for call in message.get("tool_calls", ()) if "extra_content" in call]
    kept = {name: message[name] for name in ("reasoning_content", "reasoning", "extra_content") if name in message}
    if "reasoning_details" in message:
        kept["signed"] = "".join(map(_signature, message["reasoning_details"]))
    return [kept | ({"calls": extra} if extra else {})]


def _as_part(item: Json) -> Json:
    """Return an item of a request as `parts_of` has it."""
    kind = item.get("type", "message")
    if kind not in ("message", "reasoning", "function_call"):
        return item
    wanted = ("id", "encrypted_content", "summary", "name", "call_id", "namespace", "phase")
    part = {"type": kind} | {name: item[name] for name in wanted if item.get(name) is not None}
    if kind == "message":
        content = item["content"]
        texts = [content] if isinstance(content, str) else [one.get("text", one.get("refusal")) for one in content]
        part["text"] = "".join(texts)
    if kind == "function_call":
        part["arguments"] = _data(item["arguments"])
    return part


async def survey(recorded: Iterable[Answer]) -> tuple[Counter[tuple[str, str]], list[tuple[Answer, Any, Any]]]:
    """Return the counts of answers by API and outcome, and those that differ: what is sent, and what should be."""
    counts: Counter[tuple[str, str]] = Counter()
    differing: list[tuple[Answer, Any, Any]] = []
    seen, peer = set(), Peer()
    try:
        for answer in recorded:
            if answer.status != 200 or answer.body in seen:
                continue
            seen.add(answer.body)
            try:
                wanted = parts_of(answer)
            except (KeyError, IndexError, TypeError, AttributeError):
                continue  # not a whole answer
            if not wanted:
                continue
            tools = dict.fromkeys(
                str(one["name"]) for one in wanted if one.get("type") in ("function_call", "tool_use")
            )
            try:
                sent = await sent_back(answer, peer, list(tools))
            except (IndexError, ValueError):
                counts[answer.dialect, "no request"] += 1
                continue
            counts[answer.dialect, "equal" if sent == wanted else "differ"] += 1
            if sent != wanted:
                differing.append((answer, sent, wanted))
    finally:
        peer.close()
    return counts, differing


def main(words: Sequence[str] | None = None) -> int:
    """Print the survey of the recordings in the folders."""
    parser = argparse.ArgumentParser(prog="python -m tests.llms.sent_back", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--differ", action="store_true", help="print what differs")
    given = parser.parse_args(words)
    counts, differing = asyncio.run(survey(files(given.folders)))
    print("| API | sent back as they came | differ | no further request |\n| --- | --- | --- | --- |")
    for dialect in ("chat", "responses", "anthropic"):
        numbers = (f"{counts[dialect, outcome]:,}" for outcome in ("equal", "differ", "no request"))
        print(f"| {dialect} | {' | '.join(numbers)} |")
    for answer, sent, wanted in differing if given.differ else ():
        print(f"differs: {answer.where}: {len(sent)} parts were sent, {len(wanted)} came")
        for one, other in zip(sent, wanted, strict=False):
            if one != other:
                names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
                print(f"    {other.get('type')}: {[(name, one.get(name), other.get(name)) for name in names]!s:.400}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
