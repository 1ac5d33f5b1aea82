"""Studies in workers: the same runs as in one process, with the questions in the notebook.

Each kind of executor is started once. What does not depend on the kind is tested with a pool.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cloudpickle")

import agentnb
from agentnb import SessionLoop, Store, UsageError, tool
from agentnb.core.errors import AlreadyDecided, InvalidArguments, WorkersLost
from agentnb.core.events import ApprovalDecision, ApprovalRequest, RunStart
from agentnb.llms import OpenAI
from agentnb.store.postgres import without_password
from agentnb.studies import Study, executors
from agentnb.testing import ScriptedLLM, call
from tests.study.killed import killed_study, lines_in, working_study
from tests.study.loops import asking, from_a_file, seeded, talking
from tests.widgets.study_pages import RecordedStudyPanel
from tests.worlds import until

pytestmark = pytest.mark.slow
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        yield pool


@pytest.fixture(scope="module")
def dask() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 4, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    patience = {"distributed.comm.timeouts.connect": "120s", "distributed.comm.timeouts.tcp": "120s"}
    patient = pytest.importorskip("dask").config.set(patience)
    with patient, distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def engines() -> Iterator[Any]:
    ipyparallel = pytest.importorskip("ipyparallel")
    with ipyparallel.Cluster(n=2, log_level=50, engine_timeout=180) as client:
        yield client


@pytest.fixture(params=["pool", "dask", "engines"])
def executor(request: pytest.FixtureRequest) -> Any:
    """A cluster of two workers, of each kind."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs.db")


def study(make_loop: Any, repeats: int = 1, **options: Any) -> Study:
    return agentnb.study(make_loop, ["go"], repeats, progress=False, **options)


async def waiting_for(study: Study, calls: int) -> None:
    await until(lambda: len(study.pending) == calls)


# --- the same as in one process ---------------------------------------------------------------------------------------


