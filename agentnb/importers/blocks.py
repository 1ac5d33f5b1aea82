"""Blocks: the parts of a message in the shapes of many tools, in the one shape that the other modules read.

That shape is Anthropic's (`text`, `thinking`, `tool_use`, `tool_result`), with pictures and files in the shapes that
the model clients know. Bedrock's Converse, Gemini, the Vercel AI SDK, AgentDojo and Inspect have shapes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from agentnb.core.json import to_json_data

Block = dict[str, Any]

MEDIA = frozenset({"image", "image_url", "input_image", "document", "file", "input_file", "audio", "input_audio"})
"""The types of blocks with pictures, files and sound, which are carried as they are."""
_TEXTS = frozenset({"text", "input_text", "output_text"})


def read_block(given: Any) -> Block:
    """Return a block in the shape that is read here. A block of a shape that is not known is returned as it is."""
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if not isinstance(given, Mapping):
        return {"type": "text", "text": to_json(given).decode()}
    block = dict(given)
    kind = block.get("type")
    return _of_type(kind, block) if isinstance(kind, str) else _without_type(block)


def text_in(block: Block) -> str | None:
    """Return the text of a block that `read_block` returned, if it is one of text; else None."""
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else None


def as_text(block: Mapping[str, Any]) -> Block:
    """Return the block of text that shows a block of an unknown shape: its JSON."""
    return {"type": "text", "text": to_json(to_json_data(dict(block))).decode()}


def _of_type(kind: str, block: Block) -> Block:
    """Return a block that names its type."""
    if kind in _TEXTS:
        text = block.get("text", block.get("content"))  # AgentDojo has `content`
        more = {name: one for name, one in block.items() if name not in ("type", "text", "content", "annotations")}
        more = {name: one for name, one in more.items() if one not in (None, [], {})}
        return {"type": "text", "text": text, **more} if isinstance(text, str) else block
    if kind == "refusal" and isinstance(block.get("refusal"), str):
        return {"type": "text", "text": block["refusal"]}
    if kind in ("thinking", "reasoning") and not isinstance(block.get("thinking", block.get("reasoning")), str):
        return {**block, "type": "thinking", "thinking": _thinking(block)}
    if kind in ("tool-call", "tool_call", "toolCall"):
        return {
            "type": "tool_use",
            "id": block.get("toolCallId", block.get("id")),
            "name": block.get("toolName", block.get("name")),
            "input": next((block[name] for name in ("input", "args", "arguments") if name in block), None),
        }
    if kind == "tool-result":
        output = block.get("output", block.get("result"))
        is_error = bool(block.get("isError"))
        if isinstance(output, Mapping) and isinstance(output.get("type"), str) and "value" in output:
            is_error, output = is_error or output["type"].startswith("error"), output["value"]
        return _result(block.get("toolCallId"), output, is_error=is_error)
    if kind == "image" and isinstance(image := block.get("image"), str):  # of the Vercel AI SDK
        media = str(block.get("mediaType") or block.get("mimeType") or "image/png")
        address = image if image.startswith(("data:", "http://", "https://")) else f"data:{media};base64,{image}"
        return {"type": "image_url", "image_url": {"url": address}}
    if kind == "data" and isinstance(inner := block.get("data"), Mapping) and inner.get("type") in MEDIA:
        return dict(inner)  # of an exported log of Inspect
    return block


def _thinking(block: Block) -> str:
    """Return the text of a block of thinking, which may be in parts or under another name."""
    for name in ("thinking", "reasoning", "text", "content", "summary"):
        if isinstance(found := block.get(name), str):
            return found
        if isinstance(found, list) and found:
            return "\n".join(str(part.get("text") or "") for part in found if isinstance(part, Mapping))
    return ""


def _without_type(block: Block) -> Block:
    """Return a block that its only field describes: of Bedrock's Converse, and of Gemini."""
    name, value = next(((name, one) for name, one in block.items() if name in _FIELDS), ("", None))
    if name == "text" and isinstance(value, str):
        if block.get("thought") is True:
            return {"type": "thinking", "thinking": value, "signature": block.get("thoughtSignature")}
        return {"type": "text", "text": value}
    if not isinstance(value, Mapping):
        return block
    if name == "toolUse":
        return {
            "type": "tool_use",
            "id": value.get("toolUseId"),
            "name": value.get("name"),
            "input": value.get("input"),
        }
    if name == "toolResult":
        return _result(value.get("toolUseId"), value.get("content"), is_error=value.get("status") == "error")
    if name == "reasoningContent":
        text = value.get("reasoningText")
        if isinstance(text, Mapping):
            return {"type": "thinking", "thinking": str(text.get("text") or ""), "signature": text.get("signature")}
        return {"type": "redacted_thinking", "data": value.get("redactedContent")}
    if name in ("functionCall", "function_call"):
        return {"type": "tool_use", "id": value.get("id"), "name": value.get("name"), "input": value.get("args")}
    if name in ("functionResponse", "function_response"):
        return {**_result(value.get("id"), value.get("response")), "name": value.get("name")}
    if name in ("inlineData", "inline_data"):
        return _media(value.get("mimeType", value.get("mime_type")), value.get("data")) or block
    source = value.get("source")  # a picture or a document of Bedrock
    data = source.get("bytes") if isinstance(source, Mapping) else None
    media = f"image/{value.get('format')}" if name == "image" else f"application/{value.get('format')}"
    return _media(media, data) or block


_FIELDS = frozenset(
    {"text", "toolUse", "toolResult", "reasoningContent", "image", "document", "inlineData", "inline_data"}
    | {"functionCall", "function_call", "functionResponse", "function_response"}
)


def _media(media: Any, data: Any) -> Block | None:
    """Return the block of data in base64; None if it has none."""
    if not isinstance(media, str) or not isinstance(data, str):
        return None
    kind = media.partition("/")[0]
    source = {"type": "base64", "media_type": media, "data": data}
    return {"type": kind if kind in ("image", "audio") else "document", "source": source}


def _result(id: Any, content: Any, *, is_error: bool = False) -> Block:
    if isinstance(content, list):  # of Bedrock: a part may be data
        parts = [one["json"] if isinstance(one, Mapping) and one.keys() == {"json"} else one for one in content]
        content = parts[0] if len(parts) == 1 and not isinstance(parts[0], Mapping) else parts
    return {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error}
