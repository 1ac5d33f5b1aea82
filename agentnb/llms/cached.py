"""Cached: a model that answers an equal request from a file, without asking the server again.

Two requests are equal if the model, the server, the options, the messages, the tools and the schema are equal. Of
several equal requests, each has an answer of its own. In a run they are told apart by their place: the cell of a study,
the sample of a resampling, the fork, the loop or call that asks, and the number of the request there. None of these
depends on the order in which requests arrive, so the same run again gets the same answers. At one place, and outside of
every run, the n-th equal request has the n-th answer.

An answer is kept with its chunks, and is streamed again in the same pieces, without waits. Only complete answers are
kept: not a failure, and not an answer whose stream was closed before its end.

The usage of an answer from the file is zero tokens and zero cost, with `cached_answers`: 1.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

from agentnb.core.errors import RecordingCorrupt, UsageError
from agentnb.core.place import AskedBy, asked_by, place_of
from agentnb.core.protocols import EventLog
from agentnb.llms.adapt import as_model, with_options
from agentnb.llms.description import described
from agentnb.llms.identity import identity_of, told
from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification

_VERSION = 3
"""A part of each key. It changes if the meaning of a key or of a stored answer changes: older answers stay unused."""
_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT, made REAL, chunks TEXT) WITHOUT ROWID"
_WAIT = 2.0
"""The longest wait in seconds for a file that another process has locked."""
_PAUSE = 0.02
"""The seconds between two attempts to use a locked file."""
_NOT_CONTENT = frozenset({"timeout", "max_retries", "stream", "stream_options"})
"""Options that do not change an answer."""

log = logging.getLogger(__name__)


class Cached:
    """A model whose answers are kept in a file, and an equal request is answered from it.

        llm = Cached(OpenAI("gpt-5-mini"), "answers.sqlite")

    The n-th equal request of a run has the n-th answer, and so has the n-th one of this object outside of a run: 60
    tosses of a coin are 60 answers, and the same 60 in the next process. Answers from the file need no network and no
    API key. Two processes may use one file. To ask again, delete it.

    llm: the model. Two models share no answer if their class, their `describe()` or their attributes differ at the time
    of the request. Attributes with a leading underscore and secrets do not count. store: the path of the file, or an
    `agentnb.Store` in a file, next to which the answers are kept. name: what distinguishes a model of your own, in
    place of its attributes; it is needed if the model has neither a method `describe` nor an attribute `model`.

    Raises UsageError if an argument is not valid, and RecordingCorrupt if the file has something else.
    """

    def __init__(self, llm: Any, store: Any, *, name: str | None = None) -> None:
        self._asked = as_model(llm)
        if name is None and not (
            callable(getattr(llm, "describe", None)) or isinstance(getattr(llm, "model", None), str)
        ):
            raise UsageError(
                f"Cached cannot tell {type(llm).__name__} from another model: it has neither describe() nor an"
                " attribute model. Pass a name that changes with its answers: Cached(llm, store, name=...)."
            )
        self._llm, self._name = llm, name
        self._told_apart_by = llm
        """The model without an adapter that adds options."""
        self._answers = _Answers(_path_of(store))
        # Shared with the model of a run that has options of its own.
        self._counts = {"hits": 0, "misses": 0}
        self._numbers = _Numbers()
        self._moving: set[str] = set()
        """The attributes about which a warning was written."""

    @property
    def hits(self) -> int:
        """The number of requests that were answered from the file, also with other options."""
        return self._counts["hits"]

    @property
    def misses(self) -> int:
        """The number of requests that were sent to the model, also with other options."""
        return self._counts["misses"]

    def __repr__(self) -> str:
        return f"Cached({self._llm!r}, {str(self._answers.path)!r})"

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpecification] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the answer from the file, or ask the model and keep its answer.

        The arguments and the errors are those of the model.
        """
        asking = asked_by.get()
        who = self._who()
        request = self._digest(who, messages, tools, schema, options, asking)
        numbers = self._numbers if asking is None else _numbers_of(asking.outermost)
        number = numbers.take(counted := f"{self._answers.path} {request}")
        key = hashlib.sha256(f"{request} {number}".encode()).hexdigest()
        has_ended = False
        try:
            # In a thread, because another process may have locked the file.
            if (kept := await asyncio.to_thread(self._answers.find, key)) is not None:
                self._counts["hits"] += 1
                for chunk in kept:
                    yield chunk
                has_ended = True
                return
            self._counts["misses"] += 1
            given: dict[str, Any] = {"tools": tools, "schema": schema}
            asked = {field: value for field, value in given.items() if value is not None}
            stream: Any = self._asked.stream(messages, **asked, **options)
            chunks: list[Chunk] = []
            try:
                if not hasattr(stream, "__aiter__"):
                    stream = await stream
                async for chunk in stream:
                    if chunk.get("type") != "retry":
                        chunks.append(copy.deepcopy(chunk))  # before a consumer can change it
                    yield chunk
            finally:
                if hasattr(stream, "aclose"):
                    await stream.aclose()
            # Reached only if the stream has ended: an error and a closed stream leave this function before.
            has_ended = True
            self._warn_of_changes(who)
            # In a thread, because another process may have locked the file.
            await asyncio.to_thread(self._answers.keep, key, self._description(options)["model"], chunks)
        finally:
            if not has_ended:
                numbers.give_back(counted, number)

    def identity(self) -> JsonObject:
        """Return what determines an answer, besides the options and the request: that of the model."""
        return self._who()

    def describe(self, **options: Any) -> JsonObject:
        """Return what a run records of a request, as the model describes it."""
        return self._description(options)

    def with_options(self, **options: Any) -> Self:
        """Return a cached model with these options, in addition to those of this one; None removes one.

        Raises UsageError if the model does not take one of them.
        """
        llm = with_options(self._llm, options)
        made = copy.copy(self)
        made._llm, made._asked = llm, as_model(llm)
        if type(llm) is type(self._llm):
            made._told_apart_by = llm
        return made

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the model."""
        own = getattr(self._llm, "options", None)
        return own if isinstance(own, Mapping) else {}

    @property
    def model(self) -> Any:
        """The name of the model. Setting it leaves the given model unchanged, and asks a copy of it."""
        return getattr(self._llm, "model", None)

    @model.setter
    def model(self, name: str) -> None:
        self._llm = copy.copy(self._llm)
        self._llm.model = name
        self._told_apart_by = self._llm
        self._asked = as_model(self._llm)

    async def aclose(self) -> None:
        """Close the connections of the model, and the file. Both are opened again for the next request."""
        self._answers.close()
        if callable(close := getattr(self._llm, "aclose", None)):
            await close()

    def _description(self, options: Mapping[str, Any]) -> JsonObject:
        return described(self._llm, options)._asdict()

    def _who(self) -> JsonObject:
        """Return what distinguishes the model from others now."""
        if self._name is not None:
            return {"name": self._name, "description": self._description({})}
        who = identity_of(self._told_apart_by)
        return who if "identity" in who else {"description": self._description({}), **who}

    def _digest(
        self,
        who: JsonObject,
        messages: Any,
        tools: Any,
        schema: Any,
        options: Mapping[str, Any],
        asking: AskedBy | None,
    ) -> str:
        """Return a digest of a request and its place. No content can be read from it."""
        # None leaves an option out.
        asked = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        content = {name: value for name, value in asked.items() if name not in _NOT_CONTENT}
        place = _cell_of(asking.outermost) + place_of(asking) if asking is not None else None
        parts = [_VERSION, who, told(content), list(messages), tools, schema, place]
        return hashlib.sha256(
            json.dumps(parts, sort_keys=True, default=_digestible).encode("utf-8", "replace")
        ).hexdigest()

    def _warn_of_changes(self, before: JsonObject) -> None:
        """Warn of attributes that have changed while the model answered: with them, equal requests are not found."""
        old, new = (one.get("attributes", {}) for one in (before, self._who()))
        changed = {name for name in {*old, *new} if old.get(name) != new.get(name)} - self._moving
        if changed:
            self._moving |= changed
            kind = type(self._told_apart_by).__name__
            log.warning(
                "%s of %s changed while it answered, so a later request is another one to Cached. If it does not change"
                " the answers, begin its name with an underscore, or pass Cached(llm, store, name=...).",
                ", ".join(sorted(changed)),
                kind,
            )


class _Numbers:
    """Numbers the equal requests of a run, or of a client outside of every run, from 0. Safe from every thread.

    The number of a request that has got no complete answer is given to the next equal one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: Counter[str] = Counter()
        self._free: dict[str, list[int]] = {}

    def take(self, request: str) -> int:
        with self._lock:
            if free := self._free.get(request):
                number = min(free)
                free.remove(number)
                return number
            self._next[request] += 1
            return self._next[request] - 1

    def give_back(self, request: str, number: int) -> None:
        with self._lock:
            self._free.setdefault(request, []).append(number)

    def __reduce__(self) -> tuple[type[_Numbers], tuple[()]]:
        return _Numbers, ()


