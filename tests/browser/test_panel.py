"""The panel in a real JupyterLab: decisions by button in cells of every shape, Stop, reload, hostile text, a flood."""

from __future__ import annotations

import re
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.notebook import PATIENCE
from tests.widgets.pages import CONTRAST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.browser.conftest import Notebooks
    from tests.browser.notebook import Notebook

SETUP = """
import asyncio, time
import agentnb
from agentnb.testing import ScriptedLLM, call, text
ran = []

@agentnb.tool(approve=True, needs="write")
def write(path: str) -> str:
    "Write a file."
    ran.append(path)
    return f"wrote {path}"

@agentnb.tool
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"

def start(*turns):
    turns = turns or ([*text("I will write."), call("write", {"path": "a.txt"}, id="w")], "It is done.")
    return agentnb.SessionLoop(ScriptedLLM(turns), [write, nap]).start("go")

print("ready")
"""
SHOW, WAIT, LOOK = 1, 2, 3
SHAPES = {
    "returned": ("run = start(); run.play(); run", "print('nothing to wait for')"),
    "awaits": ("run = start(); run", "print('waiting'); print('got', await run)"),
    "blocks": ("run = start(); run", "print('waiting'); print('got', run.result())"),
}
RESULT = "print(ran, run.result(30), [e.by for e in run.events if e.type == 'approval_decision'])"


@pytest.fixture(scope="module")
def opened(module_notebooks: Notebooks, kernel_name: str) -> Notebook:
    notebook = module_notebooks.open(kernel=kernel_name, cells=[SETUP, *SHAPES["returned"], RESULT])
    notebook.run(0, timeout=60)
    return notebook


@pytest.fixture
def notebook(opened: Notebook) -> Notebook:
    opened.set_cell(LOOK, "agentnb.run.latest_run() and agentnb.run.latest_run().cancel(); ran.clear()")
    opened.run(LOOK)
    opened.set_cell(LOOK, RESULT)
    return opened


def begin(notebook: Notebook, shape: str) -> None:
    """Start a run that soon waits for a person, in a cell of this shape, and wait until it does."""
    notebook.set_cell(SHOW, SHAPES[shape][0])
    notebook.set_cell(WAIT, SHAPES[shape][1])
    notebook.run(SHOW)
    if shape != "returned":
        run_until(notebook, WAIT, "waiting")
    notebook.wait_output(SHOW, "asks you")


def run_until(notebook: Notebook, cell: int, words: str) -> None:
    """Start a cell and wait until it has printed this text."""
    notebook.run_cell(cell)
    while words not in notebook.outputs(cell):
        if not notebook.is_running(cell):  # for a moment after Stop, a kernel drops requests
            notebook.run_cell(cell)
        time.sleep(0.02)


def wait_until(look: Callable[[], Any], wanted: Any) -> None:
    """Look at the page until this is there to be seen."""
    deadline = time.monotonic() + PATIENCE
    while (seen := look()) != wanted:
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


SAVED = "[data-agentnb-ended]"
SHOW_SAVED = """() => { for (const saved of document.querySelectorAll("[data-agentnb-ended]")) {
    const output = saved.closest(".jp-RenderedHTMLCommon");
    output.style.display = "";
    output.previousElementSibling.style.display = "none"; } }"""


def show_saved(notebook: Notebook) -> None:
    """Show the static panel of the ended run, which the notebook saves, in place of the live one."""
    notebook.do(lambda page: page.locator(SAVED).wait_for(state="attached"))
    notebook.do(lambda page: page.evaluate(SHOW_SAVED))


def approve(notebook: Notebook) -> None:
    notebook.click("Approve")


def edit(notebook: Notebook) -> None:
    notebook.click("Edit")
    notebook.fill("path", "b.txt")
    notebook.click("Approve")


def reject(notebook: Notebook) -> None:
    notebook.click("Reject")
    notebook.fill("Reason", "not there")
    notebook.click("Reject")


DECISIONS: dict[str, tuple[Callable[[Notebook], None], str]] = {
    "approve": (approve, "['a.txt'] It is done. ['human']"),
    "edit": (edit, "['b.txt'] It is done. ['human']"),
    "reject": (reject, "[] It is done. ['human']"),
}


