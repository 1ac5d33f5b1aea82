from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from agentnb import Loop, RunFailed, restore
from agentnb.core import events as e
from agentnb.core.errors import IllegalTransition, UsageError
from agentnb.core.loop import fingerprint
from agentnb.core.state import State
from agentnb.testing import ScriptedLLM
from tests.worlds import assert_folds, assert_one_terminal_event_last, types


class Ladder(Loop):
    """Moves through its phases; `ways` has the next phase of each."""

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "ground": ["first"],
        "first": ["second"],
        "second": ["done"],
        "done": [],
    }
    opened_by: ClassVar[Mapping[str, str]] = {"run_end": "done"}
    ways: ClassVar[Mapping[str, str]] = {"ground": "first", "first": "second"}

    def advance(self, state: State) -> e.Event:
        assert state.phase is not None
        if state.phase in self.ways:
            return e.PhaseChange(source=state.phase, phase=self.ways[state.phase])
        return e.RunEnd(reason="completed", output=state.phase)


class Jumper(Ladder):
    ways: ClassVar[Mapping[str, str]] = {"ground": "second"}


async def test_a_loop_moves_through_the_phases_of_its_table() -> None:
    run = Ladder().start(None)
    assert run.phase == "ground"
    assert await run == "second"
    assert [event.phase for event in run.events] == ["ground", "first", "second", "done"]
    assert run.phase == "done"


async def test_an_illegal_transition_ends_the_run_with_an_error_and_is_not_recorded() -> None:
    run = Jumper().start(None)
    with pytest.raises(RunFailed, match=r"IllegalTransition.*'ground' to 'second'") as failed:
        await run
    assert isinstance(failed.value.__cause__, IllegalTransition)
    assert "phase_change" not in types(run.events)
    assert run.stop_reason == "error"
    assert_one_terminal_event_last(run.events)
    assert_folds(run)


async def test_the_error_of_an_illegal_transition_has_no_context() -> None:
    run = Jumper().start(None)
    with pytest.raises(RunFailed) as failed:
        await run
    assert failed.value.__cause__ is not None
    assert failed.value.__cause__.__context__ is None


async def test_a_loop_of_your_own_steps_and_restores() -> None:
    run = Ladder().start(None)
    await run.step("phase")
    assert run.phase == "first"
    again = restore(run.snapshot(), Ladder())
    assert again.phase == "first"
    assert await again == "second"


async def test_several_runs_can_record_the_same_event_object() -> None:
    class Same(Loop):
        END = e.RunEnd(reason="completed", output="same")

        def advance(self, state: State) -> e.Event:
            return self.END

    first, second = Same().start(None), Same().start([])
    assert await first == await second == "same"
    assert [event.run_id for event in first.events] == [first.id] * 2
    assert [event.run_id for event in second.events] == [second.id] * 2
    assert e.RunEnd(reason="completed", output="same") == Same.END


async def test_a_loop_keeps_values_in_the_state() -> None:
    class Counter(Loop):
        def advance(self, state: State) -> e.Event:
            count = state.values.get("count", 0)
            if count < 3:
                return e.StateUpdate(values={"count": count + 1})
            return e.RunEnd(reason="completed", output=count)

    run = Counter().start(None)
    assert await run == 3
    assert run.state.values == {"count": 3}
    assert_folds(run)


async def test_a_loop_can_propose_calls() -> None:
    class Fetching(Loop):
        activities: ClassVar[Mapping[str, Any]] = {"fetch": lambda arguments, state: {"got": arguments["what"]}}

        def advance(self, state: State) -> e.Event:
            fetched = state.calls.get("f")
            if fetched is None or fetched.end is None:
                call = e.ToolCall(id="f", name="fetch", arguments={"what": "news"})
                return e.CallProposed(call=call, hidden=True)
            return e.RunEnd(reason="completed", output=fetched.end.result)

    run = Fetching().start(None)
    assert await run == {"got": "news"}
    assert run.messages == []


async def test_an_error_in_a_loop_ends_the_run_with_the_error_as_data() -> None:
    class Broken(Loop):
        def advance(self, state: State) -> e.Event:
            raise LookupError("no way")

    run = Broken().start(None)
    with pytest.raises(RunFailed, match="LookupError: no way"):
        await run
    end = run.events[-1]
    assert isinstance(end, e.RunEnd)
    assert end.error is not None
    assert (end.error.type, end.error.message) == ("LookupError", "no way")
    with pytest.raises(RunFailed, match="LookupError: no way"):
        await run


def test_a_loop_is_named_after_its_class() -> None:
    class HTTPLoopOfMine(Ladder):
        pass

    assert HTTPLoopOfMine().name == "http_loop_of_mine"
    assert Ladder(name="other").name == "other"


def test_different_configurations_have_different_fingerprints() -> None:
    one = fingerprint("L", {"a": 1, "b": 2})
    assert one == fingerprint("L", {"b": 2, "a": 1})
    assert one != fingerprint("L", {"a": 1, "b": 3})
    assert one != fingerprint("M", {"a": 1, "b": 2})


async def test_a_model_request_of_a_loop_without_a_model_fails() -> None:
    class Asking(Loop):
        def advance(self, state: State) -> e.Event:
            return e.ModelStart(turn=1)

    with pytest.raises(RunFailed, match="asking has no model"):
        await Asking().start("hi")


async def test_values_that_json_cannot_represent_are_restored_from_a_snapshot() -> None:
    class Odd(Loop):
        def advance(self, state: State) -> e.Event:
            if not state.values:
                return e.StateUpdate(values={"nan": float("nan"), "empty": {}, "none": None})
            return e.RunEnd(reason="completed", output=[])

    run = Odd(ScriptedLLM([])).start(None)
    await run
    snapshot = run.snapshot()
    again = type(snapshot).from_json(snapshot.to_json())
    assert repr(again.state) == repr(run.state)
    values: Any = again.state.values
    assert values["empty"] == {}


@pytest.mark.parametrize(
    ("name", "value", "now"),
    [
        ("loop_for", lambda self, call, state=None: None, "override Calls.loop_for in a subclass of Calls"),
        ("detaches", lambda self, call: True, "set calls_class of the loop"),
        ("checks_in_order", True, "override Calls.checks_in_order"),
        ("messages_for", lambda self, state: [], "override Requests.messages in a subclass of Requests"),
        ("sends", classmethod(lambda cls, state, config: []), "set requests_class of the loop"),
        ("hears", lambda self, run: None, r"override attached\.$"),
    ],
)
def test_a_method_that_is_no_longer_the_loop_s_is_refused_with_its_new_place(name: str, value: Any, now: str) -> None:
    with pytest.raises(UsageError, match=rf"^Odd\.{name} has no effect: .*{now}"):
        type("Odd", (Ladder,), {name: value})
    with pytest.raises(UsageError, match=now):
        type("Odd", (type("Mixin", (), {name: value}), Ladder), {})
    if callable(value):
        loop = Ladder()
        setattr(loop, name, value)
        with pytest.raises(UsageError, match=rf"^Ladder\.{name} has no effect"):
            loop.start(None)


async def test_data_of_a_loop_may_have_the_name_of_a_method_that_it_had_once() -> None:
    class Named(Ladder):
        arguments: ClassVar[Sequence[str]] = ()

        def __init__(self) -> None:
            super().__init__()
            self.outcome = "none"

    assert await Named().start(None) == "second"
