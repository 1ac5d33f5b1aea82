"""The feed: brings a run's events to a page, in numbered batches, and repairs what the page has missed.

The run is its own archive, so the feed keeps no events: only a cursor, the number of the next one to send. A page that
finds a gap, was reloaded or has just been opened says how many it has, and that rewinds the cursor; pages that have
them already skip them by their numbers. One mechanism for live batches, gap repair, reload and a second tab.

What happens on the run's side of it must cost next to nothing: the watcher notes that there is news and is done. Rows
are made and sent on the ticker's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentnb.core.events import Delta, Event
from agentnb.run.recording import Recording
from agentnb.widgets.ticker import TICKER, Ticker
from agentnb.widgets.views.live import Live
from agentnb.widgets.views.rows import encode_rows
from agentnb.widgets.views.spans import Spans

BATCH_EVENTS = 2000
BATCH_BYTES = 256 * 1024
"""A batch at most: what a page parses well within one frame."""

Send = Callable[[dict[str, Any]], object]


class Feed:
    """Sends the events of `run` by `send`, and calls `settled` when the page has been told everything there is.

    `settled(over)` is called at the end of every flush that leaves nothing to send; `over` is True once the run has
    ended.
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
        """recorded: send all that was recorded, also what comes after the moment at which a replay stands."""
        self._run = run
        self._recorded = recorded
        self._send = send
        self._settled = settled
        self._ticker = ticker
        self._lock = threading.Lock()
        self._cursor = 0
        self._live = Live()
        self.spans = Spans()
        """The spans of the events that were sent."""
        self._live_changed = False
        self._awake = False
        ticker.add(self)
        self._stop_watching = run.watch(self._hear)
        self.wake()

    def rewind(self, have: int) -> None:
        """The page has the first `have` events and misses the rest; from any thread."""
        with self._lock:
            self._cursor = max(0, min(self._cursor, have))
            self._live_changed = True
        self.wake()

    def wake(self) -> None:
        """There is something to send; from any thread, cheap when that is known already."""
        if not self._awake:
            self._awake = True
            self._ticker.wake(self)

    def close(self) -> None:
        """Stop watching the run and sending."""
        self._stop_watching()
        self._ticker.remove(self)

    @property
    def _events(self) -> Sequence[Event]:
        events: Sequence[Event] = self._run.recording if self._recorded else self._run.events
        return events

    def _hear(self, news: Event | Delta | None) -> None:
        if isinstance(news, Delta):
            with self._lock:
                self._live.feed(news)
                self._live_changed = True
        elif news is not None and self._live.ends_with(news.type):
            with self._lock:
                self._live_changed = self._live.settle(news) or self._live_changed
        self.wake()

    def flush(self) -> bool:
        """Send one batch, and what is on its way; True where there is more to send."""
        self._awake = False  # first, so that what comes from here on wakes us again
        with self._lock:
            cursor = self._cursor
            live = self._live.show() if self._live_changed else None
            self._live_changed = False
        total = len(self._events)
        if cursor < total:
            self._send_batch(cursor, total)
        if live is not None:
            self._send({"type": "live", "lines": live})
        with self._lock:
            more = self._cursor < len(self._events)
        if not more:
            self._settled(bool(self._run.state.over))
        return more

    def _send_batch(self, cursor: int, total: int) -> None:
        end = min(total, cursor + BATCH_EVENTS)
        self.spans.follow(self._events, end)
        rows, count = encode_rows(self._events[cursor:end], BATCH_BYTES, self.spans)
        self._send({"type": "events", "from": cursor, "total": total, "now": now_of(self._run), "rows": rows})
        with self._lock:
            if self._cursor == cursor:  # a page may have rewound it meanwhile
                self._cursor = cursor + count


def now_of(run: Any) -> float:
    """The time now, by the clock of the run's events where it has one."""
    clock: Callable[[], float] = getattr(run, "clock", time.time)
    return clock()
