from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import stamina

from tests.llms.aimock import AIMock, running_aimock
from tests.llms.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def environment_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def no_waits() -> Iterator[None]:
    """Retry without waiting; the waits have their own tests."""
    with stamina.set_testing(True, attempts=4):
        yield


@pytest.fixture(scope="session")
def aimock() -> Iterator[AIMock]:
    with running_aimock() as aimock:
        yield aimock
