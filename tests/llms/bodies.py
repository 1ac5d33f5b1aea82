"""Keeps the body of every request that the tests send, and validates all of them at the end of a session.

Each process appends to a file of its own in the folder that the environment variable AGENTNB_BODIES names; without it,
the folder is a temporary one. At the end the first process validates the files by the types of the official clients
(see `validate`), and the session fails if a body is invalid. A test that sends an invalid body on purpose is marked
`@pytest.mark.other_body("why")`: its bodies are counted, and the reason is in the files. With `fields=[...]`, its
bodies are validated without these fields.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentnb.llms.transport import Exchange, Transport

FOLDER = "AGENTNB_BODIES"


class Bodies:
    """The plugin of pytest. There is one in each process."""

    def __init__(self, config: pytest.Config) -> None:
        self._worker = getattr(config, "workerinput", {}).get("workerid", "")
        self._temporary = FOLDER not in os.environ  # the workers inherit the variable
        if self._temporary:
            os.environ[FOLDER] = tempfile.mkdtemp(prefix="agentnb-bodies-")
        folder = Path(os.environ[FOLDER])
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / f"bodies-{self._worker or 'main'}.jsonl"
        self._seen: set[int] = set()
        self._test = ""
        self._marker: Mapping[str, Any] = {}
        self._invalid: list[str] = []
        self._counts = ""
        opened = Transport.open

        async def open_(transport: Transport, body: bytes, **options: Any) -> Exchange:
            self._keep(transport.path, body)
            return await opened(transport, body, **options)

        Transport.open = open_  # type: ignore[method-assign, assignment]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker("other_body")
        self._test = item.nodeid
        self._marker = {"why": marker.args[0], **marker.kwargs} if marker is not None else {}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._worker:
            return
        from tests.llms import validate

        with warnings.catch_warnings(action="ignore"):  # some types allow other fields, whatever the configuration is
            results = validate.validated(validate.read(self._folder))
        self._invalid = [f"{body.test}\n  {body.path} {problem}" for body, problem in results.invalid]
        self._counts = str(results) if results.valid or results.invalid else ""
        if self._invalid and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)
            del os.environ[FOLDER]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._counts:
            terminalreporter.line(f"bodies of requests: {self._counts}")
        if self._invalid:
            terminalreporter.section("bodies that the official clients would not send", red=True)
            terminalreporter.line("\n".join(self._invalid))

    def _keep(self, path: str, body: bytes) -> None:
        if (key := hash((self._test, body))) not in self._seen:
            self._seen.add(key)
            line = {"test": self._test, "path": path, "body": json.loads(body), **self._marker}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
