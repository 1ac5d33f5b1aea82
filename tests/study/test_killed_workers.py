"""Workers are killed in the middle of a study: nothing that has ended is repeated, and nothing is lost."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("cloudpickle")

from tests.study.killed import killed_study

pytestmark = pytest.mark.slow


async def test_the_pool_is_replaced_if_a_process_is_killed(tmp_path: Path) -> None:
    warned = pytest.warns(RuntimeWarning, match="The study continues in a new pool of the same size")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool, warned:
        await killed_study(tmp_path, pool, kills=2)
