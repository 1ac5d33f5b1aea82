"""The database server of these tests runs until they have ended, and no longer; other processes write to it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import psycopg
import pytest

import agentnb
from agentnb import Store
from tests.store.postgres import PostgresServer
from tests.study.loops import asking
from tests.worlds import until


def test_the_server_continues_when_another_pytest_closes_the_common_folder(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    os.chmod(tmp_path_factory.getbasetemp(), 0o700)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


def test_the_log_contains_the_messages_of_a_restarted_server(postgres: PostgresServer) -> None:
    before = postgres.log().count("ready to accept connections")
    postgres.restart()
    assert postgres.log().count("ready to accept connections") == before + 1


MAKES_ONE_AND_IS_KILLED = """
import os, signal
from tests.store.postgres import PostgresServer
print(PostgresServer().folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_server_ends_with_its_killed_process_and_leaves_no_folder() -> None:
    # Standard error is closed by the last of its processes that ends.
    command = [sys.executable, "-c", MAKES_ONE_AND_IS_KILLED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not Path(done.stdout.strip()).exists(), done.stderr


async def test_the_workers_of_a_study_write_to_the_server(postgres: PostgresServer) -> None:
    pytest.importorskip("cloudpickle")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agentnb CASCADE")
    with closing(Store(postgres.url)) as store, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        study = agentnb.study(asking, ["go"], 5, store=store, executor=pool, progress=False).start()
        await until(lambda: len(study.pending) == 5)
        assert study.approve(study.pending) == 5
        await study
        assert [run.output for run in study] == ["a is done"] * 5
