"""Hostile text from every source stays text in every view of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from nbformat import v4
from playwright.sync_api import Browser

from agentnb import SessionLoop
from agentnb.testing import ScriptedLLM, call
from agentnb.widgets import static_html
from agentnb.widgets.static.panel import plain_text
from agentnb.widgets.text import visible
from agentnb.widgets.widget import PARTS
from tests.widgets.exports import (
    OWN_REQUESTS,
    commonmark,
    github,
    github_markdown,
    html_of,
    markdown_of,
    other_markdown,
)
from tests.widgets.hostile import FAMILIES, HUGE, Watched, finish, hostile_run, write
from tests.widgets.pages import PanelPage, RecordedPanel

pytestmark = pytest.mark.browser

LIVE = "#here"
FROZEN = ".agentnb-static"
# Elements and attributes that fetch, execute, embed or navigate; a panel never has them.
ALIVE = """(selector) => [...document.querySelectorAll(selector)].flatMap((root) =>
  [...root.querySelectorAll("*")].flatMap((node) => {
    const bad = "script iframe frame object embed img image a area link meta base form video audio source use set " +
      "animate animatemotion animatetransform foreignobject template noscript xmp plaintext math";
    const leads = /^on|^(src|srcset|srcdoc|href|action|formaction|background|ping|http-equiv|autofocus)$|:href$/i;
    // A form that leads nowhere, and a picture in the page, which as such cannot load or execute anything.
    const picture = "img:is(:not([src]), [src^='data:image/svg+xml;base64,'])";
    const own = node.matches(`form.agentnb-form:not([action]), ${picture}`);
    const found = bad.split(" ").includes(node.localName.toLowerCase()) && !own ? [node.localName] : [];
    for (const { name, value } of node.attributes) {
      if (leads.test(name) && !(own && name === "src")) found.push(`${node.localName} ${name}`);
      if (name === "style" && /url|@import|expression/i.test(value)) found.push(`style ${value}`);
    }
    return found;
  }))"""
SHOWN = """(selector) => [...document.querySelectorAll(selector)].map((root) => [
  root.textContent,
  ...[...root.querySelectorAll("*")].flatMap((node) =>
    ["aria-label", "aria-description", "title", "placeholder", "label", "alt"]
      .map((name) => node.getAttribute(name) ?? "")),
].join("\\n"))"""
WIDE = """() => [...document.body.querySelectorAll("*")]
  .filter(() => document.documentElement.scrollWidth > innerWidth)
  .filter((node) => node.getBoundingClientRect().right > innerWidth)
  .map((node) => `${node.localName}.${node.getAttribute("class")}`)"""
# Open every row, and show abbreviated ones in full.
ROWS = """(alive) => [...document.querySelectorAll("[data-row]")].flatMap((row) => {
  row.click();
  for (const button of document.querySelectorAll("button")) if (button.textContent === "Show all") button.click();
  return eval(alive)("#here");
})"""
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f\ufffe]")


def words_of(text: str) -> str:
    return " ".join(text.split())


def expected(payload: str) -> str:
    return words_of(visible(payload))[:140]


@pytest.fixture(scope="module")
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    context.set_default_timeout(30_000)
    yield Watched(context)
    context.close()


@pytest.fixture
def seen(watched: Watched) -> Watched:
    watched.page.goto("about:blank")
    watched.seen.clear()
    return watched


@pytest.fixture(scope="module")
def frozen() -> Iterator[dict[str, str]]:
    """Each family's panel, frozen while its run waits and when its model has failed, in turn."""
    made: dict[str, str] = {}
    runs = []
    for family, payload in FAMILIES.items():
        runs.append(hostile_run(payload, with_huge=family == "very long"))
        if len(runs) % 4:
            finish(runs[-1], payload)
        made[family] = static_html(runs[-1])
    yield made
    for run in runs:
        run.cancel()


@pytest.fixture(scope="module")
def notebook(frozen: dict[str, str]) -> Any:
    """A notebook with all of them, and with the state of live panels in its metadata."""
    cells = []
    for html in frozen.values():
        cells.append(v4.new_code_cell("run", outputs=[v4.new_output("display_data", {"text/html": html})]))
    state = {f"{n:032x}": {"model_name": "AnyModel", "model_module": "anywidget", "state": {"status": payload}}
             for n, payload in enumerate(map(visible, FAMILIES.values()))}  # fmt: skip
    widgets = {"application/vnd.jupyter.widget-state+json": {"version_major": 2, "version_minor": 0, "state": state}}
    return v4.new_notebook(cells=cells, metadata={"widgets": widgets})


