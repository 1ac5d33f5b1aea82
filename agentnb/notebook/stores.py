"""Which stores there are: those that are open, and those that lie in the working directory.

After a restart of the kernel no variable names a store any more, so the files themselves are found.
"""

from __future__ import annotations

from pathlib import Path

from agentnb.core.errors import RecordingMissing, UsageError
from agentnb.run.given import check_path
from agentnb.store import RunInfo, Store, is_store, open_stores

PATTERN = "*.db"


def stores(store: Store | str | Path | None = None) -> list[Store]:
    """The one that is given, as a store or a path; otherwise all that are open or lie here as `*.db`.

    Raises RecordingMissing where the given file is not there, UsageError where it is no store.
    """
    if isinstance(store, Store):
        return [store]
    if store is not None:
        check_path("What is no store itself", store)
        return [_opened(Path(store))]
    known = {found.path.resolve(): found for found in open_stores() if found.path.exists()}
    for path in sorted(Path().glob(PATTERN)):
        if path.resolve() not in known and is_store(path):
            known[path.resolve()] = Store(path)
    return list(known.values())


def _opened(path: Path) -> Store:
    if not path.exists():
        raise RecordingMissing(f"There is no store {path}; stores here: {_listed()}.")
    if not is_store(path):
        raise UsageError(f"{path} is no store of agentnb's; stores here: {_listed()}.")
    open_already = (found for found in open_stores() if found.path.resolve() == path.resolve())
    return next(open_already, None) or Store(path)


def _listed() -> str:
    return ", ".join(str(found.path) for found in stores()) or "none"


def find(name: str, among: list[Store]) -> tuple[Store, RunInfo]:
    """The newest run of that name or id. Raises RecordingMissing and says which there are."""
    found = [(store, info) for store in among for info in store.runs() if name in (info.name, info.id)]
    if not found:
        known = list(dict.fromkeys(info.name or info.id for store in among for info in store.runs()))
        places = ", ".join(str(store.path) for store in among) or "no store: none is open, and none lies here as *.db"
        raise RecordingMissing(f"There is no run {name!r} in {places}. Runs: {', '.join(known[:20]) or 'none'}.")
    return max(found, key=lambda one: one[1].created)
