"""OpenAI Agents SDK: exported traces (a list or lines of spans, one recording for each trace), and saved run states.

Spans of generations have their messages. Spans of responses and of turns have only their usage: their answers are
carried without content, which is counted. A function that no known answer has called is a call of the loop itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.importers.content import content_of, openai_answer, openai_usage
from agentnb.importers.conversation import Known, answer_of_items, said, sent
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Writer, error_of, seconds

name = "OpenAI Agents"

Span = Mapping[str, Any]


def recognises(file: ForeignFile) -> bool:
    """Return True for the objects of a trace."""
    if _is_run_state(file.document):
        return True
    value = file.document if isinstance(file.document, list) else file.first
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Mapping) and first.get("object") in ("trace", "trace.span")


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of the traces, in the order in which the file has them; or those of a run state."""
    if _is_run_state(file.document):
        yield from _run_state(file, file.document)
        return
    objects = file.document if isinstance(file.document, list) else [line for _, line in file.lines()]
    about: dict[str, Span] = {}
    traces: dict[str, list[Span]] = defaultdict(list)
    for number, one in enumerate(objects, 1):
        if not isinstance(one, Mapping):
            file.damaged(f"entry {number} is not an object", "damaged spans")
        elif one.get("object") == "trace":
            about[str(one.get("id"))] = one
        else:
            traces[str(one.get("trace_id"))].append(one)
    if not traces:
        raise file.refused("it has no span.")
    for id, spans in traces.items():
        yield from _trace(file, id, about.get(id, {}), spans)


def _is_run_state(document: Any) -> bool:
    return isinstance(document, dict) and "$schemaVersion" in document and "model_responses" in document


def _run_state(file: ForeignFile, state: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of a saved run: its input, the responses, the results, and the calls that await approval."""
    agent = state.get("current_agent")
    title = agent.get("name") if isinstance(agent, Mapping) else None
    writer = Writer(file.lost, name=str(title or "agent"), about={"version": state.get("$schemaVersion")})
    given = state.get("original_input")
    messages = given if isinstance(given, list) else [{"role": "user", "content": given}]
    yield from said(file, messages, writer)
    results: dict[str, Any] = {}
    for item in _list(state.get("generated_items")):
        raw = item.get("raw_item") if isinstance(item, Mapping) else None
        if isinstance(raw, Mapping) and str(raw.get("type")).endswith("_output"):
            results[str(raw.get("call_id"))] = raw.get("output", item.get("output"))
    for response in _list(state.get("model_responses")):
        if not isinstance(response, Mapping):
            file.damaged("a response is not an object", "damaged responses")
            continue
        answer = answer_of_items(file, _list(response.get("output")))
        usage = response.get("usage")
        if isinstance(usage, Mapping):
            details = {key: one[0] for key, one in usage.items() if isinstance(one, list) and one}
            answer.usage = openai_usage({**usage, **details})
        id = response.get("response_id")
        answer.response_id = id if isinstance(id, str) else None
        yield from writer.answer(answer)
        for call in answer.calls:
            if call.id in results:
                yield from writer.result(call.id, content_of(results.pop(call.id)))
    if results:
        file.lost["results of unknown calls"] += len(results)
    step = state.get("current_step")
    inner = step.get("data") if isinstance(step, Mapping) else None
    for item in _list(inner.get("interruptions") if isinstance(inner, Mapping) else None):
        raw = item.get("raw_item") if isinstance(item, Mapping) else None
        if isinstance(raw, Mapping):
            yield from writer.question(str(raw.get("call_id") or ""))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _trace(file: ForeignFile, id: str, about: Span, spans: Sequence[Span]) -> Iterator[Event]:
    """Yield the events of one trace."""
    file.begin()
    timed = [(seconds(span.get("started_at"), file.lost), number, span) for number, span in enumerate(spans)]
    workflow = str(about.get("workflow_name") or "agent")
    kept = {key: about[key] for key in ("workflow_name", "group_id", "metadata") if about.get(key)}
    writer = Writer(file.lost, name=workflow, about=to_json_data({"id": id, **kept}))
    known = Known()
    has_answers = any(_data(span).get("type") in ("generation", "response") for span in spans)
    for began, number, span in sorted(timed, key=lambda one: (one[0], one[1])):
        data = _data(span)
        kind = str(data.get("type"))
        ended = seconds(span.get("ended_at"), file.lost)
        failed = span.get("error")
        words = failed.get("message") if isinstance(failed, Mapping) else None
        inner = data.get("data")
        is_turn = kind == "custom" and isinstance(inner, Mapping) and inner.get("sdk_span_type") == "turn"
        if kind in ("generation", "response") or (is_turn and not has_answers):
            if words:
                model = str(data.get("model") or "")
                yield from writer.failure(error_of("ModelError", words), ended, began, model)
            else:
                # The span of a turn ends after its calls: when its answer came is not known.
                given, answered = (inner or {}, 0.0) if is_turn else (data, ended)
                yield from _request(file, given, writer, known, began, answered)
        elif kind == "function":
            yield from _function(file, data, str(span.get("id") or number), words, writer, (began, ended))
        elif kind == "handoff":
            yield from writer.update({"handoff": [data.get("from_agent"), data.get("to_agent")]}, ended)
        elif kind == "guardrail":
            yield from writer.update({"guardrail": [data.get("name"), data.get("triggered")]}, ended)
        elif kind not in ("agent", "custom"):
            file.lost[f"spans of type {kind}"] += 1
    yield from writer.start()
    yield from writer.close()


def _data(span: Span) -> Span:
    data = span.get("span_data")
    return data if isinstance(data, Mapping) else {}


def _request(
    file: ForeignFile, data: Span, writer: Writer, known: Known, began: float, ended: float
) -> Iterator[Event]:
    """Yield a request and its answer, as far as the span has them."""
    messages, outputs = data.get("input"), data.get("output")
    yield from sent(file, messages if isinstance(messages, list) else [], writer, known)
    first = outputs[0] if isinstance(outputs, list) and outputs and isinstance(outputs[0], Mapping) else None
    if first is None:
        file.lost["contents of answers"] += 1
        answer = Answer()
    else:
        known.add(first)
        answer = openai_answer(first, file.lost)
    model, id = data.get("model"), data.get("response_id")
    answer.model = model if isinstance(model, str) else None
    answer.response_id = id if isinstance(id, str) else None
    answer.usage = openai_usage(data.get("usage"))
    yield from writer.answer(answer, ended, began)


def _function(
    file: ForeignFile, data: Span, span: str, error: Any, writer: Writer, times: tuple[float, float]
) -> Iterator[Event]:
    """Yield the start and the result of a call. The span has no id of a call: it is the first open one of the name."""
    called = str(data.get("name") or "")
    id = next((one for one in writer.open_calls if writer.name_of(one) == called), "")
    if not id:
        id = span
        yield from writer.own_call(id, called, data.get("input"), times[0])
    output, failed = data.get("output"), error_of("ToolError", error) if error else None
    value = error if failed is not None and output is None else output
    yield from writer.result(id, value, times[1], started=times[0], is_error=bool(failed), error=failed)
