from __future__ import annotations

import re
import sys
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from agentnb.widgets.drawings.diagram import _Drawing, diagram, mark, table_of
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


@pytest.mark.parametrize("phases", TABLES)
def test_lines_never_overlap_a_phase_nor_one_another(phases: dict[str, list[str]]) -> None:
    drawing = _Drawing(table_of(phases))
    boxes = [
        (drawing.x, drawing._middle(n) - 12, drawing.x + drawing.box, drawing._middle(n) + 12)
        for n in range(len(phases))
    ]
    uprights: dict[int, list[tuple[float, float, float]]] = {}
    for source, target in drawing.arrows:
        points = drawing._route(source, target)
        assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in points)
        for (x1, y1), (x2, y2) in pairwise(points):
            for left, bottom, right, top in boxes:
                assert not (min(x1, x2) < right and max(x1, x2) > left and min(y1, y2) < top and max(y1, y2) > bottom)
            if x1 == x2 and target != source + 1:
                uprights.setdefault(target, []).append((x1, min(y1, y2), max(y1, y2)))
    for one, other in combinations(uprights, 2):
        for x, low, high in uprights[one]:
            assert all(x != x2 or high <= low2 or high2 <= low for x2, low2, high2 in uprights[other])


def test_every_phase_and_transition_has_a_shape_that_can_be_found() -> None:
    names = set(re.findall(r'data-gid="([^"]+)"', diagram(table_of(ENGINE))))
    assert {f"phase-{n}" for n in range(9)} <= names
    assert {f"arrow-{a}-{b}" for a, b in _Drawing(table_of(ENGINE)).arrows} <= names


def test_the_drawing_has_no_colours_no_ids_and_tells_itself_in_words() -> None:
    svg = diagram(table_of(ENGINE))
    root = ElementTree.fromstring(svg)
    assert not re.search(r"style=|fill=|stroke=| id=|url\(", svg)
    assert root.findtext(f"{SVG}title") == "State diagram"
    assert "paused leads to executing, scheduling" in (root.findtext(f"{SVG}desc") or "")


def test_names_of_phases_are_text_whatever_they_say() -> None:
    svg = diagram(table_of({HOSTILE: ["$x^2$"], "$x^2$": [HOSTILE], "\x00\ufffe": []}))
    root = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "title", "desc", "g", "path", "text"}
    assert "$x^2$" in [element.text for element in root.iter(f"{SVG}text")]
    assert "\u202e" not in svg


def test_a_phase_that_is_only_named_as_a_target_is_drawn_too() -> None:
    assert table_of({"a": ["b"]}) == (("a", ("b",)), ("b", ()))


def test_the_same_table_is_drawn_once() -> None:
    assert diagram(table_of(ENGINE)) is diagram(table_of(dict(ENGINE)))


def test_pyplot_is_not_used() -> None:
    diagram(table_of({"x": ["y"], "y": []}))
    assert "matplotlib.pyplot" not in sys.modules


def test_the_current_phase_and_the_way_there_are_marked() -> None:
    svg = mark(diagram(table_of(ENGINE)), table_of(ENGINE), "receiving", [["idle", "receiving"], ["gone", "error"]])
    marked = dict(re.findall(r'data-gid="([^"]+)" class="[^"]*agentnb-(now|taken)"', svg))
    assert marked == {"phase-1": "now", "label-1": "now", "arrow-0-1": "taken", "head-0-1": "taken"}
    assert svg.index("arrow-0-1") > svg.index("arrow-7-0")  # over what shares its lane
