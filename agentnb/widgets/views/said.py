"""A conversation as the model is sent it: one loop's messages, with how each call was decided and came out.

What is sent is found out in `sent`; roles that no provider knows are told as not sent. A hook of the user's that
changes messages on their way (`prepare`) is not called for the sake of looking; that it is there is said.

Where a message is an event, the event's position is given too, and so is each call's last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from agentnb.core.events import CUT_OFF_REASONS, ApprovalDecision
from agentnb.core.messages import is_broken_off, text_of
from agentnb.core.state import CallStatus
from agentnb.core.unicode import mended
from agentnb.run.recording import Recording
from agentnb.widgets.text import for_reading, pretty
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.decisions import clock, in_words
from agentnb.widgets.views.rows import aside, clip
from agentnb.widgets.views.sent import as_sent, ended, state_at

SENT = frozenset({"system", "user", "assistant", "tool"})
"""Roles that a provider knows."""
TEXT = 4000
"""Characters of any one text that a page gets; the event has the rest."""
CALLS = 30
"""Calls of one message."""
DECIDED = 5
"""Decisions about one call that are told."""
REACH = 2000
"""Events behind an answer that are looked through for the decisions about its calls."""
ROOM = 192 * 1024
"""Characters of one answer to the page, roughly; what is older is cut harder."""
STANDING: Mapping[CallStatus, str] = {
    "proposed": "not begun",
    "asking": "waiting for a decision",
    "ready": "not begun",
    "running": "running",
    "ended": "ended",
}
"""How a call that has no result yet stands."""
PREPARED = "The loop's own hook prepares these messages before each request; here they are as they stand before it."


class Made(NamedTuple):
    """A call in a message: how it was decided, how it ended, and the last event about it (-1 where it has none)."""

    name: str
    arguments: Any
    words: str
    decision: Mapping[str, Any]
    result: Any
    failed: bool
    position: int


class Said(NamedTuple):
    """A message, its place in the conversation, and its event (-1 where it is none)."""

    place: int
    role: str
    text: str
    reasoning: str
    calls: list[Made]
    failed: bool
    sent: bool
    position: int


class Conversation:
    """The messages of the loop at `path` as they stand now; a place where no loop has run has none.

    begun: of the loops that have run there one after the other, the one that began with this event; by default the
    last. reach: of how many messages, from the end, the events are looked up; of all by default.
    """

    def __init__(
        self,
        run: Recording,
        design: Any,
        causes: Causes,
        path: str = "",
        *,
        begun: int | None = None,
        reach: int | None = None,
    ) -> None:
        self._events: Sequence[Any] = run.events
        self._path = path
        causes.follow(self._events, len(self._events))
        is_last = begun is None or begun == causes.begun(path)
        state = state_at(run, path) if is_last else ended(self._events, path, begun or 0)
        self._open = state.open
        self._causes = causes
        broken_off = cast("Sequence[Mapping[str, Any]]", state.broken_off)  # each reads as one
        self.messages: list[Mapping[str, Any]] = [*as_sent(design, state), *broken_off]
        self._not_sent = {id(message) for message in state.broken_off}
        self.note = PREPARED if getattr(design, "prepare", None) is not None else ""
        said = reversed(causes.messages.get(path, ()))
        positions = (position for position in said if position < len(self._events))  # another thread may be further
        self._places, self._ends = self._look_up(positions, reach)

    def __len__(self) -> int:
        return len(self.messages)

    def entries(self, first: int, last: int) -> Iterator[Said]:
        """The messages from `first` up to before `last`; a result stands with its call, where that is among them."""
        messages = self.messages[first:last]
        asked: set[str] = set()
        for index, message in enumerate(messages, first):
            if message.get("role") == "tool" and message.get("tool_call_id") in asked:
                continue
            calls = message.get("tool_calls") or ()
            results = _results_after(self.messages, index) if calls else {}
            asked |= results.keys()
            position = self._places.get(id(message), -1)
            decided = self._decided(position, [call["id"] for call in calls]) if calls else {}
            made = [self._made(call, position, results, decided.get(call["id"], [])) for call in calls]
            yield Said(
                index,
                str(message.get("role", "")),
                _ended(message, _text(message.get("content", "")) or ("" if calls else aside(message))),
                "\n".join(str(block.get("text", "")) for block in message.get("reasoning") or () if block.get("text")),
                made,
                bool(message.get("is_error")),
                message.get("role") in SENT and id(message) not in self._not_sent and not is_broken_off(message),
                position,
            )

    def _made(
        self,
        call: Mapping[str, Any],
        position: int,
        results: Mapping[str, Mapping[str, Any]],
        decided: Sequence[ApprovalDecision],
    ) -> Made:
        end = self._ends.get((position, call["id"]), -1)
        told = results.get(call["id"])
        is_open = told is None and call["id"] in self._open
        yet = STANDING[self._open[call["id"]].status] if is_open else "no result yet" if told is None else "returned"
        outcome = self._events[end].outcome if end >= 0 else yet
        words = " · ".join([*(f"{in_words(one)} at {clock(one.time)}" for one in decided[-DECIDED:]), outcome])
        changed = ("name", "arguments", "reason")
        decision = {name: value for name in changed if decided and (value := getattr(decided[-1], name))}
        result = self._events[end].result if end >= 0 else told["content"] if told is not None else None
        failed = self._events[end].is_error if end >= 0 else bool(told and told.get("is_error"))
        return Made(call["name"], call.get("malformed") or call.get("arguments"), words, decision, result, failed, end)

    def _decided(self, position: int, ids: Sequence[str]) -> dict[str, list[ApprovalDecision]]:
        """What was decided about the calls of the answer at `position`, oldest first."""
        found: dict[str, list[ApprovalDecision]] = {id: [] for id in ids}
        ends = [self._ends.get((position, id), -1) for id in ids]
        until = max(ends) + 1 if min(ends) >= 0 else len(self._events)
        if position >= 0:
            for event in self._events[position + 1 : min(until, position + REACH)]:
                if isinstance(event, ApprovalDecision) and event.path == self._path and event.call_id in found:
                    found[event.call_id].append(event)
        for id, end in zip(ids, ends, strict=True):
            if not found[id]:  # decided before the answer that made it was complete
                found[id] = self._on_the_way_to(end, id)
        return found

    def _on_the_way_to(self, end: int, id: str) -> list[ApprovalDecision]:
        while end >= 0 and getattr(self._events[end], "call_id", None) == id:
            event = self._events[end]
            if isinstance(event, ApprovalDecision):
                return [event]
            end = self._causes.causes[end]
        return []

    def _look_up(
        self, positions: Iterable[int], reach: int | None
    ) -> tuple[dict[int, int], dict[tuple[int, str], int]]:
        """The events of the messages, and of the ends of the calls that each of them made."""
        found: list[int] = []
        for position in positions:
            found.append(position)
            if reach is not None and self._events[position].type != "call_end":
                reach -= 1
                if reach < 0:
                    break
        places: dict[int, int] = {}
        ends: dict[tuple[int, str], int] = {}
        makers: dict[str, int] = {}
        early: dict[str, int] = {}
        for position in reversed(found):
            event = self._events[position]
            if event.type == "call_end":
                maker = makers.get(event.call_id)
                if maker is None:  # it has ended before the answer that made it
                    early[event.call_id] = position
                else:
                    ends[maker, event.call_id] = position
                continue
            message = event.answer if event.type in ("model_error", "run_end") else event.message
            places[id(message)] = position
            for call in event.message.tool_calls if event.type == "model_end" else ():
                makers[call.id] = position
                if call.id in early:
                    ends[position, call.id] = early.pop(call.id)
        return places, ends


def tell(conversation: Conversation, last: int) -> dict[str, Any]:
    """The last messages as the page gets them, how many there are, and how many are left out before."""
    total = len(conversation)
    first = max(0, total - last)
    room, told = ROOM, []
    for said in reversed(list(conversation.entries(first, total))):
        entry = _entry(said, TEXT if room > 0 else TEXT // 20)
        room -= sum(len(entry[name]) for name in ("text", "reasoning"))
        room -= sum(len(call["arguments"]) + len(call["result"]) for call in entry["calls"])
        told.append(entry)
    return {"total": total, "left": first, "note": conversation.note, "messages": told[::-1]}


def _entry(said: Said, room: int) -> dict[str, Any]:
    calls = [
        {
            "name": mended(call.name),
            "words": mended(call.words),
            "arguments": _cut(call.arguments, room // 4),
            "decision": _cut(call.decision, room // 4) if call.decision else "",
            "result": _cut(call.result, room // 2) if call.result is not None else "",
            "failed": call.failed,
            "position": call.position,
        }
        for call in said.calls[:CALLS]
    ]
    return {
        "place": said.place,
        "role": mended(said.role),
        "text": _cut(said.text, room),
        "reasoning": _cut(said.reasoning, room),
        "calls": calls,
        "more": max(0, len(said.calls) - CALLS),
        "failed": said.failed,
        "sent": said.sent,
        "position": said.position,
    }


def _cut(value: Any, room: int) -> str:
    text = mended(value) if isinstance(value, str) else for_reading(clip(value, room, 40))
    return text if len(text) <= room else f"{text[:room]}\n… ({len(text):,} characters in all)"


def _results_after(messages: Sequence[Mapping[str, Any]], index: int) -> dict[str, Mapping[str, Any]]:
    """The results that follow the message at `index`, by their calls' ids, up to the next answer."""
    results: dict[str, Mapping[str, Any]] = {}
    for message in islice(messages, index + 1, None):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "tool":
            results[str(message.get("tool_call_id"))] = message
    return results


def _ended(message: Mapping[str, Any], text: str) -> str:
    """The text of a message, and behind it why an answer is not complete."""
    reason = message.get("stop_reason")
    if message.get("role") != "assistant" or not reason:
        return text
    why = f"cut off: {reason}" if reason in CUT_OFF_REASONS else f"{reason}: {message.get('error_message') or ''}"
    return f"{text}\n[{why}]".strip()


def _text(content: Any) -> str:
    """The text of a message; of what is no text the kind is told."""
    if not isinstance(content, list):
        return text_of(content) if isinstance(content, str) else pretty(clip(content, TEXT, 40))
    parts = (block if isinstance(block, Mapping) else {"text": block} for block in content)
    return "\n".join(str(part["text"]) if "text" in part else f"[{part.get('type', 'something')}]" for part in parts)
