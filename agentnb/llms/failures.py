"""From what a server says went wrong to the error that says who is to blame.

Three places can carry the news: the status of the response, a JSON body that came with status 200, and an event in
the middle of a stream. The last two have no status, so the provider's own word decides. One table holds the words
of both dialects.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from agentnb.core.errors import (
    AuthenticationError,
    ModelError,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailable,
)
from agentnb.llms.json_text import parse_object
from agentnb.llms.keys import CUT

MAX_SERVER_TEXT = 500
"""Characters of the server's own words in a message: enough for any provider's sentence, too little for an HTML
page."""

_BLAME: dict[str, type[ModelError]] = {
    "authentication_error": AuthenticationError,
    "permission_error": AuthenticationError,
    "invalid_api_key": AuthenticationError,
    "billing_error": ModelRequestError,
    "content_filter": ModelRequestError,
    "context_length_exceeded": ModelRequestError,
    "exceed_context_size_error": ModelRequestError,  # llama.cpp
    "insufficient_quota": ModelRequestError,  # OpenAI sends it with 429, but waiting does not pay the bill
    "invalid_request_error": ModelRequestError,
    "not_found_error": ModelRequestError,
    "request_too_large": ModelRequestError,
    "overloaded_error": ModelOverloaded,
    "rate_limit_error": ModelOverloaded,
    "rate_limit_exceeded": ModelOverloaded,
}
_TRY_AGAIN = {408, 409}  # request time-out, lock time-out: both providers' own libraries repeat these


def from_status(status: int, body: str, headers: Mapping[str, str], server: str) -> ModelError:
    """Make the error for a response whose status is not 200."""
    said = parse_object(body)
    kind = _blame(said.get("error", said)) if said is not None else None
    if status in (401, 403):
        blamed: type[ModelError] = AuthenticationError
    elif status in (429, 529):
        blamed = ModelRequestError if kind is ModelRequestError else ModelOverloaded
    elif status >= 500 or status in _TRY_AGAIN:
        blamed = ModelUnavailable
    else:
        blamed = ModelRequestError
    words = server_words(body if said is None else said)
    return blamed(f"{server} answered {status}: {words}", status=status, retry_after=retry_after(headers))


def from_payload(payload: Mapping[str, object], server: str) -> ModelError:
    """Make the error for an error object that came without a status: in a stream, or in a body with status 200."""
    error = payload.get("error") or payload
    code = error.get("code") if isinstance(error, Mapping) else None
    blamed = _blame(error)
    if blamed is None and isinstance(code, int) and not isinstance(code, bool) and code >= 400:
        return from_status(code, json.dumps(payload), {}, server)
    return (blamed or ModelUnavailable)(f"{server} reported an error: {server_words(payload)}")


def not_a_stream(body: str, server: str) -> ModelError:
    """Make the error for a response with status 200 that is no event stream, but perhaps an error in JSON."""
    said = parse_object(body)
    if said is not None and said.get("error"):
        return from_payload(said, server)
    return ModelProtocolError(f"{server} answered with something that is not an event stream: {server_words(body)}")


def decode_object(data: str, server: str) -> dict[str, Any]:
    """Read an event's data as a JSON object. Raises `ModelProtocolError` when it is none."""
    said = parse_object(data)
    if said is None:
        raise ModelProtocolError(f"{server} sent an event that is not a JSON object: {server_words(data)}")
    return said


def server_words(said: object) -> str:
    """Give what the server said, for people: its own message where it has one, bounded in length."""
    while isinstance(said, Mapping):
        words = (said[key] for key in ("error", "message", "detail", "type") if said.get(key))
        said = next(words, json.dumps(dict(said)))
    text = " ".join((said if isinstance(said, str) else json.dumps(said)).split())
    if not text:
        return "(nothing)"
    return text if len(text) <= MAX_SERVER_TEXT else text[: MAX_SERVER_TEXT - 1] + CUT


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Give the seconds to wait by `retry-after-ms`, or by `retry-after` in seconds or as an HTTP date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) * unit)
        except ValueError:
            continue
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


def _blame(error: object) -> type[ModelError] | None:
    if not isinstance(error, Mapping):
        return None
    words = (error.get("code"), error.get("type"))
    return next((_BLAME[word] for word in words if isinstance(word, str) and word in _BLAME), None)
