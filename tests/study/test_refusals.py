"""What cannot be a study is refused before any run is started, with what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Agent, SessionLoop, Store, UsageError
from agentnb.llms import OpenAI
from agentnb.testing import ScriptedLLM
from tests.study.loops import talking

cached = talking()


async def later() -> SessionLoop:
    return talking()


def failing(model: str) -> SessionLoop:
    raise OSError(f"no {model}")


@pytest.mark.parametrize(
    ("make_loop", "arms", "named"),
    [
        (talking, {"warmth": [1]}, r"talking does not take the arm 'warmth'.*Its arguments are: model"),
        (lambda model: talking(), {}, "missing a required argument: 'model'.*make it an arm"),
        (lambda: cached, {}, "the same loop twice.*do not cache it"),
        (lambda: "loop", {}, "must return a loop, not 'loop'"),
        (talking(), {}, "not a loop: lambda"),
        ("talking", {}, "must be a function that returns a new loop"),
        (later, {}, "later is a coroutine function"),
        (failing, {"model": ["a", "b"]}, "failing failed for the arm model=.*: OSError: no .*No run was started"),
        (talking, {"model": "small"}, r"arms\['model'\] must be a list of values"),
        (talking, {"model": []}, r"arms\['model'\] is empty"),
        (talking, ["small"], "a mapping from an argument to a list"),
        (talking, [{"model": "a"}, {"model": "a"}], r"arms\[0\] and arms\[1\] are equal"),
        (talking, [{"model": "a"}, {"other": "a"}], r"arms\[1\] has the names other, but arms\[0\] has model"),
        (talking, [], "a list without arms"),
        (talking, {"model": ["a", "a"]}, r"two values with the label 'a'"),
        (talking, {"model": [1, "1"]}, r"two values with the label '1'"),
        (talking, {"model": [object()]}, "a value without a name"),
        (talking, {"model": [lambda: 1]}, "a value without a name"),
        (talking, {"model": [float("nan")]}, r"arms\['model'\] has the label nan, which is not a finite number"),
        (talking, {"model": ["a\0"]}, r"Each label of arms\['model'\] takes a text .* only valid characters"),
        (talking, {"model": {"\ud800": "a"}}, r"Each label of arms\['model'\] takes a text"),
        (lambda **any: talking(), {"a\0": ["a"]}, "Each name in arms= takes a text"),
        (dict, {}, "dict does not say which arguments it takes"),
        (talking, {"seed": [1]}, "cannot be named seed"),
        (talking, {"approve": {"bad": 5}}, "approve"),
        (talking, {"limits": {"few": {"turnz": 1}}}, "no limit 'turnz'"),
    ],
)
def test_a_factory_and_its_arms_must_fit(make_loop: Any, arms: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        agentnb.study(make_loop, ["go"], arms=arms)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"inputs": "go"}, r"inputs must be a list.*pass \['go'\]"),
        ({"inputs": {"a": 1}}, r"inputs must be a list.*pass inputs.values\(\)"),
        ({"inputs": {"go"}}, r"must have an order.*Pass sorted\(inputs\)"),
        ({"inputs": ["go", float("nan")]}, r"inputs\[1\] is missing: nan.*Leave it out"),
        ({"seed_by": "arm"}, 'seed_by= takes "cell" or "input"'),
        ({"inputs": 5}, "inputs must be a list"),
        ({"inputs": []}, "inputs is empty"),
        ({"inputs": ["a", "b", "a"]}, r"inputs\[0\] and inputs\[2\] are equal"),
        ({"repeats": 0}, "repeats= must be a whole number of at least 1"),
        ({"repeats": 2.5}, "repeats="),
        ({"at_once": 0}, "at_once= must be a whole number of at least 1"),
        ({"seed": "x"}, "seed= must be a whole number"),
        ({"name": ""}, r"study\(name=\)"),
        ({"store": 5}, "takes an agentnb.Store"),
        ({"tags": "pilot"}, "tags= takes a list"),
        ({"approve": 5}, "approve"),
        ({"limits": {"turnz": 1}}, "no limit 'turnz'"),
        ({"on_limit": "stop"}, 'on_limit= takes "end" or "ask"'),
        ({"options": ["warm"]}, r'options= takes a mapping, for example \{"temperature": 0\}'),
        ({"options": {"api_key": "sk-12345678901234567890"}}, "options= has a secret in 'api_key'"),
        ({"arms": {"options": {"a": {"temperature": 0}, "b": 1}}}, "options= takes a mapping"),
        ({"arms": {"options": [{"temperature": 0}]}}, r"arms\['options'\] has a value without a name"),
        ({"arms": {"on_limit": ["end", "stop"]}}, "on_limit= takes"),
        ({"data": ["x"]}, "data= takes a mapping"),
        ({"data": {"arm": "left"}}, "data= cannot have 'arm'.*Use another name"),
    ],
)
def test_other_arguments_must_be_valid(options: Any, named: str) -> None:
    inputs = options.pop("inputs", ["go"])
    with pytest.raises(UsageError, match=named):
        agentnb.study(talking, inputs, **options)


def test_options_that_a_model_does_not_take_are_refused() -> None:
    def make_loop(model: str) -> SessionLoop:
        return SessionLoop(OpenAI("gpt-5") if model == "real" else ScriptedLLM(["x"]), [])

    arms: dict[str, Any] = {"model": ["scripted", "real"]}
    with pytest.raises(UsageError, match=r"for the arm model=real: top_pp is not.*Did you mean top_p\?"):
        agentnb.study(make_loop, ["go"], arms=arms, options={"top_pp": 0})
    arms["options"] = {"plain": {}, "warm": {"top_k_k": 1}}
    with pytest.raises(UsageError, match=r"for the arm model=real, options=warm: top_k_k is not"):
        agentnb.study(make_loop, ["go"], arms=arms, options={"temperature": 0})


@pytest.fixture
async def store(tmp_path: Path) -> Store:
    """A store with a study of two arms and one input."""
    store = Store(tmp_path / "runs.db")
    await agentnb.study(talking, ["go"], 2, arms={"model": ["a", "b"]}, store=store, name="pilot", progress=False)
    return store


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"arms": {"model": ["a", "c"]}}, "with other arms: model: a, b, not model: a, c.*add=True"),
        ({"arms": {"model": ["a"]}}, "with other arms"),
        ({"inputs": ["stop"]}, "with other inputs.*add=True"),
        ({"seed": 5}, "with seed=0, not 5"),
        (
            {"options": {"temperature": 1}},
            r"another treatment: options was empty and is \{.temperature.: 1\}\. .*add=True",
        ),
        (
            {"make_loop": lambda model: Agent(ScriptedLLM(["x"]))},
            "has runs of SessionLoop, but .* returns Agent",
        ),
    ],
)
async def test_a_study_with_the_name_of_another_is_refused(store: Store, change: Any, named: str) -> None:
    arguments: dict[str, Any] = {"make_loop": talking, "inputs": ["go"], "arms": {"model": ["a", "b"]}, **change}
    with pytest.raises(UsageError, match=named):
        agentnb.study(repeats=2, store=store, name="pilot", **arguments)
    assert len(store.runs()) == 4


async def test_arms_are_added_on_request(store: Store) -> None:
    options: Any = {"store": store, "name": "pilot", "progress": False, "add": True}
    done = await agentnb.study(talking, ["go"], 2, arms={"model": ["a", "b", "c"]}, **options)
    assert done.counts["done"] == 6
    assert len(store.find(tag="study:pilot")) == 6


async def test_repeats_and_inputs_are_added_without_a_request(store: Store) -> None:
    options: Any = {"store": store, "name": "pilot", "progress": False, "arms": {"model": ["a", "b"]}}
    more = agentnb.study(talking, ["first", "go"], 3, **options)
    assert more.counts["done"] == 4
    await more
    assert len(store.runs()) == 12


async def test_a_study_of_another_name_is_another_study(store: Store) -> None:
    other = agentnb.study(talking, ["go"], 2, arms={"model": ["c"]}, store=store, name="pilot 2", progress=False)
    assert other.counts["not started"] == 2
