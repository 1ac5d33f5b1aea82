"""Runs as spans of OpenTelemetry, events of AG-UI and logs of Inspect: in files, and live."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Loop, SessionLoop, UsageError, tool
from agentnb.loops.want import call as call_of
from agentnb.telemetry import agui, export_spans
from agentnb.testing import ScriptedLLM, call
from tests.importers.files import FILES, written

Json = dict[str, Any]
FORMATS = {"otlp": "spans.json", "ag-ui": "events.jsonl", "inspect": "log.json"}


@tool(approve=True)
def weather(city: str) -> str:
    """Return the weather."""
    if city == "Atlantis":
        raise ValueError("It is under water.")
    return f"cold in {city}"


def loop(*turns: Any) -> SessionLoop:
    turns = turns or ([call("weather", {"city": "Rome"}, id="c1")], "It is cold.")
    return SessionLoop(ScriptedLLM(list(turns)), [weather], system_prompt="Be short.")


@Loop.from_generator(llm=ScriptedLLM([]))
def outer(topic: Any) -> Any:
    return (yield call_of(loop(), topic))


def told(recording: Any) -> list[tuple[str, Any, list[str]]]:
    """Return the conversation of a recording: roles, contents and calls."""
    recording.to(len(recording.recording) - 1)
    return [(one.role, one.content, [made.name for made in one.tool_calls]) for one in recording.messages]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("format", FORMATS)
def test_a_conversation_goes_out_and_in_again(tmp_path: Path, kind: str, format: str) -> None:
    first = agentnb.replay(written(tmp_path, kind))
    exported = first.export(tmp_path / f"out-{FORMATS[format]}", format=format)
    again = agentnb.replay(exported.path)
    assert again.imported["format"] == exported.format
    assert told(again) == told(first)
    assert again.lost == {}


async def a_run_with_everything() -> Any:
    """Return a run with a failed request, a rejected call, a failed call, and a decision of a person."""
    turns = [
        ConnectionError("gone"),
        [call("weather", {"city": "Rome"}, id="c1"), call("weather", {"city": "Atlantis"}, id="c2")],
        "Cold.",
    ]
    run = loop(*turns).start("How warm is it?")
    await run.step("turn")
    run.resume()
    await run.step("turn")
    run.reject(run.pending[0], reason="no")
    run.approve(run.pending[0])
    await run
    return run


async def test_the_libraries_of_the_formats_accept_what_is_written(tmp_path: Path) -> None:
    ag_ui = pytest.importorskip("ag_ui.core")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    from google.protobuf.json_format import ParseDict
    from pydantic import TypeAdapter

    nested = outer.start("How warm is it?", approve=True)
    await nested
    for run in (await a_run_with_everything(), nested):
        run.export(tmp_path / "events.jsonl", format="ag-ui")
        for line in (tmp_path / "events.jsonl").read_bytes().splitlines():
            assert not TypeAdapter(ag_ui.Event).validate_json(line).model_extra
        run.export(tmp_path / "spans.json", format="otlp")
        spans = json.loads((tmp_path / "spans.json").read_bytes())
        for span in spans["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            for id in ("traceId", "spanId", "parentSpanId"):  # OTLP has them in another form than protobuf
                span[id] = b64encode(bytes.fromhex(span[id])).decode()
        assert ParseDict(spans, service.ExportTraceServiceRequest()).resource_spans


async def test_what_the_formats_cannot_carry_is_counted(tmp_path: Path) -> None:
    run = await a_run_with_everything()
    lost = {format: run.export(tmp_path / name, format=format).lost for format, name in FORMATS.items()}
    assert lost["otlp"] == {}  # decisions and failures are in the spans
    assert lost["inspect"] == {"options of requests": 3, "questions that no person answered": 2}
    assert "times of calls" in lost["ag-ui"]


async def test_a_log_of_inspect_has_the_decisions_the_errors_and_the_end(tmp_path: Path) -> None:
    run = await a_run_with_everything()
    run.export(tmp_path / "log.json", format="inspect")
    opened = agentnb.replay(tmp_path / "log.json")
    decided = [(event.decision, event.by) for event in opened.recording if event.type == "approval_decision"]
    assert decided == [("reject", "code"), ("approve", "code")]
    results = [(event.call_id, event.is_error) for event in opened.recording if event.type == "call_end"]
    assert results == [("c1", True), ("c2", True)]
    assert [event.type for event in opened.recording].count("model_error") == 1
    assert opened.recording[-1].output == "Cold."


async def test_sub_agents_come_back_as_nested_loops(tmp_path: Path) -> None:
    run = outer.start("How warm is it?", approve=True)
    await run
    run.export(tmp_path / "log.json", format="inspect")
    run.export(tmp_path / "events.jsonl", format="ag-ui")
    opened = agentnb.replay(tmp_path / "events.jsonl")
    inside = [event.type for event in opened.recording if event.path and event.type in ("model_end", "call_end")]
    assert inside == ["model_end", "call_end", "model_end"]
    events = json.loads((tmp_path / "log.json").read_bytes())["samples"][0]["events"]
    assert [event["event"] for event in events] == [
        "span_begin",
        "tool",
        "model",
        "span_begin",
        "approval",
        "tool",
        "span_end",
        "model",
        "span_end",
    ]


def test_sub_agents_of_ag_ui_may_be_unknown_in_a_circle_or_too_deep(tmp_path: Path) -> None:
    def started(id: str, **fields: Any) -> Json:
        return {"type": "SUBAGENT_STARTED", "subagentRunId": id, "name": "a", **fields}

    def called(id: str, **fields: Any) -> list[Json]:
        start = {"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": "t", **fields}
        return [start, {"type": "TOOL_CALL_END", "toolCallId": id, **fields}]

    def said(id: str) -> Json:
        return {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "x", "subagentRunId": id}

    deep = [one for n in range(1, 300) for one in _one_deeper(n, started, called)]
    circle = [started("x", parentSubagentRunId="x", parentToolCallId="0"), said("x")]
    events = [
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        *called("0"),
        *circle,
        started("unknown", parentToolCallId="nowhere"),
        said("unknown"),
        *called("d0"),
        *deep,
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "never started"},
        {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(map(json.dumps, events)))
    lost = agentnb.replay(path).lost
    assert lost["sub-agents that no open call started"] == 1
    assert lost["sub-agents nested too deeply"] == 1
    assert lost["events of sub-agents that no call started"] > 200


def _one_deeper(n: int, started: Any, called: Any) -> list[Json]:
    above = {"parentSubagentRunId": f"s{n - 1}"} if n > 1 else {}
    return [started(f"s{n}", parentToolCallId=f"d{n - 1}", **above), *called(f"d{n}", subagentRunId=f"s{n}")]


# -- live --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tracer() -> Any:
    """Return a tracer of the SDK, and the exporter that keeps its spans."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter


