from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agentnb.llms.reader import ObjectText

VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('ab{}"\\[]\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('a"\\{}'), max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=3), VALUES), st.data())
def test_the_end_of_an_object_is_found_for_every_split(value: dict[str, object], data: st.DataObject) -> None:
    text, written = json.dumps(value), ObjectText()
    while text:
        assert not written.has_closed()
        size = data.draw(st.integers(1, len(text)))
        written.add(text[:size])
        text = text[size:]
    assert written.has_closed()
