"""One run, from its first step to the comparison of its branches, as a person goes through it in a real JupyterLab.

    python -m tests.browser.test_journey

goes the same way and takes the pictures of it, light and dark, for the README and the notebooks.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import Locator, Page, expect

from tests.browser.browser import Chromium
from tests.browser.notebook import Notebook
from tests.browser.server import JupyterServer
from tests.widgets.pages import CONTRAST
from tests.widgets.pictures import FOLDER, THEMES, save

if TYPE_CHECKING:
    from tests.browser.conftest import Notebooks

SETUP = """
import json
import agentnb
from agentnb.testing import ScriptedLLM, call, delay, text

FLOW = {1897: (1100.3, 855.8, 0.5944), 1898: (1097.7, 853.4, 0.5852), 1899: (1097.8, 850.0, 0.5634),
        1900: (1086.6, 851.0, 0.5971), 1901: (1078.4, 851.2, 0.6178)}

@agentnb.tool
def describe_table(file: str) -> dict:
    return {"file": file, "rows": 100, "columns": ["year", "volume"]}

@agentnb.tool
def compare_splits(years: list[int]) -> list[dict]:
    return [dict(zip(("year", "before", "after", "unexplained"), (year, *FLOW[year]))) for year in years]

@agentnb.tool(approve=True, needs="network")
def read_archive(year: int) -> str:
    return f"{year}: the first dam at Aswan was not begun before 1898, and finished in 1902"

@agentnb.tool
def extremes(count: int) -> dict:
    return {"smallest": [1913, 1888], "largest": [1879, 1878]}

@agentnb.tool
def shuffle(year: int, rounds: int) -> dict:
    return {"year": year, "rounds": rounds, "as_large": 0}

@agentnb.tool(approve=True, needs="write")
def write_report(name: str, text: str) -> str:
    return f"{len(text)} characters in reports/{name}"

def results(messages):
    return [message for message in messages if message["role"] == "tool"]

def best(messages):
    return min(json.loads(results(messages)[1]["content"]), key=lambda row: row["unexplained"])

def check(messages):
    year = best(messages)["year"]
    return [*text(f"A split at {year} leaves the least. I have it checked."), delay(0.2),
            call("checker", {"input": f"Is the step at {year} real?"})]

def report(messages):
    found = best(messages)
    words = f"The level changed in {found['year']}: from {found['before']:.0f} to {found['after']:.0f}."
    return [*text("It is no accident. I write the report."), delay(0.2),
            call("write_report", {"name": "nile.md", "text": words})]

def answer(messages):
    last = results(messages)[-1]
    written = "The report is written." if not last.get("is_error") else "There is no report: " + last["content"]
    return [*text(f"The level of the Nile changed in {best(messages)['year']}. {written}"), delay(0.1)]

def asks(messages):
    year = int(messages[-1]["content"].split()[-2])
    return [*text("I shuffle the years, and look into the archive."), delay(0.2),
            call("shuffle", {"year": year, "rounds": 200}), call("read_archive", {"year": year})]

checker = agentnb.SessionLoop(
    ScriptedLLM([asks, [*text("None of 200 shuffled tables has so large a step. The dam came later."), delay(0.2)]]),
    [shuffle, read_archive], name="checker",
)
first = [*text("First I look at what there is."), delay(0.2), call("describe_table", {"file": "nile.csv"})]
second = [*text("I compare the splits around 1899."), delay(0.2), call("compare_splits", {"years": list(FLOW)}),
          call("extremes", {"count": 2})]
