"""Warm servers: processes that have imported agentnb and fork a child for each line they are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Warm:
    """A module of the tests that serves on its standard input and output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *words: object) -> None:
        """Say a line to it."""
        print(*words, file=self._process.stdin, flush=True)

    def hear(self) -> str:
        """The next line it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@contextmanager
def warm(module: str) -> Iterator[Warm]:
    """Serve until the end of the block: starting Python for each child would take longer than everything else."""
    command, root = [sys.executable, "-m", module], Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            yield Warm(process)
        finally:
            process.kill()
