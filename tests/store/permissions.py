"""Files that cannot be written, even if root runs the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def read_only(path: Path, *, folder_too: bool) -> Iterator[None]:
    """Within this context, no user may write this file or another one in its folder, which is an `open_folder`."""
    for file in path.parent.glob(f"{path.name}*"):  # a new store and its log can be read by their owner alone
        os.chmod(file, 0o444)
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
