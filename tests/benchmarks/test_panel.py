"""What a page has to do for a long run. `tests/browser/test_panel.py` measures the same in a whole JupyterLab."""

from __future__ import annotations

import pytest
from playwright.sync_api import sync_playwright

from tests.benchmarks.measure import report
from tests.benchmarks.panel_stream import measure_in


@pytest.mark.browser
@pytest.mark.sampled(1000)  # takes ten seconds, and each push has the same number of events in JupyterLab
def test_twenty_thousand_events_into_an_open_panel(capsys) -> None:
    with sync_playwright() as playwright:
        figures = measure_in(playwright, events=20_000, rate=2000, view="Events")
    longest = figures["frame_gap_ms"]["longest"]
    with capsys.disabled():
        detail = f"{figures['batches_per_second']} batches a second, longest frame {longest:.0f} ms"
        report("long tasks while 20,000 events come into a panel", figures["long_tasks"], 0, detail)
    assert figures["events"] >= 20_000
    assert figures["longest_task_ms"] < 1000
