from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from ipywidgets.widgets.widget import _instances as widgets

from agentnb import Store, replay
from agentnb.testing import delay, text
from agentnb.widgets import COMM_IDS, StudyPanel, panel, present, presenting
from tests.widgets.studies import study
from tests.widgets.support import asking, session

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The displayed outputs, oldest first."""
    shell = InteractiveShell.instance()
    publisher = CapturingDisplayPublisher()
    monkeypatch.setattr(shell, "display_pub", publisher)
    yield lambda: publisher.outputs
    InteractiveShell.clear_instance()


@pytest.fixture
def terminal() -> Iterator[InteractiveShell]:
    """A shell that prints displayed outputs."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_output_of_a_live_panel_is_replaced_by_a_static_one_at_the_end_of_the_run(
    displayed: Callable[[], list[dict[str, Any]]],
) -> None:
    before = set(COMM_IDS)
    run = session([[*text("Hello."), delay(0.3)]])
    present(run)
    live, copy = displayed()
    assert set(live["data"]) == {WIDGET, "text/html", "text/plain"}
    assert (live["data"]["text/html"], copy["data"]) == ("", {"text/plain": ""})
    assert set(COMM_IDS) > before
    run.result(30)
    assert len(displayed()) == 2, "the end is seen to arrive first"
    wait_for(lambda: len(displayed()) == 4)
    removed, frozen = displayed()[2:]
    assert (removed["transient"], removed["data"]) == (copy["transient"], {"text/plain": ""}), "never visible"
    assert frozen["update"]
    assert frozen["transient"] == live["transient"]
    assert set(frozen["data"]) == {"text/html", "text/plain"}
    assert "Saved copy of" in frozen["data"]["text/html"]
    assert frozen["data"]["text/plain"].startswith("tidy (SessionLoop): completed")
    wait_for(lambda: set(COMM_IDS) == before)


