"""Trying a request again, for as long as nothing of its answer has been seen.

Up to the first event a repeated request costs a wait. After it, half an answer may have been shown and acted on, and
asking again would give another one. So an attempt ends with the stream's first event, where that is no error: what
fails before it may be tried again (stamina decides when), what fails after it is the caller's to know.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import stamina

from agentnb.core.errors import ModelError, ModelOverloaded, ModelUnavailable
from agentnb.core.maybe_async import Inside
from agentnb.llms import failures

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from agentnb.llms.client import Reader
    from agentnb.llms.protocol import Chunk
    from agentnb.llms.transport import Transport

MAX_RETRIES = 3
RETRY_WAIT = 0.5
"""Seconds before the first retry; they double each time, up to `RETRY_WAIT_LIMIT`, with up to `RETRY_JITTER` on top."""
RETRY_WAIT_LIMIT = 8.0
RETRY_JITTER = 0.5
RETRY_AFTER_LIMIT = 60.0
"""Seconds that a server can make us wait: a person in front of a notebook rather sees the error than a longer
silence."""

# stamina logs every retry as a warning, which Python prints into the notebook when nobody has set up logging. The
# retry is in the stream already; whoever sets up logging still gets the warning.
logging.getLogger("stamina").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Retry:
    """An attempt failed and another one follows, after `wait` seconds at least (jitter comes on top)."""

    attempt: int
    wait: float
    error: ModelError


async def answer(
    transport: Transport,
    body: bytes,
    new_reader: Callable[[], Reader],
    *,
    max_retries: int,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> AsyncGenerator[Chunk | Retry]:
    """Post `body`; give a `Retry` before each new attempt, then the answer's chunks. Raises a `ModelError`.

    `headers` and `timeout` are this request's, as in `Transport.open`.
    """
    attempts = stamina.retry_context(
        on=_wait_before_retry,
        attempts=max_retries + 1,
        timeout=None,  # both the attempts and the waits are bounded
        wait_initial=RETRY_WAIT,
        wait_max=RETRY_WAIT_LIMIT,
        wait_jitter=RETRY_JITTER,
    )
    async for attempt in attempts:
        failure: ModelError | None = None
        first: Sequence[Chunk] | None = None
        async with aclosing(Inside(_answer(transport, body, new_reader(), headers, timeout))) as events:
            with attempt:
                try:
                    first = await anext(events)
                except ModelError as error:
                    failure = transport.redacted(error, headers)
                    if attempt.num > 1:
                        failure.add_note(f"{attempt.num} attempts were made")
                    raise failure from None
            if first is not None:  # else it has failed, or was broken off, which stamina raises as the loop goes on
                for chunk in first:
                    yield chunk
                async for chunks in events:
                    for chunk in chunks:
                        yield chunk
        if failure is not None and attempt.num <= max_retries and (wait := _wait_before_retry(failure)) is not False:
            yield Retry(attempt.num, attempt.next_wait if wait is True else wait, failure)


async def _answer(
    transport: Transport, body: bytes, reader: Reader, headers: Mapping[str, str] | None, timeout: float | None
) -> AsyncGenerator[Sequence[Chunk]]:
    """Give the chunks that each of the stream's events comes to."""
    exchange = await transport.open(body, headers=headers, timeout=timeout)
    try:
        while not reader.is_done() and (event := await exchange.next_event()) is not None:
            if not failures.is_sign_of_life(event.data, event.event):  # nothing of the answer: it may still fail
                yield reader.read(event)
        if reader.is_done():
            await exchange.drain()
    finally:
        await exchange.close()
    yield reader.finish()


def _wait_before_retry(error: Exception) -> bool | float:
    """Say whether to try again: stamina's own wait (True), this one, or not at all (False)."""
    if not isinstance(error, ModelOverloaded | ModelUnavailable):
        return False
    if error.retry_after is None:
        return True
    return min(error.retry_after, RETRY_AFTER_LIMIT)  # stamina takes a given wait as it is, past any time-out
