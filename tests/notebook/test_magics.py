"""The magics in a real kernel: help, completion as JupyterLab requests it, and messages about bad input."""

from __future__ import annotations

import gc
import re
import time
from pathlib import Path
from typing import Any

import pytest

from agentnb import SessionLoop, notebook
from agentnb.run import latest_run
from agentnb.testing import ScriptedLLM
from tests.notebook.live_kernel import PATIENCE, LiveKernel, left
from tests.notebook.test_headless import SETUP

MAGICS = ("step", "pause", "resume", "snapshot", "restore", "replay", "runs")


@pytest.fixture(scope="module")
def cells(newest: LiveKernel, tmp_path_factory: pytest.TempPathFactory) -> LiveKernel:
    """Give a kernel with the magics, a store, a snapshot, and a run that waits."""
    newest.run(f"%cd -q {tmp_path_factory.mktemp('magics')}\n{SETUP}\n%load_ext agentnb")
    newest.run(
        "store = agentnb.Store('runs.db')\nloop = agentnb.SessionLoop(ScriptedLLM(['one', 'two']), [write])\n"
        "kept = loop.start('go', name='kept-one', store=store)\nawait kept.step()\nkept.snapshot('half way')\n"
        "run = start('waiting')\nawait run.step('turn')\nrun.snapshot().save('before.agentnb.json')"
    )
    return newest


def completed(kernel: LiveKernel, line: str) -> list[str]:
    """Return the completions that a front end offers after a line."""
    sent = kernel.client.complete(line, len(line))
    deadline = time.monotonic() + PATIENCE
    while True:
        message = kernel.client.get_shell_msg(timeout=left(deadline))
        if message["parent_header"].get("msg_id") == sent:
            content = message["content"]
            return [line[: content["cursor_start"]] + match for match in content["matches"]]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%step ", ["event", "call", "turn", "phase"]),
        ("%step t", ["turn"]),
        ("%restore ", ["before", "half way", "kept-one"]),
        ("%restore kept", ["kept-one"]),
        ("%restore before ", ["loop"]),
        ("%replay kept", ["kept-one"]),
        ("%runs ru", ["runs.db"]),
        ("%runs st", ["store"]),
        ("events = %step p", []),
    ],
)
def test_completion_offers_units_and_names(cells: LiveKernel, line: str, offered: list[str]) -> None:
    found = completed(cells, line)
    head = line[: len(line) - len(line.split(" ")[-1])]
    assert {f"{head}{one}" for one in offered} <= set(found)
    if offered and not line.endswith(" "):
        assert found == [f"{head}{one}" for one in offered]


def test_completion_offers_the_magics(cells: LiveKernel) -> None:
    assert "%snapshot" in completed(cells, "%snap")


@pytest.mark.parametrize("magic", MAGICS)
def test_a_question_mark_shows_help(cells: LiveKernel, magic: str) -> None:
    sent = cells.send(f"%{magic}?")
    (page,) = cells.reply(sent)["payload"]
    text = re.sub("\x1b\\[[0-9;]*m", "", page["data"]["text/plain"])
    assert f"agentnb.{'runs(' if magic == 'runs' else f'notebook.{magic}('}" in text
    assert "  %" in text or magic in ("pause", "resume")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%step backwards", "UsageError: %step takes event, call, turn, phase, not 'backwards'."),
        ("%pause now", "UsageError: %pause takes no argument, got 'now'."),
        ("%resume now", "UsageError: %resume takes no argument, got 'now'."),
        ("%snapshot", "UsageError: %snapshot takes a file name without a folder"),
        ("%snapshot ../up", "UsageError: %snapshot takes a file name without a folder"),
        ("%restore", "Names: before, half way, kept-one."),
        ("%replay", "Names: before, half way, kept-one."),
        ("%replay nothing", "UsageError: There is no snapshot 'nothing'"),
        ("%restore nothing", "UsageError: There is no snapshot 'nothing'"),
        ("%restore before lop", "UsageError: 'lop' is not the variable of a loop; loops here: loop."),
        ("%runs nowhere.db", "RecordingMissing: There is no store nowhere.db; stores here: "),
    ],
)
def test_a_message_about_bad_input_says_what_was_wrong_and_what_is_possible(
    cells: LiveKernel, line: str, said: str
) -> None:
    _, shown = cells.fails(line)
    assert said in shown
    assert len(shown.splitlines()) == 1


def test_a_name_may_have_several_words(cells: LiveKernel) -> None:
    for line in ("%restore half way", "%restore half way loop"):
        assert cells.run(f"run = None\n{line}\nprint(run.name)").split()[-1] == "kept-one"


def test_a_step_prints_a_line_for_each_event_as_the_panel_shows_it(cells: LiveKernel) -> None:
    cells.run("run = start('the panel has it')\nawait run.step('event')")
    told = cells.run("events = %step turn").splitlines()
    assert told[:3] == [
        "    1 message           user: go",
        "    2 model_start       turn 1, scripted script",
        '    3 model_end         → write(path="a.txt")',
    ]
    assert told[-1] == "waiting for you: write (w)"
    cells.run("run.approve('w')")
    assert cells.run("%step turn").splitlines() == [
        "    5 approval_decision write approved by code",
        '    6 call_start        write(path="a.txt")',
        "    7 call_end          write returned: wrote a.txt",
    ]
    assert cells.run("print([event.seq for event in events])").strip() == "[1, 2, 3, 4]"
    cells.run("run.cancel()")


