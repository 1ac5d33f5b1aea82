"""The view of a prefix behaves like the list of its items."""

from __future__ import annotations

import pytest

from agentnb.core.prefix import COPY_LIMIT, Prefix, current_items

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
