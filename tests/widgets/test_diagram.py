from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from agentnb.widgets.drawings.diagram import diagram, table_of
from agentnb.widgets.drawings.layout import PHASE, Layout, lay_out_column
from agentnb.widgets.static.pictures import phases_in_words, phases_picture
from tests.widgets.support import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
ENGINE = {
    "idle": ["receiving"],
    "receiving": ["context_fetching", "error"],
    "context_fetching": ["decomposing", "error"],
    "decomposing": ["scheduling", "error"],
    "scheduling": ["executing", "paused", "error"],
    "executing": ["completed", "paused", "error"],
    "paused": ["executing", "scheduling"],
    "completed": ["idle"],
    "error": ["idle"],
}
TABLES = [
    ENGINE,
    {"running": ["done"], "done": []},
    {"a": ["b", "c", "d"], "b": ["a", "c", "d"], "c": ["a", "b", "d"], "d": ["a", "b", "c"]},
    {str(n): [str((n + 1) % 10), str((n + 5) % 10)] for n in range(10)},
    {"only": []},
]


WIDTH = 90.0


def column(phases: dict[str, list[str]]) -> Layout:
    names = [name for name, _ in table_of(phases)]
    arrows = [(names.index(a), names.index(b)) for a, targets in phases.items() for b in targets if a != b]
    return lay_out_column(len(names), arrows, WIDTH)


@pytest.mark.parametrize("phases", TABLES)
def test_lines_overlap_neither_phases_nor_other_lines(phases: dict[str, list[str]]) -> None:
    layout = column(phases)
    uprights: dict[int, list[tuple[float, float, float]]] = {}
    for (source, target), points in layout.ways.items():
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in points)
        for (x1, y1), (x2, y2) in pairwise(points):
            for left, top in layout.places:
                beside = min(x1, x2) >= left + WIDTH or max(x1, x2) <= left
                assert beside or min(y1, y2) >= top + PHASE or max(y1, y2) <= top
            if x1 == x2 and target != source + 1:
                uprights.setdefault(target, []).append((x1, min(y1, y2), max(y1, y2)))
    for one, other in combinations(uprights, 2):
        for x, low, high in uprights[one]:
            assert all(x != x2 or high <= low2 or high2 <= low for x2, low2, high2 in uprights[other])


def test_phases_are_in_one_column_in_their_order() -> None:
    places = column(ENGINE).places
    assert len({x for x, _ in places}) == 1
    assert [y for _, y in places] == sorted({y for _, y in places})


def test_every_transition_has_an_identified_shape_between_the_phases() -> None:
    svg = diagram(table_of(ENGINE))
    assert re.search(r'data-column="\d+(\.\d)? \d+(\.\d)?"', svg)
    names = set(re.findall(r'data-gid="([^"]+)"', svg))
    assert {f"arrow-{a}-{b}" for a, b in column(ENGINE).ways} <= names
    assert {f"head-{a}-{b}" for a, b in column(ENGINE).ways} <= names


def test_the_drawing_has_no_colours_and_no_ids_and_has_a_text_description() -> None:
    svg = diagram(table_of(ENGINE))
    root = ElementTree.fromstring(svg)
    assert not re.search(r"style=|fill=|stroke=| id=|url\(", svg)
    assert root.findtext(f"{SVG}title") == "State diagram"
    assert "paused leads to executing, scheduling" in (root.findtext(f"{SVG}desc") or "")


def test_names_of_phases_are_described_as_text() -> None:
    svg = diagram(table_of({HOSTILE: ["$x^2$"], "$x^2$": [HOSTILE], "\x00\ufffe": []}))
    root = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "title", "desc", "g", "path"}
    assert "$x^2$ leads to" in (root.findtext(f"{SVG}desc") or "")
    assert "\u202e" not in svg


def test_a_phase_that_is_only_a_target_is_drawn() -> None:
    assert table_of({"a": ["b"]}) == (("a", ("b",)), ("b", ()))


def test_the_same_table_is_drawn_once() -> None:
    assert diagram(table_of(ENGINE)) is diagram(table_of(dict(ENGINE)))


def test_a_diagram_is_drawn_without_importing_matplotlib() -> None:
    code = "import sys; from agentnb.widgets.drawings.diagram import diagram; diagram((('x', ('y',)), ('y', ())));"
    code += "assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_picture_of_a_saved_diagram_marks_the_current_phase_and_the_path_taken() -> None:
    table, taken = table_of(ENGINE), {("idle", "receiving"): 2, ("gone", "error"): 1}
    svg, width = phases_picture(table, "receiving", taken)
    root = ElementTree.fromstring(svg)
    assert root.get("width") == f"{width:.0f}"
    bold = [part.text for part in root.iter() if part.get("font-weight")]
    assert bold == ["receiving"]
    [strong] = [part.get("d") or "" for part in root.iter() if part.get("stroke-width") == "1.8"]
    assert strong.count("M") == 1
    words = phases_in_words(table, "receiving", taken)
    assert "Now: receiving. Taken: idle to receiving 2 times, gone to error." in words
