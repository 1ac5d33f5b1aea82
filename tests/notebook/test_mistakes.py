"""Errors in the cells of a real kernel: what, where and what to do, on one screen; %tb shows the whole traceback."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.notebook.live_kernel import LiveKernel
from tests.notebook.test_headless import SETUP

MORE = """
from agentnb.core.errors import AgentnbError

class Breaks:
    async def stream(self, messages, **options):
        raise ValueError("the model broke")
        yield

class Divides(agentnb.Loop):
    phases = {"dividing": []}
    def advance(self, state):
        return 1 / 0

class GivesNoEvent(agentnb.Loop):
    def advance(self, state):
        return "go on"

class GivesNothing(agentnb.Loop):
    def advance(self, state):
        return None

class TakesNothing:
    def stream(self):
        return 5

class AllAtOnce:
    async def stream(self, messages, **options):
        return "an answer"

def takes_a_model(model: Breaks): ...

def model(*turns):
    return agentnb.SessionLoop(ScriptedLLM(turns), [write])

waiting = start("waiting")
await waiting.step("turn")
import tempfile
closed = agentnb.Store(tempfile.mkdtemp() + "/closed.db")
closed.close()
over = model("done").start("go")
await over
"""

MISTAKES = [
    ("waiting.approve('x')", "UnknownCall", "No call 'x' is waiting for a decision; waiting: w (write)."),
    ("waiting.edit('w', {'depth': 1})", "InvalidArguments", "path"),
    ("waiting.replace('w', 'red', {})", "UnknownCall", "There is no tool 'red'; the tools are write."),
    ("await waiting.step('line')", "UsageError", "event, call, turn, phase, not 'line'"),
    ("over.steer('left')", "UsageError", "The run has ended (completed)"),
    ("model('x').start('go', approve='yes')", "UsageError", "approve= must be True, False, a callable"),
    (
        "model('x').start('go', limits={'turn': 3})",
        "UsageError",
        "limits= has no limit 'turn'; the limits are calls, cost",
    ),
    ("agentnb.Store('/nowhere/runs.db')", "StorageError", "/nowhere/runs.db cannot be used as a store"),
    ("agentnb.restore('nowhere.json', model('x'))", "RecordingMissing", "There is no file nowhere.json"),
    ("agentnb.restore(over, agentnb.Agent(None))", "RecordingMismatch", "the given loop is of kind Agent"),
    ("agentnb.SessionLop(None)", "UnknownName", "has no attribute 'SessionLop'. Did you mean: 'SessionLoop'?"),
    ("agentnb.SessionLoop('gpt-5', [write])", "UsageError", "not a name. Pass agentnb.llms.OpenAI('gpt-5')"),
    ("agentnb.SessionLoop([write], ScriptedLLM([]))", "UsageError", "Pass the model first, then the list of"),
    ("agentnb.SessionLoop(None, write)", "UsageError", "Pass tools as a list, also a single tool: [write]."),
    (
        "await agentnb.SessionLoop(ScriptedLLM(['x']), [42]).start('go')",
        "UsageError",
        "42 is not a tool: pass a",
    ),
    ("await agentnb.SessionLoop(7, []).start('go')", "RunFailed", "int is not a model"),
    ("await agentnb.SessionLoop(TakesNothing(), []).start('go')", "RunFailed", "does not take the messages"),
    ("await agentnb.SessionLoop(AllAtOnce(), []).start('go')", "RunFailed", "must yield chunks, and this one returned"),
    ("await model().start('go')", "RunFailed", "The script has 0 turns; this is request 1."),
    ("agentnb.Agent(None, max_iterations='many')", "UsageError", "max_iterations must be None or a whole number"),
    (
        "agentnb.ExecutionLoop(None, [], confirm=5)",
        "UsageError",
        "confirm must be a function that takes the call, or None, not 5.",
    ),
    ("model('x').start('go', store='runs.db')", "UsageError", "Assign agentnb.Store('runs.db') to a variable"),
    ("model('x').start('go', name=5)", "UsageError", "name= takes the run's name, not 5."),
    ("model('x').start('go', limits=3)", "UsageError", 'limits= takes a mapping, for example {"turns": 5}, not 3.'),
    ("model('x').start('go', breakpoints='call')", "UsageError", "breakpoints= takes a list, not 'call'."),
    ("waiting.approve(7)", "UnknownCall", "No call 7 is waiting for a decision; waiting: w (write)."),
    ("waiting.reject('w', 5)", "UsageError", "reject(id, reason) takes a text, not 5."),
    ("waiting.result(timeout='soon')", "UsageError", "takes a number of seconds, or None, not 'soon'."),
    (
        "waiting.result(timeout=0.1)",
        "WaitTimeoutError",
        "It waits for a decision about write (run.pending).",
    ),
    ("waiting.at('first')", "UsageError", "The recording has the events 0 to 4, and no event 'first'."),
    ("waiting.fork(1, decision='reject', message='x')", "UsageError", "A fork changes one thing, not message and"),
    (
        "waiting.fork(1, prompt='x')",
        "UsageError",
        "fork() does not accept 'prompt'. Options of start() that it accepts: approve,",
    ),
    ("waiting.fork(1, arguments={'path': 'x'})", "UsageError", "the change needs an event about one call. Fork at its"),
    ("waiting.breakpoints.add('tool == \"w\"')", "UsageError", """Pass an expression as where='tool == "w"'."""),
    ("waiting.steer(5)", "UsageError", "A message to a run must be a string or a message, not 5."),
    ("waiting.panel(['buttons'])", "UsageError", "A panel has no part 'buttons'"),
    ("waiting.panel(parts='events')", "UsageError", "parts must be a list, also for a single part: ['events']."),
    (
        "waiting.snapshot().save('/nowhere/x.json')",
        "StorageError",
        "cannot be written to /nowhere/x.json: No such file",
    ),
    ("waiting.panel(5)", "UsageError", "parts must be a list, also for a single part: [5]."),
    ("agentnb.widgets.panel('w')", "UsageError", "run must be a run, got 'w'."),
    ("agentnb.Store(42)", "UsageError", "Store(path) takes the path of a file, not 42."),
    ("agentnb.Store('a\\0b')", "UsageError", "takes the path of a file, not 'a\\x00b'."),
    ("agentnb.Store('x' * 300)", "StorageError", "cannot be used as a store: File name too long."),
    (
        "model('x').start('go', store=closed)",
        "StorageError",
        "could not be written: Cannot operate on a closed",
    ),
    ("waiting.snapshot().save('.')", "UsageError", "save(path) takes the path of a file, not '.'."),
    ("waiting.queue('later', 'x')", "UsageError", "The queue must be one of input, steering, follow_up, not 'later'."),
    ("waiting.withdraw('later')", "UsageError", "The queue must be one of input, steering, follow_up, not 'later'."),
    ("waiting.fork(4, arguments=5)", "UsageError", "arguments= takes the arguments of the call, a dict, not 5."),
    ("agentnb.replay(waiting).snapshot()", "UsageError", "positioned before its first event, so it has no snapshot"),
    ("agentnb.tool(max)", "UsageError", "max are unknown, because it has no signature: wrap it in a function"),
    ("agentnb.SessionLoop(None, [], system_prompt=5)", "UsageError", "system_prompt must be a string or None, not 5."),
    ("agentnb.Agent(None, name=5)", "UsageError", "name must be a string, not 5."),
    ("agentnb.ExecutionLoop(None, [], output=5)", "UsageError", "output= takes a JSON schema, or a type that has one"),
    ("agentnb.ExecutionLoop(None, [], context=5)", "UsageError", "context= takes a list of messages, not 5."),
    ("agentnb.restore(42, model('x'))", "UsageError", "takes a snapshot, a run or the path of a file, not 42."),
    ("agentnb.restore(waiting, agentnb.Agent)", "UsageError", "takes the loop to continue with"),
    ("agentnb.replay('')", "UsageError", "takes the path of a file, not ''."),
    ("agentnb.replay(waiting, 'loop')", "UsageError", "takes a loop to compare with the recording, not 'loop'."),
    ("agentnb.replay(waiting).find(5)", "UsageError", "find(predicate) takes a function of (event, state), not 5."),
    ("agentnb.runs(5)", "UsageError", "takes the path of a file, not 5."),
    ("agentnb.notebook.step(run='w')", "UsageError", "run must be a run, got 'w'."),
    ("agentnb.tool('name')", "UsageError", "A tool is made from a function, not from 'name'."),
    ("agentnb.tool(approves=True)", "UsageError", "@tool has no option 'approves'; the options are name, description,"),
    ("agentnb.tool(takes_a_model)", "UsageError", "The tool takes_a_model cannot be described by a JSON schema"),
    ("agentnb.headless('maybe')", "UsageError", "'approve', 'reject', a callable or rules, not 'maybe'"),
    (
        "run = model('x').start('go', limits={'turns': 0})\nawait run",
        "LimitReached",
        "The limit of 0 turns is reached.",
    ),
    (
        "await GivesNoEvent().start('go')",
        "RunFailed",
        "gives_no_event.advance() must return an event (agentnb.core.events), not 'go on'.",
    ),
    (
        "await GivesNothing().start('go')",
        "RunFailed",
        "gives_nothing.advance() returned None, but no detached call is running",
    ),
    (
        "from agentnb.llms import OpenAI\nawait agentnb.SessionLoop(OpenAI('m'), []).start('go')",
        "RunFailed",
        "set the environment variable OPENAI_API_KEY",
    ),
]


@pytest.fixture(scope="module")
def cells(newest: LiveKernel) -> LiveKernel:
    newest.run(f"import os; os.environ.pop('OPENAI_API_KEY', None)\n{SETUP}")
    newest.run(MORE)
    return newest


@pytest.mark.parametrize(("cell", "name", "words"), MISTAKES, ids=[cell for cell, _, _ in MISTAKES])
def test_an_error_is_shown_on_one_screen(cells: LiveKernel, cell: str, name: str, words: str) -> None:
    ename, shown = cells.fails(cell)
    assert ename == name
    assert words in shown
    assert f"{name}: " in shown
    assert re.search(r"Cell In\[\d+\], line \d", shown)
    assert f"----> {cell.splitlines()[-1]}" in re.sub(r"> +\d+ ", "> ", shown)
    assert "agentnb/" not in shown
    assert "/lib/python" not in shown
    assert "%tb" in shown
    assert len(shown.splitlines()) < 20


def test_the_whole_traceback_is_shown_by_tb_and_by_the_environment(cells: LiveKernel) -> None:
    _, short = cells.fails("waiting.approve('x')")
    tb = cells.send("%tb")
    assert cells.reply(tb)["status"] in ("ok", "error")
    cells.until(lambda: bool(cells.of(tb, "error")))
    whole: Any = "\n".join(cells.of(tb, "error")[0]["traceback"])
    assert "decisions.py" in whole
    assert "decisions.py" not in short
    cells.run("os.environ['AGENTNB_TRACEBACK'] = 'full'")
    assert "decisions.py" in cells.fails("waiting.approve('x')")[1]
    cells.run("del os.environ['AGENTNB_TRACEBACK']")
    assert "decisions.py" not in cells.fails("waiting.approve('x')")[1]


def test_a_model_or_a_loop_that_fails_shows_its_own_frames(cells: LiveKernel) -> None:
    name, shown = cells.fails("await agentnb.SessionLoop(Breaks(), []).start('go')")
    assert name == "RunFailed"
    assert re.search(r"in stream\n(.*\n)*?----> +\d+ +raise ValueError", shown)
    assert "ValueError: the model broke" in shown
    assert "run.resume() asks again" in shown
    assert "agentnb/" not in shown
    _, shown = cells.fails("await Divides().start('go')")
    assert re.search(r"in advance\n(.*\n)*?----> +\d+ +return 1 / 0", shown)
    assert "ZeroDivisionError: division by zero" in shown


def test_the_error_of_a_tool_reaches_the_model_and_its_event_has_the_traceback(cells: LiveKernel) -> None:
    cells.run(
        "@agentnb.tool\ndef fails():\n    'Fail.'\n    return {}['key']\n"
        "run = agentnb.SessionLoop(ScriptedLLM([[call('fails')], 'done']), [fails]).start('go')\nawait run"
    )
    said = cells.run("print([event.error.traceback for event in run.events if event.type == 'call_end'][0])")
    assert "return {}['key']" in said


def test_an_error_in_agentnb_is_shown_with_its_frames(cells: LiveKernel) -> None:
    cells.run(
        "import agentnb.run.loop_executor\nkept = agentnb.run.loop_executor.LoopExecutor.required_effects\n"
        "def broken(self): return self.frame.nothing\nbroken.__code__ = broken.__code__.replace("
        "co_filename=agentnb.run.loop_executor.__file__)\n"
        "agentnb.run.loop_executor.LoopExecutor.required_effects = broken"
    )
    _, shown = cells.fails("await model('x').start('go')")
    cells.run("agentnb.run.loop_executor.LoopExecutor.required_effects = kept")
    assert "AttributeError" in shown
    assert "loop_executor.py" in shown


def test_errors_of_other_packages_are_shown_as_usual(cells: LiveKernel) -> None:
    name, shown = cells.fails("import json\njson.loads('{')")
    assert name == "JSONDecodeError"
    assert "json/decoder.py" in shown


def test_control_characters_in_the_text_of_an_error_are_escaped(cells: LiveKernel) -> None:
    _, shown = cells.fails("raise AgentnbError('\\x1b[2Jgone')")
    assert "␛[2Jgone" in shown
