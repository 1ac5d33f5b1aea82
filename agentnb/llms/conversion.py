"""Converting messages for a provider, each of them once.

A run asks its model with the whole history every time. Converting all of it every time makes the run's cost
quadratic, which is what most agent libraries do; converting each message once and keeping the result makes it
linear. Messages are not hashable and not to be compared by content, so the cache goes by identity: it keeps the
message itself beside the result, which both keeps the identity from being given to another object and lets every
hit be checked.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from agentnb.llms.protocol import Message

MIN_KEPT = 4096
"""Messages kept at least; beyond that, `KEPT_PER_HISTORY` times the history at hand, so that several runs share one
model."""
KEPT_PER_HISTORY = 4

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""The roles that providers know, each dialect in its words. Messages of other roles are the loop's own: they are sent
to nobody."""

T = TypeVar("T")


class MessageCache(Generic[T]):
    """Converts messages with `convert`, each message object once; results must not be changed by who gets them."""

    def __init__(self, convert: Callable[[Message], T]) -> None:
        self._convert = convert
        self._kept: OrderedDict[int, tuple[Message, T]] = OrderedDict()
        self._lock = threading.Lock()

    def convert(self, messages: Sequence[Message]) -> list[T]:
        """Give the conversion of each message, in order."""
        with self._lock:
            converted = [self._convert_one(message) for message in messages]
            while len(self._kept) > max(MIN_KEPT, KEPT_PER_HISTORY * len(messages)):
                self._kept.popitem(last=False)
        return converted

    def __reduce__(self) -> tuple[type[MessageCache[T]], tuple[Callable[[Message], T]]]:
        return MessageCache, (self._convert,)  # in another process no message is the same object

    def _convert_one(self, message: Message) -> T:
        kept = self._kept.get(id(message))
        if kept is not None and kept[0] is message:
            self._kept.move_to_end(id(message))
            return kept[1]
        converted = self._convert(message)
        self._kept[id(message)] = (message, converted)
        return converted


def safe_name(name: str) -> str:
    """Give the name of a tool in the letters that providers allow: a model may have called what is no tool's."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


def asked_for(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Give the name and the arguments of a call; OpenAI's own shape, which `convert_to_llm` may give, nests them."""
    function = call.get("function", call)
    return function["name"], function["arguments"]


class Picture(NamedTuple):
    """A picture in a message: its data as base64 with its media type, or its address."""

    media_type: str
    data: str
    url: str

    @property
    def address(self) -> str:
        """The picture's address, a `data:` one where the picture is given by its data."""
        return self.url or f"data:{self.media_type};base64,{self.data}"

    @property
    def placeholder(self) -> str:
        """Words in place of the picture, for a model that reads no pictures."""
        what = f"{self.media_type}, {len(self.data) * 3 // 4:,} bytes" if self.data else f"{self.url:.200}"
        return f"[image: {what}; not sent, because this model is asked without images]"


def picture(block: Any) -> Picture | None:
    """Read a block that is a picture, in the shape of either provider or of MCP; None where it is another block."""
    match block:
        case {"type": "image", "source": {"type": "base64", "data": str(data), **source}}:
            return Picture(str(source.get("media_type") or "image/png"), data, "")
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return Picture("", "", url)
        case {"type": "image", "data": str(data)}:
            kind = block.get("mimeType") or block.get("mime_type") or block.get("media_type")
            return Picture(str(kind or "image/png"), data, "")
        case {"type": "image_url" | "input_image", "image_url": str(url) | {"url": str(url)}}:
            given = re.fullmatch(r"data:([\w.+/-]+)(?:;[^,]*)?;base64,(.*)", url, re.DOTALL)
            return Picture(given[1], given[2], "") if given else Picture("", "", url)
        case _:
            return None


def all_text_of(content: object) -> str:
    """Give content as text: blocks of text joined, other blocks named by their type."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return json.dumps(content, ensure_ascii=False, default=str)
    return "\n".join(_block_text(block) for block in content)


def _block_text(block: Any) -> str:
    if (shown := picture(block)) is not None:
        return shown.placeholder
    match block:
        case {"type": "document", "source": {"type": "text", "data": str(data)}}:
            return data
        case {"type": "search_result", "content": list(parts)}:
            return "\n".join([str(block.get("title") or ""), *map(_block_text, parts)]).strip()
        case _:
            pass
    if isinstance(block, Mapping):
        return str(block["text"]) if "text" in block else f"[{block.get('type', 'content')}]"
    return str(block)
