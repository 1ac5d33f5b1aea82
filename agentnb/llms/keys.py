"""Keys: API keys are read from the environment when a request is sent, and are stored nowhere else.

A key belongs to one server. `OPENAI_API_KEY` is sent to OpenAI's own host, `ANTHROPIC_API_KEY` to Anthropic's,
`GEMINI_API_KEY` to Gemini's, `AWS_BEARER_TOKEN_BEDROCK` to Bedrock's. Any other server, including one on this machine,
is sent a key only if the client names the variable by `api_key_env`.

A client holds the name of the variable and never its value, so no repr, pickle or journal can contain a key. A server
may quote a key ("Incorrect API key provided: ..."), so errors pass through `masked`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentnb.core.errors import AuthenticationError, ModelError, UsageError
from agentnb.core.secrets import Secrets


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


def masked(error: ModelError, secrets: Secrets) -> ModelError:
    """Return the error with `***` in place of each secret in its texts; the same error if it has none."""
    words = secrets.without(str(error))
    fields = {name: secrets.without(getattr(error, name)) for name in ("code", "param", "request_id", "body")}
    if words == str(error) and all(value == getattr(error, name) for name, value in fields.items()):
        return error
    clean = error.reworded(words)
    clean.__dict__.update(fields)
    return clean


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
