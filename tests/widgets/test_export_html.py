"""The exported file: one HTML file that replays a run from `file://`, without a kernel and without a network."""

from __future__ import annotations

import json
import os
import re
import threading
import zlib
from base64 import b85decode
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Picture
from playwright.sync_api import Browser, BrowserContext, Page, expect

from agentnb import SessionLoop, Store, UsageError, replay
from agentnb.content import Image, Pdf, message
from agentnb.core.evolve import nested
from agentnb.testing import ScriptedLLM, call, text
from agentnb.tools import tool
from agentnb.widgets.bundle import compact_style_sheet, file_style_sheet
from agentnb.widgets.exporting import _BASE85, _DIGITS, _States, file_name, page_of
from agentnb.widgets.text import as_json
from agentnb.widgets.views.status import state_data
from agentnb.widgets.views.trace import Trace
from agentnb.widgets.views.transcript import Transcript
from tests import designs
from tests.widgets import axe, scenes
from tests.widgets.hostile import FAMILIES, finish, hostile_run
from tests.widgets.pages import PanelPage, RecordedPanel, press_in_menu
from tests.widgets.test_hostile import ALIVE, HIDDEN, SHOWN, expected, words_of
from tests.widgets.test_trace_page import count, flat, grid, read

pytestmark = pytest.mark.browser


class Opened:
    """A page of a browser that has no network, and what the page asked for or reported."""

    def __init__(self, context: BrowserContext) -> None:
        context.set_default_timeout(30_000)
        context.set_offline(True)
        self.seen: list[str] = []
        self.page: Page = context.new_page()
        context.on("request", lambda request: self.seen.append(f"request {request.url}"))
        context.on("page", lambda page: self.seen.append(f"window {page.url}"))
        self.page.on("pageerror", lambda error: self.seen.append(f"error {error}"))
        self.page.on("console", lambda message: self.seen.append(f"console {message.text}"))
        self.page.on("dialog", lambda dialog: (self.seen.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def open(self, path: Path) -> Page:
        self.seen.clear()
        self.page.goto(path.as_uri())
        expect(self.page.locator(".agentnb-panel")).to_be_visible()
        self.draw()
        return self.page

    def draw(self) -> None:
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def go_to(self, position: int) -> None:
        """Move to the moment after so many events, by the keyboard."""
        slider = self.page.get_by_role("slider", name="Position")
        slider.focus()
        self.page.keyboard.press("End")
        total = int(slider.get_attribute("aria-valuemax") or 0) + 1
        for _ in range(total - position):
            self.page.keyboard.press("ArrowLeft")
        expect(slider).to_have_attribute("aria-valuenow", str(position - 1))
        self.draw()

    def check(self, path: Path) -> None:
        """Check that the page has read its own file and nothing else, and reported nothing."""
        assert not self.page.evaluate("() => window.pwned")
        assert self.seen == [f"request {path.as_uri()}"]


@pytest.fixture(scope="module")
def offline(browser: Browser) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1200, "height": 800}, accept_downloads=False)
    yield Opened(context)
    context.close()


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def played(world: str) -> Any:
    run = designs.WORLDS[world]().start("go", approve=True, name=world)
    run.result(30)
    return run


@tool
def look(at: str) -> dict[str, Any]:
    """Look at something."""
    return {"at": at, "seen": [f"{at} {number}" for number in range(5)]}


def long_run(turns: int) -> Any:
    """A run of four events a turn."""
    made: list[Any] = []
    for number in range(turns):
        words = (
            f"Turn {number}: I look at number {number * 7919 % 10_007}, because {number * 104_729 % 65_537} was odd."
        )
        made.append([*text(words), call("look", {"at": f"number {number * 7919 % 10_007}"})])
    run = SessionLoop(ScriptedLLM([*made, "Done."]), [look], max_turns=turns + 10).start("Look at all.", name="long")
    return play_to_the_end(run)


