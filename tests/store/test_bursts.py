"""Commits that a run makes faster than SQLite takes them: each on disk, in one order for everybody."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from agentnb import RunFailed, SessionLoop, Store, restore, tool
from agentnb.core.errors import RecordingCorrupt, StorageError, StoreConflict, VersionMismatch
from agentnb.store import bursts, salvage
from agentnb.store.redo_log import redo_log_of
from agentnb.store.schema import STORE_VERSION
from agentnb.testing import ScriptedLLM, call
from tests.store.permissions import NOBODY, read_only

COMMITS = 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


# -- a run whose model and tools never wait --------------------------------------------------------------------------


def calling(look: Callable[[int], object], *, calls: int = 10) -> SessionLoop:
    """A session that makes a call in each turn; the tool looks around, and does not let anybody else have a turn."""

    @tool
    async def count(number: int) -> int:
        look(number)
        return number

    turns: list[Any] = [[call("count", {"number": number})] for number in range(calls)]
    return SessionLoop(ScriptedLLM([*turns, "done"]), [count])


def in_sqlite(path: Path) -> int:
    """How many events the file itself has, for somebody who knows nothing of agentnb."""
    with closing(sqlite3.connect(path)) as other:
        return int(other.execute("SELECT count(*) FROM events").fetchone()[0])


async def test_when_a_run_rests_all_of_it_is_in_sqlite_and_nothing_beside_it(path: Path) -> None:
    beside = []
    with closing(Store(path)) as store:
        run = calling(lambda number: beside.append(redo_log_of(path).exists())).start("go", store=store)
        await run
        assert beside.count(True) > 5, "the run is to be one whose commits come in bursts"
        assert not redo_log_of(path).exists()
        assert in_sqlite(path) == len(run.events)


LOOKS: dict[str, Callable[[Store], int]] = {
    "the same store": lambda store: store.runs()[0].events,
    "another store of this process": lambda store: _position_elsewhere(store.path),
    "another process": lambda store: int(
        subprocess.check_output([sys.executable, "-c", ELSEWHERE, store.path], text=True, timeout=60)
    ),
}
ELSEWHERE = "import sys, agentnb; print(agentnb.Store(sys.argv[1]).runs()[0].events)"


def _position_elsewhere(path: Path) -> int:
    with closing(Store(path)) as other:
        return other.runs()[0].events


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_who_looks_meanwhile_sees_every_event_up_to_the_call_that_runs(
    path: Path, look: Callable[[Store], int]
) -> None:
    seen: list[tuple[int, int]] = []
    with closing(Store(path)) as store:
        run = calling(lambda number: number % 4 == 3 and seen.append((look(store), len(run.events)))).start(
            "go", store=store
        )
        await run
        assert seen
        assert all(there == position for there, position in seen)
        assert store.load(run.id).events == tuple(run.events)


async def test_a_run_that_somebody_takes_over_in_a_burst_goes_on_no_further(path: Path) -> None:
    ran = []

    def take_over(number: int) -> None:
        ran.append(number)
        if number == 5:
            restore(other.load(run.id), calling(ran.append), store=other).steer("I go on with it.")

    with closing(Store(path)) as store, closing(Store(path)) as other:
        run = calling(take_over).start("go", store=store)
        with pytest.raises(RunFailed, match="another process goes on with it"):
            await run
        assert ran == [0, 1, 2, 3, 4, 5]
        assert store.load(run.id).events[-1].type == "queued"


def die(number: int) -> None:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_has_committed_is_there(path: Path) -> None:
    script = f"""
