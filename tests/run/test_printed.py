"""Whatever names and texts models, tools and people chose: what is shown of a run can be encoded and printed."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from agentnb import Run, SessionLoop, Snapshot, Store, replay, tool
from agentnb.core.events import Delta
from agentnb.errors import RecordingMissing, UsageError
from agentnb.testing import write_test

HALF = "\ud800"
HOSTILE = f"x{HALF}\x1b[31mred\x07\u202e\n"

remembered: SessionLoop | None = None


class Model:
    """Says half characters and escape sequences wherever it says something."""

    def __init__(self) -> None:
        self._asked = 0

    async def stream(self, messages: Any, **options: Any) -> Any:
        self._asked += 1
        yield {"type": "text_delta", "content": HOSTILE}
        yield {"type": "reasoning_delta", "content": HOSTILE}
        if self._asked == 1:
            yield {"type": "tool_call_delta", "index": 0, "id": HOSTILE, "name": "look", "arguments": f'{{"s": "{HALF}'}
            yield {"type": "tool_call_delta", "index": 0, "arguments": f'{HALF}"}}'}
            yield {"type": "tool_call_delta", "index": 1, "id": "other", "name": HOSTILE, "arguments": "{}"}


@tool
async def look(s: str) -> str:
    return HOSTILE


async def hostile(told: list[Any]) -> Run:
    run = SessionLoop(Model(), [look], name=f"loop{HOSTILE}").start(HOSTILE)
    run.watch(told.append)
    await run
    return run


async def test_what_a_watcher_is_told_can_be_encoded() -> None:
    told: list[Any] = []
    await hostile(told)
    deltas = [one for one in told if isinstance(one, Delta)]
    assert {one.type for one in deltas} >= {"text_delta", "reasoning_delta", "tool_call_delta"}
    for one in deltas:
        for text in (one.content, one.id, one.name, one.arguments):
            assert HALF not in (text or "")


async def test_what_is_shown_of_a_run_has_nothing_that_a_terminal_would_act_on() -> None:
    told: list[Any] = []
    run = await hostile(told)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    for one in (*told, run, run.loop, snapshot, replay(snapshot), *run.messages):
        assert repr(one).isprintable(), one
        assert str(one).isprintable(), one


def test_a_name_with_half_a_character_is_refused() -> None:
    with pytest.raises(UsageError, match="name="):
        SessionLoop(Model()).start("hi", name=f"x{HALF}")


def test_the_names_that_a_store_has_are_said_so_that_they_can_be_printed(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    SessionLoop(Model()).start("hi", store=store, name="a\x1b[31m").cancel()
    with pytest.raises(RecordingMissing) as refused:
        store.load("b")
    assert "\x1b" not in str(refused.value)
    store.close()


@pytest.mark.parametrize("name", ["x²", "a\x1b[31m", "1st", '"""', "class", "½ done", "東京"])
async def test_a_written_test_can_be_parsed_whatever_the_run_s_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.run.test_printed.remembered", SessionLoop(Model(), [look]))
    assert remembered is not None
    run = remembered.start("hi", name=name)
    await run
    path = write_test(run, tmp_path / "test_it.py", "tests.run.test_printed:remembered")
    ast.parse(path.read_text(encoding="utf-8"))
