"""A page with a panel in it, in headless Chromium, and no Jupyter.

On one side is the Python code of the panel, on the other the code in `agentnb/widgets/page`. The model of the page has
the methods of anywidget (`get`, `set`, `on`, `off`, `send`) and no others. The thread of the test carries the messages
in both directions when it calls `settle` or `until`, because Playwright's objects belong to it.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Playwright

from agentnb.widgets import PARTS, Panel
from agentnb.widgets.bundle import packed_module
from agentnb.widgets.drawings.diagram import diagram, table_of
from tests.browser.chromium import FLAGS, find_chromium

TRAITS = (
    "key",
    "parts",
    "question",
    "offered",
    "status",
    "pending",
    "tools",
    "decisions",
    "breakpoints",
    "phases",
    "diagram",
    "tables",
    "graphs",
    "drawings",
    "total",
    "tail",
    "place",
    "branches",
)

PAGE = Path(__file__).parent / "page.js"
CONTRAST = Path(__file__).parent / "contrast.js"
PRESS = """(slider, [key, presses]) => {
  for (let i = 0; i < presses; i++) slider.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}"""


def launch(playwright: Playwright) -> Browser:
    """Headless Chromium, the system's own."""
    return playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)


class RecordedPanel(Panel):
    """A panel whose messages to the page wait to be carried there."""

    def __init__(self, run: Any, **options: Any) -> None:
        self.outbox: queue.SimpleQueue[list[tuple[str, Any]]] = queue.SimpleQueue()
        self._all_told = -1  # the number of events when the page was last up to date
        super().__init__(run, **options)

    def send_state(self, key: Any = None) -> None:
        """The page gets the contents of one kernel message together."""
        names = {key} if isinstance(key, str) else set(TRAITS if key is None else key)
        self.outbox.put([(name, getattr(self, name)) for name in TRAITS if name in names])

    def send(self, content: Any, buffers: Any = None) -> None:
        self.outbox.put([("", content)])

    def _settled(self, over: bool) -> None:
        events = len(self.run.events)
        super()._settled(over)
        self._all_told = events

    def is_told(self) -> bool:
        """Return True if all messages and drawings are in the outbox or were carried."""
        drawn = "diagram" not in self.parts or (bool(self.diagram) and len(self.tables) == len(self._loops.tables))
        return drawn and self._all_told == len(self.run.events)


