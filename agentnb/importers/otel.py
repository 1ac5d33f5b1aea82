"""OpenTelemetry: spans of the GenAI conventions, as OTLP JSON or as a list of spans; one recording for each trace.

A span of a chat is a request, a span of a tool its call. Requests inside the span of a tool are those of a sub-agent.
Requests repeat the messages of earlier ones: only those that are new become events. A tool that no known answer has
called is a call of the loop itself. The attributes of OpenInference, and those of Google's ADK before it had the
conventions, are read as attributes of the conventions.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.importers.content import openai_answer
from agentnb.importers.conversation import Known, sent
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Writer, error_of, seconds

name = "OpenTelemetry"

_CHATS = frozenset({"chat", "text_completion", "generate_content"})
_USAGE = {
    "gen_ai.usage.input_tokens": "input_tokens",
    "gen_ai.usage.prompt_tokens": "input_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cache_read_tokens",
    "gen_ai.usage.cache_creation.input_tokens": "cache_write_tokens",
    "operation.cost": "cost",
}
_STRUCTURE = frozenset({"invoke_agent", "create_agent", "invoke_workflow", "unknown"})
"""Operations whose spans only order the others."""
_OPEN_INFERENCE = {
    "llm.model_name": "gen_ai.request.model",
    "llm.provider": "gen_ai.provider.name",
    "llm.token_count.prompt": "gen_ai.usage.input_tokens",
    "llm.token_count.completion": "gen_ai.usage.output_tokens",
    "tool.name": "gen_ai.tool.name",
    "tool_call.id": "gen_ai.tool.call.id",
    "output.value": "gen_ai.tool.call.result",
    "input.value": "gen_ai.tool.call.arguments",
}
_KINDS = {"LLM": "chat", "TOOL": "execute_tool", "AGENT": "invoke_agent", "CHAIN": "unknown"}
_INDEXED = re.compile(
    r"llm\.(input|output)_messages\.(\d{1,6})\.message\."
    r"(?:(role|content|tool_call_id)|contents\.(\d{1,6})\.message_content\.text"
    r"|tool_calls\.(\d{1,6})\.tool_call\.(id|function\.name|function\.arguments))"
)
_PROMPT = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,6})\.(role|content)")


@dataclass(slots=True)
class _Span:
    trace: str
    id: str
    parent: str
    name: str
    start: float
    end: float
    values: dict[str, Any]
    events: Sequence[Any]
    error: str

    @property
    def kind(self) -> str:
        operation = str(self.values.get("gen_ai.operation.name") or "")
        if operation in _CHATS or (not operation and "gen_ai.prompt.0.role" in self.values):
            return "chat"
        return operation


def recognises(file: ForeignFile) -> bool:
    """Return True for spans that have attributes of the GenAI conventions."""
    if b"gen_ai." not in file.data and b"openinference.span.kind" not in file.data:
        return False
    value = file.document if file.document is not None else file.first
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Mapping) and ("resourceSpans" in first or _is_span(first))


def _is_span(value: Any) -> bool:
    return isinstance(value, Mapping) and ("spanId" in value or isinstance(value.get("context"), Mapping))


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of the traces, in the order of their first spans."""
    traces: dict[str, list[_Span]] = defaultdict(list)
    for given in _given(file):
        span = _span(file, given)
        traces[span.trace].append(span)
    if not any(span.kind in ("chat", "execute_tool") for spans in traces.values() for span in spans):
        raise file.refused("it has no span of a chat or a tool of the GenAI conventions.")
    for spans in sorted(traces.values(), key=lambda spans: min(span.start for span in spans)):
        file.begin()
        yield from _Trace(file, spans).events()


def _given(file: ForeignFile) -> Iterator[Mapping[str, Any]]:
    """Yield the spans as the file has them."""
    if file.document is not None:
        roots = file.document if isinstance(file.document, list) else [file.document]
    else:
        roots = [line for _, line in file.lines()]
    for number, root in enumerate(roots, 1):
        if _is_span(root):
            yield root
            continue
        for resource in _list(root, "resourceSpans"):
            for scope in _list(resource, "scopeSpans") or _list(resource, "instrumentationLibrarySpans"):
                for place, span in enumerate(_list(scope, "spans"), 1):
                    if _is_span(span):
                        yield span
                    else:
                        file.damaged(f"span {place} of entry {number} is not a span", "damaged spans")


