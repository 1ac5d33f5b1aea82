"""An event of a type that the exporters do not know is counted, and the rest is exported."""

from __future__ import annotations

import pytest

from agentnb import SessionLoop
from agentnb.core.event import Event
from agentnb.exporters import FORMATS, exported
from agentnb.testing import ScriptedLLM


class Judged(Event, frozen=True, tag="judged"):
    score: float = 0.0


@pytest.mark.parametrize("format", FORMATS)
async def test_an_event_of_an_unknown_type_is_counted(format: str) -> None:
    run = SessionLoop(ScriptedLLM(["hi"])).start("go")
    await run
    *before, end = run.events
    _, content, lost = exported([*before, Judged(path=end.path, seq=end.seq, score=0.5), end], format)
    assert lost["events of the type judged"] == 1
    assert b"hi" in content
