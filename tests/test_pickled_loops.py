"""A loop can be sent to another process, also after it has run: the copy runs as a new one does."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import SessionLoop
from agentnb.loops.base import Loop
from agentnb.testing import ScriptedLLM
from tests.designs import WORLDS
from tests.worlds import types

cloudpickle = pytest.importorskip("cloudpickle")


async def outcome(loop: Loop) -> tuple[Any, list[str]]:
    run = loop.start("go", approve=True)
    return str(await run), sorted(types(run.events))


@pytest.mark.parametrize("name", sorted(WORLDS.keys() - {"generator"}))  # its function names tools of this module
async def test_a_copy_from_another_process_runs_as_the_loop_does(name: str) -> None:
    loop = WORLDS[name]()
    before = cloudpickle.loads(cloudpickle.dumps(loop))
    expected = await outcome(WORLDS[name]())
    assert await outcome(loop) == expected
    after = cloudpickle.loads(cloudpickle.dumps(loop))
    assert await outcome(before) == expected
    assert (await outcome(after))[0] == expected[0]


def test_a_copy_keeps_the_messages_that_no_run_has() -> None:
    loop = SessionLoop(ScriptedLLM(["x"]))
    loop.queue.add_steering("be brief")
    copy = cloudpickle.loads(cloudpickle.dumps(loop))
    loop.queue.add_steering("be long")
    assert [message.content for message in copy.queue.dequeue_steering()] == ["be brief"]
