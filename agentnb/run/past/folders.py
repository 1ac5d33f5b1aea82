"""Folders of recordings: the files in a folder, or those that match a pattern, and the recordings in each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentnb.core.errors import AgentnbError, RecordingMissing
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.validation import expanded


def files_of(path: Path) -> list[Path] | None:
    """Return the files in a folder, or those that match a pattern such as `logs/*.json`, in order of their names.

    None if the path is neither. Hidden files are left out, and folders in a folder are not read. Raises
    RecordingMissing if no file matches.
    """
    path = expanded(path)
    if path.is_dir():
        found = [file for file in path.iterdir() if file.is_file()]
    elif any(sign in str(path) for sign in "*?[") and not path.exists():
        root = Path(path.anchor) if path.anchor else Path()
        found = [file for file in root.glob(str(path.relative_to(root))) if file.is_file()]
    else:
        return None
    files = sorted(file for file in found if not file.name.startswith("."))
    if not files:
        raise RecordingMissing(f"There are no files in {path} (looked for from {Path.cwd()}).{advice_about(path)}")
    return files


def advice_about(path: Path) -> str:
    """Return how to read the files in the folders of a folder, to be added to an error; empty for a pattern."""
    return f" The pattern {path / '**' / '*'} finds the files in its folders, too." if path.is_dir() else ""


def snapshots_in(files: Sequence[Path]) -> Iterator[tuple[Path, list[Snapshot]]]:
    """Yield each file with its recordings. A file that cannot be read is left out, with a RuntimeWarning."""
    for file in files:
        try:
            yield file, Snapshot.load_all(file)
        except AgentnbError as error:  # one file must not hide the others
            why = str(error).removeprefix(f"{file}: ").replace(f"{file} ", "it ", 1)
            warnings.warn(f"{file} is left out: {why}", RuntimeWarning, stacklevel=2)