from agentnb import Store
from tests.store.test_bursts import calling, die
calling(die).start("go", name="killed", store=Store({str(path)!r})).result()
"""
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert redo_log_of(path).exists()
    with closing(Store(path)) as store:
        newest = store.load("killed").events[-1]
        assert (newest.type, newest.arguments) == ("call_start", {"number": 7})  # type: ignore[attr-defined]
        assert not redo_log_of(path).exists()
    assert in_sqlite(path) == newest.seq + 1


# -- commit by commit ------------------------------------------------------------------------------------------------


def body(seq: int, writer: str = "A", size: int = 0) -> bytes:
    return b'{"type":"call_end","call_id":"%s%d","result":"%s"}' % (writer.encode(), seq, b"x" * size)


def commit(recorder: Any, first: int, *, events: int = 2, going_on: bool = True, **of: Any) -> int:
    """Commit events from this position on; gives the position behind them."""
    for seq in range(first, first + events):
        recorder.record(seq, body(seq, **of))
    recorder.flush(going_on=going_on)
    return first + events


def write_and_die(path: str) -> None:
    """In a process of its own: leave a burst beside a store."""
    recorder = Store(path).record_run("one", "one", "SessionLoop", [])
    at = 0
    for _ in range(COMMITS):
        at = commit(recorder, at)
    os._exit(0)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("left")
    script = f"from tests.store.test_bursts import write_and_die; write_and_die({str(folder / 'runs.db')!r})"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    return folder


@pytest.fixture
def left(left_behind: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(left_behind, tmp_path / "left"), "runs.db")


def ids(store: Store) -> list[str]:
    return [event.call_id for event in store.events("one")]  # type: ignore[attr-defined]


def test_a_burst_begins_with_the_second_commit_of_a_turn_and_ends_with_the_turn(path: Path) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        there = []
        at = 0
        for going_on in (True, True, True, False, True):
            at = commit(recorder, at, going_on=going_on)
            there.append(redo_log_of(path).exists())
        assert there == [False, True, True, False, False]


def test_a_turn_that_ends_with_nothing_to_write_ends_its_burst_too(path: Path) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        commit(recorder, commit(recorder, 0))
        recorder.flush()
        assert (redo_log_of(path).exists(), in_sqlite(path)) == (False, 4)
        commit(recorder, 4)
        assert not redo_log_of(path).exists(), "the first commit of a turn"


def test_a_store_that_is_closed_leaves_nothing_beside_it(path: Path) -> None:
    store = Store(path)
    recorder = store.record_run("one", None, "SessionLoop", [])
    commit(recorder, commit(recorder, 0))
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]
    assert in_sqlite(path) == 4


def test_two_runs_that_take_turns_lose_nothing(path: Path) -> None:
    with closing(Store(path)) as store:
        one, two = (store.record_run(id, None, "SessionLoop", []) for id in ("one", "two"))
        at = 0
        for _ in range(5):
            for _ in range(3):
                commit(one, at)
                at = commit(two, at, writer="B")
        assert (store.position("one"), store.position("two")) == (30, 30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_process_that_is_forked_in_a_burst_adds_nothing_to_it(path: Path) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        at = commit(recorder, commit(recorder, 0))
        before = redo_log_of(path).read_bytes()
        log: Any = store._database._bursts._log  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads
            child = os.fork()
        if child == 0:
            os._exit(int(log.add(at, [body(at)])))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert redo_log_of(path).read_bytes() == before
        commit(recorder, at, going_on=False)
        assert ids(store) == [f"A{seq}" for seq in range(6)]


def test_who_is_interrupted_before_a_commit_is_noted_commits_it_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        at = commit(recorder, commit(recorder, 0))
        log: Any = store._database._bursts._log  # type: ignore[attr-defined]
        add = log.add

        def interrupted(*what: Any) -> bool:
            add(*what)
            raise KeyboardInterrupt

        monkeypatch.setattr(log, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            commit(recorder, at)
        monkeypatch.undo()
        commit(recorder, at + 2)
        with closing(Store(path)) as other:
            assert ids(other) == [f"A{seq}" for seq in range(8)]


def test_who_is_interrupted_while_a_commit_is_noted_commits_it_once(path: Path) -> None:
    class Interrupted(list[Any]):
        def __iadd__(self, more: Any) -> Any:  # type: ignore[misc]
            self.extend(more)
            raise KeyboardInterrupt

    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        at = commit(recorder, commit(recorder, 0))
        bursts: Any = store._database._bursts  # type: ignore[attr-defined]
        bursts._rows = Interrupted(bursts._rows)
        with pytest.raises(KeyboardInterrupt):
            commit(recorder, at)
        commit(recorder, at + 2)
        assert ids(store) == [f"A{seq}" for seq in range(8)]


@pytest.mark.parametrize("going_on", [True, False], ids=["in a turn", "at its end"])
def test_whichever_function_of_a_commit_is_interrupted_as_it_begins_the_next_one_has_it_all(
    path: Path, going_on: bool
) -> None:
    """Python raises what a signal asks for where a function begins."""
    with closing(Store(path)) as store, closing(Store(path)) as other:
        recorder = store.record_run("one", None, "SessionLoop", [])
        at = entered = 0
        reached = True
        while reached:
            at = commit(recorder, commit(recorder, at))
            entered, reached = entered + 1, False
            left = entered

            def interrupt(frame: Any, event: str, arg: object) -> None:
                nonlocal left, reached
                if "/agentnb/store/" in frame.f_code.co_filename:
                    left -= 1
                    if left == 0:
                        reached = True
                        raise KeyboardInterrupt

            recorder.record(at, body(at))
            before = sys.gettrace()
            sys.settrace(interrupt)
            try:
                recorder.flush(going_on=going_on)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            at = commit(recorder, at + 1, going_on=False)
            assert other.position("one") == at, f"interrupted in the function {entered}"
        assert entered > 3


def test_who_is_interrupted_while_a_log_is_let_go_writes_to_no_other_file(path: Path) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        at = commit(recorder, commit(recorder, 0))
        log: Any = store._database._bursts._log  # type: ignore[attr-defined]
        close = log.close

        def interrupted() -> None:
            close()
            raise KeyboardInterrupt

        log.close = interrupted
        with pytest.raises(KeyboardInterrupt):
            store.runs()
        with path.with_name("another.txt").open("wb") as another:
            assert another.fileno() == log._file, "the number is to be another file's"
            commit(recorder, at)
        assert path.with_name("another.txt").read_bytes() == b""
        assert ids(store) == [f"A{seq}" for seq in range(6)]


AT_EXIT = """
import atexit, sys
from pathlib import Path
def at_exit():
    with open(sys.argv[1] + ".txt", "wb", buffering=0):
        commit(recorder, 4)