@pytest.mark.parametrize("show", [present, lambda run: display(panel(run))])
def test_in_a_terminal_a_run_is_printed_as_one_line(
    show: Callable[[Any], object], terminal: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    run = session(["Hello."])
    show(run)
    assert capsys.readouterr().out == "tidy (SessionLoop): not started, phase idle, 0 events\n"
    run.result(30)
    terminal.run_cell("None")
    assert capsys.readouterr().out == ""


def test_the_notebook_keeps_a_static_copy_of_a_waiting_run_until_it_ends(
    displayed: Callable[[], list[dict[str, Any]]],
) -> None:
    run = asking("/a")
    present(run)
    run.submit_step("turn").result(30)
    wait_for(lambda: len(displayed()) > 2 and "/a" in displayed()[-1]["data"].get("text/html", ""))
    copy = displayed()[-1]
    assert copy["transient"] == displayed()[1]["transient"]
    assert copy["data"]["text/plain"].startswith("tidy (SessionLoop): waiting for you")
    assert 'data-agentnb-copy="' in copy["data"]["text/html"]
    run.approve("c0")
    run.result(30)
    wait_for(lambda: "✓ done" in displayed()[-1]["data"].get("text/html", ""))
    assert displayed()[-2]["data"] == {"text/plain": ""}
    assert displayed()[-2]["transient"] == copy["transient"]


def test_a_displayed_panel_object_stays_live_with_a_static_copy_below_it(
    displayed: Callable[[], list[dict[str, Any]]],
) -> None:
    run = asking("/a")
    shown = run.panel(["events"])
    display(shown)
    live, copy = displayed()
    assert set(live["data"]) == {WIDGET, "text/html", "text/plain"}
    assert (live["data"]["text/html"], copy["data"]) == ("", {"text/plain": ""})
    run.submit_step("turn").result(30)
    wait_for(lambda: "/a" in displayed()[-1]["data"].get("text/html", ""))
    assert "State of 20" in displayed()[-1]["data"]["text/html"]
    run.approve("c0")
    run.result(30)
    wait_for(lambda: "✓ done" in displayed()[-1]["data"]["text/html"])
    assert displayed()[-1]["transient"] == copy["transient"]
    assert displayed()[-1]["data"]["text/plain"].startswith("tidy (SessionLoop): completed")
    assert "State of 20" not in displayed()[-1]["data"]["text/html"]
    assert shown.comm is not None
    shown.close()


def test_an_ended_run_is_displayed_as_a_static_panel(displayed: Callable[[], list[dict[str, Any]]]) -> None:
    run = session(["Hello."])
    run.result(30)
    present(run)
    [frozen] = displayed()
    assert WIDGET not in frozen["data"]


def test_a_run_has_one_panel_until_it_is_closed() -> None:
    run = session(["Hello."])
    first = panel(run)
    assert panel(run) is first
    first.close()
    second = panel(run)
    assert second is not first
    second.close()


def forgotten(kept: weakref.ref[Any]) -> bool:
    gc.collect()
    return kept() is None


def test_a_run_with_a_closed_panel_is_garbage_collected() -> None:
    run = session(["Hello."])
    kept = weakref.ref(run)
    run.panel().close()
    del run
    wait_for(lambda: forgotten(kept))


def test_a_run_with_an_updated_and_closed_panel_is_garbage_collected() -> None:
    run = session(["Hello."])
    kept, shown, told = weakref.ref(run), run.panel(), []
    shown.when_over(lambda: told.append(True))
    run.result(30)
    wait_for(lambda: told)
    shown.close()
    del run, shown
    wait_for(lambda: forgotten(kept))


def test_a_closed_panel_closes_its_layout() -> None:
    shown = session(["Hello."]).panel()
    layout = shown.layout
    shown.close()
    assert layout.comm is None


class Cells:
    """A front end that reports which of its cells runs."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._executions = shell, 0
        object.__setattr__(shell, "get_parent", lambda: self._request)

    def run(self, cell: str, code: Callable[[], object] = lambda: None) -> None:
        self._executions += 1
        self._request = {"header": {"msg_id": str(self._executions)}, "metadata": {"cellId": cell}}
        code()
        self._shell.events.trigger("post_run_cell", None)


@pytest.fixture
def cells(displayed: object) -> Cells:
    return Cells(InteractiveShell.instance())


def replayed() -> Any:
    run = session(["Hello."])
    run.result(30)
    return replay(run)


@pytest.fixture(params=[lambda: asking("/a"), replayed], ids=["waits", "replay"])
def unfinished(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run whose panel stays live."""
    monkeypatch.setenv("AGENTNB_ATTENDED", "yes")
    return request.param()


def test_the_panel_of_an_unfinished_run_is_closed_when_its_cell_is_run_again(cells: Cells, unfinished: Any) -> None:
    before = set(COMM_IDS)
    cells.run("shows", lambda: present(unfinished))
    cells.run("another")
    assert set(COMM_IDS) > before
    cells.run("shows")
    assert set(COMM_IDS) == before


def test_a_panel_that_a_page_still_shows_stays_open_until_the_page_closes_it(cells: Cells) -> None:
    run, before = asking("/a"), set(COMM_IDS)
    cells.run("shows", lambda: present(run))
    [shown] = [widget for widget in widgets.values() if widget.model_id in set(COMM_IDS) - before]
    shown._receive(shown, {"type": "views", "page": "one", "count": 1}, [])
    cells.run("shows")
    assert set(COMM_IDS) > before
    shown._receive(shown, {"type": "views", "page": "one", "count": 0}, [])
    assert set(COMM_IDS) == before


def shown_to_its_end(cells: Cells, cell: str) -> Any:
    """Return the panel of a run that a page shows and that has ended."""
    run, before = session(["Hello."]), set(COMM_IDS)
    cells.run(cell, lambda: present(run))
    [shown] = [widget for widget in widgets.values() if widget.model_id in set(COMM_IDS) - before]
    shown._receive(shown, {"type": "views", "page": "one", "count": 1}, [])
    run.result(30)
    cells.run("another")
    return shown


def test_the_panel_of_an_ended_run_stays_live_while_a_page_shows_it(
    cells: Cells, displayed: Callable[[], list[dict[str, Any]]]
) -> None:
    shown = shown_to_its_end(cells, "shows")
    assert f'data-agentnb-ended="{shown.key}"' in displayed()[-1]["data"]["text/html"]
    assert WIDGET not in displayed()[-1]["data"]
    cells.run("another")
    assert shown.comm is not None
    shown._receive(shown, {"type": "views", "page": "one", "count": 0}, [])
    assert shown.comm is None


def test_the_panel_of_an_ended_run_is_closed_when_its_cell_is_run_again(cells: Cells) -> None:
    shown = shown_to_its_end(cells, "shows")
    cells.run("shows")
    assert shown.comm is None


def test_of_many_ended_runs_the_last_have_live_panels_and_the_others_are_garbage_collected(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presenting, "KEPT", 2)
    panels = [shown_to_its_end(cells, f"shows {number}") for number in range(4)]
    assert [shown.comm is not None for shown in panels] == [False, False, True, True]
    first = weakref.ref(panels[0].run)
    for shown in panels:
        shown.close()
    del panels, shown
    cells.run("another")
    wait_for(lambda: forgotten(first))


def test_an_unfinished_run_whose_cell_is_run_again_is_garbage_collected(cells: Cells) -> None:
    run = asking("/a")
    kept = weakref.ref(run)
    cells.run("shows", partial(present, run))
    del run
    cells.run("shows")
    wait_for(lambda: forgotten(kept))


def test_a_displayed_panel_object_stays_open_when_its_cell_is_run_again(cells: Cells) -> None:
    shown = asking("/a").panel()
    cells.run("shows", lambda: display(shown))
    cells.run("shows", lambda: display(shown))
    assert shown.comm is not None
    shown.close()


def test_a_study_that_the_store_has_is_displayed_live_with_a_complete_copy_below(
    displayed: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTNB_ATTENDED", "yes")
    store = Store(tmp_path / "runs.db")
    study(store=store, approve=True).result(30)
    again = study(store=store, approve=True)
    again._ipython_display_()
    live, copy = displayed()[0]["data"], displayed()[-1]["data"]["text/html"]
    assert WIDGET in live
    assert copy.count("●■") >= 8
    assert "data-agentnb-copy" in copy
    for widget in list(widgets.values()):
        if isinstance(widget, StudyPanel):
            widget.close()
    store.close()
