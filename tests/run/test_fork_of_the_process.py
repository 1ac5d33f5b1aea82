"""Runs in a process that was forked (by multiprocessing on Linux) from a process that had driven runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing

from agentnb import SessionLoop, tool
from agentnb.testing import ScriptedLLM, call


@tool
def double(number: int) -> int:
    return 2 * number


def drive(number):
    llm = ScriptedLLM([[call("double", {"number": number})], str(number)])
    return SessionLoop(llm, [double]).start("go").result(20)


print(drive(0))
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(drive, [1, 2, 3, 4]))
"""


LIVE = """
import asyncio, os, threading
from agentnb import SessionLoop, UsageError, tool
from agentnb.testing import ScriptedLLM, call

begun = threading.Event()

@tool
async def hold() -> None:
    begun.set()
    await asyncio.sleep(60)

run = SessionLoop(ScriptedLLM([[call("hold")], "done"]), [hold]).start("go")
run.play()
begun.wait(20)
child = os.fork()
if child == 0:
    try:
        run.result(20)
    except UsageError as error:
        print(str(error).split(":")[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
run.cancel("seen")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_run_of_the_parent_process_is_not_driven_in_a_forked_process() -> None:
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", LIVE], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "Nothing drives this run any more\n", ran.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_forked_process_drives_its_own_runs() -> None:
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split("\n")[:2] == ["0", "['1', '2', '3', '4']"], ran.stderr
