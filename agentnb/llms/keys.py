"""Keys: API keys are read from the environment when a request is sent, and are stored nowhere else.

A key belongs to one server. `OPENAI_API_KEY` is sent to OpenAI's own host, `ANTHROPIC_API_KEY` to Anthropic's,
`GEMINI_API_KEY` to Gemini's, `AWS_BEARER_TOKEN_BEDROCK` to Bedrock's. Any other server, including one on this machine,
is sent a key only if the client names the variable by `api_key_env`.

A client holds the name of the variable and never its value, so no repr, pickle or journal can contain a key. A server
may quote a key ("Incorrect API key provided: ..."), so errors pass through `masked`.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from agentnb.core.errors import AuthenticationError, ModelError, UsageError

CUT = "…"
"""The mark at the end of a server's text that was cut."""
SHORTEST_SECRET = 8
"""The minimum length of a key that is masked. Shorter values are placeholders ("x", "none") for local servers, and
masking them would garble every message.
"""
SHORTEST_PASSWORD = 4
"""The minimum length of a password in an address, or of a key in its query, that is masked."""


@dataclass(frozen=True, slots=True)
class EnvironmentKey:
    """The key in the environment variable `variable`, sent in `header` after `prefix`."""

    variable: str
    header: str
    prefix: str = ""
    required: bool = True

    def header_value(self) -> str | None:
        """Return the current value of the header; None if no key is set and none is required.

        Raises AuthenticationError if a required key is not set, or has characters that cannot be sent.
        """
        key = self.value()
        if not key:
            if self.required:
                raise AuthenticationError(f"no API key: set the environment variable {self.variable}")
            return None
        if not (key.isascii() and key.isprintable()):  # the HTTP library would quote the header in its error
            raise AuthenticationError(
                f"the environment variable {self.variable} holds characters that no API key has; set it to the key only"
            )
        return self.prefix + key

    def value(self) -> str:
        """Return the current key, "" if none is set."""
        return value_of(self.variable)


def value_of(variable: str) -> str:
    """Return the current key in an environment variable, "" if it has none."""
    return os.environ.get(variable, "").strip()


def masked(error: ModelError, secrets: Iterable[str]) -> ModelError:
    """Return the error with `***` in place of each secret in its texts; the same error if it has none."""
    clean = error
    for secret in secrets:
        if not secret:
            continue
        words = _without(secret, str(clean))
        fields = {name: _without(secret, getattr(clean, name)) for name in ("code", "param", "request_id", "body")}
        if words != str(clean) or any(value != getattr(clean, name) for name, value in fields.items()):
            clean = clean.reworded(words)
            clean.__dict__.update(fields)
    return clean


def _without(secret: str, value: Any) -> Any:
    """Return a string, or JSON data, without the secret."""
    if isinstance(value, dict):
        return {_without(secret, name): _without(secret, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without(secret, item) for item in value]
    if not isinstance(value, str):
        return value
    clean = value.replace(secret, "***")
    for length in range(len(secret) - 1, SHORTEST_PASSWORD - 1, -1):  # the secret may have been cut
        clean = clean.replace(secret[:length] + CUT, "***" + CUT)
    return clean


def secrets_in_address(name: str, password: str, query: Iterable[tuple[str, str]]) -> list[str]:
    """Return the secrets in an address, in every form in which a server may quote them.

    They are the password, or the user name if there is no password, and the values of the query except those that name
    a version. name, password: "" for none. query: the names and values of the query.
    """
    found = []
    if name or password:
        # A password is masked unless it is so short that masking would garble every message.
        found += [secret for secret in (password or name,) if len(secret) >= SHORTEST_PASSWORD]
        found.append(base64.b64encode(f"{name}:{password}".encode()).decode())
    for field, value in query:
        shortest = SHORTEST_PASSWORD if _OF_A_SECRET.search(field) else SHORTEST_SECRET
        if len(value) >= shortest and not _OF_A_VERSION.search(field):
            found.append(value)
    encoded = [quote(secret, safe=safe) for secret in found for safe in ("", "/", "/:=+@")]
    return sorted({*found, *encoded, *map(quote_plus, found)}, key=len, reverse=True)


_OF_A_SECRET = re.compile(r"key|token|secret|pass|auth|sig|code|cred", re.IGNORECASE)
_OF_A_VERSION = re.compile(r"version|^(model|region|deployment)$", re.IGNORECASE)


def is_at(url: str, host: str) -> bool:
    """Return True if an address is a provider's own: https, at its host or a host below it (`eu.api.openai.com`)."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not an address, which the transport reports
        return False
    name = (parts.hostname or "").rstrip(".")
    return parts.scheme == "https" and (name == host or name.endswith(f".{host}"))


GEMINI_HOST = "generativelanguage.googleapis.com"
_BEDROCK_HOST = re.compile(r"bedrock-(runtime|mantle)(-fips)?\.[a-z0-9-]+\.(amazonaws\.com|api\.aws)")


def is_gemini(url: str) -> bool:
    """Return True if an address is that of Gemini's API."""
    return is_at(url, GEMINI_HOST)


def is_bedrock(url: str) -> bool:
    """Return True if an address is that of Amazon Bedrock, in any region."""
    host = (urlsplit(url).hostname or "") if is_at(url, "amazonaws.com") or is_at(url, "api.aws") else ""
    return _BEDROCK_HOST.fullmatch(host.rstrip(".")) is not None


def usual_variable(url: str) -> str | None:
    """Return the variable that has the key of a server other than the dialect's own; None if the server is unknown."""
    if is_gemini(url):
        return "GEMINI_API_KEY"
    return "AWS_BEARER_TOKEN_BEDROCK" if is_bedrock(url) else None


def key_for(
    variable: str, *, api_key_env: str | None, is_own: bool, header: str, prefix: str = ""
) -> EnvironmentKey | None:
    """Return the key for a server: that of `api_key_env`, or that of `variable` if the server is the provider's own.

    Returns None if the server is sent no key. Raises UsageError if `api_key_env` is not the name of a variable.
    """
    named: object = api_key_env
    if named is None:
        return EnvironmentKey(variable, header, prefix) if is_own else None
    if not isinstance(named, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", named):
        raise UsageError(
            'api_key_env must be the name of an environment variable, such as api_key_env="MY_SERVER_KEY", and not'
            " the key itself."
        )
    return EnvironmentKey(named, header, prefix)
