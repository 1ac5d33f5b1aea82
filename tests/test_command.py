"""`python -m agentnb`: recordings from a shell."""

from __future__ import annotations

import json
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentnb import SessionLoop, Store
from agentnb.__main__ import main
from agentnb.testing import ScriptedLLM
from tests.importers.files import CHAT, INSPECT_EVENTS, document, inspect_log, inspect_sample, written

Ran = tuple[int, str, str]
Command = Callable[..., Ran]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a command in this process: its exit code, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)

    def run(*words: object) -> Ran:
        opened.clear()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        told = capsys.readouterr()
        return code, told.out + "".join(f"browser: {address}\n" for address in opened), told.err

    return run


async def stored(folder: Path, *answers: str) -> Path:
    """Return the path of a store with a run for each answer."""
    with closing(Store(folder / "runs.db")) as store:
        for answer in answers:
            await SessionLoop(ScriptedLLM([answer])).start("Hi", name=answer, store=store, tags=["greeting"])
    return folder / "runs.db"


def test_a_process_prints_an_error_in_one_line() -> None:
    words = [sys.executable, "-m", "agentnb", "open", "nowhere.json"]
    failed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("agentnb: There is no file nowhere.json")
    assert failed.stderr.count("\n") == 1


def test_the_help_names_the_commands(command: Command) -> None:
    code, out, _ = command("--help")
    assert code == 0
    assert all(name in out for name in ("open", "verify", "export", "ls"))


def test_open_writes_a_page_and_opens_it(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, "messages of OpenAI")
    code, out, err = command("open", path)
    page = Path(out.splitlines()[0])
    assert (code, err) == (0, "")
    assert out == f"{page}\nbrowser: {page.as_uri()}\n"
    assert page.read_text().startswith("<!doctype html>")
    assert page.parent.stat().st_mode & 0o077 == 0  # what models said is for this user only


def test_open_writes_to_a_given_path_without_a_browser(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, "messages of OpenAI")
    assert command("open", path, "-o", tmp_path / "it.html", "--no-browser") == (0, f"{tmp_path / 'it.html'}\n", "")
    code, _, err = command("open", path, "-o", tmp_path / "nowhere" / "it.html", "--no-browser")
    assert code == 2
    assert err.count("\n") == 1


async def test_open_takes_one_run_of_a_store_or_of_a_file_with_several(command: Command, tmp_path: Path) -> None:
    store = await stored(tmp_path, "one", "two")
    code, _, err = command("open", store, "--no-browser")
    assert code == 2
    assert "2 recordings: two, one. Choose one with --run NAME." in err
    assert command("open", store, "--run", "one", "--no-browser")[0] == 0
    assert command("open", store, "--run", "three", "--no-browser")[0] == 1
    log = tmp_path / "log.json"
    log.write_bytes(document(inspect_log(inspect_sample(INSPECT_EVENTS), inspect_sample(INSPECT_EVENTS))))
    code, _, err = command("open", log, "--no-browser")
    assert (code, "2 recordings: log 1 epoch 1, log 1 epoch 1#2." in err) == (2, True)
    assert command("open", log, "--run", "log 1 epoch 1#2", "--no-browser")[0] == 0
    code, _, err = command("open", log, "--run", "log#3", "--no-browser")
    assert (code, "no recording 'log#3'. It has: log 1 epoch 1, log 1 epoch 1#2." in err) == (2, True)


async def test_verify_names_what_a_file_is_and_what_was_not_carried(command: Command, tmp_path: Path) -> None:
    run = SessionLoop(ScriptedLLM(["Hello."])).start("Hi")
    await run
    saved = run.snapshot().save(tmp_path / "run.json")
    sample = inspect_sample([*INSPECT_EVENTS, {"event": "sandbox"}, {"event": "sandbox"}])
    (tmp_path / "log.json").write_bytes(document(inspect_log(sample)))
    store = await stored(tmp_path, "one")
    with closing(Store(store)) as opened:
        events = opened.export(tmp_path / "runs.jsonl")
    code, out, err = command("verify", saved, tmp_path / "log.json", store, tmp_path / "runs.jsonl")
    told = [line.removeprefix(f"{tmp_path}/") for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert told == [
        f"run.json: a snapshot, unchanged: {len(run.events)} events",
        "log.json: Inspect: 9 events; not carried: events of type sandbox (2)",
        f"runs.db: a store, intact: 1 run, {events} events",
        f"runs.jsonl: an export, unchanged: 1 run, {events} events",
    ]


async def test_verify_fails_for_a_changed_file_and_checks_the_others(command: Command, tmp_path: Path) -> None:
    run = SessionLoop(ScriptedLLM(["Hello."])).start("Hi")
    await run
    saved = run.snapshot().save(tmp_path / "a.json")
    saved.write_bytes(saved.read_bytes().replace(b"Hello.", b"Hullo."))
    (tmp_path / "b.jsonl").write_text(json.dumps(CHAT[1]) + "\n{oh\n" + json.dumps(CHAT[4]) + "\n")
    code, out, err = command("verify", tmp_path)
    assert code == 1
    assert "b.jsonl: chat messages: 4 events; not carried: damaged lines (1)" in out
    changed, damaged = err.splitlines()
    assert "a.json was changed after it was written: line" in changed
    assert "b.jsonl: a part is damaged and left out: line 2" in damaged
    assert command("verify", tmp_path / "b.jsonl")[0] == 1


def test_export_writes_another_format_and_says_what_is_not_carried(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, "OpenTelemetry")
    code, out, err = command("export", path, tmp_path / "out.json", "--format", "atif")
    assert (code, err) == (0, "")
    assert out == f"{tmp_path / 'out.json'} (ATIF); not carried: times of calls (1), times of requests (2)\n"
    assert command("verify", tmp_path / "out.json")[1].endswith("out.json: ATIF: 8 events\n")
    assert command("export", path, tmp_path / "out.json", "--format", "csv")[0] == 2
    assert command("export", path, tmp_path / "nowhere" / "out.json", "--format", "atif")[0] == 1


async def test_ls_lists_a_folder_a_store_and_a_file(command: Command, tmp_path: Path) -> None:
    written(tmp_path, "ATIF")
    (tmp_path / "notes.txt").write_text("no recording")
    store = await stored(tmp_path, "one", "two")
    code, out, err = command("ls")
    assert (code, err) == (0, "")
    heads, *rows = [line.split() for line in out.splitlines()]
    assert heads == ["file", "run", "format", "events", "stop", "reason", "began"]
    assert [row[:3] for row in rows] == [["runs.db", "store", rows[0][2]], ["trajectory.json", "trajectory", "ATIF"]]
    assert rows[1][-2:] == ["2026-01-01", "10:00"]
    code, out, _ = command("ls", store)
    assert [line.split()[0] for line in out.splitlines()] == ["run", "two", "one"]
    assert "greeting" in out
    assert command("ls", tmp_path / "notes.txt")[0] == 1
    assert command("ls", tmp_path / "nowhere")[0] == 1


def test_ls_of_a_folder_without_recordings_names_the_pattern_for_its_folders(command: Command, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "chat.json").write_text('[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]')
    pattern = str(tmp_path / "**" / "*")
    assert pattern in command("ls", tmp_path)[2]
    (tmp_path / "notes.txt").write_text("notes")
    assert pattern in command("ls", tmp_path)[2]
    assert "chat.json" in command("ls", pattern)[1]


def test_a_wrong_command_is_refused_with_code_2(command: Command) -> None:
    assert command()[0] == 2
    assert command("delete", "x")[0] == 2
    assert command("open")[0] == 2
