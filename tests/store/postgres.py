"""A PostgreSQL server for the tests: in its own folder, on the loopback address; ends with the process that made it."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

WARDEN = 'cat; "$1" -D "$2/data" -m immediate stop; rm -rf "$2"'
"""Waits for the end of its input, which is the end of the process that started it."""


def _binary(name: str) -> str:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(debian[-1]) if debian else shutil.which(name)
    assert found is not None, "These tests need PostgreSQL: apt-get install postgresql"
    return found


def _somebody() -> dict[str, Any]:
    """Who a process belongs to: PostgreSQL does not run as root."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}


def _free_port() -> int:
    """Return a port that is not given to clients, so that it is still free when the server is restarted."""
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port")


class PostgresServer:
    """A server that listens on a free port of this machine; `url` is a database of it.

    Its folder is next to that of pytest, not inside it: every starting pytest, also one that a test starts, closes the
    folder of pytest to other users. A server that cannot access its files ends at its next checkpoint, some minutes
    later.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agentnb-postgres-"))
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        self.port = _free_port()
        self._warden = subprocess.Popen(
            ["sh", "-c", WARDEN, "sh", _binary("pg_ctl"), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            **_somebody(),
        )
        self._run("initdb", "-U", "agentnb", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.begin()

    @property
    def url(self) -> str:
        return f"postgresql://agentnb:secret@127.0.0.1:{self.port}/postgres"

    def begin(self) -> None:
        """Start the server, which does not run."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def halt(self) -> None:
        """End the server immediately, as a crash does. `begin` starts it again."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def restart(self) -> None:
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-m", "immediate", "restart")

    def stop(self) -> None:
        """End the server immediately, and remove its folder."""
        self._warden.communicate(timeout=60)

    def log(self) -> str:
        """Return the log of the server."""
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else "(nothing yet)"

    def _run(self, name: str, *arguments: str) -> None:
        command = [_binary(name), "-D", str(self.folder / "data"), *arguments]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, cwd="/", **_somebody()
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{self.log()}"
