"""Errors: the conversion of a server's error reports to a `ModelError` of the class for that kind of problem.

An error may come as the status of the response, as a JSON body with status 200, or as an event of a stream. The last
two have no status, so the provider's own code decides. One table holds the codes of both dialects. Gemini sends its
errors as a list with one item.
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
from agentnb.core.json import repair_text
from agentnb.core.secrets import CUT
from agentnb.llms.reader import parse_object, token_count

MAX_SERVER_TEXT = 500
"""The number of characters that an error quotes of a server's text: enough for a message, too few for an HTML page."""

_TYPES: dict[str, type[ModelError]] = {
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
    # OpenAI sends these with status 429, but waiting does not help.
    "insufficient_quota": ModelRequestError,
    "billing_not_active": ModelRequestError,
    "billing_hard_limit_reached": ModelRequestError,
    "invalid_request_error": ModelRequestError,
    "not_found_error": ModelRequestError,
    "request_too_large": ModelRequestError,
    "invalid_prompt": ModelRequestError,
    "overloaded": ModelOverloaded,  # text-generation-inference
    "overloaded_error": ModelOverloaded,
    "rate_limit_error": ModelOverloaded,
    "rate_limit_exceeded": ModelOverloaded,
    "server_is_overloaded": ModelOverloaded,
    "slow_down": ModelOverloaded,
}
_TOO_LONG = re.compile(
    # Most providers have no code for this, and each has its own message.
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
_UNSUPPORTED = re.compile(
    r"\b(image|audio|video|vision)s?\b[^.]{0,40} (is|are) not supported|does(n't| not) support (image|audio|vision)",
    re.IGNORECASE,
)
"""The message for a part that the model cannot read. llama.cpp sends it with status 500, but waiting does not help."""
_REQUEST_IDS = (
    *("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "x-generation-id"),
    *("x-goog-request-id", "cf-ray"),
)
_SIGNS_OF_LIFE = {"ping", "heartbeat", "keepalive", "keep-alive"}
_TRY_AGAIN = {408, 409}  # request timeout, lock timeout: the providers' own libraries retry these too


def from_status(status: int, body: str, headers: Mapping[str, str], server: str) -> ModelError:
    """Return the error for a response whose status is not 200."""
    payload = _parse(body)

    # Some codes take precedence over the status: a used-up quota has the status 429, like a rate limit.
    kind = (_type_of(payload.get("error")) or _type_of(payload)) if payload is not None else None
    message = server_message(body if payload is None else payload)
    if status in (429, 529):
        is_request = kind is not None and issubclass(kind, ModelRequestError) and kind is not AuthenticationError
        error_type: type[ModelError] = kind if kind is not None and is_request else ModelOverloaded
    elif content_error := _content_error(kind, message, payload, status):
        error_type = content_error
    elif status in (401, 403):
        error_type = AuthenticationError
    elif (status >= 500 and not _UNSUPPORTED.search(message)) or status in _TRY_AGAIN:
        error_type = ModelUnavailable
    else:
        error_type = ModelRequestError

    if 300 <= status < 400 and (place := headers.get("location")):
        # A redirect is not followed: the key would be sent to a server that the user has not named.
        moved = urlsplit(place)
        public = moved._replace(netloc=moved.netloc.rpartition("@")[2], query="", fragment="")
        message = f"the address has moved to {public.geturl()}; change base_url accordingly"
    wait = retry_after(headers)
    if wait is None and payload is not None:
        wait = _retry_delay(payload.get("error"))
    return error_type(
        f"{server} answered {status}: {message}",
        status=status,
        retry_after=wait,
        should_retry={"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower()),
        **_fields(payload, body, headers),
    )


def from_payload(payload: Mapping[str, object], server: str) -> ModelError:
    """Return the error for an error object without a status, from a stream or from a body with status 200."""
    error = payload.get("error") or payload
    code = token_count(error.get("code")) if isinstance(error, Mapping) else None
    error_type = _type_of(error) or _type_of(payload)
    if error_type is None and code is not None and 400 <= code < 600:
        return from_status(code, json.dumps(payload), {}, server)
    message = server_message(payload)
    error_type = _content_error(error_type, message, payload, None) or error_type or ModelUnavailable
    return error_type(f"{server} reported an error: {message}", **_fields(payload, "", {}))


def _content_error(
    kind: type[ModelError] | None, message: str, payload: Mapping[str, object] | None, status: int | None
) -> type[ModelError] | None:
    """Return ContextTooLong or ContentFiltered if the server's code or text says so, otherwise None."""
    if kind in (ContextTooLong, ContentFiltered):
        return kind
    if status == 401 or kind in (AuthenticationError, ModelOverloaded):
        return None
    error = payload.get("error") if payload is not None else None
    if status != 403 and _TOO_LONG.search(message):
        return ContextTooLong
    metadata = error.get("metadata") if isinstance(error, Mapping) else None
    if isinstance(metadata, Mapping) and "flagged_input" in metadata:  # OpenRouter, with the status of a wrong key
        return ContentFiltered
    return ContentFiltered if _FILTERED.search(message) else None


def _fields(payload: Mapping[str, object] | None, text: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an error besides its message: `code`, `param`, `request_id` and `body`."""
    if payload is None:
        body: Any = text or None
        payload = {}
    else:
        body = dict(payload)
    error = payload.get("error")
    error = error if isinstance(error, Mapping) else payload
    codes = (error.get("code"), error.get("type"), payload.get("code"))
    named = [str(code) for code in codes if isinstance(code, str | int) and str(code)]
    # Prefer a name to a number, which only repeats the status.
    names = [code for code in named if not code.isdecimal() and code != "error"]
    ids = [payload.get("request_id"), *(headers.get(name) for name in _REQUEST_IDS), error.get("request_id")]
    return {
        "code": repair_text((names or named)[0]) if named else None,
        "param": repair_text(param) if isinstance(param := error.get("param"), str) else None,
        "request_id": next((repair_text(one) for one in ids if isinstance(one, str) and one), None),
        "body": body,
    }


def not_a_stream(body: str, server: str) -> ModelError | None:
    """Return the error for a response with status 200 that is not an event stream; None for a whole answer in JSON."""
    payload = _parse(body)
    if payload is not None and _is_error(payload):
        return from_payload(payload, server)
    if payload is not None and (
        payload.get("choices") or payload.get("type") == "message" or payload.get("object") == "response"
    ):
        return None
    return ModelProtocolError(
        f"{server} answered with something that is not an event stream: {server_message(body)};"
        " check that base_url is the address of its API"
    )


def is_sign_of_life(data: str, name: str) -> bool:
    """Return True if an event only keeps the connection open."""
    return not data.strip() or name in _SIGNS_OF_LIFE


def read_event(data: str, name: str, server: str) -> dict[str, Any]:
    """Return the data of an event, a JSON object. Raises the ModelError that the event reports."""
    payload = _parse(data)
    if name == "error" or (payload is not None and _is_error(payload)):
        raise from_payload({"error": data} if payload is None else payload, server)
    if payload is None:
        raise ModelProtocolError(f"{server} sent an event that is not a JSON object: {server_message(data)}")
    return payload


def server_message(payload: object) -> str:
    """Return the message of a server for people, at most `MAX_SERVER_TEXT` characters; "(nothing)" if it has none."""
    details = ""
    while isinstance(payload, Mapping):
        keys = ("error", "message", "Message", "detail", "type")  # "Message": Bedrock, for a wrong key
        texts = (payload[key] for key in keys if payload.get(key) and payload[key] is not True)
        if isinstance(metadata := payload.get("metadata"), Mapping) and metadata.get("raw"):
            details = f" ({server_message(metadata['raw'])})"  # OpenRouter's own message is "Provider returned error"
        if failed := payload.get("failed_generation"):
            details = f" ({server_message(failed)})"  # Groq's message refers to this text of the model
        payload = next(texts, json.dumps(dict(payload)))
    text = " ".join(repair_text(payload if isinstance(payload, str) else json.dumps(payload)).split()) + details
    if not text:
        return "(nothing)"
    return text if len(text) <= MAX_SERVER_TEXT else text[: MAX_SERVER_TEXT - 1] + CUT


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait by `retry-after-ms`, or by `retry-after` in seconds or as an HTTP date; None if no
    wait is set.

    A value of 0 or a date in the past is ignored, because an immediate retry is not a wait (Azure sends 1 s in one
    header and 0 ms in the other).
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
    if moment.tzinfo is None:  # an HTTP date is always in UTC
        moment = moment.replace(tzinfo=UTC)
    seconds = moment.timestamp() - time.time()
    return seconds if seconds > 0 else None


def _retry_delay(error: object) -> float | None:
    """Return the seconds to wait by the details of Google's errors, `"retryDelay": "34s"`; Google sends no header."""
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping) and isinstance(delay := detail.get("retryDelay"), str):
            return retry_after({"retry-after": delay.removesuffix("s")})
    return None


def _is_error(payload: Mapping[str, object]) -> bool:
    return bool(payload.get("error")) or "error" in (payload.get("type"), payload.get("object"))


def _parse(text: str) -> dict[str, Any] | None:
    payload = parse_object(text)
    if payload is None and text.lstrip().startswith("["):
        return parse_object(text.strip().removeprefix("[").removesuffix("]"))
    return payload


def _type_of(error: object) -> type[ModelError] | None:
    if not isinstance(error, Mapping):
        return None
    inner = error.get("innererror")  # Azure
    codes = (
        error.get("code"),
        error.get("type"),
        error.get("error_type"),
        inner.get("code") if isinstance(inner, Mapping) else None,
    )
    return next((_TYPES[code.lower()] for code in codes if isinstance(code, str) and code.lower() in _TYPES), None)
