"""The panel of a run in a notebook, its parts, and what a saved notebook shows of it."""

from agentnb.widgets.clicks import FORKS, SNAPSHOTS
from agentnb.widgets.comms import COMM_IDS
from agentnb.widgets.present import panel, present
from agentnb.widgets.static import static_html
from agentnb.widgets.widget import Approvals, CallGraph, Controls, EventStream, Panel, StateDiagram

__all__ = [
    "COMM_IDS",
    "FORKS",
    "SNAPSHOTS",
    "Approvals",
    "CallGraph",
    "Controls",
    "EventStream",
    "Panel",
    "StateDiagram",
    "panel",
    "present",
    "static_html",
]
