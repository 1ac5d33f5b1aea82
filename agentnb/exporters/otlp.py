"""OpenTelemetry: the spans of a run as OTLP JSON, with the conventions for generative AI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from agentnb.core.events import Event, ModelEnd
from agentnb.exporters.spans import Attributes, Span, Spans
from agentnb.exporters.turns import count_parts, count_undelivered

name = "OpenTelemetry"

Json = dict[str, Any]
_KINDS = {"internal": 1, "client": 3}
_OK, _ERROR = 0, 2
"""The codes of the status of a span: not set, and an error."""


def written(events: Sequence[Event], lost: Counter[str]) -> bytes:
    """Return the spans as a request to a collector."""
    spans = Spans()
    made: list[Span] = []
    for event in events:
        made += (span for change, span in spans.add(event) if change == "open")
    for span in spans.rest():
        span.end = events[-1].time
        lost["spans that have not ended, written as ended now"] += 1
    count_undelivered(events, lost)
    lost["messages that no request has sent"] += spans.unsent
    for event in events:
        if isinstance(event, ModelEnd):
            count_parts(event.message, lost)
    lost["unknown times, written as those of the events before"] += sum(span.untimed for span in made)
    scope = {"scope": {"name": "agentnb"}, "spans": [_span(span, spans.trace) for span in made]}
    resource = {"attributes": _attributes({"service.name": "agentnb"})}
    return to_json({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}, indent=1) + b"\n"


def _span(span: Span, trace: str) -> Json:
    moments = [
        {"name": one.name, "timeUnixNano": _nanoseconds(one.time), "attributes": _attributes(one.attributes)}
        for one in span.moments
    ]
    status: Json = {"code": _ERROR, "message": span.error} if span.error else {"code": _OK}
    times = {"startTimeUnixNano": _nanoseconds(span.start), "endTimeUnixNano": _nanoseconds(span.end)}
    return {
        "traceId": trace,
        "spanId": span.id,
        "parentSpanId": span.parent,
        "name": span.name,
        "kind": _KINDS[span.kind],
        **(times if span.end else {}),
        "attributes": _attributes(span.attributes),
        **({"events": moments} if moments else {}),
        "status": status,
    }


def _nanoseconds(time: float) -> str:
    return str(nanoseconds(time))


def nanoseconds(time: float) -> int:
    """Return a time in nanoseconds since the epoch, exact to the microsecond that a time in seconds has."""
    return round(time * 1e6) * 1000


def _attributes(attributes: Attributes) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}
