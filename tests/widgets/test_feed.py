from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from agentnb.core.events import CallEnd, CallProposed, CancelRequested, Delta, ModelEnd, ModelStart, RunEnd, StateUpdate
from agentnb.core.messages import Message, ToolCall
from agentnb.widgets.feed import BATCH_EVENTS, Feed
from agentnb.widgets.ticker import RATE, Ticker
from agentnb.widgets.views.live import TAIL, LiveLines, progress_of
from tests.widgets.support import Outbox, Recording


class Fed:
    """A recording with a feed on it."""

    def __init__(self) -> None:
        self.run, self.outbox, self.settled, self.began = Recording(), Outbox(), [], time.monotonic()
        self.feed = Feed(self.run, self.outbox.send, self.settled.append)
        self.feed.start()

    def has(self, count: int) -> bool:
        return len(self.outbox.rows()) >= count


@pytest.fixture
def fed() -> Iterator[Fed]:
    made = Fed()
    yield made
    made.feed.close()


def test_events_arrive_in_order_in_numbered_batches(fed: Fed) -> None:
    fed.run.start()
    for number in range(500):
        fed.run.add(StateUpdate(values={"n": number}))
    fed.outbox.until(lambda: fed.has(501))
    assert [row["seq"] for row in fed.outbox.rows()] == list(range(501))
    assert fed.outbox.messages[0]["from"] == 0
    assert fed.outbox.of("events")[-1]["total"] == 501


def test_events_before_the_creation_of_the_panel_are_sent() -> None:
    run, outbox = Recording(), Outbox()
    run.start()
    feed = Feed(run, outbox.send, lambda over: None)
    feed.start()
    outbox.until(lambda: outbox.rows())
    feed.close()
    assert outbox.rows()[0]["type"] == "run_start"


def test_missing_events_are_sent_again_in_chunks(fed: Fed) -> None:
    fed.run.start()
    for number in range(3 * BATCH_EVENTS):
        fed.run.add(StateUpdate(values={"n": number}))
    fed.outbox.until(lambda: fed.has(3 * BATCH_EVENTS + 1))
    fed.outbox.messages.clear()
    fed.feed.rewind(0)
    fed.outbox.until(lambda: fed.has(3 * BATCH_EVENTS + 1))
    chunks = fed.outbox.of("events")
    assert max(after["from"] - before["from"] for before, after in pairwise(chunks)) <= BATCH_EVENTS
    fed.outbox.messages.clear()
    fed.feed.rewind(10_000_000)  # a page with more events than the run has those of another run: send nothing
    fed.feed.rewind(3 * BATCH_EVENTS)
    fed.outbox.until(lambda: fed.outbox.of("events"))
    assert fed.outbox.of("events")[0]["from"] == 3 * BATCH_EVENTS


def test_batches_are_not_sent_faster_than_the_rate(fed: Fed) -> None:
    fed.run.start()

    def produce() -> None:
        for number in range(1000):
            fed.run.add(StateUpdate(values={"n": number}))
            time.sleep(0.001)

    producer = threading.Thread(target=produce)
    producer.start()
    fed.outbox.until(lambda: fed.has(1001))
    producer.join()
    span = fed.outbox.times[-1] - fed.began  # from before the first flush, which may take a moment
    assert len(fed.outbox.of("events")) <= span * RATE + 1


def test_deltas_are_summed_into_one_line_that_ends_with_the_message(fed: Fed) -> None:
    fed.run.start()
    fed.run.add(ModelStart(turn=1))
    for word in ["Hello", " ", "world"]:
        fed.run.tell(Delta(type="text_delta", content=word))
    fed.outbox.until(lambda: any(m["lines"] and m["lines"][0]["text"] == "Hello world" for m in fed.outbox.of("live")))
    fed.run.add(ModelEnd(message=Message(role="assistant", content="Hello world")))
    fed.outbox.until(lambda: fed.outbox.messages[-1:] and fed.outbox.messages[-1].get("lines") == [])
    assert fed.outbox.rows()[-1]["summary"] == "Hello world"


def test_a_live_line_shows_the_end_of_its_text(fed: Fed) -> None:
    for _ in range(1000):
        fed.run.tell(Delta(type="text_delta", content="0123456789"))
    fed.run.tell(Delta(type="text_delta", content="END\ud800"))
    fed.outbox.until(lambda: any(m["lines"][0]["text"].endswith("END\ufffd") for m in fed.outbox.of("live")))
    line = fed.outbox.of("live")[-1]["lines"][0]
    assert len(line["text"]) == TAIL


