from __future__ import annotations

from itertools import pairwise

import httpx
import httpx_sse
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentnb.core.errors import ModelProtocolError
from agentnb.llms.sse import ServerSentEvent, SSEDecoder

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n"
    b"event: first\rdata: one\ndata:  two\r\n\r\n"
    b"id: 7\nretry: 250\ndata\n\n"
    b"event: nothing to say\n\n"
    b'data: {"text": "gr\xc3\xbc\xc3\x9f \xe4\xb8\x96 \xf0\x9f\x91\x8b \xe2\x80\xa8 \xe2\x80\xa9 \xc2\x85 '
    b'\x0b\x0c\x1c"}\r\r'
    b"data: broken \xff\xe4\xb8 text\r\n\r\n"
    b"unknown: field\ndata: last\n\n"
)
EVENTS = [
    ServerSentEvent("one\n two", "first"),
    ServerSentEvent("", id="7", retry=250),
    ServerSentEvent('{"text": "grüß 世 👋 \u2028 \u2029 \x85 \x0b\x0c\x1c"}', id="7"),
    ServerSentEvent("broken \ufffd\ufffd text", id="7"),
    ServerSentEvent("last", id="7"),
]


def decode(*pieces: bytes) -> tuple[list[ServerSentEvent], bool]:
    decoder = SSEDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events, decoder.close() is not None


def test_a_stream_is_decoded_according_to_the_standard() -> None:
    assert decode(STREAM) == (EVENTS, False)


def test_every_split_into_two_parts_results_in_the_same_events() -> None:
    for at in range(len(STREAM) + 1):
        assert decode(STREAM[:at], STREAM[at:]) == (EVENTS, False), at


def test_decoding_byte_by_byte_results_in_the_same_events() -> None:
    assert decode(*(bytes([byte]) for byte in STREAM)) == (EVENTS, False)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_split_results_in_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]
    assert decode(*pieces) == (EVENTS, False)


def test_an_event_is_returned_with_the_byte_that_ends_it() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: x\r") == []
    assert decoder.feed(b"\r") == [ServerSentEvent("x")]
    assert decoder.feed(b"\n") == []
    assert decoder.close() is None


def test_only_the_first_byte_order_mark_is_skipped() -> None:
    assert decode("\ufeffdata: \ufeffx\n\n\ufeffdata: y\n\n".encode())[0] == [ServerSentEvent("\ufeffx")]


@pytest.mark.parametrize("tail", [b"data: x", b"data: x\n", b"data: x\r\n", b"event: e\n", b"data: \xe4"])
def test_a_stream_that_ends_within_an_event_is_an_error(tail: bytes) -> None:
    assert decode(b"data: whole\n\n", tail) == ([ServerSentEvent("whole")], True)


def test_nonstandard_error_lines_are_events() -> None:
    assert decode(b'error: {"a": 1}\n\n{"b": 2}\n\n') == (
        [ServerSentEvent('{"a": 1}', "error"), ServerSentEvent('{"b": 2}')],
        False,
    )


@pytest.mark.parametrize("tail", [b"data: x", b"data: x\n", b"event: e\ndata: x\nid: 7"])
def test_close_returns_the_event_that_was_cut_off(tail: bytes) -> None:
    decoder = SSEDecoder()
    decoder.feed(tail)
    rest = decoder.close()
    assert rest is not None
    assert rest.data == "x"
    assert decoder.close() is None


@pytest.mark.parametrize("tail", [b"", b"\n", b": ping\n", b": ping\n\n"])
def test_a_stream_that_ends_between_events_is_whole(tail: bytes) -> None:
    assert decode(b"data: whole\n\n", tail) == ([ServerSentEvent("whole")], False)


def test_an_id_with_a_null_and_an_invalid_retry_are_ignored() -> None:
    assert decode("id: a\0b\nretry: ٣\nretry: -1\ndata: x\n\n".encode())[0] == [ServerSentEvent("x")]


@pytest.mark.parametrize("piece", [b"data: 0123456789", b"data: 01234\n"])
def test_an_event_that_never_ends_is_refused(piece: bytes) -> None:
    decoder = SSEDecoder(max_event_size=40)
    decoder.feed(b"data: 0123456789012345678901234567\n\n" * 3)  # many events are no large event
    decoder.feed(piece)
    with pytest.raises(ModelProtocolError, match="40"):
        decoder.feed(piece * 10)


LINE = st.one_of(
    st.sampled_from(
        ["", "", ":", ": c", "data", "data:", "data: ", "event: e", "event", "id: 1", "id", "retry: 10", "x: y"]
    ),
    st.text(st.sampled_from("ab :\u2028\u0085\x0b\x1c\x00é👋\ufeff"), max_size=6).map(lambda text: f"data:{text}"),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n", "\r"])), max_size=12), st.data())
def test_the_decoder_agrees_with_httpx_sse(lines: list[tuple[str, str]], data: st.DataObject) -> None:
    text = "".join(line + end for line, end in lines)
    assume(not text.startswith("\ufeff"))  # httpx-sse 0.4.3 takes a byte order mark for part of the first field
    stream = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    response = httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, content=iter(pieces))
    theirs = [
        ServerSentEvent(event.data, event.event or "message", event.id, event.retry)
        for event in httpx_sse.EventSource(response).iter_sse()
    ]
    # httpx-sse also gives events without a data line, which the standard drops. They look like an empty data line, so
    # events without text are omitted on both sides; the stream above has one.
    assert [event for event in decode(*pieces)[0] if event.data] == [event for event in theirs if event.data]
