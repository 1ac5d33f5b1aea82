from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentnb.llms import conversion
from agentnb.llms.conversion import MessageCache, all_text_of

if TYPE_CHECKING:
    from agentnb.llms.protocol import Message


def counting() -> tuple[MessageCache[Any], list[Message]]:
    seen: list[Message] = []

    def convert(message: Message) -> object:
        seen.append(message)
        return message["content"]

    return MessageCache(convert), seen


def test_each_message_is_converted_once_however_often_it_is_sent() -> None:
    cache, seen = counting()
    history: list[Message] = []
    for number in range(50):
        history.append({"content": number})
        assert cache.convert(history) == list(range(number + 1))
    assert len(seen) == 50


def test_equal_messages_are_converted_separately() -> None:
    cache, seen = counting()
    assert cache.convert([{"content": 1}, {"content": True}]) == [1, True]
    assert len(seen) == 2


def test_a_new_message_never_gets_the_conversion_of_a_deleted_one() -> None:
    cache, _ = counting()
    for number in range(5000):  # each message is deleted immediately, so that its address may be used again
        assert cache.convert([{"content": number}]) == [number]


def test_forks_of_a_history_share_its_conversions() -> None:
    cache, seen = counting()
    trunk: list[Message] = [{"content": number} for number in range(10)]
    for fork in range(10):
        cache.convert([*trunk, {"content": fork}])
    assert len(seen) == 20


def test_the_cache_of_conversions_is_bounded() -> None:
    cache, seen = counting()
    first: Message = {"content": "first"}
    cache.convert([first])
    for number in range(conversion.MIN_KEPT):
        cache.convert([{"content": number}])
    cache.convert([first])
    assert seen[-1] is first


def test_a_history_larger_than_the_bound_is_still_converted_once() -> None:
    cache, seen = counting()
    history: list[Message] = [{"content": number} for number in range(3 * conversion.MIN_KEPT)]
    cache.convert(history)
    cache.convert(history)
    assert len(seen) == len(history)


def test_content_of_any_kind_is_converted_to_text() -> None:
    assert all_text_of(None) == ""
    assert all_text_of("x") == "x"
    assert (
        all_text_of([{"type": "text", "text": "a"}, {"type": "image", "data": "..."}, "b"])
        == "a\n[image: image/png, 2 bytes; not sent, because this model is asked without images]\nb"
    )
    assert all_text_of({"sum": 5}) == '{"sum": 5}'
