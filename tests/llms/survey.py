"""A survey of recorded answers: how agentnb reads them, compared with the official clients.

    python -m tests.llms.survey FOLDER... [--chop] [--differ]

Each recorded answer is served on this machine, asked for by a client of agentnb and by the official client (the
packages openai and anthropic), and what the two have read is compared, field by field. Prints a table in Markdown with
a row for each provider and dialect, and then what differs, with the reason if it is known. `--chop` cuts the streams at
every byte: the events that are decoded must be the same, and a stream of at most 8,000 bytes is also sent with each
byte as a chunk of its own. `--differ` prints every answer that differs without a known reason. The exit code is 1 if
there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentnb.core.errors import ModelError, UsageError
from agentnb.llms import Anthropic, OpenAI
from agentnb.llms.reader import STOP_REASONS
from agentnb.llms.sse import ServerSentEvent, SSEDecoder
from tests.llms.peer import END, Peer, Reply, head, part
from tests.llms.recordings import SUFFIXES, Answer, answers

HEADS = ("provider", "dialect", "answers", "agree", "differ, explained", "differ", "official client fails")
MOST = 8_000
"""The size of the largest stream that is sent byte by byte."""


@dataclass
class Reading:
    """What a client has read of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, float] = field(default_factory=dict)
    error: str = ""
    status: int | None = None
    failed: str = ""
    """Why the client could not read the answer, if the server has not reported an error."""


# agentnb's reading.


async def read_by_agentnb(answer: Answer, peer: Peer, tools: Sequence[str]) -> Reading:
    """Return what agentnb reads of the answer that the peer sends next."""
    if answer.dialect == "anthropic":
        llm: Any = Anthropic("m", peer.url, max_retries=0, timeout=30)
    else:
        api: Any = answer.dialect
        llm = OpenAI("m", f"{peer.url}/v1", api=api, max_retries=0, timeout=30)
    reading, pieces = Reading(), {"text_delta": [], "reasoning_delta": []}
    calls: dict[int, dict[str, str]] = {}
    offered = [{"name": name, "parameters": {"type": "object"}} for name in tools]
    try:
        async for chunk in llm.stream([{"role": "user", "content": "x"}], tools=offered or None):
            match chunk["type"]:
                case "text_delta" | "reasoning_delta" as kind:
                    pieces[kind].append(chunk["content"])
                case "tool_call_delta":
                    call = calls.setdefault(chunk["index"], {"name": "", "arguments": ""})
                    call["name"] = chunk.get("name", call["name"])
                    call["arguments"] += chunk["arguments"]
                case "usage":
                    reading.usage = {name: value for name, value in chunk.items() if name != "type"}
                case "stop":
                    reading.finish = chunk["reason"]
    except (ModelError, UsageError) as error:
        reading.error = f"{type(error).__name__}: {error}"
        reading.status = getattr(error, "status", None)
    finally:
        await llm.aclose()
    reading.text, reading.reasoning = ("".join(one) for one in pieces.values())
    reading.calls = [(call["name"], _arguments(call["arguments"])) for _, call in sorted(calls.items())]
    return reading