atexit.register(at_exit)  # before agentnb is there, and so behind whatever that has registered
from agentnb import Store
from tests.store.test_bursts import commit
recorder = Store(sys.argv[1]).record_run("one", None, "SessionLoop", [])
commit(recorder, commit(recorder, 0))
"""


def test_a_run_that_goes_on_while_its_process_ends_writes_to_no_other_file(path: Path) -> None:
    subprocess.run([sys.executable, "-c", AT_EXIT, path], check=True, timeout=60)
    assert Path(f"{path}.txt").read_bytes() == b""
    with closing(Store(path)) as store:
        assert ids(store) == [f"A{seq}" for seq in range(6)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_process_that_is_forked_in_a_burst_takes_its_log_away_from_nobody(path: Path) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        at = commit(recorder, commit(recorder, 0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads
            child = os.fork()
        if child == 0:
            recorder.flush()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        commit(recorder, at)
        seen = subprocess.check_output([sys.executable, "-c", ELSEWHERE, path], text=True, timeout=60)
        assert int(seen) == 6


def test_a_store_that_was_opened_by_a_relative_path_has_bursts_wherever_the_process_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with closing(Store("runs.db")) as store:
        monkeypatch.chdir("/")
        recorder = store.record_run("one", None, "SessionLoop", [])
        commit(recorder, commit(recorder, 0))
        assert redo_log_of(path).exists()


def test_a_log_is_open_to_those_to_whom_the_store_is_and_at_no_moment_to_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(path).close()
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    first = []
    monkeypatch.setattr(os, "fchmod", lambda file, mode: first.append(os.fstat(file).st_mode & 0o777))
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        commit(recorder, commit(recorder, 0))
        log, file = redo_log_of(path).stat(), path.stat()
    assert first == [0o600]
    assert (log.st_uid, log.st_gid) == (file.st_uid, file.st_gid)


def test_whose_log_was_taken_in_looks_into_that_of_somebody_else(path: Path) -> None:
    with closing(Store(path)) as store, closing(Store(path)) as other:
        recorder = store.record_run("one", None, "SessionLoop", [])
        commit(recorder, commit(recorder, 0))
        another = other.record_run("two", None, "SessionLoop", [])
        commit(another, commit(another, 0))
        assert redo_log_of(path).exists()
        assert store._database.query("SELECT count(*) FROM events") == [(8,)]


def test_a_store_that_is_deleted_in_a_burst_can_still_be_read_by_who_has_it_open(path: Path) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("one", None, "SessionLoop", [])
        commit(recorder, commit(recorder, 0))
        path.unlink()
        with pytest.raises(StorageError, match="moved, deleted or replaced"):
            recorder.flush()
        assert store.export(path.with_name("kept.jsonl")) == 4


def test_a_run_whose_log_is_deleted_is_not_joined_to_what_somebody_else_has_made_of_it(path: Path) -> None:
    with closing(Store(path)) as store, closing(Store(path)) as other:
        recorder = store.record_run("one", None, "SessionLoop", [])
        at = commit(recorder, commit(recorder, commit(recorder, 0)))
        redo_log_of(path).unlink()
        commit(other.record_run("one", None, "SessionLoop", other.events("one")), 2, writer="B", going_on=False)
        with pytest.raises(StoreConflict):
            commit(recorder, at, going_on=False)
        assert ids(other) == ["A0", "A1", "B2", "B3"]


class TwoProcesses(RuleBasedStateMachine):
    """Two that write one run, look at it, take it over from each other, and die: each event is there once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "runs.db")
        self.stores: dict[str, Store] = {}
        self.recorders: dict[str, tuple[Any, int]] = {}
        self.written: list[str] = []

    @initialize()
    def open_both(self) -> None:
        for who in "AB":
            self.stores[who] = Store(self.path)
        self.take_over("A")

    @rule(who=st.sampled_from("AB"))
    def take_over(self, who: str) -> None:
        there = self.stores[who].events("one")
        self.recorders[who] = self.stores[who].record_run("one", None, "SessionLoop", there), len(there)

    @rule(who=st.sampled_from("AB"), events=st.integers(1, 3), going_on=st.booleans(), times=st.integers(1, 4))
    def commit(self, who: str, events: int, going_on: bool, times: int) -> None:
        for _ in range(times):
            if who not in self.recorders:
                return
            recorder, at = self.recorders.pop(who)
            if at < len(self.written):  # the other one has gone on with it
                with pytest.raises(StoreConflict):
                    commit(recorder, at, events=events, going_on=going_on, writer=who)
                return
            self.recorders[who] = recorder, commit(recorder, at, events=events, going_on=going_on, writer=who)
            self.written += [f"{who}{seq}" for seq in range(at, at + events)]

    @rule(who=st.sampled_from("AB"))
    def look(self, who: str) -> None:
        assert ids(self.stores[who]) == self.written

    @rule(who=st.sampled_from("AB"))
    def write_something_else(self, who: str) -> None:
        self.stores[who].record_run("two", None, "SessionLoop", [])

    @rule(who=st.sampled_from("AB"))
    def die(self, who: str) -> None:
        self.stores[who]._database._disconnect()  # type: ignore[attr-defined]
        self.recorders.pop(who, None)
        self.stores[who] = Store(self.path)

    @rule(who=st.sampled_from("AB"))
    def close_and_open(self, who: str) -> None:
        self.stores[who].close()
        self.recorders.pop(who, None)
        self.stores[who] = Store(self.path)

    def teardown(self) -> None:
        for store in self.stores.values():
            assert ids(store) == self.written
            store.close()
        self.folder.cleanup()


