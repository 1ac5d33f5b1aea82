"""The view of a prefix behaves like the list of its items."""

from __future__ import annotations

import pytest

from agentnb.core.prefix import COPY_LIMIT, Continued, Prefix, current_items

LONG = list(range(COPY_LIMIT + 1))


def test_a_view_behaves_like_the_list() -> None:
    view = Prefix(list(LONG))
    assert len(view) == len(LONG)
    assert list(view) == LONG
    assert view == LONG
    assert repr(view) == repr(LONG)
    assert list(reversed(view)) == LONG[::-1]
    for index in (0, 2, 3, 199, 200, len(LONG) - 1, -1, -2, -len(LONG)):
        assert view[index] == LONG[index]
    for part in (slice(None), slice(2, 5), slice(-3, None), slice(None, None, -1), slice(0, 300, 7), slice(5, 2)):
        assert view[part] == LONG[part]
    for index in (len(LONG), -len(LONG) - 1):
        with pytest.raises(IndexError):
            view[index]


def test_a_prefix_does_not_grow_with_its_list() -> None:
    items = list(LONG)
    view = current_items(items)
    items.append(-1)
    assert view == LONG


def test_a_short_prefix_is_copied_to_a_list() -> None:
    items = [1, 2]
    assert type(current_items(items)) is list
    assert current_items(items) is not items


def test_a_continued_list_reads_like_a_list_of_the_changed_items() -> None:
    asked: list[int] = []

    def doubled(index: int, item: int) -> int:
        asked.append(index)
        return 2 * item

    made = Continued(LONG, 200, doubled, [7])
    made.append(8)
    same = [2 * item for item in LONG[:200]] + [7, 8]
    assert (len(made), made[-1], made[200], made[-200:][-1], asked) == (202, 8, 7, 8, list(range(2, 200)))
    assert (made[0], made[-202], made[150:], made[199:203]) == (0, 0, same[150:], same[199:203])
    assert [made[index] for index in range(202)] == same
    asked.clear()
    assert list(made) == same
    assert made == same
    assert made[::-1] == same[::-1]
    assert repr(made) == repr(same)
    assert len(asked) == 200
    for index in (202, -203):
        with pytest.raises(IndexError):
            made[index]


def test_a_copy_of_a_continued_list_grows_alone() -> None:
    made = Continued(LONG, 2, lambda _, item: item, [])
    copy = made.copy()
    copy.append(5)
    assert (made, copy) == ([0, 1], [0, 1, 5])


def test_lists_that_continue_each_other_are_not_read_through() -> None:
    made: Continued[int] | list[int] = list(LONG)
    for number in range(2_000):
        made = Continued(Prefix(made), 300 if number else 257, lambda _, item: item, [1] * (43 if not number else 0))
    assert made[0] == 0
    assert len(made) == 300
