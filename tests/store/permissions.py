"""Files that really may not be written, also where the tests are run by root, whom nothing stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def read_only(path: Path, *, folder_too: bool) -> Iterator[None]:
    """While in here, nobody may write this file, and nothing beside it either; it lies in an `open_folder`."""
    os.chmod(path, 0o444)
    os.chmod(path.parent, 0o555 if folder_too else 0o777)
    root = os.geteuid() == 0
    if root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)
        os.chmod(path.parent, 0o777)
        os.chmod(path, 0o644)
