"""The panel of a large study: how soon its first rows and all rows are shown, and how smooth the page stays.

    python -m tests.benchmarks.population [--runs 2000] [--calls 10] [--of store|memory]

A real study on a model that answers at once, either kept in a store and opened as by a new kernel, or kept in memory;
the panel's own Python; its page in headless Chromium, without Jupyter between them. As in Jupyter, each message is a
task of its own on the page.

Prints one line of JSON. Times begin when the panel is made, so they contain the load of the page's module. A task is
timed twice: by the page itself (PerformanceObserver; on a busy machine this contains the time in which other programs
had the processor), and by the processor time of its thread (Chromium's trace).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Playwright, sync_playwright

import agentnb
from agentnb import SessionLoop, Store
from agentnb.studies import Study
from agentnb.widgets.bundle import packed_module
from tests.benchmarks.models import Calling
from tests.widgets.pages import PAGE, launch
from tests.widgets.study_pages import TRAITS, RecordedStudyPanel

ARMS = {"policy": ["sceptic", "plain"]}
CLOSE: list[tuple[str, Any]] = [("close", None)]
"""The message that ends the connection of the page."""
STEP = 260
"""The pixels by which the table is scrolled in a frame."""
WATCH = """() => {
    window.seen = {tasks: [], first: 0, changes: []};
    new PerformanceObserver((list) => {
        for (const { startTime, duration } of list.getEntries()) seen.tasks.push([startTime, duration]);
    }).observe({entryTypes: ["longtask"]});
    const rows = () => document.querySelectorAll(".agentnb-runs-rows .agentnb-run:not(.agentnb-run-heading)");
    const look = () => {  // the first rows are seen after the frame in which they are drawn
        if ([...rows()].some((row) => row.offsetHeight)) requestAnimationFrame(() => { seen.first = Date.now(); });
        else requestAnimationFrame(look);
    };
    look();
}"""
"""On the page: note its long tasks, and when the first rows are drawn."""
OPEN = """([address, state]) => new Promise((opened) => {
    const stream = new EventSource(address),
        early = [];
    const take = (data) => {
        const messages = JSON.parse(data);
        window.carry(messages);
        const changes = messages.flatMap(([, message]) => (message?.type === "population" ? [message.change] : []));
        const drawn = () => { for (const change of changes) seen.changes.push([change, Date.now()]); };
        requestAnimationFrame(() => requestAnimationFrame(drawn));
    };
    stream.onmessage = ({ data }) => { if (early) early.push(data); else take(data); };
    Model.prototype.send = (message) => fetch(address, { method: "POST", body: JSON.stringify(message) });
    stream.onopen = async () => {
        stream.onopen = null;
        await window.show(state, { status: "idle" });
        stream.onmessage = ({ data }) => take(data);
        for (const data of early) setTimeout(() => take(data));
        opened();
    };
})"""
"""On the page: show the panel, and take its messages, each in a task of its own."""
SCROLL = """async step => {
    const grid = document.querySelector('[role="treegrid"]');
    let frames = 0;
    for (let top = 0; top < grid.scrollHeight; top += step, frames++) {
        grid.scrollTop = top;
        await new Promise(requestAnimationFrame);
    }
    return frames;
}"""


@agentnb.tool
async def echo(value: int) -> str:
    """Return a result of some length."""
    return "a result of some length, " * 8


def study_of(runs: int, calls: int, store: Store | None) -> Study:
    """Return the study that is shown."""

    def make_loop(policy: str) -> SessionLoop:
        return SessionLoop(Calling(calls), [echo])

    return agentnb.study(make_loop, ["go"], runs // 2, arms=ARMS, name="large", store=store, progress=False)


@contextmanager
def prepared(runs: int, calls: int, of: str) -> Iterator[Study]:
    """Run the study, and return it as a new kernel finds it in its store, or as it is in memory."""
    if of == "memory":
        yield study_of(runs, calls, None).result()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with closing(Store(path)) as store:
            study_of(runs, calls, store).result()
        with closing(Store(path)) as store:
            yield study_of(runs, calls, store)


class Connection(BaseHTTPRequestHandler):
    """Answers with all messages of `panel`, each as one server-sent event, and takes those of the page."""

    panel: RecordedStudyPanel

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        while (messages := self.panel.outbox.get()) != CLOSE:
            self.wfile.write(b"data: " + json.dumps(messages).encode() + b"\n\n")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.panel._receive(self.panel, message, [])

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def measure(browser: Browser, of: Study) -> dict[str, Any]:
    """Open the panel of a study, scroll its table from the first row to the last, and return how that was."""
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.set_content("<!doctype html><meta charset=utf-8><div id=here></div>")
    page.evaluate("source => { window.panelSource = source; }", packed_module())
    page.add_script_tag(content=PAGE.read_text())
    browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline", "blink.user_timing"])
    page.evaluate(WATCH)

    # Open the panel, and wait until the page has drawn the last change of a row.
    began, used = time.time(), time.process_time()
    with _heartbeat() as late:
        panel = RecordedStudyPanel(of)
        with _connected(panel) as address:
            page.evaluate(OPEN, [address, {name: getattr(panel, name) for name in TRAITS}])
            while not panel.population.is_read:
                time.sleep(0.05)
            page.wait_for_function("last => seen.first && seen.changes.some(([change]) => change >= last)",
                                   arg=panel.population.changes(0, 10**9)[1], polling=50)  # fmt: skip
            used = time.process_time() - used
            page.wait_for_timeout(1500)  # what the page does after that

            # Scroll to the last row.
            opened = page.evaluate("() => { performance.mark('scroll'); return performance.now(); }")
            frames = page.evaluate(SCROLL, STEP)
            page.wait_for_timeout(300)
            seen = page.evaluate("() => seen")
            last = max(change for change, _ in seen["changes"])
    trace = json.loads(browser.stop_tracing())["traceEvents"]
    opening, scrolling = _processor_times(trace)
    figures = {
        "runs": len(of),
        "events": sum(line.mini.position for line in panel.population.lines),
        "first_screen_s": round(seen["first"] / 1e3 - began, 2),
        "all_rows_s": round(min(at for change, at in seen["changes"] if change == last) / 1e3 - began, 2),
        "messages_of_rows": len(seen["changes"]),
        "longest_task_ms": {
            "opening": round(max((took for at, took in seen["tasks"] if at < opened), default=0)),
            "scrolling": round(max((took for at, took in seen["tasks"] if at >= opened), default=0)),
        },
        "longest_task_cpu_ms": {"opening": round(opening, 1), "scrolling": round(scrolling, 1)},
        "frames_scrolled": frames,
        "kernel_late_ms": round(1e3 * max(late)),
        "kernel_cpu_s": round(used, 2),
    }
    panel.close()
    return figures


@contextmanager
def _connected(panel: RecordedStudyPanel) -> Iterator[str]:
    """Serve the messages of a panel, and yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Connection,), {"panel": panel}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        panel.outbox.put(CLOSE)
        server.shutdown()
        server.server_close()


