"""Everything that is shown of a run can be encoded and printed, for any names and texts of models, tools and people."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from xml.dom import minidom

import pytest

import agentnb
from agentnb import LoopAgent, Run, SessionLoop, Snapshot, Store, analysis, replay, restore, tool
from agentnb.core.events import Delta
from agentnb.errors import ModelRequestError, RecordingMissing, ToolError, UsageError
from agentnb.loops.want import ask, phase, say
from agentnb.loops.want import call as want_call
from agentnb.testing import ScriptedLLM, call, write_test

HALF = "\ud800"
HOSTILE = f"x{HALF}\x1b[31mred\x07\u202e\n"

WORDS = "x\x1b[31mred\x9b5m\x07\r\u202e end"
"""The hostile text as a store keeps it in a name: valid Unicode on one line."""

remembered: SessionLoop | None = None


class Model:
    """Sends lone surrogates and escape sequences in all its chunks."""

    def __init__(self) -> None:
        self._asked = 0

    async def stream(self, messages: Any, **options: Any) -> Any:
        self._asked += 1
        yield {"type": "text_delta", "content": HOSTILE}
        yield {"type": "reasoning_delta", "content": HOSTILE}
        if self._asked == 1:
            yield {"type": "tool_call_delta", "index": 0, "id": HOSTILE, "name": "look", "arguments": f'{{"s": "{HALF}'}
            yield {"type": "tool_call_delta", "index": 0, "arguments": f'{HALF}"}}'}
            yield {"type": "tool_call_delta", "index": 1, "id": "other", "name": HOSTILE, "arguments": "{}"}


@tool
async def look(s: str) -> str:
    return HOSTILE


async def hostile(told: list[Any]) -> Run:
    run = SessionLoop(Model(), [look], name=f"loop{HOSTILE}").start(HOSTILE)
    run.watch(told.append)
    await run
    return run


def assert_printable(text: str) -> None:
    """Check that the text can be encoded and has no control characters of a terminal."""
    assert text
    assert text.encode()
    assert text.replace("\n", "").replace("\t", "").isprintable(), repr(text)


async def test_everything_a_watcher_gets_can_be_encoded() -> None:
    told: list[Any] = []
    await hostile(told)
    deltas = [one for one in told if isinstance(one, Delta)]
    assert {one.type for one in deltas} >= {"text_delta", "reasoning_delta", "tool_call_delta"}
    for one in deltas:
        for text in (one.content, one.id, one.name, one.arguments):
            assert HALF not in (text or "")


async def test_texts_of_a_run_have_no_terminal_control_characters() -> None:
    told: list[Any] = []
    run = await hostile(told)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    for one in (*told, run, run.loop, snapshot, replay(snapshot), *run.messages):
        assert repr(one).isprintable(), one
        assert str(one).isprintable(), one


def test_a_name_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UsageError, match="name="):
        SessionLoop(Model()).start("hi", name=f"x{HALF}")


def test_names_in_the_error_of_a_store_can_be_printed(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    SessionLoop(Model()).start("hi", store=store, name="a\x1b[31m").cancel()
    with pytest.raises(RecordingMissing) as refused:
        store.load("b")
    assert "\x1b" not in str(refused.value)
    store.close()


@pytest.mark.parametrize("name", ["x²", "a\x1b[31m", "1st", '"""', "class", "½ done", "東京"])
async def test_a_written_test_can_be_parsed_for_any_name_of_a_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.run.test_printed.remembered", SessionLoop(Model(), [look]))
    assert remembered is not None
    run = remembered.start("hi", name=name)
    await run
    path = write_test(run, tmp_path / "test_it.py", "tests.run.test_printed:remembered")
    ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("place", ["import.loops:made", "made.loops:class"])
async def test_an_unparsable_test_is_not_written(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SessionLoop(Model(), [look])
    module = types.ModuleType("loops")
    vars(module).update({"made": loop, "class": loop})
    for name in ("import", "made"):
        package = types.ModuleType(name)
        vars(package)["loops"] = module
        monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, f"{name}.loops", module)
    run = loop.start("hi")
    await run
    with pytest.raises(UsageError, match="loop= must be"):
        write_test(run, tmp_path / "test_it.py", place)
    assert not os.listdir(tmp_path)


