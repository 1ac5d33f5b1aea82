"""The APIs of the designs in the cells of a real kernel, where runs use a separate thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebook.live_kernel import LiveKernel

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def cells(kernel: LiveKernel) -> LiveKernel:
    kernel.run(f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.designs import *")
    return kernel


def test_a_loop_agent_is_read_by_async_for(cells: LiveKernel) -> None:
    cells.run("from agentnb.loops.loop_agent import InvocationContext\nctx = InvocationContext(is_resumable=True)")
    cells.run("said = [event.text async for event in loop_agent().run_async(ctx) if event.text]")
    said = cells.run("print(said, ctx.end_of_agents)").strip()
    assert said == f"{['first one', 'first two', 'second one', 'second two'] * 2} {{'loop_agent': True}}"


def test_an_engine_is_paused_in_one_cell_and_resumed_in_the_next(cells: LiveKernel) -> None:
    cells.run("from agentnb.loops.conversation_engine import EngineEventType\ntold = engine()\nsaid = told.run('go')")
    cells.run("async for event in said:\n    if event.event_type == EngineEventType.TASK_STARTED: break")
    assert cells.run("print(told.pause(), told.state.value)").strip() == "True paused"
    cells.run("while (await anext(said)).event_type != EngineEventType.ENGINE_PAUSED: pass")
    cells.run("told.resume()\nrest = [event.event_type.value async for event in said]")
    assert cells.run("print(rest[-1], told.state.value)").strip() == "engine_completed completed"


def test_an_agent_is_read_by_async_for(cells: LiveKernel) -> None:
    cells.run("types = [event.type.value async for event in agent().execute('go', approve=True)]")
    assert cells.run("print(types[0], types[-1])").strip() == "iteration_start agent_finish"


def test_an_execution_loop_is_read_by_async_for_while_a_call_waits_for_a_person(cells: LiveKernel) -> None:
    cells.run(
        "loop = execution()\nstream = loop.run('go')\nstream.run.watch("
        "lambda e: e.type == 'approval_request' and stream.run.approve(e.call_id))"
    )
    cells.run("types = [event.type async for event in stream]")
    assert cells.run("print(types[-1], loop.output)").strip() == "loop_completed solved"


def test_nested_loops_run_in_the_background_of_a_cell(cells: LiveKernel) -> None:
    cells.run("run = loop_of_loops().start('go', approve=True); run.play()")
    assert cells.run("print(run.result(timeout=20), run.stop_reason)").strip() == "leaves two max_iterations"
