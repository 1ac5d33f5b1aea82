"""The fields that a custom agent declares are checked as those of a pydantic model are."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, field_validator

from agentnb.loops.loop_agent import BaseAgent


class Checked(BaseAgent):
    n: int = Field(default=1, ge=1)
    log: list[Any] = Field(default_factory=list)

    @field_validator("n")
    @classmethod
    def odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("must be odd")
        return value


@pytest.mark.parametrize("value", [-3, 2, "many"])
def test_a_value_that_the_declaration_excludes_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Checked: n"):
        Checked("A", n=value)


def test_a_value_is_converted_and_an_object_is_kept() -> None:
    log: list[Any] = []
    made = Checked("A", n="3", log=log)
    assert made.n == 3
    assert made.log is log
