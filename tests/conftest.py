"""Settings of the tests as a whole."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator

import numpy  # noqa: F401 - hypothesis looks into it where it is there, and a panel's thread could be half-way through
import pytest
from hypothesis import HealthCheck, settings

from agentnb.run import headless

# Three test processes on two cores: how long an example takes says nothing here.
settings.register_profile("agentnb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agentnb")

# What a test needs beside Python is told by its fixtures; `.ci/test fast` leaves these out.
MARK_OF_FIXTURE = {
    "kernel": "kernel",
    "newest": "kernel",
    "kernel_name": "kernel",
    "browser": "browser",
    "page": "browser",
    "postgres": "postgres",
}

LONG_FILES = {
    "test_binder.py",
    "test_first_command.py",
    "test_first_notebook.py",
    "test_notebooks.py",
    "test_sigkill.py",
}
"""They make environments, run notebooks with a model, and kill kernels."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs every case of the tests that are sampled otherwise."""
    parser.addoption("--all-cases", action="store_true", help="run all cases of the tests marked `sampled`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, and keep one case in n of those marked `sampled(n)`.

    Of the cases that are run in both releases of ipykernel, the older release runs every second one.
    """
    for item in items:
        for fixture in MARK_OF_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARK_OF_FIXTURE[fixture])
        if "postgres" in item.name:  # a parameter of the fixture `place`
            item.add_marker("postgres")
    # Files that take minutes come first, then those that use a browser or a kernel. At the end quick ones are left, so
    # that no process works alone on a long one.
    slow = {item.path for item in items if item.get_closest_marker("browser") or item.get_closest_marker("kernel")}
    items.sort(key=lambda item: (item.path.name not in LONG_FILES, item.path not in slow))
    # A case that is named on the command line runs, sampled or not.
    if config.option.all_cases or any("[" in arg for arg in config.args):
        return
    left_out = []
    for item in items:
        sampled = item.get_closest_marker("sampled")
        one_in = sampled.args[0] if sampled is not None else 2 if "ipykernel6" in item.name else 1
        if zlib.crc32(item.nodeid.encode()) % one_in:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture
def some_of(pytestconfig: pytest.Config) -> Callable[[range], range]:
    """Take at most forty positions of a long run, evenly, and all of them with --all-cases."""

    def take(positions: range) -> range:
        return positions if pytestconfig.option.all_cases else positions[:: -(-len(positions) // 40) or 1]

    return take


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    """Forget who was there in a test: where a page has spoken or a shell had a prompt, a run waits for a person."""
    yield
    headless._has_page, headless._declared = False, None
    sys.__dict__.pop("ps1", None)
