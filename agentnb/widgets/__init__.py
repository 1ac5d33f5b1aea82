"""The panel of a run in a notebook: live (`widget`), its parts, and static in a saved notebook (`static`).

Both show the values of `views`; `drawings` makes the state diagram and the call graph; `page` is the JavaScript.
"""

from typing import TYPE_CHECKING

from agentnb.core.lazy import lazy_exports

if TYPE_CHECKING:
    from agentnb.widgets.branching import MODELS
    from agentnb.widgets.comms import COMM_IDS
    from agentnb.widgets.exporting import export_html
    from agentnb.widgets.handlers import FORKS, SNAPSHOTS
    from agentnb.widgets.presenting import panel, present
    from agentnb.widgets.static.panel import static_html
    from agentnb.widgets.study_display import present_study, study_inbox, study_panel
    from agentnb.widgets.study_widget import StudyPanel
    from agentnb.widgets.widget import (
        PARTS,
        Approvals,
        CallGraph,
        Controls,
        Detail,
        EventStream,
        Messages,
        Panel,
        Progress,
        StateDiagram,
        Timeline,
        Trace,
        Usage,
    )

__all__ = [
    "COMM_IDS",
    "FORKS",
    "MODELS",
    "PARTS",
    "SNAPSHOTS",
    "Approvals",
    "CallGraph",
    "Controls",
    "Detail",
    "EventStream",
    "Messages",
    "Panel",
    "Progress",
    "StateDiagram",
    "StudyPanel",
    "Timeline",
    "Trace",
    "Usage",
    "export_html",
    "panel",
    "present",
    "present_study",
    "static_html",
    "study_inbox",
    "study_panel",
]

_WHERE = {
    "branching": ("MODELS",),
    "comms": ("COMM_IDS",),
    "exporting": ("export_html",),
    "handlers": ("FORKS", "SNAPSHOTS"),
    "presenting": ("panel", "present"),
    "static.panel": ("static_html",),
    "study_display": ("present_study", "study_inbox", "study_panel"),
    "study_widget": ("StudyPanel",),
    "widget": (
        "PARTS",
        "Approvals",
        "CallGraph",
        "Controls",
        "Detail",
        "EventStream",
        "Messages",
        "Panel",
        "Progress",
        "StateDiagram",
        "Timeline",
        "Trace",
        "Usage",
    ),
}
"""The public names of each module, imported at first use: a table of events needs `views`, but not ipywidgets."""

__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
