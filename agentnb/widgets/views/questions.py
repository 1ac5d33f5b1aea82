"""The calls that wait for a person, as the page shows them: each with its arguments, its form and why it asks.

A question is complete or says how much of it is missing: a person approves only what was shown. The arguments travel as
names and texts, because JavaScript has no integers beyond 2**53, and because the page must not lay out what it cannot
judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentnb.core.json import repair_text
from agentnb.run import Recording
from agentnb.widgets.text import as_json, for_reading, on_a_line
from agentnb.widgets.views.forms import form
from agentnb.widgets.views.rows import ROW_LIMIT

ASKED, FEW = 64 * 1024, 4
"""The maximum number of characters of the questions in one message to a page. `FEW` questions are sent in any case."""
ABOUT = 2_000
"""The maximum number of characters of the description of a tool."""

_LIKE_JSON = re.compile(r'["{\[]|true$|false$|null$|-?(?:\d|NaN$|Infinity$)')
"""The beginning of a text that could be taken for another value."""
_USUAL = "asks before every call."


def identity(item: Any) -> dict[str, Any]:
    """Return the identity of the question about a waiting call, as the page gets it and sends it back.

    A question that is not recorded yet has no event number; the call and its attempt identify it.
    """
    return {
        "run": repair_text(item.run_id),
        "path": repair_text(item.path),
        "event": item.event,
        "id": repair_text(item.id),
        "attempt": item.attempt,
    }


class Questions:
    """The calls that wait for a person, as the page gets them. Each is built once, because arguments may be long.

    tools: by the path of a loop, the tools that may replace a waiting call, each with its empty form.
    """

    def __init__(self) -> None:
        self._built: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
        self.tools: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def waiting(self, run: Recording, *, everything: bool = False) -> list[dict[str, Any]]:
        """Return the oldest questions that fit in one message, each with the form of its arguments.

        everything: return all questions.
        """
        return [question for _, question in self.asked(run, everything=everything)]

    def asked(self, run: Recording, *, everything: bool = False) -> list[tuple[Any, dict[str, Any]]]:
        """Return the questions of `waiting`, each after the waiting call itself."""
        built: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
        changed: dict[str, bool] = {}
        room = ASKED
        for item in run.pending:
            if room <= 0 and len(built) >= FEW and not everything:
                break
            key = (item.run_id, item.path, item.event, item.id, item.attempt)
            before, question = self._built.get(key, (None, {}))
            if before is None or (before.shown, before.deadline) != (item.shown, item.deadline):
                question = _question(item)
                changed[item.path] = True
            built[key] = (item, question)
            room -= question["size"]
            changed.setdefault(item.path, False)
        self._built = built
        self.tools = {
            path: {repair_text(name): form(schema, None) for name, schema in run.tool_schemas(path).items()}
            if new
            else self.tools[path]
            for path, new in changed.items()
        }
        return list(built.values())


def shown_arguments(arguments: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return arguments as names and texts, of at most `limit` characters in all, and how many characters are missing.

    `kind` is `text` for a text of several lines, `string` for a text of one line, and `json` for any other value. A
    text of one line that could be taken for another value, such as "5", is written as JSON, in quotes.
    """
    values: list[dict[str, str]] = []
    length, room = 0, limit
    for name, value in arguments.items():
        kind, text = _in_text(value)
        name = repair_text(str(name))
        length += len(name) + len(text)
        if room > 0:
            values.append({"name": name[:room], "kind": kind, "text": text[: max(0, room - len(name))]})
        room -= len(name) + len(text)
    return {"values": values, "length": length, "left": max(0, length - limit)}


def _in_text(value: Any) -> tuple[str, str]:
    """Return the kind of an argument and its text."""
    if not isinstance(value, str):
        return "json", for_reading(value)
    text = repair_text(value)
    if "\n" in text:
        return "text", text
    if not text or text != text.strip() or _LIKE_JSON.match(text):
        return "json", on_a_line(text)
    return "string", text


def _question(item: Any) -> dict[str, Any]:
    fields = form(item.schema, item.arguments)
    shown = shown_arguments(item.arguments, ROW_LIMIT)
    why, is_usual = _why(item)
    description = repair_text(item.description)[:ABOUT]
    return {
        **identity(item),
        "name": repair_text(item.name),
        "why": why,
        "usual": is_usual,
        "needs": [repair_text(need) for need in item.needs],
        "description": description,
        "view": repair_text(item.view),
        "unknown": bool(getattr(item, "unknown", False)),
        "deadline": item.deadline,
        **shown,
        "digest": item.shown,
        "fields": fields,
        "size": min(shown["length"], ROW_LIMIT) + len(description) + len(as_json(fields)),
    }


def _why(item: Any) -> tuple[str, bool]:
    """Return why a call waits, in words for a person, and True if it is because its tool always asks.

    What the tool needs is shown apart, so it is left out here.
    """
    reason = repair_text(item.reason or "").removesuffix(f" It needs {', '.join(item.needs)}.")
    if reason.startswith(f"{item.name} was started and nobody knows how it ended."):
        return "The kernel ended while it ran. Nobody knows whether it is done.", False
    if reason.startswith(f"{item.name} asks before "):
        return reason.replace(item.name, "The tool", 1), reason.endswith(_USUAL)
    if not reason:
        return "It is unknown how this call ended." if item.unknown else "This tool requires approval.", True
    return reason, False
