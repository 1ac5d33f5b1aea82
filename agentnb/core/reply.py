"""Reply: a model's answer, assembled from the chunks that it streams (`agentnb.llms.protocol`).

A chunk is a dict, an object with the same attributes, or text alone. Tool calls arrive as fragments with an index,
complete one by one, or all together, with arguments as an object or as JSON text. Text and calls of one answer are both
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from agentnb.core.errors import ModelError, ModelProtocolError
from agentnb.core.events import CUT_OFF_REASONS, Delta, ModelEnd
from agentnb.core.json import parse_arguments, readable, repair_text, repair_texts
from agentnb.core.messages import Message, ToolCall

TIMING_RESOLUTION = 25
"""The milliseconds of text that share one entry of the timing: finer than a screen's refresh, and compact to store."""


_SENT_BACK = ("signature", "redacted", "provider")
"""Fields of a block of reasoning, besides its text. Its provider, which alone can read them, needs them in later
requests.
"""

_STOP_REASONS = {"max_tokens": "length", "max_output_tokens": "length"}
"""Stop reasons that a user's own model may pass on unchanged from its server, with agentnb's name for each."""

_BROKEN_OFF = frozenset({"error", "aborted"})
"""The stop reasons by which a model reports in its stream that the answer has failed."""

CUT_OFF = "(the answer was cut off before them)"
"""The text that replaces missing arguments of a call in an answer that was cut off: the model might have sent some."""

_COUNTED_AS = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
"""OpenAI's names for token counts, mapped to agentnb's names, so that limits and totals include them."""

_ARGUMENTS = ("arguments", "args", "input")
"""The names of the field with a call's arguments: here, in LangChain's messages, in Anthropic's."""

_PAUSED = frozenset({"pause", "pause_turn"})
"""The stop reasons by which a model reports that the next request must continue the same answer."""

_OF_THE_RESPONSE = ("model", "response_id", "fingerprint", "service_tier", "upstream", "finish_reason")
"""The fields that a chunk of type `response` may have; `ModelEnd` has them too."""

_HANDLERS = {
    "reasoning_delta": "_reason",
    "text_end": "_end_text",
    "block": "_keep_block",
    "details": "_keep_details",
    "response": "_respond",
    "tool_call_delta": "_fragment",
    "tool_call": "_add_complete_call",
    "tool_calls": "_add_complete_calls",
    "usage": "_use",
    "stop": "_stop",
    "retry": "_retry",
}
"""The names of the methods that handle each type of chunk except text.

Text is not in it, because it has a faster path. Names, not functions, because a design's subclass may override a
method.
"""


