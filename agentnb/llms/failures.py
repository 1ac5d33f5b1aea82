"""From what a server says went wrong to the error that says who is to blame.

Three places can carry the news: the status of the response, a JSON body that came with status 200, and an event in
the middle of a stream. The last two have no status, so the provider's own word decides. One table holds the words
of both dialects. Gemini puts its errors into a list of one.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from agentnb.core.errors import (
    AuthenticationError,
    ContentFiltered,
    ContextTooLong,
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
    "content_filter": ContentFiltered,
    "content_policy_violation": ContentFiltered,
    "responsibleaipolicyviolation": ContentFiltered,  # Azure
    "data_inspection_failed": ContentFiltered,  # DashScope
    "datainspectionfailed": ContentFiltered,
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,  # llama.cpp
    "too_many_prompt_tokens": ContextTooLong,  # Perplexity
    "model_max_prompt_tokens_exceeded": ContextTooLong,  # GitHub
    "tokens_limit_reached": ContextTooLong,
    "insufficient_quota": ModelRequestError,  # OpenAI sends it with 429, but waiting does not pay the bill
    "invalid_request_error": ModelRequestError,
    "not_found_error": ModelRequestError,
    "request_too_large": ModelRequestError,
    "overloaded": ModelOverloaded,  # text-generation-inference
    "overloaded_error": ModelOverloaded,
    "rate_limit_error": ModelOverloaded,
    "rate_limit_exceeded": ModelOverloaded,
}
_TOO_LONG = re.compile(
    # Most providers have no code for it, and each has its own sentence.
    r"(prompt|input|request|messages?|query)\b((?!max_|image|file|audio|document|string)[^.]){0,60} (is|are) too long"
    r"|request body too large for|too large for model with"
    r"|prompt too long"
    r"|maximum (context|prompt|model) length|max(imum)? length of the model|exceeds? (the )?max(imum)? length"
    r"|(context|token) (limit|length|size|window)[^.]{0,40}\bexceed"
    r"|exceed[^.]{0,80}\b(context|token limit|maximum number of tokens|configured limit of)"
    r"|reduce the length of the (messages|prompt|input)"
    r"|range of input length should be"
    r"|tokens` \+ `max_new_tokens` must be"
    r"|too many (prompt|input) tokens|total number of tokens in the prompt cannot exceed",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content (filter|management policy|policy)|content exists risk|safety system|usage (policy|guidelines)"
    r"|(input|prompt|content) (was|is|has been) (flagged|blocked)|flagged as potentially|SAFETY_CHECK"
    r"|inappropriate content|requires moderation|guardrail",
    re.IGNORECASE,
)
_REQUEST_IDS = (
    *("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "x-generation-id"),
    *("x-goog-request-id", "cf-ray"),
)
_SIGNS_OF_LIFE = {"ping", "heartbeat", "keepalive", "keep-alive"}
_TRY_AGAIN = {408, 409}  # request time-out, lock time-out: both providers' own libraries repeat these


def from_status(status: int, body: str, headers: Mapping[str, str], server: str) -> ModelError:
    """Make the error for a response whose status is not 200."""
    said = _parse(body)
    kind = (_blame(said.get("error")) or _blame(said)) if said is not None else None
    words = server_words(body if said is None else said)
    if status in (429, 529):
        is_request = kind is not None and issubclass(kind, ModelRequestError) and kind is not AuthenticationError
        blamed: type[ModelError] = kind if kind is not None and is_request else ModelOverloaded
    elif special := _special(kind, words, said, status):
        blamed = special
    elif status in (401, 403):
        blamed = AuthenticationError
    elif status >= 500 or status in _TRY_AGAIN:
        blamed = ModelUnavailable
    else:
        blamed = ModelRequestError
    if 300 <= status < 400 and (place := headers.get("location")):
        # Nobody goes there: the key would go to a server that the user has not named.
        moved = urlsplit(place)
        public = moved._replace(netloc=moved.netloc.rpartition("@")[2], query="", fragment="")
        words = f"it has moved to {public.geturl()}; give base_url accordingly"
    wait = retry_after(headers)
    if wait is None and said is not None:
        wait = _retry_delay(said.get("error"))
    return blamed(
        f"{server} answered {status}: {words}", status=status, retry_after=wait, **_particulars(said, body, headers)
    )


def from_payload(payload: Mapping[str, object], server: str) -> ModelError:
    """Make the error for an error object that came without a status: in a stream, or in a body with status 200."""
    error = payload.get("error") or payload
    code = count(error.get("code")) if isinstance(error, Mapping) else None
    blamed = _blame(error) or _blame(payload)
    if blamed is None and code is not None and 400 <= code < 600:
        return from_status(code, json.dumps(payload), {}, server)
    words = server_words(payload)
    blamed = _special(blamed, words, payload, None) or blamed or ModelUnavailable
    return blamed(f"{server} reported an error: {words}", **_particulars(payload, "", {}))


def _special(
    kind: type[ModelError] | None, words: str, said: Mapping[str, object] | None, status: int | None
) -> type[ModelError] | None:
    """Return the type of an error that is about the content of the request, by its code or by the server's words."""
    if kind in (ContextTooLong, ContentFiltered):
        return kind
    if status == 401 or kind in (AuthenticationError, ModelOverloaded):
        return None
    error = said.get("error") if said is not None else None
    if status != 403 and _TOO_LONG.search(words):
        return ContextTooLong
    metadata = error.get("metadata") if isinstance(error, Mapping) else None
    if isinstance(metadata, Mapping) and "flagged_input" in metadata:  # OpenRouter's, with the status of a wrong key
        return ContentFiltered
    return ContentFiltered if _FILTERED.search(words) else None


def _particulars(said: Mapping[str, object] | None, text: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return what an error keeps of the server's answer beside its words."""
    if said is None:
        body: Any = text or None
        said = {}
    else:
        body = dict(said)
    error = said.get("error")
    error = error if isinstance(error, Mapping) else said
    codes = (error.get("code"), error.get("type"), said.get("code"))
    named = [str(code) for code in codes if isinstance(code, str | int) and str(code)]
    # A word says more than a number, which is the status once more.
    words = [code for code in named if not code.isdecimal() and code != "error"]
    ids = [said.get("request_id"), *(headers.get(name) for name in _REQUEST_IDS), error.get("request_id")]
    return {
        "code": mended((words or named)[0]) if named else None,
        "param": mended(param) if isinstance(param := error.get("param"), str) else None,
        "request_id": next((mended(one) for one in ids if isinstance(one, str) and one), None),
        "body": body,
    }


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
    """Return the seconds to wait by `retry-after-ms`, or by `retry-after` in seconds or as an HTTP date.

    A header that says 0, or a moment that is past, says nothing: to ask again at once is no wait (Azure sends 1 s in
    one header and 0 ms in the other).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 < seconds < math.inf:
            return seconds
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if moment.tzinfo is None:  # an HTTP date is Greenwich's, whether it says so or not
        moment = moment.replace(tzinfo=UTC)
    seconds = moment.timestamp() - time.time()
    return seconds if seconds > 0 else None


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
    inner = error.get("innererror")  # Azure's
    words = (
        error.get("code"),
        error.get("type"),
        error.get("error_type"),
        inner.get("code") if isinstance(inner, Mapping) else None,
    )
    return next((_BLAME[word.lower()] for word in words if isinstance(word, str) and word.lower() in _BLAME), None)
