"""Read the stream of a model to its end, and assemble its chunks as a consumer does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable

    from agentnb.llms import Chunk, Model

from agentnb.core.errors import ModelError

GO = [{"role": "user", "content": "go"}]


async def collect(stream: AsyncIterable[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in stream]


async def ask(model: Model, /, text: str = "hello", **rest: Any) -> list[Chunk]:
    return await collect(model.stream([{"role": "user", "content": text}], **rest))


async def until_failure(stream: AsyncIterable[Chunk]) -> tuple[list[Chunk], ModelError]:
    """Return the chunks before the failure, and the failure."""
    seen: list[Chunk] = []
    try:
        async for chunk in stream:
            seen.append(chunk)
    except ModelError as error:
        return seen, error
    raise AssertionError(f"no failure after {seen}")


def text(chunks: Iterable[Chunk], kind: str = "text_delta") -> str:
    return "".join(chunk["content"] for chunk in chunks if chunk["type"] == kind)


def calls(chunks: Iterable[Chunk]) -> list[dict[str, str]]:
    """The tool calls that the deltas add up to, with their arguments as text."""
    found: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        if chunk["type"] == "tool_call_delta":
            call = found.setdefault(chunk["index"], {"arguments": ""})
            call |= {name: chunk[name] for name in ("id", "name") if name in chunk}
            call["arguments"] += chunk["arguments"]
    return [found[index] for index in sorted(found)]


def stop(chunks: list[Chunk]) -> str:
    assert [chunk["type"] for chunk in chunks].count("stop") == 1
    assert chunks[-1]["type"] == "stop"
    return str(chunks[-1]["reason"])


def only(chunks: Iterable[Chunk], kind: str) -> Chunk:
    (chunk,) = [chunk for chunk in chunks if chunk["type"] == kind]
    return chunk
