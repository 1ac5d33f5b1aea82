"""A person at JupyterLab is always recognised, and finds the runs again after a reload and a restart."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.browser.conftest import Notebooks

SETUP = """
import agentnb
from agentnb.testing import ScriptedLLM, call
%load_ext agentnb

@agentnb.tool(approve=True)
def write(path: str) -> str:
    "Write a file."
    return f"wrote {path}"

TURNS = [[call("write", {"path": "a.txt"}, id="w")], "It is done."]
def loop(turns=TURNS):
    return agentnb.SessionLoop(ScriptedLLM(turns), [write])

print(agentnb.headless(None, after=0.3))
"""
START = "run = loop().start('go', name='mine', store=agentnb.Store('comes-back.db')); run"
WAIT = "print('waiting'); print('got', await run)"
AGAIN = "agentnb.attach()"
TABLE = "%runs"


def approve_the_last(page: Any) -> None:
    button = page.get_by_role("button", name="Approve", exact=True).last
    button.scroll_into_view_if_needed()  # a question is read before it is decided
    button.click()


def test_a_run_waits_for_a_person_who_finds_it_again_after_reload_and_restart(notebooks: Notebooks) -> None:
    notebook = notebooks.open(cells=[SETUP, START, WAIT, "", TABLE])
    notebook.run_all()
    notebook.wait_output(2, "waiting", timeout=60)
    assert "a person may be present" in notebook.outputs(0)
    notebook.save()
    notebook.do(lambda page: page.goto("about:blank"))  # the tab is closed, longer than the patience without a person
    time.sleep(1)
    notebook.do(lambda page: page.go_back())
    notebook.reload()
    notebook.click("Approve")
    notebook.set_cell(3, "print(await run, [event.by for event in run.events if event.type == 'approval_decision'])")
    assert "It is done. ['human']" in notebook.run(3)

    notebook.set_cell(3, AGAIN)
    notebook.set_cell(1, f"{START}\nawait run.step('turn')\nrun")
    notebook.run(1)
    notebook.restart_kernel()
    notebook.run(0, timeout=60)
    notebook.run(3)
    notebook.wait_output(3, "read only. To resume it: agentnb.attach('mine', loop)")
    notebook.do(lambda page: page.locator(".jp-CodeCell").nth(3).get_by_role("tab", name="Events").click())
    notebook.wait_output(3, "approval_request")
    notebook.do(
        lambda page: page.locator('[aria-label="State diagram"]:not([data-agentnb-copy] *) svg').nth(1).wait_for()
    )
    notebook.run(4)
    assert "waiting for you: write" in notebook.outputs(4)
    assert "completed" in notebook.outputs(4)
    if folder := os.environ.get("AGENTNB_SCREENSHOTS"):
        notebook.do(lambda page: page.set_viewport_size({"width": 1200, "height": 1700}))
        for theme in ("light", "dark"):
            notebook.theme("light" if theme == "light" else "dark")
            notebook.screenshot(f"{folder}/{theme}.png")
    notebook.set_cell(3, "run = agentnb.attach('mine', loop(TURNS[1:])); run")
    notebook.run(3)
    notebook.wait_output(3, "asks you")  # until then the last button is the dead panel's
    notebook.do(approve_the_last)  # the first is dead
    notebook.set_cell(2, "print('got', await run)")
    assert "got It is done." in notebook.run(2)
