"""Transcripts: a loop's messages as its next request would send them, and how each call was decided and ended.

The messages are those of the next request. They are not always the history: a loop has a system prompt, may build the
messages itself, or replace some of them. Messages with roles that no provider knows are marked as not sent. A hook of
the user that changes messages before each request (`prepare`) is not called; a note says that it exists.

If a message is recorded in an event, its entry has the position of the event. An entry of a call has the position of
the call's last event.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, cast

from pydantic_core import to_json

from agentnb.core.blocks import INSIDE, blocks_in, with_pictures
from agentnb.core.events import CUT_OFF_REASONS, ApprovalDecision, Event
from agentnb.core.evolve import evolve, nested
from agentnb.core.json import repair_text
from agentnb.core.loop import Design
from agentnb.core.messages import is_broken_off, text_of
from agentnb.core.state import CallStatus, State
from agentnb.llms.conversion import part_in_words
from agentnb.run import Recording
from agentnb.tools import as_tools
from agentnb.widgets.text import brief, for_reading, one_line, pretty
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.decisions import clock, in_words
from agentnb.widgets.views.rows import aside, call_line, clip

SENT = frozenset({"system", "user", "assistant", "tool"})
"""Roles that a provider knows."""
TEXT = 4000
"""The maximum number of characters of one string that a page gets; the event has the rest."""
CALLS = 30
"""The maximum number of calls of one message that a page gets."""
DECIDED = 5
"""The maximum number of decisions about one call in its line; the newest are named."""
LINE = 100
"""The maximum number of characters of a call, and of its result, in the line that shows both."""
REACH = 2000
"""The maximum number of events after an answer that are searched for the decisions about its calls."""
ROOM = 192 * 1024
"""The approximate number of characters of one answer to the page, after which older messages are cut shorter."""
OPEN_CALL: Mapping[CallStatus, str] = {
    "proposed": "not started",
    "asking": "waiting for a decision",
    "ready": "not started",
    "running": "running",
    "ended": "ended",
}
"""The words for a call that has no result yet."""
PICTURE, PICTURES = 300_000, 600_000
"""The maximum number of characters of the base64 of one picture that a page gets, and of all in one answer to it."""
PREPARED = "The loop's hook `prepare` changes these messages before each request; they are shown before that change."

logger = logging.getLogger("agentnb")


class CallEntry(NamedTuple):
    """A call in a message: how it was decided and how it ended. `position` is its last event, -1 if there is none."""

    name: str
    arguments: Any
    words: str
    decision: Mapping[str, Any]
    result: Any
    failed: bool
    position: int
    pictures: Sequence[str] = ()


class Entry(NamedTuple):
    """A message: `place` in the transcript, and the `position` of its event, -1 if there is none."""

    place: int
    role: str
    text: str
    reasoning: str
    calls: list[CallEntry]
    failed: bool
    sent: bool
    position: int
    pictures: Sequence[str] = ()


class Transcript:
    """The current messages of the loop at `path`; empty if no loop has run there.

    begun: the position of the loop's first event, because several loops may have run at `path`, one after the other;
    None for the last one. reach: the number of messages, from the end, whose events are looked up; None for all.
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
        self._causes = causes
        causes.follow(self._events, len(self._events))
        is_last = begun is None or begun == causes.begun(path)
        state = _current_state(run, path) if is_last else _final_state(self._events, path, begun or 0)
        self._open = state.open
        broken_off = cast("Sequence[Mapping[str, Any]]", state.broken_off)  # messages have the methods of mappings
        self.messages: list[Mapping[str, Any]] = [*next_request(design, state), *broken_off]
        self._not_sent = {id(message) for message in state.broken_off}
        self.note = PREPARED if getattr(design, "prepare", None) is not None else ""
        latest_first = reversed(causes.messages.get(path, ()))
        # Another thread may have followed more events than `self._events` has.
        self._places, self._ends = self._look_up((at for at in latest_first if at < len(self._events)), reach)

    def __len__(self) -> int:
        return len(self.messages)

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        """Iterate over messages `first` to `last`, exclusive. A result has no entry if its call is in one of them."""
        asked: set[str] = set()
        for index, message in enumerate(self.messages[first:last], first):
            if message.get("role") == "tool" and message.get("tool_call_id") in asked:
                continue

            # Of an answer: its calls, each with the results that follow before the next answer.
            calls = message.get("tool_calls") or ()
            results: dict[str, Mapping[str, Any]] = {}
            for at in range(index + 1, len(self.messages) if calls else 0):
                later = self.messages[at]
                if later.get("role") == "assistant":
                    break
                if later.get("role") == "tool":
                    results[str(later.get("tool_call_id"))] = later
            asked |= results.keys()
            position = self._places.get(id(message), -1)
            decided = self._decided(position, [call["id"] for call in calls]) if calls else {}

            # Its text, and the reason why an answer is not complete.
            text = _text(message.get("content", "")) or ("" if calls else aside(message))
            if message.get("role") == "assistant" and (reason := message.get("stop_reason")):
                cut_off = reason in CUT_OFF_REASONS
                why = f"cut off: {reason}" if cut_off else f"{reason}: {message.get('error_message') or ''}"
                text = f"{text}\n[{why}]".strip()
            yield Entry(
                index,
                str(message.get("role", "")),
                text,
                "\n".join(str(block.get("text", "")) for block in message.get("reasoning") or () if block.get("text")),
                [self._call(call, position, results.get(call["id"]), decided.get(call["id"], [])) for call in calls],
                bool(message.get("is_error")),
                message.get("role") in SENT and id(message) not in self._not_sent and not is_broken_off(message),
                position,
                pictures_in(message.get("content")) if message.get("role") != "tool" else (),
            )

    def _call(
        self,
        call: Mapping[str, Any],
        position: int,
        result: Mapping[str, Any] | None,
        decided: Sequence[ApprovalDecision],
    ) -> CallEntry:
        # The call has ended with an event, or the history has its result, or it has not ended yet.
        at = self._ends.get((position, call["id"]), -1)
        if at >= 0:
            end = self._events[at]
            outcome, value, failed = end.outcome, end.result, end.is_error
        elif result is not None:
            outcome, value, failed = "returned", result["content"], bool(result.get("is_error"))
        else:
            is_open = call["id"] in self._open
            outcome = OPEN_CALL[self._open[call["id"]].status] if is_open else "no result yet"
            value, failed = None, False
        words = " · ".join([*(f"{in_words(one)} at {clock(one.time)}" for one in decided[-DECIDED:]), outcome])

        # What the last decision changed, or gave as its reason.
        fields = {name: getattr(decided[-1], name) for name in ("name", "arguments", "reason")} if decided else {}
        decision = {name: field for name, field in fields.items() if field}
        return CallEntry(
            call["name"],
            call.get("malformed") or call.get("arguments"),
            words,
            decision,
            value,
            failed,
            at,
            pictures_in(value),
        )

    def _decided(self, position: int, ids: Sequence[str]) -> dict[str, list[ApprovalDecision]]:
        """Return the decisions about the calls of the answer at `position`, by id, oldest first."""
        found: dict[str, list[ApprovalDecision]] = {id: [] for id in ids}
        ends = [self._ends.get((position, id), -1) for id in ids]
        until = max(ends) + 1 if min(ends) >= 0 else len(self._events)
        if position >= 0:
            for event in self._events[position + 1 : min(until, position + REACH)]:
                if isinstance(event, ApprovalDecision) and event.path == self._path and event.call_id in found:
                    found[event.call_id].append(event)

        # A call may have been decided before the answer that made it was complete: follow its causes from its end.
        for id, end in zip(ids, ends, strict=True):
            at = end if not found[id] else -1
            while at >= 0 and getattr(self._events[at], "call_id", None) == id:
                if isinstance(event := self._events[at], ApprovalDecision):
                    found[id] = [event]
                    break
                at = self._causes.causes[at]
        return found

    def _look_up(
        self, positions: Iterable[int], reach: int | None
    ) -> tuple[dict[int, int], dict[tuple[int, str], int]]:
        """Return two maps of positions: of the event of each message, by the message's `id()`; of the end of each call.

        The second one has the position of the answer that made the call, and the call's id, as the key.
        """
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
        early: dict[str, int] = {}  # calls that ended before the answer that made them
        for position in reversed(found):
            event = self._events[position]
            if event.type == "call_end":
                maker = makers.get(event.call_id)
                if maker is None:
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


