"""Finds the browser that the tests drive: the system's own, never one that is downloaded behind the user's back."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A container seldom lets Chromium build its sandbox, has a /dev/shm of 64 MB and no graphics card.
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]


class NoBrowser(Exception):
    """There is no Chromium; the message says what to type."""


def find_chromium() -> str:
    """Give the path of $AGENTNB_CHROMIUM or of the first usual name on the PATH; NoBrowser if there is none."""
    chosen = os.environ.get("AGENTNB_CHROMIUM")
    candidates = (chosen,) if chosen else NAMES
    for name in candidates:
        path = shutil.which(name)
        if path:
            return path
    raise NoBrowser(
        f"The browser tests need Chromium; looked for {', '.join(candidates)}.\n"
        "On Debian or Ubuntu type:\n\n"
        "    apt-get update && apt-get install -y chromium\n\n"
        "or set AGENTNB_CHROMIUM to the path of a Chromium or Chrome."
    )