_numbers: WeakKeyDictionary[EventLog, _Numbers] = WeakKeyDictionary()
_numbers_lock = threading.Lock()


def _numbers_of(run: EventLog) -> _Numbers:
    with _numbers_lock:
        return _numbers.setdefault(run, _Numbers())


def _cell_of(run: EventLog) -> list[Any]:
    """Return the cell of a study to which a run belongs; an empty list if it belongs to none."""
    data = getattr(run.events[0], "data", {}) if run.events else {}
    return [[data.get(name) for name in ("arm", "input_key", "repeat", "seed")]] if "study_seed" in data else []


def _path_of(store: Any) -> Path:
    """Return the path of the file of answers. Raises UsageError if it cannot be one."""
    if callable(getattr(store, "record_run", None)):
        if "://" in str(getattr(store, "where", "")):
            raise UsageError("Cached keeps answers in a file: pass its path, not a store in a database server.")
        store = Path(store.path).with_suffix(".answers.sqlite")
    if not isinstance(store, str | Path) or "://" in str(store) or not Path(store).name:
        raise UsageError(f'Cached takes the path of a file, such as "answers.sqlite", or a Store, not {store!r:.80}.')
    if str(store) == ":memory:":  # kept as long as the object
        return Path(store)
    path = Path(store).absolute()
    if not path.parent.is_dir():
        raise UsageError(f"Cached cannot make {path}: the folder {path.parent} does not exist.")
    return path