def play_to_the_end(run: Any) -> Any:
    """Play a run in another thread: Playwright keeps a loop marked as running on this one."""
    playing = threading.Thread(target=run.play)
    playing.start()
    playing.join()
    run.result(300)
    return run


def data_of(html: str) -> str:
    """Return the data of a file, decompressed."""
    found = re.search('id="data">([^<]*)<', html)
    assert found is not None
    return zlib.decompress(b85decode(found.group(1).encode().translate(bytes.maketrans(_DIGITS, _BASE85)))).decode()


# -- the page


@pytest.mark.parametrize("world", designs.WORLDS)
def test_the_file_has_the_trace_of_the_live_page(world: str, page: Page, offline: Opened, tmp_path: Path) -> None:
    run = played(world)
    panel = RecordedPanel(run)
    shown = PanelPage(page, panel, tab="Trace")
    total = len(list(flat(Trace().follow(run.events).rows())))
    shown.until(lambda: count(page) == total, "the rows")
    live = read(page)
    panel.close()
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    expect(grid(opened)).to_have_attribute("aria-rowcount", str(total))
    assert read(opened) == live
    expect(opened.locator(".agentnb-state-word")).to_have_text(
        (run.stop_reason == "completed" and "done") or re.compile(".")
    )
    offline.check(path)


