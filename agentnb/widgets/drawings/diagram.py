"""The state diagram: a loop's table of phases. It is drawn once; later only its marks change.

The phases are in one column, in the order of the table (`layout.lay_out_column`): its author has chosen this order to
explain them. The names of the phases are text of the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from xml.etree import ElementTree

from agentnb.widgets.drawings import svg
from agentnb.widgets.drawings.layout import PHASE, lay_out_column
from agentnb.widgets.text import one_line, visible

Table = tuple[tuple[str, tuple[str, ...]], ...]

CHARACTER, NAME = 6.4, 22
"""The width of a character, and the maximum number of characters of a name."""


def table_of(phases: Mapping[str, Sequence[str]]) -> Table:
    """Return a loop's `phases` as a hashable value. Phases that are only named as targets come last."""
    names = dict.fromkeys([*phases, *(target for targets in phases.values() for target in targets)])
    return tuple((name, tuple(phases.get(name, ()))) for name in names)


@lru_cache(maxsize=64)
def diagram(table: Table) -> str:
    """Return the SVG of a table, without colours and marks."""
    names = [one_line(visible(name), NAME) for name, _ in table]
    index = {name: number for number, (name, _) in enumerate(table)}
    arrows = [(index[name], index[target]) for name, targets in table for target in targets if name != target]
    width = max([60.0, *(16 + CHARACTER * len(name) for name in names)])
    layout = lay_out_column(len(names), arrows, width)

    # The diagram in words, for screen readers.
    root = svg.drawing(layout.width, layout.height)
    ElementTree.SubElement(root, "title").text = "State diagram"
    targets = [
        ", ".join(names[target] for source, target in arrows if source == number) for number in range(len(names))
    ]
    words = [f"{name} leads to {targets[number] or 'nothing'}" for number, name in enumerate(names)]
    ElementTree.SubElement(root, "desc").text = "; ".join(words) + "."

    # The arrows, the phases over them, and the names over these.
    for (source, target), way in layout.ways.items():
        svg.path(svg.group(root, f"arrow-{source}-{target}", "agentnb-arrow"), svg.rounded(way))
        svg.path(svg.group(root, f"head-{source}-{target}", "agentnb-head"), svg.tip(way[-1], way[-2]))
    for number, place in enumerate(layout.places):
        outline = svg.box(place, width, PHASE, PHASE / 2)
        svg.path(svg.group(root, f"phase-{number}", "agentnb-phase"), outline)
    for number, (x, y) in enumerate(layout.places):
        label = svg.group(root, f"label-{number}", "agentnb-label")
        svg.text(label, names[number], (x + width / 2, y + PHASE / 2 + 3.5))
    return svg.as_text(root)