def _digestible(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)


_TEXTS = {"text_delta": "content", "thinking_delta": "content", "tool_calls": "tool_calls", "stop": "reason"}
"""The field that a chunk of a type must have. Other types are kept as they are."""


def _chunks_in(text: Any) -> list[Chunk] | None:
    """Return the chunks in a row; None if it is damaged."""
    try:
        chunks = json.loads(text)
    except (TypeError, ValueError):
        return None
    if not isinstance(chunks, list):
        return None
    for chunk in chunks:
        if not isinstance(chunk, dict) or not isinstance(kind := chunk.get("type"), str):
            return None
        if kind in _TEXTS and _TEXTS[kind] not in chunk:
            return None
    return chunks


def _connect(path: Path | str) -> sqlite3.Connection:
    is_uri = isinstance(path, str)
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, uri=is_uri)


class _Answers:
    """The answers in one file: the chunks of each, by the key of its request. Safe for use from every thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._damaged: set[str] = set()
        try:
            self._open()  # now, so that a file that is not valid is reported where it is named
        except sqlite3.OperationalError as error:
            raise UsageError(f"Cached cannot open {path}: {error}.") from None

    def find(self, key: str) -> list[Chunk] | None:
        """Return the chunks of an answer; None if there is none, or if it cannot be read."""
        try:
            row = self._execute("SELECT chunks FROM answers WHERE key = ?", (key,))
        except (sqlite3.Error, RecordingCorrupt) as error:  # locked for too long, or damaged
            log.warning("%s cannot be read (%s); the model is asked", self.path, error)
            return None
        if row is None:
            return None
        if (kept := _chunks_in(row[0])) is None:
            log.warning("row %s of %s is damaged; the model is asked, and its answer replaces the row", key, self.path)
            self._damaged.add(key)
            return None
        chunks: list[Chunk] = [chunk for chunk in kept if chunk["type"] != "usage"]
        usage = {"type": "usage", "input_tokens": 0, "output_tokens": 0, "cost": 0.0, "cached_answers": 1}
        has_stop = bool(chunks) and chunks[-1]["type"] == "stop"
        return [*chunks[:-1], usage, chunks[-1]] if has_stop else [*chunks, usage]

    def keep(self, key: str, model: str, chunks: Sequence[Chunk]) -> None:
        """Keep an answer. An answer to an equal request that is there already stays, unless it is damaged."""
        try:
            text = json.dumps(chunks)
        except (TypeError, ValueError) as error:
            log.warning("an answer of %s was not kept: %s", model, error)
            return
        otherwise = "REPLACE" if key in self._damaged else "IGNORE"
        try:
            self._execute(f"INSERT OR {otherwise} INTO answers VALUES (?, ?, ?, ?)", (key, model, time.time(), text))
            self._damaged.discard(key)
        except (sqlite3.Error, RecordingCorrupt) as error:
            log.warning("an answer of %s was not kept in %s: %s", model, self.path, error)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> Any:
        """Return the first row of a statement. It waits for another process without the lock of this object."""
        deadline = time.monotonic() + _WAIT
        while True:
            with self._lock:
                try:
                    return self._open().execute(statement, values).fetchone()
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() >= deadline:
                        raise
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Close the file. The next request opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        """Return the connection to the file. The file is made again if it was deleted."""
        if self._connection is not None and self._inode != self._inode_now():
            self._connection.close()
            self._connection = None
        if self._connection is None:
            try:
                if str(self.path) != ":memory:":
                    with suppress(OSError):  # readable by its owner alone; SQLite's files next to it are as well
                        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
                self._connection = _connect(self.path)
                try:
                    self._connection.execute("PRAGMA journal_mode = WAL")
                    self._connection.execute(_TABLE)
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):  # it is read-only, or the disk is full: its answers can be read
                        self._connection.close()
                        self._connection = _connect(f"{self.path.as_uri()}?mode=ro&immutable=1")
                    self._inode = -1  # the next use opens it again
                    return self._connection
            except sqlite3.OperationalError:
                self._connection = None
                raise
            except sqlite3.DatabaseError as error:
                raise RecordingCorrupt(f"{self.path} is not a file of answers: {error}.") from None
            self._inode = self._inode_now()
        return self._connection

    def _inode_now(self) -> int | None:
        """Return the number of the file in its file system; None if there is no file, as for `:memory:`."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def __reduce__(self) -> tuple[type[_Answers], tuple[Path]]:
        return _Answers, (self.path,)