def _list(value: Any, field: str) -> list[Any]:
    found = value.get(field) if isinstance(value, Mapping) else None
    return found if isinstance(found, list) else []


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span or an event: a mapping, or the list of keys and values of OTLP JSON."""
    attributes = given.get("attributes")
    if isinstance(attributes, Mapping):
        return dict(attributes)
    pairs = [pair for pair in _list(given, "attributes") if isinstance(pair, Mapping)]
    return {str(pair.get("key")): _value(pair.get("value")) for pair in pairs}


def _span(file: ForeignFile, given: Mapping[str, Any]) -> _Span:
    own = given.get("context")
    context: Mapping[str, Any] = own if isinstance(own, Mapping) else {}
    values = _attributes(given)
    if "openinference.span.kind" in values:
        values = _of_open_inference(values)
    elif str(values.get("gcp.vertex.agent.llm_request") or "{}") != "{}":
        values = _of_adk(values)
    own_status = given.get("status")
    status: Mapping[str, Any] = own_status if isinstance(own_status, Mapping) else {}
    is_error = status.get("code") in (2, "STATUS_CODE_ERROR") or status.get("status_code") == "ERROR"
    return _Span(
        trace=str(given.get("traceId") or context.get("trace_id") or ""),
        id=str(given.get("spanId") or context.get("span_id") or ""),
        parent=str(given.get("parentSpanId") or given.get("parent_id") or ""),
        name=str(given.get("name") or ""),
        start=seconds(given.get("startTimeUnixNano") or given.get("start_time"), file.lost),
        end=seconds(given.get("endTimeUnixNano") or given.get("end_time"), file.lost),
        values=values,
        events=_list(given, "events"),
        error=str(status.get("message") or status.get("description") or "error") if is_error else "",
    )


def _value(value: Any, depth: int = 0) -> Any:
    """Return a value of OTLP as plain data."""
    if not isinstance(value, Mapping) or depth > 30:
        return value
    for kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if kind in value:
            return value[kind]
    if "intValue" in value:
        number = value["intValue"]
        return int(number) if isinstance(number, str) and number.lstrip("-").isdigit() and len(number) < 20 else number
    if "arrayValue" in value:
        return [_value(one, depth + 1) for one in _list(value["arrayValue"], "values")]
    if "kvlistValue" in value:
        pairs = [pair for pair in _list(value["kvlistValue"], "values") if isinstance(pair, Mapping)]
        return {str(pair.get("key")): _value(pair.get("value"), depth + 1) for pair in pairs}
    return None


def _plain(value: Any) -> Any:
    """Return the data in JSON text; other values unchanged."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


