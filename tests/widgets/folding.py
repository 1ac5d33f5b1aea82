"""The page's folds, in Node: what `page/moment.js` and `page/lanes.js` give for the events of a run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentnb.widgets.views.rows import encode_rows
from agentnb.widgets.views.trace import Trace

SCRIPT = Path(__file__).parents[1] / "javascript" / "fold.js"


def rows_of(events: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of these events as the page gets them."""
    rows: list[dict[str, Any]] = json.loads(encode_rows(events, 1 << 40, Trace().follow(events))[0])
    return rows


def folded(events: Sequence[Any], positions: Sequence[int], **options: Any) -> list[dict[str, Any]]:
    """Return what the page knows at each of these positions, after it has gone there from the one before."""
    given = {"rows": rows_of(events), "positions": list(positions), "phases": [], "tables": [], **options}
    made = subprocess.run(
        ["node", "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", str(SCRIPT)],
        input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    told: list[dict[str, Any]] = json.loads(made.stdout)
    return told
