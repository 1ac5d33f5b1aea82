"""Stores: where journals live."""

from agentnb.store.sqlite import RunInfo, Store

__all__ = ["RunInfo", "Store"]