def work_through(shown: PanelPage) -> None:
    """Open everything that can be opened, show every tab, and move the pointer over all elements."""
    page = shown.page
    page.evaluate("() => document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    for tab in page.get_by_role("tab").all() or [None]:
        if tab is not None:
            tab.click()
            shown.settle()
        assert page.evaluate(ROWS, ALIVE) == []
        shown.settle()


def check_live(shown: PanelPage, seen: Watched, payload: str) -> None:
    page = shown.page
    assert page.evaluate(ALIVE, LIVE) == []
    (text,) = page.evaluate(SHOWN, LIVE)
    assert expected(payload) in words_of(text)
    assert HIDDEN.findall(text) == []
    assert page.evaluate(WIDE) == []
    assert seen.came_of_it() == []


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_text_stays_text_in_the_live_panel(family: str, seen: Watched) -> None:
    payload = FAMILIES[family]
    run = hostile_run(payload, with_huge=family == "very long")
    panel = RecordedPanel(run)
    shown = PanelPage(seen.page, panel)
    page = shown.page
    shown.until(lambda: page.locator("[data-do=replace]").count() == 2, "the questions")
    shown.until(lambda: page.locator(".agentnb-diagram svg").count(), "the diagram")
    for word in ("edit", "replace"):
        for toggle in page.locator(f"[data-do={word}]").all():
            toggle.dispatch_event("click")
        shown.settle()
        check_live(shown, seen, payload)
    finish(run, payload)
    shown.until(lambda: page.locator(".agentnb-state[data-standing='model failed']").count(), "the failure")
    work_through(shown)
    check_live(shown, seen, payload)
    assert shown.errors == []
    run.cancel(payload)
    panel.close()


def test_hostile_text_stays_text_in_each_part_alone(seen: Watched) -> None:
    payload = "\n".join(payload for family, payload in FAMILIES.items() if family != "very long")
    run = hostile_run(payload)
    for part in PARTS:
        seen.page.goto("about:blank")
        panel = RecordedPanel(run, parts=(part,))
        shown = PanelPage(seen.page, panel)
        work_through(shown)
        assert seen.page.evaluate(ALIVE, LIVE) == [], part
        assert seen.came_of_it() == [], part
        assert shown.errors == [], part
        panel.close()
    run.cancel()


def test_ten_million_characters_are_abbreviated_in_every_view(seen: Watched) -> None:
    """Its reasoning, its answer, and the path of its call."""
    chunks = [
        {"type": "reasoning_delta", "content": HUGE},
        {"type": "text_delta", "content": HUGE},
        call("write", {"path": HUGE}, id="w"),
    ]
    run = SessionLoop(ScriptedLLM([chunks]), [write], name="long").start("go")
    panel = RecordedPanel(run)
    shown = PanelPage(seen.page, panel)
    run.play()
    shown.until(lambda: seen.page.locator("[data-do=approve]").count(), "the question")
    work_through(shown)
    assert shown.errors == []
    (text,) = seen.page.evaluate(SHOWN, LIVE)
    assert len(text) < len(HUGE) // 4
    run.cancel()
    assert len(static_html(run)) < len(HUGE) // 4
    panel.close()


@pytest.mark.parametrize("way", ["HTML", "PDF", "Markdown", "other Markdown", "GitHub", "GitHub Markdown"])
def test_hostile_text_stays_text_in_every_export(
    way: str, notebook: Any, frozen: dict[str, str], seen: Watched
) -> None:
    document = {
        "HTML": lambda: html_of(notebook),
        "PDF": lambda: html_of(notebook, template_name="webpdf"),
        "Markdown": lambda: commonmark(markdown_of(notebook)),
        "other Markdown": lambda: other_markdown(markdown_of(notebook)),
        "GitHub": lambda: github("\n".join(frozen.values())),
        "GitHub Markdown": lambda: github_markdown(markdown_of(notebook)),
    }[way]()
    seen.open(document, way.replace(" ", "-"))
    page = seen.page
    classes = "GitHub" not in way
    root = FROZEN if classes else "body"
    page.evaluate("() => document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    page.mouse.move(300, 400)
    page.mouse.click(500, 500)
    assert page.evaluate(ALIVE, root) == []
    texts = page.evaluate(SHOWN, root)
    if classes:
        assert len(texts) == len(frozen)
    for name, text in zip(frozen, texts if classes else texts * len(frozen), strict=True):
        assert expected(FAMILIES[name]) in words_of(text), name
        assert HIDDEN.findall(text) == [], name
    assert not classes or page.evaluate(WIDE) == []  # without our style sheet it is up to the page
    assert seen.came_of_it(OWN_REQUESTS) == []


def test_the_plain_text_is_one_line_without_control_characters() -> None:
    for family, payload in FAMILIES.items():
        run = hostile_run(payload)
        line = plain_text(run)
        assert HIDDEN.findall(line) == [], family
        assert "\n" not in line, family
        line.encode()
        run.cancel()
