"""Fixtures with a real kernel, which is started once for a module; every test leaves it clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernels import RELEASES
from tests.notebook.live_kernel import LiveKernel

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=list(RELEASES))
def kernel(request: pytest.FixtureRequest) -> Iterator[LiveKernel]:
    """Give a running kernel of each release."""
    with LiveKernel(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def newest() -> Iterator[LiveKernel]:
    """Return a running kernel of the newest release, for tests that do not depend on the release."""
    with LiveKernel(next(iter(RELEASES))) as running:
        yield running
