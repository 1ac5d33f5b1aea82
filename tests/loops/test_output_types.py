"""Types as `output=` that a person writes first, and answers that small models write."""

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import pytest
from pydantic import TypeAdapter

from agentnb import Agent, SessionLoop
from agentnb.testing import ScriptedLLM


class River(TypedDict):
    name: str


NILE = '{"name": "Nile"}'


@pytest.mark.parametrize("design", [SessionLoop, Agent])
@pytest.mark.parametrize(
    ("output", "answer", "expected"),
    [
        (River, NILE, {"name": "Nile"}),
        (list[River], f"[{NILE}]", [{"name": "Nile"}]),
        (River | None, NILE, {"name": "Nile"}),
        (Iterable[int], "[1, 2]", [1, 2]),
        (TypeAdapter(list[int]), "[1, 2]", [1, 2]),
        (str, "Good morning.", "Good morning."),
        (str, "42", "42"),
        (str, '{"value": "with a wrapper"}', "with a wrapper"),
        (Literal["yes", "no"], "yes", "yes"),
        (dict[str, str], '{"code": "if x:\n\treturn"}', {"code": "if x:\n\treturn"}),
    ],
)
async def test_an_output_of_this_type_is_read_from_the_first_answer(
    design: Any, output: Any, answer: str, expected: Any
) -> None:
    llm = ScriptedLLM([answer])
    assert await design(llm, output=output).start("q") == expected
