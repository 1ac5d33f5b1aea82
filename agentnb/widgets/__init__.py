"""The panel of a run in a notebook, its parts, and what a saved notebook shows of it."""

from agentnb.widgets.clicks import FORKS, SNAPSHOTS
from agentnb.widgets.comms import COMM_IDS
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
from agentnb.widgets.present import panel, present
from agentnb.widgets.static import static_html
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
