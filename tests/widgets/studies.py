"""Studies for the tests of their panel: a scripted analyst with noise of its seed, two arms."""

from __future__ import annotations

import random
from typing import Any

import agentnb
from agentnb import SessionLoop, tool
from agentnb.studies import Resampling, Study
from agentnb.testing import ScriptedLLM, call
from tests.widgets.support import until

NO_STEP = "There is no step."


@tool(approve=True)
async def publish(title: str, where: str = "site") -> str:
    """Publish a finding."""
    return f"published on the {where}"


@tool
async def look(at: str) -> str:
    """Look at a row of the table."""
    return "1120 m³/s"


def analyst(policy: str, seed: int) -> SessionLoop:
    """Return a loop that looks at some rows; it publishes if it is plain, and finds no step if it is sceptical."""
    noise = random.Random(seed)
    usage = {"type": "usage", "input_tokens": 900 + seed % 100, "output_tokens": 40}
    turns: list[Any] = [
        [usage, *(call("look", {"at": f"row {row}"}) for row in range(noise.randint(1, 3)))]
        for _ in range(noise.randint(1, 4))
    ]
    if policy == "plain":
        turns.append([usage, call("publish", {"title": f"Step of {1880 + seed % 3}", "where": "site"})])
    turns.append([usage, NO_STEP if policy == "sceptic" else "The step is in 1888."])
    return SessionLoop(ScriptedLLM(turns), [look, publish])


def study(repeats: int = 4, inputs: Any = ("Is there a step?",), **options: Any) -> Study:
    """Return a study of two arms, which has not begun."""
    options = {"arms": {"policy": ["sceptic", "plain"]}, "name": "levelled", **options}
    return agentnb.study(analyst, list(inputs), repeats, progress=False, **options)


def resampling(n: int = 4, turns: int = 3) -> Resampling:
    """Return a resampling of each step of a run, which has ended. Some samples have another outcome."""

    def answer(messages: Any, **_: Any) -> Any:
        asked = sum(message["role"] == "assistant" for message in messages)
        return call("look", {"at": f"row {asked}"}) if asked + 1 < turns else NO_STEP

    def other(seed: int) -> SessionLoop:
        def changed(messages: Any, **_: Any) -> Any:
            made = answer(messages)
            return "The step is in 1888." if made == NO_STEP and len(messages) == 2 * turns - 1 and seed % 2 else made

        return SessionLoop(ScriptedLLM([changed], repeat=True), [look])

    run = SessionLoop(ScriptedLLM([answer], repeat=True), [look]).start("Is there a step?", name="levelled")
    run.result(30)
    return agentnb.resample(run, every="turn", n=n, loop=other, progress=False).result(30)


def at_rest(made: Study) -> Study:
    """Start a study, and wait until each of its runs has ended or waits for a person."""
    made.start()
    until(lambda: not made.counts["running"] and not made.counts["not started"])
    return made
