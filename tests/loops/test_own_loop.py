"""A loop of your own, in both forms, exactly as in the README and in the docstrings."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from agentnb import Loop, RunFailed, Snapshot, UsageError, restore, tool
from agentnb.core.events import (
    ApprovalDecision,
    CallEnd,
    Event,
    MessageAdded,
    ModelEnd,
    ModelStart,
    RunEnd,
    StateUpdate,
)
from agentnb.core.loop import Calls, Requests
from agentnb.core.state import CallState, State
from agentnb.loops import want
from agentnb.testing import ScriptedLLM, call
from tests.worlds import assert_folds, assert_one_terminal_event_last, payload, provider_faults, types

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
TURNS = ["Cats sleep.", "Say how long.", "Cats sleep all day.", "Good."]


def readme_examples() -> list[str]:
    """Return the blocks of code in the section about own loops."""
    section = README.split("## Your own loop")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)


def docstring_example(documented: Any) -> str:
    """Return the code in a docstring: its indented lines."""
    lines = (inspect.getdoc(documented) or "").splitlines()
    first, *_, last = [number for number, line in enumerate(lines) if line.startswith("    ")]
    return textwrap.dedent("\n".join(lines[first : last + 1])) + "\n"


async def run_cells(*cells: str, **namespace: Any) -> dict[str, Any]:
    """Run cells as a notebook does, one after the other in one namespace."""
    for cell in cells:
        running = eval(compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
        if running is not None:
            await running
    return namespace


async def loops() -> dict[str, Any]:
    """Return, for both forms of the example, a function that constructs the loop with a model."""
    names = await run_cells(*readme_examples())
    function = names["critic"].function

    def generator(turns: list[Any]) -> Loop:
        return Loop.from_generator(function, ScriptedLLM(turns), phases=["drafting", "reviewing"])

    return {"generator": generator, "decision": lambda turns: names["Critic"](ScriptedLLM(turns))}


FORMS = pytest.mark.parametrize("form", ["generator", "decision"])


async def test_the_loops_of_the_readme_run_unchanged(capsys: Any) -> None:
    await run_cells(*readme_examples())
    assert capsys.readouterr().out == "Cats sleep all day.\nCats sleep all day.\n"


def test_each_loop_of_the_readme_has_less_than_thirty_lines() -> None:
    for example in readme_examples():
        assert len([line for line in example.splitlines() if line.strip()]) < 30


async def test_the_loop_in_the_docstring_is_that_of_the_readme() -> None:
    example = docstring_example(Loop)
    names = await run_cells(example)
    assert await names["Critic"](ScriptedLLM(TURNS)).start("cats") == "Cats sleep all day."
    assert example.partition("class ")[2].strip() in readme_examples()[1]


async def test_the_loop_in_the_docstring_of_from_generator_runs() -> None:
    @tool
    async def search(query: str) -> str:
        return f"found {query}"

    llm = ScriptedLLM([[call("search", {"query": "x"}, id="c")], "an answer"])
    code = compile(docstring_example(Loop.from_generator), "docstring", "exec")
    names = {"Loop": Loop, "llm": llm, "search": search, "ask": want.ask}
    exec(code, names)
    run = names["answer"].start("why?")  # type: ignore[attr-defined]
    assert await run == "an answer"
    assert [message.content for message in run.messages] == ["why?", "", "found x", "an answer"]


def test_the_error_for_a_missing_super_init_names_the_class() -> None:
    class Forgetful(Loop):
        def __init__(self, llm: Any) -> None:
            self.llm = llm

        def advance(self, state: State) -> Event:
            return RunEnd(reason="completed")

    with pytest.raises(UsageError, match=r"Forgetful.__init__ does not call super\(\).__init__\(\)"):
        Forgetful(ScriptedLLM([])).start("cats")


@pytest.mark.parametrize(
    ("table", "given"),
    [
        ("phases", ["drafting", "reviewing"]),
        ("phases", {"drafting": "done", "done": []}),
        ("phases", {}),
        ("opened_by", ["run_end"]),
        ("opened_by", {"run_ended": "done"}),
        ("opened_by", {"run_end": ["done"]}),
    ],
)
def test_a_loop_with_an_invalid_phase_table_is_not_started(table: str, given: Any) -> None:
    class Untold(Loop):
        def advance(self, state: State) -> Event:
            return RunEnd(reason="completed")

    setattr(Untold, table, given)
    with pytest.raises(UsageError, match=rf"Untold\.{table} .*{re.escape(str(given))}\.$"):
        Untold().start("cats")


class Losing(Loop):
    """A loop that loses its phase table while it runs, so that its end cannot be recorded."""

    def advance(self, state: State) -> Event:
        self.phases = None  # type: ignore[misc, assignment]
        raise LookupError("mine")


@pytest.mark.parametrize(
    "wait",
    [
        "await run",
        "[event async for event in run]",
        "await asyncio.to_thread(run.result, 10)",
        "run.play(); await run",
        "run.play(); [event async for event in run]",
        "await run.step('turn')",
    ],
)
async def test_every_wait_for_a_run_that_cannot_record_its_end_raises_the_error(wait: str) -> None:
    run = Losing().start(None)
    async with asyncio.timeout(10):
        with pytest.raises(RunFailed, match="LookupError: mine"):
            await run_cells(wait, run=run, asyncio=asyncio)
        with pytest.raises(RunFailed, match="LookupError: mine"):
            await run
    assert not run.driven


@FORMS
async def test_both_forms_of_the_loop_have_the_same_messages_and_phases(form: str) -> None:
    run = (await loops())[form](TURNS).start("cats")
    assert await run == "Cats sleep all day."
    assert [message.content for message in run.messages][1::2] == TURNS
    assert [event.phase for event in run.events if event.phase] == [
        *("drafting", "reviewing", "drafting", "reviewing", "done"),
    ]
    assert provider_faults(run.messages) == []
    assert_one_terminal_event_last(run.events)
    assert_folds(run)


@FORMS
async def test_a_run_restored_at_any_event_has_the_same_result(form: str) -> None:
    make = (await loops())[form]
    whole = make(TURNS).start("cats")
    await whole
    for position in range(1, len(whole.events)):
        snapshot = Snapshot.from_json(Snapshot.of(whole.events[:position]).to_json())
        answered = sum(isinstance(event, ModelEnd) for event in snapshot.events)
        restored = restore(snapshot, make(TURNS[answered:]))
        assert await restored == "Cats sleep all day."
        if types(snapshot.events)[-1] != "model_start":
            rest = [payload(event) for event in restored.events[position:]]
            assert rest == [payload(event) for event in whole.events[position:]]


@FORMS
async def test_an_own_loop_can_be_stepped_paused_and_cancelled(form: str) -> None:
    run = (await loops())[form](TURNS).start("cats", breakpoints=["reviewing"])
    await run.step("turn")
    assert run.messages[-1].content == "Cats sleep."
    await run.step("phase")
    assert run.phase == "reviewing"
    await run.step("turn")
    assert run.messages[-1].content == "Say how long."
    assert run.cancel("enough")
    assert run.stop_reason == "cancelled"
    assert_one_terminal_event_last(run.events)


@FORMS
async def test_the_panel_draws_the_phases_of_an_own_loop(form: str) -> None:
    run = (await loops())[form](TURNS).start("cats")
    await run
    shown = run.panel()
    assert shown is not None
    text = str(shown.get_state() if hasattr(shown, "get_state") else shown)
    assert "reviewing" in text


@pytest.mark.parametrize("odd", ["go on", 5, {"type": "run_end"}])
async def test_the_error_for_a_decision_that_is_not_an_event_states_what_to_return(odd: Any) -> None:
    class Odd(Loop):
        def advance(self, state: Any) -> Any:
            return odd

    with pytest.raises(RunFailed, match=r"advance\(\) must return an event"):
        await Odd().start("go")


async def test_an_unknown_event_type_ends_the_run_and_is_not_recorded() -> None:
    class Remark(Event, frozen=True, tag="remark"):
        pass

    class Remarks(Loop):
        def advance(self, state: Any) -> Event:
            return Remark()

    run = Remarks().start("cats")
    with pytest.raises(RunFailed, match="Unknown event type 'remark'"):
        await run
    assert types(run.events) == ["run_start", "run_end"]


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (RunEnd(reason="done"), "RunEnd is not valid: Invalid enum value 'done'"),  # type: ignore[arg-type]
        (ModelStart(turn="one"), "ModelStart is not valid: Expected `int`, got `str`"),  # type: ignore[arg-type]
        (MessageAdded(message={"content": "hi"}), "MessageAdded is not valid: role: Field required"),  # type: ignore[arg-type]
        (StateUpdate(values=[1]), "StateUpdate is not valid: Expected `object`, got `array`"),  # type: ignore[arg-type]
    ],
)
async def test_an_event_with_an_invalid_value_ends_the_run_and_the_error_names_the_field(
    event: Event, fault: str
) -> None:
    class Wrong(Loop):
        def advance(self, state: Any) -> Event:
            return event

    run = Wrong().start(None)
    with pytest.raises(RunFailed, match=re.escape(fault)):
        await run
    assert types(run.events) == ["run_start", "run_end"]


async def test_an_event_accepts_a_message_as_a_dict() -> None:
    class Speaking(Loop):
        def advance(self, state: State) -> Event:
            if not state.messages:
                return MessageAdded(message={"role": "assistant", "content": "hi"})  # type: ignore[arg-type]
            return RunEnd(reason="completed", output=state.messages[0].content)

    assert await Speaking().start(None) == "hi"


@pytest.mark.parametrize(
    "decision",
    [CallEnd(call_id="c1", outcome="odd"), ApprovalDecision(call_id="c1", decision="perhaps")],  # type: ignore[arg-type]
)
async def test_an_invalid_decision_of_a_hook_blocks_the_call(decision: Event) -> None:
    class Hooked(Loop):
        before_call = staticmethod(lambda call, state: decision)  # type: ignore[assignment]

        def advance(self, state: State) -> Event:
            return RunEnd(reason="completed") if state.turn else ModelStart(turn=1)

    @tool
    def look() -> str:
        return "seen"

    run = Hooked(llm=ScriptedLLM([call("look"), "done"]), tools=[look]).start(None)
    await run
    ended = next(event for event in run.events if isinstance(event, CallEnd))
    assert ended.outcome == "blocked"
    assert "is not valid: Invalid enum value" in ended.result


class Own(Loop):
    """A loop that keeps a value, and ends with it."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def advance(self, state: State) -> Event:
        if "kept" not in state.values:
            return StateUpdate(values={"kept": self.value})
        return RunEnd(reason="completed", output=self.value)