loop = agentnb.SessionLoop(
    ScriptedLLM([first, second, check, report, answer]),
    [describe_table, compare_splits, extremes, checker, write_report],
    name="editor",
)
QUESTION = "In which year did the yearly flow of the Nile at Aswan change its level? Write a short report."
print("ready")
"""
SHOW = "run = loop.start(QUESTION, name='nile'); run"
LOOK = """
from agentnb.widgets import FORKS
print(run.output, *(f"{name}: {fork.output}" for name, fork in FORKS.items()), sep="\\n")
"""
CELLS = [SETUP, SHOW, "print('below')", LOOK]
SHOWN, LOOKED = 1, 3
EVENTS = 38
BEFORE_THE_CHECK = 13  # the event before the nested loop is called

# The shifts of the layout whose cause is outside the panel, as the browser reports them.
WATCH_SHIFTS = """() => {
  window.shifted = [];
  window.note = (shifts) => {
    for (const { sources } of shifts)
      for (const { node, previousRect, currentRect } of sources) {
        const around = node instanceof Element ? node : node?.parentElement;
        if (!around?.closest(".agentnb-panel")) window.shifted.push([node?.nodeName, previousRect.y, currentRect.y]);
      }
  };
  window.observer = new PerformanceObserver((list) => window.note(list.getEntries()));
  window.observer.observe({ type: "layout-shift" });
}"""
SHIFTS = """() => {
  window.note(window.observer.takeRecords());
  window.observer.disconnect();
  return window.shifted;
}"""
OUTLINES = """node => [node, node.closest(".agentnb-trace")].map((one) => one && getComputedStyle(one).outline)
  .join()"""
WITHOUT_APPLICATION = "() => { window.kept = window.jupyterapp; delete window.jupyterapp; }"
WITH_APPLICATION = "() => { window.jupyterapp = window.kept; }"

CLOSE_VIEW = """() => {
  const { shell } = window.jupyterapp, view = document.querySelector(".jp-LinkedOutputView");
  [...shell.widgets("main")].find(({ node }) => node.contains(view)).close();
  shell.activateById([...shell.widgets("main")][0].id);
}"""

Look = Callable[[str], None]
expect.set_options(timeout=30_000)  # milliseconds, on a busy machine


def no_look(_: str) -> None:
    """Take no picture."""


class Journey:
    """What a person does in the panel of the run. `look` is called where there is something to look at."""

    def __init__(self, page: Page, look: Look) -> None:
        self.page = page
        self.look = look
        self.panel = page.locator(".agentnb-panel").first
        self.word = self.panel.locator(".agentnb-state-word").first
        self.strip = self.panel.get_by_role("slider", name="Position")
        self.rows = self.panel.get_by_role("treegrid", name="Trace").locator(".agentnb-trace-row")
        self.branches = self.panel.get_by_role("list", name="Branches").get_by_role("listitem")

    def button(self, name: str) -> Locator:
        return self.panel.get_by_role("button", name=name, exact=True)

    def position(self, words: str) -> None:
        """Wait until the strip says this about where it is."""
        expect(self.strip).to_have_attribute("aria-valuetext", re.compile(words))

    def step(self) -> None:
        """Step by event, by call and by turn."""
        expect(self.word).to_have_text("ready")
        for event in range(3):
            self.button("Step").click()
            self.position(f"event {event} of {event}.*live")
        for unit, event in (("call", 5), ("turn", 11)):
            self.panel.get_by_label("Unit of a step").select_option(unit)
            self.button("Step").click()
            self.position(f"event {event} of {event}.*live")
        expect(self.word).to_have_text("paused")
        expect(self.button("Step")).to_have_attribute("aria-disabled", "false")
        expect(self.button("Play")).to_have_attribute("aria-disabled", "false")
        expect(self.rows.filter(has_text="compare_splits")).to_contain_text("5 rows")
        self.look("step")

    def dock(self) -> None:
        """Open the panel in a view of its own. A page that cannot reach JupyterLab has no button."""
        button = self.button("Dock")
        self.page.evaluate(WITHOUT_APPLICATION)
        self.strip.press("ArrowLeft")
        expect(button).to_have_count(0)
        self.page.evaluate(WITH_APPLICATION)
        self.strip.press("End")
        button.click()
        docked = self.page.locator(".jp-LinkedOutputView .agentnb-panel")
        expect(docked.locator(".agentnb-state-word").first).to_have_text("paused")
        expect(docked.get_by_role("button", name="Dock", exact=True)).to_have_count(0)
        self.page.evaluate(CLOSE_VIEW)
        expect(docked).to_have_count(0)

    def play_to_the_report(self) -> None:
        """Play, and approve the call of the nested loop. Nothing outside the panel moves."""
        self.button("Play").click()
        question = self.panel.get_by_role("group", name="read_archive", exact=True)
        expect(question).to_contain_text("checker")
        expect(question.locator("dl")).to_have_css("display", "grid")  # JupyterLab has rules of its own for lists
        self.page.wait_for_timeout(300)  # the page has come to rest
        self.page.evaluate(WATCH_SHIFTS)
        question.get_by_role("button", name="Approve", exact=True).click()
        expect(self.panel.get_by_role("group", name="write_report", exact=True)).to_be_visible()
        assert self.page.evaluate(SHIFTS) == []

    def drag_back_and_return(self) -> None:
        """Drag the strip back, see the run as it was, and return."""
        expect(self.word).to_have_text("waits for you")
        self.position("event 31 of 31.*live")
        self.strip.scroll_into_view_if_needed()
        box = self.strip.bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 3
        self.page.mouse.move(box["x"] + box["width"] - 18, middle)
        self.page.mouse.down()
        for x in range(int(box["width"]) - 24, 0, -6):  # where its events are depends on how fast they came
            self.page.mouse.move(box["x"] + x, middle)
            if int(self.strip.get_attribute("aria-valuenow") or 0) <= BEFORE_THE_CHECK:
                break
        self.page.mouse.up()
        expect(self.word).to_have_text(re.compile(r"as it was at #(11|12|13)$"))
        expect(self.rows.filter(has_text="compare_splits")).to_be_visible()
        expect(self.rows.filter(has_text="checker")).to_have_count(0)
        live = self.button("Live")
        expect(live).to_have_attribute("aria-pressed", "false")
        self.look("back")
        live.click()
        expect(self.word).to_have_text("waits for you")
        expect(self.rows.filter(has_text="checker")).to_be_visible()
        self.position("event 31 of 31.*live")
        self.look("question")

    def approve_the_report(self) -> None:
        self.page.evaluate(WATCH_SHIFTS)
        self.button("Approve").click()
        expect(self.word).to_have_text("done")
        expect(self.panel.get_by_role("tab", name="Events")).to_contain_text(str(EVENTS))
        assert self.page.evaluate(SHIFTS) == []

    def what_if(self, row: str) -> Locator:
        """Choose a row, and open the form from the detail pane."""
        self.rows.filter(has_text=row).click()
        detail = self.panel.get_by_role("region", name="Detail")
        expect(detail).to_contain_text(row)
        detail.get_by_role("button", name="What if").click()
        form = self.panel.get_by_role("group", name="What if")
        expect(form).to_be_in_viewport(ratio=0.99)  # all of it, also where the list followed its end
        return form

    def what_if_the_call_had_returned_something_else(self) -> None:
        """Change a value of the table, and decide in the branch, which asks about its own calls."""
        form = self.what_if("compare_splits")
        expect(form.get_by_role("tab", name="Result")).to_have_attribute("aria-selected", "true")
        form.get_by_role("gridcell", name="0.5634").click()
        self.page.keyboard.type("0.9")
        self.page.keyboard.press("Enter")
        expect(form).to_contain_text("1 of 20 values changed, row 3 of 5")
        expect(form).to_contain_text("#0 to #9 stay as they are. From turn 3 on the model is asked and tools run.")
        form.get_by_label("Name of the branch").fill("no step")
        self.look("whatif")
        form.get_by_role("button", name="Run branch").click()
        expect(form).not_to_be_visible()
        expect(self.branches).to_contain_text(["no step"])
        expect(self.branches).to_contain_text(["from #10"])
        expect(self.branches).to_contain_text(["waits for you"])

        # The branch has a panel of its own, in the place of its parent's.
        self.button("Open no step").click()
        inner = self.panel.get_by_role("group", name="Panel of no step")
        for tool in ("read_archive", "write_report"):
            inner.get_by_role("group", name=tool, exact=True).get_by_role("button", name="Approve", exact=True).click()
        expect(inner.locator(".agentnb-state-word").first).to_have_text("done")
        self.button("\u2039 nile").click()
        expect(inner).to_have_count(0)

    def what_if_the_decision_had_been_another(self) -> None:
        """Reject in a branch what was approved."""
        form = self.what_if("write_report")
        expect(form.get_by_role("radio", name="Reject")).to_be_checked()
        form.get_by_label("Reason").fill("Name the source first.")
        form.get_by_label("Name of the branch").fill("refused")
        self.look("decision")
        form.get_by_role("button", name="Run branch").click()
        expect(self.branches).to_contain_text(["no step", "refused"])
        expect(self.branches.filter(has_text="refused")).not_to_contain_text("running")

    def compare(self) -> None:
        """Compare each branch with the run: only what differs is marked."""
        self.button("Compare refused").click()
        table = self.panel.get_by_role("table", name="nile and refused", exact=True)
        expect(table).to_contain_text("#0 to #31 are the same in both")
        expect(table).to_contain_text("Rejected: Name the source first.")
        expect(table.locator("mark")).not_to_have_count(0)
        self.button("Compare no step").click()
        table = self.panel.get_by_role("table", name="nile and no step", exact=True)
        expect(table).to_contain_text("#0 to #9 are the same in both")
        expect(table.locator("mark").filter(has_text="0.9").first).to_be_visible()
        expect(table.locator("mark").filter(has_text="1898").first).to_be_visible()
        expect(self.panel.get_by_role("table", name="Sums of nile and no step")).to_contain_text("calls")
        self.look("compare")
        self.panel.get_by_role("tab", name="Trace").click()

    def go(self) -> None:
        """Go all the way."""
        self.step()
        self.dock()
        self.play_to_the_report()
        self.drag_back_and_return()
        self.approve_the_report()
        self.what_if_the_call_had_returned_something_else()
        self.what_if_the_decision_had_been_another()
        self.compare()


def open_and_go(notebook: Notebook, look: Look = no_look) -> None:
    """Show the panel of the run, and go all the way."""
    notebook.run(0, timeout=60)
    notebook.run(SHOWN)
    notebook.run(2)
    notebook.do(lambda page: Journey(page, look).go())


def test_a_run_is_stepped_scrubbed_decided_and_branched_without_code(notebooks: Notebooks) -> None:
    notebook = notebooks.open(cells=CELLS)
    open_and_go(notebook)
    assert notebook.run(LOOKED).splitlines() == [
        "The level of the Nile changed in 1899. The report is written.",
        "no step: The level of the Nile changed in 1898. The report is written.",
        "refused: The level of the Nile changed in 1899. There is no report: Rejected: Name the source first.",
    ]
    notebook.do(look_with_forced_colours)


def look_with_forced_colours(page: Page) -> None:
    """With the colours of the system, all texts can be read, and the focus can be seen."""
    page.emulate_media(forced_colors="active")
    page.evaluate(CONTRAST.read_text())
    assert page.evaluate("window.poorContrast('.agentnb-panel')") == []
    for role, name in (("button", "Open refused"), ("slider", "Position"), ("treegrid", "Trace"), ("tab", "Trace")):
        control: Any = page.locator(".agentnb-panel").get_by_role(role, name=name).first
        control.focus()
        page.keyboard.press("Shift")  # as somebody does who uses the keyboard
        assert re.search("(solid|auto) [1-9]", control.evaluate(OUTLINES)), name
    page.emulate_media(forced_colors="none")


def main(themes: Sequence[str] = THEMES) -> None:
    """Take the pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        JupyterServer(Path(folder), {"python3": None}) as server,
        Chromium() as browser,
    ):
        for theme in themes:
            take(browser, server, theme)


def take(browser: Chromium, server: JupyterServer, theme: Any) -> None:
    """Go all the way in this theme, and take the pictures."""
    notebook = Notebook.open(browser, server, kernel="python3", cells=CELLS)
    notebook.theme(theme)

    def look(name: str) -> None:
        path = FOLDER / f"journey-{name}-{theme}.png"
        panel = notebook.do(lambda page: page.locator(".agentnb-panel").first)
        notebook.do(lambda _: panel.evaluate("node => node.scrollIntoView({ block: 'start' })"))
        notebook.do(lambda page: page.wait_for_timeout(400))  # what fades in has done so
        notebook.do(lambda _: panel.screenshot(path=path))
        save(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")

    open_and_go(notebook, look)
    notebook.close()


if __name__ == "__main__":
    main()
