"""SWE-agent: trajectories (`.traj`): the history of messages, the program's notes on each step, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message, text_of
from agentnb.importers.content import content_of
from agentnb.importers.conversation import said
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Writer, numbers

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
    about["usage"] = _usage(info.get("model_stats"))
    writer = Writer(file.lost, name="swe-agent", about=to_json_data({key: one for key, one in about.items() if one}))
    messages: list[Any] = []
    for message in document["history"]:
        if isinstance(message, Mapping):
            ids = message.get("tool_call_ids")
            id = {"tool_call_id": ids[0]} if isinstance(ids, list) and ids else {}
            message = {**message, **id}
        messages.append(message)
    yield from said(file, messages, writer)
    given = document.get("trajectory")
    steps = [step for step in given if isinstance(step, Mapping)] if isinstance(given, list) else []
    yield from _rest(file, steps, messages, writer)
    if notes := sum(bool(step.get("state")) for step in steps):
        file.lost["states of the environment"] += notes
    if info.get("exit_status"):
        yield from writer.update({"exit_status": info["exit_status"]})
        if str(info["exit_status"]).startswith("submitted"):
            yield from writer.end("completed", output=info.get("submission"))
    yield from writer.start()


def _usage(given: Any) -> dict[str, Any]:
    """Return the usage of the whole run; the file has none of single requests."""
    stats: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    names = {"tokens_sent": "input_tokens", "tokens_received": "output_tokens"}
    cost = stats.get("instance_cost", stats.get("total_cost"))
    return numbers({**{ours: stats.get(theirs) for theirs, ours in names.items()}, "cost": cost})


def _rest(
    file: ForeignFile, steps: Sequence[Mapping[str, Any]], messages: Sequence[Any], writer: Writer
) -> Iterator[Event]:
    """Yield what the steps have and the messages do not: at the end, the last answers and observations.

    A step before the end without an answer among the messages is one that the program repeated; it is counted.
    """
    answers = [number for number, one in enumerate(messages) if _role(one) == "assistant" and not one.get("is_demo")]
    texts = [_text(messages[number]) for number in answers]
    place, last = -1, -1  # of the answer of the latest step that the messages have, and of this step
    for number, step in enumerate(steps):
        own = [words for name in ("response", "thought") if (words := _words(step.get(name)))]
        found = next((at for at in range(place + 1, len(answers)) if not own or texts[at] in own), None)
        if found is not None:
            if number > last + 1:
                file.lost["steps that the messages do not have"] += number - last - 1
            place, last = found, number
    if last >= 0:
        seen = _words(steps[last].get("observation"))
        after = messages[answers[place] + 1 :]
        if seen and not any(seen in _text(message) for message in after):
            yield from _observed(seen, writer)
    for step in steps[last + 1 :]:
        response = _words(step.get("response")) or _words(step.get("thought"))
        yield from writer.answer(Answer(content=response))
        if seen := _words(step.get("observation")):
            yield from _observed(seen, writer)


def _observed(text: str, writer: Writer) -> Iterator[Event]:
    """Yield what the environment answered to the latest step."""
    if writer.open_calls:
        yield from writer.result(writer.open_calls[0], text)
    else:
        yield from writer.message(Message(role="user", content=text, details={"source": "observation"}))


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _text(message: Any) -> str:
    return text_of(content_of(message.get("content"))).strip() if isinstance(message, Mapping) else ""


def _words(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
