"""Warm servers: processes that have imported agentnb and fork a child for each line that they receive."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Warm:
    """A module of the tests that is served over its standard input and output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *words: object) -> None:
        """Send a line to the server."""
        print(*words, file=self._process.stdin, flush=True)

    def hear(self) -> str:
        """Return the next line of the server."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@contextmanager
def warm(module: str) -> Iterator[Warm]:
    """Run the server until the end of the block. Starting Python for each child would take longer than all the rest."""
    command, root = [sys.executable, "-m", module], Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            yield Warm(process)
        finally:
            process.kill()
