"""A study of a store has one driver: who starts it while another process drives it follows, or takes its place."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentnb import Store
from agentnb.studies import Study
from tests.study.other_driver import calls, study

Other = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    """Starts another process that starts the study."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.study.other_driver", str(tmp_path), str(tmp_path / "runs.db")]
        processes.append(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def driver(tmp_path: Path, other: Other) -> subprocess.Popen[str]:
    """Another process that drives the study: two calls run."""
    process = other()
    until(lambda: len(calls(tmp_path)) == 2)
    return process


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def followed(folder: Path) -> Study:
    """Start the study, which another process drives."""
    with pytest.warns(RuntimeWarning, match="is driven by process"):
        return study(folder).start()


def test_a_second_process_comes_back_when_the_first_has_ended(tmp_path: Path, driver: subprocess.Popen[str]) -> None:
    with pytest.warns(RuntimeWarning, match=f"'s' is driven by process {driver.pid} on .* It is followed here"):
        late = study(tmp_path).start()
    (tmp_path / "go").touch()
    assert late.result(30).counts["done"] == 3
    assert {pid for pid, _ in calls(tmp_path)} == {str(driver.pid)}


def test_two_processes_that_start_at_the_same_time_run_each_cell_once(tmp_path: Path, other: Other) -> None:
    (tmp_path / "go").touch()
    processes = [other(), other()]
    said = [process.communicate(timeout=30)[0].splitlines()[-1] for process in processes]
    assert said == ["<Study s: 3 of 3 done>"] * 2
    assert len({seed for _, seed in calls(tmp_path)}) == len(calls(tmp_path)) == 3


def test_a_second_process_takes_the_place_of_one_that_was_killed(tmp_path: Path, driver: subprocess.Popen[str]) -> None:
    late = followed(tmp_path)
    (tmp_path / "go").touch()
    before = calls(tmp_path)
    driver.send_signal(signal.SIGSTOP)  # a process that is only stopped lives
    driver.kill()
    driver.wait()
    until(lambda: len(late.pending) == 2)
    assert all(item.unknown for item in late.pending)
    late.approve(late.pending, unknown=True)
    assert late.result(30).counts["done"] == 3
    assert len(calls(tmp_path)) == len(before) + 3  # two were approved again


def test_a_stopped_process_still_drives_its_study(tmp_path: Path, driver: subprocess.Popen[str]) -> None:
    driver.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        followed(tmp_path).result(1)
    assert len(calls(tmp_path)) == 2


def test_a_second_study_comes_back_when_the_first_was_cancelled(tmp_path: Path) -> None:
    first = study(tmp_path).start()
    late = followed(tmp_path)
    until(lambda: len(calls(tmp_path)) == 2)
    first.cancel()
    counts = late.result(30).counts
    assert (counts["cancelled"], counts["not started"]) == (2, 1)


def test_a_cancelled_study_is_continued_by_the_study_that_has_followed(tmp_path: Path) -> None:
    first = study(tmp_path).start()
    late = followed(tmp_path)
    first.cancel()
    late.result(30)
    (tmp_path / "go").touch()
    assert late.start().result(30).counts["done"] == 3


def test_cancelling_a_study_that_is_followed_ends_the_following_only(tmp_path: Path) -> None:
    first = study(tmp_path).start()
    late = followed(tmp_path)
    with pytest.warns(RuntimeWarning, match="driven by process .*goes on there"):
        assert not late.cancel()
    late.result(30)
    assert first.is_running
    (tmp_path / "go").touch()
    assert first.result(30).counts["done"] == 3


def test_an_interrupt_of_the_second_process_leaves_the_first_alone(
    tmp_path: Path, driver: subprocess.Popen[str], other: Other
) -> None:
    second = other()
    assert second.stdout is not None
    assert second.stdout.readline() == "waits\n"
    second.send_signal(signal.SIGINT)
    assert "is driven by process" in (said := second.communicate(timeout=30)[1])
    assert "no longer followed here" in said
    (tmp_path / "go").touch()
    assert driver.communicate(timeout=30)[0].endswith("<Study s: 3 of 3 done>\n")


async def test_a_task_that_awaits_a_followed_study_can_be_cancelled(tmp_path: Path) -> None:
    first = study(tmp_path).start()
    with pytest.warns(RuntimeWarning, match="is driven by"):
        second = study(tmp_path).start()
    task = asyncio.ensure_future(asyncio.wait_for(second, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert first.is_running
    (tmp_path / "go").touch()
    await first


def test_a_second_study_object_of_the_same_process_follows_the_first(tmp_path: Path) -> None:
    first = study(tmp_path).start()
    second = followed(tmp_path)
    (tmp_path / "go").touch()
    assert second.result(30).counts["done"] == first.result(30).counts["done"] == 3
    assert len(calls(tmp_path)) == 3


def test_a_study_with_more_repeats_drives_the_rest_after_the_first_has_ended(tmp_path: Path) -> None:
    study(tmp_path).start()
    with pytest.warns(RuntimeWarning, match="is driven by"):
        more = study(tmp_path, repeats=5).start()
    (tmp_path / "go").touch()
    assert more.result(30).counts["done"] == 5
    assert len(calls(tmp_path)) == 5


def test_a_study_that_has_ended_elsewhere_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    late = study(tmp_path)
    study(tmp_path).start().result(20)
    late.start().result(20)
    assert len(Store(tmp_path / "runs.db").runs()) == 3
