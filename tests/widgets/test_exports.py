"""A notebook is executed once and read without a kernel: as saved, in each export, on GitHub."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pypdf
import pytest
from nbclient import NotebookClient
from nbformat import v4
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.chromium import FLAGS, find_chromium
from tests.kernels import without_ports
from tests.widgets.exports import commonmark, github, github_markdown, html_of, jupyterlab, markdown_of
from tests.widgets.pages import launch

pytestmark = [pytest.mark.browser, pytest.mark.kernel]

EVENTS = 10_000
LIMIT = 200_000
"""Bytes that a run adds to a notebook at most."""

CELLS = [
    """
import agentnb
from agentnb import Loop
from agentnb.loops.want import say
from agentnb.testing import ScriptedLLM, call, text

@agentnb.tool
def search(query: str) -> list:
    return [f"found {query}"]

@agentnb.tool(approve=True)
def delete_file(path: str) -> str:
    return f"deleted {path}"

def start(*turns, name):
    return agentnb.SessionLoop(ScriptedLLM(turns), [search, delete_file]).start("tidy up", name=name)
""",
    """
look = [*text("I will look."), call("search", {"query": "drafts"})]
done = start(look, "It costs $5, not $6.\\n\\n# Two", name="done")
done.play()
done
""",
    """
waiting = start([call("delete_file", {"path": "/tmp/old.txt"}, id="c0")], "Gone.", name="waiting")
waiting.play()
waiting
""",
    f"""
def chatter(input):
    for number in range({EVENTS}):
        yield say(f'"{{number}}" <said> & said again, with "quotes" and more words than that')

