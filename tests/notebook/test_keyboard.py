"""Decisions if no page shows the question: with a keyboard and without one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pexpect
import psutil
import pytest
from jupyter_client.manager import KernelManager

from tests.kernels import REPOSITORY
from tests.notebook.live_kernel import LiveKernel

pytestmark = pytest.mark.kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import agentnb
from agentnb.testing import ScriptedLLM, call

ran = []

@agentnb.tool(approve=True)
def write(path: str) -> str:
    ran.append(path)
    return f"wrote {path}"

def start(*, path="a\\x1b[2J.txt"):
    llm = ScriptedLLM([[call("write", {"path": path}, id="w")], "It is over."])
    return agentnb.SessionLoop(llm, [write]).start("go")
"""
IPYTHON = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
CONSOLE = ["-m", "jupyter_console", "--simple-prompt", "--JupyterConsoleApp.confirm_exit=False"]
IMPATIENT = "import agentnb.notebook.keyboard as keyboard; keyboard.SILENT = keyboard.UNSEEN = 0.3"
QUESTION = r"\[y\]es, \[n\]o, \[e\]dit: "
PROMPT = r"In \[\d+\]: "


class Terminal:
    """A shell in a terminal, driven as a person does."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        (folder / "setup.py").write_text(SETUP)
        own = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR")
        places = {name: str(folder) for name in own} | {"PYTHONPATH": str(REPOSITORY), "TERM": "dumb"}
        self.child: Any = pexpect.spawn(
            sys.executable, arguments, env=os.environ | places, encoding="utf-8", timeout=60, cwd=folder
        )
        self.child.expect(PROMPT)
        self.type("%run -i setup.py")
        self.child.expect(PROMPT)

    def type(self, line: str) -> None:
        self.child.sendline(line)

    def ask(self, line: str) -> str:
        """Type a line that leads to a question; return the question."""
        self.type(line)
        self.child.expect(QUESTION)
        return str(self.child.before)

    def interrupt(self) -> None:
        """Press Ctrl-C once the shell reads: Python does not notice it between a question and reading the answer."""
        while psutil.Process(self.child.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.001)
        self.child.sendintr()

    def says(self, line: str) -> str:
        """Type a line; return the output of the shell."""
        self.type(line)
        self.child.expect(r"<(.*)>\r\n")
        said = str(self.child.match[1])
        self.child.expect(PROMPT)
        return said

    def goes_on(self, text: str = "It is over.") -> None:
        """Wait for the text and the next prompt."""
        self.child.expect_exact(text)
        self.child.expect(PROMPT)


@pytest.fixture(scope="module", params=[IPYTHON, CONSOLE], ids=["IPython", "jupyter console"])
def terminal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    terminal = Terminal(request.param, tmp_path_factory.mktemp("terminal"))
    yield terminal
    terminal.child.close(force=True)


@pytest.mark.parametrize("waiting", ["run = start(); await run", "run = start(); run.result()"])
def test_a_line_that_waits_asks_for_a_decision_and_applies_it(terminal: Terminal, waiting: str) -> None:
    decided = "print('<', [e.decision for e in run.events if e.type == 'approval_decision'], ran[-1:], '>')"
    question = terminal.ask(waiting)
    assert "write asks before every call" in question
    assert "\x1b[2J" not in question, "what a model says does not reach the terminal as an order"
    terminal.type("y")
    terminal.goes_on()
    assert "['approve'] ['a" in terminal.says(decided)
    terminal.ask(waiting)
    terminal.type("n not there")
    terminal.goes_on()
    assert "['reject']" in terminal.says(decided)
    assert "not there" in terminal.says("print('<', run.messages[2].content, '>')")
    terminal.ask(waiting)
    terminal.type('e {"path": 5}')
    terminal.child.expect(QUESTION)  # they are invalid, and it asks again
    terminal.type('e {"path": "b.txt"}')
    terminal.goes_on()
    assert "['edit'] ['b.txt']" in terminal.says(decided)


def assert_that_typed_ahead_answers_nothing(terminal: Terminal) -> None:
    terminal.type("run = start(); run.result()")
    terminal.type("y")
    terminal.type("y")
    terminal.child.expect(QUESTION)
    time.sleep(0.5)  # a person takes longer than this to answer
    terminal.type("n not there")
    terminal.goes_on()
    decided = "print('<', [(e.decision, e.by) for e in run.events if e.type == 'approval_decision'], '>')"
    assert "[('reject', 'human')]" in terminal.says(decided)


def test_input_typed_before_a_question_is_shown_does_not_answer_it(terminal: Terminal) -> None:
    assert_that_typed_ahead_answers_nothing(terminal)


def test_input_typed_in_advance_in_a_later_console_does_not_answer_a_question(tmp_path: Path) -> None:
    file = tmp_path / "kernel.json"
    manager = KernelManager(connection_file=str(file))
    manager.start_kernel(cwd=str(tmp_path), env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
    console = None
    try:
        console = Terminal([*CONSOLE, "--existing", str(file)], tmp_path)
        assert_that_typed_ahead_answers_nothing(console)
    finally:
        if console is not None:
            console.child.close(force=True)
        manager.shutdown_kernel(now=True)


def test_a_decision_by_keyboard_has_the_name_of_the_person_and_the_time(terminal: Terminal) -> None:
    terminal.says("agentnb.reviewer('Ana'); print('<', 'named', '>')")
    terminal.ask("run = start(); run.result()")
    time.sleep(0.3)
    terminal.type("y")
    terminal.goes_on()
    made = "e = next(e for e in run.events if e.type == 'approval_decision'); "
    told = terminal.says(f"{made}print('<', e.by, e.reviewer, 0.2 < e.seconds < 20, len(e.shown), '>')")
    assert "human Ana True 64" in told
    terminal.says("agentnb.reviewer(None); print('<', 'unnamed', '>')")


@pytest.mark.parametrize("waiting", ["run = start(); await run", "run = start(); run.result()"])
def test_the_end_of_the_input_rejects_and_an_interrupt_cancels_the_run(terminal: Terminal, waiting: str) -> None:
    terminal.ask(waiting)
    terminal.child.sendeof()
    terminal.goes_on()
    assert "nobody answered" in terminal.says("print('<', run.messages[2].content, '>')")
    terminal.ask(waiting)
    terminal.interrupt()
    terminal.child.expect("CancelledError|KeyboardInterrupt")
    terminal.child.expect(PROMPT)
    assert "cancelled" in terminal.says("print('<', run.stop_reason, '>')")


def test_a_background_run_of_a_shell_asks_at_the_next_prompt(terminal: Terminal) -> None:
    terminal.says("run = start(); await run.step('turn'); print('< stepped >')")
    assert "['w']" in terminal.says("run.play(); print('<', [call.id for call in run.pending], '>')")
    assert "It is over." in terminal.says("run.approve('w'); print('<', run.result(10), '>')")


@pytest.mark.parametrize("waiting", ["await run", "run.result()", "[event async for event in run]"])
def test_without_a_page_and_a_keyboard_a_message_says_what_to_do(kernel: LiveKernel, waiting: str) -> None:
    kernel.run(SETUP)
    kernel.run(IMPATIENT)
    kernel.run("run = start(path='a.txt'); run.play()")
    reply = kernel.reply(kernel.send(waiting, allow_stdin=False))
    assert reply["ename"] == "UsageError"
    assert "run.approve('w')" in reply["evalue"]
    kernel.run("run.approve('w')")
    assert kernel.run("print(run.result(10), ran)").strip() == "It is over. ['a.txt']"


@pytest.mark.parametrize("waiting", ["await run", "run.result()"])
def test_without_a_gate_an_input_field_asks_even_if_a_page_is_open(kernel: LiveKernel, waiting: str) -> None:
    kernel.run(SETUP + IMPATIENT)
    kernel.run("from agentnb.notebook.comm_gate import comm_gate, Mechanism; gate = comm_gate()")
    panel = kernel.run("run = start(path='a.txt'); print(run.panel().model_id)").strip()
    sync = kernel.comm(panel, {"method": "custom", "content": {"type": "sync", "have": 0}})
    kernel.until(lambda: kernel.is_idle(sync))
    kernel.run("before, gate._mechanism = gate._mechanism, Mechanism.NATIVE")
    cell = kernel.client.execute(f"print({waiting})", allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=20)
    kernel.client.input("y")
    assert kernel.reply(cell)["status"] == "ok"
    kernel.until_printed(cell, "It is over.")
    kernel.run("gate._mechanism = before")


def test_an_input_field_asks_if_the_page_draws_no_widgets(kernel: LiveKernel) -> None:
    kernel.run(SETUP)
    cell = kernel.client.execute("print(await start(path='a.txt'), ran)", allow_stdin=True)
    request = kernel.client.get_stdin_msg(timeout=20)
    assert '"path": "a.txt"' in request["content"]["prompt"]
    kernel.client.input("y")
    assert kernel.reply(cell)["status"] == "ok"
    kernel.until_printed(cell, "It is over. ['a.txt']")
