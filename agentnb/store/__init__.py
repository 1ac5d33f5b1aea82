"""Stores: the recordings of runs in one SQLite file, or in a PostgreSQL database that a lab shares."""

from agentnb.store.opening import is_address, planned_migrations
from agentnb.store.said import Found
from agentnb.store.salvage import salvage
from agentnb.store.search import RunInfo
from agentnb.store.sqlite import is_store
from agentnb.store.store import Store, open_stores

__all__ = ["Found", "RunInfo", "Store", "is_address", "is_store", "open_stores", "planned_migrations", "salvage"]
