r"""Reading JSON that a stranger wrote.

JSON can name half a surrogate pair (`"\ud83d"`), and Python then makes a string that no UTF-8 file, socket or
database takes: the run would fail far from here, when its journal is written. Such halves become U+FFFD while they
are still text.
"""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)


def parse_object(text: str) -> dict[str, Any] | None:
    """Read a JSON object; None when the text is something else."""
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPE.sub(lambda escape: "\\ufffd" if escape.group(1) else escape.group(), text)
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None
