"""A study of a store has one driver: a process that starts it while another one drives it is refused."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentnb
from agentnb import SessionLoop, Store, UsageError
from agentnb.testing import ScriptedLLM

OTHER = """
import sys, agentnb
from agentnb import SessionLoop, Store
from agentnb.testing import ScriptedLLM, delay

def make(seed):
    return SessionLoop(ScriptedLLM([[delay(60), "end"]]), [])

study = agentnb.study(make, ["x"], 3, store=Store(sys.argv[1]), name="s", progress=False, at_once=1).start()
print("started", flush=True)
study.result()
"""


def study(path: Path) -> agentnb.Study:
    def make(seed: int) -> SessionLoop:
        return SessionLoop(ScriptedLLM(["end"]), [])

    return agentnb.study(make, ["x"], 3, store=Store(path), name="s", progress=False)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that drives the study."""
    command = [sys.executable, "-c", OTHER, str(tmp_path / "runs.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() not in ("started", ""):
            pass
        yield process
        process.kill()


def test_a_study_that_a_living_process_drives_is_not_started_again(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    with pytest.raises(UsageError, match=f"driven by process {other.pid}"):
        study(tmp_path / "runs.db").start()


def test_a_stopped_process_still_drives_its_study(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGSTOP)
    with pytest.raises(UsageError, match="driven by process"):
        study(tmp_path / "runs.db").start()


def test_a_killed_process_no_longer_drives_its_study(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    assert study(tmp_path / "runs.db").start().result(20).counts["done"] == 3


def test_a_study_that_has_ended_elsewhere_is_not_run_again(tmp_path: Path) -> None:
    late = study(tmp_path / "runs.db")
    study(tmp_path / "runs.db").start().result(20)
    late.start().result(20)
    assert len(Store(tmp_path / "runs.db").runs()) == 3