long = Loop.from_generator(chatter).start("go", name="long")
long.play()
long
""",
    "await done; await long; print(waiting.pending[0].name, len(long.events))",
]
SAID = {
    "done": (
        "done",
        "tidy up",
        "I will look.",
        'search(query="drafts") → ["found drafts"]',
        "It costs $5, not $6.",
        "Saved copy of",
    ),
    "waiting": ("waits for you", "delete_file was waiting for a decision", "/tmp/old.txt", "Saved copy of"),
    "long": ("done", "10,00", "messages left out", '"0" <said> & said again', "9999"),
}


@pytest.fixture(scope="module")
def notebook() -> Any:
    made = v4.new_notebook(cells=[v4.new_code_cell(source) for source in CELLS])
    NotebookClient(made, timeout=120, kernel_name="python3", config=without_ports()).execute()
    assert "delete_file 1000" in made.cells[-1].outputs[0].text
    return nbformat.reads(nbformat.writes(made), 4)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = launch(playwright)
        yield made
        made.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 900})
    yield context.new_page()
    context.close()


def panels(notebook: Any) -> dict[str, str]:
    """Return the outputs of the three cells."""
    outputs = (cell.outputs for cell in notebook.cells[1:4])
    pages = [[output.data.get("text/html", "") for output in made if "data" in output] for made in outputs]
    return {name: "".join(made) for name, made in zip(SAID, pages, strict=True)}


def check(text: str, *names: str) -> None:
    told = " ".join(text.split())
    for words in (words for name in names or SAID for words in SAID[name]):
        assert words in told, words


def show(page: Page, html: str, path: Path) -> str:
    path.write_text(html, encoding="utf-8")
    page.goto(path.as_uri(), wait_until="load")
    return str(page.evaluate("() => document.body.textContent"))


def test_each_panel_is_saved_in_its_last_state(notebook: Any, page: Page, tmp_path: Path) -> None:
    for name, html in panels(notebook).items():
        check(show(page, html, tmp_path / "saved.html"), name)
        (shown,) = page.locator(".agentnb-static").all()
        assert shown.get_by_role("img", name="State diagram").is_visible()
        assert shown.get_by_role("img", name="Timeline").is_visible() or name == "long"
        pictures = shown.locator("img").evaluate_all("all => all.map(image => image.naturalWidth)")
        assert min(pictures) > 0
    of_ended = [output.data for n in (1, 3) for output in notebook.cells[n].outputs if "data" in output]
    assert not [data for data in of_ended if "application/vnd.jupyter.widget-view+json" in data]


def test_a_run_of_ten_thousand_events_adds_less_than_200_kb(notebook: Any) -> None:
    with_it, without = (nbformat.reads(nbformat.writes(notebook), 4) for _ in range(2))
    without.cells[3].outputs = []
    state = without.metadata.widgets["application/vnd.jupyter.widget-state+json"].state
    for id in [id for id, model in state.items() if model.state.get("status", {}).get("run") in ("done", "long")]:
        assert len(json.dumps(state.pop(id))) < 3000
    added = len(nbformat.writes(with_it).encode()) - len(nbformat.writes(without).encode())
    assert added < LIMIT


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_html_export_shows_every_panel_in_the_theme_of_the_page(
    notebook: Any, page: Page, tmp_path: Path, theme: str
) -> None:
    page.emulate_media(color_scheme="dark" if theme == "light" else "light")  # the system's is another
    check(show(page, html_of(notebook, theme=theme), tmp_path / "export.html"))
    assert page.locator(".agentnb-static").count() == 3
    colours = page.evaluate(
        """() => [...document.querySelectorAll(".agentnb-static")].map((panel) => {
          const { backgroundColor, color } = getComputedStyle(panel);
          const sum = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
          return [backgroundColor, sum(color)];
        })"""
    )
    for ground, ink in colours:
        assert ground == "rgba(0, 0, 0, 0)", "the page shows through"
        assert ink < 300 if theme == "light" else ink > 500


def test_the_rendered_markdown_export_shows_every_panel(notebook: Any, page: Page, tmp_path: Path) -> None:
    check(show(page, commonmark(markdown_of(notebook)), tmp_path / "rendered.html"))
    assert page.locator(".agentnb-static").count() == 3
    assert page.locator(".agentnb-static h1, .agentnb-static em").count() == 0
    assert page.locator(".agentnb-static b").first.evaluate("node => getComputedStyle(node).borderRadius") == "10px"


def test_the_pdf_export_contains_the_text_of_the_panels(notebook: Any, tmp_path: Path) -> None:
    """Chromium prints the HTML export; no LaTeX."""
    source, target = tmp_path / "export.html", tmp_path / "export.pdf"
    source.write_text(html_of(notebook, template_name="webpdf"), encoding="utf-8")
    command = [
        find_chromium(),
        "--headless",
        *FLAGS,
        "--no-pdf-header-footer",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    subprocess.run([*command, f"--print-to-pdf={target}", source.as_uri()], check=True, timeout=60, capture_output=True)
    pdf = pypdf.PdfReader(io.BytesIO(target.read_bytes()))
    text = " ".join(page.extract_text() for page in pdf.pages)
    check(text)
    assert "9990" in text, "nothing is cut off that scrolls on a page"
    assert len(pdf.pages) < 20


def test_the_html_export_of_a_notebook_that_is_not_trusted_shows_every_panel(
    notebook: Any, page: Page, tmp_path: Path
) -> None:
    """Each output as JupyterLab shows it: filtered by the rules of its sanitizer."""
    filtered = nbformat.reads(nbformat.writes(notebook), 4)
    del filtered.metadata["widgets"]
    before: set[str] = set()
    after: set[str] = set()
    for cell in filtered.cells[1:4]:
        for output in cell.outputs:
            if "text/html" in output.get("data", {}):
                whole = output.data["text/html"]
                output.data = {"text/html": jupyterlab(whole)}
                before |= _properties(whole)
                after |= _properties(output.data["text/html"])
    assert before == after, "no style is lost"
    for theme in ("light", "dark"):
        check(show(page, html_of(filtered, theme=theme), tmp_path / f"{theme}.html"))
        panels_shown = page.locator(".agentnb-static")
        assert panels_shown.count() == 3
        pictures = panels_shown.locator("img").evaluate_all("all => all.map(image => image.naturalWidth)")
        assert min(pictures) > 0
        assert page.locator(".agentnb-static style, .agentnb-static svg").count() == 0
        rows = panels_shown.first.locator("li")
        tops = rows.evaluate_all("all => all.map(row => row.getBoundingClientRect().top)")
        assert tops == sorted(tops)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def _properties(html: str) -> set[str]:
    """Return the properties of all inline styles."""
    styles = re.findall(r'style="([^"]*)"', html)
    return {name for style in styles for name in re.findall(r"([a-z-]+)\s*:", style)}


@pytest.mark.parametrize("way", ["notebook", "Markdown"])
def test_the_panels_are_readable_on_github(notebook: Any, page: Page, tmp_path: Path, way: str) -> None:
    if way == "Markdown":
        html = github_markdown(markdown_of(notebook))
    else:
        html = github("<hr>".join(panels(notebook).values()))
    text = show(page, html, tmp_path / "github.html")
    check(text)
    text = text[re.search(r"✓ done\s*done\s*SessionLoop", text).start() :]  # type: ignore[union-attr]
    order = [text.index(words) for words in ("SessionLoop", "tidy up", "Turn 1", "I will look.", "Saved copy of")]
    assert order == sorted(order)
    assert "border" not in text


def test_a_panel_is_complete_without_the_metadata_of_the_notebook(notebook: Any, page: Page, tmp_path: Path) -> None:
    bare = nbformat.reads(nbformat.writes(notebook), 4)
    del bare.metadata["widgets"]
    check(show(page, html_of(bare), tmp_path / "bare.html"))
