"""What holds for every format: it opens, everywhere a recording is taken, and a run continues from each event of it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import SessionLoop, Snapshot, Store, tool
from agentnb.analysis import calls, diff, events, messages
from agentnb.core.events import decode_event, encode_event
from agentnb.errors import RecordingCorrupt, VersionMismatch
from agentnb.testing import ScriptedLLM
from agentnb.widgets.static.panel import static_html
from tests.importers.files import FILES, written
from tests.importers.survey import survey, table

every_kind = pytest.mark.parametrize("kind", FILES)


@tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"cold in {city}"


@every_kind
def test_the_conversation_is_carried(tmp_path: Path, kind: str) -> None:
    recorded = agentnb.replay(written(tmp_path, kind))
    recorded.to(len(recorded.recording) - 1)
    told = [message for message in recorded.messages if message.role not in ("system", "developer")]
    assert [message.role for message in told] == ["user", "assistant", "tool", "assistant"]
    assert told[0].content == "How warm is it?"
    assert [(call.name, call.arguments) for call in told[1].tool_calls] == [("weather", {"city": "Rome"})]
    assert told[2].content == "21 degrees"
    assert told[3].content == "It is 21 degrees."
    assert recorded.lost == {}


@every_kind
async def test_a_run_continues_from_every_event(tmp_path: Path, kind: str) -> None:
    recorded = agentnb.replay(written(tmp_path, kind))
    for event in recorded.recording:
        llm = ScriptedLLM(["Continued."] * 3)
        run = recorded.fork(at=event.seq, loop=SessionLoop(llm, [weather]), approve=True)
        await run
        assert run.stop_reason == "completed"
        again = [one for one in run.events if one.type == "model_start" and not one.inherited]
        assert len(llm.requests) == len(again)  # the prefix sends no request


@every_kind
def test_the_tables_read_the_path(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    made = calls(path)
    assert list(made["tool"]) == ["weather"]
    assert list(made["result"]) == ["21 degrees"]
    assert len(events(path)) == len(agentnb.replay(path).recording)
    assert len(messages(path)) >= 4
    assert {pair.how for pair in diff(path, path).events} == {"same"}


@every_kind
def test_a_store_takes_the_path_and_returns_the_same_events(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    store = Store(tmp_path / "runs.db")
    (id,) = store.add(path, tags=["imported"])
    assert store.add(path, tags=["imported"]) == [id]
    assert [(run.id, run.tags) for run in store.find(tag="imported", tool="weather")] == [(id, ("imported",))]
    assert tuple(store.load(id).events) == Snapshot.load(path).events
    store.close()


@every_kind
def test_the_panel_names_the_format_and_what_is_unknown(tmp_path: Path, kind: str) -> None:
    recorded = agentnb.replay(written(tmp_path, kind))
    shown = static_html(recorded.to(len(recorded.recording) - 1))
    assert f"from {recorded.imported['format']}" in shown
    assert "times unknown" in shown
    assert "&lt;1 ms" not in shown
    assert "<1 ms" not in shown  # what took no time took an unknown time
    assert ">running<" not in shown  # not every format has the end of a run


@every_kind
def test_events_are_saved_and_read_back(tmp_path: Path, kind: str) -> None:
    imported = Snapshot.load(written(tmp_path, kind))
    assert tuple(decode_event(encode_event(event)) for event in imported.events) == imported.events
    assert Snapshot.load(imported.save(tmp_path / "kept.json")).events == imported.events


@every_kind
def test_a_file_cut_at_any_place_is_refused_or_read_in_part(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    data = path.read_bytes()
    for end in range(0, len(data), 17):
        path.write_bytes(data[:end])
        opened_or_refused(path)


@every_kind
def test_a_changed_byte_does_not_break_the_reader(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    data = path.read_bytes()
    for place in range(0, len(data), 23):
        path.write_bytes(data[:place] + b'"' + data[place + 1 :])
        opened_or_refused(path)


def opened_or_refused(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = Snapshot.load_all(path)
        except (RecordingCorrupt, VersionMismatch) as error:
            refusal = str(error)
        else:
            refusal = str(path) if found else ""
    assert str(path) in refusal


HOSTILE: list[Any] = [
    "\ud800 half",
    {"a": "\udfff"},
    [[[[1]]]],
    10**400,
    float("nan"),
    None,
    True,
    {"id": {"id": 1}},
    "",
]


@every_kind
def test_a_value_of_another_type_is_carried_or_refused(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    text = path.read_bytes()
    if not text.startswith((b"{", b"[")):  # an archive: its content is that of the file as JSON
        return
    is_lines = path.suffix == ".jsonl"
    rows = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
    for place, keys in enumerate(list(places(rows))):
        changed = json.loads(json.dumps(rows))
        inside = changed
        for key in keys[:-1]:
            inside = inside[key]
        inside[keys[-1]] = HOSTILE[place % len(HOSTILE)]
        path.write_text("\n".join(map(json.dumps, changed)) if is_lines else json.dumps(changed))
        opened_or_refused(path)


def places(value: Any, above: tuple[Any, ...] = ()) -> Any:
    """Yield the keys that lead to each value inside a JSON value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*above, key)
        yield from places(inner, (*above, key))


async def test_a_survey_counts_what_opens_and_where_a_run_continues(tmp_path: Path) -> None:
    files = [written(tmp_path, kind) for kind in ("ATIF", "Inspect", "pi")]
    (tmp_path / "notes.txt").write_text("no recording")
    rows, refused = await survey([*files, tmp_path / "notes.txt"], forks=3)
    assert list(refused) == [tmp_path / "notes.txt"]
    assert {name: (row.files, row.recordings, row.forked == row.tried > 0) for name, row in rows.items()} == {
        "ATIF": (1, 1, True),
        "Inspect": (1, 1, True),
        "pi": (1, 1, True),
    }
    assert table(rows).splitlines()[2].startswith("| ATIF | 1 | 1 | 8 | 2 | 1 | 0 | 0 | 3 of 3 | nothing |")
