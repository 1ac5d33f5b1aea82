"""Live lines: the text that a model is streaming, the calls it is writing, and the progress that tools report.

Hundreds of deltas arrive each second, and only their sum is shown: they are folded into one line per source, with the
end of its text. A line ends with the event that replaces it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import Any

from agentnb.core.events import Delta, Event
from agentnb.core.json import repair_text
from agentnb.widgets.text import as_json, brief

TAIL = 1200
"""The maximum number of characters of a line that are shown: those at its end, where it grows."""
WORDS = 160
"""The maximum number of characters of the progress that a call reports."""

_LOOP_ENDS = frozenset({"run_start", "cancel", "run_end"})
_MODEL_ENDS = _LOOP_ENDS | {"model_end", "model_error", "model_start"}


class Line:
    """The end of the text of one source."""

    def __init__(self, kind: str, path: str, name: str = "") -> None:
        self.kind = kind
        self.path = path
        self.name = name
        self.progress: dict[str, Any] | None = None
        self._length = self._held = 0
        self._parts: deque[str] = deque()

    def add(self, text: str) -> None:
        """Append text."""
        self._length += len(text)
        text = text if len(text) <= TAIL else text[-TAIL:]
        self._parts.append(text)
        self._held += len(text)
        while self._held - len(self._parts[0]) >= TAIL:
            self._held -= len(self._parts.popleft())

    def show(self) -> dict[str, Any]:
        """Return the line as the page gets it."""
        text = repair_text("".join(self._parts)[-TAIL:])
        line: dict[str, Any] = {"kind": self.kind, "path": self.path, "name": self.name, "text": text}
        if self._length > len(text):
            line["length"] = self._length
        return line if self.progress is None else {**line, "progress": self.progress}


class LiveLines:
    """The lines of one run. Not thread-safe: the caller holds a lock."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, str], Line] = {}

    def feed(self, delta: Delta) -> None:
        """Apply one delta."""
        kind, key, text, name = _source(delta)
        line = self._lines.get((delta.path, kind, key))
        if line is None:
            line = self._lines[delta.path, kind, key] = Line(kind, delta.path, name)
        line.name = name or line.name
        if kind == "tool":
            line.progress = progress_of(delta.data)
        line.add(text)

    def ends_with(self, type: str) -> bool:
        """Return True if an event of this type may end a line. It is called for each event, and needs no lock."""
        return bool(self._lines) and (type in _MODEL_ENDS or type == "call_end")

    def settle(self, event: Event) -> bool:
        """Apply an event. Return True if it ended a line."""
        if event.type in _MODEL_ENDS:
            ended = [key for key in self._lines if key[0] == event.path and key[1] != "tool"]
            if event.type in _LOOP_ENDS:
                ended = [key for key in self._lines if is_within(key[0], event.path)]
        elif event.type == "call_end":
            ended = [(event.path, "tool", getattr(event, "call_id", ""))]
        else:
            return False
        had = len(self._lines)
        for key in ended:
            self._lines.pop(key, None)
        return len(self._lines) < had

    def show(self) -> list[dict[str, Any]]:
        """Return all lines as the page gets them."""
        return [line.show() for line in self._lines.values()]


def is_within(path: str, outer: str) -> bool:
    """Return True if the loop at `path` is the one at `outer`, or nested in it."""
    return not outer or path == outer or path.startswith(f"{outer}/")


def progress_of(data: Any) -> dict[str, Any]:
    """Return the progress that a call reports: `text`, and also `share` (from 0 to 1) if it reports a share.

    A share is reported as a number from 0 to 1, as a mapping with such a number as `done`, or as a mapping with `done`
    and `total`. The other fields of the mapping are appended to the text. Of any other value, the text is its last
    line.
    """
    if isinstance(data, Mapping) and "message" in data and data.keys() <= {"message", "total"}:
        data = data["message"]  # a total has no meaning without the number that is done
    if isinstance(data, Mapping) and (share := _share(data.get("done"), data.get("total", 1))) is not None:
        so_far = f"{data['done']:,g} of {data['total']:,g}" if "total" in data else f"{share:.0%}"
        rest = [brief(value) for name, value in data.items() if name not in ("done", "total")]
        return {"share": share, "text": " · ".join([so_far, *filter(None, rest)])}
    if not isinstance(data, str) and (share := _share(data, 1)) is not None:
        return {"share": share, "text": f"{share:.0%}"}
    words = data.rstrip().rpartition("\n")[2] if isinstance(data, str) else data
    return {"text": repair_text(brief(words, WORDS))}


def _share(done: Any, total: Any) -> float | None:
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (done, total))
    if not numbers or not 0 <= done <= total or not total or not isfinite(total):
        return None
    return float(done / total)


def _source(delta: Delta) -> tuple[str, str, str, str]:
    """Return the kind of a delta's line, its key, the text that it adds, and a name for the line."""
    if delta.type == "text_delta":
        return "text", "", delta.content, ""
    if delta.type == "reasoning_delta":
        return "reasoning", "", delta.content, ""
    if delta.type == "tool_call_delta":
        return "call", str(delta.index), delta.arguments, delta.name or ""
    if delta.type == "call_delta":
        text = delta.data if isinstance(delta.data, str) else as_json(delta.data).decode()
        return "tool", delta.call_id or "", f"\n{text}", delta.call_id or ""
    return "retry", "", f"\n{brief(delta.data)}", ""