def _processor_times(trace: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the processor time of the longest task of the page, in ms, before and after the begin of the scrolling."""
    mark = next(event for event in trace if event.get("name") == "scroll" and event.get("cat") == "blink.user_timing")
    tasks = [
        event
        for event in trace
        if event["name"] == "RunTask" and event["pid"] == mark["pid"] and event["tid"] == mark["tid"]
    ]
    before = [event.get("tdur", 0) for event in tasks if event["ts"] < mark["ts"]]
    after = [event.get("tdur", 0) for event in tasks if event["ts"] >= mark["ts"]]
    return max(before, default=0) / 1e3, max(after, default=0) / 1e3


@contextmanager
def _heartbeat() -> Iterator[list[float]]:
    """Measure how late another thread of the kernel is, which wants to work every 10 ms."""
    late, is_over = [0.0], threading.Event()

    def beat() -> None:
        while not is_over.is_set():
            due = time.perf_counter() + 0.01
            time.sleep(0.01)
            late.append(time.perf_counter() - due)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield late
    finally:
        is_over.set()
        thread.join()


def measure_in(playwright: Playwright, of: Study) -> dict[str, Any]:
    """The same in a browser of its own."""
    browser = launch(playwright)
    try:
        return measure(browser, of)
    finally:
        browser.close()


def main() -> None:
    """Measure what the command line asks for."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--runs", type=int, default=2000)
    options.add_argument("--calls", type=int, default=10)
    options.add_argument("--of", default="store", choices=["store", "memory"])
    chosen = options.parse_args()
    with prepared(chosen.runs, chosen.calls, chosen.of) as shown, sync_playwright() as playwright:
        print(json.dumps({"of": chosen.of, **measure_in(playwright, shown)}))


if __name__ == "__main__":
    main()
