"""The arrows of the state diagram of a loop's table of phases. They are drawn once; later only their marks change.

The phases are in one column, in the order of the table (`layout.lay_out_column`): its author has chosen this order to
explain them. The page puts the phases, which are buttons, in front of the arrows (`page/diagram.js`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from xml.etree import ElementTree

from agentnb.widgets.drawings import svg
from agentnb.widgets.drawings.layout import lay_out_column
from agentnb.widgets.text import one_line, visible

Table = tuple[tuple[str, tuple[str, ...]], ...]

CHARACTER, NAME = 7.2, 22
"""The width of a character, and the maximum number of characters of a name."""
NARROWEST, WIDEST = 92.0, 124.0
"""The least and the greatest width of a phase."""


def table_of(phases: Mapping[str, Sequence[str]]) -> Table:
    """Return a loop's `phases` as a hashable value. Phases that are only named as targets come last."""
    names = dict.fromkeys([*phases, *(target for targets in phases.values() for target in targets)])
    return tuple((name, tuple(phases.get(name, ()))) for name in names)


@lru_cache(maxsize=64)
def diagram(table: Table) -> str:
    """Return the SVG of a table, without colours and marks. `data-column`: where its phases begin, and their width."""
    names = [one_line(visible(name), NAME) for name, _ in table]
    index = {name: number for number, (name, _) in enumerate(table)}
    arrows = [(index[name], index[target]) for name, targets in table for target in targets if name != target]
    width = min(WIDEST, max([NARROWEST, *(16 + CHARACTER * len(name) for name in names)]))
    layout = lay_out_column(len(names), arrows, width)

    # The diagram in words, for screen readers.
    root = svg.drawing(layout.width, layout.height)
    root.set("data-column", f"{layout.places[0][0] if layout.places else 0:g} {width:g}")
    ElementTree.SubElement(root, "title").text = "State diagram"
    targets = [
        ", ".join(names[target] for source, target in arrows if source == number) for number in range(len(names))
    ]
    words = [f"{name} leads to {targets[number] or 'nothing'}" for number, name in enumerate(names)]
    ElementTree.SubElement(root, "desc").text = "; ".join(words) + "."

    for (source, target), way in layout.ways.items():
        svg.path(svg.group(root, f"arrow-{source}-{target}", "agentnb-arrow"), svg.rounded(way))
        svg.path(svg.group(root, f"head-{source}-{target}", "agentnb-arrow-head"), svg.tip(way[-1], way[-2]))
    return svg.as_text(root)