@pytest.mark.parametrize("decision", list(DECISIONS))
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_call_is_decided_by_button(notebook: Notebook, shape: str, decision: str) -> None:
    begin(notebook, shape)
    decide, result = DECISIONS[decision]
    decide(notebook)
    if shape != "returned":
        notebook.wait_cell(WAIT)
        assert "got It is done." in notebook.outputs(WAIT)
    assert notebook.run(LOOK).strip() == result


@pytest.mark.parametrize("decision", list(DECISIONS))
@pytest.mark.parametrize("shape", ["awaits", "blocks"])
def test_a_call_is_decided_by_button_during_run_all(notebook: Notebook, shape: str, decision: str) -> None:
    notebook.set_cell(SHOW, SHAPES[shape][0])
    notebook.set_cell(WAIT, SHAPES[shape][1])
    notebook.run_all()
    notebook.wait_output(SHOW, "asks you")
    decide, result = DECISIONS[decision]
    decide(notebook)
    notebook.wait_cell(LOOK)
    assert notebook.outputs(LOOK).strip() == result


def test_clicks_work_with_the_unpatched_asyncio(notebook: Notebook) -> None:
    begin(notebook, "blocks")
    approve(notebook)
    notebook.wait_cell(WAIT)
    notebook.set_cell(LOOK, "import sys; print('nest_asyncio2' in sys.modules, asyncio.run.__module__)")
    assert notebook.run(LOOK).strip() == "False asyncio.runners"


def test_the_reason_of_a_rejection_reaches_the_model(notebook: Notebook) -> None:
    begin(notebook, "returned")
    reject(notebook)
    notebook.set_cell(LOOK, "run.result(30); print(run.messages[2].content, run.messages[2].is_error)")
    assert notebook.run(LOOK).strip() == "Rejected: not there True"


# When Stop was clicked: before that a browser looks for the button.
NOTE_STOP = """() => { window.stopped = null; document.addEventListener("click", () => {
    window.stopped ??= Date.now() / 1000; }, true); }"""


