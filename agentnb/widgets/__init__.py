"""The panel of a run in a notebook, its parts, and what a saved notebook shows of it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentnb.widgets.clicks import FORKS, SNAPSHOTS
    from agentnb.widgets.comms import COMM_IDS
    from agentnb.widgets.frozen.panel import static_html
    from agentnb.widgets.parts import (
        Approvals,
        CallGraph,
        Controls,
        EventStream,
        Messages,
        Progress,
        StateDiagram,
        Timeline,
        Usage,
    )
    from agentnb.widgets.presenting import panel, present
    from agentnb.widgets.widget import PARTS, Panel

__all__ = [
    "COMM_IDS",
    "FORKS",
    "PARTS",
    "SNAPSHOTS",
    "Approvals",
    "CallGraph",
    "Controls",
    "EventStream",
    "Messages",
    "Panel",
    "Progress",
    "StateDiagram",
    "Timeline",
    "Usage",
    "panel",
    "present",
    "static_html",
]

_WHERE = {
    "clicks": ("FORKS", "SNAPSHOTS"),
    "comms": ("COMM_IDS",),
    "frozen.panel": ("static_html",),
    "parts": (
        "Approvals",
        "CallGraph",
        "Controls",
        "EventStream",
        "Messages",
        "Progress",
        "StateDiagram",
        "Timeline",
        "Usage",
    ),
    "presenting": ("panel", "present"),
    "widget": ("PARTS", "Panel"),
}
_WHEN_ASKED_FOR = {name: module for module, names in _WHERE.items() for name in names}
"""A table of events needs the words of the views in here, and neither ipywidgets nor IPython."""


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_WHEN_ASKED_FOR[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
