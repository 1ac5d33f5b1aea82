"""Settings of the tests as a whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy  # noqa: F401 - hypothesis looks into it where it is there, and a panel's thread could be half-way through
import pytest
from hypothesis import HealthCheck, settings

from agentnb.run.approvals import headless

# Three test processes on two cores: how long an example takes says nothing here.
settings.register_profile("agentnb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agentnb")


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    """Forget who was there in a test: where a page has spoken or a shell had a prompt, a run waits for a person."""
    yield
    headless._page_has_spoken, headless._declared = False, None
    sys.__dict__.pop("ps1", None)
