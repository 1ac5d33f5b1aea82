"""Retrieval: documents that are looked up for the user's last message (SEMANTICS.md, 6. Retrieval).

The documents are recorded in an event of the run. They are sent to the model as part of the user's message, before its
text, because a document must not have the authority of a system message. The history is not changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, StateUpdate
from agentnb.core.messages import Content, text_of
from agentnb.core.state import State
from agentnb.loops import functions
from agentnb.loops.events import propose

RETRIEVE = "retrieve"
"""The name of the agent's own call of the retriever."""

TEXT_FIELDS = ("content", "page_content", "text")
OTHER_FIELDS = ("id", "doc_id", "title", "score", "metadata")


def retrieve_first(state: State) -> Event | None:
    """Return the next event of the retrieval before a model request.

    The first event proposes the call of the retriever for the user's last message; the second stores its result. None:
    the model can be asked.
    """
    position = _last_user_message(state)
    if position is None:
        return None
    id = f"retrieve_{state.turn + 1}_{position}"
    asked = state.calls.get(state.own_id(id))
    if asked is None:
        return propose(state, id, RETRIEVE, {"query": text_of(state.messages[position].content)})
    known = state.values.get("retrieved", {})
    if asked.end is None or (asked.end.is_error and known.get("position") == position):
        return None  # keep the documents that an earlier turn has found for this message
    found = {"position": position, "text": "" if asked.end.is_error else _as_text(asked.end.result)}
    return StateUpdate(values={"retrieved": found}) if found != known else None


def with_documents(state: State) -> Mapping[int, dict[str, Any]]:
    """Return the message with retrieved documents as it is sent to the model, by position. Empty without documents."""
    retrieved = state.values.get("retrieved")
    if not retrieved or not retrieved["text"]:
        return {}
    position = retrieved["position"]
    message = state.messages[position]
    return {position: {**message, "content": _with_retrieved(retrieved["text"], message.content)}}


def _last_user_message(state: State) -> int | None:
    """Return the position of the user's last message, or None."""
    if not state.heard and "retrieved" in state.values:
        return int(state.values["retrieved"]["position"])  # no new message: the position is known
    messages = state.messages
    return next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "user"), None)


def retriever_call(retriever: Any) -> Callable[[str], Any]:
    """Return an async function that calls the retriever and returns documents.

    retriever: an object with `retrieve(query)`, or a callable. A sync function runs in a thread, so that a search in a
    large index does not block the run. Raises UsageError for any other object.
    """
    ask = getattr(retriever, "retrieve", retriever)
    if not callable(ask):
        raise UsageError(
            f"{type(retriever).__name__} is not a retriever. Pass an object with retrieve(query), or a function."
        )

    async def retrieve(query: str) -> list[dict[str, Any]]:
        found = await functions.call(ask, query)
        if isinstance(found, AsyncIterable):
            found = [document async for document in found]
        return documents(found)

    return retrieve


def documents(found: Any) -> list[dict[str, Any]]:
    """Return the result of a retriever as a list of documents: dicts with `content`."""
    if found is None:
        return []
    alone = isinstance(found, (str, Mapping)) or not isinstance(found, Iterable)
    return [_document(document) for document in ([found] if alone else found)]


def _document(found: Any) -> dict[str, Any]:
    if isinstance(found, str):
        return {"content": found}
    if isinstance(found, Mapping):
        fields = dict(found)
    else:
        fields = {name: getattr(found, name) for name in (*TEXT_FIELDS, *OTHER_FIELDS) if hasattr(found, name)}
    for name in TEXT_FIELDS:
        if name in fields:
            return {"content": str(fields.pop(name)), **fields}
    return {"content": str(found), **fields}


def title_of(document: Mapping[str, Any]) -> str | None:
    """Return a document's title, or None."""
    metadata = document.get("metadata")
    title = document.get("title") or (metadata.get("title") if isinstance(metadata, Mapping) else None)
    return str(title) if title else None


def relevance_of(document: Mapping[str, Any]) -> Any:
    """Return a document's score as given by its retriever; 0.0 without a score."""
    metadata = document.get("metadata")
    score = document.get("score")
    if score is None and isinstance(metadata, Mapping):
        score = metadata.get("score")
    return 0.0 if score is None else score


def _as_text(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the documents as one string for the model, or an empty string without documents."""
    if not documents:
        return ""
    parts = []
    for number, document in enumerate(documents, 1):
        title = title_of(document)
        parts.append(f"[{number}] {title}\n{document['content']}" if title else f"[{number}] {document['content']}")
    return "<retrieved>\n" + "\n\n".join(parts) + "\n</retrieved>"


def _with_retrieved(text: str, content: Content) -> Content:
    """Return a message's content with the retrieved text before it."""
    if isinstance(content, str):
        return f"{text}\n\n{content}"
    return [{"type": "text", "text": text}, *content]
