"""ChatGPT: the export of a person's data (`conversations.json`), one recording for each conversation.

A conversation is a tree of messages; the branch that was shown last is read. A message to a tool is a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, seconds

name = "ChatGPT"


def recognises(file: ForeignFile) -> bool:
    """Return True for a conversation with a mapping of nodes, or a list of these."""
    document = file.document
    first = document[0] if isinstance(document, list) and document else document
    mapping = first.get("mapping") if isinstance(first, Mapping) else None
    nodes = list(mapping.values()) if isinstance(mapping, Mapping) else []
    return bool(nodes) and all(isinstance(node, Mapping) and {"message", "parent"} <= node.keys() for node in nodes[:5])


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of the conversations, one after the other."""
    document = file.document
    for number, conversation in enumerate(document if isinstance(document, list) else [document], 1):
        if isinstance(conversation, Mapping) and isinstance(conversation.get("mapping"), Mapping):
            yield from _conversation(file, conversation)
        else:
            file.damaged(f"conversation {number} has no mapping", "damaged conversations")


def _conversation(file: ForeignFile, conversation: Mapping[str, Any]) -> Iterator[Event]:
    file.begin()
    title = conversation.get("title")
    about = {"id": conversation.get("conversation_id") or conversation.get("id"), "title": title, "label": title}
    writer = Writer(file.lost, name="chatgpt", about=to_json_data({key: one for key, one in about.items() if one}))
    thoughts: list[dict[str, Any]] = []
    for message in _branch(file, conversation):
        author, metadata = _part(message, "author"), _part(message, "metadata")
        role, time = author.get("role"), seconds(message.get("create_time"), file.lost)
        kind, text = _content(file, message.get("content"))
        recipient = str(message.get("recipient") or "all")
        if role == "assistant" and kind in ("thoughts", "reasoning_recap"):
            thoughts += [{"text": text}] if text and kind == "thoughts" else []
        elif role == "assistant":
            answer = Answer(content=text, reasoning=thoughts)
            if recipient != "all":
                id = str(message.get("id") or "")
                answer = Answer(calls=[Call(id, recipient, text)], reasoning=thoughts)
                if not text.lstrip().startswith("{"):
                    answer.calls = [Call(id, recipient, {"input": text})]
            thoughts = []
            model, finished = metadata.get("model_slug"), _part(metadata, "finish_details").get("type")
            answer.model = model if isinstance(model, str) else None
            answer.finish_reason = finished if isinstance(finished, str) else None
            yield from writer.answer(answer, time)
        elif role == "tool":
            named = (one for one in writer.open_calls if writer.name_of(one) == author.get("name"))
            id = next(named, next(iter(writer.open_calls), ""))
            if id:
                yield from writer.result(id, text, time, is_error=kind == "system_error")
            else:  # a tool may send several messages
                told = Message(role="system", content=text, details={"tool": str(author.get("name") or "")})
                yield from writer.message(told, time)
        elif text:  # the first messages of the system are empty
            yield from writer.message(Message(role="user" if role == "user" else "system", content=text), time)
    if thoughts:
        file.lost["thoughts without an answer"] += len(thoughts)
    yield from writer.start()


def _branch(file: ForeignFile, conversation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages from the root to the current node."""
    nodes = {str(id): node for id, node in conversation["mapping"].items() if isinstance(node, Mapping)}
    parents = {str(node.get("parent")) for node in nodes.values()}
    leaf = next((id for id in reversed(nodes) if id not in parents), "")  # where the file does not name the node
    path, id = [], str(conversation.get("current_node") or leaf)
    seen: set[str] = set()
    while id in nodes and id not in seen:
        seen.add(id)
        if isinstance(message := nodes[id].get("message"), Mapping):
            path.append(message)
        id = str(nodes[id].get("parent"))
    others = sum(isinstance(node.get("message"), Mapping) for id, node in nodes.items() if id not in seen)
    if others:
        file.lost["messages of other branches"] += others
    return path[::-1]


def _content(file: ForeignFile, content: Any) -> tuple[str, str]:
    """Return the kind of content and its text. What is not text is counted."""
    if not isinstance(content, Mapping):
        return "", ""
    kind = str(content.get("content_type") or "")
    texts: list[str] = []
    parts = content.get("parts", content.get("thoughts"))
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text", part.get("content")), str):
            texts.append(str(part.get("text", part.get("content"))))
        else:
            named = part.get("content_type") if isinstance(part, Mapping) else None
            file.lost[f"parts of type {named or 'unknown'}"] += 1
    known = [content[field] for field in _TEXTS if isinstance(content.get(field), str)]
    texts += known
    if not known and not isinstance(parts, list):
        file.lost[f"contents of type {kind or 'unknown'}"] += 1
    return kind, "\n".join(texts)


_TEXTS = ("text", "result", "content", "user_profile", "user_instructions", "model_set_context")


def _part(value: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = value.get(field)
    return found if isinstance(found, Mapping) else {}
