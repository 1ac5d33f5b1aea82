"""The bar in a real JupyterLab: during Run All with the panel far above, it is seen, it decides, and nothing jumps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from tests.browser.test_panel import SETUP

if TYPE_CHECKING:
    from tests.browser.conftest import Notebooks

FILLING = "print('\\n'.join(map(str, range(12))))"
START = """
run = start(call("write", {"path": "a.txt"}, id="w"), call("nap", {"seconds": 4}, id="n"), "It is done.")
run.play()
run"""
AWAIT = "print('got', await run)"
BAR = '.jp-NotebookPanel:not(.lm-mod-hidden) [aria-label="Waiting for you"]'

# The places of the cells in sight, in each frame. A cell that moves is noted.
WATCH = """() => {
  window.moved = [];
  const before = new Map();
  const look = () => {
    for (const cell of document.querySelectorAll(".jp-NotebookPanel .jp-Cell")) {
      const { top, height } = cell.getBoundingClientRect();
      if (!height) continue;
      if (before.has(cell) && Math.abs(before.get(cell) - top) > 0.01) window.moved.push(top - before.get(cell));
      before.set(cell, top);
    }
    window.looking = requestAnimationFrame(look);
  };
  look();
}"""
TO_THE_CELL = "i => lab.panel.content.scrollToItem(lab.panel.content.widgets.indexOf(lab.cells[i]), 'center')"
FOOT = """() => {
  const around = document.querySelector(".jp-NotebookPanel:not(.lm-mod-hidden)").getBoundingClientRect();
  const bar = document.querySelector(".agentnb-waitbar").getBoundingClientRect();
  return [around.bottom - bar.bottom, around.width - bar.width, bar.height];
}"""


def test_during_run_all_the_bar_is_seen_and_decides_and_nothing_jumps(notebooks: Notebooks) -> None:
    filling = [FILLING] * 14
    cells = [SETUP, START, *filling, AWAIT, "print('after', ran)", FILLING]
    notebook = notebooks.open(kernel="ipykernel7", cells=cells)
    waits, after = len(filling) + 2, len(filling) + 3
    notebook.run_all()

    def see(page: Any) -> None:
        page.locator(BAR).wait_for(state="attached")
        # To the cell that waits: the panel is far above.
        page.evaluate(TO_THE_CELL, waits)
        bar = page.locator(BAR)
        approve = bar.get_by_role("button", name="Approve", exact=True)
        approve.wait_for()
        page.locator(".agentnb-cell-waits").wait_for()
        assert 'write(path="a.txt")' in page.locator(".agentnb-cell-waits").inner_text()
        assert page.title().startswith("(1) ")
        page.wait_for_timeout(500)  # the page has come to rest
        below, beside, height = page.evaluate(FOOT)
        assert (below <= 1, beside <= 2, height) == (True, True, 47)  # the window has borders
        page.evaluate(WATCH)
        approve.click()
        bar.wait_for(state="hidden")
        page.wait_for_timeout(500)
        moved = page.evaluate("() => { cancelAnimationFrame(window.looking); return window.moved; }")
        assert moved == []
        assert not page.title().startswith("(")
        assert not page.locator(".agentnb-cell-waits").is_visible()

    notebook.do(see)
    notebook.wait_cell(after)
    assert "got It is done." in notebook.outputs(waits)
    assert "after ['a.txt']" in notebook.outputs(after)
    notebook.save()
    assert "waits for a decision" not in json.dumps(json.loads(notebook.path.read_text())["cells"][waits])


def test_of_two_runs_that_wait_the_bar_names_the_oldest_and_then_the_other(notebooks: Notebooks) -> None:
    name = "run = agentnb.SessionLoop(ScriptedLLM([[call('write', {'path': '%s.txt'})], 'Done.']), [write])"
    cells = [f"{name % one}.start('go', name='{one}'); run.play(); run" for one in ("first", "second")]
    notebook = notebooks.open(kernel="ipykernel7", cells=[SETUP, *cells, *[FILLING] * 8, "print(ran)"])
    for cell in range(3):
        notebook.run(cell)
        notebook.wait_output(cell, "asks you" if cell else "ready")

    def decide(page: Any) -> None:
        page.evaluate(TO_THE_CELL, 10)
        bar = page.locator(BAR)
        for one, words in (("first", "1 more"), ("second", "waits for you")):
            expect(bar).to_contain_text(f'write(path="{one}.txt")')
            expect(bar).to_contain_text(words)
            bar.get_by_role("button", name="Approve", exact=True).click()
        expect(bar).not_to_be_visible()

    notebook.do(decide)
    notebook.set_cell(11, "import time\nwhile len(ran) < 2: time.sleep(0.01)\nprint(ran)")
    assert notebook.run(11).strip() == "['first.txt', 'second.txt']"
