"""Secrets: which parts of what a person has given are keys, and how they are left out of texts.

A server may quote what it was sent: whole, in JSON, encoded for an address, or as the header of a login. `Secrets` are
the strings to look for, in all of these forms. `secrets_in` finds them in options and headers, `secrets_in_address`
in an address.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import logging
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from agentnb.core.errors import UsageError

CUT = "…"
"""The mark at the end of a text that was cut."""
MASK = "***"
SHORTEST_SECRET = 8
"""The minimum length of a key that is masked. Shorter values are placeholders ("x", "none") for local servers, and
masking them would garble every message.
"""
SHORTEST_PASSWORD = 4
"""The minimum length of a password, or of the value of a field that is named as a secret, that is masked."""

_NAMES_A_SECRET = re.compile(
    r"(^|_|-)(api[_-]?key|key|secret|password|passwd|pwd|passphrase|credential|authorization|cookie|signature|auth)s?$"
    r"|token$",
    re.IGNORECASE,
)
_NAMES_NO_SECRET = re.compile(
    r"(cache|sort|prompt|routing|eos|bos|pad|stop|unk|sep|cls|mask|start|end|special)[_-](key|token)s?$", re.IGNORECASE
)
_IS_A_SECRET = re.compile(r"(sk|pk|gsk|xai|hf)[-_][\w-]{8,}|(Bearer|Basic) \S+")
_SCHEME = re.compile(r"(bearer|basic|token|apikey|key)\s+(?=\S)", re.IGNORECASE)
"""What stands before the key in a header."""
HEADERS = frozenset({"headers", "extra_headers", "default_headers", "http_headers"})
"""Fields whose values are the headers of a request."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
_OF_A_SECRET = re.compile(r"key|token|secret|pass|pwd|auth|sig|code|cred|cookie|session", re.IGNORECASE)
"""The name of a header, or of a field of an address, that has a secret. In the fields of a body these are words."""
_OF_A_VERSION = re.compile(r"version|^(model|region|deployment)$", re.IGNORECASE)
_SCHEMAS = frozenset({"parameters", "input_schema", "schema", "json_schema", "properties", "$defs", "definitions"})
"""Fields with a schema, in which a name such as `api_key` stands for no key."""


class Secrets:
    """Strings that no text may quote.

        Secrets(["s3cr3t/key"]).without("not valid: s3cr3t%2Fkey")  # "not valid: ***"

    values: the secrets. Empty ones are ignored.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._forms = sorted({form for value in set(values) if value for form in _forms(value)}, key=len, reverse=True)

    def without(self, value: Any) -> Any:
        """Return a text, or JSON data, with `***` in place of each secret; other values as they are."""
        if isinstance(value, str):
            for form in self._forms:
                if form in value:
                    value = value.replace(form, MASK)
            return self._without_beginnings(value) if CUT in value else value
        if isinstance(value, dict):
            return {self.without(name): self.without(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.without(item) for item in value]
        return value

    def _without_beginnings(self, text: str) -> str:
        """Return a text without the beginning of a secret that was cut."""
        for form in self._forms:
            for length in range(len(form) - 1, SHORTEST_PASSWORD - 1, -1):
                text = text.replace(form[:length] + CUT, MASK + CUT)
        return text


@lru_cache(maxsize=512)
def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret in each form in which a text may quote it."""
    plain = {secret, " ".join(secret.split())}  # messages of servers are shown in one line
    found = set(plain)
    for one in plain:
        for as_json in (json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1], one.replace("/", "\\/")):
            found |= {as_json, json.dumps(as_json)[1:-1]}  # a server may quote a body that quotes a body
        found |= {repr(one)[1:-1], html.escape(one), quote_plus(one)}
        for safe in ("", "/", "/:=+@", "~", "!'()*"):
            encoded = quote(one, safe=safe)
            found |= {encoded, re.sub("%..", lambda match: match[0].lower(), encoded), quote(encoded, safe="")}
        if len(one) >= SHORTEST_SECRET:  # alone in the header of a login
            for login in (one, f"{one}:", f":{one}"):
                found |= _in_base64(login)
    return tuple(found)


def _in_base64(text: str) -> set[str]:
    """Return a text in base64, without the signs that fill it up."""
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode().rstrip("=")
    return {encoded, encoded.replace("+", "-").replace("/", "_")}


