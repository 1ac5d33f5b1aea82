"""A real JupyterLab for the tests, with nothing of the user's configuration in it.

It has no token, which is safe only because it listens on the loopback address.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from tests.kernels import RELEASES, kernel_command, kernel_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

START = 90.0  # seconds; a cold start on a busy machine with two cores took 16
STOP = 20.0

SETTINGS: dict[str, Any] = {
    # Neither of the two may use the network or open a dialog over the notebook.
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # Every cell is in the page, also cells outside the visible part.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


class PortTaken(Exception):
    """Another process has taken the port since it was found free."""


class JupyterServer:
    """One JupyterLab process with a kernelspec for each release; its notebooks live in `root`."""

    def __init__(self, folder: Path, releases: Mapping[str, str | None] = RELEASES) -> None:
        self._folder = folder
        self._releases = releases
        self.root = self._cwd = folder / "notebooks"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url: str

    def __enter__(self) -> Self:
        self.root.mkdir(exist_ok=True)
        self._write_kernelspecs()
        settings = self._folder / "config" / "labconfig" / "default_setting_overrides.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(SETTINGS))
        while True:
            self._start()
            try:
                self._await_start()
            except PortTaken:
                continue
            except BaseException:
                self.__exit__()
                raise
            return self

    def _start(self) -> None:
        self.url = f"http://127.0.0.1:{_free_port()}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self._cwd, env=self._environment(), stdout=log, stderr=subprocess.STDOUT
            )

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()  # the server ends its kernels first
        try:
            self._process.wait(STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP)

    def change_setting(self, plugin: str, values: Mapping[str, Any]) -> None:
        """Change a plugin's settings for pages that are opened from now on."""
        body = json.dumps({"raw": json.dumps(values)}).encode()
        headers = {"Content-Type": "application/json"}
        url = f"{self.url}/lab/api/settings/{plugin}"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=60):
            pass

    def log(self) -> str:
        """Return the log of the server and its kernels so far."""
        return self._log.read_text(errors="replace")

    def _command(self) -> list[str]:
        notebook_app = "--JupyterNotebookApp.expose_app_in_browser=True"
        return [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={self.root}", notebook_app, *self._options()]

    def _options(self) -> list[str]:
        """Return the environment of a server for tests."""
        port = self.url.rsplit(":", 1)[1]
        root_user = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        return [
            *("--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
            *("--IdentityProvider.token=", "--ServerApp.password=", "--expose-app-in-browser", *root_user),
            *("--ServerApp.disable_check_xsrf=True", "--ServerApp.terminals_enabled=False"),
        ]

    def _environment(self) -> dict[str, str]:
        folders = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
            "MPLCONFIGDIR": "matplotlib",
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER", "IPYTHON"))}
        return environment | {name: str(self._folder / path) for name, path in folders.items()}

    def _write_kernelspecs(self) -> None:
        for name in self._releases:
            folder = self._folder / "data" / "kernels" / name
            folder.mkdir(parents=True)
            spec = {
                "argv": kernel_command(),
                "env": kernel_environment(name, self._releases),
                "display_name": name,
                "language": "python",
            }
            (folder / "kernel.json").write_text(json.dumps(spec))

    def _await_start(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                if "is already in use" in self.log():
                    raise PortTaken
                raise RuntimeError(f"JupyterLab ended with code {self._process.returncode}:\n{self.log()}")
            try:
                with urllib.request.urlopen(f"{self.url}/api/status", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise RuntimeError(f"JupyterLab did not answer within {START:.0f} s:\n{self.log()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