TwoProcesses.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTwoProcesses = TwoProcesses.TestCase


# -- what was left behind --------------------------------------------------------------------------------------------


EVERYTHING = [f"A{seq}" for seq in range(2 * COMMITS)]


def test_what_was_left_behind_is_taken_in_by_whoever_looks(left: Path) -> None:
    assert redo_log_of(left).exists()
    with closing(Store(left)) as store:
        assert ids(store) == EVERYTHING
    assert not redo_log_of(left).exists()


class Unremovable(type(Path())):  # type: ignore[misc]
    """A file whose reader is killed when it would remove it."""

    def unlink(self, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt


def test_a_process_that_dies_while_it_takes_that_in_loses_nothing(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "redo_log_of", lambda path: Unremovable(redo_log_of(path)))
    with pytest.raises(KeyboardInterrupt):
        Store(left)
    monkeypatch.undo()
    with closing(Store(left)) as store:
        assert ids(store) == EVERYTHING


def test_it_is_read_where_nothing_may_be_written(left_behind: Path, open_folder: Path) -> None:
    for file in left_behind.iterdir():
        shutil.copy(file, open_folder)
    with read_only(open_folder / "runs.db", folder_too=True):
        with closing(Store(open_folder / "runs.db")) as store:
            assert ids(store) == EVERYTHING
        assert redo_log_of(open_folder / "runs.db").exists()


def test_who_may_not_write_and_has_the_store_open_reads_it_too(left_behind: Path, open_folder: Path) -> None:
    for file in left_behind.iterdir():
        if file.name != "runs.db-redo":
            shutil.copy(file, open_folder)
            (open_folder / file.name).chmod(0o444)
    path = open_folder / "runs.db"
    away = redo_log_of(path).with_name("away")
    shutil.copy(redo_log_of(left_behind / "runs.db"), away)
    with read_only(path, folder_too=False), closing(Store(path)) as store:
        assert ids(store) == EVERYTHING[:2]
        away.rename(redo_log_of(path))
        assert ids(store) == EVERYTHING


def test_it_is_salvaged(left: Path, tmp_path: Path) -> None:
    said = salvage(left, tmp_path / "saved.db")
    assert said == [f"one: {2 * COMMITS} events"]
    with closing(Store(tmp_path / "saved.db")) as saved:
        assert ids(saved) == EVERYTHING


def test_what_another_store_has_left_is_none_of_this_one(left: Path, path: Path) -> None:
    shutil.copy(redo_log_of(left), redo_log_of(path))
    with closing(Store(path)) as store:
        recorder = store.record_run("another", None, "SessionLoop", [])
        commit(recorder, 0, writer="B")
        assert store.position("another") == 2
    assert not redo_log_of(path).exists()


def test_a_store_that_was_replaced_leaves_alone_what_is_beside_the_new_one(left: Path, path: Path) -> None:
    with closing(Store(path)) as store:
        recorder = store.record_run("old", "old", "SessionLoop", [])
        commit(recorder, 0)
        in_sqlite(left)  # which ends its log
        for file in path.parent.glob("runs.db*"):
            file.unlink()
        for file in (left, redo_log_of(left)):
            file.replace(path.with_name(file.name))
        with pytest.raises(StorageError, match="it is not the file any more that was opened"):
            commit(recorder, 2)
        assert [info.name for info in store.runs()] == ["old"]
    with closing(Store(path)) as new:
        assert ids(new) == EVERYTHING


def test_a_burst_can_be_read_where_the_store_was_deleted_meanwhile(path: Path) -> None:
    with closing(Store(path)) as store:
        commit(store.record_run("one", None, "SessionLoop", []), 0)
        recorder = store.record_run("one", None, "SessionLoop", store.events("one"))
        commit(recorder, commit(recorder, 2))
        path.unlink()
        assert ids(store) == [f"A{seq}" for seq in range(6)]


def test_what_has_lost_its_beginning_in_a_power_cut_leaves_no_gap(left: Path) -> None:
    with closing(sqlite3.connect(left)) as raw, raw:
        raw.execute("DELETE FROM events WHERE key % 4294967296 > 0")
    raw.close()
    with closing(Store(left)) as store:
        assert ids(store) == ["A0"]


def test_it_is_not_joined_to_another_history_of_its_run(left: Path) -> None:
    beside = redo_log_of(left).read_bytes()
    redo_log_of(left).unlink()
    with closing(Store(left)) as store:
        commit(store.record_run("one", None, "SessionLoop", store.events("one")), 2, writer="B", going_on=False)
    redo_log_of(left).write_bytes(beside)
    with pytest.raises(RecordingCorrupt, match=r"runs\.db-redo beside it has other events of the run one"):
        Store(left)
    salvage(left, left.with_name("saved.db"))
    with closing(Store(left.with_name("saved.db"))) as saved:
        assert ids(saved) == ["A0", "A1", "B2", "B3"]


def test_of_a_store_of_a_newer_agentnb_it_stays_as_it_is(left: Path) -> None:
    with closing(sqlite3.connect(left)) as raw:
        raw.execute(f"PRAGMA user_version={STORE_VERSION + 1}")
    beside = redo_log_of(left).read_bytes()
    with pytest.raises(VersionMismatch):
        Store(left)
    assert redo_log_of(left).read_bytes() == beside


def test_one_of_which_nothing_can_be_read_is_told(left: Path) -> None:
    redo_log_of(left).write_bytes(bytes(1000))
    with pytest.warns(RuntimeWarning, match="the last few events of a run may be missing"):
        Store(left).close()


def test_one_that_may_not_be_removed_is_no_obstacle(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OfSomebodyElse(type(Path())):  # type: ignore[misc]
        def unlink(self, missing_ok: bool = False) -> None:
            raise PermissionError

    monkeypatch.setattr(bursts, "redo_log_of", lambda path: OfSomebodyElse(redo_log_of(path)))
    with closing(Store(left)) as store:
        commit(store.record_run("one", None, "SessionLoop", store.events("one")), 2 * COMMITS)
        assert ids(store) == [f"A{seq}" for seq in range(2 * COMMITS + 2)]


def test_what_cannot_be_read_is_told(left: Path) -> None:
    redo_log_of(left).unlink()
    redo_log_of(left).mkdir()
    with pytest.raises(StorageError, match=r"runs\.db-redo beside it, .* Is a directory"):
        Store(left)


def cut(left: Path, length: int) -> list[str]:
    os.truncate(redo_log_of(left), length)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with closing(Store(left)) as store:
            return ids(store)


def test_wherever_it_was_cut_off_whole_commits_are_left(left: Path, left_behind: Path) -> None:
    found = []
    for length in range(redo_log_of(left).stat().st_size + 1):
        shutil.copytree(left_behind, left.parent, dirs_exist_ok=True)
        found.append(cut(left, length))
    assert all(some == EVERYTHING[: len(some)] and len(some) % 2 == 0 for some in found)
    assert found == sorted(found, key=len)
    assert found[-1] == EVERYTHING


def changed(left: Path, left_behind: Path) -> Iterator[int]:
    whole = redo_log_of(left).read_bytes()
    for at in range(len(whole)):
        shutil.copytree(left_behind, left.parent, dirs_exist_ok=True)
        redo_log_of(left).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        yield at


def test_wherever_a_byte_was_changed_it_is_told(left: Path, left_behind: Path) -> None:
    for at in changed(left, left_behind):
        with warnings.catch_warnings(record=True) as warned, suppress(RecordingCorrupt):
            warnings.simplefilter("always")
            with closing(Store(left)) as store:
                assert ids(store) == EVERYTHING or "not whole" in str(warned[0].message), at


def test_wherever_a_byte_was_changed_all_but_one_commit_is_salvaged(left: Path, left_behind: Path) -> None:
    for at in changed(left, left_behind):
        if at % 7:
            continue
        salvage(left, left.with_name(f"saved{at}.db"))
        assert in_sqlite(left.with_name(f"saved{at}.db")) >= 2 * COMMITS - 2
