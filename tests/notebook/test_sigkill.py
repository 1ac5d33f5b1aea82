"""Kernels are killed with SIGKILL during a run of fifty calls, and the next kernel finishes the run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebook.forked_kernel import ForkedKernel
from tests.notebook.live_kernel import LiveKernel
from tests.warm import warm

CALLS, KILLS = 50, 100  # a third of the kills without --all-cases
SETUP = """
import asyncio, os, random
import agentnb

class Model:
    "Asks for ten turns of five calls, and knows by the history where it is: a kernel that starts anew finds it so."
    async def stream(self, messages, **options):
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 10:
            yield {"type": "text_delta", "content": "done"}
        for n in range(turn * 5, turn * 5 + 5) if turn < 10 else ():
            yield {"type": "tool_call", "id": f"c{n}", "name": "effect", "arguments": {"n": n}}

@agentnb.tool
async def effect(n: int) -> str:
    await asyncio.sleep(random.random() / 200)
    os.write(effects, f"{n}\\n".encode())
    await asyncio.sleep(random.random() / 200)
    return f"did {n}"

def open_effects(path):
    global effects
    effects = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

loop = agentnb.SessionLoop(Model(), [effect])
"""
START = """
open_effects({effects!r})
store = agentnb.Store({store!r})
run = loop.start("go", name={name!r}, store=store)
run.play()
"""
FINISH = """
import warnings
from agentnb.core.errors import RecordingMissing
# A kill in the middle of a write is told as what it may be, a damaged log. Here it is what is to be expected.
warnings.filterwarnings("ignore", "The log of .* ends in a write that is not whole", RuntimeWarning)
open_effects({effects!r})
store = agentnb.Store({store!r})
try:
    before = store.load({name!r})
except RecordingMissing:  # killed before its first event was on disk: nothing can have happened
    assert not os.path.getsize({effects!r})
    run, known = loop.start("go", name={name!r}, store=store), 0
else:
    run, known = agentnb.restore(before, loop, store=store), len(before.events)
finished = {{event.call_id for event in run.events[:known] if event.type == "call_end"}}
asked = []
while await run.step("turn"):
    for call in run.pending:
        assert call.unknown
        asked.append(call.id)
        happened = str(call.arguments["n"]) in open({effects!r}).read().split()
        run.answer(call, "it happened") if happened else run.approve(call)
again = {{e.call_id for e in run.events[known:] if e.type == "call_start"}}
assert not finished & again, finished & again
assert not finished & set(asked)
print(run.output, len(run.messages), len(asked))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_call_is_repeated_and_none_is_lost_when_a_kernel_is_killed(
    tmp_path: Path, some_of: Callable[[range], range], capsys: pytest.CaptureFixture[str]
) -> None:
    killed, asked, kills = None, 0, some_of(range(KILLS))
    with warm("tests.notebook.forked_kernel") as server:
        for number in (*kills, None):
            with ForkedKernel(server) as kernel:
                kernel.run(SETUP)
                if killed is not None:
                    asked += finish(kernel, killed)
                if number is not None:
                    killed = start_and_kill(kernel, tmp_path / f"{number}.db", after=number * CALLS // KILLS)
    with capsys.disabled():
        print(f"\n{len(kills)} kernels killed; {asked} calls whose outcome nobody knew, each of them asked about")
    assert asked > 0


def start_and_kill(kernel: ForkedKernel, store: Path, after: int) -> dict[str, str]:
    """Start a run, and kill its kernel after a number of effects; return what the next kernel has to know."""
    names = {"effects": str(store.with_suffix(".txt")), "store": str(store), "name": f"run {after}"}
    assert int(kernel.run(f"{START.format(**names)}\nprint(os.getpid())")) == kernel.pid
    deadline = time.monotonic() + 60
    while len(Path(names["effects"]).read_text().split()) < after:
        assert time.monotonic() < deadline
    kernel.kill()
    return names


def finish(kernel: LiveKernel, names: dict[str, str]) -> int:
    """Finish the run in another kernel; return the number of calls that needed a decision."""
    output, messages, asked = kernel.run(FINISH.format(**names)).split()
    assert (output, int(messages)) == ("done", 1 + 10 + CALLS + 1)
    effects = Counter(Path(names["effects"]).read_text().split())
    assert effects == {str(n): 1 for n in range(CALLS)}
    return int(asked)