class Reply:
    """The answer so far. Call `feed` with each chunk, then `end` for the finished event."""

    def __init__(self, turn: int, made: Set[str] = frozenset()) -> None:
        """Create an empty answer.

        made: the ids of the calls that were made before; a call of this answer gets a different id.
        """
        self._turn = turn
        self._text: list[str] = []
        # Growing texts are kept in pieces and joined once, because appending to a string copies all of it.
        self._reasoning: list[dict[str, Any]] = []
        self._fragments: dict[int, dict[str, Any]] = {}
        # Calls that arrived in one piece, by the index of the fragments before them.
        self._complete_after: dict[int, list[Mapping[str, Any]]] = {}
        self._calls: list[ToolCall] = []
        self._made_before = made
        self._ids: set[str] = set()
        self._usage: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._used_before: dict[str, float] = {}  # the usage of the requests that ended with a pause
        # The parts that are not text, each with the number of pieces of text before it.
        self._marks: list[tuple[int, dict[str, Any]]] = []
        self._block_marks: dict[int, dict[str, Any]] = {}  # those of the blocks with an index
        self._call_marks: dict[int, dict[str, Any]] = {}  # those of the calls in fragments, by their index
        self._details: dict[str, Any] = {}
        self._response: dict[str, Any] = {}
        self._finish_reason: str | None = None
        self.pauses = 0
        """The number of times the model has paused this answer and was asked to continue it."""
        self._timing: list[list[int]] = []
        self._stop_reason: str | None = None
        self.proposed: list[ToolCall] = []
        """The calls that are complete and may start before the answer is. The caller of `feed` takes them off the list.
        """

    @property
    def text(self) -> str:
        """The text so far."""
        return repair_text("".join(self._text)) if self._text else ""

    def feed(self, chunk: Any, milliseconds: int) -> Delta | None:
        """Add one chunk, and return the part of it to display, or None.

        milliseconds: the time since the request. Raises ModelProtocolError if the chunk is not valid, ModelError if it
        says that the answer has failed.
        """
        if type(chunk) is not dict and not isinstance(chunk, Mapping):  # the cheap test first: this runs for each token
            chunk = {"type": "text_delta", "content": chunk} if isinstance(chunk, str) else _attributes(chunk)
        kind = chunk.get("type")
        try:
            if kind == "text_delta":
                content = chunk["content"]
                if type(content) is not str:
                    content = _text(content)
                self._text.append(content)
                self._time(milliseconds, len(content))
                return Delta(type="text_delta", content=content if content.isascii() else repair_text(content))
            if not isinstance(kind, str) or kind not in _HANDLERS:
                raise ModelProtocolError(
                    f"The model streamed a chunk of unknown type {kind!r} (agentnb.llms.protocol lists the types):"
                    f" {str(chunk)[:200]}"
                )
            delta: Delta | None = getattr(self, _HANDLERS[kind])(chunk)
            return delta
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ModelProtocolError(
                f"The model streamed a {kind} that cannot be read ({type(error).__name__}: {error}): {str(chunk)[:200]}"
            ) from error

    @property
    def is_paused(self) -> bool:
        """True if the model has paused: the next request must continue this answer.

        `message` then returns the first part of it. A pause in an answer with calls does not count: the model continues
        when it has their results.
        """
        return self._stop_reason in _PAUSED and not self._fragments and not self._calls

    @property
    def used(self) -> dict[str, float]:
        """The usage of all requests for this answer so far."""
        return _added(self._used_before, self._usage)

    @property
    def paid(self) -> dict[str, float]:
        """The usage of all requests for this answer, as far as it was reported, if the answer breaks off here."""
        return self.used if self._usage or not self._told else _added(self._used_before, self._told)

    def tell_usage(self, chunk: Mapping[str, Any]) -> None:
        """Note the usage that the server has reported so far. It counts if no chunk with the usage follows."""
        self._told = _counts_of(chunk)

    def resume(self) -> None:
        """Prepare for the rest of a paused answer."""
        self.pauses += 1
        self._used_before = self.used
        self._usage, self._told, self._stop_reason = {}, {}, None

    def message(self) -> Message:
        """Return the answer as a message, with the calls that are complete."""
        return self._message(self._calls, self._stop_reason if self._stop_reason in CUT_OFF_REASONS else None)

    def end(self) -> ModelEnd:
        """Return the event of the finished answer.

        Raises ModelError if the answer was cut off before it had text or calls.
        """
        # Complete the calls that arrived in fragments, each followed by the complete calls that arrived after it.
        cut_off = self._stop_reason in CUT_OFF_REASONS
        for index in sorted(self._fragments):
            call = self._assemble(index)
            if cut_off and not call["arguments"].strip():
                call["arguments"] = CUT_OFF
            self._add(call)
            for complete in self._complete_after.get(index, ()):
                self._add(complete)
        if cut_off and not self._calls and not self.text.strip():
            advice = " Allow more tokens for an answer." if self._stop_reason == "length" else ""
            raise ModelError(f"The answer was cut off before it had any content ({self._stop_reason}).{advice}")
        # Derive the stop reason if the model reported none. A pause in an answer with calls is not a pause.
        usage = self.used if self._used_before else self._usage
        reason = self._stop_reason
        if reason is None or (reason in _PAUSED and self._calls):
            reason = "tool_calls" if self._calls else "stop"
        response = self._response
        if self._finish_reason is not None and "finish_reason" not in response:
            response = {**response, "finish_reason": self._finish_reason}
        return ModelEnd(message=self.message(), stop_reason=reason, usage=usage, timing=self._timing, **response)

    def broken_off(self, stop_reason: str, message: str) -> Message:
        """Return the answer so far as a message for the history. The message is not sent to a model.

        stop_reason: `error` or `aborted`. message: the reason why the answer was interrupted.
        """
        calls = list(self._calls)
        for index, call in sorted(self._fragments.copy().items()):
            pieces = [
                {**call, "arguments": "".join(call["arguments"]) or CUT_OFF},
                *self._complete_after.get(index, ()),
            ]
            calls += map(self._read_call, pieces)
        return self._message(calls, stop_reason, message)

    def _message(self, calls: list[ToolCall], stop_reason: str | None, error_message: str | None = None) -> Message:
        text, order = (self.text, []) if self._is_in_usual_order() else self._in_order()
        reasoning = [{**block, "text": "".join(block["text"])} for block in self._reasoning]
        return Message(
            role="assistant",
            content=text,
            tool_calls=calls,
            reasoning=repair_texts(reasoning) if reasoning else [],
            order=order,
            details=self._details or None,
            stop_reason=stop_reason,
            error_message=error_message,
        )

    def _is_in_usual_order(self) -> bool:
        """Return True if all reasoning arrived before the text, all calls after it, and nothing else did."""
        calls_have_begun = False
        for position, mark in self._marks:
            if mark["type"] == "call" and position == len(self._text) and "item" not in mark:
                calls_have_begun = True
            elif mark["type"] != "reasoning" or position > 0 or calls_have_begun:
                return False
        return True

    def _in_order(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the text, and the parts of the answer in the order of arrival if that is not the usual order."""
        # Split the text at the marks, and list the pieces and the marks in the order of arrival.
        texts: list[str] = []
        order: list[dict[str, Any]] = []
        begin = 0
        for position, mark in [*self._marks, (len(self._text), {"type": "text_end"})]:
            piece, begin = repair_text("".join(self._text[begin:position])), position
            is_end = mark["type"] == "text_end"
            if piece:
                texts.append(piece)
                order.append({**(mark if is_end else {}), "type": "text", "length": len(piece)})
            if not is_end:
                order.append(mark)
        # The usual order is reasoning, at most one text, calls.
        kinds = [part["type"] for part in order]
        count = {kind: kinds.count(kind) for kind in ("reasoning", "call")}
        usual = ["reasoning"] * count["reasoning"] + ["text"] * bool(texts) + ["call"] * count["call"]
        is_usual = kinds == usual and not any("citations" in part or "item" in part for part in order)
        # A design that parses calls from the text has other calls than those that arrived as such.
        is_consistent = count["call"] == len(self._calls) and count["reasoning"] == len(self._reasoning)
        return "".join(texts), [] if is_usual or not is_consistent else order

    def _mark(self, kind: str, **fields: Any) -> None:
        self._marks.append((len(self._text), {"type": kind, **fields}))

    def _reason(self, chunk: Mapping[str, Any]) -> Delta:
        content = _fragment_of("reasoning", chunk.get("content"))
        sent_back = {name: chunk[name] for name in _SENT_BACK if chunk.get(name)}
        # A field that must be sent back closes its block of reasoning (Anthropic's signature comes last).
        is_closed = not self._reasoning or len(self._reasoning[-1]) > 1
        is_item = "item" in (sent_back.get("provider") or ())  # an item of the answer, perhaps without a text
        if is_closed and not content and sent_back.keys() == {"provider"} and not is_item:
            # There is no reasoning here: the field is about the whole answer, or about its calls.
            self._marks.insert(0, (0, {"type": "reasoning"}))
            self._reasoning.insert(0, {"text": []})
            self._reasoning[0] |= sent_back
            return Delta(type="reasoning_delta", content="")
        if is_closed or (content and not self._still_reasons()):
            self._reasoning.append({"text": []})
            self._mark("reasoning")
        self._reasoning[-1]["text"].append(content)
        self._reasoning[-1] |= sent_back
        return Delta(type="reasoning_delta", content=repair_text(content))

    def _still_reasons(self) -> bool:
        """Return True if nothing else has arrived since the last piece of reasoning."""
        position, mark = self._marks[-1]
        return mark["type"] == "reasoning" and not any(self._text[position:])

    def _end_text(self, chunk: Mapping[str, Any]) -> None:
        """End a block of text. `citations` are those of this block, `item` is its item, in the format of `server`."""
        fields = {name: readable(chunk[name]) for name in ("citations", "item", "server") if chunk.get(name)}
        self._mark("text_end", **fields)

    def _keep_block(self, chunk: Mapping[str, Any]) -> None:
        """Keep a block that only its server can read, at its position in the answer.

        A block with the `index` of an earlier one replaces it, at the position of that one.
        """
        block, index = readable(dict(chunk["block"])), chunk.get("index")
        if index in self._block_marks:
            self._block_marks[index]["block"] = block
            return
        self._mark("block", server=str(chunk["server"]), block=block)
        if index is not None:
            self._block_marks[index] = self._marks[-1][1]

    def _keep_details(self, chunk: Mapping[str, Any]) -> None:
        self._details = {**self._details, **readable(dict(chunk["details"]))}

    def _respond(self, chunk: Mapping[str, Any]) -> None:
        """Record which model has answered, and the other data of the server about the whole answer."""
        for name in _OF_THE_RESPONSE:
            if chunk.get(name) is not None:
                self._response[name] = repair_text(str(chunk[name]))

    def _fragment(self, chunk: Mapping[str, Any]) -> Delta:
        index = int(chunk.get("index") or 0)
        if index not in self._fragments:
            self._mark("call")
            self._call_marks[index] = self._marks[-1][1]
        if chunk.get("item"):
            self._call_marks[index] |= {"server": str(chunk["server"]), "item": readable(dict(chunk["item"]))}
        call = self._fragments.setdefault(index, {"id": "", "name": "", "arguments": []})
        call["id"] = chunk.get("id") or call["id"]
        call["name"] = chunk.get("name") or call["name"]
        arguments = _fragment_of("arguments", chunk.get("arguments"))
        call["arguments"].append(arguments)
        id, name = (
            repair_text(value) if isinstance(value, str) else value for value in (chunk.get("id"), chunk.get("name"))
        )
        return Delta(type="tool_call_delta", index=index, id=id, name=name, arguments=repair_text(arguments))

    def _assemble(self, index: int) -> dict[str, Any]:
        """Return the call whose fragments have this index, from the fragments so far, and remove them."""
        call = self._fragments.pop(index)
        return {**call, "arguments": "".join(call["arguments"])}

    def _add_complete_calls(self, chunk: Mapping[str, Any]) -> None:
        for call in chunk["tool_calls"] or ():
            self._add_complete_call(call if isinstance(call, Mapping) else _attributes(call))

    def _add_complete_call(self, call: Mapping[str, Any]) -> None:
        """Add a call that arrived in one piece. Its order among the calls that are still in fragments is kept."""
        fields = {name: readable(call[name]) for name in ("server", "item") if call.get("item")}
        self._mark("call", **fields)
        if self._fragments:
            self._complete_after.setdefault(max(self._fragments), []).append(call)
        else:
            self._add(call)

    def _add(self, call: Mapping[str, Any]) -> None:
        self._calls.append(self._read_call(call))

    def _read_call(self, call: Mapping[str, Any]) -> ToolCall:
        function = call.get("function", call)  # OpenAI's own shape nests name and arguments
        received = function["arguments"] if "arguments" in function else _arguments_in(function)
        arguments, malformed = parse_arguments(received)
        id = str(call.get("id") or f"call_{self._turn}_{len(self._calls) + 1}")
        name = function.get("name") or ""
        if not (id.isascii() and name.isascii()):
            id, name = repair_text(id), repair_text(name)
        if id in self._ids or id in self._made_before:
            id = self._unique_id(id)
        self._ids.add(id)
        return ToolCall(id=id, name=name, arguments=arguments, malformed=malformed)

    def _unique_id(self, id: str) -> str:
        """Return the id with the call's number appended: the number of calls made before, plus one.

        Two calls of one message with the same id would get two results with the same id, which providers refuse. If a
        loop runs again, or a model counts its calls from 1 in every answer, equal ids would also make the recording
        ambiguous.
        """
        number = len(self._made_before) + len(self._ids) + 1
        while (unique := f"{id}_{number}") in self._ids or unique in self._made_before:
            number += 1
        return unique

    def _stop(self, chunk: Mapping[str, Any]) -> None:
        reason = repair_text(str(chunk["reason"])) if chunk.get("reason") is not None else None
        self._stop_reason = _STOP_REASONS.get(reason, reason) if reason is not None else None
        finish_reason = chunk.get("finish_reason", reason)  # the server's own reason, if it sent one
        self._finish_reason = repair_text(str(finish_reason)) if finish_reason is not None else None
        if self._stop_reason in _BROKEN_OFF:
            error = chunk.get("error") or chunk.get("error_message")
            raise ModelError(str(error or f"The model has aborted its answer ({self._stop_reason})."))

    def _use(self, chunk: Mapping[str, Any]) -> None:
        self._usage |= _counts_of(chunk)

    @staticmethod
    def _retry(chunk: Mapping[str, Any]) -> Delta:
        return Delta(type="retry_delta", data={k: v for k, v in chunk.items() if k != "type"})

    def _time(self, milliseconds: int, characters: int) -> None:
        if self._timing and milliseconds - self._timing[-1][0] < TIMING_RESOLUTION:
            self._timing[-1][1] += characters
        else:
            self._timing.append([milliseconds, characters])


def _counts_of(chunk: Mapping[str, Any]) -> dict[str, float]:
    """Return the counts of a chunk with a usage, by agentnb's names."""
    usage = chunk.get("usage") or chunk
    counts = (usage if isinstance(usage, Mapping) else _attributes(usage)).items()
    return {
        _COUNTED_AS.get(name, name): amount
        for name, amount in counts
        if isinstance(amount, (int, float)) and 0 <= amount < 2**53  # NaN is neither a count nor JSON
    }


def _added(usage: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: usage.get(name, 0) + more.get(name, 0) for name in {**usage, **more}}


def _fragment_of(part: str, content: Any) -> str:
    if content and not isinstance(content, str):
        raise TypeError(f"a fragment of {part} must be a string, not {type(content).__name__}")
    return content or ""


def _arguments_in(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as they arrived, or None if it has none."""
    for name in _ARGUMENTS:
        if name in call:
            return call[name]
    return None


def _text(content: Any) -> str:
    """Return the text of a chunk whose content is not a plain string: some servers send null for an empty text.

    Raises ModelProtocolError for any other value.
    """
    if content is not None and not isinstance(content, str):
        raise ModelProtocolError(f"The model streamed {str(content)[:200]!r} instead of text.")
    return str(content or "")


def _attributes(value: Any) -> Mapping[str, Any]:
    if hasattr(value, "model_dump"):
        dumped: Mapping[str, Any] = value.model_dump()
        return dumped
    try:
        attributes: dict[str, Any] = vars(value)
    except TypeError:
        raise ModelProtocolError(
            f"The model streamed a {type(value).__name__}, which is not a chunk: {str(value)[:200]}"
        ) from None
    return attributes
