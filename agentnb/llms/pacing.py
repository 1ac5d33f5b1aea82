"""Pacing: the requests that share a rate limit of a server wait for it together.

A `Pace` belongs to a server, a key and a model, because that is what providers limit. It holds nothing up until the
server refuses a request (429). Then no request is sent until the time that the server names, and afterwards they are
sent in order, at a pace that is learned as TCP learns that of a network: it rises while the server accepts, and falls
when the server refuses. Of the refusals of requests that were under way together, one makes it fall.

Each process has paces of its own. A `Pace` knows no clock: it is told the time, in seconds.
"""

from __future__ import annotations

import random
import threading
from collections import deque

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""The seconds to wait after a refusal that names no time. They double with each refusal in a row, up to the longest."""
JITTER = 0.1
"""The largest part of a wait that is added at random: other processes may have been refused at the same moment."""
FORGOTTEN = 60.0
"""The seconds after which a limit is forgotten if no request had to wait for it."""
RECENT = 10.0
"""The seconds before the first refusal that tell what the server accepts."""
FALL = 0.7
"""The part of the pace that remains after a refusal, unless the number of accepted requests speaks for another one."""
RETURN = 8.0
"""The time in which the pace rises again to that of the last refusal, as a multiple of the wait for the server."""
PASSED = 1.2
"""The multiple of that pace from which the limit is taken to have been raised. The pace then rises faster."""
BURST = 0.2
"""The seconds of the pace that may go at once, if they could not go before."""
LATE = 0.5
"""The seconds after which a request that does not go at its turn is passed by others: its event loop may be blocked."""


def sleep_of(wait: float) -> float:
    """Return the seconds to sleep of an expected wait: the pace may rise in the meantime."""
    return min(wait, max(0.25, wait / 4))


class Pace:
    """The pace of the requests that share a limit. It can be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets = 0
        self._waiting: dict[int, float] = {}
        """When each request that waits will look again, by its ticket."""
        self._starts: deque[float] = deque(maxlen=1000)
        """When the last requests were sent, while there is no limit."""
        self.epoch = 0
        """The number of times that the pace has fallen. A request remembers it, and passes it to `refused`."""
        self._is_limited = self._is_closed = False
        self._rate = self._credit = self._counted_at = 0.0
        """The pace in requests per second; the requests that may go now; when they were counted."""
        self._goal: float | None = None
        """The pace at the last refusal, None for the first one."""
        self._rise = 0.0
        """How fast the pace rises to it, per second."""
        self._doubling = 1.0
        """The seconds in which it doubles otherwise."""
        # The requests since a refusal at `_began_at`, up to one at `_closed_at`.
        self._sent = self._refused = 0
        self._began_at = self._opened_at = self._closed_at = self._opens_at = 0.0
        self._refusals_in_a_row = 0
        self._refusing_since: float | None = None
        self._last_wait = 0.0

    def ticket(self) -> int:
        """Return the number of a new request. A lower number goes first."""
        with self._lock:
            self._tickets += 1
            return self._tickets

    def leave(self, ticket: int) -> None:
        """Do not wait any longer."""
        with self._lock:
            self._waiting.pop(ticket, None)

    def wait_of(self, ticket: int, now: float) -> float:
        """Return the seconds until a request may be sent, as far as is known. If they are 0, it counts as sent."""
        with self._lock:
            if self._is_limited and now - self._last_wait > FORGOTTEN:
                self._is_limited = self._is_closed = False
                self._refusals_in_a_row, self._refusing_since = 0, None
            if not self._is_limited:
                self._starts.append(now)
                self._waiting.pop(ticket, None)
                return 0.0
            ahead = sum(other < ticket and looks + LATE > now for other, looks in self._waiting.items())
            if now < self._opens_at:
                wait = self._opens_at - now
            else:
                if self._is_closed:
                    self._open(now)
                self._count(now)
                wait = (1 + ahead - self._credit) / self._rate
            if wait <= 0:
                self._credit -= 1
                self._sent += 1
                self._waiting.pop(ticket, None)
                return 0.0
            self._last_wait = now
            self._waiting[ticket] = now + sleep_of(wait)
            return wait

    def accepted(self) -> None:
        """Note that the server answers a request."""
        with self._lock:
            self._refusals_in_a_row, self._refusing_since = 0, None

    def refusing_for(self, now: float) -> float:
        """Return the seconds for which the server has refused every request, 0 if it has not refused the last one."""
        since = self._refusing_since
        return now - since if since is not None else 0.0

    def refused(self, epoch: int, wait: float | None, now: float) -> float:
        """Note that the server has refused a request. Returns the seconds until any request may be sent.

        epoch: that at which the request was sent. wait: the seconds that the server asks to wait, None if it does not.
        """
        with self._lock:
            if self._refusing_since is None:
                self._refusing_since = now
            if epoch == self.epoch:
                self._close(now)
            if self._is_closed and epoch == self.epoch - 1:
                self._refused += 1
            if wait is None:
                wait = min(FIRST_WAIT * 2 ** min(self._refusals_in_a_row - 1, 10), LONGEST_WAIT)
            if now + wait > self._opens_at:
                self._opens_at = now + wait * random.uniform(1, 1 + JITTER)
            self._last_wait = max(now, self._opens_at)
            return self._opens_at - now

    def _close(self, now: float) -> None:
        """Let no request go. The pace falls when it opens: until then, more of those under way may be refused."""
        if not self._is_limited:
            recent = [start for start in self._starts if start > now - RECENT]
            self._began_at = self._opened_at = recent[0] if recent else now
            self._sent, self._refused, self._rate, self._goal = len(recent), 0, 0.0, None
            self._starts.clear()
        else:
            self._count(now)
            self._goal = self._rate
        self.epoch += 1
        self._refusals_in_a_row += 1
        self._is_limited = self._is_closed = True
        self._closed_at = self._opens_at = now

    def _open(self, now: float) -> None:
        """Let requests go again, at a slower pace."""
        closed = now - self._closed_at
        accepted = self._sent - self._refused
        if self._goal is None:
            self._rate = accepted / (now - self._began_at)
        else:
            # A server may save what is not used while nothing is sent, or not. So the pace that it accepts is between
            # these two.
            least = accepted / max(self._closed_at - self._began_at, 1e-3)
            most = accepted / max(self._closed_at - self._opened_at, 1e-3)
            self._rate = min(max(FALL * self._goal, least), most)
            self._rise = max(self._goal - self._rate, 0.02 * self._goal) / (RETURN * closed)
        self._rate = max(self._rate, 0.5 / closed)
        self._doubling = closed / 2
        self._is_closed = False
        self._began_at, self._opened_at, self._sent, self._refused = self._closed_at, now, 0, 0
        self._credit, self._counted_at = 1.0, now

    def _count(self, now: float) -> None:
        """Count the requests that may go now, and let the pace rise."""
        seconds = now - self._counted_at
        self._credit = min(self._credit + self._rate * seconds, max(1.0, BURST * self._rate))
        self._counted_at = now
        seconds = min(seconds, 1.0)
        if self._goal is None or self._rate > PASSED * self._goal:
            self._rate *= 2 ** (seconds / self._doubling)
        else:
            self._rate += self._rise * seconds
