"""Figures: one call each, the axes are returned, and pyplot is never touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import matplotlib.style
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text

from agentnb import SessionLoop, Snapshot, UsageError
from agentnb.analysis import approvals, dwell_times, latency, timeline, tokens
from agentnb.analysis.figures import part_style
from agentnb.core.events import CallEnd, CallStart, ModelEnd, ModelStart, RunStart, ToolCall
from agentnb.core.messages import Message
from agentnb.testing import ScriptedLLM
from tests.designs import WORLDS

FIGURES = {figure.__name__: figure for figure in (approvals, dwell_times, latency, timeline, tokens)}
every_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=list(FIGURES))
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
PNG = b"\x89PNG"


def labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def key(axes: Axes) -> set[str]:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


@every_figure
def test_a_figure_function_returns_axes_whose_figure_is_displayable(run: Any, figure: Callable[..., Axes]) -> None:
    axes = figure(run)
    assert isinstance(axes, Axes)
    assert axes.figure._repr_png_().startswith(PNG)  # type: ignore[union-attr]


@every_figure
@pytest.mark.parametrize("name", ["ax", "axes"])
def test_a_figure_is_drawn_on_the_given_axes(run: Any, figure: Callable[..., Axes], name: str) -> None:
    mine = Figure().subplots()
    assert figure(run, **{name: mine}) is mine


@every_figure
def test_titles_and_labels_of_the_given_axes_are_kept(run: Any, figure: Callable[..., Axes]) -> None:
    mine = Figure().subplots()
    mine.set_title("My title")
    mine.set(xlabel="my x", ylabel="my y")
    figure(run, axes=mine)
    assert [mine.get_title(where) for where in ("left", "center", "right")] == ["", "My title", ""]
    assert (mine.get_xlabel(), mine.get_ylabel()) == ("my x", "my y")


@every_figure
@pytest.mark.parametrize("nowhere", [3, Figure()])
def test_a_value_that_is_not_axes_is_refused(run: Any, figure: Callable[..., Axes], nowhere: Any) -> None:
    with pytest.raises(UsageError, match="axes must be matplotlib axes"):
        figure(run, axes=nowhere)


@pytest.mark.parametrize("figure", [timeline, dwell_times])  # these differ between designs; the other figures count
@every_world
async def test_figures_of_runs_of_every_design_are_drawn(world: Callable[[], Any], figure: Callable[..., Axes]) -> None:
    run = world().start("go", approve=True)
    await run
    drawn = figure(run).figure
    assert isinstance(drawn, Figure)
    drawn.draw_without_rendering()


@every_figure
async def test_figures_of_a_run_with_one_event_are_drawn(figure: Callable[..., Axes]) -> None:
    run = SessionLoop(ScriptedLLM(["hello"])).start("go")
    await run.step()
    assert figure(run).figure._repr_png_().startswith(PNG)  # type: ignore[union-attr]


def test_a_timeline_has_a_row_for_the_model_and_for_each_call(run: Any) -> None:
    axes = timeline(run)
    assert labels(axes) == ["model", "read", "read", "write", "write", "write", "write"]
    assert key(axes) == {"model", "tool", "waiting", "failed"}


def test_a_timeline_accepts_exactly_one_recording(run: Any) -> None:
    with pytest.raises(UsageError, match="Exactly one recording"):
        timeline([run, run])


def test_dwell_times_add_up_to_the_duration_of_the_run(run: Any) -> None:
    axes = dwell_times(run)
    widths = sum(bar.get_width() for bar in axes.patches)
    assert labels(axes) == ["researcher"]
    assert widths == pytest.approx(run.events[-1].time - run.events[0].time, rel=0.01)


def test_tokens_are_cumulated_request_by_request(run: Any) -> None:
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


def test_labels_in_a_figure_of_several_runs_contain_the_name_of_the_run(run: Any) -> None:
    assert labels(dwell_times({"a": run, "b": run})) == ["a researcher", "b researcher"]


def long_run(name: str, tool: str = "read", turns: int = 2, second: float = 1.0, loop: str = "long") -> Snapshot:
    """A run with one call a turn, each of which takes longer than the one before."""
    events: list[Any] = [RunStart(loop="SessionLoop", name=loop, phase="acting")]
    for n in range(turns):
        message = Message(role="assistant", content="", tool_calls=[ToolCall(id=f"c{n}", name=tool, arguments={})])
        events += [
            ModelStart(turn=n + 1),
            ModelEnd(message=message, usage={"input_tokens": 10, "output_tokens": 1}),
            CallStart(call_id=f"c{n}", name=tool, arguments={}),
            CallEnd(call_id=f"c{n}", name=tool),
        ]
    stamps = [{"seq": n, "run_id": name, "time": n * n * second} for n in range(len(events))]
    return Snapshot.of([e.model_copy(update=stamp) for e, stamp in zip(events, stamps, strict=True)], name=name)


def test_a_timeline_that_omits_calls_says_so_in_its_title() -> None:
    axes = timeline(long_run("long", turns=100))
    assert len(labels(axes)) == 60
    assert axes.get_title("left") == "long: what ran when (the 60 longest of 101)"


def test_dwell_times_of_many_runs_are_a_row_of_dots_for_each_phase() -> None:
    runs = [long_run(f"run {n}", second=1.0 + n) for n in range(40)]
    assert len(labels(dwell_times(runs[:30]))) == 30
    axes = dwell_times(runs)
    assert labels(axes) == ["acting (40)"]
    assert axes.get_title("left") == "how long in each phase (40 loops)"
    took = sorted(float(seconds) for seconds in axes.lines[0].get_xdata())  # type: ignore[arg-type]
    assert took == [64 * (1 + n) for n in range(40)]
    assert sum(axes.get_figure(root=True).get_size_inches()) < 13  # type: ignore[union-attr]


def test_dwell_times_of_many_runs_are_grouped_by_the_name_of_the_loop() -> None:
    runs = [long_run(f"run {n}", loop=("boss", "critic")[n % 2]) for n in range(40)]
    assert labels(dwell_times(runs)) == ["boss: acting (20)", "critic: acting (20)"]


def test_the_legend_of_many_runs_does_not_fill_the_figure_of_tokens() -> None:
    axes = tokens([long_run(f"run {n}") for n in range(40)])
    assert key(axes) == {"read", "written"}
    assert len(axes.lines) == 80
    assert axes.get_title("left") == "tokens used (40 runs)"


@every_figure
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_all_texts_have_enough_contrast_in_light_and_dark_style(
    run: Any, figure: Callable[..., Axes], style: str
) -> None:
    def luminance(colour: Any) -> float:
        parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    with matplotlib.style.context(style):
        drawn = figure(run).get_figure(root=True)
        assert drawn is not None
    ground = to_rgba(drawn.get_facecolor())
    assert ground[3] == 1, "the page's own colour shows through"
    for text in drawn.findobj(Text):
        low, high = sorted((luminance(text.get_color()), luminance(ground)))  # type: ignore[attr-defined]
        assert (high + 0.05) / (low + 0.05) >= 4.5, text


@pytest.mark.parametrize("figure", [latency, timeline])
@pytest.mark.parametrize("name", [r"$\frac{$", "two\nlines", "_hidden", "\u202egnp.exe", "x" * 500])
def test_a_name_is_drawn_as_plain_text_on_one_line(figure: Callable[..., Axes], name: str) -> None:
    axes = figure(long_run(name, tool=name))
    axes.get_figure(root=True).draw_without_rendering()  # type: ignore[union-attr]
    (drawn,) = {text.removesuffix(" (2)") for text in labels(axes) if not text.startswith("model")}
    assert "\n" not in drawn
    assert "\u202e" not in drawn
    assert len(drawn) < 40


def test_the_legend_of_many_runs_names_each_once_and_covers_no_data() -> None:
    axes = tokens([long_run(f"run {n}") for n in range(12)])
    assert key(axes) == {"read", "written", *(f"run {n}" for n in range(12))}
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines}) == 24
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    assert not figure.legends[0].get_window_extent().overlaps(axes.get_window_extent())


def test_each_of_many_phases_has_a_different_style() -> None:
    looks = [part_style(number) for number in range(24)]
    assert len({(one["facecolor"], one["hatch"]) for one in looks}) == 24


@pytest.mark.parametrize("figure", [timeline, latency, dwell_times])
@pytest.mark.parametrize("second", [1e-5, 0.0123, 1.0, 500.0])
@pytest.mark.parametrize("turns", [1, 40])
def test_no_two_labels_of_an_axis_in_seconds_overlap(figure: Callable[..., Axes], second: float, turns: int) -> None:
    axes = figure(long_run("long", turns=turns, second=second), axes=Figure(figsize=(5, 3)).subplots())
    axes.get_figure(root=True).draw_without_rendering()  # type: ignore[union-attr]
    left, right = axes.get_window_extent().intervalx
    ticks = [tick.get_window_extent() for tick in axes.get_xticklabels(which="both") if tick.get_text()]
    shown = sorted((box.x0, box.x1) for box in ticks if left <= (box.x0 + box.x1) / 2 <= right)
    assert shown
    assert all(one[1] <= other[0] for one, other in pairwise(shown))


def test_a_figure_loads_neither_pyplot_nor_pandas() -> None:
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


@pytest.mark.parametrize(("figure", "why"), [(tokens, "tokens"), (latency, "no request"), (approvals, "no decisions")])
async def test_an_empty_figure_says_why_it_is_empty(figure: Callable[..., Axes], why: str, run: Any) -> None:
    silent = SessionLoop(ScriptedLLM(["hello"])).start("go")
    if figure is latency:
        await silent.step()
    else:
        await silent
    assert [text.get_text().startswith(why) or why in text.get_text() for text in figure(silent).texts] == [True]
    assert not any("no" in text.get_text().split() for text in figure(run).texts)
