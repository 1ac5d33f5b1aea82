"""ForeignFile: the content of a file of another tool, decoded as far as a format asks for it.

A file is read once. Its lines and its JSON are decoded at the first access and kept, because several formats look at
the same file to recognise it. Nothing in the content is executed, and no path or address in it is opened.
"""

from __future__ import annotations

import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from pydantic_core import from_json

from agentnb.core.errors import RecordingCorrupt
from agentnb.core.json import repair_texts

_HEAD = 64_000
"""The maximum length of the first line of a file of JSON lines; a longer one is decoded only if it is asked for."""
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP = b"\x1f\x8b\x08"
MOST = 2_000_000_000
"""The maximum number of bytes of the content of a compressed file."""
_MOST_OF_SMALL = 128_000_000
_TIMES = 50
"""A small compressed file may become this many bytes, and a larger one so many times its size more."""
_VALUES_OF_SMALL = 2_000_000
_VALUES_OF_BYTE = 4
"""The maximum number of values of one JSON text of a small file, and how many more for each byte of a file. A value
takes up to 25 times the memory of its text.
"""


class ForeignFile:
    """The content of a file. `lost` counts, by kind, what the format could not carry into events.

    path: where the content comes from; used in messages. data: the content; it may be compressed with gzip, or text in
    UTF-16. What it becomes is limited by its size, because a small file of a stranger could fill the memory; a file
    that is not compressed is never refused for that. in_folder: returns the names and
    the contents of the files in the same folder whose names match a pattern.

    Raises RecordingCorrupt if the compression is damaged, or its content is too large.
    """

    def __init__(
        self,
        path: Path,
        data: bytes,
        in_folder: Callable[[str], list[tuple[str, bytes]]] = lambda pattern: [],
    ) -> None:
        self.path = path
        self.most = min(MOST, _MOST_OF_SMALL + _TIMES * len(data))
        """The maximum number of bytes of the content, if it is compressed."""
        self._most_values = _VALUES_OF_SMALL + _VALUES_OF_BYTE * len(data)
        if data.startswith(_GZIP):
            data = self._unpacked(data)
        if data.startswith(_UTF_16):  # as some shells write the output of a command
            data = data.decode("utf-16", "replace").encode()
        self.data = data.removeprefix(_BOM)
        self.in_folder = in_folder
        self._losts: list[Counter[str]] = [Counter()]
        self._begun = 0
        self.is_stream = self.data.startswith((b"data:", b"event:", b"id:"))
        """True for server-sent events: each line of `data:` is a line of the file."""
        self.damage: list[str] = []
        """The places that could not be read, for the warning."""

    def _unpacked(self, data: bytes) -> bytes:
        """Return the content of a file that is compressed with gzip."""
        stream = zlib.decompressobj(31)
        try:
            unpacked = stream.decompress(data, self.most)
        except zlib.error as error:
            raise self.refused(f"its compression is damaged: {error}.") from error
        if stream.unconsumed_tail:
            raise self.too_large()
        return unpacked

    def too_large(self) -> RecordingCorrupt:
        """Return the error for a compressed file whose content is too large."""
        return self.refused(f"its content has more than {self.most:,} bytes. Unpack it first, if you trust it.")

    def decoded(self, text: bytes) -> Any:
        """Return the value of JSON text of this file. Raises ValueError as `decode`, RecordingCorrupt for too many."""
        if len(text) > self._most_values and sum(map(text.count, (b",", b"[", b"{"))) > self._most_values:
            raise self.refused(
                f"its content has more than {self._most_values:,} JSON values. Unpack it first, if you trust it."
            )
        return decode(text)

    @property
    def lost(self) -> Counter[str]:
        """What could not be carried into the events of the current recording: counts by kind."""
        return self._losts[-1]

    def begin(self) -> None:
        """Begin another recording: what is lost from now on belongs to it. A file with one recording needs no call."""
        self._begun += 1
        if self._begun > 1:
            self._losts.append(Counter())

    def lost_in(self, number: int) -> Counter[str]:
        """Return what was lost in a recording of the file, by its position from 0."""
        return self._losts[number] if number < len(self._losts) else self._losts[-1]

    @cached_property
    def document(self) -> Any:
        """The JSON value of the whole file; None if it is not one JSON object or list."""
        if self.data.lstrip()[:1] not in (b"{", b"["):
            return None
        try:
            return self.decoded(self.data)
        except ValueError:
            return None

    @cached_property
    def first(self) -> Any:
        """The JSON value of the first line that is not empty; of a file that is one JSON value, this value."""
        head = self.data.lstrip()[:_HEAD].split(b"\n", 5)
        line = next((_data(line) for line in head if line.startswith(b"data:")), b"") if self.is_stream else head[0]
        try:
            return self.decoded(line)
        except ValueError:
            pass
        if self.document is not None or len(line) < _HEAD // 2:
            return self.document
        try:  # a long first line
            return self.decoded(self.data.lstrip().split(b"\n", 1)[0])
        except ValueError:
            return None

    def lines(self) -> Iterator[tuple[int, Any]]:
        """Yield the JSON value of each line with the line's number. A damaged line is counted and left out."""
        for number, line in enumerate(io.BytesIO(self.data), 1):
            if self.is_stream:
                line = _data(line)
            if not line or line.isspace():
                continue
            try:
                value = self.decoded(line)
            except ValueError as error:
                self.damaged(f"line {number}: {error}", "damaged lines")
                continue
            if isinstance(value, dict):
                yield number, value
            else:
                self.damaged(f"line {number} is not an object", "damaged lines")

    def forget(self) -> None:
        """Free the memory of the decoded content, which is not needed any more."""
        for name in ("document", "first"):
            self.__dict__.pop(name, None)

    def damaged(self, place: str, kind: str) -> None:
        """Count a part of the file that cannot be read. place: where it is, for the warning."""
        self.lost[kind] += 1
        self.damage.append(place)

    def refused(self, why: str) -> RecordingCorrupt:
        """Return the error that refuses the file."""
        return RecordingCorrupt(f"{self.path}: {why}")


def _data(line: bytes) -> bytes:
    """Return the data in a line of server-sent events; nothing for a line without data, and for the mark of the end."""
    data = line[5:].strip() if line.startswith(b"data:") else b""
    return b"" if data == b"[DONE]" else data


def decode(text: bytes) -> Any:
    """Return the value of JSON text. Text that is not Unicode is repaired. Raises ValueError with the reason."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # it may have numbers or text that msgspec refuses
        pass
    try:
        return repair_texts(from_json(text))
    except (ValueError, RecursionError) as error:
        if b"\\u" not in text and b"\\U" not in text:
            raise ValueError(str(error)) from error
    import json  # only for text with halves of characters

    try:
        return repair_texts(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
