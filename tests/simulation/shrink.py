"""From a seed that fails to the smallest world that fails like it, by hypothesis."""

from __future__ import annotations

import re
import time

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from tests.simulation.case import Case, Story, draw_case, play
from tests.simulation.choices import smaller

SECONDS = 60.0
"""How long to look for something smaller."""


def kind(fault: str) -> str:
    """What a fault has in common with those of its kind: its words, without names and numbers."""
    words = fault.strip().splitlines()[-1] if "Traceback" in fault else fault
    return re.sub(r"(\d|'[^']*'|\{.*?\}|\[.*?\]|\bL\d*\b)+", "#", words.partition(": ")[2] or words)[:60]


def kinds(story: Story) -> set[str]:
    """The kinds of faults in a story."""
    return {kind(fault) for fault in story.faults}


def shrunk(seed: int, wanted: str, seconds: float = SECONDS) -> Case:
    """The smallest case found that has a fault of this kind, from that of the seed on."""
    until = time.perf_counter() + seconds

    def fails(case: Case) -> bool:
        return time.perf_counter() < until and wanted in kinds(play(case))

    quick = settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        return find(smaller(seed, draw_case), fails, settings=quick)
    except NoSuchExample:
        from tests.simulation.choices import of_seed

        return draw_case(of_seed(seed))