def spans_of(exporter: Any) -> list[Any]:
    return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time, span.name != "invoke_agent outer"))


def expected(events: Any) -> dict[str, int]:
    """Return the number of spans of each operation that a recording has."""
    types = [event.type for event in events]
    called = {(event.path, event.call_id) for event in events if event.type == "call_end"}
    return {"invoke_agent": types.count("run_start"), "chat": types.count("model_start"), "execute_tool": len(called)}


async def test_the_spans_of_a_live_run_equal_its_events(tracer: Any) -> None:
    run = outer.start("How warm is it?", approve=True)
    stop = export_spans(run, tracer[0])
    await run
    stop()
    spans = spans_of(tracer[1])
    counts = {"invoke_agent": 0, "chat": 0, "execute_tool": 0}
    for span in spans:
        counts[span.attributes["gen_ai.operation.name"]] += 1
    assert counts == expected(run.events) == {"invoke_agent": 2, "chat": 2, "execute_tool": 2}
    by_id = {span.context.span_id: span for span in spans}
    above = {span.name: by_id[span.parent.span_id].name if span.parent else None for span in spans}
    inner = next(event.name for event in run.events if event.type == "run_start" and event.path)
    around = next(name for name in above if name.startswith("execute_tool") and name != "execute_tool weather")
    assert above == {
        "invoke_agent outer": None,
        around: "invoke_agent outer",
        f"invoke_agent {inner}": around,
        "chat script": f"invoke_agent {inner}",
        "execute_tool weather": f"invoke_agent {inner}",
    }
    assert len({span.context.trace_id for span in spans}) == 1
    times = {event.time for event in run.events}
    assert all(min(abs(span.end_time / 1e9 - time) for time in times) < 1e-5 for span in spans)
    called = next(span for span in spans if span.name == "execute_tool weather")
    assert called.attributes["gen_ai.tool.call.arguments"] == '{"city":"Rome"}'
    assert called.attributes["gen_ai.tool.call.result"] == "cold in Rome"
    (first, second) = (span for span in spans if span.name == "chat script")
    assert json.loads(first.attributes["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be short."}]
    assert [one["role"] for one in json.loads(first.attributes["gen_ai.input.messages"])] == ["user"]
    assert [one["role"] for one in json.loads(second.attributes["gen_ai.input.messages"])] == ["tool"]
    assert second.attributes["agentnb.messages_before"] == 2


async def test_a_live_run_is_in_the_panel_and_in_the_collector_at_once(tracer: Any) -> None:
    run = outer.start("How warm is it?", approve=True)
    panel, shown, loop = run.panel(), asyncio.Event(), asyncio.get_running_loop()

    def updated(change: Any) -> None:  # by the thread of the panels
        if run.state.over and change.new == len(run.events):
            loop.call_soon_threadsafe(shown.set)

    panel.observe(updated, "total")
    stop = export_spans(run, tracer[0])
    ended = 0
    async for event in run:
        # The span of what this event ends is in the collector now, with the event's time.
        if event.type in ("model_end", "call_end", "run_end"):
            ended += 1
            assert abs(tracer[1].get_finished_spans()[-1].end_time / 1e9 - event.time) < 1e-5
        assert len(tracer[1].get_finished_spans()) == ended
    stop()
    await asyncio.wait_for(shown.wait(), 10)
    assert panel.status["over"]
    assert ended == sum(expected(run.events).values())
    panel.close()


