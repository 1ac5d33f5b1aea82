"""Bytes in, server-sent events out; no I/O (WHATWG HTML, "Server-sent events", section 9.2.6).

The decoder is our own because lines are the trap here. `str.splitlines()`, and every reader built on it, also cuts
at U+2028, U+0085 and other characters that stand unescaped in legal JSON, so one event of a model's answer becomes
two broken ones. An event stream has three line ends only: CRLF, LF and CR. It is always UTF-8, whatever the
response header says; a byte order mark at its start is skipped; a broken sequence becomes U+FFFD.

Two things are no part of the standard, which would have them passed over: an `error` field, and a line that is JSON.
Servers tell by them what went wrong, and an answer that failed must not pass for one that has nothing to say.

The standard drops an event that the stream's end cut off. For a model's answer that is the difference between
"finished" and "the connection died", so `close` gives it: a server may only have left out the last line's end.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from agentnb.core.errors import ModelProtocolError

MAX_EVENT_SIZE = 32 * 1024 * 1024
"""Characters in one event. Anthropic takes requests of up to 32 MB, and whatever a model says must fit into the
next request: a larger event is not an answer, it is a server that never ends its line (httpx2 stops at 1 MiB, which
a long tool input can reach)."""

WHOLE = "whole"
"""The type of the event that a body is made of which is no event stream, but all of an answer at once."""

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its data, its type, the last event id seen, and the reconnection time (ms) if it named one."""

    data: str
    event: str = "message"
    id: str = ""
    retry: int | None = None


class SSEDecoder:
    """Feed it bytes in any pieces; it gives the events that these complete."""

    def __init__(self, max_event_size: int = MAX_EVENT_SIZE) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._max_event_size = max_event_size
        self._at_start = True  # where a byte order mark may stand
        self._after_cr = False  # the last piece ended in CR: an LF that follows belongs to it
        self._line: list[str] = []  # the unfinished line, in pieces: joined once, however many bytes come one by one
        self._size = 0  # of the unfinished event, its unfinished line included
        self._last_id = ""
        self._data: list[str] = []
        self._event = ""
        self._retry: int | None = None

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Give the events that `data` completes. Raises `ModelProtocolError` when one grows past the limit."""
        return self._read(self._utf8.decode(data))

    def close(self) -> ServerSentEvent | None:
        """Say that the stream has ended; gives the event that its end cut off, as far as it came."""
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
            raise ModelProtocolError(f"an event of the stream is larger than {self._max_event_size} characters")
        self._line.append(piece)

    def _end_line(self, piece: str) -> ServerSentEvent | None:
        self._add(piece)
        line = "".join(self._line)
        self._line.clear()
        if not line:
            return self._end_event()
        field, _, value = line.partition(":")
        if field.startswith("{"):  # no field is called so: it is data that somebody has sent as it is
            field, value = "data", line
        self._take(field, value.removeprefix(" "))
        return None

    def _take(self, field: str, value: str) -> None:
        match field:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "error":  # llama.cpp's field, up to the autumn of 2025
                self._event = "error"
                self._data.append(value)
            case "id" if "\0" not in value:
                self._last_id = value
            case "retry" if value.isascii() and value.isdigit():
                self._retry = int(value)
            case _:  # comments (an empty field name) and unknown fields
                pass

    def _end_event(self) -> ServerSentEvent | None:
        data, event, retry = self._data, self._event, self._retry
        self._data, self._event, self._retry, self._size = [], "", None, 0
        if not data:
            return None
        return ServerSentEvent("\n".join(data), event or "message", self._last_id, retry)
