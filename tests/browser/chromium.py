"""Finds the browser for the tests: that of the system; none is downloaded without the user's knowledge."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The first one draws the same without the windows of a desktop, and needs half of the processor's time."""
# A container usually does not allow the sandbox of Chromium, has a /dev/shm of 64 MB and no graphics card.
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]


class NoBrowser(Exception):
    """Chromium is missing; the message says what to type."""


def find_chromium() -> str:
    """Return $AGENTNB_CHROMIUM or the path of the first usual name on the PATH. Raises NoBrowser if there is none."""
    chosen = os.environ.get("AGENTNB_CHROMIUM")
    candidates = (chosen,) if chosen else NAMES
    for name in candidates:
        path = shutil.which(name)
        if path:
            return path
    raise NoBrowser(
        f"The browser tests need Chromium; looked for {', '.join(candidates)}.\n"
        "On Debian or Ubuntu type:\n\n"
        "    apt-get update && apt-get install -y chromium-headless-shell\n\n"
        "or set AGENTNB_CHROMIUM to the path of a Chromium or Chrome."
    )
