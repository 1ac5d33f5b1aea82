"""What the head of a panel says about a run: its name, its state in words, its model, and what it was started with.

The live and the static panel say the same words.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from agentnb.core.events import Event
from agentnb.core.json import repair_text
from agentnb.core.messages import text_of
from agentnb.run import Recording
from agentnb.tools import as_tools
from agentnb.widgets.text import on_a_line, one_line

Sign = Literal["ready", "running", "waiting", "paused", "failed", "done", "stopped"]
"""The sign of a state; the page and the static panel draw it."""

RECENT = 500
"""The number of events, the newest first, that are searched for the name of the model."""
NAME = 80
"""Characters of a name."""
LOST = 300
"""The maximum number of characters about an imported recording."""
QUESTION = 20_000
"""The maximum number of characters of the question of a run that a page gets."""

_STATES: Mapping[str, tuple[Sign, str]] = {
    "completed": ("done", "done"),
    "escalated": ("done", "done"),
    "waiting for you": ("waiting", "waits for you"),
    "not started": ("ready", "ready"),
    "paused": ("paused", "paused"),
    "pausing": ("paused", "pausing"),
    "running": ("running", "running"),
    "no end recorded": ("stopped", "no end recorded"),
    "model failed": ("failed", "model failed"),
    "error": ("failed", "failed"),
    "cancelled": ("failed", "cancelled"),
    "cancelling": ("failed", "cancelling"),
}
_numbers: dict[
    str, tuple[str, int]
] = {}  # by the id of a run without a name: its design, and its number of this design
_numbering = threading.Lock()


def state_in_words(standing: str, waiting: int, turn: int) -> tuple[Sign, str]:
    """Return the sign and the words for the state of a run.

    standing: as `status_word` returns it. waiting: the number of calls that wait for a person.
    """
    if standing == "waiting for you" and waiting > 1:
        return "waiting", f"{waiting:,} wait for you"
    if standing == "max turns":
        return "stopped", f"stopped at {turn:,} turn{'' if turn == 1 else 's'}"
    return _STATES.get(standing, ("stopped", f"stopped: {standing}"))


def display_name(run: Recording) -> str:
    """Return the name of a run; of one without a name its design, and a number among those of this process."""
    if run.name:
        return one_line(str(run.name), NAME)
    kind = one_line(run.loop.kind(), NAME)
    words = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+", kind)).lower()
    design = re.sub(r" (loop|engine)$", "", words) or kind
    with _numbering:
        if run.id not in _numbers:
            _numbers[run.id] = design, 1 + sum(one == design for one, _ in _numbers.values())
        return "{} {}".format(*_numbers[run.id])


def imported_text(run: Recording) -> str:
    """Return the format of a recording of another tool, and what is lost or unknown in it; empty for other runs."""
    first: Any = run.recording[0] if run.recording else None
    about = getattr(first, "config", {}).get("imported")
    if not isinstance(about, Mapping):
        return ""
    counts = about.get("lost")
    found = counts.items() if isinstance(counts, Mapping) else ()
    lost = ["not carried: " + ", ".join(f"{kind} ({amount:,})" for kind, amount in found)] if found else []
    if untimed := int(about.get("untimed") or 0):
        lost.append("times unknown" if untimed == len(run.recording) else f"{untimed:,} times unknown")
    words = f"from {about.get('format')}" + (f" ({'; '.join(lost)})" if lost else "")
    return one_line(repair_text(words), LOST)


def input_text(run: Recording) -> str:
    """Return what a run was started with, as text."""
    content, is_message = input_content(run)
    if is_message:
        return text_of(content)
    return content if isinstance(content, str) else on_a_line(content) if content is not None else ""


def input_content(run: Recording) -> tuple[Any, bool]:
    """Return what a run was started with, and True if it is the content of a message."""
    event: Any
    for event in islice(run.recording, RECENT):
        if event.type == "model_start":
            break
        if event.type == "message" and not event.path and event.origin == "input" and event.message.role == "user":
            return event.message.content, True
    given = run.input
    if isinstance(given, Sequence) and not isinstance(given, str) and given and isinstance(given[-1], Mapping):
        given = given[-1].get("content", given)
    return given, False


def tools_offered(run: Recording) -> list[list[Any]]:
    """Return the names of a loop's tools, and whether each asks before every call or decides itself when to ask."""
    offered = as_tools(getattr(run.loop, "tools", None) or ())
    return [[one_line(name, NAME), bool(found.approve)] for name, found in offered.items()]


def model_name(events: Sequence[Event]) -> str:
    """Return the name of the model that was asked last, and of the one that answered if that is another."""
    recent: list[Any] = list(islice(reversed(events), RECENT))
    asked = next((event for event in recent if event.type == "model_start"), None)
    answered = next((event.model for event in recent if event.type == "model_end" and event.model), "")
    if asked is None:
        return ""
    # A model may have nearly the name of its provider.
    names = (asked.provider, "" if asked.model in asked.provider else asked.model)
    name = " ".join(part for part in names if part)
    return one_line(f"{name} ({answered})" if answered and answered != asked.model else name, NAME)
