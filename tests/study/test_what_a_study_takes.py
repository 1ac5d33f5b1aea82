"""What a person has can be given to a study: tables, columns, arrays, ranges, lists of arms, paths of stores."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import SessionLoop, UsageError
from agentnb.studies import Study
from agentnb.testing import ScriptedLLM
from tests.study.loops import talking

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")


def study(inputs: Any = ("go",), repeats: int = 1, **options: Any) -> Study:
    return agentnb.study(lambda **arm: talking(), inputs, repeats, progress=False, **options)


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        (range(3), [0, 1, 2]),
        ((text for text in "ab"), ["a", "b"]),
        ({"x": "a", "y": "b"}.values(), ["a", "b"]),
        (np.arange(2), [0, 1]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([np.float64(0.5), np.str_("a")], [0.5, "a"]),
        (pd.Series(["a", "b"], index=[7, 9]), ["a", "b"]),
        (pd.Index(["a", "b"]), ["a", "b"]),
        (pd.Series([datetime(2026, 1, 2)]), ["2026-01-02T00:00:00"]),
        (pd.DataFrame({"q": ["a", "b"]}), ["a", "b"]),
        (pd.DataFrame({"q": ["a", "b"], "n": [1, None]}), [{"q": "a", "n": 1.0}, {"q": "b", "n": None}]),
    ],
)
def test_inputs_are_the_values_of_what_is_given(given: Any, inputs: list[Any]) -> None:
    made = [run.input for run in study(given)]
    assert made == inputs
    assert [type(value) for value in made] == [type(value) for value in inputs]


@pytest.mark.parametrize("missing", [pd.Series(["a", float("nan")]), pd.Series(["a", pd.NA]), pd.Series([pd.NaT])])
def test_a_missing_input_is_refused(missing: Any) -> None:
    with pytest.raises(UsageError, match=r"inputs\[\d\] is missing.*dropna"):
        study(missing)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two columns named 'q'"):
        study(pd.DataFrame([["a", "b"]], columns=["q", "q"]))


async def test_a_list_of_arms_is_run_as_it_is() -> None:
    def loop(model: str, policy: str) -> SessionLoop:
        return SessionLoop(ScriptedLLM([f"{model} {policy}"]), [])

    arms = [{"model": "small", "policy": "plain"}, {"policy": "sceptic", "model": "large"}]
    done = await agentnb.study(loop, ["go"], 2, arms=arms, progress=False)
    assert [run.arm for run in done.runs[:2]] == [dict(arms[0]), {"model": "large", "policy": "sceptic"}]
    assert [run.output for run in done] == ["small plain", "large sceptic"] * 2


async def test_a_store_can_be_given_by_its_path(tmp_path: Path) -> None:
    options: Any = {"store": tmp_path / "runs.db"}
    first = await study(**options)
    assert study(**options).runs[0].id == first.runs[0].id
    assert study(store=str(tmp_path / "runs.db")).counts["done"] == 1


def test_runs_of_one_input_and_repeat_have_one_seed_in_all_arms() -> None:
    made = study(["a", "b"], 2, arms={"model": ["small", "large"]}, seed_by="input")
    small, large = (
        {(run.input, run.repeat): run.seed for run in made if run.arm["model"] == model} for model in ("small", "large")
    )
    assert small == large
    assert len(set(small.values())) == 4


async def test_a_study_with_seeds_by_something_else_does_not_continue(tmp_path: Path) -> None:
    await study(store=tmp_path / "runs.db")
    with pytest.raises(UsageError, match="with seed_by='cell', not 'input'"):
        study(store=tmp_path / "runs.db", seed_by="input")


async def test_a_run_is_found_by_the_end_of_its_name_its_id_and_its_position() -> None:
    made = await study(["a", "b"], 2, arms={"policy": ["plain", "sceptic"]})
    run = made["plain/1.0"]
    assert (run.arm, run.input, run.repeat) == ({"policy": "plain"}, "b", 0)
    assert made[run.name] is made[str(run.id)] is made[made.runs.index(run)] is run


@pytest.mark.parametrize(
    ("key", "said"), [("plain/9.0", "Similar names: .*plain/1.0"), ("1.0", "2 runs .* end with '1.0'")]
)
def test_a_name_of_no_run_or_of_several_is_refused(key: str, said: str) -> None:
    with pytest.raises(KeyError, match=said):
        study(["a", "b"], arms={"policy": ["plain", "sceptic"]})[key]
