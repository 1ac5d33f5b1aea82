"""Inspect: logs of evaluations (`.eval`, `.json`), one recording for each sample.

A model event is a request, a tool event a result, an approval event a decision. The requests inside a tool's span, or
in the events of a tool event, are those of a sub-agent: a nested loop. So are the requests of a scorer or a subtask,
which a call of the run itself performs. Scores, and changes of the state and of the store, are values of the run.

The file is read directly, also where Inspect's own library is installed: its import takes seconds, and a file must not
be read differently in another process. `python -m tests.importers.inspect_oracle` compares what is read with what the
library reads.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from agentnb.core.errors import RecordingCorrupt, UsageError, VersionMismatch
from agentnb.core.events import Decision, Event
from agentnb.core.json import to_json_data
from agentnb.importers.content import content_of, openai_answer
from agentnb.importers.conversation import Known, said, sent, usage_of
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Writer, error_of, seconds

name = "Inspect"

ZSTD = 93
VERSION = 3
"""The latest version of the format that is read."""
_DECISIONS: dict[str, Decision] = {"approve": "approve", "modify": "edit", "reject": "reject", "terminate": "reject"}
_STRUCTURE = frozenset({"span_begin", "span_end", "step", "sample_init", "sample_limit"})
"""Types of events that only order the others, or repeat the sample's input or its end."""
_REPEATED = ("/messages", "/output", "/tools", "/tool_choice", "/completed")
"""The parts of the state whose changes repeat what other events have."""


def recognises(file: ForeignFile) -> bool:
    """Return True for a log of Inspect: a zip of JSON, or JSON."""
    if file.data.startswith(b"PK\x03\x04"):
        return b"header.json" in file.data or b"_journal/start.json" in file.data
    document = file.document
    return isinstance(document, dict) and isinstance(document.get("eval"), dict) and "samples" in document


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of the samples, one after the other."""
    if file.document is not None:
        header, samples = file.document, file.document.get("samples")
        _check_version(file, header)
        if not samples:
            raise file.refused("it is a log of Inspect without samples.")
        for number, sample in enumerate(samples if isinstance(samples, list) else (), 1):
            if isinstance(sample, Mapping):
                yield from _sample(file, header, sample)
            else:
                file.damaged(f"sample {number} is not an object", "damaged samples")
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(file.data))
    except zipfile.BadZipFile as error:
        raise file.refused(f"it is a damaged archive: {error}.") from error
    members = {member.filename: member for member in archive.infolist()}
    if sum(member.file_size for member in members.values()) > file.most:
        raise file.too_large()
    header = {}
    for title in ("header.json", "_journal/start.json"):
        if title in members and not header:
            found = _member(file, archive, members[title])
            header = found if isinstance(found, Mapping) else {}
    _check_version(file, header)
    for title in sorted((title for title in members if title.startswith("samples/")), key=_order):
        if title.endswith(".json"):
            sample = _member(file, archive, members[title])
            if isinstance(sample, Mapping):
                yield from _sample(file, header, sample)


def _check_version(file: ForeignFile, header: Mapping[str, Any]) -> None:
    version = header.get("version")
    if isinstance(version, int) and version > VERSION:
        raise VersionMismatch(
            f"{file.path} is a log of Inspect of version {version}; this agentnb reads up to {VERSION}."
            " Update agentnb-toolkit."
        )


def _order(title: str) -> tuple[int, str]:
    """Return the place of a sample among the others, by its epoch and its id: the archive has them as they ended."""
    id, _, epoch = title.removeprefix("samples/").removesuffix(".json").rpartition("_epoch_")
    return (int(epoch) if epoch.isdecimal() and len(epoch) < 10 else 0), id.zfill(20)


def _member(file: ForeignFile, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """Return the JSON value of a member of the archive; None if it is damaged, which is counted."""
    try:
        data = _zstd(file, member) if member.compress_type == ZSTD else archive.read(member)
        return file.decoded(data)
    except (RecordingCorrupt, UsageError):
        raise
    except Exception as error:  # each compression has its own errors
        file.damaged(f"{member.filename}: {error}", "damaged samples")
        return None


def _zstd(file: ForeignFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a member that is compressed with Zstandard, by the first library for it that is there."""
    name_length, extra = struct.unpack("<HH", file.data[member.header_offset + 26 : member.header_offset + 30])
    begin = member.header_offset + 30 + name_length + extra
    compressed = file.data[begin : begin + member.compress_size]
    for library in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            module: Any = import_module(library)
        except ImportError:
            continue
        try:
            if library == "zstandard":
                data: bytes = module.ZstdDecompressor().stream_reader(compressed).read(member.file_size + 1)
            else:
                data = module.ZstdDecompressor().decompress(compressed, max_length=member.file_size + 1)
        except Exception as error:  # each library has its own class of errors
            raise ValueError(f"its compression is damaged: {error}") from error
        if len(data) > member.file_size:
            raise ValueError("its content is larger than the archive says")
        return data
    raise UsageError(f"{file.path} is compressed with Zstandard. Install a library for it: pip install zstandard.")


