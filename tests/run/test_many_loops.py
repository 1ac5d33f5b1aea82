"""Many concurrent nested loops: the cost of a run grows linearly with its events, not quadratically."""

from __future__ import annotations

import sys
from typing import Any

from agentnb import SessionLoop
from agentnb.testing import ScriptedLLM, call


async def calls_made(loops: int) -> int:
    """Return the number of function calls of a run with so many concurrent loops."""
    inner = SessionLoop(ScriptedLLM(["done"], repeat=True), name="inner")
    calls = [call("inner", {"input": str(n)}, id=f"c{n}") for n in range(loops)]
    run = SessionLoop(ScriptedLLM([calls, "end"]), [inner]).start("go")
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        assert await run == "end"
    finally:
        sys.setprofile(None)
    return count


async def test_four_times_as_many_concurrent_loops_cost_at_most_eight_times_as_much() -> None:
    await calls_made(5)
    assert await calls_made(400) < 8 * await calls_made(100)
