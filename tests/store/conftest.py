from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import psycopg
import pytest

from agentnb import Store
from tests.store.postgres import PostgresServer

SERVER = pytest.StashKey[PostgresServer]()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    server = pytestconfig.stash[SERVER] = PostgresServer()
    yield server
    server.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the log of the server to the report of a failing test that uses it."""
    report = yield
    server = item.config.stash.get(SERVER, None)
    if report.failed and server is not None and item.get_closest_marker("postgres"):
        report.sections.append(("PostgreSQL's log, its end", server.log()[-5000:]))
    return report


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place for an empty store: a file, or a database."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agentnb CASCADE")
    return server.url


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can access. Each pytest closes the folder that contains `tmp_path` to other users."""
    with tempfile.TemporaryDirectory(prefix="agentnb-store-") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


@pytest.fixture
def open_store() -> Iterator[Callable[[str], Store]]:
    """Open stores, and close them at the end of the test."""
    opened: list[Store] = []

    def open(place: str) -> Store:
        opened.append(Store(place))
        return opened[-1]

    yield open
    for store in opened:
        store.close()


@pytest.fixture
def store(place: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(place)
