"""The page's JavaScript and CSS, held once for all panels of a kernel.

A notebook that is saved with the state of its widgets has the state of each of them. If every panel had the whole
module, each would add 140 kB to the file. So a widget without a view holds the module, and a panel has a short one that
takes it from there.
"""

from __future__ import annotations

import threading
from typing import Any

import ipywidgets  # type: ignore[import-untyped]
import traitlets

from agentnb.widgets.bundle import packed_module

LOADER = """\
const load = async (text) => {
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  const panel = (await import(url)).default;
  URL.revokeObjectURL(url);
  return panel;
};
const panelOf = async (model) => {
  const held = await model.widget_manager.get_model(model.get("source").slice("IPY_MODEL_".length));
  return (held.agentnbPanel ??= load(held.get("module")));
};
export default {
  initialize: async (given) => (await panelOf(given.model)).initialize(given),
  render: async (given) => (await panelOf(given.model)).render(given),
};
"""
"""The module of a panel. It takes the whole one from the widget that `source` names, once on a page."""


class PageSource(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """The widget that holds the module, for the panels that are open."""

    module = traitlets.Unicode().tag(sync=True)

    def __init__(self) -> None:
        super().__init__(module=packed_module())

    def close(self) -> None:
        """Close the widget, and let nothing of the module stay in a notebook that is saved later."""
        self.module = ""
        super().close()


_lock = threading.Lock()
_current: PageSource | None = None
_users: set[str] = set()


def page_source(user: str) -> PageSource:
    """Return the widget that holds the module; it stays open until each user was released. `user` is a panel's key."""
    global _current
    with _lock:
        if _current is None or _current.comm is None:  # closed, also by Widget.close_all()
            _current = PageSource()
        _users.add(user)
        return _current


def release(user: str) -> None:
    """Close the widget if no other panel uses it."""
    global _current
    with _lock:
        _users.discard(user)
        if _users or _current is None:
            return
        unused, _current = _current, None
    unused.close()


def reference(source: Any, _: Any) -> str:
    """Return what the page gets as the name of a widget."""
    return "" if source is None else f"IPY_MODEL_{source.model_id}"