class _Trace:
    """The spans of a trace."""

    def __init__(self, file: ForeignFile, spans: Sequence[_Span]) -> None:
        self.file = file
        self.spans = sorted(spans, key=lambda span: span.start)
        self.by_id: dict[str, _Span] = {}
        for span in self.spans:
            if span.id in self.by_id:
                file.damaged(f"span {span.id} is repeated", "repeated spans")
            self.by_id.setdefault(span.id, span)
        self.spans = [span for span in self.spans if self.by_id[span.id] is span]
        self.inside: dict[str, list[_Span]] = defaultdict(list)  # the requests and calls in each call, by its span
        self.tools: dict[str, str] = {}

    def events(self) -> Iterator[Event]:
        """Yield the events of the trace."""
        for span in self.spans:
            if span.kind in ("chat", "execute_tool"):
                self.inside[self._tool_around(span)].append(span)
            elif span.kind not in _STRUCTURE:
                self.file.lost["spans of other kinds"] += 1
        agents = (span for span in self.spans if span.kind == "invoke_agent" and span.parent not in self.by_id)
        agent = next(agents, None)
        about: dict[str, Any] = {"id": self.spans[0].trace}
        if (tools := next((span.values.get("gen_ai.tool.definitions") for span in self.spans), None)) is not None:
            about["tools"] = to_json_data(_plain(tools))
        title = agent.values.get("gen_ai.agent.name") if agent is not None else None
        writer = Writer(self.file.lost, name=str(title or "agent"), about=about)
        yield from self._loop("", writer)
        if agent is not None and agent.error:
            yield from writer.end("error", agent.end, error=error_of("AgentError", agent.error))
        elif agent is not None and agent.end:
            yield from writer.end("completed", agent.end, _plain(agent.values.get("final_result")))
        yield from writer.start()

    def _tool_around(self, span: _Span) -> str:
        """Return the id of the call of the nearest tool span among the ancestors of a span; "" without one."""
        passed: list[str] = []
        parent, seen = span.parent, {span.id}
        found = ""
        while parent in self.by_id and parent not in seen:
            if parent in self.tools:
                found = self.tools[parent]
                break
            seen.add(parent)
            if self.by_id[parent].kind == "execute_tool":
                found = parent
                break
            passed.append(parent)
            parent = self.by_id[parent].parent
        for id in passed:
            self.tools[id] = found
        return found

    def _loop(self, tool: str, writer: Writer) -> Iterator[Event]:
        """Yield the events of the loop in a tool's span; "" for the outermost."""
        known = Known()
        spans = self.inside.pop(tool, [])
        for span, following in zip(spans, [*spans[1:], None], strict=True):
            if span.kind == "chat":
                # The span of a request may last until its calls have ended: then the time of its answer is unknown.
                is_longer = following is not None and following.kind != "chat" and following.start < span.end
                yield from self._chat(span, writer, known, 0.0 if is_longer else span.end)
            else:
                yield from self._tool(span, writer)

    def _chat(self, span: _Span, writer: Writer, known: Known, answered: float) -> Iterator[Event]:
        messages, answers = _messages(span)
        yield from sent(self.file, messages, writer, known)
        asked = span.values.get("gen_ai.request.model")
        if span.error:
            kind = str(span.values.get("error.type") or "ModelError")
            yield from writer.failure(error_of(kind, span.error), span.end, span.start, str(asked or ""))
            return
        given: Mapping[str, Any] = answers[0] if answers else {}
        if not answers:
            self.file.lost["contents of answers"] += 1
        elif len(answers) > 1:
            self.file.lost["alternative answers"] += len(answers) - 1
        known.add(given)
        answer = openai_answer(given, self.file.lost)
        for number, call in enumerate(answer.calls):
            call.id = call.id or f"{span.id}_{number + 1}"
        model = span.values.get("gen_ai.response.model") or asked
        answer.model = str(model) if model else None
        answer.provider = str(span.values.get("gen_ai.provider.name") or span.values.get("gen_ai.system") or "")
        answer.usage = {name: span.values[key] for key, name in _USAGE.items() if span.values.get(key)}
        id, reasons = span.values.get("gen_ai.response.id"), _plain(span.values.get("gen_ai.response.finish_reasons"))
        answer.response_id = id if isinstance(id, str) else None
        reason = reasons[0] if isinstance(reasons, list) and reasons else given.get("finish_reason")
        answer.finish_reason = reason if isinstance(reason, str) else None
        wanted = ("temperature", "top_p", "max_tokens", "seed")
        options = {key: span.values.get(f"gen_ai.request.{key}") for key in wanted}
        answer.options = {key: value for key, value in options.items() if value is not None}
        yield from writer.answer(answer, answered, span.start)

    def _tool(self, span: _Span, writer: Writer) -> Iterator[Event]:
        id, called = str(span.values.get("gen_ai.tool.call.id") or ""), str(span.values.get("gen_ai.tool.name") or "")
        if not writer.is_open(id):
            id = next((one for one in writer.open_calls if writer.name_of(one) == called), id)
        if not writer.is_open(id):
            id = span.id
            names = ("gen_ai.tool.call.arguments", "tool_arguments", "gcp.vertex.agent.tool_call_args")
            arguments = next((_plain(span.values[key]) for key in names if key in span.values), None)
            yield from writer.own_call(id, called or span.name, arguments, span.start)
        if span.id in self.inside and writer.is_open(id):
            yield from writer.begin(id, span.start)
            nested = writer.nested(id, called)
            if nested is not None:
                yield from self._loop(span.id, nested)
                yield from nested.end("completed", span.end)
        keys = ("gen_ai.tool.call.result", "tool_response", "gen_ai.tool.output", "gcp.vertex.agent.tool_response")
        result = next((_plain(span.values[key]) for key in keys if key in span.values), None)
        error = error_of(str(span.values.get("error.type") or "ToolError"), span.error) if span.error else None
        value = result if result is not None or error is None else span.error
        yield from writer.result(id, value, span.end, started=span.start, is_error=bool(error), error=error)