async def test_equal_seeds_give_equal_tables(executor: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    tables = []
    for name, where in [("here", None), ("there", executor)]:
        options: Any = {"seed": 7, "store": Store(tmp_path / name), "executor": where, "approve": True}
        done = await study(seeded, 5, arms={"model": ["a", "b"]}, **options)
        table = agentnb.analysis.runs(done)
        tables.append(table.drop(columns=["id", "time", "began", "seconds", "waited", "away"]))
    assert tables[0].equals(tables[1])
    assert len(set(tables[0]["output"])) > 2


async def test_answers_from_a_file_are_the_same_in_workers_and_here(pool: Executor, tmp_path: Path) -> None:
    path = str(tmp_path / "answers.sqlite")
    outputs = []
    for name, where in [("there", pool), ("here", None), ("there again", pool)]:
        done = await study(from_a_file, 4, arms={"path": [path]}, store=Store(tmp_path / name), executor=where)
        outputs.append([run.output for run in done])
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(set(outputs[0])) == 4


async def test_the_options_of_runs_are_those_of_the_study(pool: Executor, store: Store) -> None:
    arms = {"model": ["a"], "options": {"cold": {"temperature": 0}, "warm": {"temperature": 1}}}
    options: Any = {"options": {"seed": 7}, "data": {"dose": 5}, "tags": ["pilot"], "limits": {"turns": 9}}
    done = await study(talking, arms=arms, store=store, executor=pool, **options)
    for run in done:
        assert run.recording is not None
        start = run.recording.events[0]
        assert isinstance(start, RunStart)
        assert start.model_options == {"seed": 7, "temperature": int(run.arm["options"] == "warm")}
        assert (start.data["dose"], start.limits, "pilot" in start.tags) == (5, {"turns": 9}, True)


async def test_runs_that_pause_at_a_limit_can_be_resumed(pool: Executor, store: Store) -> None:
    options: Any = {"approve": True, "limits": {"turns": 1}, "on_limit": "ask"}
    made = study(asking, 3, store=store, executor=pool, **options).start()
    await until(lambda: sum(one.is_paused for one in made) == 3)
    assert made.counts["paused"] == 3
    assert made.resume() == 3
    assert (await made).counts["done"] == 3
    assert made.resume() == 0


async def test_a_worker_does_not_lift_the_pause_of_a_run_that_it_continues(pool: Executor, store: Store) -> None:
    options: Any = {"store": store, "approve": True, "limits": {"turns": 1}, "on_limit": "ask"}
    first = study(asking, 3, **options).start()
    await until(lambda: sum(one.is_paused for one in first) == 3)
    for one in first:
        assert one.run is not None
        one.run.abandon("the kernel is restarted")
    await first
    again = study(asking, 3, executor=pool, **options).start()
    await until(lambda: sum(one.is_paused for one in again) == 3)
    assert set(agentnb.analysis.runs(store).turns) == {1}
    assert again.resume() == 3
    assert (await again).counts["done"] == 3


async def test_functions_of_the_notebook_are_sent(pool: Executor, store: Store) -> None:
    here = os.getpid()

    @tool
    def where() -> int:
        """Say in which process this runs."""
        return os.getpid()

    model = ScriptedLLM([[call("where")], "done"])
    done = await study(lambda: SessionLoop(model, [where]), 4, store=store, executor=pool)
    assert done.counts["done"] == 4
    recordings = [run.recording for run in done]
    said = {message.content for one in recordings if one for message in one.state.messages if message.role == "tool"}
    assert said
    assert str(here) not in said


async def test_a_failed_run_is_a_row_and_not_the_end(pool: Executor, store: Store) -> None:
    def make_loop(model: str) -> SessionLoop:
        return SessionLoop(ScriptedLLM(["fine"] if model == "good" else [ConnectionError("no route")]), [])

    done = await study(make_loop, 2, arms={"model": ["good", "bad"]}, store=store, executor=pool)
    assert done.counts["done"] == done.counts["failed"] == 2
    assert {run.error for run in done if run.arm["model"] == "bad"} == {"ConnectionError: no route"}
    again = await study(make_loop, 3, arms={"model": ["good", "bad"]}, store=store, executor=pool)
    assert again.counts["done"] == 3
    assert {run.id for run in again} >= {run.id for run in done if run.arm["model"] == "good"}


async def test_a_study_is_cancelled_as_one_and_continues_later(pool: Executor, store: Store) -> None:
    made = study(asking, 6, at_once=2, store=store, executor=pool).start()
    await waiting_for(made, 6)
    assert made.cancel("lunch")
    await made
    assert made.counts["cancelled"] == 6

    again = study(asking, 6, store=store, executor=pool).start()
    await waiting_for(again, 6)
    again.approve(again.pending)
    await again
    assert {run.output for run in again} == {"a is done"}


# --- questions --------------------------------------------------------------------------------------------------------


async def test_questions_of_all_workers_are_decided_here(executor: Any, store: Store) -> None:
    made = study(asking, 3, arms={"model": ["a", "b"]}, store=store, executor=executor).start()
    await waiting_for(made, 6)
    assert {(made.run_of(item).arm["model"], item.arguments["to"]) for item in made.pending} == {("a", "a"), ("b", "b")}
    assert made.counts["waiting"] == 6
    first = made.pending[0]
    assert first.schema["properties"] == {"to": {"type": "string"}}

    assert made.approve(item for item in made.pending if item.arguments["to"] == "a") == 3
    assert len(made.pending) == 3
    with pytest.raises(AlreadyDecided):
        made.approve(first)
    assert made.reject(made.pending[0], "not this one") == 1
    second, third = made.pending
    with pytest.raises(InvalidArguments):
        made.edit(second, {"to": 5})
    made.edit(second, {"to": "c"}, reviewer="Ada")
    made.answer(third, {"sent": "before"})
    await made
    with pytest.raises(AlreadyDecided):
        made.approve(first)
    recordings = [run.recording for run in made]
    results = sorted(
        message.content for one in recordings if one for message in one.state.messages if message.role == "tool"
    )
    assert results == [
        "Rejected: not this one",
        "sent to a",
        "sent to a",
        "sent to a",
        "sent to c",
        '{"sent":"before"}',
    ]
    decisions = [event for one in recordings if one for event in one.events if isinstance(event, ApprovalDecision)]
    assert {event.by for event in decisions} == {"code"}
    assert [event.reviewer for event in decisions if event.decision == "edit"] == ["Ada"]


async def test_a_question_arrives_soon(pool: Executor, store: Store) -> None:
    made = study(asking, 30, at_once=2, store=store, executor=pool).start()
    arrived: dict[str, float] = {}

    def note() -> bool:
        for item in made.pending:
            arrived.setdefault(item.run_id, time.time())
        return len(arrived) == 30

    await until(note)
    made.approve(made.pending)
    await made
    waited = sorted(arrived[id] - asked_at(store, id) for id in arrived)
    assert waited[int(len(waited) * 0.95)] < 1.0  # measured: 10 ms; `until` looks every few milliseconds


def asked_at(store: Store, id: str) -> float:
    return next(event.time for event in store.events(id) if isinstance(event, ApprovalRequest))


async def test_a_policy_decides_in_the_worker_and_its_deadline_holds(pool: Executor, store: Store) -> None:
    def policy(proposed: Any) -> Any:
        return True if proposed.arguments["to"] == "a" else {"decision": "ask", "deadline": 0.3}

    made = study(asking, arms={"model": ["a", "b"]}, store=store, executor=pool, approve=policy)
    done = await made
    results = {run.arm["model"]: run.recording.state.messages[-2].content for run in done if run.recording}
    assert results["a"] == "sent to a"
    assert "ejected" in results["b"]
    assert done.pending == []


async def test_the_buttons_of_the_inbox_decide_in_the_workers(pool: Executor, store: Store) -> None:
    def policy(proposed: Any) -> Any:
        return {"decision": "ask", "deadline": 0.5} if proposed.arguments["to"] == "late" else None

    options: Any = {"store": store, "executor": pool, "approve": policy}
    made = study(asking, 2, arms={"model": ["a", "b", "c", "late"]}, **options).start()
    panel = RecordedStudyPanel(made, parts=["inbox"])
    await until(lambda: sum("late" not in question["path"] for question in panel.pending) == 6)
    asked = {question["path"]: question for question in panel.pending}

    edited = verdict(asked["b 0"], decision="edit", arguments='{"to": "d"}', kept=[])
    bad = verdict(asked["b 1"], decision="edit", arguments='{"to": 5}', kept=[])
    at_once = [edited, bad, verdict(asked["a 0"]), verdict(asked["a 1"], decision="reject", reason="not this")]
    answered = await pressed(panel, decisions=at_once)
    assert answered["late"] == []
    assert list(answered["failed"]) == ["1"]  # and the worker says why
    assert "to" in answered["failed"]["1"]
    assert (await pressed(panel, **verdict(asked["b 1"], decision="answer", result='{"sent": "before"}')))["ok"]
    assert (await pressed(panel, **verdict(asked["c 0"], remember="study arguments")))["ok"]
    too_late = await pressed(panel, **verdict(asked["a 0"]))
    assert "is already decided: a person approved it at" in too_late["error"]
    await made  # nobody decides about the two that are late: their deadline passes
    await until(lambda: len(panel.decisions["recent"]) == 8)
    assert {(one["path"], one["words"]) for one in panel.decisions["recent"]} >= {
        ("a 1", "rejected by a person"),
        ("b 0", "edited and approved by a person"),
        ("c 1", "approved by a rule of the study, for every call with these arguments"),
        ("late 0", "rejected by the deadline"),
    }
    panel.close()

    found: dict[str, tuple[str, str]] = {}
    for run in made:
        assert run.recording is not None
        decided = next(event for event in run.recording.events if isinstance(event, ApprovalDecision))
        found[f"{run.arm['model']} {run.repeat}"] = (decided.by, run.recording.state.messages[-2].content)
        if decided.by == "human":
            assert (decided.seconds, decided.shown) == (2.5, asked[f"{run.arm['model']} {run.repeat}"]["digest"])
    assert found.pop("late 0") == found.pop("late 1") == ("deadline", "Rejected: no answer by the deadline")
    assert found == {
        "a 0": ("human", "sent to a"),
        "a 1": ("human", "Rejected: not this"),
        "b 0": ("human", "sent to d"),
        "b 1": ("human", '{"sent":"before"}'),
        "c 0": ("human", "sent to c"),
        "c 1": ("remembered", "sent to c"),
    }


def verdict(question: dict[str, Any], **values: Any) -> dict[str, Any]:
    identity = {name: question[name] for name in ("run", "path", "event", "id", "attempt", "digest")}
    return {**identity, "decision": "approve", "seconds": 2.5, **values}


async def pressed(panel: RecordedStudyPanel, **message: Any) -> dict[str, Any]:
    """Send the message of a button, as the thread of a kernel receives it, and return the answer."""
    await asyncio.to_thread(panel._receive, panel, {"type": "decision", "token": "t", **message}, [])
    found: dict[str, Any] = {}
    while not panel.outbox.empty():
        found = next((one for _, one in panel.outbox.get() if isinstance(one, dict) and one.get("token") == "t"), found)
    return found


async def test_without_a_person_the_declared_policy_decides_once_a_caller_waits(pool: Executor, store: Store) -> None:
    agentnb.headless("approve", after=0.01)
    made = study(asking, 3, store=store, executor=pool).start()
    await waiting_for(made, 3)
    await made
    assert {run.output for run in made} == {"a is done"}


# --- workers that die -------------------------------------------------------------------------------------------------


async def test_a_pool_is_replaced_if_a_process_is_killed(tmp_path: Path) -> None:
    warned = pytest.warns(RuntimeWarning, match="The study continues in a new pool of the same size")
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool, warned:
        await killed_study(tmp_path, pool, kills=1)


class Other(ProcessPoolExecutor):
    """A pool of which agentnb does not know how to make another one."""


async def test_a_pool_that_cannot_be_replaced_ends_the_study_with_what_to_do(store: Store) -> None:
    here = os.getpid()

    @tool
    async def crash() -> None:
        """End the process."""
        if os.getpid() != here:
            os._exit(1)

    def make_loop() -> SessionLoop:
        return SessionLoop(ScriptedLLM([call("crash")], repeat=True), [crash])

    with Other(1, mp_context=SPAWN) as pool:
        made = study(make_loop, store=store, executor=pool, limits={"turns": 1}).start()
        with pytest.raises(WorkersLost, match=r"A process of the Other has died.*with the same name and store"):
            await made
    assert made.counts["interrupted"] == 1
    again = study(make_loop, store=store, limits={"turns": 1}).start()
    await waiting_for(again, 1)
    assert again.pending[0].unknown  # whether it happened is for a person to say
    again.answer(again.pending[0], "it has")
    await again
    assert again.counts["done"] == 1


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "at its end"])
async def test_a_study_continues_after_its_own_process_has_gone(is_killed: bool, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    run_until(30, tmp_path, is_killed)
    workers = {pid for pid, _ in lines_in(lines)}
    await until(lambda: not any(is_alive(pid) for pid in workers))  # they end by themselves
    finished = {run.id for run in working_study(tmp_path, None) if run.status == "done"}
    study = await killed_study(tmp_path, None, kills=0)
    assert finished <= {run.id for run in study}


async def test_the_runs_of_a_dask_worker_go_on_if_it_is_killed(dask: Any, tmp_path: Path) -> None:
    await killed_study(tmp_path, dask, kills=1)


async def test_the_runs_of_an_engine_go_on_if_it_is_killed(engines: Any, tmp_path: Path) -> None:
    await killed_study(tmp_path, engines, kills=1)


def run_until(lines: int, folder: Path, is_killed: bool) -> None:
    """Let a process drive a study until its workers have written so many lines. Then it ends, or is killed."""
    limit = "1000000" if is_killed else str(lines)
    with subprocess.Popen([sys.executable, "-m", "tests.study.killed", str(folder), limit]) as process:
        patience = time.monotonic() + 60
        while len(lines_in(folder / "lines")) < lines and time.monotonic() < patience:
            time.sleep(0.002)
        if is_killed:
            process.kill()
        process.wait(60)


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().split()[2] != "Z"
    except OSError:
        return False


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_sent_is_named(pool: Executor, store: Store) -> None:
    lock = threading.Lock()

    @tool
    def locked() -> None:
        """Wait for a lock."""
        with lock:
            pass

    tools = [locked]
    model = ScriptedLLM(["x"])
    model.lock = lock  # type: ignore[attr-defined]
    options: Any = {"store": store, "executor": pool}
    with pytest.raises(UsageError, match=r"\(<lambda>\), its variable tools.*the tool 'locked'.*variable lock \("):
        study(lambda: SessionLoop(ScriptedLLM(["x"]), tools), **options)
    with pytest.raises(UsageError, match=r"variable model \(the model .*its attribute lock \(.*Make it inside"):
        study(lambda: SessionLoop(model, []), **options)
    with pytest.raises(UsageError, match=r"arms\['llm'\], 'one'.*attribute lock"):
        study(lambda llm: SessionLoop(llm, []), arms={"llm": {"one": model}}, **options)
    with pytest.raises(UsageError, match=r"approve=.*lock"):
        study(talking, approve=lambda call: lock.locked(), **options)
    with pytest.raises(UsageError, match=r"variable store.*A store cannot be copied or pickled"):
        study(lambda: talking(store.where), **options)
    assert store.runs() == []


KEY = "a-key-that-stays-here"
WITH_KEYS: dict[str, Any] = {
    "headers=": {"headers": {"X-Api-Key": KEY}},
    "base_url=": {"base_url": f"http://me:{KEY}@server.example/v1"},
    "extra_body=": {"extra_body": {"upstream": {"token": KEY}}},
    "tools=": {"api": "responses", "tools": [{"type": "mcp", "authorization": KEY}]},
}


@pytest.mark.parametrize("argument", WITH_KEYS)
def test_a_model_with_a_key_in_its_arguments_is_refused_before_a_run_starts(
    pool: Executor, store: Store, argument: str
) -> None:
    llm = OpenAI("m", **{"base_url": "http://server.example/v1"} | WITH_KEYS[argument])
    with pytest.raises(
        UsageError, match=rf"variable llm.*{argument} has a key.*Set an environment variable"
    ) as refused:
        study(lambda: SessionLoop(llm, []), store=store, executor=pool)
    assert KEY not in str(refused.value)
    assert store.runs() == []


def test_a_key_of_a_variable_that_a_part_of_the_study_has_is_refused(
    pool: Executor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_API_KEY", KEY)
    key = os.environ["LAB_API_KEY"]
    with pytest.raises(UsageError, match=r"make_loop \(<lambda>\) has the key in .* LAB_API_KEY") as refused:
        study(lambda: SessionLoop(OpenAI("m", headers={"X-Lab": key})), store=store, executor=pool)
    assert KEY not in str(refused.value)


async def test_workers_read_their_own_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = OpenAI("m", "http://127.0.0.1:1/v1", api_key_env="LAB_API_KEY", max_retries=0)
    monkeypatch.setenv("LAB_API_KEY", "a key that\nno header can have")  # the error shows which process has read it
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        pool.submit(os.getpid).result()  # the worker has the variable from here on
        monkeypatch.delenv("LAB_API_KEY")
        done = await study(lambda: SessionLoop(llm, []), store=store, executor=pool)
    assert "LAB_API_KEY holds characters" in str(done.runs[0].error)


def test_the_password_of_a_database_is_not_sent_to_workers() -> None:
    address = "postgresql://me:a-password@server.example:5432/lab?connect_timeout=5&sslpassword=another"
    shown = without_password(address, keep_query=True)
    assert shown == "postgresql://me@server.example:5432/lab?connect_timeout=5"


async def test_a_store_that_workers_cannot_open_is_refused(pool: Executor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="executor= needs a store, which keeps"):
        study(talking, executor=pool)
    with pytest.raises(UsageError, match=r":memory: is in the memory of this process.*Store\(\"runs.db\"\)"):
        study(talking, executor=pool, store=Store(":memory:"))
    (tmp_path / "gone").mkdir()
    store = Store(tmp_path / "gone" / "runs.db")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(UsageError, match=r"runs.db was deleted after it was opened"):
        study(talking, executor=pool, store=store)


def test_an_executor_without_processes_of_its_own_is_refused(store: Store) -> None:
    with ThreadPoolExecutor() as threads, pytest.raises(UsageError, match="processes, not threads"):
        study(talking, store=store, executor=threads)
    forking = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with pytest.raises(UsageError, match=r"forked.*get_context\(\"spawn\"\)"):
        study(talking, store=store, executor=forking)
    with pytest.raises(UsageError, match=r"executor= takes a .*ProcessPoolExecutor.*, not 4"):
        study(talking, store=store, executor=4)


class Elsewhere(Executor):
    """A worker with other versions than this process: it answers what it is told to."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.answers.pop(0))
        return future


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ([("3.9.1", "0.1.0", "far")], r"has Python 3\.9\.1, and this process"),
        (
            [(".".join(map(str, sys.version_info[:3])), "0.0.1", "far")],
            r"has agentnb 0\.0\.1.*Install agentnb-toolkit==",
        ),
        ([(".".join(map(str, sys.version_info[:3])), None, "far")], "has no agentnb"),
    ],
)
def test_a_worker_of_another_version_is_refused(answers: Any, named: str, store: Store) -> None:
    with pytest.raises(UsageError, match=named):
        study(talking, store=store, executor=Elsewhere(*answers))
    assert store.runs() == []


def test_a_worker_that_cannot_make_the_loops_is_refused(pool: Executor, store: Store) -> None:
    here = os.getpid()

    def make_loop(model: str) -> SessionLoop:
        if model == "local" and os.getpid() != here:
            raise ModuleNotFoundError("No module named 'weights'")
        return talking()

    arms = {"model": ["remote", "local"]}
    with pytest.raises(UsageError, match=r"cannot make the loops.*arm model=local: Module.*'weights'.*Install what"):
        study(make_loop, arms=arms, store=store, executor=pool)
    assert store.runs() == []


@pytest.mark.sampled(1000)  # a worker takes seconds to start
def test_a_dask_worker_with_another_agentnb_is_refused(dask: Any, store: Store, tmp_path: Path) -> None:
    (tmp_path / "agentnb").mkdir()
    (tmp_path / "agentnb" / "__init__.py").write_text('__version__ = "0.0.1"')
    worker = [sys.executable, "-m", "dask", "worker", dask.scheduler.address, "--no-dashboard", "--no-nanny"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(worker, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as other:
        dask.wait_for_workers(3, timeout=60)
        with pytest.raises(UsageError, match=r"has agentnb 0\.0\.1, and this process .*Install agentnb-toolkit=="):
            study(talking, store=store, executor=dask)
        other.kill()
    assert store.runs() == []
    patience = time.monotonic() + 60
    while len(dask.scheduler_info()["workers"]) > 2 and time.monotonic() < patience:
        time.sleep(0.01)


def test_a_dask_cluster_is_found_by_its_address(dask: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert study(talking, 3, store=store, executor=dask.scheduler.address).result(60).counts["done"] == 3
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        nobody = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"No Dask scheduler answers at {nobody} .*Start it: dask scheduler"):
            study(talking, name="other", store=store, executor=nobody)
        other.listen()  # and does not answer
        with pytest.raises(UsageError, match=f"No Dask scheduler answers at {nobody} "):
            study(talking, name="other", store=store, executor=nobody)
    with pytest.raises(UsageError, match=r"No Dask scheduler.*unknown address scheme 'postgresql'"):
        study(talking, name="other", store=store, executor="postgresql://server")


def test_a_cluster_that_is_not_there_is_refused(dask: Any, engines: Any, store: Store) -> None:
    import distributed
    import ipyparallel

    closed = distributed.Client(dask.scheduler.address)
    closed.close()
    with pytest.raises(UsageError, match=r"Dask client is not connected to its scheduler.*status: closed"):
        study(talking, store=store, executor=closed)
    other = ipyparallel.Client(cluster_id=engines.cluster.cluster_id)
    other.close()
    with pytest.raises(UsageError, match="The ipyparallel client is closed"):
        study(talking, store=store, executor=other)
    with pytest.raises(UsageError, match=r"a Dask client \(distributed.Client\).*not LocalCluster"):
        study(talking, store=store, executor=dask.cluster)


async def test_a_pool_that_is_closed_is_refused(store: Store) -> None:
    closed = ProcessPoolExecutor(1, mp_context=SPAWN)
    closed.shutdown()
    with pytest.raises(UsageError, match="cannot be used: RuntimeError: cannot schedule new futures after shutdown"):
        study(talking, store=store, executor=closed)
