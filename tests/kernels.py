"""The ipykernel releases that the tests run on, installed next to each other for one environment.

The newest release is that of the environment. Any other is installed alone into its own folder. A kernel process with
this folder first on its PYTHONPATH uses that release, and the other packages of the environment.

`AGENTNB_KERNELS=7.0.1,6.29.5` runs the kernel tests on other releases instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from traitlets.config import Config

REPOSITORY = Path(__file__).parents[1]
CACHE = Path(__file__).parent / ".cache"
RELEASES: dict[str, str | None] = {"ipykernel7": None, "ipykernel6": "6.31.0"}
if os.environ.get("AGENTNB_KERNELS"):
    RELEASES = {f"ipykernel-{release}": release for release in os.environ["AGENTNB_KERNELS"].split(",")}

_sockets = tempfile.TemporaryDirectory(prefix="agentnb-")  # a short path: that of a socket may have 107 characters
_numbers = count()


def without_ports() -> Config:
    """Return a configuration with which a kernel manager uses socket files, with different names for every kernel.

    With TCP, ports are chosen before the kernel binds them. Another test process that starts a kernel at this time
    sometimes gets one of the same ports.
    """
    return Config({"KernelManager": {"transport": "ipc", "ip": f"{_sockets.name}/{next(_numbers)}"}})


def kernel_environment(name: str, releases: Mapping[str, str | None] = RELEASES) -> dict[str, str]:
    """Return the environment variables with which a kernel process uses the release `name`, installed at first use."""
    release = releases[name]
    first = [str(_installed(release))] if release else []
    return {"PYTHONPATH": os.pathsep.join([*first, str(REPOSITORY)]), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def kernel_command(first: str = "") -> list[str]:
    """Return the command that starts a kernel, with the placeholder `{connection_file}`; code `first` is run before."""
    launch = ["-c", f"{first}; from ipykernel.kernelapp import launch_new_instance as launch; launch()"]
    return [sys.executable, *(launch if first else ["-m", "ipykernel_launcher"]), "-f", "{connection_file}"]


def _installed(release: str) -> Path:
    folder = CACHE / f"ipykernel-{release}"
    if folder.exists():
        return folder
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    staging = Path(tempfile.mkdtemp(dir=CACHE))
    arguments = ["install", "-q", "--no-deps", "--target", str(staging), f"ipykernel=={release}"]
    subprocess.run([*_installer(), *arguments], check=True, timeout=300)
    try:
        staging.rename(folder)
    except OSError:  # another test process was faster
        shutil.rmtree(staging)
    return folder


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    return ["uv", "pip"]