def _of_open_inference(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span of OpenInference as attributes of the conventions."""
    values = {_OPEN_INFERENCE.get(key, key): value for key, value in given.items()}
    values["gen_ai.operation.name"] = _KINDS.get(
        str(given["openinference.span.kind"]), given["openinference.span.kind"]
    )
    messages: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    for key in sorted(given, key=_by_numbers):
        if (found := _INDEXED.fullmatch(key)) is None:
            continue
        side, number, field, part, call, of_call = found.groups()
        message = messages[side, int(number)]
        if field:
            message[field] = given[key]
        elif part:
            message["content"] = f"{message.get('content', '')}{given[key]}"
        else:
            calls = message.setdefault("calls", {})
            calls.setdefault(int(call), {})[of_call.removeprefix("function.")] = given[key]
    for side in ("input", "output"):
        said = [message for (of, _), message in sorted(messages.items()) if of == side]
        for message in said:
            if calls := message.pop("calls", None):
                message["tool_calls"] = [one for _, one in sorted(calls.items())]
        if said:
            values[f"gen_ai.{side}.messages"] = said
    return values


def _by_numbers(key: str) -> list[tuple[bool, int, str]]:
    """Return what orders keys with numbers in them as the numbers do."""
    parts = key.split(".")
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _of_adk(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a request of ADK as attributes of the conventions: it has the contents of Gemini."""
    request, response = (
        _plain(given.get("gcp.vertex.agent.llm_request")),
        _plain(given.get("gcp.vertex.agent.llm_response")),
    )
    request = request if isinstance(request, Mapping) else {}
    response = response if isinstance(response, Mapping) else {}
    config, usage = request.get("config"), response.get("usage_metadata")
    system = config.get("system_instruction") if isinstance(config, Mapping) else None
    inputs: list[Any] = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    inputs += [_of_gemini(content) for content in _list(request, "contents")]
    counts = usage if isinstance(usage, Mapping) else {}
    return {
        **given,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": given.get("gen_ai.request.model") or request.get("model"),
        "gen_ai.usage.input_tokens": counts.get("prompt_token_count"),
        "gen_ai.usage.output_tokens": counts.get("candidates_token_count"),
        "gen_ai.input.messages": inputs,
        "gen_ai.output.messages": [_of_gemini(response["content"])] if response.get("content") else [],
    }


def _of_gemini(content: Any) -> dict[str, Any]:
    """Return a content of Gemini as a message of the conventions."""
    parts: list[dict[str, Any]] = []
    for part in _list(content, "parts"):
        call, response = (
            part.get(key) if isinstance(part, Mapping) else None for key in ("function_call", "function_response")
        )
        if isinstance(call, Mapping):
            id = call.get("id") or call.get("name")
            parts.append({"type": "tool_call", "id": id, "name": call.get("name"), "arguments": call.get("args")})
        elif isinstance(response, Mapping):
            id = response.get("id") or response.get("name")
            parts.append({"type": "tool_call_response", "id": id, "response": response.get("response")})
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append({"type": "reasoning" if part.get("thought") else "text", "content": part["text"]})
        else:
            parts.append({"type": "other", "content": part})
    role = content.get("role") if isinstance(content, Mapping) else None
    return {"role": "assistant" if role == "model" else "user", "parts": parts}


def _messages(span: _Span) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the messages that a request sent, and its answers, in OpenAI's format."""
    values = span.values
    messages: list[Mapping[str, Any]] = []
    answers: list[Mapping[str, Any]] = []
    system = _plain(values.get("gen_ai.system_instructions"))
    if isinstance(system, list) and system:
        messages += _of_parts({"role": "system", "parts": system})
    for given in _messages_at(values, "gen_ai.input.messages"):
        messages += _of_parts(given)
    for given in _messages_at(values, "gen_ai.output.messages"):
        answers += _of_parts({"role": "assistant", **given})
    # Older conventions: numbered attributes, and events of the span.
    numbered: dict[tuple[str, int], dict[str, Any]] = {}
    for key, value in values.items():
        if (found := _PROMPT.fullmatch(key)) is not None:
            numbered.setdefault((found[1], int(found[2])), {})[found[3]] = value
    for (side, _), message in sorted(numbered.items()):
        (messages if side == "prompt" else answers).append({"role": "user", **message} if side == "prompt" else message)
    for event in span.events:
        title = str(event.get("name") or "") if isinstance(event, Mapping) else ""
        role = title.removeprefix("gen_ai.").removesuffix(".message")
        if role in ("system", "user", "assistant", "tool") or title == "gen_ai.choice":
            body = _attributes(event)
            body = {key: _plain(value) if key in ("tool_calls", "message") else value for key, value in body.items()}
            if title == "gen_ai.choice":
                inner = body.get("message")
                answers.append({"role": "assistant", **(inner if isinstance(inner, Mapping) else body)})
            else:
                messages.append({**body, "role": role, "tool_call_id": body.get("id")})
    return messages, answers


def _messages_at(values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = _plain(values.get(key))
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _of_parts(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a message of the conventions, which has parts, as messages of OpenAI."""
    parts = given.get("parts")
    if not isinstance(parts, list):
        return [given]
    content: list[Any] = []
    calls: list[Any] = []
    results: list[Mapping[str, Any]] = []
    thoughts: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            content.append({"type": "text", "text": str(part.get("content") or "")})
        elif kind == "tool_call":
            calls.append({"id": part.get("id"), "name": part.get("name"), "arguments": part.get("arguments")})
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": result})
        elif kind in ("reasoning", "thinking"):
            thoughts.append(str(part.get("content") or ""))
        else:
            content.append(part)
    made: dict[str, Any] = {"role": given.get("role"), "content": content or ""}
    if len(content) == 1 and isinstance(content[0], Mapping) and content[0].get("type") == "text":
        made["content"] = content[0]["text"]
    if calls:
        made["tool_calls"] = calls
    if thoughts:
        made["reasoning"] = "\n".join(thoughts)
    if given.get("finish_reason"):
        made["finish_reason"] = given["finish_reason"]
    return [*results, made] if content or calls or thoughts or not results else results