async def test_values_and_output_of_a_loop_are_converted_to_json_immediately() -> None:
    run = Own({"when": date(2026, 11, 23), "years": (1871, 1970)}).start("go")
    said = {"when": "2026-11-23", "years": [1871, 1970]}
    assert await run == said
    assert run.state.values["kept"] == said


async def test_a_value_that_is_not_json_ends_the_run_with_an_error(tmp_path: Path) -> None:
    run = Own({"now": [object()]}).start("go")
    with pytest.raises(RunFailed, match="The values of own: data recorded in an event must be JSON"):
        await run
    assert Snapshot.load(run.snapshot().save(tmp_path / "own.agentnb.json")).state.error is not None


async def test_changing_a_returned_output_does_not_change_the_recording() -> None:
    run = Own({"found": [1]}).start("go")
    output = await run
    output["found"].append(2)
    assert await run == {"found": [1]}


class Summary(Requests):
    """A Requests role that sends one message instead of the history, and a prompt that names the tools."""

    @property
    def system_prompt(self) -> str:
        return f"{self.loop.system_prompt} Tools: {', '.join(self.tools)}."

    def messages(self, state: State) -> list[dict[str, Any]]:
        return [{"role": "user", "content": f"{len(state.messages)} messages so far"}]

    def options(self) -> dict[str, Any]:
        return {"temperature": 0}


