"""Reduce a failing seed to the smallest world with the same kind of fault, with hypothesis."""

from __future__ import annotations

import random
import re
from contextlib import suppress

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from tests.simulation.case import Case, Story, draw_case, play
from tests.simulation.choices import of_seed, smaller

TRIES = 1000
"""The number of cases that are played to find the smallest one."""


def kind(fault: str) -> str:
    """Return the kind of a fault: its text without names and numbers."""
    words = fault.strip().splitlines()[-1] if "Traceback" in fault else fault
    return re.sub(r"(\d|'[^']*'|\{.*?\}|\[.*?\]|\bL\d*\b)+", "#", words.partition(": ")[2] or words)[:60]


def kinds(story: Story) -> set[str]:
    """Return the kinds of the faults of a story."""
    return {kind(fault) for fault in story.faults}


class _Enough(BaseException):
    """Ends the search. A BaseException, because hypothesis takes every Exception for a failure of the test."""


def shrunk(seed: int, wanted: str, tries: int = TRIES) -> Case:
    """Return the smallest case found that has a fault of this kind, starting with that of the seed."""
    smallest = draw_case(of_seed(seed))
    left = tries

    def fails(case: Case) -> bool:
        nonlocal smallest, left
        left -= 1
        if left < 0:
            raise _Enough
        if wanted not in kinds(play(case)):
            return False
        smallest = min(smallest, case, key=lambda one: one.size)
        return True

    how = settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    with suppress(NoSuchExample, _Enough):
        find(smaller(seed, draw_case), fails, settings=how, random=random.Random(seed))
    return smallest
