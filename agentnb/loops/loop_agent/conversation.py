"""What an agent with a model is told of its session (SEMANTICS.md, 8. Conversation).

An entry is what one agent has said, called or got as a result, as JSON: `{"author": name, "parts": [...]}`. A loop
agent makes the entries from the messages of the loops that it has run, a stream from the events of the session. The
input of a nested loop agent has those from before it: `earlier` are from earlier invocations, `since` follow the user's
content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentnb.core.calls import render
from agentnb.core.messages import Message, text_of
from agentnb.core.state import NestedMessages, State
from agentnb.loops.loop_agent.event import ASKS_TO_CONFIRM, Event, field_of

Entry = dict[str, Any]

KEPT = 20
"""The number of the last entries that an agent is told. Of each agent that has none of these, it is told the last."""

EARLIER, SINCE, GIVEN = "earlier", "since", "given"
"""Keys in the input of a nested agent: its entries, and the input of the agent around it if that is not a mapping."""

TOLD = "told"
"""A field of messages that a loop was given of the conversation, and has not made itself."""


# -- entries -------------------------------------------------------------------------------------------------------


def entries_in(state: State) -> list[Entry]:
    """Return what the sub-agents of a loop agent have said, and what was said before it, in this invocation."""
    entries = [*conversation_in(state.input)[SINCE], *_said(state.name, state.messages, state.inside)]

    # If the output of a sub-agent is none of its messages, it is what the sub-agent has said: an object, or a result
    # that a person has given.
    for name, output in state.values.get("said", {}).items():
        text = text_of(render(output, state.max_result_chars))
        if text and not any(part.get("text") == text for entry in entries for part in entry["parts"]):
            place = max((at for at, entry in enumerate(entries) if entry["author"] == name), default=len(entries))
            entries[place : place + 1] = [{"author": name, "parts": [{"text": text}]}]
            entries = [entry for at, entry in enumerate(entries) if at == place or entry["author"] != name]
    return bounded(entries)


def entries_of_events(events: Sequence[Event], branch: str | None) -> list[Entry]:
    """Return the entries of events of a session that an agent of this branch can see."""
    entries: list[Entry] = []
    seen: set[str] = set()
    for event in reversed(events):
        is_seen = not branch or not event.branch or branch == event.branch or branch.startswith(f"{event.branch}.")
        if is_seen and (len(entries) < KEPT or event.author not in seen) and (entry := _entry_of_event(event)):
            seen.add(event.author)
            entries.append(entry)
    return entries[::-1]


def bounded(entries: Sequence[Entry]) -> list[Entry]:
    """Return the last entries, and before them the last one of each other agent."""
    kept = list(entries[-KEPT:])
    missing = {entry["author"]: entry for entry in entries[:-KEPT]}
    for entry in kept:
        missing.pop(entry["author"], None)
    return [*missing.values(), *kept]


def conversation_in(input: Any) -> dict[str, list[Entry]]:
    """Return the entries in the input of an agent: `earlier` and `since`."""
    given = input if isinstance(input, Mapping) else {}
    return {key: list(found) if isinstance(found := given.get(key), list) else [] for key in (EARLIER, SINCE)}


def _said(name: str, messages: Sequence[Message], inside: Sequence[NestedMessages]) -> list[Entry]:
    """Return the last entries of a loop and of the loops that it has run, in order."""
    runs: list[list[Entry]] = []
    count, named, end = 0, set(), len(messages)
    for run in reversed(inside):
        runs.append(_entries(messages[run.position : end], name))
        end = run.position
        if count < KEPT or run.name not in named:  # older runs are not told
            runs.append(_said(run.name, run.messages, run.inside))
        elif len(runs) > 4 * KEPT:
            break
        named.add(run.name)
        count += len(runs[-1])
    else:
        runs.append(_entries(messages[:end], name))
    return [entry for run in reversed(runs) for entry in run]


def _entries(messages: Sequence[Message], name: str) -> list[Entry]:
    made = (_entry_of(message, name) for message in messages[-KEPT:])
    return [entry for entry in made if entry is not None]


def _entry_of(message: Message, name: str) -> Entry | None:
    """Return the entry of a message of the loop of this name; None for one that it was given."""
    if isinstance(event := message.get("event"), dict):
        return _entry_of_event(Event.model_validate(event))
    if message.get(TOLD) or message.role not in ("assistant", "tool"):
        return None
    text = text_of(message.content)
    if message.role == "tool":
        answer = {"id": message.tool_call_id, "name": message.name, "response": text}
        return _of(name, [{"function_response": answer}])
    calls = [{"id": call.id, "name": call.name, "args": call.arguments} for call in message.tool_calls]
    return _of(name, [{"text": text}] if text else [], [{"function_call": call} for call in calls])


def _entry_of_event(event: Event) -> Entry | None:
    """Return the entry of an event; None if there is nothing to tell, as in a question to the user and its answer."""
    if event.author == "user":
        return _of("user", [{"text": event.text}] if event.text else [])
    calls = [call for call in event.get_function_calls() if field_of(call, "name") != ASKS_TO_CONFIRM]
    parts: list[dict[str, Any]] = [{"text": event.text}] if event.text else []
    for kind, found, fields in (
        ("function_call", calls, ("id", "name", "args")),
        ("function_response", event.get_function_responses(), ("id", "name", "response")),
    ):
        parts += [{kind: {field: field_of(item, field) for field in fields}} for item in found]
    return _of(event.author, parts)


def _of(author: str, *parts: list[dict[str, Any]]) -> Entry | None:
    found = [part for some in parts for part in some]
    return {"author": author, "parts": found} if found else None


# -- for a loop of another design ----------------------------------------------------------------------------------


def as_messages(entries: Iterable[Entry], name: str) -> list[dict[str, Any]]:
    """Return the messages that tell the agent of this name: its own as they are, others as content of the user."""
    told: list[dict[str, Any]] = []
    own = [part for entry in entries if entry["author"] == name for part in entry["parts"]]
    answered = {part["function_response"]["id"] for part in own if "function_response" in part}
    made: set[str] = set()
    for entry in entries:
        author, parts = entry["author"], entry["parts"]
        if author not in ("user", name):
            told.append({"role": "user", "content": "\n".join(["For context:", *_lines(author, parts)]), TOLD: True})
            continue
        text = "".join(part["text"] for part in parts if "text" in part)
        calls = [part["function_call"] for part in parts if "function_call" in part]
        calls = [call for call in calls if call["id"] in answered]  # the others have no result
        made |= {call["id"] for call in calls}
        if text or calls:
            made_calls = [{"id": call["id"], "name": call["name"], "arguments": call["args"] or {}} for call in calls]
            message = {"role": "user" if author == "user" else "assistant", "content": text, TOLD: True}
            told.append({**message, "tool_calls": made_calls} if made_calls else message)
        for part in parts:
            answer = part.get("function_response")
            if answer is not None and answer["id"] in made:
                content = answer["response"]
                content = content if isinstance(content, str) else json.dumps(content)
                result = {"tool_call_id": answer["id"], "name": answer["name"], "content": content}
                told.append({"role": "tool", **result, TOLD: True})
    return told


def as_lines(entries: Iterable[Entry]) -> list[str]:
    """Return the last text of each agent, for a loop that gets one text."""
    texts: dict[str, str] = {}
    for entry in entries:
        if (text := "".join(part.get("text", "") for part in entry["parts"])) and entry["author"] != "user":
            texts[entry["author"]] = text
    return [f"[{author}] said: {text}" for author, text in texts.items()]


def _lines(author: str, parts: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for part in parts:
        if "text" in part:
            yield f"[{author}] said: {part['text']}"
        elif "function_call" in part:
            call = part["function_call"]
            yield f"[{author}] called tool `{call['name']}` with parameters: {call['args'] or {}}"
        elif "function_response" in part:
            answer = part["function_response"]
            yield f"[{author}] `{answer['name']}` tool returned result: {_response(answer['response'])}"


def _response(result: Any) -> Any:
    """Return a result as an object, as ADK does."""
    if isinstance(result, str) and result.startswith("{"):
        with suppress(ValueError):
            result = json.loads(result)
    return result if isinstance(result, Mapping) else {"result": result}
