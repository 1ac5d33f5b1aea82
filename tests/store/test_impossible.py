"""Recordings from other sources: impossible events are refused, and an invalid run does not hide other runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from agentnb import SessionLoop, Snapshot, Store, tool
from agentnb.analysis import calls
from agentnb.core.events import Event
from agentnb.errors import RecordingCorrupt
from agentnb.notebook.runs_table import runs
from agentnb.testing import ScriptedLLM, call


@tool
async def look() -> str:
    return "seen"


@pytest.fixture
async def recorded() -> list[Event]:
    run = SessionLoop(ScriptedLLM([[call("look", {}, id="c")], "done"]), [look]).start("go")
    await run
    return list(run.events)


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "a time that is no number": ("call_end", {"time": math.nan}),
    "a time without an end": ("call_end", {"time": math.inf}),
    "a time before all time": ("call_end", {"time": -5.0}),
    "a time after all time": ("call_end", {"time": 1e18}),
    "a turn before the first": ("model_start", {"turn": -3}),
    "an attempt before the first": ("call_start", {"attempt": 0}),
    "words of a negative length": ("model_end", {"timing": [[-1, 4]]}),
}
IMPOSSIBLE = {
    "a loop that has not begun": ("call_end", {"path": "nowhere"}),
    "a loop in one that has not begun": ("call_end", {"path": "nowhere/else"}),
    "the result of another call": ("call_end", {"call_id": "other"}),
}


def changed(recorded: list[Event], kind: str, fields: dict[str, Any]) -> list[Event]:
    at = next(number for number, event in enumerate(recorded) if event.type == kind)
    return [event.model_copy(update=fields) if n == at else event for n, event in enumerate(recorded)]


@pytest.mark.parametrize("what", [*CHANGES, "another number"])
def test_a_snapshot_with_an_impossible_event_is_refused_with_the_line(recorded: list[Event], what: str) -> None:
    kind, fields = CHANGES.get(what, ("call_end", {"seq": 77}))
    at = next(number for number, event in enumerate(recorded) if event.type == kind)
    text = Snapshot.of(changed(recorded, kind, fields)).to_json()
    with pytest.raises(RecordingCorrupt, match=rf"line {at + 2} \(event {at}\)"):
        Snapshot.from_json(text)


@pytest.mark.parametrize("what", [*CHANGES, *IMPOSSIBLE])
def test_an_export_with_an_impossible_event_is_refused_with_the_line(
    recorded: list[Event], what: str, tmp_path: Path
) -> None:
    kind, fields = (CHANGES | IMPOSSIBLE)[what]
    source = Store(tmp_path / "source.db")
    source.record_run("bad", "bad", "SessionLoop", changed(recorded, kind, fields))
    source.export(tmp_path / "runs.jsonl")
    source.close()
    store = Store(tmp_path / "store.db")
    at = next(number for number, event in enumerate(recorded) if event.type == kind)
    with pytest.raises(RecordingCorrupt, match=rf"line {at + 3}\b"):
        store.import_(tmp_path / "runs.jsonl")
    assert store.runs() == []
    store.close()


@pytest.mark.parametrize("created", [math.inf, -1.0, 1e18])
def test_an_export_with_an_invalid_date_is_refused(recorded: list[Event], created: float, tmp_path: Path) -> None:
    source = Store(tmp_path / "source.db")
    source.record_run("bad", "bad", "SessionLoop", recorded, created=created)
    source.export(tmp_path / "runs.jsonl")
    source.close()
    store = Store(tmp_path / "store.db")
    with pytest.raises(RecordingCorrupt, match="line 2"):
        store.import_(tmp_path / "runs.jsonl")
    store.close()


@pytest.mark.parametrize("what", [*CHANGES, *IMPOSSIBLE])
def test_an_invalid_run_does_not_hide_other_runs(recorded: list[Event], what: str, tmp_path: Path) -> None:
    kind, fields = (CHANGES | IMPOSSIBLE)[what]
    store = Store(tmp_path / "store.db")
    store.record_run("good", "good", "SessionLoop", recorded)
    store.record_run("bad", "bad", "SessionLoop", changed(recorded, kind, fields), created=1e18)
    assert {info.name for info in store.runs()} == {"good", "bad"}
    assert {row.name for row in runs(store)} == {"good", "bad"}
    assert "good" in repr(runs(store))
    with pytest.warns(RuntimeWarning, match="'bad'"):
        assert set(calls(store).run) == {"good"}
    store.close()
