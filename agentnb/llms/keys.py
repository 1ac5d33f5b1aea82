"""API keys stay in the environment: they are read when a request leaves, and put nowhere else.

The object that a client holds knows the variable's name, never its value, so no repr, pickle or journal can hold
one. A server may quote a key back at us ("Incorrect API key provided: ..."), so errors pass through `redacted` on
their way out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from agentnb.core.errors import AuthenticationError, ModelError

CUT = "…"
"""Where the words of a server were cut."""
SHORTEST_SECRET = 8
"""Shorter values are placeholders ("x", "none") that local servers are given; masking them would garble every
message."""


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
        key = os.environ.get(self.variable, "").strip()
        if not key:
            if self.required:
                raise AuthenticationError(f"no API key: set the environment variable {self.variable}")
            return None
        if not (key.isascii() and key.isprintable()):  # the HTTP library would quote the header in its own error
            raise AuthenticationError(f"the environment variable {self.variable} holds characters that no API key has")
        return self.prefix + key

    def redacted(self, error: ModelError) -> ModelError:
        """Give the same error, without the key if its message has it."""
        return without(os.environ.get(self.variable, "").strip(), error)


def without(secret: str, error: ModelError) -> ModelError:
    """Give the same error, without the secret if its message has it."""
    said = str(error)
    if len(secret) < SHORTEST_SECRET:
        return error
    clean = said.replace(secret, "***")
    for length in range(len(secret) - 1, SHORTEST_SECRET - 1, -1):  # the server's words may have been cut inside it
        clean = clean.replace(secret[:length] + CUT, "***" + CUT)
    return error if clean == said else type(error)(clean, status=error.status, retry_after=error.retry_after)