def _sample(file: ForeignFile, header: Mapping[str, Any], sample: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of a sample."""
    file.begin()
    given = header.get("eval")
    evaluation: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    about = {
        "version": header.get("version"),
        "id": f"{sample.get('id')}/{sample.get('epoch')}",
        "label": f"{sample.get('id')} epoch {sample.get('epoch')}",
        "fields": {name: sample[name] for name in ("id", "epoch") if isinstance(sample.get(name), (int, str))},
        "task": evaluation.get("task"),
        "model": evaluation.get("model"),
        "target": sample.get("target"),
        "metadata": sample.get("metadata"),
        "model_usage": sample.get("model_usage"),
    }
    reader = _Sample(file, sample)
    events = reader.events_of_sample
    about["tools"] = reader.tools()
    kept = to_json_data({key: value for key, value in about.items() if value not in (None, {}, [])})
    writer = Writer(file.lost, name=str(evaluation.get("task") or "sample"), about=kept)
    if any(_type(event) == "model" for event in events):
        yield from reader.events(events, writer)
        yield from reader.rest(writer)
    else:
        messages = sample.get("messages")
        resolved = reader.resolved(messages if isinstance(messages, list) else [])
        yield from said(file, resolved, writer)
        if isinstance(scores := sample.get("scores"), Mapping) and scores:
            yield from writer.update({"scores": scores})
    # The end: an error, a limit, or the sample's output.
    if isinstance(error := sample.get("error"), Mapping):
        yield from writer.end("error", error=error_of("SampleError", error.get("message")))
    elif is_open(evaluation):
        return
    elif sample.get("limit"):
        yield from writer.end("limit", error=error_of("Limit", to_json_data(sample["limit"])))
    else:
        output = sample.get("output")
        choices = output.get("choices") if isinstance(output, Mapping) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        message = first.get("message") if isinstance(first, Mapping) else None
        text = content_of(message.get("content")) if isinstance(message, Mapping) else None
        yield from writer.end("completed", seconds(sample.get("completed_at"), file.lost), text)


def is_open(evaluation: Mapping[str, Any]) -> bool:
    """Return True if the log is one that agentnb has exported from a recording without an end."""
    metadata = evaluation.get("metadata")
    own = metadata.get("agentnb") if isinstance(metadata, Mapping) else None
    return isinstance(own, Mapping) and own.get("ended") is False


def _type(event: Any) -> str:
    return str(event.get("event")) if isinstance(event, Mapping) else ""


class _Sample:
    """The events of one sample, with what they refer to."""

    def __init__(self, file: ForeignFile, sample: Mapping[str, Any]) -> None:
        self.file = file
        self.sample = sample
        attachments, data = sample.get("attachments"), sample.get("events_data")
        self.attachments = dict(attachments) if isinstance(attachments, Mapping) else {}
        events, transcript = sample.get("events"), sample.get("transcript")
        if isinstance(transcript, Mapping):  # of an older log
            events = transcript.get("events") if events is None else events
            self.attachments |= transcript["content"] if isinstance(transcript.get("content"), Mapping) else {}
        self.known = Known()  # the messages of the outermost loop
        self.events_of_sample: list[Any] = events if isinstance(events, list) else []
        shared = data.get("messages") if isinstance(data, Mapping) else sample.get("message_pool")
        self.shared = [self.resolved(one) for one in shared] if isinstance(shared, list) else []

    def resolved(self, value: Any, depth: int = 0) -> Any:
        """Return the value with its attachments in their places."""
        if isinstance(value, str):
            if value.startswith(("attachment://", "tc://")):
                return self.attachments.get(value.partition("://")[2], value)
            return value
        if depth > 30:
            return value
        # A value without attachments is returned as it is, not as a copy.
        if isinstance(value, Mapping):
            made = {key: self.resolved(one, depth + 1) for key, one in value.items()}
            return made if any(made[key] is not one for key, one in value.items()) else value
        if isinstance(value, list):
            items = [self.resolved(one, depth + 1) for one in value]
            return items if any(one is not other for one, other in zip(items, value, strict=True)) else value
        return value

    def tools(self) -> list[Any]:
        """Return the schemas of the tools that the requests of the outermost events offer, each once, by name."""
        found: dict[str, Any] = {}
        for event in self.events_of_sample:
            offered = event.get("tools") if _type(event) == "model" else None
            for one in offered if isinstance(offered, list) else ():
                if isinstance(one, Mapping) and isinstance(one.get("name"), str):
                    kept = {key: one[key] for key in ("name", "description", "parameters") if one.get(key)}
                    found.setdefault(one["name"], self.resolved(kept))
        return list(found.values())

    def inputs(self, event: Mapping[str, Any]) -> list[Any]:
        """Return the messages that a request sent."""
        given = event.get("input")
        messages = [self.resolved(one) for one in given] if isinstance(given, list) else []
        for ref in event.get("input_refs") or ():
            if isinstance(ref, list) and len(ref) == 2 and all(isinstance(one, int) for one in ref):
                messages += self.shared[ref[0] : ref[1]]
        return messages

    def events(self, events: Sequence[Any], writer: Writer) -> Iterator[Event]:
        """Yield the events of one loop. The events in the span of a tool are those of a nested loop."""
        known = Known() if writer.path else self.known
        position = 0
        tool_span, began = "", 0.0
        while position < len(events):
            event = events[position]
            position += 1
            kind = _type(event)
            if kind == "span_begin":
                if event.get("type") == "tool":
                    tool_span, began = str(event.get("id")), seconds(event.get("timestamp"), self.file.lost)
                elif event.get("type") in ("scorer", "subtask"):
                    position = yield from self._inside(event, events, position, writer)
            elif kind == "step" and event.get("action") == "begin" and event.get("type") == "scorer":
                position = yield from self._inside(event, events, position, writer)
            elif kind == "subtask" and isinstance(event.get("events"), list):
                yield from self._own(event, event["events"], writer)
            elif kind == "model":
                yield from self._model(event, writer, known)
            elif kind == "approval":
                yield from self._approval(event, writer)
            elif kind == "tool":
                inside = event.get("events")
                inner = list(inside) if isinstance(inside, list) else []
                if tool_span:  # the events up to the end of the span are those inside the tool
                    end = self._end_of(events, position, tool_span)
                    inner += events[position:end]
                    position, tool_span = end, ""
                yield from self._tool(event, inner, writer, began)
                began = 0.0
            elif kind == "score":
                time = seconds(event.get("timestamp"), self.file.lost)
                yield from writer.update({"score": self.resolved(event.get("score"))}, time)
            elif kind == "info" and event.get("source") == "agentnb" and isinstance(event.get("data"), Mapping):
                time = seconds(event.get("timestamp"), self.file.lost)
                yield from writer.update(self.resolved(event["data"]), time)
            elif kind in ("info", "input"):  # a note of the code, or what a person typed
                time = seconds(event.get("timestamp"), self.file.lost)
                yield from writer.update({kind: self.resolved(event.get("data" if kind == "info" else "input"))}, time)
            elif kind == "error":
                error = event.get("error")
                words = error.get("message") if isinstance(error, Mapping) else error
                time = seconds(event.get("timestamp"), self.file.lost)
                yield from writer.update({"error": words}, time)
            elif kind in ("state", "store"):
                given = event.get("changes")
                changes = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
                changes = [one for one in changes if not str(one.get("path")).startswith(_REPEATED)]
                if changes:
                    time = seconds(event.get("timestamp"), self.file.lost)
                    yield from writer.update({kind: self.resolved(changes)}, time)
            elif kind not in _STRUCTURE:
                self.file.lost[f"events of type {kind}"] += 1

    def _inside(
        self, event: Mapping[str, Any], events: Sequence[Any], position: int, writer: Writer
    ) -> Generator[Event, None, int]:
        """Yield the events inside a span or a step that asks a model. Returns the position after them."""
        if event.get("event") == "step":  # of an older log
            ends = [place for place, one in enumerate(events) if _type(one) == "step" and one.get("action") == "end"]
            same = [place for place in ends if place >= position and events[place].get("name") == event.get("name")]
            end = same[0] if same else position
        else:
            end = self._end_of(events, position, str(event.get("id")))
        if not any(_type(one) == "model" for one in events[position:end]):
            return position
        yield from self._own(event, events[position:end], writer)
        return end

    def _own(self, event: Mapping[str, Any], inside: Sequence[Any], writer: Writer) -> Iterator[Event]:
        """Yield the events of a scorer or a subtask that asks a model: a nested loop of a call of the run itself.

        Its scores are values of the run.
        """
        id = str(event.get("id") or event.get("uuid") or event.get("timestamp"))
        named = str(event.get("name") or event.get("type"))
        began = seconds(event.get("timestamp"), self.file.lost)
        given = self.resolved(event.get("input"))
        yield from writer.close()
        is_scorer = event.get("type") == "scorer"
        arguments = given if isinstance(given, Mapping) else {}
        yield from writer.own_call(id, named, arguments, began, is_apart=is_scorer)
        yield from writer.begin(id, began)
        nested = writer.nested(id, named)
        if nested is not None:
            yield from self.events([one for one in inside if _type(one) != "score"], nested)
            yield from nested.end("completed")
        scores = [one for one in inside if _type(one) == "score"]
        result = event.get("result", [one.get("score") for one in scores])
        ended = seconds(scores[-1].get("timestamp") if scores else event.get("completed"), self.file.lost)
        yield from writer.result(id, self.resolved(result), ended)
        yield from self.events(scores, writer)

    def _end_of(self, events: Sequence[Any], begin: int, span: str) -> int:
        for position in range(begin, len(events)):
            if _type(events[position]) == "span_end" and str(events[position].get("id")) == span:
                return position
        return begin

    def _model(self, event: Mapping[str, Any], writer: Writer, known: Known) -> Iterator[Event]:
        """Yield the messages that are new in a request, the request, and its answer."""
        time = seconds(event.get("timestamp"), self.file.lost)
        yield from sent(self.file, self.inputs(event), writer, known)
        output = event.get("output")
        output = self.resolved(output) if isinstance(output, Mapping) else {}
        asked_for = str(event.get("model") or "")
        if event.get("error"):
            yield from writer.failure(error_of("ModelError", event["error"]), 0.0, time, asked_for)
            return
        choices = output.get("choices")
        choices = choices if isinstance(choices, list) else []
        choice = choices[0] if choices and isinstance(choices[0], Mapping) else {}
        if len(choices) > 1:
            self.file.lost["alternative answers"] += len(choices) - 1
        message = choice.get("message")
        message = message if isinstance(message, Mapping) else {}
        known.add(message)
        answer = openai_answer(message, self.file.lost)
        for number, call in enumerate(answer.calls):
            call.id = call.id or f"{event.get('uuid')}_{number + 1}"
        provider, _, model = asked_for.partition("/")
        answer.provider, answer.model = (provider, model) if model else ("", asked_for or None)
        answered = output.get("model")
        answer.model = answered if isinstance(answered, str) and answered else answer.model
        answer.model = None if answer.model == "unknown" else answer.model  # as agentnb's exporter writes it
        answer.usage = usage_of(output.get("usage"))
        metadata = output.get("metadata")
        own = metadata.get("agentnb") if isinstance(metadata, Mapping) else None
        reason = own.get("finish_reason") if isinstance(own, Mapping) else choice.get("stop_reason")
        answer.finish_reason = reason if isinstance(reason, str) and reason != "unknown" else None
        if isinstance(own, Mapping) and isinstance(own.get("stop_reason"), str):
            answer.stop_reason = own["stop_reason"]
        config = event.get("config")
        answer.options = dict(config) if isinstance(config, Mapping) else {}
        yield from writer.answer(answer, seconds(event.get("completed"), self.file.lost), time)

    def _approval(self, event: Mapping[str, Any], writer: Writer) -> Iterator[Event]:
        """Yield the decision of an approver. A person was asked a question."""
        call = event.get("call")
        id = str(call.get("id")) if isinstance(call, Mapping) else ""
        time = seconds(event.get("timestamp"), self.file.lost)
        decision = _DECISIONS.get(str(event.get("decision")))
        if decision is None:  # `escalate`: the next approver decides
            self.file.lost[f"decisions {event.get('decision')}"] += 1
            return
        approver, reason = str(event.get("approver") or "approver"), str(event.get("explanation") or "")
        is_human = approver == "human"
        if is_human and writer.is_open(id):
            yield from writer.question(id)
        fields: dict[str, Any] = {}
        modified = event.get("modified")
        if decision == "edit" and isinstance(modified, Mapping):
            arguments = modified.get("arguments")
            fields = {"arguments": to_json_data(arguments) if isinstance(arguments, Mapping) else {}}
        yield from writer.decision(id, decision, time, by="human" if is_human else approver, reason=reason, **fields)

    def _tool(self, event: Mapping[str, Any], inside: Sequence[Any], writer: Writer, began: float) -> Iterator[Event]:
        """Yield the start and the result of a call, with the sub-agent that performed it.

        began: the start of the tool's span, which follows the decisions about the call; 0 without a span.
        """
        id = str(event.get("id") or "")
        began = began or seconds(event.get("timestamp"), self.file.lost)
        ended = seconds(event.get("completed"), self.file.lost)
        if any(_type(one) in ("model", "tool") for one in inside) and writer.is_open(id):
            yield from writer.begin(id, began)
            nested = writer.nested(id, str(event.get("agent") or event.get("function") or "agent"))
            if nested is not None:
                yield from self.events(inside, nested)
                yield from nested.end("completed")
        elif inside:
            for one in inside:
                if _type(one) not in _STRUCTURE:
                    self.file.lost[f"events of type {_type(one)}"] += 1
        error = event.get("error")
        if not isinstance(error, Mapping):
            yield from writer.result(id, content_of(self.resolved(event.get("result"))), ended, started=began)
            return
        kind, words = str(error.get("type") or "error"), str(error.get("message") or "")
        outcome: Any = {"approval": "rejected", "timeout": "timed_out", "parsing": "invalid"}.get(kind, "raised")
        info = None if outcome == "rejected" else error_of(kind, words)
        yield from writer.result(id, words, ended, started=began, is_error=True, outcome=outcome, error=info)

    def rest(self, writer: Writer) -> Iterator[Event]:
        """Yield what only the end of the sample's messages has: results without an event, and the user's last words."""
        found = self.sample.get("messages")
        messages = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        answers = [number for number, one in enumerate(messages) if one.get("role") == "assistant"]
        for number, given in enumerate(messages):
            is_result = given.get("role") == "tool" and writer.is_open(str(given.get("tool_call_id")))
            is_last = given.get("role") == "user" and answers and number > answers[-1]
            if is_result or (is_last and self.known.new([self.resolved(given)])):
                yield from said(self.file, [self.resolved(given)], writer)
