"""Content blocks: the pieces of a tool's result that a model is sent unchanged, for example text and pictures.

A tool may return a list of blocks. Most lists that a tool returns are data, and many of these have a key `type`: files,
features of a map, nodes of a page. So a list counts as blocks only if each item is a block that a provider knows, with
the fields of this kind of block and no others. Anything else is data, and the model is sent it as JSON text.

A picture that a tool returns becomes a block: the bytes of a picture, an image of PIL, a figure of matplotlib, and any
object with a PNG representation. These libraries are not imported for it.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
"""The first bytes of the picture formats that providers accept, each with its media type; WEBP is the fourth."""

INSIDE = '"media_type":"image/'
"""A substring of the JSON text of all data that contains pictures."""


def picture_in(value: Any) -> dict[str, Any] | None:
    """Return the block for a value that is a picture; None for any other value."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return _picture(data) if _kind_of(data) is not None else None
    if isinstance(value, type):
        return None
    try:
        png = _png_of(value)
    except Exception:  # a method of the user's object failed: no picture
        return None
    return _picture(png) if png else None


def _kind_of(data: bytes) -> str | None:
    """Return the media type of a picture by its first bytes; None if providers do not accept its format."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _SIGNATURES.items() if data.startswith(begin)), None)


def _png_of(value: Any) -> bytes | None:
    """Return the PNG representation of an object of matplotlib, PIL or IPython's protocol; None if it has none."""
    module = type(value).__module__
    if module.startswith("matplotlib.") and callable(getattr(value, "savefig", None)):
        file = io.BytesIO()
        value.savefig(file, format="png")
        return file.getvalue()
    if module.startswith("matplotlib.") and callable(getattr(value, "get_figure", None)) and hasattr(value, "plot"):
        return _png_of(value.get_figure())  # axes, as pandas' plot() returns them
    if module.startswith("PIL.") and callable(getattr(value, "save", None)):
        file = io.BytesIO()
        value.save(file, format="PNG")
        return file.getvalue()
    shown = getattr(value, "_repr_png_", None)
    png = shown() if callable(shown) else None
    if isinstance(png, tuple):  # with metadata, which IPython accepts
        png = png[0]
    if isinstance(png, str):
        png = base64.b64decode(png)
    return png if isinstance(png, bytes) and _kind_of(png) is not None else None


