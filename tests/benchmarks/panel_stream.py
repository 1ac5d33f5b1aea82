"""A long run into an open panel: how smooth the page stays, what it holds, and what the kernel pays.

    python -m tests.benchmarks.panel_stream [--events 100000] [--rate 2000] [--view Trace]

A real run on a model that answers at once, at a steady rate; the panel's own Python; its page in headless Chromium,
without Jupyter between them. As in Jupyter, each message comes over HTTP and is a task of its own on the page; what
Jupyter adds on the kernel's side is the sending of some 30 messages a second.
Prints one line of JSON. It takes as long as the run does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playwright.sync_api import Page, Playwright, sync_playwright

from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import call
from agentnb.tools import tool
from tests.widgets.pages import PanelPage, RecordedPanel, launch

A_TURN = 4
"""Events: the request, its answer, the call's start and its end."""
WATCH = """() => {
    window.seen = {gaps: [], tasks: 0, longest: 0, last: performance.now()};
    new PerformanceObserver((list) => { for (const task of list.getEntries()) {
        seen.tasks += 1; seen.longest = Math.max(seen.longest, task.duration); } }).observe({entryTypes: ["longtask"]});
    const frame = () => { const now = performance.now(); seen.gaps.push(now - seen.last); seen.last = now;
        requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
    window.work.length = 0;  // what the panel does in a frame, timed from inside (page.js)
    const carry = window.carry;
    window.carry = (messages) => {
        const began = performance.now(); carry(messages); window.work.push(performance.now() - began); };
}"""
LISTEN = """address => new Promise((opened) => {
    const stream = new EventSource(address);
    stream.onopen = () => opened();
    stream.onmessage = ({ data }) => window.carry(JSON.parse(data));
})"""


@tool
async def note(n: int) -> str:
    """Take a note."""
    return "a result of the usual length, some eighty characters of it, as tools give them."


class Steady:
    """A model that asks for one call a turn, and keeps to a rate of events."""

    def __init__(self, turns: int, rate: float) -> None:
        self.turns, self.rate = turns, rate
        self.asked = 0
        self.began = time.monotonic()

    async def stream(self, messages: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """One turn."""
        self.asked += 1
        ahead = self.began + self.asked * A_TURN / self.rate - time.monotonic()
        if ahead > 0.001:
            await asyncio.sleep(ahead)
        if self.asked <= self.turns:
            yield {"type": "text_delta", "content": f"Note {self.asked}."}
            yield call("note", {"n": self.asked}, id=f"c{self.asked}")
            yield {"type": "usage", "input_tokens": 900, "output_tokens": 20}
        else:
            yield {"type": "text_delta", "content": "That is all."}


class StreamedPage(PanelPage):
    """A page to which the messages of the panel come as a stream of server-sent events.

    If Playwright carried them, its own protocol would be most of what the page does.
    """

    def __init__(self, page: Page, panel: RecordedPanel) -> None:
        self.streams = False
        super().__init__(page, panel)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Stream,), {"panel": panel}))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        page.evaluate(LISTEN, f"http://127.0.0.1:{self.server.server_port}/")
        self.streams = True

    def settle(self) -> None:
        """Carry the messages of the page. Those of the panel come by themselves."""
        if not self.streams:
            super().settle()
            return
        assert self.panel is not None
        for message in self.page.evaluate("from => window.model.sent.slice(from)", self.taken):
            self.taken += 1
            self.panel._receive(self.panel, message, [])
        self.draw()

    def close(self) -> None:
        """Close the panel, and the stream."""
        super().close()
        assert self.panel is not None
        self.panel.outbox.put([])
        self.server.shutdown()
        self.server.server_close()


class _Stream(BaseHTTPRequestHandler):
    """Answers with all messages of `panel`, each as one event."""

    panel: RecordedPanel

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        while messages := self.panel.outbox.get():
            self.wfile.write(b"data: " + json.dumps(messages).encode() + b"\n\n")
            self.wfile.flush()

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


class TimedPanel(RecordedPanel):
    """A panel that knows how often it has sent events, and what CPU time that and what follows from it have taken."""

    spent = 0.0
    batches = 0

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        flush = self._feed.flush

        def timed() -> bool:
            began = time.thread_time()
            more = flush()
            self.spent += time.thread_time() - began
            return more

        self._feed.flush = timed  # type: ignore[method-assign]

    def send(self, content: Any, buffers: Any = None) -> None:
        """Count it where it is of events."""
        self.batches += content["type"] == "events"
        super().send(content, buffers)


def measure(page: Page, events: int, rate: float, view: str) -> dict[str, Any]:
    """One run of so many events, watched from start to end."""
    model = Steady(events // A_TURN, rate)
    run = SessionLoop(model, [note]).start("go", name="long")
    panel = TimedPanel(run)
    shown = StreamedPage(page, panel)
    page.get_by_role("tab", name=view, exact=True).click()
    shown.settle()
    page.evaluate(WATCH)
    heap = page.context.new_cdp_session(page)
    before = _heap(heap)
    panel.batches = 0
    model.began = time.monotonic()
    over: list[float] = []
    threading.Thread(target=lambda: (run.result(10 * events / rate + 60), over.append(time.monotonic()))).start()
    while not over or page.evaluate("() => window.model.get('status').over") is not True:
        shown.settle()
    page.get_by_role("tab", name="Events", exact=True).click()
    shown.until(lambda: "run_end" in page.inner_text(".agentnb-log"), "the last event")
    late = time.monotonic() - over[0]
    seen = page.evaluate("() => ({ ...window.seen, work: window.work })")
    work = sorted(seen["work"])
    gaps = sorted(seen["gaps"][2:])
    figures = {
        "view": view,
        "events": len(run.events),
        "per_second": round(len(run.events) / (over[0] - model.began)),
        "batches_per_second": round(panel.batches / (over[0] - model.began)),
        "frames": len(gaps),
        "frame_gap_ms": {"median": round(gaps[len(gaps) // 2], 1), "longest": round(gaps[-1], 1)},
        "own_work_ms": {
            "median": round(work[len(work) // 2], 1),
            "95%": round(work[int(0.95 * (len(work) - 1))], 1),
            "longest": round(work[-1], 1),
        },
        "long_tasks": seen["tasks"],
        "longest_task_ms": seen["longest"],
        "last_event_after_s": round(late, 2),
        "heap_mb": {"before": round(before, 1), "after": round(_heap(heap), 1)},
        "elements": page.evaluate("() => document.querySelectorAll('*').length"),
        "kernel_us_per_event": round(1e6 * panel.spent / len(run.events), 1),
    }
    shown.close()
    return figures


def _heap(session: Any) -> float:
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def measure_in(playwright: Playwright, events: int, rate: float, view: str) -> dict[str, Any]:
    """The same in a browser of its own."""
    browser = launch(playwright)
    try:
        return measure(browser.new_page(viewport={"width": 1000, "height": 900}), events, rate, view)
    finally:
        browser.close()


def main() -> None:
    """Measure what the command line asks for."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--events", type=int, default=100_000)
    options.add_argument("--rate", type=float, default=2000)
    options.add_argument("--view", default="Trace", choices=["Trace", "Events", "Messages"])
    chosen = options.parse_args()
    with sync_playwright() as playwright:
        print(json.dumps(measure_in(playwright, chosen.events, chosen.rate, chosen.view)))


if __name__ == "__main__":
    main()
