"""axe-core, which finds accessibility faults of a page: installed once in tests/.cache, run in the page of a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

from playwright.sync_api import Page

PACKAGE = "axe-core@4.14.1"
HOME = Path(__file__).parents[1] / ".cache" / "axe-core-4.14.1"

WHOLE_PAGE = ("region", "bypass", "document-title", "html-has-lang", "landmark-one-main", "page-has-heading-one")
"""Rules about a page as a whole. The panel is a part of a notebook's, which answers for these."""

RUN = """async (off) => {
  const rules = Object.fromEntries(off.map((name) => [name, { enabled: false }]));
  const found = await window.axe.run("#here", { rules, resultTypes: ["violations"] });
  return found.violations.flatMap((one) =>
    one.nodes.map((node) => `${one.id} (${one.impact}): ${node.html.slice(0, 200)} ${node.failureSummary}`));
}"""


def source() -> str:
    """Return the source of the library; install it if it is missing."""
    program = HOME / "node_modules" / "axe-core" / "axe.min.js"
    if not program.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(HOME), PACKAGE]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return program.read_text(encoding="utf-8")


def faults(page: Page) -> list[str]:
    """Return the accessibility faults of the current page."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate("source => { (0, eval)(source); }", source())
    found: list[str] = page.evaluate(RUN, list(WHOLE_PAGE))
    return found