def names_a_secret(name: str) -> bool:
    """Return True if a field of this name has a secret: `api_key`, `clientSecret`, `Authorization`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return _NAMES_A_SECRET.search(words) is not None and _NAMES_NO_SECRET.search(words) is None


def is_a_secret(value: str) -> bool:
    """Return True if a value looks like a key: `sk-...`, `Bearer ...`."""
    return _IS_A_SECRET.match(value) is not None


def is_a_secret_header(name: str, value: str) -> bool:
    """Return True if a header has a secret, by its name or by its value."""
    return _OF_A_SECRET.search(name) is not None or is_a_secret(value)


def secrets_in_headers(headers: Mapping[Any, Any]) -> list[str]:
    """Return the values of headers that no text may quote: all but short ones, and the key without its scheme."""
    found = []
    for name, value in headers.items():
        if isinstance(value, str) and isinstance(name, str):
            shortest = SHORTEST_PASSWORD if is_a_secret_header(name, value) else SHORTEST_SECRET
            found += _with_key(value, shortest)
    return found


def _with_key(value: str, shortest: int) -> list[str]:
    """Return a value, and the key in it if it is that of a header, each unless it is shorter than this."""
    found = [value.strip()]
    if scheme := _SCHEME.match(value):
        found.append(value[scheme.end() :].strip())
        if scheme[1].lower() == "basic":
            try:
                login = base64.b64decode(found[-1], validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                login = ""
            found += [login, login.partition(":")[2]]
    return [one for one in found if len(one) >= shortest]


def secrets_in(value: Any, name: str = "") -> list[str]:
    """Return the secrets in JSON data: values of fields that are named as secrets, headers, and logins of addresses.

    value: options, or one field of them. name: the name of the field.
    """
    if isinstance(value, str):
        if names_a_secret(name) or is_a_secret(value):
            return _with_key(value, SHORTEST_PASSWORD)
        return [secret for address in _ADDRESS.findall(value) for secret in secrets_in_url(address)]
    if isinstance(value, list | tuple):
        return [secret for item in value for secret in secrets_in(item, name)]
    if not isinstance(value, Mapping):
        return []
    if name in _SCHEMAS:
        return []
    found = []
    for field, item in value.items():
        field = str(field)
        if names_a_secret(name) and isinstance(item, str) and not names_a_secret(field):
            found += _with_key(item, SHORTEST_SECRET)
        elif field.lower().replace("-", "_") in HEADERS and isinstance(item, Mapping):
            found += secrets_in_headers(item)
        else:
            found += secrets_in(item, field)
    pair = value.get("name", value.get("key"))  # {"name": "Authorization", "value": "Bearer ..."}
    if isinstance(pair, str) and isinstance(item := value.get("value"), str):
        found += secrets_in(item, pair)
    return found


def secrets_in_url(url: str) -> list[str]:
    """Return the secrets in an address, as `secrets_in_address` does; none if it is not one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    login = parts.netloc.rpartition("@")[0]
    name, _, password = login.partition(":")
    return secrets_in_address(unquote(name), unquote(password), parse_qsl(parts.query))


def secrets_in_address(name: str, password: str, query: Iterable[tuple[str, str]]) -> list[str]:
    """Return the secrets in an address.

    They are the password, or the user name if there is no password, and the values of the query except those that name
    a version. name, password: "" for none. query: the names and values of the query.
    """
    found = []
    if name or password:
        # A password is masked unless it is so short that masking would garble every message.
        found += [secret for secret in (password or name,) if len(secret) >= SHORTEST_PASSWORD]
        found += _in_base64(f"{name}:{password}")
    for field, value in query:
        shortest = SHORTEST_PASSWORD if _OF_A_SECRET.search(field) else SHORTEST_SECRET
        if len(value) >= shortest and not _OF_A_VERSION.search(field):
            found.append(value)
    return found


def name_of_secret(value: Any, name: str = "") -> str | None:
    """Return the name of the first field of JSON data that has a secret; None if there is none."""
    if isinstance(value, str):
        return name if names_a_secret(name) or secrets_in(value, name) else None
    if isinstance(value, Mapping) and name.lower().replace("-", "_") in HEADERS:
        return next((str(key) for key, one in value.items() if is_a_secret_header(str(key), str(one))), None)
    if isinstance(value, Mapping):
        if name in _SCHEMAS:
            return None
        found = (name_of_secret(one, str(key)) for key, one in value.items())
    elif isinstance(value, list | tuple):
        found = (name_of_secret(one, name) for one in value)
    else:
        return None
    return next((secret for secret in found if secret is not None), None)


def check_no_key_travels(argument: str, value: Any, name: str = "") -> None:
    """Raise UsageError, which quotes no value, if an argument of a model has a key and is about to be pickled.

    argument: the argument, for the error. value, name: as for `name_of_secret`.
    """
    if (found := name_of_secret(value, name)) is not None:
        field = f" in {found!r}" if found != argument else ""
        raise UsageError(
            f"{argument}= has a key{field}, and keys are not sent to other processes. Set an environment variable"
            " there, and name it by api_key_env=, or read it by os.environ in the function that makes the loop"
        )


# -- logs --------------------------------------------------------------------------------------------------------------

_LOGGERS = {
    library: (
        library,
        *(f"{core}.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
        "hpack.hpack",
    )
    for library, core in (("httpx", "httpcore"), ("httpx2", "httpcore2"))
}
"""The loggers of an HTTP library. The filter of a logger does not see the records of those below it."""


class _LogFilter(logging.Filter):
    """Masks secrets in the records of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[int, weakref.WeakMethod[Callable[[], Secrets]]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = shown = record.getMessage()
        for source in list(self.sources.values()):
            if (secrets_now := source()) is not None:
                shown = secrets_now().without(shown)
        if shown != text:
            record.msg, record.args = shown, ()
        return True


_filter = _LogFilter()


def mask_logs(library: str, secrets_now: Callable[[], Secrets]) -> None:
    """Mask secrets in what an HTTP library logs: the address of each request, and the headers of its answer.

    library: "httpx" or "httpx2". secrets_now: a method that returns the current secrets. It is used until its object is
    collected.
    """
    source = weakref.WeakMethod(secrets_now)
    _filter.sources[id(source)] = source
    weakref.finalize(secrets_now.__self__, _filter.sources.pop, id(source), None).atexit = False  # type: ignore[attr-defined]
    for name in _LOGGERS[library]:
        logging.getLogger(name).addFilter(_filter)  # once, however often it is added