def test_streaming_calls_and_progress_have_separate_lines(fed: Fed) -> None:
    fed.run.start()
    fed.run.tell(Delta(type="tool_call_delta", index=0, name="search", arguments='{"q'))
    fed.run.tell(Delta(type="tool_call_delta", index=0, arguments='": 1}'))
    fed.run.tell(Delta(type="call_delta", call_id="c1", data={"done": 0.5}))
    fed.run.tell(Delta(type="retry_delta", data={"attempt": 2}))
    fed.outbox.until(lambda: any(len(m["lines"]) == 3 for m in fed.outbox.of("live")))
    lines = {line["kind"]: line for line in fed.outbox.of("live")[-1]["lines"]}
    assert (lines["call"]["name"], lines["call"]["text"]) == ("search", '{"q": 1}')
    assert lines["tool"]["text"] == '\n{"done":0.5}'
    fed.run.add(CallProposed(call=ToolCall(id="c1", name="search")))
    fed.run.add(CallEnd(call_id="c1", name="search"))
    fed.outbox.until(lambda: "tool" not in [line["kind"] for line in fed.outbox.of("live")[-1]["lines"]])
    fed.run.add(CancelRequested())
    fed.outbox.until(lambda: fed.outbox.of("live")[-1]["lines"] == [])


def test_the_end_is_reported_after_the_last_batch(fed: Fed) -> None:
    fed.run.start()
    fed.run.end()
    fed.outbox.until(lambda: fed.has(2))
    end = time.monotonic() + 30
    while True not in fed.settled and time.monotonic() < end:
        fed.feed.wake()
        time.sleep(0.01)
    assert True in fed.settled


def test_an_idle_feed_does_not_flush(fed: Fed) -> None:
    fed.run.start()
    fed.outbox.until(lambda: fed.has(1))
    time.sleep(0.1)
    flushed = len(fed.settled)
    time.sleep(0.5)
    assert len(fed.settled) <= flushed + 1  # the end of that flush may be late; a polling feed would make fifteen


def test_a_panel_that_cannot_send_does_not_affect_other_panels(caplog: pytest.LogCaptureFixture) -> None:
    ticker, run, outbox = Ticker(), Recording(), Outbox()

    def fail(message: object) -> None:
        raise RuntimeError("the comm is closed")

    run.start()
    broken = Feed(run, fail, lambda over: None, ticker)
    working = Feed(run, outbox.send, lambda over: None, ticker)
    broken.start()
    working.start()
    outbox.until(lambda: outbox.rows())
    broken.close()
    working.close()
    assert "the comm is closed" in caplog.text


def test_the_lines_of_a_nested_loop_end_with_it_and_other_lines_continue() -> None:
    live = LiveLines()
    for path in ("work", "worker", "work/critic"):
        live.feed(Delta(type="text_delta", content="hm", path=path))
    live.settle(RunEnd(reason="cancelled", path="work"))
    assert [line["path"] for line in live.show()] == ["worker"]
    live.settle(CancelRequested())
    assert live.show() == []


@pytest.mark.alone
def test_watching_costs_a_run_little_for_each_event(fed: Fed) -> None:
    event = StateUpdate(values={"n": 1})
    started = time.process_time()
    for _ in range(20_000):
        fed.feed._receive(event)
    assert (time.process_time() - started) / 20_000 < 10e-6  # 0.3 measured


def test_a_closed_feed_sends_no_event() -> None:
    run, outbox = Recording(), Outbox()
    feed = Feed(run, outbox.send, lambda over: None)
    feed.start()
    feed.close()
    run.start()
    with pytest.raises(AssertionError, match="not within"):
        outbox.until(lambda: outbox.rows(), seconds=0.3)


@pytest.mark.parametrize(
    ("data", "share", "words"),
    [
        (0.25, 0.25, "25%"),
        (1, 1.0, "100%"),
        (0, 0.0, "0%"),
        ({"done": 3, "total": 12}, 0.25, "3 of 12"),
        ({"done": 1500, "total": 3000, "file": "a.txt", "note": ""}, 0.5, "1,500 of 3,000 · a.txt"),
        ({"done": 0.5, "message": "reading"}, 0.5, "50% · reading"),
        ({"message": "reading", "total": 8}, None, "reading"),
        ({"done": 5, "total": 4}, None, '{"done":5,"total":4}'),
        ({"done": 5, "total": 0}, None, '{"done":5,"total":0}'),
        ({"done": 5}, None, '{"done":5}'),
        ({"done": float("nan"), "total": 2}, None, '{"done":"NaN","total":2}'),
        ({"done": 1, "total": float("inf")}, None, '{"done":1,"total":"Infinity"}'),
        (True, None, "true"),
        (17, None, "17"),
        (-0.5, None, "-0.5"),
        ("first\nsecond\n", None, "second"),
        ("\ud800" * 2, None, "\ufffd" * 2),
        (None, None, ""),
    ],
)
def test_progress_is_a_share_if_the_call_reports_one(data: object, share: float | None, words: str) -> None:
    told = progress_of(data)
    assert told.get("share") == share
    assert told["text"] == words