def _picture(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": _kind_of(data), "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def as_block(value: Any) -> dict[str, Any] | None:
    """Return the content block that JSON data describes; None if it is other data.

    Pictures in the formats of OpenAI and of MCP are returned in the one format that the clients of all providers accept
    here.
    """
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        return None
    read = _BLOCKS.get(kind)
    return read(value) if read is not None else None


def _text_block(value: dict[str, Any]) -> dict[str, Any] | None:
    known = value.keys() <= {"type", "text", "citations", "cache_control"}
    return value if known and isinstance(value.get("text"), str) else None


def _image_block(value: dict[str, Any]) -> dict[str, Any] | None:
    rest: dict[object, object] = {}
    match value:
        case {"source": {"type": "base64", "media_type": str(), "data": str(data), **rest}, **more}:
            block = _image(data)
        case {"data": str(data), "mimeType": str(), **more}:  # the format of MCP servers
            block = _image(data)
        case {"source": {"type": "url", "url": str(url), **rest}, **more} if _is_address(url):
            block = {"type": "image", "source": {"type": "url", "url": url}}
        case _:
            return None
    return block if not rest and more.keys() <= {"type", "cache_control", "annotations", "_meta"} else None


def _image_url_block(value: dict[str, Any]) -> dict[str, Any] | None:
    match value:
        case {"image_url": {"url": str(url), **rest}, **more} if rest.keys() <= {"detail"} and more.keys() == {"type"}:
            if url.startswith("data:image/"):
                return _image(url.partition(";base64,")[2])
            return {"type": "image", "source": {"type": "url", "url": url}} if _is_address(url) else None
    return None


def _image(data: str) -> dict[str, Any] | None:
    """Return the block of a picture that is given as base64, with its real media type; None if it is not a picture."""
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = _kind_of(decoded)
    source = {"type": "base64", "media_type": kind, "data": data}
    return {"type": "image", "source": source} if kind is not None else None


def _is_address(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def _document_block(value: dict[str, Any]) -> dict[str, Any] | None:
    if not value.keys() <= {"type", "source", "title", "context", "citations", "cache_control"}:
        return None
    match value.get("source"):
        case {"type": "text", "media_type": "text/plain", "data": str(data), **rest} if data.strip() and not rest:
            return value
        case {"type": "base64", "media_type": "application/pdf", "data": str(data), **rest} if not rest:
            return value if data.startswith("JVBERi0") else None  # %PDF-
        case {"type": "url", "url": str(url), **rest} if _is_address(url) and not rest:
            return value
    return None


def _audio_block(value: dict[str, Any]) -> dict[str, Any] | None:
    match value:
        case {"source": {"type": "base64", "media_type": str(kind), "data": str(), **rest}, **more}:
            return value if kind.startswith("audio/") and not rest and more.keys() == {"type"} else None
        case _:
            return None


def _search_result_block(value: dict[str, Any]) -> dict[str, Any] | None:
    known = value.keys() <= {"type", "source", "title", "content", "citations", "cache_control"}
    content = value.get("content")
    has_texts = all(isinstance(value.get(name), str) for name in ("source", "title"))
    if not (known and has_texts and isinstance(content, list) and content):
        return None
    texts = (isinstance(item, dict) and item.get("type") == "text" and _text_block(item) for item in content)
    return value if all(texts) else None


_BLOCKS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "text": _text_block,
    "image": _image_block,
    "image_url": _image_url_block,
    "document": _document_block,
    "audio": _audio_block,
    "search_result": _search_result_block,
}


def attached_blocks(data: Any) -> list[dict[str, Any]] | None:
    """Return the content blocks of JSON data with a picture, a document or a sound; None for any other data.

    data: one block, or a list of blocks and texts.
    """
    blocks = blocks_in(data if isinstance(data, list) else [data])
    if blocks is None or all(block["type"] in ("text", "search_result") for block in blocks):
        return None
    return blocks


def blocks_in(result: Any) -> list[dict[str, Any]] | None:
    """Return the content blocks of a list, which may have plain texts between them; None if the list is data.

    A document or a sound may also be the whole result.
    """
    if isinstance(result, dict) and result.get("type") in ("document", "audio"):
        block = as_block(result)
        return [block] if block is not None else None
    if not isinstance(result, list) or not result or all(isinstance(item, str) for item in result):
        return None
    blocks = []
    for item in result:
        block = _text(item) if isinstance(item, str) else as_block(item)
        if block is None:
            return None
        blocks.append(block)
    return blocks


def with_pictures(data: Any) -> list[dict[str, Any]] | None:
    """Return the blocks of data that contains pictures; None if it contains no picture.

    The first block is the data as JSON text, with a number in place of each picture. The blocks of the pictures follow.
    If the data is one picture, its block is the only one.
    """
    pictures: list[dict[str, Any]] = []
    rest = _without_pictures(data, pictures)
    if not pictures:
        return None
    return pictures if rest == _number(1) else [_text(to_json(rest).decode()), *pictures]


def _without_pictures(value: Any, pictures: list[dict[str, Any]]) -> Any:
    """Return the data with a number in place of each picture, and append the pictures to the list."""
    if isinstance(value, list):
        return [_without_pictures(item, pictures) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "image" and (block := _image_block(value)) is not None:
        pictures.append(block)
        return _number(len(pictures))
    return {key: _without_pictures(item, pictures) for key, item in value.items()}


def _number(count: int) -> str:
    return f"[image {count}]"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
