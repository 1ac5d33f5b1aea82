"""Hostile and broken files of every format: refused with the file's name, or read in part. Nothing else happens.

Each file is a valid one with one thing wrong, so that the reader gets past the recognition of the format.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sqlite3
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Snapshot
from agentnb.errors import AgentnbError, RecordingCorrupt
from agentnb.importers import source
from tests.importers.files import (
    ASKED,
    CLAUDE,
    FILES,
    INSPECT_EVENTS,
    document,
    inspect_archive,
    inspect_log,
    inspect_sample,
    lines,
    written,
)
from tests.importers.test_importers import checkpoints

every_kind = pytest.mark.parametrize("kind", FILES)
JSON = [kind for kind in FILES if kind != "Inspect"]


def opened(path: Path) -> list[Snapshot]:
    """Return the recordings of a file, or none if it is refused with its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return Snapshot.load_all(path)
        except AgentnbError as error:
            refusal = str(error)
    assert str(path) in refusal
    return []


def told(found: list[Snapshot]) -> list[tuple[str, Any]]:
    """Return the messages of recordings."""
    return [(message.role, message.content) for snapshot in found for message in snapshot.state.messages]


# -- the text of the file ----------------------------------------------------------------------------------------------

WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16, the other order": lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
    "gzip": gzip.compress,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "blank lines": lambda data: b"\n\n" + data.replace(b"\n", b"\n \n") + b"\n\n",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", WRAPPED)
