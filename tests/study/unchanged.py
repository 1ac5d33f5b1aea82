"""Studies that continue without a change. Run as a process: continues each of them in the folder that is given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agentnb
from agentnb import Agent, Loop, SessionLoop, Store, tool
from agentnb.testing import ScriptedLLM, call
from tests.designs import WORLDS


@tool
def look(at: str) -> str:
    """Look at something."""
    return at


def prompted_by_seed(seed: int) -> Loop:
    """Return a loop whose prompt and options depend on the seed of its run."""
    return SessionLoop(ScriptedLLM(["done"], repeat=True), [look], system_prompt=f"You are number {seed}.")


def few_prompts_by_seed(seed: int) -> Loop:
    """Return a loop with one of three prompts. Neighbouring seeds have the same one."""
    prompt = ("Doubt.", "Believe.", "Ask.")[seed // 1_000_000 % 3]
    return SessionLoop(ScriptedLLM(["done"], repeat=True), [look], system_prompt=prompt)


def nested_by_seed(seed: int) -> Loop:
    """Return a loop that has another loop as a tool, whose prompt depends on the seed."""
    inner = SessionLoop(ScriptedLLM(["inner"], repeat=True), system_prompt=f"Number {seed}.", name="inner")
    llm = ScriptedLLM([call("inner", {"input": "go"}), "done"], repeat=True)
    return Agent(llm, [inner])


def other_tools_by_seed(seed: int) -> Loop:
    """Return a loop that has a tool only if its seed is even."""
    return SessionLoop(ScriptedLLM(["done"], repeat=True), [look] if seed % 2 == 0 else [])


def policies_by_name(policy: Any) -> Loop:
    """Return a loop for each of some values that are not JSON: functions and objects."""
    return SessionLoop(ScriptedLLM([str(callable(policy))], repeat=True), [look])


class Strict:
    """A value of an arm whose repr has its address."""

    name = "strict"


CASES: dict[str, tuple[Callable[..., Loop], dict[str, Any]]] = {
    **{f"design {name}": (make, {}) for name, make in WORLDS.items()},
    "prompt by seed": (prompted_by_seed, {}),
    "few prompts by seed": (few_prompts_by_seed, {}),
    "nested by seed": (nested_by_seed, {}),
    "tools by seed": (other_tools_by_seed, {}),
    "values that are no JSON": (policies_by_name, {"arms": {"policy": {"a": lambda: 1, "b": Strict(), "c": look}}}),
    "policy that is a lambda": (prompted_by_seed, {"approve": lambda item: True}),
    "policies as arms": (prompted_by_seed, {"arms": {"approve": {"yes": True, "rule": lambda item: False}}}),
    "sets": (
        prompted_by_seed,
        {"arms": {"approve": {"some": [{"tool": "look", "decision": "approve"}]}}, "limits": {"turns": 3, "cost": 1}},
    ),
}


def unchanged(case: str, folder: Path, repeats: int) -> agentnb.Study:
    """Return the study of a case."""
    make_loop, options = CASES[case]
    made = {"name": case.replace(" ", "_"), "store": Store(folder / "runs.db"), "progress": False, **options}
    return agentnb.study(make_loop, [5], repeats, **made)


if __name__ == "__main__":
    for case in CASES:
        try:
            found = unchanged(case, Path(sys.argv[1]), 3)
            print(f"{case}: {'continues' if found.runs[0].id is not None else 'finds no runs'}")
        except agentnb.UsageError as error:
            print(f"{case}: {error}")
