from __future__ import annotations

import time
from typing import Any

import pytest

from agentnb.core.events import CallEnd, CallProposed, CallStart, PhaseChange, RunEnd, RunStart, StateUpdate
from agentnb.core.loop import Calls
from agentnb.core.messages import ToolCall
from agentnb.loops.conversation_engine import ConversationEngine
from agentnb.loops.conversation_engine.loop import EngineCalls
from agentnb.testing import call
from agentnb.widgets.views.loops import SHOWN, TABLES, Loops, breadcrumb, nested_status
from tests.widgets.support import HOSTILE, Recording, asking_everywhere, asking_inside, engine, until, worker


def followed(run: Any, loop: Any = None) -> list[dict[str, Any]]:
    nested: list[dict[str, Any]] = nested_status(Loops(loop or run.loop).follow(run.events))["nested"]
    return nested


def test_a_nested_loop_is_shown_with_its_path_through_the_phases() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    assert followed(run) == [
        {
            "path": "worker", "input": "Write the draft", "phase": "acting", "running": True, "ended": "", "table": 0,
            "arrows": [["idle", "listening"], ["listening", "thinking"], ["thinking", "acting"]],
            "times": [1, 1, 1], "latest": 2,
        }
    ]  # fmt: skip
    run.cancel()
    [ended] = followed(run)
    assert (ended["running"], ended["ended"]) == (False, "cancelled")