# -- errors ------------------------------------------------------------------------------------------------------------


class Failing:
    """A model that fails with a hostile error text."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def stream(self, messages: Any, **options: Any) -> Any:
        raise self._error
        yield


@tool(approve=True)
async def write(path: str) -> str:
    return HOSTILE


async def asking(**options: Any) -> Run:
    """A run with hostile names that waits for a decision."""
    run = SessionLoop(ScriptedLLM([[call("write", {"path": HOSTILE}, id=WORDS)], "ok"]), [write], name=WORDS).start(
        HOSTILE, name=WORDS, **options
    )
    await run.step("turn")
    return run


@pytest.mark.parametrize("error", [ValueError(HOSTILE), ModelRequestError(HOSTILE), ToolError(HOSTILE)], ids=repr)
async def test_the_error_of_a_failed_model_can_be_printed(error: Exception) -> None:
    run = SessionLoop(Failing(error)).start("hi")
    with pytest.raises(agentnb.errors.RunFailed) as failed:
        await run
    assert_printable(str(failed.value))
    run.cancel(HOSTILE)
    with pytest.raises(agentnb.errors.RunCancelled) as cancelled:
        await run
    assert_printable(str(cancelled.value))


@pytest.mark.parametrize("name", agentnb.errors.__all__)
def test_every_error_can_be_printed_and_keeps_its_text(name: str) -> None:
    if name == "ToolError":
        return
    more = {"ReplayDiverged": (None, None)}.get(name, ())
    error = getattr(agentnb.errors, name)(f"{HOSTILE}\tof a peer", *more)
    assert_printable(str(error))
    assert str(error).startswith("x\\ud800\\x1b[31mred\\x07\\u202e\n\tof")
    assert error.args[0] == f"{HOSTILE}\tof a peer"


async def test_the_error_text_of_a_tool_reaches_the_model_unchanged() -> None:
    @tool
    async def fails() -> str:
        raise ToolError("\x1b[31mred")

    run = SessionLoop(ScriptedLLM([[call("fails", {})], "ok"]), [fails]).start("hi")
    await run
    assert run.messages[2].content == "\x1b[31mred"


MISTAKES: dict[str, Callable[[Run], Any]] = {
    "an id": lambda run: run.approve(WORDS + "?"),
    "half an id": lambda run: run.approve(HALF),
    "arguments": lambda run: run.edit(run.pending[0], {WORDS: 1}),
    "a tool": lambda run: run.replace(run.pending[0], WORDS, {}),
    "what to remember": lambda run: run.approve(run.pending[0], remember=WORDS),  # type: ignore[arg-type]
    "a condition": lambda run: run.breakpoints.add({"where": WORDS}),
    "a limit": lambda run: run.loop.start("hi", limits={WORDS: 1}),
    "a rule": lambda run: run.loop.start("hi", approve=[{WORDS: 1}]),
    "a policy's file": lambda run: run.loop.start("hi", approve=WORDS),
    "a snapshot's name": lambda run: run.snapshot(HALF),
    "a file": lambda run: Snapshot.load(f"/nowhere/{WORDS}"),
    "another loop": lambda run: restore(run.snapshot(), LoopAgent("x", [], 1)),
    "an address": lambda run: agentnb.llms.OpenAI(WORDS, base_url=f"{WORDS}://x"),
    "a header": lambda run: agentnb.llms.OpenAI("x", base_url="http://127.0.0.1:9", headers={WORDS: WORDS}),
    "two tools": lambda run: SessionLoop(ScriptedLLM([]), [Named(WORDS), Named(WORDS)]),
    "a run to attach": lambda run: agentnb.attach(WORDS + "?"),
}


class Named:
    """A tool of a peer's, with that name."""

    description = HOSTILE
    parameters: ClassVar = {"type": "object"}

    def __init__(self, name: str) -> None:
        self.name = name

    async def execute(self, args: dict[str, Any]) -> str:
        return HOSTILE


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
async def test_the_error_about_an_invalid_argument_can_be_printed(mistake: Callable[[Run], Any]) -> None:
    run = await asking()
    with pytest.raises(agentnb.errors.AgentnbError) as refused:
        mistake(run)
    assert_printable(str(refused.value))
    run.cancel()