def _arguments(text: Any) -> Any:
    """Return the arguments of a call as data, or their text if they are not JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


# The reading of the official clients.


def official_clients(peer: Peer) -> dict[str, Callable[[Answer], Reading]]:
    """Return a function for each dialect whose official client is installed."""
    found: dict[str, Callable[[Answer], Reading]] = {}
    try:
        import openai

        client = openai.OpenAI(api_key="x", base_url=f"{peer.url}/v1", max_retries=0, timeout=30)
        read = {"chat": _read_chat, "responses": _read_responses}
        for dialect, reader in read.items():
            found[dialect] = _guarded(reader, client, openai.APIStatusError, openai.APIError)
    except ImportError:
        pass
    try:
        import anthropic

        other = anthropic.Anthropic(api_key="x", base_url=peer.url, max_retries=0, timeout=30)
        found["anthropic"] = _guarded(_read_message, other, anthropic.APIStatusError, anthropic.APIError)
    except ImportError:
        pass
    return found


def _guarded(
    read: Callable[[Any, bool], Reading], client: Any, of_status: type[Exception], of_api: type[Exception]
) -> Callable[[Answer], Reading]:
    """Return a reader that turns the errors of a client into a reading."""

    def guarded(answer: Answer) -> Reading:
        try:
            return read(client, answer.is_stream)
        except of_status as error:
            return Reading(error=str(error), status=error.status_code)  # type: ignore[attr-defined]
        except of_api as error:
            is_report = getattr(error, "body", None) is not None
            return Reading(error=str(error)) if is_report else Reading(failed=f"{type(error).__name__}: {error}")
        except Exception as error:
            return Reading(failed=f"{type(error).__name__}: {error}")

    return guarded


def _read_chat(client: Any, streamed: bool) -> Reading:
    given = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=streamed)
    if not streamed:
        if not given.choices:
            raise ValueError("no choices")
        said, finish, usage = given.choices[0].message, given.choices[0].finish_reason, given.usage
        calls = [_function(call) for call in said.tool_calls or ()]
        if not calls and said.function_call is not None:
            calls = [(said.function_call.name, _arguments(said.function_call.arguments))]
        text = (said.content or "") if isinstance(said.content, str | None) else json.dumps(said.content)
        return _chat_reading(text, said.refusal, [said], calls, finish, usage)
    text, refusal, deltas, made = "", "", [], {}
    finish = usage = first = None
    for chunk in given:
        usage = chunk.usage or usage
        for choice in chunk.choices or ():
            first = choice.index if first is None else first
            if choice.index != first:
                continue
            finish = choice.finish_reason or finish
            if (delta := choice.delta) is None:
                continue
            deltas.append(delta)
            text += delta.content if isinstance(delta.content, str) else ""
            refusal += delta.refusal or ""
            for position, piece in enumerate(delta.tool_calls or ()):
                at = piece.index if piece.index is not None else position
                call = made.setdefault(at, ["", ""])
                call[0] += (piece.function and piece.function.name) or ""
                call[1] += (piece.function and piece.function.arguments) or ""
    calls = [(name, _arguments(given)) for name, given in made.values()]
    return _chat_reading(text, refusal, deltas, calls, finish, usage)


def _function(call: Any) -> tuple[str, Any]:
    function = getattr(call, "function", None)
    return (function.name, _arguments(function.arguments)) if function is not None else (call.custom.name, call.custom)


def _chat_reading(
    text: str, refusal: str | None, deltas: Iterable[Any], calls: list[Any], finish: str | None, usage: Any
) -> Reading:
    thoughts = []
    for delta in deltas:
        extra = delta.model_extra or {}
        found = (extra.get(name) for name in ("reasoning_content", "reasoning"))
        thoughts.append(next((one for one in found if isinstance(one, str) and one), ""))
    reason = _finish(finish, bool(calls), bool(refusal))
    counted = _counts(
        usage,
        input_tokens=("prompt_tokens",),
        output_tokens=("completion_tokens",),
        cache_read_tokens=("prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=("completion_tokens_details", "reasoning_tokens"),
    )
    return Reading(text + (refusal or ""), "".join(thoughts), calls, reason, counted)


def _finish(reason: str | None, has_calls: bool, is_refusal: bool) -> str:
    """Return a stop reason of a server as agentnb names it."""
    ours = STOP_REASONS.get((reason or "stop").lower(), reason or "stop")
    if has_calls and ours not in ("length", "content_filter", "refusal", "pause"):
        return "tool_calls"
    return "refusal" if ours == "stop" and is_refusal else ours


def _counts(usage: Any, **paths: Sequence[str]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for name, path in paths.items():
        found = usage
        for step in path:
            found = found.get(step) if isinstance(found, Mapping) else getattr(found, step, None)
        if isinstance(found, int | float):
            counts[name] = found
    return counts


def _read_responses(client: Any, streamed: bool) -> Reading:
    given = client.responses.create(model="m", input="x", stream=streamed)
    if streamed:
        last = None
        for event in given:
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                last = event.response
            elif event.type == "error":
                return Reading(error=str(event.message))
        if last is None:
            raise ValueError("no event that ends the response")
        given = last
    if given.error is not None:
        return Reading(error=given.error.message)
    said, thoughts, calls, refused = "", [], [], False
    for item in given.output or ():
        if item.type == "message":
            for piece in item.content:
                refused = refused or piece.type == "refusal"
                said += getattr(piece, "text", None) or getattr(piece, "refusal", None) or ""
        elif item.type == "reasoning":
            parts = [*(item.summary or ()), *(item.content or ())]
            thoughts.append("\n\n".join(one.text for one in parts))
        elif item.type == "function_call":
            calls.append((item.name, _arguments(item.arguments)))
    reason = None
    if given.status == "incomplete":
        reason = (given.incomplete_details and given.incomplete_details.reason) or "incomplete"
    counted = _counts(
        given.usage,
        input_tokens=("input_tokens",),
        output_tokens=("output_tokens",),
        cache_read_tokens=("input_tokens_details", "cached_tokens"),
        reasoning_tokens=("output_tokens_details", "reasoning_tokens"),
    )
    return Reading(said, "".join(thoughts), calls, _finish(reason, bool(calls), refused), counted)


def _read_message(client: Any, streamed: bool) -> Reading:
    asked: Any = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    if streamed:
        with client.beta.messages.stream(**asked) as stream:
            given = stream.get_final_message()
    else:
        given = client.beta.messages.create(**asked)
    if given.type == "error":
        return Reading(error=str(given.error))
    reading = Reading(finish="")
    for block in given.content:
        if block.type == "text":
            reading.text += block.text
        elif block.type == "thinking":
            reading.reasoning += block.thinking
        elif block.type == "tool_use":
            reading.calls.append((block.name, block.input))
    reading.finish = _finish(given.stop_reason, bool(reading.calls), False)
    counts = _counts(
        given.usage,
        input_tokens=("input_tokens",),
        output_tokens=("output_tokens",),
        cache_read_tokens=("cache_read_input_tokens",),
        cache_write_tokens=("cache_creation_input_tokens",),
    )
    cached = counts.get("cache_read_tokens", 0) + counts.get("cache_write_tokens", 0)
    if "input_tokens" in counts:
        counts["input_tokens"] += cached
    reading.usage = counts
    return reading


# The comparison.


def differences(ours: Reading, theirs: Reading) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, with both values: agentnb's first."""
    if ours.error or theirs.error:
        if not (ours.error and theirs.error):
            return {"error": (ours.error, theirs.error)}
        return {"status": (ours.status, theirs.status)} if ours.status != theirs.status else {}
    found: dict[str, tuple[Any, Any]] = {}
    for name in ("text", "reasoning", "calls", "finish"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            found[name] = (mine, other)
    for name, count in theirs.usage.items():
        if count != ours.usage.get(name, 0):
            found[f"usage.{name}"] = (ours.usage.get(name), count)
    return found


def explanation(answer: Answer, name: str, ours: Reading, theirs: Reading) -> str:
    """Return the known reason for which a field differs, "" if there is none. agentnb's reading is meant in each."""
    for reason, applies in _REASONS.items():
        if applies(answer, name, ours, theirs):
            return reason
    return ""


Applies = Callable[[Answer, str, Reading, Reading], bool]
_REASONS: dict[str, Applies] = {
    "Bedrock's reasoning in the text, in tags, is reasoning": lambda answer, name, ours, theirs: (
        name in ("text", "reasoning") and theirs.text.lstrip().startswith("<reasoning>")
    ),
    "text and reasoning come as a list of parts, which the official client has no text for": lambda answer, *rest: (
        rest[0] in ("text", "reasoning") and answer.dialect == "chat" and b'"thinking"' in answer.body
    ),
    "Gemini's hidden reasoning, which only the total has, is output": lambda answer, name, ours, theirs: (
        name == "usage.output_tokens" and b"gemini" in answer.body
    ),
    "an item waits for the client, which agentnb refuses with advice": lambda answer, name, ours, theirs: (
        name == "error" and ours.error.startswith("UsageError: The model has made a")
    ),
    "an answer in the background has not been made yet": lambda answer, name, ours, theirs: (
        name == "error" and ("'queued'" in ours.error or "'in_progress'" in ours.error)
    ),
    "a call without a name and arguments is no call": lambda answer, name, ours, theirs: (
        name in ("calls", "finish") and theirs.calls == [("", {})] and not ours.calls
    ),
    "arguments of null are no arguments": lambda answer, name, ours, theirs: (
        name == "calls" and [(one, given or {}) for one, given in theirs.calls] == ours.calls
    ),
    "a name that is repeated in each piece is one name": lambda answer, name, ours, theirs: (
        name == "calls"
        and [given for _, given in ours.calls] == [given for _, given in theirs.calls]
        and all(other == mine * (len(other) // len(mine)) for (mine, _), (other, _) in _pairs(ours, theirs) if mine)
    ),
    "calls that share an index are separate calls": lambda answer, name, ours, theirs: (
        name == "calls" and len(ours.calls) > len(theirs.calls) and answer.dialect == "chat"
    ),
    "arguments that were cut off are kept as they came, not as an object": lambda answer, name, ours, theirs: (
        name == "calls" and len(ours.calls) == len(theirs.calls) and any(isinstance(of, str) for _, of in ours.calls)
    ),
    "what is no answer, or is cut off, is an error": lambda answer, name, ours, theirs: (
        name == "error" and ours.error.startswith("ModelProtocolError") and "ended" in ours.error
    ),
    "an error that the stream reports is an error": lambda answer, name, ours, theirs: (
        name == "error" and bool(ours.error) and b"\nerror: {" in answer.body
    ),
    "custom tools are refused in chat completions": lambda answer, name, ours, theirs: (
        name == "error" and "custom tool" in ours.error and answer.dialect == "chat"
    ),
    "a text whose pieces differ from its end is that of its pieces": lambda answer, name, ours, theirs: (
        name == "text" and answer.dialect == "responses" and _pieces_of(answer) == ours.text
    ),
    "the status is that of the error in a stream": lambda answer, name, ours, theirs: (
        name == "status" and theirs.status is None and answer.status == 200
    ),
    "what a compaction or an adviser has used is counted too": lambda answer, name, ours, theirs: (
        name.startswith("usage.") and any(part in answer.body for part in (b'"compaction"', b'"advisor_message"'))
    ),
}
"""The known reasons, and when each applies."""


def _pieces_of(answer: Answer) -> str:
    """Return the text of the pieces of a stream of the Responses API."""
    lines = (line.partition("data: ")[2] for line in answer.body.decode("utf-8", "replace").splitlines())
    events = (json.loads(line) for line in lines if line.startswith("{"))
    return "".join(event["delta"] for event in events if event.get("type") == "response.output_text.delta")


def _pairs(ours: Reading, theirs: Reading) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    return zip(ours.calls, theirs.calls, strict=False)


@dataclass
class Row:
    """The counts of one provider and dialect."""

    answers: int = 0
    agree: int = 0
    explained: int = 0
    differ: int = 0
    failed: int = 0


@dataclass
class Survey:
    """What was found: the rows, the reasons that are known, and the answers that differ without one."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    differing: list[tuple[Answer, dict[str, tuple[Any, Any]]]] = field(default_factory=list)

    def table(self) -> str:
        """Return the rows as a table in Markdown, with their sum."""
        lines = [HEADS, ["---"] * len(HEADS)]
        total = Row()
        for (provider, dialect), row in sorted(self.rows.items(), key=lambda one: (one[0][1], -one[1].answers)):
            lines.append([provider, dialect, *(f"{number:,}" for number in vars(row).values())])
            for name, number in vars(row).items():
                setattr(total, name, getattr(total, name) + number)
        lines.append(["all", "", *(f"{number:,}" for number in vars(total).values())])
        return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def reply(answer: Answer, *, chopped: bool = False) -> Reply:
    """Return an answer as the peer sends it."""
    started = head(answer.status, answer.media_type)
    if not (chopped and answer.is_stream) or len(answer.body) > MOST:
        return [started, part(answer.body), END]
    return [started + b"".join(part(answer.body[n : n + 1]) for n in range(len(answer.body))), END]


def events(pieces: Iterable[bytes]) -> list[ServerSentEvent | None]:
    """Return the events of a stream that comes in pieces."""
    decoder = SSEDecoder()
    return [*(event for piece in pieces for event in decoder.feed(piece)), decoder.close()]


async def survey(recorded: Iterable[Answer], *, chopped: bool = False) -> Survey:
    """Compare the readings of all recorded answers. An answer that was recorded twice is read once."""
    found, seen, peer = Survey(), set(), Peer()
    clients = official_clients(peer)
    try:
        for answer in recorded:
            key = (answer.dialect, answer.status, answer.body)
            if answer.dialect not in clients or key in seen:
                continue
            seen.add(key)
            peer.requests.clear()
            peer.replies(reply(answer))
            theirs = clients[answer.dialect](answer)
            peer._replies.clear()
            peer.replies(reply(answer, chopped=chopped))
            ours = await read_by_agentnb(answer, peer, list(dict.fromkeys(name for name, _ in theirs.calls if name)))
            peer._replies.clear()
            differ = {} if theirs.failed else differences(ours, theirs)
            if chopped and answer.is_stream:
                whole, cut = events([answer.body]), events(answer.body[n : n + 1] for n in range(len(answer.body)))
                differ |= {"chopped": (cut, whole)} if cut != whole else {}
            _count(found, answer, ours, theirs, differ)
    finally:
        peer.close()
    return found


def _count(
    found: Survey, answer: Answer, ours: Reading, theirs: Reading, differ: Mapping[str, tuple[Any, Any]]
) -> None:
    row = found.rows.setdefault((answer.provider, answer.dialect), Row())
    row.answers += 1
    if theirs.failed and not differ:
        row.failed += 1
        read = "agentnb raises too" if ours.error else "agentnb reads it"
        found.failures[f"{answer.dialect}: {theirs.failed[:90]!r}: {read}"] += 1
        return
    reasons = {name: explanation(answer, name, ours, theirs) for name in differ}
    if not differ:
        row.agree += 1
    elif all(reasons.values()):
        row.explained += 1
        found.reasons.update(dict.fromkeys(reasons.values(), 1))
    else:
        row.differ += 1
        found.differing.append((answer, {name: differ[name] for name, why in reasons.items() if not why}))


def files(folders: Iterable[Path]) -> Iterator[Answer]:
    """Yield the answers in all files of the folders."""
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                yield from answers(file)


def main(words: Sequence[str] | None = None) -> int:
    """Print the survey of the recordings in the folders."""
    parser = argparse.ArgumentParser(prog="python -m tests.llms.survey", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--chop", action="store_true", help="cut the streams at every byte")
    parser.add_argument("--differ", action="store_true", help="print the answers that differ without a known reason")
    given = parser.parse_args(words)
    found = asyncio.run(survey(files(given.folders), chopped=given.chop))
    print(found.table())
    for reason, number in found.reasons.most_common():
        print(f"explained, {number:,}: {reason}")
    for failure, number in found.failures.most_common(30):
        print(f"the official client fails, {number:,}: {failure}")
    for answer, differ in found.differing if given.differ else ():
        print(f"differs: {answer.where} ({answer.provider}, {answer.dialect})")
        for name, (ours, theirs) in differ.items():
            print(f"    {name}: agentnb {str(ours)[:300]!r}, official {str(theirs)[:300]!r}")
    return 1 if found.differing else 0


if __name__ == "__main__":
    sys.exit(main())