async def test_errors_and_waits_are_marked_in_spans(tracer: Any) -> None:
    run = await a_run_with_everything()
    export_spans(run, tracer[0])()  # the events of its past
    spans = spans_of(tracer[1])
    errors = [span for span in spans if span.status.status_code.name == "ERROR"]
    failed = {span.attributes.get("gen_ai.tool.call.id") or span.name: span for span in errors}
    assert set(failed) == {"chat script", "c1", "c2"}
    assert failed["chat script"].attributes["error.type"] == "ConnectionError"
    assert failed["c1"].attributes["agentnb.outcome"] == "rejected"
    assert failed["c2"].status.description == "It is under water."
    asked, decided = failed["c1"].events
    assert (asked.name, decided.name) == ("agentnb.approval_request", "agentnb.approval_decision")
    assert dict(decided.attributes) == {"agentnb.decision": "reject", "agentnb.by": "code", "agentnb.reason": "no"}
    assert failed["c1"].start_time <= asked.timestamp <= decided.timestamp <= failed["c1"].end_time
    assert [event.name for event in spans[0].events] == ["agentnb.run_resumed"]


async def test_the_spans_of_a_run_that_is_stopped_end(tracer: Any) -> None:
    run = loop().start("How warm is it?")
    stop = export_spans(run, tracer[0], content=False)
    await run.step("turn")
    stop()
    spans = spans_of(tracer[1])
    assert [span.name for span in spans] == ["invoke_agent session_loop", "chat script", "execute_tool weather"]
    everything = json.dumps([dict(span.attributes) for span in spans])
    assert "Rome" not in everything
    assert "How warm" not in everything
    run.cancel()
    assert len(tracer[1].get_finished_spans()) == len(spans)


async def test_spans_without_content_have_no_words_of_errors_and_people(tracer: Any) -> None:
    run = await a_run_with_everything()
    export_spans(run, tracer[0], content=False)()
    spans = spans_of(tracer[1])
    told = [dict(event.attributes) for span in spans for event in span.events]
    everything = json.dumps([[dict(span.attributes), span.status.description] for span in spans] + told)
    assert not [words for words in ("gone", "under water", '"no"', "Atlantis") if words in everything]
    assert "ConnectionError" in everything


async def test_a_run_is_streamed_as_events_of_ag_ui() -> None:
    run = loop().start("How warm is it?", approve=True)
    events = [event async for event in agui(run)]
    types = [event["type"] for event in events]
    assert types[0] == "RUN_STARTED"
    assert types[-1] == "RUN_FINISHED"
    assert types.count("TEXT_MESSAGE_START") == types.count("TEXT_MESSAGE_END")
    pieces = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert pieces[-3:] == ["It", " is", " cold."]  # as they were streamed
    assert types.count("TOOL_CALL_START") == types.count("TOOL_CALL_RESULT") == 1
    assert events[-1]["outcome"] == {"type": "success"}
    assert events[-1]["result"] == "It is cold."
    ag_ui = pytest.importorskip("ag_ui.core")
    from pydantic import TypeAdapter

    for event in events:
        assert not TypeAdapter(ag_ui.Event).validate_python(event).model_extra


async def test_a_failure_and_a_question_end_the_stream_of_ag_ui(tmp_path: Path) -> None:
    failing = loop(ConnectionError("gone")).start("How warm is it?")
    events = [event async for event in agui(failing)]
    assert events[-1] == {"type": "RUN_ERROR", "message": "gone", "code": "ConnectionError"}
    asking = loop().start("How warm is it?")
    await asking.step("turn")
    asking.export(tmp_path / "events.jsonl", format="ag-ui")
    last = json.loads((tmp_path / "events.jsonl").read_bytes().splitlines()[-1])
    assert last["outcome"]["type"] == "interrupt"
    assert last["outcome"]["interrupts"][0]["toolCallId"] == "c1"
    asking.cancel()


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    recording = agentnb.replay(written(tmp_path, "ATIF"))
    with pytest.raises(UsageError, match="takes a run or a recording"):
        export_spans("run", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="A recording is written by"):
        asyncio.run(anext(agui(recording)))  # type: ignore[arg-type]


def test_unknown_times_are_counted_and_messages_that_no_request_sent(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    asked, answered = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    path.write_text(json.dumps([asked, answered, asked, answered, asked]))
    lost = agentnb.replay(path).export(tmp_path / "spans.json", format="otlp").lost
    assert lost["messages that no request has sent"] == 1
    assert lost["unknown times, written as those of the events before"] == 3