def test_the_line_of_a_step_is_cut_and_has_no_control_characters(cells: LiveKernel) -> None:
    said = "\x1b[31mred\nand " + "long " * 200
    cells.run(f"run = agentnb.SessionLoop(ScriptedLLM([{said!r}])).start('go')")
    (line,) = [line for line in cells.run("%step turn").splitlines() if "model_end" in line]
    assert line.startswith("    3 model_end         ␛[31mred and long long")
    assert line.endswith("…")
    assert len(line) == 100


def test_the_line_of_a_step_names_the_nested_loop(cells: LiveKernel) -> None:
    cells.run(
        "inner = agentnb.SessionLoop(ScriptedLLM(['found']), name='searcher')\n"
        "run = agentnb.LoopAgent('research', [inner], max_iterations=1).start('go')"
    )
    told = cells.run("%step turn").splitlines()
    assert '    4 run_start         in searcher SessionLoop searcher: [{"role":"user","content":"go"}]' in told
    assert "    7 model_end         in searcher found" in told


async def test_restore_uses_the_loop_of_the_run_without_a_variable(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run = SessionLoop(ScriptedLLM(["one", "two"])).start("go")
    await run.step("event")
    notebook.snapshot("begun", run)
    again = notebook.restore("begun")
    assert again is not run
    assert (await run, await again) == ("one", "one")


def test_restore_accepts_the_path_of_a_file(cells: LiveKernel) -> None:
    cells.run("agentnb.Snapshot.load('before.agentnb.json').save('elsewhere.json')")
    for path in ("before.agentnb.json", "elsewhere.json"):
        assert cells.run(f"run = None\n%restore {path} loop\nprint(run.phase)").strip() == "acting"


@pytest.mark.parametrize("called", ["run.name", "run.id"])
def test_replay_accepts_the_name_or_id_of_a_run_of_this_kernel(cells: LiveKernel, called: str) -> None:
    cells.run("run = start('in no store')\nawait run.step('turn')")
    assert cells.run(f"%replay {{{called}}}\nprint(f'0 of {{len(run.events)}}' in str(recording))").strip() == "True"
    cells.run("run.cancel()")


@pytest.mark.parametrize("variable", ["run", "taken"])
def test_replay_accepts_a_variable_with_a_run_or_a_snapshot(cells: LiveKernel, variable: str) -> None:
    cells.run("run = start('in a variable')\nawait run.step('turn')\ntaken = run.snapshot('unnamed in any store')")
    walked = f"%replay {variable}\nprint(f'0 of {{len(run.events)}}' in str(recording))"
    assert cells.run(walked).strip() == "True"
    gone_on = (
        f"before = run\n%restore {variable} loop\nprint(run is not before, run.phase, run.cancel(), before.cancel())"
    )
    assert cells.run(gone_on).strip() == "True acting True True"


def test_a_recorded_name_takes_precedence_over_a_variable(cells: LiveKernel) -> None:
    cells.run("before = start('shadows')")
    assert cells.run("%replay before\nprint(recording.name == 'shadows')").strip() == "False"
    cells.run("before.cancel()")


def test_a_magic_prints_the_status_of_the_run_and_what_to_do(cells: LiveKernel) -> None:
    cells.run("run = start('asks')\nawait run.step('turn')")
    assert cells.run("%step").strip() == (
        "waiting for you: write (w); decide in its panel, or with run.approve(id), reject, edit or replace"
    )
    assert cells.run("%resume").strip() == "asks (SessionLoop): waiting for you: write"
    cells.run("run.approve('w')\nawait run")
    assert cells.run("%step").strip() == "no more steps: asks (SessionLoop): completed"
    assert cells.run("%runs").strip() == "current: asks (SessionLoop): completed"


def test_without_the_newest_run_the_one_before_it_is_the_current_run() -> None:
    kept = SessionLoop(ScriptedLLM(["one"])).start("kept")
    SessionLoop(ScriptedLLM(["two"])).start("gone")
    gc.collect()
    assert latest_run() is kept


def test_each_magic_is_also_a_function(cells: LiveKernel) -> None:
    cells.run("from agentnb import notebook\nrun = start('by functions')")
    assert cells.run("print([event.type for event in notebook.step('turn')][-1])").strip() == "approval_request"
    assert cells.run("print(notebook.snapshot('here').position == len(run.events), notebook.pause())").strip() == (
        "True False"
    )
    assert Path(cells.run("import os; print(os.path.abspath('here.agentnb.json'))").strip()).exists()
    cells.run(
        "again = notebook.restore('here', agentnb.SessionLoop(ScriptedLLM(['two']), [write]))\nagain.approve('w')"
    )
    assert cells.run("print(notebook.resume(again) is again, await again)").strip() == "True two"
    assert "by functions" in cells.run("print(notebook.runs())")


def test_a_recording_is_stepped_through_without_performing_anything(cells: LiveKernel) -> None:
    cells.run("run = start('to be replayed')\nawait run.step('turn')")
    cells.run("%snapshot walked")
    cells.run("%replay walked loop")
    assert "0 of " in cells.run("print(recording)")
    walked = cells.run(
        "events = recording.step('turn')\n"
        "print(len(events) == recording.position, [item.id for item in recording.pending])\n"
        "recording.back('turn')\nprint(recording.position)"
    )
    assert walked.split("\n")[:2] == ["True ['w']", "0"]
    cells.run("run.cancel()")


def test_unloading_the_extension_removes_the_magics(cells: LiveKernel) -> None:
    cells.run("%unload_ext agentnb")
    assert "%step turn" not in completed(cells, "%step t")
    cells.run("%load_ext agentnb")
    assert completed(cells, "%step t") == ["%step turn"]