# -- what is written on the screen -------------------------------------------------------------------------------------


async def test_the_line_about_a_refused_call_can_be_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agentnb.headless(lambda call: False, after=0)
    await SessionLoop(ScriptedLLM([[call("write", {"path": HOSTILE}, id=WORDS)], "ok"]), [write]).start("hi")
    line = capsys.readouterr().err
    assert "was rejected" in line
    assert_printable(line)
    assert line.count("\n") == 1


async def test_a_warning_can_be_printed() -> None:
    run = await asking()
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")

        @tool(approve=True)
        async def write(path: str, more: str = WORDS) -> str:
            return path

        restore(snapshot, SessionLoop(ScriptedLLM([]), [write], name=WORDS, system_prompt=WORDS)).cancel()
    assert told
    for one in told:
        assert_printable(str(one.message))
    run.cancel()


async def test_reprs_of_loops_tools_and_commands_can_be_printed() -> None:
    run = await asking(breakpoints=[{"arguments": [{"field": WORDS, "operator": "is", "value": WORDS}]}])
    wants = [ask(HOSTILE), say(HOSTILE), phase(WORDS), want_call(WORDS, text=HOSTILE)]
    shown = [run.loop, *wants, run.breakpoints, *run.breakpoints, run.pending, agentnb.headless]
    for one in (*shown, agentnb.llms.OpenAI(WORDS, base_url="http://127.0.0.1:9")):
        assert_printable(str(one))
        assert_printable(repr(one))
    run.cancel()


async def test_attached_runs_and_their_table_can_be_printed(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path / "a\x1b[31m.db")) as store:
        run = await asking(store=store)
        recorded = agentnb.attach(store=store)
        run.cancel()
        with contextlib.suppress(agentnb.errors.RunCancelled):
            await run
        one = agentnb.attach(WORDS, store=store)
        for shown in (recorded, one, agentnb.runs(store), store, agentnb.attach(store=store)):
            assert_printable(repr(shown))
        assert_printable(agentnb.runs(store)._repr_html_())


async def test_comparisons_of_recordings_can_be_printed() -> None:
    one, other = await asking(), await asking()
    other.reject(other.pending[0], HOSTILE)
    await other
    other.name = WORDS
    difference, tree = analysis.diff(one, other), analysis.branches([one, other])
    judged = analysis.backtest(lambda call: {}[HOSTILE], [other])
    for text in (str(difference), difference._repr_html_(), str(tree), tree._repr_html_(), repr(judged)):
        assert_printable(text)
    one.cancel()


# -- what is written into files ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Glyph")
async def test_every_written_file_can_be_read_again(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path / "runs.db")) as store:
        run = await asking(store=store)
        run.reject(run.pending[0], HOSTILE)
        await run
        store.export(tmp_path / "all.jsonl")
        for line in (tmp_path / "all.jsonl").read_text("utf-8").splitlines():
            json.loads(line)
        with contextlib.closing(Store(tmp_path / "other.db")) as other:
            assert len(other.import_(tmp_path / "all.jsonl")) == 1
    json.loads(run.snapshot().save(tmp_path / "saved.json").read_text("utf-8"))
    for table in (analysis.events, analysis.calls, analysis.messages, analysis.decisions):
        table(run).to_csv(tmp_path / "table.csv")
        assert len((tmp_path / "table.csv").read_text("utf-8")) > 1
    for figure in (analysis.timeline, analysis.approvals):
        figure(run).figure.savefig(tmp_path / "figure.svg")
        minidom.parse(str(tmp_path / "figure.svg"))
