"""Server-sent events: from bytes to events, without I/O (WHATWG HTML, "Server-sent events", section 9.2.6).

This module has its own decoder because of the line ends. `str.splitlines()`, and every reader built on it, also splits
at U+2028, U+0085 and other characters that are legal in JSON, so that one event becomes two invalid ones. An event
stream has three line ends only: CRLF, LF and CR. It is always UTF-8, regardless of the response header. A byte order
mark at its start is skipped, and an invalid sequence becomes U+FFFD.

The decoder differs from the standard in two points, because a failed answer must not pass for an empty one. It reads an
`error` field and a line of JSON, by which servers report errors. And it does not drop an event that the end of the
stream cut off: `close` returns that event, because a server may have left out the last line end only.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from agentnb.core.errors import ModelProtocolError

MAX_EVENT_SIZE = 32 * 1024 * 1024
"""The maximum of characters in one event. Anthropic accepts requests of up to 32 MB, and an answer must fit into the
next request: a larger event is not an answer, but comes from a server that never ends its line. (httpx2 stops at 1 MiB,
which a long tool input can reach.)
"""

WHOLE = "whole"
"""The type of the event that stands for a body that is not an event stream, but a whole answer."""

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its data, its type, the last event id, and the reconnection time in ms if the server set one."""

    data: str
    event: str = "message"
    id: str = ""
    retry: int | None = None


class SSEDecoder:
    """Decodes bytes that come in pieces of any size."""

    def __init__(self, max_event_size: int = MAX_EVENT_SIZE) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._max_event_size = max_event_size
        self._at_start = True  # a byte order mark may come
        self._after_cr = False  # the last piece ended in CR: a following LF belongs to it
        self._line: list[str] = []  # the pieces of the unfinished line, which are joined once
        self._size = 0  # the size of the unfinished event, with its unfinished line
        self._last_id = ""
        self._data: list[str] = []
        self._event = ""
        self._retry: int | None = None

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that `data` completes. Raises ModelProtocolError if an event exceeds the size limit."""
        return self._read(self._utf8.decode(data))

    def close(self) -> ServerSentEvent | None:
        """End the stream. Return the event that its end cut off, as far as it came, or None."""
        self._read(self._utf8.decode(b"", final=True))
        if self._line:
            self._end_line("")
        if not (self._data or self._event):
            return None
        return self._end_event() or ServerSentEvent("")

    def _read(self, text: str) -> list[ServerSentEvent]:
        if self._at_start and text:
            self._at_start = False
            text = text.removeprefix("\ufeff")
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix("\n")
        if not text:
            return []
        self._after_cr = text.endswith("\r")
        *lines, rest = _LINE_END.split(text)
        events = [event for line in lines if (event := self._end_line(line)) is not None]
        self._add(rest)
        return events

    def _add(self, piece: str) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size > self._max_event_size:
            raise ModelProtocolError(f"an event of the stream has more than {self._max_event_size} characters")
        self._line.append(piece)

    def _end_line(self, piece: str) -> ServerSentEvent | None:
        self._add(piece)
        line = "".join(self._line)
        self._line.clear()
        if not line:
            return self._end_event()
        field, _, value = line.partition(":")
        if field.startswith("{"):  # a line of JSON, sent without the name of a field
            field, value = "data", line
        value = value.removeprefix(" ")
        match field:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "error":  # llama.cpp, until the autumn of 2025
                self._event = "error"
                self._data.append(value)
            case "id" if "\0" not in value:
                self._last_id = value
            case "retry" if value.isascii() and value.isdigit():
                self._retry = int(value)
            case _:  # comments (an empty field name) and unknown fields
                pass
        return None

    def _end_event(self) -> ServerSentEvent | None:
        data, event, retry = self._data, self._event, self._retry
        self._data, self._event, self._retry, self._size = [], "", None, 0
        if not data:
            return None
        return ServerSentEvent("\n".join(data), event or "message", self._last_id, retry)
