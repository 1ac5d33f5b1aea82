"""The recorded run that the tests of the analysis read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.analysis.recordings import decided_run


@pytest.fixture(scope="module")
def run() -> Any:
    return asyncio.run(decided_run())