@pytest.mark.alone
@pytest.mark.parametrize("shape", ["awaits", "blocks"])
def test_stop_cancels_within_a_second_and_the_kernel_stays_usable(notebook: Notebook, shape: str) -> None:
    begin(notebook, shape)
    notebook.do(lambda page: page.evaluate(NOTE_STOP))
    notebook.stop()
    notebook.wait_cell(WAIT)
    notebook.set_cell(LOOK, "print(run.stop_reason, ran, run.events[-1].time)")
    while "cancelled []" not in notebook.run(LOOK):  # for a moment after Stop, a kernel drops requests
        pass
    stopped = notebook.do(lambda page: page.evaluate("() => window.stopped"))
    assert float(notebook.outputs(LOOK).split()[-1]) - stopped < 1
    begin(notebook, "returned")
    approve(notebook)
    notebook.set_cell(LOOK, RESULT)
    assert notebook.run(LOOK).strip() == DECISIONS["approve"][1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_texts_of_the_panel_have_enough_contrast_in_each_theme(notebook: Notebook, theme: Any) -> None:
    begin(notebook, "returned")
    notebook.theme(theme)
    notebook.do(lambda page: page.evaluate(CONTRAST.read_text()))
    notebook.do(find_no_poor_contrast)
    approve(notebook)
    notebook.wait_status(SHOW, "done")
    notebook.do(find_no_poor_contrast)
    show_saved(notebook)
    notebook.wait_output(SHOW, "Saved copy of")
    notebook.do(find_no_poor_contrast)


def find_no_poor_contrast(page: Any) -> None:
    assert page.locator(".agentnb *").count() > 50
    assert page.evaluate("window.poorContrast('.agentnb')") == []


def test_a_second_click_has_no_effect(notebook: Notebook) -> None:
    begin(notebook, "returned")

    def click_twice(page: Any) -> None:
        page.evaluate(
            """() => { const approve = [...document.querySelectorAll('.agentnb button')]
                .find(button => button.dataset.do === 'approve'); approve.click(); approve.click(); }"""
        )

    notebook.do(click_twice)
    assert notebook.run(LOOK).strip() == DECISIONS["approve"][1]


def test_the_cancel_button_ends_a_run_whose_cell_has_returned(notebook: Notebook) -> None:
    begin(notebook, "returned")
    notebook.click("More")
    notebook.click("Cancel")
    notebook.click("Cancel run")
    notebook.set_cell(LOOK, "while not run.state.over: await asyncio.sleep(0.01)\nprint(run.stop_reason, ran)")
    assert notebook.run(LOOK).strip() == "cancelled []"


def see_events(notebook: Notebook) -> None:
    """Open the tab with the events."""
    notebook.do(lambda page: page.get_by_role("tab", name="Events").click())


def test_a_run_is_stepped_by_button(notebook: Notebook) -> None:
    notebook.set_cell(SHOW, "run = start(); run")
    notebook.run(SHOW)
    see_events(notebook)
    for expected in ("run_start", "message", "model_start", "model_end", "approval_request"):
        notebook.click("Step")
        notebook.wait_output(SHOW, expected)
    approve(notebook)
    notebook.click("Play")
    assert notebook.run(LOOK).strip() == DECISIONS["approve"][1]


def test_the_diagram_shows_the_phase(notebook: Notebook) -> None:
    begin(notebook, "returned")

    def phase(page: Any) -> str | None:
        return page.get_by_role("img", name="State diagram").first.get_attribute("data-phase")

    wait_until(lambda: notebook.do(phase), "acting")
    approve(notebook)
    wait_until(lambda: notebook.do(phase), "done")


NESTED = """
class Writer:
    asked = 0
    async def stream(self, messages, **options):
        self.asked += 1
        if self.asked == 1:
            yield call("write", {"path": "a.txt"}, id="w")
        else:
            yield {"type": "text_delta", "content": f"answer {self.asked}"}
worker = agentnb.SessionLoop(Writer(), [write, nap], name="worker")
run = agentnb.ConversationEngine(llm=lambda goal: ["write it", "read it"], execute=worker).start("go")
run.play()
run
"""


@pytest.mark.parametrize("decision", list(DECISIONS))
def test_a_call_of_a_nested_loop_is_decided_by_button(notebook: Notebook, decision: str) -> None:
    notebook.set_cell(SHOW, NESTED)
    notebook.run(SHOW)
    notebook.wait_output(SHOW, "asks you")

    def look(page: Any) -> tuple[Any, ...]:
        inside = page.get_by_role("list", name="Loops inside").locator("> li")
        return (
            page.get_by_role("img", name="State diagram").get_attribute("data-phase"),
            inside.get_attribute("data-path"),
            inside.get_attribute("data-nested-phase"),
            page.get_by_role("group", name="write", exact=True).locator(".agentnb-path").first.inner_text(),
        )

    wait_until(lambda: notebook.do(look), ("executing", "worker", "acting", "worker"))
    notebook.wait_output(SHOW, "listening")  # the loop inside has its own diagram
    DECISIONS[decision][0](notebook)
    notebook.set_cell(LOOK, "run.result(30); print(ran, [e.path for e in run.events if e.type == 'approval_decision'])")
    assert notebook.run(LOOK).strip() == f"{DECISIONS[decision][1].split(' ')[0]} ['worker']"
    wait_until(lambda: notebook.do(look_at_phases), ("completed", "done"))
    show_saved(notebook)
    notebook.wait_output(SHOW, "Saved copy of")
    wait_until(lambda: notebook.do(look_at_phases), ("completed", "done"))


def look_at_phases(page: Any) -> tuple[Any, ...]:
    """The phases that the visible panel shows, live or static."""
    saved = page.locator(".agentnb-static img[data-phase]:visible")
    if saved.count():
        return tuple(saved.evaluate_all("all => all.map((image) => image.dataset.phase)"))
    outermost = page.get_by_role("img", name="State diagram").get_attribute("data-phase")
    return outermost, page.locator("[data-nested-phase]:visible").get_attribute("data-nested-phase")


GRAPH = """
import json
@agentnb.tool
def broken(city: str) -> str:
    raise RuntimeError("api down")
def solution(*calls, output=None):
    return text(json.dumps({"calls": calls, "output": output}), pieces=1)
calls = [
    {"_tool": "nap", "seconds": "†state.written", "_outputPath": "†state.rested"},
    {"_tool": "write", "path": "a.txt", "_outputPath": "†state.written"},
    {"_tool": "broken", "city": "Oslo"},
]
later = {"_tool": "nap", "seconds": 0}
ended = asyncio.Event()
class Slow:
    asked = 0
    async def stream(self, messages, **options):
        self.asked += 1
        if self.asked == 1:
            answer = json.dumps({"calls": [*calls, later], "output": None})
            cut = answer.index(json.dumps(later))
            yield {"type": "text_delta", "content": answer[:cut]}
            while not ended.is_set():
                await asyncio.sleep(0.02)
            yield {"type": "text_delta", "content": answer[cut:]}
        else:
            yield {"type": "text_delta", "content": '{"calls": [], "output": "done"}'}
run = agentnb.ExecutionLoop(Slow(), [write, nap, broken]).start(None)
run.play()
run
"""


def calls_shown(page: Any) -> list[str]:
    """Return the status of the calls in the call graph, from the texts of its boxes."""
    if (graphs := page.get_by_role("img", name="Call graph", exact=True).count()) != 1:
        return [f"{graphs} call graphs"]
    boxes: list[str] = page.locator(".agentnb-node").evaluate_all(
        "boxes => boxes.filter(box => box.getClientRects().length)"
        ".map(box => [...box.querySelectorAll('text')].map(text => text.textContent).join(' '))"
    )
    return boxes


def test_the_graph_of_an_execution_loop_is_updated_while_its_calls_run(notebook: Notebook) -> None:
    notebook.set_cell(SHOW, GRAPH)
    notebook.run(SHOW)
    notebook.do(lambda page: page.get_by_role("tab", name="Graph").click())

    def wait_for(*boxes: str) -> None:
        wait_until(lambda: notebook.do(calls_shown), list(boxes))

    wait_for("nap c1 ◌ blocked", "write c2 ◆ waiting for you", "broken c3 ✗ failed")  # the answer continues
    listed = notebook.do(lambda page: page.get_by_role("list", name="Calls", exact=True).inner_text())
    assert "c1 nap: blocked, waits for †state.written, reads from c2, writes †state.rested" in listed
    notebook.set_cell(LOOK, "ended.set()")
    notebook.run(LOOK)
    wait_for("nap c1 ◌ blocked", "write c2 ◆ waiting for you", "broken c3 ✗ failed", "nap c4 ✓ completed")
    approve(notebook)
    notebook.set_cell(LOOK, "run.result(30)")
    assert "done" in notebook.run(LOOK)
    # The value is not a number of seconds, so c1 is refused.
    wait_for("nap c1 ✗ failed", "write c2 ✓ completed", "broken c3 ✗ failed", "nap c4 ✓ completed")
    show_saved(notebook)
    notebook.wait_output(SHOW, "Saved copy of")
    saved = notebook.do(lambda page: page.locator(".agentnb-static").first.text_content())
    for words in ("c1 nap: failed", "c2 write: completed", "c3 broken: failed", "c4 nap: completed"):
        assert words in saved


def rows_scrolled_through(page: Any) -> list[int]:
    """The numbers of all the events that the list shows from its beginning to its end."""
    page.get_by_role("tab", name="Events").click()
    return page.get_by_role("log", name="Events").evaluate(  # type: ignore[no-any-return]
        """async log => {
            const seen = new Set();
            for (log.scrollTop = 0; ; log.scrollTop += log.clientHeight / 2) {
                await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
                for (const seq of log.querySelectorAll(".agentnb-row .agentnb-seq")) seen.add(Number(seq.textContent));
                if (log.scrollTop + log.clientHeight >= log.scrollHeight - 1) return [...seen].sort((a, b) => a - b);
            }
        }"""
    )


def test_a_reloaded_page_shows_every_event(notebook: Notebook) -> None:
    turns = "*[[call('nap', {'seconds': 0}, id=f'n{n}')] for n in range(200)]"
    last = "[call('write', {'path': 'a.txt'}, id='w')], 'It is done.'"
    notebook.set_cell(SHOW, f"run = start({turns}, {last}); run.play(); run")
    notebook.run(SHOW)
    notebook.wait_output(SHOW, "asks you")
    notebook.set_cell(LOOK, "print(len(run.events))")
    count = int(notebook.run(LOOK))
    assert count > 800
    notebook.save()
    notebook.reload()
    notebook.wait_output(SHOW, "asks you", timeout=60)
    see_events(notebook)
    wait_until(lambda: notebook.do(lambda page: page.locator(".agentnb-count").inner_text()), f"{count} events")
    assert notebook.do(rows_scrolled_through) == list(range(count))
    approve(notebook)
    notebook.set_cell(LOOK, RESULT)
    assert notebook.run(LOOK).strip() == DECISIONS["approve"][1]


def test_an_ended_run_is_readable_after_the_notebook_is_reopened_without_its_kernel(
    notebook: Notebook, notebooks: Notebooks
) -> None:
    begin(notebook, "returned")
    approve(notebook)
    notebook.run(LOOK)
    notebook.do(lambda page: page.locator(SAVED).wait_for(state="attached"))
    notebook.save()
    saved = notebook.path.with_name("saved.ipynb")  # under its own path it would be given the same kernel
    shutil.copy(notebook.path, saved)
    again = notebooks.open_file(saved)
    again.wait_output(SHOW, "It is done.")
    assert "Error displaying widget" not in again.outputs(SHOW)


# The heights of the panel of a run in all frames, and the words of the cell's output in the last of them.
WATCH_HEIGHTS = """() => { window.heights = []; window.words = new Set();
    const area = document.querySelector(".agentnb-panel").closest(".jp-OutputArea");
    const frame = () => { heights.push(Math.round(area.getBoundingClientRect().height));
        for (const words of ["was waiting for a decision", "Saved copy of"]) if (area.innerText.includes(words)) {
            if (area.innerText.includes("completed")) window.words.add(words); }
        requestAnimationFrame(frame); };
    frame(); }"""


def test_an_ended_panel_stays_live_on_the_page_and_the_notebook_has_a_static_one(notebook: Notebook) -> None:
    begin(notebook, "returned")
    approve(notebook)
    notebook.wait_status(SHOW, "done")
    notebook.do(lambda page: page.get_by_role("tab", name="Events").click())
    notebook.do(lambda page: page.get_by_role("tab", name="Events").focus())
    notebook.do(lambda page: page.evaluate(WATCH_HEIGHTS))
    notebook.do(lambda page: page.locator(SAVED).wait_for(state="attached"))
    time.sleep(0.5)

    # The live panel stays as it was: nothing moves, and the static panel is not seen.
    heights, words = notebook.do(lambda page: page.evaluate("() => [new Set(heights).size, [...words]]"))
    assert (heights, words) == (1, [])
    focused = "() => document.activeElement.textContent"
    assert notebook.do(lambda page: page.evaluate(focused)).strip().startswith("Events")
    notebook.do(lambda page: page.locator("[role=option]").filter(has_text="call_start").first.click())
    notebook.wait_output(SHOW, "as recorded")  # in the detail pane
    notebook.do(lambda page: page.get_by_role("tab", name="Messages").click())
    notebook.do(lambda page: page.locator(".agentnb-made", has_text='write(path="a.txt") → wrote a.txt').wait_for())
    assert notebook.do(lambda page: page.get_by_role("button", name="Replay", exact=True).is_enabled())
    notebook.save()
    assert "widget-view+json" not in notebook.path.read_text(encoding="utf-8")

    # After a reload it is live again, as long as the kernel has it; then the static panel is shown.
    notebook.reload()
    notebook.do(lambda page: page.locator(".agentnb-panel").wait_for())
    assert notebook.do(lambda page: page.locator(SAVED).is_hidden())
    notebook.do(lambda page: page.get_by_role("tab", name="Events").click())
    notebook.do(lambda page: page.locator("[role=option]").filter(has_text="call_start").first.wait_for())
    close = "from ipywidgets.widgets.widget import _instances\nfor one in list(_instances.values()): one.close()"
    notebook.set_cell(LOOK, close)
    notebook.run(LOOK)
    notebook.wait_output(SHOW, "Saved copy of")
    assert notebook.do(lambda page: page.locator(".agentnb-panel").count()) == 0


def test_the_panel_of_a_run_that_ends_in_its_own_cell_is_live_until_the_cell_is_run_again(notebook: Notebook) -> None:
    notebook.set_cell(SHOW, "from IPython.display import display\nrun = start('Soon.'); display(run); print(await run)")
    notebook.set_cell(LOOK, "print(len(agentnb.widgets.COMM_IDS))")
    notebook.run(SHOW)
    notebook.do(lambda page: page.locator(".agentnb-panel >> nth=0 >> visible=true").wait_for())
    notebook.do(lambda page: page.locator(SAVED).wait_for(state="attached"))
    notebook.do(lambda page: page.get_by_role("tab", name="Messages").click())
    notebook.do(lambda page: page.get_by_role("article", name="assistant").wait_for())
    open_before = int(notebook.run(LOOK))
    for _ in range(3):
        notebook.run(SHOW)
        notebook.do(lambda page: page.locator(SAVED).wait_for(state="attached"))
    assert int(notebook.run(LOOK)) <= open_before
    assert notebook.do(lambda page: page.locator(".agentnb-panel").count()) == 1


def test_an_ended_panel_is_readable_after_a_restart_of_the_kernel(notebooks: Notebooks) -> None:
    notebook = notebooks.open(cells=[SETUP, *SHAPES["returned"], RESULT])
    notebook.run(0, timeout=60)
    begin(notebook, "returned")
    approve(notebook)
    notebook.do(lambda page: page.locator(SAVED).wait_for(state="attached"))
    notebook.restart_kernel()
    see_events(notebook)
    notebook.wait_output(SHOW, "run_end")
    notebook.save()
    notebook.reload()
    notebook.wait_output(SHOW, "Saved copy of")


def test_a_waiting_run_is_readable_after_the_notebook_is_reopened_without_its_kernel(
    notebook: Notebook, notebooks: Notebooks
) -> None:
    begin(notebook, "returned")
    at_rest = "was waiting for a decision"  # before that, the copy below the cell shows the run in progress
    notebook.do(lambda page: page.locator("[data-agentnb-copy]", has_text=at_rest).wait_for(state="attached"))
    notebook.save()
    saved = notebook.path.with_name("waiting.ipynb")
    shutil.copy(notebook.path, saved)
    again = notebooks.open_file(saved)
    again.wait_output(SHOW, at_rest)
    error = again.do(lambda page: page.get_by_text("Error displaying widget").first)
    again.do(lambda page: error.wait_for(state="attached"))
    assert again.do(lambda page: error.is_hidden())
    approve(notebook)


BOXED = """
from ipywidgets import HBox, VBox
from agentnb.widgets import Approvals, Controls, EventStream, StateDiagram
HBox([Approvals(run), VBox([Controls(run), EventStream(run)]), StateDiagram(run)])
"""


def test_parts_are_shown_next_to_each_other_in_a_row_of_widgets(notebooks: Notebooks) -> None:
    notebook = notebooks.open(cells=[SETUP, "run = start(); run.play()", BOXED])
    for cell in range(3):
        notebook.run(cell)
    parts = notebook.do(lambda page: page.locator(".agentnb-panel"))
    notebook.do(lambda page: parts.nth(3).wait_for())
    widths = notebook.do(lambda page: parts.evaluate_all("all => all.map((one) => one.clientWidth)"))
    assert min(widths) > 150


HOSTILE = """
payloads = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "[x](javascript:window.pwned=1)",
    "<svg onload=window.pwned=1>",
    "\\x1b[31mred\\x1b[0m\\x1b]8;;javascript:window.pwned=1\\x07",
    "</style><script>window.pwned=1</script>",
    "\\u202egpj.exe",
    "\\ud800 lone",
    "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "<a href='javascript:window.pwned=1'>x</a>",
    "A" * 10_000_000,
]
@agentnb.tool
def hostile(n: int) -> str:
    return payloads[n]
@agentnb.tool(approve=True)
def ask(text: str, other: str = "<script>window.pwned=1</script>") -> bytes:
    "<script>window.pwned=1</script>"
    return b"\\xff\\xfe<script>window.pwned=1</script>"
turns = [
    [{"type": "text_delta", "content": text}, call("hostile", {"n": n}, id=f"<b>{n}"), call(text[:99], {text[:99]: n})]
    for n, text in enumerate(payloads)
]
turns.append([call("ask", {"text": p}, id=f"a{n}") for n, p in enumerate(payloads)])
loop = agentnb.SessionLoop(ScriptedLLM([*turns, payloads[0]]), [hostile, ask], name=payloads[3])
run = loop.start(payloads[1], name=payloads[1])
run.play()
run
"""


def test_hostile_text_from_model_and_tools_is_text_in_every_view(notebook: Notebook) -> None:
    notebook.set_cell(SHOW, HOSTILE)
    notebook.run(SHOW, timeout=60)
    notebook.wait_output(SHOW, "12 calls wait for you", timeout=60)

    def look_everywhere(page: Any) -> None:
        for at, word in enumerate(("Edit", "Replace")):
            row = page.locator(".agentnb-call").nth(at)
            row.get_by_role("button", name=re.compile("^Details of ")).click()
            if word == "Replace":
                row.get_by_role("button", name="More: Replace", exact=True).click()
            row.get_by_role("button", name=word, exact=True).click()
        page.get_by_role("tab", name="Events").click()
        rows = page.get_by_role("log", name="Events")
        for position in (0, 0.3, 0.6, 1):
            rows.evaluate("(log, at) => { log.scrollTop = at * log.scrollHeight; }", position)
            rows.locator(".agentnb-row").nth(3).click()
            page.wait_for_timeout(100)  # a script that were run would be run by now

    notebook.do(look_everywhere)
    notebook.set_cell(LOOK, "for item in run.pending: run.approve(item)\nrun.result(60); print(run.stop_reason)")
    assert "completed" in notebook.run(LOOK, timeout=60)
    show_saved(notebook)
    notebook.wait_output(SHOW, "Saved copy of")
    assert notebook.do(lambda page: page.evaluate("() => window.pwned")) is None
    alive = ".jp-OutputArea :is(script, iframe, [onerror], [onload], [href^=javascript])"
    assert notebook.do(lambda page: page.locator(alive).count()) == 0


FLOOD = """
class Flood:
    asked = 0
    async def stream(self, messages, **options):
        self.asked += 1
        await asyncio.sleep(0.002)  # some 2,000 events a second
        if self.asked <= 5000:
            yield call("note", {"n": self.asked}, id=f"c{self.asked}")
        else:
            yield {"type": "text_delta", "content": "flooded"}
@agentnb.tool
async def note(n: int) -> str:
    return "x" * 60
run = agentnb.SessionLoop(Flood(), [note]).start("go")
run
"""
WATCH_PAGE = """() => {
    window.seen = {tasks: [], gap: 0, last: performance.now()};
    new PerformanceObserver(list => seen.tasks.push(...list.getEntries().map(task => task.duration)))
        .observe({entryTypes: ["longtask"]});
    const frame = now => {
        seen.gap = Math.max(seen.gap, now - seen.last); seen.last = now; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
}"""
SEEN = """() => new Promise(done => requestIdleCallback(() => {
    const {tasks, gap} = seen;
    Object.assign(seen, {tasks: [], gap: 0});
    done([tasks.length, Math.max(0, ...tasks), gap]);
}))"""


@pytest.mark.alone
def test_twenty_thousand_events_reach_an_open_panel(notebook: Notebook, capsys: pytest.CaptureFixture[str]) -> None:
    """Measure separately: drawing the panel, receiving the events, and adding the static panel of the ended run."""

    def seen() -> tuple[int, float, float]:
        tasks, longest, gap = notebook.do(lambda page: page.evaluate(SEEN))
        return tasks, longest, gap

    notebook.do(lambda page: page.evaluate(WATCH_PAGE))
    notebook.set_cell(SHOW, FLOOD)
    notebook.run(SHOW)
    notebook.wait_output(SHOW, "Play")
    drawn = seen()
    notebook.set_cell(LOOK, "run.play(); print(run.result(120), len(run.events))")
    assert notebook.run(LOOK, timeout=120).strip() == "flooded 20005"
    ended = time.monotonic()
    notebook.do(lambda page: page.locator(".agentnb-trace-row", has_text="flooded").last.wait_for(state="attached"))
    shown = time.monotonic() - ended
    live = seen()
    notebook.do(lambda page: page.locator(SAVED).wait_for(state="attached"))
    saved = seen()
    assert notebook.do(lambda page: page.locator(".agentnb-panel").is_visible())
    with capsys.disabled():
        print(
            f"\n20,000 events in JupyterLab: {live[0]} long tasks, longest {live[1]:.0f} ms, widest frame gap"
            f" {live[2]:.0f} ms, last event shown after {shown:.2f} s; as it was drawn {drawn[0]} more, longest"
            f" {drawn[1]:.0f} ms; with the static panel {saved[0]} more, longest {saved[1]:.0f} ms"
        )
    assert max(drawn[1], live[1], saved[1]) < 1000


def test_a_panel_whose_kernel_has_died_says_so(notebooks: Notebooks) -> None:
    notebook = notebooks.open(cells=[SETUP, *SHAPES["returned"], RESULT])
    notebook.run(0, timeout=60)
    begin(notebook, "returned")
    notebook.kill_kernel()
    notebook.await_new_kernel()
    notebook.wait_output(SHOW, "The kernel is gone", timeout=60)
    see_events(notebook)
    notebook.wait_output(SHOW, "approval_request")
    assert notebook.do(lambda page: page.get_by_role("button", name="Approve", exact=True).is_disabled())
