"""Telemetry: a run as it happens, for OpenTelemetry collectors and for AG-UI user interfaces.

    from agentnb.telemetry import agui, export_spans

    stop = export_spans(run, tracer)     # a span for each loop, request and call
    async for event in agui(run): ...    # drives the run, and yields the events of AG-UI 1.0

`recording.export(path, format="otlp")` and `format="ag-ui"` write the same to files.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from agentnb.core.errors import RunError, UsageError
from agentnb.core.events import Delta, Event
from agentnb.exporters.ag_ui import Stream
from agentnb.exporters.otlp import nanoseconds
from agentnb.exporters.spans import Span, Spans
from agentnb.run import Recording, Replay, Run

__all__ = ["agui", "export_spans"]


def export_spans(run: Recording, tracer: Any, *, content: bool = True) -> Callable[[], None]:
    """Send the spans of a run to OpenTelemetry, those of its past at once and the others as they end.

        from opentelemetry import trace

        stop = export_spans(run, trace.get_tracer("my_project"))

    A loop, a request to a model and a call are a span each, with the attributes of the conventions for generative AI.
    Questions to a person, decisions and pauses are events of the span that they hold up; what failed has an error
    status. The outermost span is inside the span that is current now. Spans end in the thread that records the events,
    so the tracer needs a processor that does not wait for the network (`BatchSpanProcessor`).

    run: a run, or a recording, whose spans all end now. tracer: of OpenTelemetry (`pip install agentnb-toolkit[otel]`).
    content: False leaves out what people, models and tools said.

    Returns a function that stops, and ends the spans that are open. Raises UsageError if OpenTelemetry is not
    installed.
    """
    if not isinstance(run, Recording):
        raise UsageError(f"export_spans(run, tracer) takes a run or a recording, not {run!r:.100}.")
    exporter = _Exporter(tracer, content)
    if isinstance(run, Replay) or not isinstance(run, Run):
        for event in run.recording:
            exporter.add(event)
        exporter.close()
        return lambda: None
    with run.lock:  # no event comes between those of the past and the others
        for event in list(run.events):
            exporter.add(event)
        unsubscribe = run.watch(exporter.add)

    def stop() -> None:
        unsubscribe()
        exporter.close()

    return stop


class _Exporter:
    """Makes the spans of OpenTelemetry. Events may come from any thread."""

    def __init__(self, tracer: Any, content: bool) -> None:
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            needed = "export_spans needs OpenTelemetry: pip install 'agentnb-toolkit[otel]'."
            raise UsageError(needed) from error
        self._api: Any = trace
        self._tracer = tracer
        self._around = context.get_current()
        self._spans = Spans(content=content)
        self._open: dict[str, Any] = {}
        self._contexts: dict[str, Any] = {"": self._around}
        self._lock = threading.Lock()

    def add(self, event: Event | Delta) -> None:
        """Begin and end the spans of an event."""
        if isinstance(event, Delta):
            return
        with self._lock:
            for change, span in self._spans.add(event):
                if change == "open":
                    self._begin(span, event)
                else:
                    self._end(span)

    def close(self) -> None:
        """End the spans that are open."""
        with self._lock:
            for span in self._spans.rest():
                self._end(span)

    def _begin(self, span: Span, event: Event) -> None:
        kind = self._api.SpanKind.CLIENT if span.kind == "client" else self._api.SpanKind.INTERNAL
        inherited = {"agentnb.inherited": True} if event.inherited else {}
        begun = self._tracer.start_span(
            span.name,
            context=self._contexts.get(span.parent, self._around),
            kind=kind,
            attributes={**span.attributes, **inherited},
            start_time=nanoseconds(span.start) or None,
        )
        self._open[span.id] = begun
        self._contexts[span.id] = self._api.set_span_in_context(begun, self._around)

    def _end(self, span: Span) -> None:
        begun = self._open.pop(span.id, None)
        self._contexts.pop(span.id, None)
        if begun is None:
            return
        begun.set_attributes(span.attributes)
        for moment in span.moments:
            begun.add_event(moment.name, moment.attributes, nanoseconds(moment.time))
        if span.error:
            begun.set_status(self._api.Status(self._api.StatusCode.ERROR, span.error))
        begun.end(nanoseconds(span.end) or None)


async def agui(run: Run) -> AsyncIterator[dict[str, Any]]:
    """Drive a run, and yield its events as events of AG-UI 1.0, with the text of answers as it is streamed.

        async for event in agui(run):
            await send(json.dumps(event))

    If the run has another owner, this only watches. The last event is RUN_FINISHED or RUN_ERROR; a failure of the run
    is not raised. Closing it before the end cancels the run as `async for event in run` does.
    """
    if not isinstance(run, Run):
        raise UsageError(
            f"agui(run) takes a run, not {run!r:.100}. A recording is written by"
            " recording.export(path, format='ag-ui')."
        )
    stream = Stream()
    source = run.__aiter__()
    try:
        async for event in source:
            for made in stream.add(event):
                yield made
    except RunError:  # it is among the events
        pass
    finally:
        await source.aclose()
    for made in stream.rest():
        yield made