def pictures_in(content: Any) -> list[str]:
    """Return the pictures in the content of a message, or in a result, as `data:` addresses.

    They are PNG, JPEG, GIF and WEBP by their first bytes. A picture at an address is left out: a page never fetches.
    """
    if not isinstance(content, list | dict) or INSIDE not in to_json(content, fallback=str).decode():
        return []
    sources = [
        block["source"] for block in blocks_in(content) or with_pictures(content) or () if block["type"] == "image"
    ]
    return [
        f"data:{source['media_type']};base64,{source['data']}"
        for source in sources
        if source["type"] == "base64" and len(source["data"]) <= PICTURE
    ]


def next_request(design: Any, state: State) -> Sequence[Mapping[str, Any]]:
    """Return the messages that the loop's next request would send.

    The design is called as before a request of a run, but `state` must be a copy: a design may store computed values in
    the state, and the run may be doing so in another thread.
    """
    prompt: str | None = getattr(design, "system_prompt", None)
    own: Sequence[Mapping[str, Any]] | None = None
    instead: Mapping[int, Mapping[str, Any]] = {}
    if isinstance(design, Design):
        try:
            requests = design.requests_class(design, as_tools(design.tools))
            prompt = requests.system_prompt
            own = requests.messages(state)
            instead = requests.replacements(state) if own is None else {}
        except Exception:
            # This is code of the user, written to be called by the driver. The history is shown unchanged.
            logger.exception("%s could not build the messages of its next request", design.kind())
    prefix: list[Mapping[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
    if own is not None:
        return [*prefix, *own]
    history: Sequence[Mapping[str, Any]] = cast("Sequence[Mapping[str, Any]]", state.messages)  # as for `broken_off`
    return [*prefix, *(instead.get(position, message) for position, message in enumerate(history))]


def _current_state(run: Recording, path: str) -> State:
    """Return a copy of a loop's state that the run does not change, without the cache of the design (`memo`)."""
    grows = ("messages", "broken_off", "calls", "open", "own_calls", "entered", "values", "children", "heard", "queues")
    with run.lock:
        try:
            state = nested(run.state, path)
        except KeyError:
            return State()
        return replace(state, memo=None, **{name: getattr(state, name).copy() for name in grows})


def _final_state(events: Sequence[Event], path: str, begun: int) -> State:
    """Return the final state of a loop that was followed by another at its path, by folding its own events again."""
    state = State()
    for event in islice(events, begun, None):
        if event.path == path:
            if event.type == "run_start" and event.seq != begun:
                break
            evolve(state, event, nested=True)
    return state


def transcript_data(transcript: Transcript, last: int, *, most: int = TEXT, room: float = ROOM) -> dict[str, Any]:
    """Return the last messages as the page gets them, the number of all messages, and that of the ones left out.

    most: the maximum number of characters of one string. room: the approximate number of characters in all, after which
    older messages are cut shorter.
    """
    total = len(transcript)
    first = max(0, total - last)
    messages = []
    left = PICTURES

    def with_thumbnails(shown: dict[str, Any], pictures: Sequence[str]) -> dict[str, Any]:
        nonlocal left
        kept = []
        for picture in pictures:
            if len(picture) <= left:
                left -= len(picture)
                kept.append(picture)
        return shown | {"pictures": kept} if kept else shown

    for entry in reversed(list(transcript.entries(first, total))):
        length = most if room > 0 else most // 20
        calls = [
            with_thumbnails(
                {
                    "name": repair_text(call.name),
                    "line": repair_text(_arguments_line(call)),
                    "returned": repair_text(brief(clip(call.result, LINE, 10), LINE)),
                    "words": repair_text(call.words),
                    "arguments": _cut(call.arguments, length // 4),
                    "decision": _cut(call.decision, length // 4) if call.decision else "",
                    "result": _cut(call.result, length // 2) if call.result is not None else "",
                    "failed": call.failed,
                    "position": call.position,
                },
                call.pictures,
            )
            for call in entry.calls[:CALLS]
        ]
        text, reasoning = _cut(entry.text, length), _cut(entry.reasoning, length)
        room -= len(text) + len(reasoning) + sum(len(call["arguments"]) + len(call["result"]) for call in calls)
        messages.append(
            with_thumbnails(
                {
                    "place": entry.place,
                    "role": repair_text(entry.role),
                    "text": text,
                    "reasoning": reasoning,
                    "calls": calls,
                    "more": max(0, len(entry.calls) - CALLS),
                    "failed": entry.failed,
                    "sent": entry.sent,
                    "position": entry.position,
                },
                entry.pictures,
            )
        )
    return {"total": total, "left": first, "note": transcript.note, "messages": messages[::-1]}


def _arguments_line(call: CallEntry) -> str:
    """Return the arguments of a call as they are written in code, in parentheses."""
    line = call_line({"name": "", "arguments": clip(call.arguments, LINE, 10)})
    return line if len(line) <= LINE else f"{one_line(line, LINE - 1)})"


def _cut(value: Any, room: int) -> str:
    text = repair_text(value) if isinstance(value, str) else for_reading(clip(value, room, 40))
    return text if len(text) <= room else f"{text[:room]}\n… ({len(text):,} characters in all)"


def _text(content: Any) -> str:
    """Return the text of a message, with the name of each part that has no text."""
    if not isinstance(content, list):
        return text_of(content) if isinstance(content, str) else pretty(clip(content, TEXT, 40))
    parts = (block if isinstance(block, Mapping) else {"text": block} for block in content)
    return "\n".join(
        str(part["text"]) if "text" in part else part_in_words(part) or f"[{part.get('type', 'something')}]"
        for part in parts
    )
