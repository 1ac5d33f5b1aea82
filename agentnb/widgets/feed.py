"""The feed: sends a run's events to a page in numbered batches, and repairs what the page has missed.

The run keeps its events, so the feed keeps only a cursor: the number of the next event to send. A page that finds a
gap, was reloaded or was just opened reports how many events it has, and the cursor moves back to that number. Pages
that already have the events skip them by their numbers. Live batches, gap repair, a reload and a second tab all work in
this way.

A feed must not slow its run down: the watcher only notes that there is something to send. Rows are made and sent in the
ticker's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentnb.core.events import Delta, Event
from agentnb.run import Recording
from agentnb.widgets.ticker import TICKER, Ticker
from agentnb.widgets.views.live import LiveLines
from agentnb.widgets.views.rows import encode_rows
from agentnb.widgets.views.trace import Trace

BATCH_EVENTS = 2000
BATCH_BYTES = 256 * 1024
"""The limits of a batch, chosen so that a page parses it within one frame."""

Send = Callable[[dict[str, Any]], object]


class Feed:
    """Sends the events of `run` by `send`, and calls `settled` when all events were sent. Call `start` to begin.

    settled: called at the end of every flush after which no event is left to send; its argument is True if the run has
    ended. recorded: send the whole recording, including the events after the position of a replay.
    trace: the trace of the events that were sent.
    """

    def __init__(
        self,
        run: Recording,
        send: Send,
        settled: Callable[[bool], object],
        ticker: Ticker = TICKER,
        *,
        recorded: bool = False,
    ) -> None:
        self._run = run
        self._recorded = recorded
        self._send = send
        self._settled = settled
        self._ticker = ticker
        self._lock = threading.Lock()
        self._cursor = 0
        self._live = LiveLines()
        self.trace = Trace()
        self._live_changed = False
        self._awake = True  # until it is started, it is not woken
        self._unwatch: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start to watch the run and to send, in the ticker's thread."""
        self._ticker.add(self)
        self._unwatch = self._run.watch(self._receive)
        self._awake = False
        self.wake()

    def rewind(self, have: int) -> None:
        """Send the events from number `have` on again: a page lacks them. Safe to call from any thread."""
        with self._lock:
            self._cursor = max(0, min(self._cursor, have))
            self._live_changed = True
        self.wake()

    def wake(self) -> None:
        """Note that there is something to send. Safe to call from any thread, and cheap if it was noted before."""
        if not self._awake:
            self._awake = True
            self._ticker.wake(self)

    def close(self) -> None:
        """Stop watching the run and sending."""
        self._unwatch()
        self._ticker.remove(self)

    @property
    def _events(self) -> Sequence[Event]:
        events: Sequence[Event] = self._run.recording if self._recorded else self._run.events
        return events

    def _receive(self, news: Event | Delta | None) -> None:
        if isinstance(news, Delta):
            with self._lock:
                self._live.feed(news)
                self._live_changed = True
        elif news is not None and self._live.ends_with(news.type):
            with self._lock:
                self._live_changed = self._live.settle(news) or self._live_changed
        self.wake()

    def flush(self) -> bool:
        """Send one batch, and the live lines. Return True if there is more to send."""
        self._awake = False  # first, so that later events wake the feed again
        with self._lock:
            cursor = self._cursor
            live = self._live.show() if self._live_changed else None
            self._live_changed = False
        total = len(self._events)
        if cursor < total:
            end = min(total, cursor + BATCH_EVENTS)
            self.trace.follow(self._events, end)
            now = getattr(self._run, "clock", time.time)()  # by the clock of the run's events, if it has one
            rows, count = encode_rows(self._events[cursor:end], BATCH_BYTES, self.trace)
            self._send({"type": "events", "from": cursor, "total": total, "now": now, "rows": rows})
            with self._lock:
                if self._cursor == cursor:  # otherwise a page has rewound it meanwhile
                    self._cursor = cursor + count
        if live is not None:
            self._send({"type": "live", "lines": live})
        with self._lock:
            more = self._cursor < len(self._events)
        if not more:
            self._settled(bool(self._run.state.over))
        return more