@pytest.mark.parametrize("kind", JSON)
def test_a_file_in_another_encoding_is_the_same_recording(tmp_path: Path, kind: str, how: str) -> None:
    path = written(tmp_path, kind)
    plain = told(opened(path))
    path.write_bytes(WRAPPED[how](path.read_bytes()))
    assert told(opened(path)) == plain != []


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "NUL bytes": lambda data: data.replace(b"degrees", b"deg\0rees"),
    "half of a character": lambda data: data.replace(b"degrees", b"deg\xc3"),
    "a damaged gzip": lambda data: gzip.compress(data)[:-20],
    "half of UTF-16": lambda data: data.decode().encode("utf-16")[:-5],
    "two files": lambda data: data + data,
    "no content": lambda data: b"",
    "only the beginning": lambda data: data[: len(data) // 2],
    "numbers without end": lambda data: data.replace(b"21", b"9" * 5000),
    "an open list": lambda data: data.rstrip()[:-1] + b"[" * 100_000,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", BROKEN)
@every_kind
def test_a_broken_file_is_refused_or_read_in_part(tmp_path: Path, kind: str, how: str) -> None:
    path = written(tmp_path, kind)
    if kind == "Inspect" and "UTF-16" in how:
        return
    path.write_bytes(BROKEN[how](path.read_bytes()))
    opened(path)


@every_kind
def test_a_very_long_text_is_read(tmp_path: Path, kind: str) -> None:
    long = "How warm is it?" + "x" * 300_000
    path = written(tmp_path, kind)
    if kind == "Inspect":
        path.write_bytes(inspect_archive(inspect_sample(INSPECT_EVENTS, attachments={"a": long})))
    else:
        path.write_bytes(path.read_bytes().replace(b"How warm is it?", long.encode()))
    assert ("user", long) in told(opened(path))


def test_a_compressed_file_of_too_much_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chat.json.gz"
    path.write_bytes(gzip.compress(document([ASKED]) + b" " * 5_000))
    monkeypatch.setattr(source, "MOST", 3_000)
    with pytest.raises(RecordingCorrupt, match="more than 3,000 bytes"):
        Snapshot.load_all(path)


# -- the values in the file --------------------------------------------------------------------------------------------

Change = Callable[[str, Any, int], Any]
IDS = frozenset(
    {"id", "uuid", "spanId", "call_id", "tool_call_id", "toolCallId", "messageId", "tool_use_id", "step_id"}
)
PARENTS = frozenset({"parentId", "parentUuid", "parentSpanId", "parent_id", "parentMessageId", "logicalParentUuid"})
TIMES = frozenset({"timestamp", "created_at", "started_at", "ended_at", "completed", "ts"})
WRONG_TIMES = ("yesterday", "9999-99-99T99:99:99Z", -1, 10**30, 1e308, "-292277022657-01-27T08:29:52Z", True, [], {})
DEEP: Any = "x"
for _ in range(300):
    DEEP = [DEEP] if _ % 2 else {"deep": DEEP}


def is_flat(value: list[Any]) -> bool:
    """Return True if a list has no list inside."""
    return "[" not in json.dumps(value)[1:]


CHANGES: dict[str, Change] = {
    "one id for all": lambda key, value, number: "same" if key in IDS else value,
    "ids of other types": lambda key, value, number: [None, 1, [], {"id": 1}][number % 4] if key in IDS else value,
    "parents in a circle": lambda key, value, number: f"u{number % 3 + 1}" if key in PARENTS else value,
    "parents that are the line itself": lambda key, value, number: str(number) if key in PARENTS | IDS else value,
    "impossible times": lambda key, value, number: WRONG_TIMES[number % 9] if key in TIMES else value,
    "times as large numbers": lambda key, value, number: "9" * 400 if key.endswith("UnixNano") else value,
    "300 levels": lambda key, value, number: DEEP if isinstance(value, str) and number % 5 == 0 else value,
    "300 levels in calls": lambda key, value, number: DEEP if key in ("arguments", "input", "args") else value,
    "halves of characters": lambda key, value, number: f"\ud800{value}\udfff" if isinstance(value, str) else value,
    "halves in keys": lambda key, value, number: {**value, "\udc00": 1} if isinstance(value, dict) else value,
    "objects of Python": lambda key, value, number: {**value, **REFERENCES} if isinstance(value, dict) else value,
    "paths for texts": lambda key, value, number: "/etc/passwd" if isinstance(value, str) and number % 3 else value,
    "addresses for texts": lambda key, value, number: "http://127.0.0.1:9/x" if key in ("content", "text") else value,
    "roles that are unknown": lambda key, value, number: "\x00root" if key == "role" else value,
    "long lists": lambda key, value, number: value * 400 if isinstance(value, list) and is_flat(value) else value,
}
REFERENCES = {
    "__class__": "os.system",
    "__reduce__": ["os.system", ["true"]],
    "py/object": "subprocess.Popen",
    "py/reduce": [{"py/type": "os.system"}, {"py/tuple": ["true"]}],
    "$ref": "file:///etc/passwd",
    "@import": "/etc/passwd",
    "lc": 1,
    "type ": "constructor",
    "attachment": "attachment:///etc/passwd",
    "url": "file:///etc/passwd",
}


def changed(value: Any, change: Change) -> Any:
    """Return a JSON value with the change of each value in it."""
    count = iter(range(10**9))

    def inside(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            value = {one: inside(one, inner) for one, inner in value.items()}
        elif isinstance(value, list):
            value = [inside(key, inner) for inner in value]
        return change(key, value, next(count))

    return inside("", value)


def rewritten(path: Path, change: Change) -> None:
    """Write the file with the change of each of its values."""
    text = path.read_bytes()
    if path.suffix == ".eval":
        log = inspect_sample(INSPECT_EVENTS)
        path.write_bytes(inspect_archive(changed(log, change)))
    elif path.suffix == ".jsonl":
        rows = [changed(json.loads(line), change) for line in text.splitlines()]
        path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    else:
        value = changed(json.loads(text), change)
        path.write_bytes(json.dumps(value).encode())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", CHANGES)
@every_kind
def test_hostile_values_are_refused_or_read_in_part_and_nothing_else_happens(
    tmp_path: Path, kind: str, how: str
) -> None:
    path = written(tmp_path, kind)
    opened(path)  # imports the modules that it needs
    rewritten(path, CHANGES[how])
    with nothing_but_reading(tmp_path):
        found = opened(path)
    for snapshot in found:  # what opened is a whole recording: it can be kept, and shown
        again = Snapshot.load(snapshot.save(tmp_path / "kept.json"))
        assert len(again.events) == len(snapshot.events)
        recorded = agentnb.replay(snapshot)
        recorded.to(len(recorded.recording) - 1)
        times = [event.time for event in snapshot.events]
        assert times == sorted(times)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [kind for kind in FILES if "messages" not in kind and "request" not in kind])
def test_impossible_times_are_counted(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    times = (*TIMES, "startTimeUnixNano", "endTimeUnixNano")
    rewritten(path, lambda key, value, number: "yesterday" if key in times else value)
    lost = [agentnb.replay(snapshot).lost for snapshot in opened(path)]
    assert kind == "SWE-agent" or any("impossible times" in one for one in lost)


_watched: list[tuple[str, Any]] | None = None


def _watch(event: str, values: tuple[Any, ...]) -> None:
    if _watched is not None:
        _watched.append((event, values))


sys.addaudithook(_watch)
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.spawn", "pickle.", "urllib.", "shutil.", "ctypes.")


@contextmanager
def nothing_but_reading(folder: Path) -> Iterator[None]:
    """Check that only files of the folder are opened, for reading, and that nothing is run or fetched."""
    global _watched
    _watched = []
    try:
        yield
        seen = list(_watched)
    finally:
        _watched = None
    own = (str(folder), *filter(None, sys.path), sys.prefix, sys.base_prefix)  # packages may add formats
    for event, values in seen:
        assert not event.startswith(FORBIDDEN), (event, values)
        if event == "open" and isinstance(values[0], str):
            assert values[0].startswith(own), values
            assert not isinstance(values[1], str) or "r" in values[1], values
        if event == "sqlite3.connect":
            assert values[0] == ":memory:"


# -- archives ----------------------------------------------------------------------------------------------------------


def archive(**members: bytes) -> bytes:
    """Return an archive. In the names, `__` is a slash, and `_dots_` two dots."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name.replace("__", "/").replace("_dots_", "..") + ".json", data)
    return content.getvalue()


def test_names_in_an_archive_are_no_paths(tmp_path: Path) -> None:
    sample = document(inspect_sample(INSPECT_EVENTS))
    path = tmp_path / "logs" / "l.eval"
    path.parent.mkdir()
    names = {f"samples__{name}": sample for name in ("_dots_/_dots_/x", "_dots_/etc/passwd", "/etc/passwd")}
    path.write_bytes(archive(header=b"{}", **names))
    with nothing_but_reading(path.parent):
        assert len(opened(path)) == 3
    assert sorted(tmp_path.rglob("*")) == [path.parent, path]


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l.eval"
    path.write_bytes(archive(header=b"{}", samples__1=b" " * 3_000_000))
    monkeypatch.setattr("agentnb.importers.source.MOST", 1_000_000)
    with pytest.raises(RecordingCorrupt, match="more than 1,000,000 bytes"):
        Snapshot.load_all(path)


@pytest.mark.parametrize("place", [8, 6])  # the method of compression; the flag of encryption
def test_a_member_that_cannot_be_unpacked_is_named(tmp_path: Path, place: int) -> None:
    path = tmp_path / "l.eval"
    data = bytearray(inspect_archive(inspect_sample(INSPECT_EVENTS), inspect_sample(INSPECT_EVENTS)))
    for begin in (data.index(b"PK\x03\x04"), data.index(b"PK\x01\x02") + 2):
        data[begin + place] = 99 if place == 8 else 1
    path.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="samples/1_epoch_1.json"):
        assert len(Snapshot.load_all(path)) == 1


# -- databases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statements",
    [
        # A view of the table's name that never ends; one that reads another file; a virtual table.
        "ALTER TABLE checkpoints RENAME TO real; CREATE VIEW checkpoints AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL"
        " SELECT x + 1 FROM c) SELECT 't' thread_id, '' checkpoint_ns, x checkpoint_id, '' parent_checkpoint_id,"
        " 'json' type, '{}' checkpoint FROM c",
        "ALTER TABLE writes RENAME TO real; CREATE VIEW writes AS SELECT readfile('/etc/passwd') value",
        "ALTER TABLE checkpoints RENAME TO real; CREATE VIRTUAL TABLE checkpoints USING fts5(thread_id, checkpoint_ns,"
        " checkpoint_id, parent_checkpoint_id, type, checkpoint)",
        "ALTER TABLE checkpoints RENAME TO real; CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id,"
        " parent_checkpoint_id, checkpoint, type GENERATED ALWAYS AS (hex(zeroblob(100000000))))",
    ],
)
def test_tables_that_are_code_are_refused(tmp_path: Path, statements: str) -> None:
    path = checkpoints(tmp_path / "threads.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statements)
    with nothing_but_reading(tmp_path), pytest.raises(RecordingCorrupt, match="not a plain table"):
        Snapshot.load_all(path)


def test_triggers_and_other_tables_do_nothing(tmp_path: Path) -> None:
    path = checkpoints(tmp_path / "threads.sqlite")
    plain = told(opened(path))
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE other (x); CREATE VIEW many AS SELECT * FROM other;"
            "CREATE TRIGGER t AFTER INSERT ON checkpoints BEGIN DELETE FROM checkpoints; END"
        )
    before = path.read_bytes()
    assert told(opened(path)) == plain
    assert path.read_bytes() == before


def test_a_damaged_page_is_refused_or_read_in_part(tmp_path: Path) -> None:
    path = checkpoints(tmp_path / "threads.sqlite")
    data = path.read_bytes()
    chance = random.Random(0)
    for _ in range(150):
        broken = bytearray(data)
        for _ in range(chance.choice((1, 8, 200))):
            broken[chance.randrange(100, len(broken))] = chance.randrange(256)
        path.write_bytes(broken)
        opened(path)


# -- files of a folder -------------------------------------------------------------------------------------------------


def test_a_sub_agent_outside_the_folder_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "agent-x.jsonl").write_bytes(lines(CLAUDE))
    path = folder / "session.jsonl"
    for id in ("../x", "x/../../x", "/etc/passwd", "x\0"):
        result = {**CLAUDE[3], "toolUseResult": {"agentId": id}}
        path.write_bytes(lines([*CLAUDE[:3], result, CLAUDE[4]]))
        with nothing_but_reading(folder):
            (found,) = opened(path)
        assert {event.path for event in found.events} == {""}


def test_a_log_with_hostile_references_reads_no_file(tmp_path: Path) -> None:
    events = json.loads(json.dumps(INSPECT_EVENTS).replace("attachment://a", "attachment:///etc/passwd"))
    path = tmp_path / "l.json"
    path.write_bytes(document(inspect_log(inspect_sample(events))))
    with nothing_but_reading(tmp_path):
        (found,) = opened(path)
    assert found.state.messages[0].content == "attachment:///etc/passwd"


def test_a_small_compressed_file_with_millions_of_values_is_refused(tmp_path):
    path = tmp_path / "chat.json.gz"
    many = b"[]," * 2_500_000
    path.write_bytes(gzip.compress(b'[{"role":"user","content":"hi","x":[' + many + b"[]]}]", 1))
    with pytest.raises(RecordingCorrupt, match="JSON values"):
        Snapshot.load_all(path)
