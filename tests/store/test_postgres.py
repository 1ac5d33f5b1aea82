"""The database of these tests stays until they are over, and no longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.store.postgres import PostgresServer


def test_the_server_lives_on_where_another_pytest_closes_the_folder_of_all(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    os.chmod(tmp_path_factory.getbasetemp(), 0o700)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


def test_what_the_server_says_after_it_was_restarted_is_in_its_log_too(postgres: PostgresServer) -> None:
    before = postgres.log().count("ready to accept connections")
    postgres.restart()
    assert postgres.log().count("ready to accept connections") == before + 1


MAKES_ONE_AND_IS_KILLED = """
import os, signal
from tests.store.postgres import PostgresServer
print(PostgresServer().folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_server_ends_with_a_process_that_is_killed_and_leaves_no_folder() -> None:
    # Standard error is closed by the last of its processes that ends.
    command = [sys.executable, "-c", MAKES_ONE_AND_IS_KILLED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not Path(done.stdout.strip()).exists(), done.stderr
