"""The gate in kernels that use the event loop of uvloop, which handles signals and sockets differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernels import RELEASES
from tests.notebook.live_kernel import LiveKernel
from tests.notebook.test_gate import SETUP, WAYS_TO_WAIT

pytestmark = pytest.mark.kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

UVLOOP = "import uvloop; uvloop.install()"


@pytest.fixture(scope="module", params=list(RELEASES))
def uvloop_kernel(request: pytest.FixtureRequest) -> Iterator[LiveKernel]:
    with LiveKernel(request.param, first=UVLOOP) as running:
        loop = running.run("import asyncio; print(type(asyncio.get_event_loop()).__module__)")
        assert loop.strip() == "uvloop"
        yield running


@pytest.mark.parametrize("waiting", list(WAYS_TO_WAIT.values()), ids=list(WAYS_TO_WAIT))
def test_clicks_and_stop_reach_a_waiting_cell(uvloop_kernel: LiveKernel, waiting: str) -> None:
    """Without Stop, the wait would not end. (test_gate.py measures how fast it ends.)"""
    button, _ = uvloop_kernel.run(SETUP).split()
    for data in range(20):
        uvloop_kernel.run("future = Future()")
        cell = uvloop_kernel.send(f"print('started')\n{waiting}\nprint('got', future.result())")
        uvloop_kernel.until_printed(cell, "started")
        uvloop_kernel.comm(button, data)
        assert uvloop_kernel.reply(cell)["status"] == "ok"
        uvloop_kernel.until_printed(cell, f"got {data}")
    uvloop_kernel.run("future = Future()")
    cell = uvloop_kernel.send(f"print('started')\n{waiting}")
    uvloop_kernel.until_printed(cell, "started")
    uvloop_kernel.manager.interrupt_kernel()
    assert uvloop_kernel.reply(cell)["ename"] in ("CancelledError", "KeyboardInterrupt")
    assert uvloop_kernel.run("print('goes on')").strip() == "goes on"
