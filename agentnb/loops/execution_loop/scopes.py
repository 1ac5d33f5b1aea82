"""Scopes: which part of the context a call is performed with (SEMANTICS.md, 8. Scopes and delegates).

An allow-list: kinds of data (`state`, `input`, any other), paths (`†state.profile`), and `text` or `system` for the
messages that are no data. Who is let see data gets it as it stands when the call is launched, one message for each
object; with `_instance`, that instance's own and everybody's. A tool's schema provides the scopes (a constant), or lets
the model choose (a schema of a list); a call of a tool that says nothing may name any.

An activity without scopes is given the whole log, a delegate without scopes nothing (`delegates`). For a latent call
they are a hint to the model that makes it. References in parameters are the loop's to resolve, and are not restricted;
and what is scoped is not waited for: a call that needs it refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.loops.execution_loop.references import DAGGER, parse_expression


def check_scopes(scopes: Any) -> None:
    """Raises InvalidArguments for what is no list of scopes; None is none."""
    if scopes is None:
        return
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope for scope in scopes):
        raise InvalidArguments(f"`_scopes` must be a list of kinds and paths, not {scopes!r}.")
    for scope in scopes:
        if scope.startswith(DAGGER):
            parse_expression(scope)


class Choice:
    """What a tool's schema says of a field that is no parameter: nothing, a constant, or a schema to choose by."""

    def __init__(self, said: Any) -> None:
        self.schema: dict[str, Any] | None = None
        self.constant: Any = None
        if isinstance(said, Mapping) and "const" in said:
            self.constant = said["const"]
        elif isinstance(said, Mapping):
            self.schema = dict(said)
        else:
            self.constant = said

    def __bool__(self) -> bool:
        return self.schema is not None or self.constant is not None