@pytest.mark.parametrize("world", ["session", "loop_of_loops", "session_of_agents"])
def test_the_keyboard_moves_the_file_to_any_moment(world: str, offline: Opened, tmp_path: Path) -> None:
    run = played(world)
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    total = len(run.events)
    for position in (total - 3, total // 2, 5):
        offline.go_to(position)
        rows = list(flat(Trace().follow(run.events[:position]).rows()))
        expect(grid(opened)).to_have_attribute("aria-rowcount", str(len(rows)))
        assert [one["number"] for one in read(opened)] == [one.number for _, one in rows]
        expect(opened.locator(".agentnb-state-word")).to_have_text(f"as it was at #{position - 1}")
        phase = run.at(position - 1).phase
        expect(opened.get_by_role("img", name="State diagram")).to_have_attribute("data-phase", phase)
    opened.keyboard.press("End")
    expect(opened.locator(".agentnb-state-word")).to_have_text(re.compile("done|stopped"))
    offline.check(path)


def test_steps_end_where_a_replay_ends_them_and_play_plays_to_the_end(offline: Opened, tmp_path: Path) -> None:
    run = played("session")
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    slider = opened.get_by_role("slider", name="Position")
    for unit in ("call", "turn", "phase", "event"):
        slider.focus()
        opened.keyboard.press("Home")
        opened.get_by_label("Unit of a step").select_option(unit)
        recorded = replay(run)
        for _ in range(4):
            recorded.step(unit)  # type: ignore[arg-type]
            opened.get_by_role("button", name="Step", exact=True).click()
            expect(slider).to_have_attribute("aria-valuenow", str(recorded.position - 1))
    opened.get_by_label("Speed").select_option("0")
    opened.get_by_role("button", name="Play", exact=True).click()
    expect(slider).to_have_attribute("aria-valuenow", str(len(run.events) - 1))
    expect(opened.get_by_role("button", name="Play", exact=True)).to_be_visible()
    offline.check(path)


def test_the_file_has_the_messages_of_each_moment(offline: Opened, tmp_path: Path) -> None:
    run = played("session")
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    tab(opened, "Messages")
    log = opened.get_by_role("region", name="Messages")
    messages = log.get_by_role("article")
    whole = Transcript(run, run.loop, Trace().follow(run.events).spans.causes)
    expect(messages).to_have_count(len(list(whole.entries(0, len(whole)))))
    expect(log).to_contain_text("wrote 3")
    first = next(event.seq for event in run.events if event.type == "model_end")
    offline.go_to(first + 1)
    expect(messages).to_have_count(2)
    expect(log).to_contain_text("no result yet")
    expect(log).not_to_contain_text("wrote 3")
    offline.check(path)


def test_the_loops_of_the_messages_are_those_of_the_run(offline: Opened, tmp_path: Path) -> None:
    run = played("session_of_agents")
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    tab(opened, "Messages")
    loops = opened.get_by_label("Loop of messages")
    begun = [event for event in run.events if event.type == "run_start" and event.path]
    expect(loops.locator("option")).to_have_count(1 + len(begun))
    for event in begun:
        loops.select_option(str(event.seq))
        said = Transcript(run, None, Trace().follow(run.events).spans.causes, event.path, begun=event.seq)
        expect(opened.get_by_role("article")).to_have_count(len(list(said.entries(0, len(said)))))
    offline.check(path)


def test_an_event_is_shown_in_full_and_what_needs_a_kernel_is_not_offered(offline: Opened, tmp_path: Path) -> None:
    run = scenes.completed()
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    grid(opened).focus()
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("Enter")
    detail = opened.get_by_role("region", name="Detail")
    expect(detail).to_contain_text("read_table")
    expect(detail).to_contain_text("nile")
    for name in ("What if", "Break here", "Show all", "Cancel", "Snapshot", "Fork", "Steer", "Export"):
        expect(opened.get_by_text(name, exact=False).locator("visible=true")).to_have_count(0)
    grid(opened).focus()
    opened.keyboard.press("w")
    expect(opened.get_by_role("group", name="What if")).to_have_count(0)
    for name in ("Events", "Messages", "Usage", "Trace"):
        tab(opened, name)
        offline.draw()
    opened.keyboard.press("/")
    opened.keyboard.type("reporter")
    expect(grid(opened).get_by_role("row").filter(has_text="read_table")).to_have_count(0)
    offline.check(path)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_file_has_no_accessibility_faults_and_follows_the_theme(
    theme: Any, offline: Opened, tmp_path: Path
) -> None:
    path = scenes.completed().export_html(tmp_path / "run.html")
    offline.page.emulate_media(color_scheme=theme)
    opened = offline.open(path)
    opened.evaluate(f"() => {{ {axe.source()} }}")
    for name in ("Events", "Messages", "Usage", "Trace"):
        tab(opened, name)
        offline.draw()
        found = opened.evaluate(
            """async (rules) => (await window.axe.run(document, { resultTypes: ["violations"], rules }))
          .violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200))}`)""",
            {"heading-order": {"enabled": False}},
        )  # sections are of level 4, as in a notebook
        assert found == []
    ground = opened.evaluate("() => getComputedStyle(document.querySelector('.agentnb-panel')).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if theme == "light" else "rgb(19, 22, 25)")
    assert opened.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    offline.check(path)
    offline.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_text_stays_text_in_the_file(family: str, offline: Opened, tmp_path: Path) -> None:
    payload = FAMILIES[family]
    run = hostile_run(payload, with_huge=family == "very long")
    finish(run, payload)
    path = run.export_html(tmp_path / "run.html")
    html = path.read_text(encoding="utf-8")
    assert re.findall(r"<(/?script|/?title|/?style|/?main|img|iframe|base|link)\b", html.split("</title>")[1]) == [
        *("style", "/style", "main", "/main", *(["script", "/script"] * 4)),
    ]
    opened = offline.open(path)
    for name in ("Events", "Messages", "Usage", "Trace"):
        tab(opened, name)
        offline.draw()
        opened.evaluate("() => document.querySelectorAll('[data-row]').forEach((row) => row.click())")
        offline.draw()
        assert opened.evaluate(ALIVE, ".agentnb-panel") == []
    (shown,) = opened.evaluate(SHOWN, ".agentnb-panel")
    assert expected(payload) in words_of(shown)
    assert HIDDEN.findall(shown) == []
    offline.check(path)
    run.cancel()


def test_pictures_are_in_the_file_and_do_not_cut_its_texts(tmp_path: Path, offline: Opened) -> None:
    drawn = BytesIO()
    Picture.effect_noise((400, 400), 90).save(drawn, "PNG")
    long = "word " * 500
    loop = SessionLoop(ScriptedLLM(["done"]))
    run = loop.start(message(long, Image.from_bytes(drawn.getvalue()), Pdf.from_bytes(b"%PDF-1.7")))
    run.result(30)
    opened = offline.open(run.export_html(tmp_path / "run.html"))
    tab(opened, "Messages")
    shown = opened.get_by_alt_text("Picture 1 of 1")
    expect(shown).to_be_visible()
    assert shown.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 400
    for words in (long.strip(), "[document: application/pdf, 9 bytes]"):
        expect(opened.get_by_role("region", name="Messages")).to_contain_text(words)


# -- the file


def test_the_file_is_small(tmp_path: Path, offline: Opened) -> None:
    small = scenes.completed()
    assert 30 <= len(small.events) <= 40
    assert len(page_of(small)) < 111_000
    run = long_run(2500)
    assert len(run.events) > 10_000
    path = run.export_html(tmp_path / "long.html")
    assert path.stat().st_size < 1_500_000
    opened = offline.open(path)
    expect(opened.get_by_role("slider", name="Position")).to_have_attribute("aria-valuemax", str(len(run.events) - 1))
    expect(opened.locator(".agentnb-state-word")).to_have_text("done")
    tab(opened, "Messages")
    expect(opened.get_by_role("region", name="Messages")).to_contain_text("Turn 2499: I look at number")
    offline.check(path)


@pytest.mark.parametrize("world", ["execution", "completed"])
def test_the_file_has_the_state_of_each_event(world: str) -> None:
    run = scenes.completed() if world == "completed" else played(world)
    states: dict[str, dict[str, dict[str, Any]]] = {}
    for event, changed in zip(run.events, _States(run.events).changed, strict=True):
        if event.type == "run_start":
            states[event.path] = {"facts": {}, "values": {}}
        for part, fields in (json.loads(changed) if changed else {}).items():
            known = states[event.path][part]
            known.update(fields)
            for name in [name for name, value in fields.items() if value is None]:
                del known[name]
        there = nested(run.at(event.seq).state, event.path)
        assert states[event.path] == json.loads(as_json(state_data(there))), event.seq


def test_state_and_call_graph_are_shown_in_the_file(tmp_path: Path, offline: Opened) -> None:
    run = scenes.completed()
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    tab(opened, "Graph")
    graph = opened.locator(".agentnb-graph")
    expect(graph).to_contain_text("at the end of the recording")
    expect(graph.get_by_role("img")).to_be_visible()
    tab(opened, "Events")
    row = next(event for event in run.events if event.type == "call_end" and event.path)
    opened.get_by_role("log", name="Events").get_by_role("option").filter(has_text=re.compile(rf"^{row.seq}\D")).click()
    here = opened.get_by_role("region", name="Detail", exact=True).locator(".agentnb-state-here")
    here.locator("summary").click()
    facts = state_data(nested(run.at(row.seq).state, row.path))["facts"]
    for name in ("phase", "turn", "messages"):
        expect(here).to_contain_text(re.compile(rf"{name}\s*{facts[name]}"))
    offline.check(path)


def test_every_rule_of_an_element_that_the_file_has_is_in_its_style_sheet(tmp_path: Path, offline: Opened) -> None:
    opened = offline.open(scenes.completed().export_html(tmp_path / "run.html"))
    for name in ("Events", "Messages", "Usage", "Trace"):
        tab(opened, name)
        offline.draw()
    opened.get_by_role("row").nth(3).click()
    offline.draw()
    # Selectors of the whole style sheet that hit an element are rules of the file, too.
    missing = opened.evaluate(
        """(whole) => {
          const selectors = (rules) => [...rules].flatMap((rule) =>
            rule.selectorText ? [rule.selectorText] : rule.cssRules ? selectors(rule.cssRules) : []);
          const sheet = new CSSStyleSheet();
          sheet.replaceSync(whole);
          const own = new Set([...document.styleSheets].flatMap(({ cssRules }) => selectors(cssRules)));
          const bare = (text) => text.replace(/::[a-z-]+/g, "");
          return selectors(sheet.cssRules).filter((text) => !own.has(text) && document.querySelector(bare(text)));
        }""",
        compact_style_sheet(),
    )
    assert missing == []
    assert len(file_style_sheet()) < 0.75 * len(compact_style_sheet())


def test_data_that_cannot_be_compressed_is_cut_so_that_the_file_stays_bounded() -> None:
    letters = "".join(chr(0x4E00 + number * 7919 % 20_011) for number in range(200_000))
    turns = [
        [
            {"type": "text_delta", "content": letters[n * 400 : n * 400 + 4000]},
            call("look", {"at": letters[n : n + 900]}),
        ]
        for n in range(60)
    ]
    run = SessionLoop(ScriptedLLM([*turns, "Done."]), [look], max_turns=400).start("go")
    assert len(page_of(play_to_the_end(run))) < 330_000


def test_an_event_of_some_size_is_whole_in_the_file(offline: Opened, tmp_path: Path) -> None:
    long = " ".join(f"word{number}" for number in range(1000))
    run = SessionLoop(ScriptedLLM([[call("look", {"at": long})], long]), [look]).start("go")
    run.result(30)
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    tab(opened, "Messages")
    expect(opened.get_by_role("region", name="Messages")).to_contain_text("word900")
    tab(opened, "Trace")
    grid(opened).get_by_role("row").filter(has_text="look").click()
    expect(opened.get_by_role("region", name="Detail")).to_contain_text("word900")
    offline.check(path)


def test_the_policy_allows_the_scripts_of_the_file_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    path = scenes.completed().export_html(tmp_path / "run.html")
    html = path.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert re.fullmatch(
        r"default-src 'none'; script-src 'sha256-[^']+' 'sha256-[^']+'; style-src 'unsafe-inline'; base-uri 'none';"
        r" form-action 'none'",
        policy.group(1),
    )
    path.write_text(html.replace("</body>", "<script>window.pwned = 1</script></body>"), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    expect(page.locator(".agentnb-panel")).to_be_visible()
    assert not page.evaluate("() => window.pwned")
    blocked = page.evaluate("() => fetch('https://example.com/').then(() => 'fetched', () => 'blocked')")
    assert blocked == "blocked"
    assert not re.search(r"--jp|jupyter", page.evaluate("() => document.body.innerText"), re.IGNORECASE)
    context.close()


# -- runs


def test_a_run_that_waits_is_exported_as_it_is(offline: Opened, tmp_path: Path) -> None:
    run = scenes.waiting()
    path = run.export_html(tmp_path / "run.html")
    assert run.pending
    opened = offline.open(path)
    expect(opened.locator(".agentnb-state-word")).to_have_text("waits for you")
    expect(opened.get_by_role("button", name="Approve")).to_have_count(0)
    expect(grid(opened)).to_contain_text(run.pending[0].name)
    offline.check(path)
    run.cancel()


def test_a_system_prompt_is_there_from_the_beginning() -> None:
    run = SessionLoop(ScriptedLLM(["x"]), [], system_prompt="Be brief.").start("go")
    run.result(30)
    assert "Be brief." in data_of(page_of(run)).split('"seq":1,')[0]


def test_a_run_without_events_has_a_file(offline: Opened, tmp_path: Path) -> None:
    run = scenes.not_started()
    path = run.export_html(tmp_path / "run.html")
    opened = offline.open(path)
    expect(opened.locator(".agentnb-state-word")).to_have_text("ready")
    offline.check(path)
    run.cancel()


def test_a_replay_at_any_position_exports_its_whole_recording(tmp_path: Path) -> None:
    run = played("session")
    recorded = replay(run)
    recorded.step("turn")
    position = recorded.position
    assert recorded.export_html(tmp_path / "replay.html").read_bytes() == page_of(run).encode()
    assert recorded.position == position


def test_a_stored_run_is_exported_by_a_replay(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = designs.WORLDS["session"]().start("go", approve=True, name="kept", store=store)
    run.result(30)
    path = replay(store.load("kept")).export_html(tmp_path / "kept.html")
    assert f'"total":{len(run.events)}' in data_of(path.read_text(encoding="utf-8"))
    store.close()


# -- the path


def test_the_path_of_the_file_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scenes.completed()
    monkeypatch.chdir(tmp_path)
    assert run.export_html("run.html") == Path("run.html")
    assert (tmp_path / "run.html").read_bytes() == page_of(run).encode()
    assert os.listdir(tmp_path) == ["run.html"]
    (tmp_path / "run.html").write_text("before")
    run.export_html(tmp_path / "run.html")  # replaced
    assert (tmp_path / "run.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (lambda folder: folder, "is a folder. Pass the path of a file, for example '.*run.html'"),
        (lambda folder: folder / "no" / "run.html", "The folder .*no does not exist. Create it first"),
        (lambda folder: folder / "file" / "run.html", "The folder .*file is not a folder."),
        (lambda folder: 5, 'must be a text or a Path, got 5. For example "run.html"'),
        (lambda folder: "", "must be a text or a Path"),
    ],
)
def test_a_path_that_cannot_be_a_file_is_refused(path: Callable[[Path], Any], error: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=error):
        scenes.completed().export_html(path(tmp_path))
    assert os.listdir(tmp_path) == ["file"]


def test_a_failing_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.html").write_text("before")

    def fail(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        scenes.completed().export_html(tmp_path / "run.html")
    assert os.listdir(tmp_path) == ["run.html"]
    assert (tmp_path / "run.html").read_text() == "before"


def test_the_name_of_the_file_is_that_of_the_run_as_far_as_a_file_can_have_it() -> None:
    run = SessionLoop(ScriptedLLM(["x"]), [], name="s").start("go", name="../a b: \u202ec?")
    assert re.fullmatch(r"[\w -]+\.html", file_name(run))
    run.cancel()


# -- the button


def downloaded(shown: PanelPage, press: Callable[[], None]) -> tuple[str, str]:
    with shown.page.expect_download() as download:
        press()
        shown.until(lambda: "Downloaded" in shown.page.inner_text("#here"), "the file")
    path = download.value.path()
    return download.value.suggested_filename, Path(path).read_text(encoding="utf-8")


def test_the_menu_downloads_the_file_in_parts(
    page: Page, offline: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentnb.widgets.handlers.PART", 30_000)
    run = scenes.completed()
    panel = RecordedPanel(run)
    shown = PanelPage(page, panel)
    name, html = downloaded(shown, lambda: press_in_menu(page, "Export"))
    assert (name, html) == ("nile.html", page_of(run))
    assert len(shown.sent("export")) == -(-len(html) // 30_000)
    expect(page.locator(".agentnb-answer")).to_have_text(
        'Downloaded nile.html. From code: run.export_html("nile.html")'
    )
    assert panel._commands._files == {}
    assert shown.errors == []
    panel.close()


def test_the_menu_of_a_replay_downloads_the_file(page: Page) -> None:
    run = played("session")
    panel = RecordedPanel(replay(run))
    shown = PanelPage(page, panel)
    name, html = downloaded(shown, lambda: press_in_menu(page, "Export"))
    assert (name, html) == ("session.html", page_of(run))
    assert shown.errors == []
    panel.close()


def test_a_file_that_cannot_be_made_is_reported(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("broken")

    monkeypatch.setattr("agentnb.widgets.handlers.page_of", fail)
    panel = RecordedPanel(scenes.completed())
    shown = PanelPage(page, panel)
    press_in_menu(page, "Export")
    shown.until(lambda: "RuntimeError: broken" in page.inner_text("#here"), "the error")
    panel.close()
