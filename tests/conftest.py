"""Settings of all tests: marks, the order of the files, sampling."""

from __future__ import annotations

import gc
import sys
import zlib
from collections.abc import Callable, Iterator

import numpy  # noqa: F401 - hypothesis uses numpy if it is imported, and a thread could still be importing it
import pytest
from hypothesis import HealthCheck, settings

from agentnb.run import headless
from tests.llms.bodies import Bodies

# No deadline: with three test processes on two cores, the duration of an example has no meaning.
settings.register_profile("agentnb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agentnb")

# Fixtures that need more than Python, and the marks of the tests that use them; `.ci/test fast` leaves these tests out.
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
"""Files that take minutes: they create environments, run notebooks with a model, and kill kernels."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs every case of the tests that are sampled otherwise."""
    parser.addoption("--all-cases", action="store_true", help="run all cases of the tests marked `sampled`")


def pytest_configure(config: pytest.Config) -> None:
    """Keep and validate the bodies of all requests to models."""
    config.pluginmanager.register(Bodies(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures and parameters, sort them, and keep one case in n of those marked `sampled(n)`.

    Of the tests that run on both releases of ipykernel, every fourth case runs on the older release.
    """
    for item in items:
        for fixture in MARK_OF_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARK_OF_FIXTURE[fixture])
        if "postgres" in text_parameters(item):  # a parameter of the fixture `place`
            item.add_marker("postgres")
    # Files that take minutes run first, then files that use a browser or a kernel. The quick files run last, so that no
    # process is left alone with a long one.
    slow = {item.path for item in items if item.get_closest_marker("browser") or item.get_closest_marker("kernel")}
    items.sort(key=lambda item: (item.path.name not in LONG_FILES, item.path not in slow))
    # A case that is named on the command line always runs.
    if config.option.all_cases or any("[" in arg for arg in config.args):
        return
    left_out = []
    for item in items:
        sampled = item.get_closest_marker("sampled")
        one_in = sampled.args[0] if sampled is not None else 4 if "ipykernel6" in text_parameters(item) else 1
        if zlib.crc32(item.nodeid.encode()) % one_in:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave the ten thousand tests themselves out of all later garbage collections: each took half a second of CPU."""
    gc.collect()
    gc.freeze()


def text_parameters(item: pytest.Item) -> set[str]:
    """Return the parameters of a test and of its fixtures that are strings."""
    callspec = getattr(item, "callspec", None)
    return {value for value in callspec.params.values() if isinstance(value, str)} if callspec is not None else set()


@pytest.fixture
def some_of(pytestconfig: pytest.Config) -> Callable[[range], range]:
    """Return a function that selects at most forty evenly spaced positions, and all positions with --all-cases."""

    def take(positions: range) -> range:
        return positions if pytestconfig.option.all_cases else positions[:: -(-len(positions) // 40) or 1]

    return take


@pytest.fixture(autouse=True)
def _reset_attendance() -> Iterator[None]:
    """Reset, after each test, what makes a run wait for a person: a message from a page, a declaration, a prompt."""
    yield
    headless._has_page, headless._declared = False, None
    sys.__dict__.pop("ps1", None)
