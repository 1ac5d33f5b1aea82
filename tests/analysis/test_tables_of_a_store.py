"""The tables of a store are read in bulk, and have the values of the tables of each of its recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas
import pytest
from msgspec.structs import replace

from agentnb import Store
from agentnb.analysis import calls, decisions, events
from tests.analysis.recordings import decided_run, researcher
from tests.analysis.test_inherited import after_the_writes, forks
from tests.designs import WORLDS
from tests.test_designs import drive


async def recorded() -> list[tuple[str, Any]]:
    """Return runs of every design, runs that a person or a policy decided, a fork, and a run that has not ended."""
    decided = await decided_run()
    approved = researcher().start("Look it up.", approve=True)
    await approved
    (fork,) = await forks(decided, after_the_writes(decided), 1)
    found = [(name, (await drive(world().start("go"))).recording) for name, world in WORLDS.items()]
    found += [(run.name, run.recording) for run in (decided, fork)]
    open_run = [replace(event, run_id="open") for event in decided.recording[:-3]]
    return [*found, ("approved", approved.recording), ("open", open_run)]


@pytest.fixture(scope="module")
def recordings() -> list[tuple[str, Any]]:
    return asyncio.run(recorded())


@pytest.mark.parametrize("table", [events, calls, decisions])
def test_its_values_are_those_of_the_single_recordings(
    recordings: list[tuple[str, Any]], table: Callable[[Any], pandas.DataFrame], tmp_path: Path
) -> None:
    with closing(Store(tmp_path / "runs.db")) as store:
        single = {}
        for number, (name, recording) in enumerate(recordings):
            store.record_run(recording[0].run_id, f"{name} {number}", "loop", list(recording))
            single[f"{name} {number}"] = store.load(recording[0].run_id)
        assert sum(one.outlines is not None for one in store.recordings(outlined=True)) > 5  # the fast way is tested
        frame = table(store)
        pandas.testing.assert_frame_equal(frame, table(single))
        assert len(frame) > 3
