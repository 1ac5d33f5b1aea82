"""A decision that comes too late says who was first, when, and in which run, wherever it was made.

Several questions that are decided at once never include a call of unknown outcome, unless a word asks for it.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import AlreadyDecided, Run, SessionLoop, Store, UsageError, tool
from agentnb.core.events import ApprovalDecision
from agentnb.run.approvals.decisions import decided_by_person
from agentnb.testing import ScriptedLLM, call
from tests.study.loops import asking
from tests.worlds import until


async def waiting(decider: Any, number: int) -> None:
    """Wait until so many calls wait. To ask without a break would keep the runs from going on."""
    while len(decider.pending) != number:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


AT = r"at \d\d:\d\d:\d\d"


async def asked(**options: Any) -> Run:
    run = asking().start("go", name="plain/3.0", **options)
    run.play()
    await until(lambda: bool(run.pending))
    return run


def late(run: Run, item: Any) -> str:
    with pytest.raises(AlreadyDecided) as caught:
        run.approve(item)
    return str(caught.value)


async def test_a_person_is_named_with_the_time_and_the_run() -> None:
    run = await asked()
    (item,) = run.pending
    decided_by_person(run, 1.0).reject(item, reviewer="Ada")
    decision = next(event for event in run.events if isinstance(event, ApprovalDecision))
    when = time.strftime("%H:%M:%S", time.localtime(decision.time))
    assert late(run, item) == (
        f"The call {item.id!r} of send is already decided: Ada rejected it at {when}, in the run plain/3.0."
    )
    await run
    assert f"Ada rejected it at {when}, in the run plain/3.0." in late(run, item)  # also after the end


async def test_a_deadline_is_named() -> None:
    run = await asked(approve=[{"decision": "ask", "deadline": 0.05}])
    (item,) = run.pending
    await run
    assert re.search(rf"the deadline rejected it {AT}, in the run plain/3\.0\.", late(run, item))


async def test_the_end_of_the_run_is_named() -> None:
    run = await asked()
    (item,) = run.pending
    run.cancel()
    await until(lambda: run.settled)
    assert re.search(rf"its run has ended \(cancelled\) {AT}, the run plain/3\.0\.", late(run, item))


async def test_a_withdrawn_decision_names_both_people() -> None:
    run = asking().start("go", name="plain/3.0")
    await run.step("turn")
    (item,) = run.pending
    run.approve(item, reviewer="Ada")
    run.undo(item, reviewer="Bob")
    said = late(run, item)
    assert re.search(rf"Ada approved it {AT}, and Bob withdrew that {AT}, in the run plain/3\.0\.", said)
    assert f"read the question of event {run.pending[0].event}" in said


@pytest.mark.parametrize("stored", [False, True])
async def test_a_study_names_its_run(stored: bool, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db") if stored else None
    study = agentnb.study(asking, ["go"], store=store, name="s", progress=False).start()
    await until(lambda: bool(study.pending))
    (item,) = study.pending
    study.approve(item, reviewer="Ada")
    await study
    with pytest.raises(AlreadyDecided, match=rf"Ada approved it {AT}, in the run s/0\.0\."):
        study.reject(item)


# -- calls of unknown outcome ------------------------------------------------------------------------------------------


class World:
    """Two runs of a study. In each, a call began and its process is gone; in one of them, another call waits."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[str] = []
        self.hangs = True

        @tool
        async def send(to: str) -> str:
            """Send it."""
            self.sent.append(to)
            if self.hangs:
                await asyncio.Event().wait()
            return "sent"

        @tool(approve=True)
        def pay(amount: int) -> str:
            """Pay it."""
            return "paid"

        def make() -> SessionLoop:
            calls = [call("send", {"to": "bob"}, id="lost"), call("pay", {"amount": 1}, id="open")]
            model = ScriptedLLM([lambda messages: "end" if len(messages) > 1 else calls], repeat=True)
            return SessionLoop(model, [send, pay])

        self.store = Store(folder / "runs.db")
        self.make = lambda: agentnb.study(make, ["a", "b"], store=self.store, name="s", progress=False)

    async def stopped(self) -> Any:
        """Return the study, continued after it was stopped in the middle of the calls."""
        study = self.make().start()
        await waiting(study, 2)
        await until(lambda: len(self.sent) == 2)
        study.cancel()
        await study
        self.hangs = False
        study = self.make().start()
        await waiting(study, 4)
        return study


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("who", ["study", "inbox"])
async def test_of_several_only_those_of_known_outcome_are_decided(world: World, who: str) -> None:
    study = await world.stopped()
    decider = study if who == "study" else world.store.inbox()
    await waiting(decider, 4)
    with pytest.warns(RuntimeWarning, match="2 of 4 calls left out: .* pass unknown=True"):
        assert await asyncio.to_thread(decider.approve, decider.pending) == 2
    await waiting(study, 2)
    assert all(item.unknown for item in study.pending)
    with pytest.raises(UsageError, match=r"Nothing was decided\. 2 of 2 calls left out"):
        await asyncio.to_thread(decider.reject, study.pending)
    assert world.sent == ["bob", "bob"]
    study.cancel()
    await study


async def test_a_word_includes_them_and_a_single_one_needs_none(world: World) -> None:
    study = await world.stopped()
    single = next(item for item in study.pending if item.unknown)
    assert study.approve(single) == 1
    rest = study.pending
    assert study.approve(rest, unknown=True) == len(rest)
    await study
    assert len(world.sent) == 4
    assert study.counts["done"] == 2
