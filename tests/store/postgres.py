"""A PostgreSQL server of the tests' own: made in a folder, reached over loopback, gone when it is stopped."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.store.permissions import passable


def _binary(name: str) -> str:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(debian[-1]) if debian else shutil.which(name)
    assert found is not None, "These tests need PostgreSQL: apt-get install postgresql"
    return found


def _as_somebody(command: list[str]) -> list[str]:
    """PostgreSQL does not run as root."""
    return ["runuser", "-u", "postgres", "--", *command] if os.getuid() == 0 else command


def _free_port() -> int:
    """A port that no client of anybody's is given, so that it is still free where the server is started again."""
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port")


class PostgresServer:
    """A server that listens on a free port of this machine; `url` is a database of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self.folder.mkdir()
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.port = _free_port()
        self._run("initdb", "-U", "agentnb", "-A", "trust", "-E", "UTF8", "--no-sync", "-D", str(self.folder))
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "-D", str(self.folder), "-w", "-l", str(self.folder / "log"), "-o", options, "start")
        self._pid = self._read_pid()

    @property
    def url(self) -> str:
        return f"postgresql://agentnb:secret@127.0.0.1:{self.port}/postgres"

    def restart(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder), "-w", "-m", "immediate", "restart")
        self._pid = self._read_pid()

    def stop(self) -> None:
        """End it at once; by its process, because another run of pytest may have cleared its folder away.

        A server that has found its folder gone, for which it looks once a minute, has ended already.
        """
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGQUIT)

    def _read_pid(self) -> int:
        return int((self.folder / "postmaster.pid").read_text().split()[0])

    def _run(self, name: str, *arguments: str) -> None:
        if os.getuid() == 0:  # each time: another run of pytest closes the folder that all have in common
            passable(self.folder)
        command = _as_somebody([_binary(name), *arguments])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60, cwd="/")
