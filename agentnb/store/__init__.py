"""Stores: where journals live."""

from agentnb.store.sqlite import RunInfo, Store, is_store, open_stores

__all__ = ["RunInfo", "Store", "is_store", "open_stores"]
