"""The scripted models of the notebook about a study: two readers of a table, with noise that their seed decides.

A reader looks at some years of the flow of the Nile at Aswan, publishes what it thinks, and answers. The careful one
compares more often, and says more often that a table without a step has none. They stand in for models of two sizes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from agentnb import SessionLoop, tool
from agentnb.testing import ScriptedLLM, call, delay

NO_STEP = "There is no step."
STEP = "There is a step in 1899."
CHANCE = {"careful": 0.9, "quick": 0.4}
"""The share of comparisons that show that the table has no step."""


@tool
async def compare(year: int) -> str:
    """Compare the mean flow before a year with the mean after it."""
    return f"before {year}: 919, after: 918"


@tool(needs="read")
async def fetch_table(name: str) -> str:
    """Fetch a table of yearly flows."""
    return "100 years, mean 919"


@tool(needs="publish")
async def publish(text: str) -> str:
    """Publish a finding for all readers of the report."""
    return "published"


def reader(model: str, seed: int = 0) -> SessionLoop:
    """Return a loop that fetches the table, compares one to three times, publishes, and answers."""
    noise = random.Random(f"{model} {seed}")

    def answer(messages: Sequence[Any]) -> list[Any]:
        results = [message for message in messages if message["role"] == "tool"]
        usage = {"type": "usage", "input_tokens": 400 + 150 * len(results), "output_tokens": noise.randint(20, 60)}
        thinks = delay(noise.uniform(0.001, 0.004))
        if not results:
            return [thinks, usage, call("fetch_table", {"name": "levelled"})]
        if len(results) == 1:
            times = 3 if model == "careful" else 1
            return [thinks, usage, *(call("compare", {"year": 1885 + 7 * at}) for at in range(times))]
        if "publish" not in str([message.get("tool_calls") for message in messages]):
            finds = noise.random() < CHANCE[model]
            return [thinks, usage, call("publish", {"text": NO_STEP if finds else STEP})]
        text = str(messages[-2]["tool_calls"])
        return [thinks, usage, NO_STEP if NO_STEP in text else STEP]

    return SessionLoop(ScriptedLLM([answer], repeat=True), [fetch_table, compare, publish], name=model)
