"""SWE-agent: trajectories (`.traj`): the history of messages, the program's notes on each step, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.importers.conversation import said
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Writer

name = "SWE-agent"


def recognises(file: ForeignFile) -> bool:
    """Return True for an object with a history whose messages name their agent."""
    document = file.document
    history = document.get("history") if isinstance(document, Mapping) else None
    first = history[0] if isinstance(history, list) and history else None
    return isinstance(first, Mapping) and "role" in first and ("agent" in first or "trajectory" in document)


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a trajectory."""
    document = file.document
    given = document.get("info")
    info: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    about = {key: document[key] for key in ("environment", "replay_config") if document.get(key)}
    about["info"] = {key: value for key, value in info.items() if key != "submission"}
    writer = Writer(file.lost, name="swe-agent", about=to_json_data(about))
    messages: list[Any] = []
    for message in document["history"]:
        if isinstance(message, Mapping):
            ids = message.get("tool_call_ids")
            id = {"tool_call_id": ids[0]} if isinstance(ids, list) and ids else {}
            message = {**message, **id}
        messages.append(message)
    yield from said(file, messages, writer)
    steps = document.get("trajectory")
    if isinstance(steps, list) and steps:  # the messages have the same content; only these notes are not carried
        notes = sum(isinstance(step, Mapping) and bool(step.get("state")) for step in steps)
        if notes:
            file.lost["states of the environment"] += notes
    if info.get("exit_status"):
        yield from writer.update({"exit_status": info["exit_status"]})
        if str(info["exit_status"]).startswith("submitted"):
            yield from writer.end("completed", output=info.get("submission"))
    yield from writer.start()
