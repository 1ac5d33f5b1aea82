"""Pictures of the panel in each state, light and dark, wide and narrow: `python -m tests.widgets.pictures [state ...]`.

They are taken by the system's Chromium with fixed fonts, clock and time zone and without animation, and committed.
`test_pictures.py` compares them. The comparison accepts the letters of another Chromium, and detects a changed panel.
Letters differ at their edges, so the averages of blocks of 16 pixels are compared. An edge changes them little; a
missing button, another line, or text in another place changes them much. A lost colour of thin letters changes an
average very little, so the share of each hue in the whole picture is compared, too. So is the height, because a wrapped
or a missing element changes it. Content that overflows the edge is not in a picture; it is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from agentnb.studies import Study
from agentnb.widgets import static_html
from tests.browser.chromium import FLAGS, find_chromium
from tests.widgets.pages import PanelPage, RecordedPanel
from tests.widgets.scenes import BEGAN, SCENES, TABS, THEN, Clock, ticking
from tests.widgets.study_pages import RecordedStudyPanel, StudyPage

FOLDER = Path(__file__).parents[2] / ".github" / "images" / "panel"
WIDTHS = (1000, 480)
THEMES = ("light", "dark")
COLOURS = 200
WAITED = 5.0  # seconds from the last event of a run at rest to its picture
STYLE = """:root { --jp-ui-font-family: "DejaVu Sans"; --jp-code-font-family: "DejaVu Sans Mono"; }
body { margin: 0; } .agentnb.agentnb { margin: 0; }
.agentnb-static { font-family: "DejaVu Sans" !important; } * { caret-color: transparent !important; }"""
HINTING = ["--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb", "--hide-scrollbars"]

BLOCK = 16
# Measured: letters bolder by a third of a pixel, spaced, unhinted or a little larger move no block by more than 19. One
# button less moves 0.35 % of the blocks by more than 22, a diagram less 1.5 %, rows out of place 5 %.
FAR = 22  # of 255, in any channel: a block that differs by more is another block
DIFFERENT = 0.0015  # share of blocks that may be
HEIGHTS = 6  # pixels that the height may differ by: less than a line
HUES = 12
# The same letters change how much there is of a hue by up to 0.31 of it; a colour that is lost, by 0.54 and more.
FADED = 0.45  # a hue may have this share less or more of its pixels
SEEN = 0.0014  # the smallest share of the pixels of a compared hue: a small palette changes smaller shares


class RunsOver(AssertionError):
    """Something is wider than the page."""


def photographer(browser: Browser) -> BrowserContext:
    """Open a browser context without animation."""
    return browser.new_context(
        viewport={"width": WIDTHS[0], "height": 900}, timezone_id="UTC", locale="en", reduced_motion="reduce"
    )


def take(context: BrowserContext, state: str, extra_style: str = "") -> Generator[tuple[str, bytes]]:
    """Show the panel in this state and yield its pictures by name. Close the generator if not all are needed."""
    page = context.new_page()
    page.clock.set_fixed_time(BEGAN + 3600)
    with ticking() as clock:
        run = SCENES[state]()
        if state not in THEN:
            clock.stop(after=WAITED)
        shown = _show(page, run, state, clock)
        try:
            page.add_style_tag(content=STYLE + extra_style)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                for theme in THEMES:
                    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                    _settle(page)
                    if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                        raise RunsOver(f"{state} is {wide} pixels wide where there are {width}")
                    png = page.locator(".agentnb, .agentnb-static").first.screenshot(animations="disabled")
                    yield f"{state}-{theme}-{width}.png", png
        finally:
            if shown is not None and shown.panel is not None:
                shown.panel.close()
            run.cancel()
    page.close()


def _show(page: Page, run: Any, state: str, clock: Clock) -> PanelPage | None:
    if isinstance(run, Study):
        of_study = StudyPage(page, RecordedStudyPanel(run), kernel={"status": "idle"}, tab=TABS[state])
        _come_to_rest(of_study)
        return of_study
    if state != "frozen":
        return _live(page, run, state, clock)
    themes = '<meta name=color-scheme content="light dark">'  # it has the colours of the page
    page.set_content(f"<!doctype html><meta charset=utf-8>{themes}{static_html(run)}")
    return None


def _live(page: Page, run: Any, state: str, clock: Clock) -> PanelPage:
    panel = RecordedPanel(run)
    shown = PanelPage(page, panel, kernel={"status": "idle"}, tab=TABS.get(state, "Trace"))
    if state in THEN:
        THEN[state](run)
        shown.until(lambda: "23%, and" in page.inner_text("#here"), "the text on its way")
        clock.stop()
    shown.until(lambda: page.locator(".agentnb-diagram svg").count(), "the diagram")
    shown.until(panel.is_told, "all there is to tell of them")
    _come_to_rest(shown)
    if state == "kernel-gone":
        page.evaluate("() => window.model.widget_manager.kernel.change('dead')")
    return shown


def _come_to_rest(shown: PanelPage) -> None:
    """Wait until the kernel has sent its last message, which comes from another thread."""
    before, same = "", 0
    while same < 4:
        shown.settle()
        shown.page.wait_for_timeout(80)
        now = shown.page.inner_html("#here")
        before, same = now, same + 1 if now == before else 0


def _settle(page: Page) -> None:
    page.evaluate(
        """async () => {
          await document.fonts.ready;
          for (let i = 0; i < 4; i++) await new Promise((done) => requestAnimationFrame(done));
        }"""
    )


def launch_still(playwright: object, flags: list[str] = HINTING) -> Browser:
    """Start Chromium as for the committed pictures."""
    chromium = playwright.chromium  # type: ignore[attr-defined]
    browser: Browser = chromium.launch(executable_path=find_chromium(), args=[*FLAGS, *flags])
    return browser


def differences(expected: Image.Image, got: Image.Image) -> list[str]:
    """Describe the difference of two pictures; return an empty text if they show the same."""
    (width, height), (new_width, new_height) = expected.size, got.size
    if width != new_width or abs(height - new_height) > HEIGHTS:
        return [f"it is {new_width} x {new_height} pixels, not {width} x {height}"]
    old, new = (np.asarray(image.convert("RGB"), dtype=float)[: min(height, new_height)] for image in (expected, got))
    far = np.abs(_blocks(old) - _blocks(new)).max(axis=2) > FAR
    found = []
    if far.mean() > DIFFERENT:
        rows, columns = np.nonzero(far)
        place = f"({columns[0] * BLOCK}, {rows[0] * BLOCK}) to ({columns[-1] * BLOCK}, {rows[-1] * BLOCK})"
        found.append(f"{far.mean():.1%} of it looks otherwise, from {place}")
    for hue, (before, after) in enumerate(zip(_hues(old), _hues(new), strict=True)):
        if max(before, after) > SEEN and abs(after - before) > FADED * max(before, after):
            found.append(f"the colours of hue {360 * hue // HUES} have {after:.3%} of it, not {before:.3%}")
    return found


def _blocks(pixels: np.ndarray) -> np.ndarray:
    height, width = (size // BLOCK * BLOCK for size in pixels.shape[:2])
    cut = pixels[:height, :width].reshape(height // BLOCK, BLOCK, width // BLOCK, BLOCK, 3)
    means: np.ndarray = cut.mean(axis=(1, 3))
    return means


def _hues(pixels: np.ndarray) -> np.ndarray:
    """Return for each hue the share of clearly coloured pixels."""
    most, least = pixels.max(axis=2), pixels.min(axis=2)
    chroma = np.where(most > least, most - least, 1.0)
    red, green, blue = (pixels[..., channel] for channel in range(3))
    sixth = np.select(
        [most == red, most == green],
        [(green - blue) / chroma % 6, (blue - red) / chroma + 2],
        (red - green) / chroma + 4,
    )
    clear = most - least > 60
    counts: np.ndarray = np.bincount((sixth[clear] / 6 * HUES + 0.5).astype(int) % HUES, minlength=HUES)
    return counts / clear.size


def save(png: Path) -> None:
    """Reduce the size of a picture: few colours, chosen so that rare ones are kept."""
    image = Image.open(png).convert("RGB")
    image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, kmeans=4, dither=Image.Dither.NONE).save(
        png, optimize=True
    )


def main(states: list[str]) -> None:
    """Take the pictures of these states again; of all states if none is named."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = launch_still(playwright)
        context = photographer(browser)
        for state in states or SCENES:
            for name, png in take(context, state):
                (FOLDER / name).write_bytes(png)
                save(FOLDER / name)
                print(f"{name}: {(FOLDER / name).stat().st_size:,} bytes")
        browser.close()
    print(f"{sum(path.stat().st_size for path in FOLDER.glob('*.png')):,} bytes in all")


if __name__ == "__main__":
    main(sys.argv[1:])