@pytest.mark.parametrize(
    ("given", "told"),
    [([{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Report."}], "Report."),
     (["a"], '["a"]'), ([], "[]"), (None, "")],
)  # fmt: skip
def test_the_input_of_a_nested_loop_is_abbreviated(given: Any, told: str) -> None:
    recording = Recording()
    recording.start()
    recording.add(RunStart(loop="L", name="l", path="l", input=given))
    loops = Loops(worker()).follow(recording.events)
    assert [loop.input for loop in loops.nested()] == [told]


def test_a_nested_loop_that_runs_again_starts_empty_and_the_last_one_is_shown() -> None:
    run = engine([call("search", {"query": "x"}, id="c")], "Drafted.", "Proof-read.")
    run.result(30)
    [last] = followed(run)
    assert (last["input"], last["phase"], last["ended"]) == ("Proof-read it", "done", "completed")
    assert ["thinking", "acting"] not in last["arrows"], "that was the first time"


def test_nested_loops_computed_incrementally_and_from_all_events_are_equal() -> None:
    run = engine([call("search", {"query": "x"}, id="c")], "Drafted.", "Proof-read.")
    run.result(30)
    slowly = Loops(run.loop)
    for position in range(len(run.events)):
        slowly.follow(run.events[:position])
        at_once = Loops(run.loop).follow(run.events[:position])
        assert nested_status(slowly) == nested_status(at_once)
        assert slowly.root.arrows == at_once.root.arrows


def test_all_concurrent_nested_loops_are_shown() -> None:
    run = asking_everywhere()
    run.play()
    until(lambda: len(run.pending) == 3)
    nested = followed(run)
    assert [(one["path"], one["phase"], one["table"]) for one in nested] == [
        ("critic", "acting", 0), ("critic:k2", "acting", -1),  # drawn once: they look the same
    ]  # fmt: skip
    assert breadcrumb(run.phase, nested) == "acting > critic: acting, critic:k2: acting"
    run.cancel()


def test_a_loop_nested_twice_is_shown_after_its_parent() -> None:
    critic = worker([call("delete_file", {"path": "/a"}, id="d")], "Fine.", name="critic")
    run = engine([call("critic", {"input": "look"}, id="k")], "Drafted.", "Proof-read.", tools=(critic,))
    run.play()
    until(lambda: run.pending)
    nested = followed(run)
    assert [(one["path"], one["phase"], one["table"]) for one in nested] == [
        ("worker", "acting", 0), ("worker/critic", "acting", 0),
    ]  # fmt: skip
    assert breadcrumb(run.phase, nested) == "executing > worker: acting > worker/critic: acting"
    run.cancel()


def test_a_nested_loop_without_a_matching_design_has_no_diagram() -> None:
    run = engine("Drafted.", "Proof-read.")
    run.result(30)
    other = ConversationEngine(execute=ConversationEngine(name="worker"))
    [nested] = followed(run, other)
    assert (nested["phase"], nested["table"]) == ("done", -1)


def test_a_failing_loop_for_of_a_design_is_logged_and_has_no_diagram(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenCalls(Calls):
        def loop_for(self, call: Any, state: Any = None) -> Any:
            raise LookupError("no such loop")

    class Broken(ConversationEngine):
        calls_class = BrokenCalls

    run = engine("Drafted.", "Proof-read.")
    run.result(30)
    [nested] = followed(run, Broken())
    assert (nested["path"], nested["table"]) == ("worker", -1)
    assert "no such loop" in caplog.text


def test_the_loop_of_a_call_is_looked_up_once() -> None:
    asked = []

    class AskedCalls(EngineCalls):
        def loop_for(self, call: Any, state: Any = None) -> Any:
            asked.append(call.name)
            return super().loop_for(call)

    class Asked(ConversationEngine):
        calls_class = AskedCalls

    run = Asked(llm=lambda goal: [f"task {n}" for n in range(20)], execute=worker(*["Done."] * 20)).start("go")
    run.result(30)
    asked.clear()
    assert len(followed(run)) == 1
    assert asked == ["execute"]


def test_a_thousand_concurrent_loops_are_counted_and_a_thousand_ended_ones_are_forgotten() -> None:
    run = Recording()
    run.start()
    for number in range(1000):
        run.add(RunStart(loop="Deep", name="x", path=f"x:{number}", call=f"c{number}"))
    loops = Loops(None).follow(run.events)
    told = nested_status(loops)
    assert (len(told["nested"]), told["more"]) == (SHOWN, 1000 - SHOWN)
    for number in range(1000):
        run.add(RunEnd(reason="completed", path=f"x:{number}"))
    run.add(RunStart(loop="Deep", name="x", path="y"))
    loops.follow(run.events)
    assert [loop.path for loop in loops.nested()] == ["y"]
    assert len(loops.root.inside) == 1


def test_a_nested_loop_and_its_own_nested_loops_end_with_its_call() -> None:
    run = Recording()
    run.start()
    run.add(CallProposed(call=ToolCall(id="c", name="execute", arguments={}), hidden=True))
    run.add(CallStart(call_id="c", name="execute", arguments={}))
    run.add(RunStart(loop="L", name="a", path="a", call="c"))
    run.add(RunStart(loop="L", name="b", path="a/b", call="d"))
    loops = Loops(None).follow(run.events)
    assert [loop.running for loop in loops.nested()] == [True, True]
    run.add(CallEnd(call_id="c", name="execute", outcome="aborted"))
    loops.follow(run.events)
    assert [(loop.path, loop.running) for loop in loops.nested()] == [("a", False), ("a/b", False)]
    assert loops.nested()[0].ended == "aborted"


def test_the_number_of_drawn_tables_is_limited() -> None:
    class ManyCalls(Calls):
        def loop_for(self, call: Any, state: Any = None) -> Any:
            if call.name != "execute":
                return None
            loop = worker("Done.", name=call.arguments["id"])
            loop.phases = {**loop.phases, call.arguments["id"]: []}  # type: ignore[misc]
            return loop

    class Many(ConversationEngine):
        calls_class = ManyCalls

    tasks = [{"id": f"task {n}", "description": "x"} for n in range(TABLES + 4)]
    run = Many(llm=lambda goal: tasks).start("go")
    run.result(30)
    loops = Loops(run.loop).follow(run.events)
    assert len(loops.tables) == TABLES
    [last] = nested_status(loops)["nested"]
    assert (last["path"], last["table"]) == (f"task {TABLES + 3}", -1)


def test_names_with_lone_surrogates_can_be_sent() -> None:
    run = Recording()
    run.start()
    path = HOSTILE.replace("/", "|")
    run.add(RunStart(loop=HOSTILE, name=HOSTILE, path=path, input=HOSTILE))
    run.add(PhaseChange(source="x", phase=HOSTILE, path=path))
    [told] = nested_status(Loops(None).follow(run.events))["nested"]
    for name in ("path", "phase", "input"):
        told[name].encode()
        assert "script" in told[name]


@pytest.mark.alone
def test_computing_the_nested_loops_costs_little_for_each_event() -> None:
    events = [StateUpdate(seq=n, values={"n": n}) for n in range(20_000)]
    loops = Loops(None)
    started = time.process_time()
    loops.follow(events)
    assert (time.process_time() - started) / 20_000 < 10e-6  # 0.5 measured
