"""API keys stay in the environment: they are read when a request leaves, and put nowhere else.

A key belongs to one server. `OPENAI_API_KEY` is sent to OpenAI's own host, `ANTHROPIC_API_KEY` to Anthropic's; every
other server, this machine included, is sent a key only where the client names its variable by `api_key_env`.

The object that a client holds knows the variable's name, never its value, so no repr, pickle or journal can hold
one. A server may quote a key back at us ("Incorrect API key provided: ..."), so errors pass through `masked` on
their way out.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, urlsplit

from agentnb.core.errors import AuthenticationError, ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

CUT = "…"
"""Where the words of a server were cut."""
SHORTEST_SECRET = 8
"""Shorter values are placeholders ("x", "none") that local servers are given; masking them would garble every
message."""
SHORTEST_PASSWORD = 4
"""Characters of a password in an address, and of a key in its query, from which on it is masked."""


@dataclass(frozen=True, slots=True)
class EnvironmentKey:
    """The key in the environment variable `variable`, sent in `header` after `prefix`."""

    variable: str
    header: str
    prefix: str = ""
    required: bool = True

    def header_value(self) -> str | None:
        """Give the header's value as of now; None where no key is set and none is needed.

        Raises `AuthenticationError`.
        """
        key = self.value()
        if not key:
            if self.required:
                raise AuthenticationError(f"no API key: set the environment variable {self.variable}")
            return None
        if not (key.isascii() and key.isprintable()):  # the HTTP library would quote the header in its own error
            raise AuthenticationError(f"the environment variable {self.variable} holds characters that no API key has")
        return self.prefix + key

    def value(self) -> str:
        """Return the key as of now, "" where none is set."""
        return value_of(self.variable)


def value_of(variable: str) -> str:
    """Return the key that an environment variable has as of now, "" where it has none."""
    return os.environ.get(variable, "").strip()


def masked(error: ModelError, secrets: Iterable[str]) -> ModelError:
    """Return the same error, or one whose texts have `***` where they had one of the secrets."""
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


def _without(secret: str, said: Any) -> Any:
    """Return a text, or JSON data, without the secret in any of its texts."""
    if isinstance(said, dict):
        return {_without(secret, name): _without(secret, value) for name, value in said.items()}
    if isinstance(said, list):
        return [_without(secret, value) for value in said]
    if not isinstance(said, str):
        return said
    clean = said.replace(secret, "***")
    for length in range(len(secret) - 1, SHORTEST_PASSWORD - 1, -1):  # its end may have been cut off
        clean = clean.replace(secret[:length] + CUT, "***" + CUT)
    return clean


def secrets_of(url: httpx.URL) -> list[str]:
    """Return what an address has that nobody else may see, in every form in which a server may quote it.

    These are a password, or a name without one, and the values of the query but for those that name a version.
    """
    found = []
    if url.userinfo:
        name, password = url.username, url.password
        # A password is always masked; "a" would garble every message, and protects nothing.
        found += [secret for secret in (password or name,) if len(secret) >= SHORTEST_PASSWORD]
        found.append(base64.b64encode(f"{name}:{password}".encode()).decode())
    for name, value in url.params.multi_items():
        shortest = SHORTEST_PASSWORD if _OF_A_SECRET.search(name) else SHORTEST_SECRET
        if len(value) >= shortest and not _OF_A_VERSION.search(name):
            found.append(value)
    encoded = [quote(secret, safe=safe) for secret in found for safe in ("", "/", "/:=+@")]
    return sorted({*found, *encoded, *map(quote_plus, found)}, key=len, reverse=True)


_OF_A_SECRET = re.compile(r"key|token|secret|pass|auth|sig|code|cred", re.IGNORECASE)
_OF_A_VERSION = re.compile(r"version|^(model|region|deployment)$", re.IGNORECASE)


def is_at(url: str, host: str) -> bool:
    """Say whether an address is a provider's own: https, at its host or one below it (`eu.api.openai.com`)."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no address, which the transport says
        return False
    name = (parts.hostname or "").rstrip(".")
    return parts.scheme == "https" and (name == host or name.endswith(f".{host}"))


def key_for(
    variable: str, *, api_key_env: str | None, is_own: bool, header: str, prefix: str = ""
) -> EnvironmentKey | None:
    """Return the key for a server: `api_key_env`'s, or `variable`'s where the server is the provider's own.

    Returns None where the server is sent no key. Raises UsageError where `api_key_env` is not the name of a variable.
    """
    named: object = api_key_env
    if named is None:
        return EnvironmentKey(variable, header, prefix) if is_own else None
    if not isinstance(named, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", named):
        raise UsageError(
            'api_key_env must be the name of an environment variable, api_key_env="MY_SERVER_KEY" for one, and not'
            " the key itself."
        )
    return EnvironmentKey(named, header, prefix)