class FirstOnly(Calls):
    """A Calls role that skips every call after the first."""

    def skip(self, call: CallState, state: State) -> CallEnd | None:
        if call.id == "c1":
            return None
        return CallEnd(call_id=call.id, name=call.name, result="one is enough", outcome="skipped")


class Short(Loop):
    """A loop that sends two requests, with its own subclasses of Requests and Calls."""

    requests_class = Summary
    calls_class = FirstOnly
    system_prompt = "Be brief."

    def advance(self, state: State) -> Event:
        return RunEnd(reason="completed") if state.turn == 2 else ModelStart(turn=state.turn + 1)


async def test_a_loop_may_bring_its_own_requests_and_calls() -> None:
    @tool
    def look(at: str) -> str:
        return f"seen {at}"

    llm = ScriptedLLM([[call("look", {"at": "a"}, id="c1"), call("look", {"at": "b"}, id="c2")], "done"])
    run = Short(llm, [look]).start("go")
    await run
    prompt = {"role": "system", "content": "Be brief. Tools: look."}
    assert [request.messages for request in llm.requests] == [
        [prompt, {"role": "user", "content": "0 messages so far"}],
        [prompt, {"role": "user", "content": "3 messages so far"}],
    ]
    assert [request.options for request in llm.requests] == [{"temperature": 0}, {"temperature": 0}]
    assert run.events[0].system_prompt == prompt["content"]
    ends = {event.call_id: event.result for event in run.events if isinstance(event, CallEnd)}
    assert ends == {"c1": "seen a", "c2": "one is enough"}
    assert_folds(run)


@pytest.mark.parametrize(("name", "value"), [("calls_class", FirstOnly), ("requests_class", Summary)])
def test_a_loop_whose_requests_or_calls_are_not_a_class_of_them_is_not_started(name: str, value: type) -> None:
    for wrong in (None, value(Short(), {}), Short, Calls if value is Summary else Requests):
        loop = Short()
        setattr(loop, name, wrong)
        role = name.partition("_")[0].title()
        with pytest.raises(UsageError, match=rf"^Short\.{name} must be a subclass of {role}, not "):
            loop.start("go")
