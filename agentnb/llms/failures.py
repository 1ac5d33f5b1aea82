"""From what a server says went wrong to the error that says who is to blame.

Three places can carry the news: the status of the response, a JSON body that came with status 200, and an event in
the middle of a stream. The last two have no status, so the provider's own word decides. One table holds the words
of both dialects. Gemini puts its errors into a list of one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from agentnb.core.errors import (
    AuthenticationError,
    ModelError,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailable,
)
from agentnb.core.unicode import mended
from agentnb.llms.answers import count
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
    "overloaded": ModelOverloaded,  # text-generation-inference
    "overloaded_error": ModelOverloaded,
    "rate_limit_error": ModelOverloaded,
    "rate_limit_exceeded": ModelOverloaded,
}
_SIGNS_OF_LIFE = {"ping", "heartbeat", "keepalive", "keep-alive"}
_TRY_AGAIN = {408, 409}  # request time-out, lock time-out: both providers' own libraries repeat these


def from_status(status: int, body: str, headers: Mapping[str, str], server: str) -> ModelError:
    """Make the error for a response whose status is not 200."""
    said = _parse(body)
    kind = (_blame(said.get("error")) or _blame(said)) if said is not None else None
    if status in (401, 403):
        blamed: type[ModelError] = AuthenticationError
    elif status in (429, 529):
        blamed = ModelRequestError if kind is ModelRequestError else ModelOverloaded
    elif status >= 500 or status in _TRY_AGAIN:
        blamed = ModelUnavailable
    else:
        blamed = ModelRequestError
    words = server_words(body if said is None else said)
    if 300 <= status < 400 and (place := headers.get("location")):
        # Nobody goes there: the key would go to a server that the user has not named.
        moved = urlsplit(place)
        public = moved._replace(netloc=moved.netloc.rpartition("@")[2], query="", fragment="")
        words = f"it has moved to {public.geturl()}; give base_url accordingly"
    wait = retry_after(headers)
    if wait is None and said is not None:
        wait = _retry_delay(said.get("error"))
    return blamed(f"{server} answered {status}: {words}", status=status, retry_after=wait)


def from_payload(payload: Mapping[str, object], server: str) -> ModelError:
    """Make the error for an error object that came without a status: in a stream, or in a body with status 200."""
    error = payload.get("error") or payload
    code = count(error.get("code")) if isinstance(error, Mapping) else None
    blamed = _blame(error) or _blame(payload)
    if blamed is None and code is not None and 400 <= code < 600:
        return from_status(code, json.dumps(payload), {}, server)
    return (blamed or ModelUnavailable)(f"{server} reported an error: {server_words(payload)}")


def not_a_stream(body: str, server: str) -> ModelError | None:
    """Make the error for a response with status 200 that is no event stream; None for a whole answer in JSON."""
    said = _parse(body)
    if said is not None and _is_error(said):
        return from_payload(said, server)
    if said is not None and (said.get("choices") or said.get("type") == "message"):
        return None
    return ModelProtocolError(
        f"{server} answered with something that is not an event stream: {server_words(body)};"
        " is base_url the address of its API?"
    )


def is_sign_of_life(data: str, name: str) -> bool:
    """Say whether an event of such data and such a name is no more than that."""
    return not data.strip() or name in _SIGNS_OF_LIFE


def read_event(data: str, name: str, server: str) -> dict[str, Any]:
    """Read an event's data as a JSON object. Raises the `ModelError` that it tells."""
    said = _parse(data)
    if name == "error" or (said is not None and _is_error(said)):
        raise from_payload({"error": data} if said is None else said, server)
    if said is None:
        raise ModelProtocolError(f"{server} sent an event that is not a JSON object: {server_words(data)}")
    return said


def server_words(said: object) -> str:
    """Give what the server said, for people: its own message where it has one, bounded in length."""
    behind = ""
    while isinstance(said, Mapping):
        said_by = ("error", "message", "detail", "type")
        words = (said[key] for key in said_by if said.get(key) and said[key] is not True)
        if isinstance(metadata := said.get("metadata"), Mapping) and metadata.get("raw"):
            behind = f" ({server_words(metadata['raw'])})"  # OpenRouter's own words are "Provider returned error"
        if failed := said.get("failed_generation"):
            behind = f" ({server_words(failed)})"  # Groq's refer to what the model has written
        said = next(words, json.dumps(dict(said)))
    text = " ".join(mended(said if isinstance(said, str) else json.dumps(said)).split()) + behind
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
    if moment.tzinfo is None:  # an HTTP date is Greenwich's, whether it says so or not
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - time.time())


def _retry_delay(error: object) -> float | None:
    """Give the seconds to wait by Google's details of an error, which has no header for it: `"retryDelay": "34s"`."""
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping) and isinstance(delay := detail.get("retryDelay"), str):
            return retry_after({"retry-after": delay.removesuffix("s")})
    return None


def _is_error(said: Mapping[str, object]) -> bool:
    return bool(said.get("error")) or "error" in (said.get("type"), said.get("object"))


def _parse(text: str) -> dict[str, Any] | None:
    said = parse_object(text)
    if said is None and text.lstrip().startswith("["):
        return parse_object(text.strip().removeprefix("[").removesuffix("]"))
    return said


def _blame(error: object) -> type[ModelError] | None:
    if not isinstance(error, Mapping):
        return None
    words = (error.get("code"), error.get("type"), error.get("error_type"))
    return next((_BLAME[word] for word in words if isinstance(word, str) and word in _BLAME), None)
