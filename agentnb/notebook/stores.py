"""The known stores: the open stores and the stores in the working directory.

After a restart of the kernel, no variable refers to a store, so the files are searched.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from agentnb.core.errors import RecordingMissing, StorageError, UsageError
from agentnb.run.validation import check_path
from agentnb.store import RunInfo, Store, is_address, is_store, open_stores
from agentnb.store.postgres import without_password

PATTERN = "*.db"


class Found(NamedTuple):
    """The stores that can be read, and an error message for each store that cannot be read."""

    stores: list[Store]
    unreadable: list[str]


def stores(store: Store | str | Path | None = None) -> list[Store]:
    """Return the given store, or else all readable stores that are open or in the working directory (`*.db`).

    store: a store, its path or its address. Raises RecordingMissing if the file does not exist, UsageError if it is not
    a store.
    """
    return find_stores(store).stores


def find_stores(store: Store | str | Path | None = None) -> Found:
    """Return the stores as `stores` does, with the errors of the unreadable ones. A damaged store hides no others."""
    if isinstance(store, Store):
        return Found([store], [])
    if store is not None:
        return Found([_opened(store)], [])
    found = Found([], [])
    known = {_location(each): each for each in open_stores() if is_address(each.where) or each.path.exists()}
    here = {path.resolve(): path for path in sorted(Path().glob(PATTERN)) if is_store(path)}
    for location in dict.fromkeys([*known, *here]):
        try:
            each = known.get(location) or Store(here[Path(location)])
            each.names()
        except StorageError as error:
            found.unreadable.append(str(error))
        else:
            found.stores.append(each)
    return found


def _location(store: Store) -> Path | str:
    return store.where if is_address(store.where) else store.path.resolve()


def _opened(given: str | Path) -> Store:
    """Return the store at a path or an address. If it is already open, return the open one. Raises as `stores` does."""
    if is_address(given):
        shown = without_password(given)
        return next((found for found in open_stores() if found.where == shown), None) or Store(given)
    check_path("store=, unless it is a Store,", given)
    path = Path(given)
    if not path.exists():
        raise RecordingMissing(f"There is no store {path}; stores here: {_listed()}.")
    if not is_store(path):
        raise UsageError(f"{path} is not a store of agentnb; stores here: {_listed()}.")
    open_already = (found for found in open_stores() if _location(found) == path.resolve())
    return next(open_already, None) or Store(path)


def _listed() -> str:
    here = Path.cwd()
    found = (each.where if is_address(each.where) or each.path.parent == here else each.path for each in stores())
    return ", ".join(map(str, found)) or "none"


def find_run(name: str, among: Found) -> tuple[Store, RunInfo]:
    """Return the newest run with this name or id, and its store.

    Raises RecordingMissing if no run has this name or id; the message lists the runs.
    """
    found = [(store, info) for store in among.stores for info in store.runs() if name in (info.name, info.id)]
    if not found:
        known = list(dict.fromkeys(info.name or info.id for store in among.stores for info in store.runs()))
        searched = ", ".join(store.where for store in among.stores)
        where = f" in {searched}" if searched else ": no store is open, and there is no store here (*.db)"
        message = f"There is no run {name!r}{where}. Runs: {', '.join(known[:20]) or 'none'}."
        raise RecordingMissing(" ".join([message, *among.unreadable]))
    return max(found, key=lambda one: one[1].created)
