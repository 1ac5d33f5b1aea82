from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from agentnb import Store
from tests.store.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store is to be: a file, or a database."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agentnb CASCADE")
    return server.url


@pytest.fixture
def open_store() -> Iterator[Callable[[str], Store]]:
    """Open stores that are closed when the test is over."""
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
