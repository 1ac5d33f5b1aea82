"""The Binder: the Dockerfile that repo2docker generates from `binder/`, and the same steps without Docker.

If a folder `binder/` exists, repo2docker reads no file at the repository's root, not even `pyproject.toml`. So the
Python version and every package must be named in `binder/`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
LEFT_BEHIND = shutil.ignore_patterns(
    ".*", "tests", "__pycache__", "*.db*", "*.agentnb.json", "reports", "build", "dist"
)
MINUTES = 60
NOTEBOOKS = ("01_first_loop.ipynb", "05_reading_runs.ipynb")
"""The notebooks that use most packages. `test_notebooks.py` runs all of them."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files from which a Binder is built."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("binder") / "src", ignore=LEFT_BEHIND))


@pytest.fixture(scope="module")
def dockerfile(repository: Path) -> str:
    """Return the Dockerfile that repo2docker generates."""
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", str(repository)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * MINUTES, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_image_has_the_tested_python_version(dockerfile: str) -> None:
    assert "Building conda environment for python=3.11" in dockerfile
    assert (ROOT / "binder" / "runtime.txt").read_text().strip() == "python-3.11"


def test_the_repository_is_copied_before_it_is_installed(dockerfile: str) -> None:
    install = dockerfile.index('-r "binder/requirements.txt"')
    assert re.search(r"^COPY --chown=\S+ src/ \$\{REPO_DIR\}", dockerfile[:install], flags=re.MULTILINE)


def test_the_model_is_installed_last(dockerfile: str) -> None:
    assert "chmod +x binder/postBuild" in dockerfile
    assert "RUN ./binder/postBuild" in dockerfile
    assert dockerfile.index("RUN ./binder/postBuild") > dockerfile.index('-r "binder/requirements.txt"')


@pytest.mark.slow
def test_the_installed_packages_run_the_notebooks_with_the_model(repository: Path, tmp_path: Path) -> None:
    """The steps of the Dockerfile above, in an isolated environment."""
    venv = tmp_path / "venv"
    clean = {"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)}
    clean |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "HTTP"))}

    def run(*command: str, folder: Path = repository) -> str:
        done = subprocess.run(
            command, cwd=folder, env=clean, capture_output=True, text=True, timeout=5 * MINUTES, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(*what: str) -> None:
        """Install with uv, which takes seconds, or with pip, where only pip has been told which index to use."""
        command = [str(BIN / "uv"), "pip", "install", "-q", "--python", str(venv / "bin" / "python"), *what]
        given = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        if (BIN / "uv").exists():
            done = subprocess.run(command, cwd=repository, env=given, timeout=5 * MINUTES, check=False)
            if done.returncode == 0:
                return
        run("python", "-m", "pip", "install", "-q", "--no-cache-dir", *what)

    run(sys.executable, "-m", "venv", str(venv))
    install("-r", "binder/requirements.txt")
    run("./binder/postBuild")
    for name in NOTEBOOKS:
        run("jupyter", "execute", name, folder=repository / "notebooks")
    assert (repository / "notebooks" / "reports" / "nile.md").exists()
    assert run("voila", "--version").strip()
    assert "SmolLM2" in run("python", "-c", "from agentnb.llms import Local; print(Local().model)")
