"""Tool calls from the fragments of OpenAI's stream, whatever a server's indexes, ids and names are worth.

OpenAI itself opens a call with its index, id and name, and goes on with the index alone. Of other servers some leave
out the index or the id, give every call the same, or every fragment another id; some repeat the name, some cut it in
pieces, some send it after the arguments, and some open the arguments with `{}`. So a fragment goes on with the call at
its place (its index, else the call of its id, else where it stands in its event) unless it says in itself that it is
of another: by a name and another id, by arguments behind arguments that are a whole object, or by another tool's name.
Gateways from another dialect tell a call once more when it is complete: that is passed over, or a tool would run twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.readable import parse_arguments
from agentnb.llms.json_text import ObjectText

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentnb.llms.protocol import Chunk

NOTHING = "{}"
"""Arguments that some servers open every call with, also one that has others."""


@dataclass(slots=True)
class _Call:
    index: int
    ids: dict[str, None] = field(default_factory=dict)  # in the order they came; the first is the call's
    name: str = ""
    told: str = ""  # the name as it was told last
    arguments: ObjectText = field(default_factory=ObjectText)
    waiting: list[str] = field(default_factory=list)  # arguments that have come before the name
    has_id: bool = False
    held: bool = False  # `{}` has come, which may be all there is or the opening of more
    next_name: str = ""  # what has come alone behind a whole object: perhaps the next call's
    extra: object = None

    def is_made(self) -> bool:
        """Say whether this is a call: some servers send one without a name and arguments where they make none."""
        return bool(self.name or "".join(self.waiting).strip())


class ToolCallPieces:
    """Gives each call of an answer an index of its own. `tools` are the names that were offered."""

    def __init__(self, tools: Iterable[str] = ()) -> None:
        self._tools = frozenset(tools)
        self._calls: list[_Call] = []
        self._at: dict[object, _Call] = {}  # the server's index, or the place in an event -> the call there

    def __bool__(self) -> bool:
        return any(call.is_made() for call in self._calls)

    @property
    def extras(self) -> dict[int, object]:
        """What the provider wants to see again with a call (Gemini's signature of a thought), by the call's number."""
        made = [call for call in self._calls if call.is_made()]
        return {number: call.extra for number, call in enumerate(made) if call.extra is not None}

    def read(self, fragment: Mapping[str, Any], place: int = 0) -> list[Chunk]:
        """Give the chunks of a fragment, which stands at `place` in its event."""
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else fragment
        call_id, name = _word(fragment.get("id")), _word(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping | list):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        text = arguments if isinstance(arguments, str) else ""
        if self._is_told_again(fragment.get("index"), call_id, name, text):
            return []
        call, chunks = self._call(fragment.get("index"), place, call_id, name, text)
        if fragment.get("extra_content"):
            call.extra = fragment["extra_content"]
        if call_id:
            call.ids[call_id] = None
        if name and name != call.name:
            call.name = name if name in self._tools else call.name + name
        return [*chunks, *_told(call, text)]

    def close(self, *, complete: bool) -> list[Chunk]:
        """Give what servers leave out: an id, and `{}` for a call that is complete and has no arguments."""
        closing: list[Chunk] = []
        for call in self._calls:
            if not call.is_made():
                continue
            text = "".join(call.waiting)
            if complete and (call.held or not call.arguments.begun):
                text = text or NOTHING
            if text or not call.has_id:
                rest: Chunk = {"type": "tool_call_delta", "index": call.index}
                if not call.has_id:
                    rest["id"] = next(iter(call.ids), f"call_{uuid.uuid4().hex}")
                closing.append(rest | {"arguments": text})
        return closing

    def _call(self, index: object, place: int, call_id: str, name: str, text: str) -> tuple[_Call, list[Chunk]]:
        """The call that a fragment belongs to, and what is still to be told of the one before it."""
        at = index if isinstance(index, int | str) else ("place", place)
        call = self._at.get(at)
        if call_id and (index is None or (call is None and not name)):
            call = self._of_id(call_id) or call
        if call is None and not call_id and not name and self._calls:
            last = self._calls[-1]
            if index is None or not last.arguments.has_closed():  # some count on behind a call at an index they reuse
                call = last
        if call is not None and not self._is_of_another(call, call_id, name, text):
            return call, []
        closing: list[Chunk] = []
        if self._calls and (last := self._calls[-1]).held and last.is_made():  # nothing more comes for it
            last.arguments.add(NOTHING)
            last.held = False
            closing.append({"type": "tool_call_delta", "index": last.index, "arguments": NOTHING})
        call = self._at[at] = _Call(len(self._calls), name="" if call is None else call.next_name)
        self._calls.append(call)
        return call, closing

    def _of_id(self, call_id: str) -> _Call | None:
        return next((call for call in reversed(self._calls) if call_id in call.ids), None)

    def _is_told_again(self, index: object, call_id: str, name: str, text: str) -> bool:
        """Say whether a fragment is all of a call that has been told already."""
        if text.lstrip()[:1] not in ("{", '"'):  # an object, or the text of one
            return False
        here = self._at.get(index) if isinstance(index, int | str) and not name else None
        call = self._of_id(call_id) if call_id else here
        if call is None or name not in ("", call.name) or (call.next_name and not name):  # those are the next one's
            return False
        if call.held:
            return text.strip() == NOTHING
        if not call.arguments.has_closed():
            return False
        told = parse_arguments(text)
        return told[1] is None and told == parse_arguments(call.arguments.text())

    def _is_of_another(self, call: _Call, call_id: str, name: str, text: str) -> bool:
        other_id = bool(call_id and call.ids and call_id not in call.ids)
        if (name and other_id) or self._is_another_tool(call, name):
            return True
        if call.held:  # a second `{}` is another call's, and anything else goes on with this one
            return bool(name) and text.strip() == NOTHING
        if not (name or other_id or call.next_name) or not call.arguments.has_closed():
            return False
        if name and not text.strip():
            call.next_name = name  # once more, or of a call of the same tool, whose arguments are still to come
        return text.lstrip().startswith("{")

    def _is_another_tool(self, call: _Call, name: str) -> bool:
        if not name or not call.name or name == call.name:
            return False
        if call.arguments.begun or call.held:
            return True
        goes_on = call.name + name in self._tools or name.startswith(call.name)
        return call.name in self._tools and not goes_on


def _told(call: _Call, text: str) -> list[Chunk]:
    chunk: Chunk = {"type": "tool_call_delta", "index": call.index}
    if call.ids and call.name and not call.has_id:
        call.has_id, chunk["id"] = True, next(iter(call.ids))
    if call.name != call.told:
        call.told = chunk["name"] = call.name
    if not call.arguments.begun and text.strip() == NOTHING:
        call.held, text = True, ""
    elif text.strip():
        call.held = False
    call.arguments.add(text)
    if not call.name:  # whoever starts a call as soon as it is complete has to know which
        call.waiting.append(text)
        return []
    if call.waiting:
        text = "".join(call.waiting) + text
        call.waiting.clear()
    return [chunk | {"arguments": text}]


def _word(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
