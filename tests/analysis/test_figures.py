"""Figures: one call each, the axes are returned, and pyplot is never touched."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentnb import SessionLoop, UsageError
from agentnb.analysis import approvals, dwell_times, latency, timeline, tokens
from agentnb.testing import ScriptedLLM
from tests.analysis.recordings import decided_run
from tests.designs import WORLDS

FIGURES = {figure.__name__: figure for figure in (approvals, dwell_times, latency, timeline, tokens)}
every_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=list(FIGURES))
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def run() -> Any:
    return asyncio.run(decided_run())


def labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def key(axes: Axes) -> set[str]:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


@every_figure
def test_it_returns_axes_on_a_figure_that_shows_itself(run: Any, figure: Callable[..., Axes]) -> None:
    axes = figure(run)
    assert isinstance(axes, Axes)
    assert axes.figure._repr_png_().startswith(PNG)  # type: ignore[union-attr]


@every_figure
def test_it_is_drawn_where_you_say(run: Any, figure: Callable[..., Axes]) -> None:
    mine = Figure().subplots()
    assert figure(run, axes=mine) is mine


@pytest.mark.parametrize("figure", [timeline, dwell_times])  # what differs between designs; the others count
@every_world
async def test_it_draws_every_design(world: Callable[[], Any], figure: Callable[..., Axes]) -> None:
    run = world().start("go", approve=True)
    await run
    drawn = figure(run).figure
    assert isinstance(drawn, Figure)
    drawn.draw_without_rendering()


@every_figure
async def test_it_draws_a_run_that_has_hardly_begun(figure: Callable[..., Axes]) -> None:
    run = SessionLoop(ScriptedLLM(["hello"])).start("go")
    await run.step()
    assert figure(run).figure._repr_png_().startswith(PNG)  # type: ignore[union-attr]


def test_a_timeline_has_a_row_for_the_model_and_for_each_call(run: Any) -> None:
    axes = timeline(run)
    assert labels(axes) == ["model", "read", "read", "write", "write", "write", "write"]
    assert key(axes) == {"model", "tool", "waiting", "failed"}


def test_a_timeline_is_of_one_recording(run: Any) -> None:
    with pytest.raises(UsageError, match="One recording"):
        timeline([run, run])


def test_dwell_times_add_up_to_how_long_the_run_took(run: Any) -> None:
    axes = dwell_times(run)
    widths = sum(bar.get_width() for bar in axes.patches)
    assert labels(axes) == ["researcher"]
    assert widths == pytest.approx(run.events[-1].time - run.events[0].time, rel=0.01)


def test_tokens_are_added_up_request_by_request(run: Any) -> None:
    lines = {str(line.get_label()): list(line.get_ydata()) for line in tokens(run).lines}
    assert lines["read"] == [100, 300, 600]
    assert lines["written"] == [20, 60, 70]
    (costs,) = [other for other in tokens(run).figure.axes if other.get_ylabel() == "cost"]
    assert list(costs.lines[0].get_ydata()) == pytest.approx([0.01, 0.03, 0.06])


def test_latency_has_a_dot_for_each_request_and_call(run: Any) -> None:
    assert labels(latency(run)) == ["model (3)", "read (2)", "write (3)"]  # one was rejected, and never ran


def test_approvals_are_counted_by_tool_and_decision(run: Any) -> None:
    axes = approvals(run)
    assert labels(axes)[0].startswith("write (")
    assert sum(bar.get_width() for bar in axes.patches) == 4
    assert key(axes) == {"approve", "reject", "edit"}


def test_runs_are_told_apart_in_a_figure_of_several(run: Any) -> None:
    assert labels(dwell_times({"a": run, "b": run})) == ["a researcher", "b researcher"]


def test_neither_pyplot_nor_pandas_is_loaded_by_a_figure() -> None:
    script = (
        "import sys, asyncio\n"
        "from tests.analysis.recordings import researcher\n"
        "from agentnb.analysis import timeline\n"
        "run = researcher().start('go', approve=True); run.result()\n"
        "timeline(run).figure._repr_png_()\n"
        "print([name for name in ('matplotlib.pyplot', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