class PanelPage:
    """`page/` on a page, with a real panel or with a state from the test.

    tab: the view that the test looks at, if the panel has it; otherwise its first view is visible.
    """

    traits: tuple[str, ...] = TRAITS

    def __init__(
        self,
        page: Page,
        panel: Any = None,
        *,
        state: dict[str, Any] | None = None,
        kernel: dict[str, Any] | None = None,
        settle: bool = True,
        tab: str = "Events",
    ) -> None:
        self.page = page
        self.panel = panel
        self.taken = 0
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.set_content("<!doctype html><meta charset=utf-8><div id=here></div>")
        page.evaluate("source => { window.panelSource = source; }", packed_module())
        for script in (PAGE, CONTRAST):
            page.add_script_tag(content=script.read_text())
        if panel is not None:
            state = {name: getattr(panel, name) for name in self.traits}
        page.evaluate("([state, kernel]) => window.show(state, kernel)", [state, kernel])
        chosen = page.get_by_role("tab", name=tab, exact=True)
        if chosen.count():
            chosen.click()
        if settle:
            self.settle()
        if panel is not None and getattr(panel, "place", None) and page.get_by_role("slider", name="Position").count():
            self._await_recording(len(panel.run.recording))

    def settle(self) -> None:
        """Carry the waiting messages in both directions, and let the page draw."""
        for message in self.page.evaluate("from => window.model.sent.slice(from)", self.taken):
            self.taken += 1
            if self.panel is not None:
                self.panel._receive(self.panel, message, [])
        waiting = []
        while self.panel is not None and not self.panel.outbox.empty():
            waiting += self.panel.outbox.get()
        if waiting:
            self.page.evaluate("messages => window.carry(messages)", waiting)
        self.draw()

    def draw(self) -> None:
        """Let the page draw."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def close(self) -> None:
        """Check that the page had no error, cancel the run and close its panel."""
        assert self.errors == []
        assert self.panel is not None
        if hasattr(self.panel.run, "cancel"):  # a recording cannot be cancelled
            self.panel.run.cancel()
        self.panel.close()

    def _await_recording(self, length: int) -> None:
        """Wait until the page has all events of a replay, because it cannot go to an event before."""
        slider = self.page.get_by_role("slider", name="Position")
        self.until(lambda: slider.get_attribute("aria-valuemax") == str(length - 1), "the recording", 120)

    @property
    def slider(self) -> Locator:
        """The strip, which is the slider of the position."""
        return self.page.get_by_role("slider", name="Position")

    @property
    def position(self) -> int:
        """The number of events until the moment that the page shows."""
        return int(self.slider.get_attribute("aria-valuenow") or -1) + 1

    def go_to(self, position: int) -> None:
        """Move the slider by its keys to the moment after so many events, and never to a later one."""
        self.slider.focus()
        if position == int(self.slider.get_attribute("aria-valuemax") or 0) + 1:
            self.page.keyboard.press("End")
        elif position < self.position - position:
            self.page.keyboard.press("Home")
        self.draw()
        while (now := self.position) != position:
            # One message for many keys: each press by Playwright takes longer than the page does.
            key, presses = "ArrowRight" if now < position else "ArrowLeft", abs(position - now)
            self.slider.evaluate(PRESS, [key, presses])
            self.draw()
        for _ in range(3):  # the kernel gets one position at a time
            self.settle()

    def deliver(self, message: dict[str, Any]) -> None:
        """The page gets this custom message."""
        self.page.evaluate("message => window.model.deliver(message)", message)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 30) -> None:
        """Carry messages until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(
                    f"{what}: not within {seconds} s. The page reads:\n{self.page.inner_text('#here')}"
                )
            self.settle()

    def sent(self, type: str) -> list[dict[str, Any]]:
        """Return the messages of this type that the page has sent."""
        messages: list[dict[str, Any]] = self.page.evaluate("() => window.model.sent")
        return [message for message in messages if message["type"] == type]


def press_in_menu(page: Page, name: str) -> None:
    """Press a button of the menu, which is opened first."""
    button = page.get_by_role("group", name="More").get_by_role("button", name=name, exact=True)
    if not button.is_visible():
        page.get_by_role("button", name="More", exact=True).click()
    button.click()


def rows_message(first: int, rows: list[dict[str, Any]], total: int | None = None) -> dict[str, Any]:
    """A batch of rows as the feed sends it."""
    return {
        "type": "events",
        "from": first,
        "total": first + len(rows) if total is None else total,
        "now": time.time(),
        "rows": json.dumps(rows),
    }


def state(**changes: Any) -> dict[str, Any]:
    """Return the traits of a panel without a kernel."""
    status = {
        "run": "r",
        "name": "r",
        "id": "r",
        "loop": "Loop",
        "model": "",
        "standing": "running",
        "sign": "running",
        "words": "running",
        "phase": "running",
        "lives": True,
        "can": {"Pause": True},
    }
    table = table_of({"running": ["done"], "done": []})
    return {
        "key": "k", "parts": list(PARTS), "status": status, "pending": [],
        "tools": {},
        "phases": ["running", "done"], "diagram": diagram(table), "tables": [], "total": 0, "tail": "[]", **changes,
    }  # fmt: skip


def rows(first: int, count: int, words: str = "an event") -> list[dict[str, Any]]:
    return [
        {"seq": n, "time": 1000 + n / 100, "type": "call_end" if n % 10 else "model_end", "group": "call",
         "summary": f"{words} number {n}", "data": {"call_id": f"c{n}", "result": "a result of the usual length"}}
        for n in range(first, first + count)
    ]  # fmt: skip
