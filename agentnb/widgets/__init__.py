"""The panel of a run in a notebook, its parts, and what a saved notebook shows of it."""

from typing import TYPE_CHECKING

from agentnb.core.lazy import when_asked_for

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
"""A table of events needs the words of the views in here, and neither ipywidgets nor IPython."""

__getattr__, __dir__ = when_asked_for(__name__, _WHERE)
