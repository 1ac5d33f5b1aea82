"""Clicks on real kernels in a real JupyterLab: kernels x settings x shapes of cells x clicks.

    python -m tests.browser.matrix
    python -m tests.browser.matrix --kernels newest 6.31.0 --settings disabled --shapes await blocking --clicks 10

Prints a line for every combination, and exits with 1 if a click was lost or doubled, or a cell did not end. The whole
matrix takes about a quarter of an hour; `test_clicks.py` has a part of it. Missing releases of ipykernel are installed
in separate folders in tests/.cache. `newest` is the release of the environment.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from tests.browser.browser import Chromium
from tests.browser.clicking import CELLS, SHAPES, Outcome, click_through
from tests.browser.notebook import Notebook
from tests.browser.server import JupyterServer

KERNELS = ["newest", "7.3.0", "7.2.0", "7.1.0", "7.0.1", "6.31.0", "6.29.5"]
SETTINGS = ["perCommTarget", "perComm", "disabled"]  # values of JupyterLab's setting "Kernel Comms over subshells"
PLUGIN = "@jupyterlab/apputils-extension:kernels-settings"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; gives the exit code."""
    options = _parser().parse_args(arguments)
    releases = {f"ipykernel-{kernel}": None if kernel == "newest" else kernel for kernel in options.kernels}
    began, failed = time.monotonic(), 0
    print(f"{'ipykernel':20} {'comms':14} {'cell':11} {'arrived':>9} {'median':>8} {'p95':>8} {'max':>8}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        JupyterServer(Path(folder), releases) as server,
        Chromium() as browser,
    ):
        total = Outcome()
        for kernel, setting in product(releases, options.settings):
            server.change_setting(PLUGIN, {"commsOverSubshells": setting})
            for shape, outcome in _one_kernel(browser, server, kernel, options):
                print(f"{kernel:20} {setting:14} {shape:11} {_row(outcome)}", flush=True)
                failed += bool(outcome.faults)
                total.clicks += outcome.clicks
                total.latencies += outcome.latencies
    print(f"{'all':47} {_row(total)} in {time.monotonic() - began:.0f} s; {failed} with a fault")
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="+", default=KERNELS, metavar="RELEASE", help=" ".join(KERNELS))
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--clicks", type=int, default=50, help="for each combination (default 50)")
    return parser


def _one_kernel(
    browser: Chromium, server: JupyterServer, kernel: str, options: argparse.Namespace
) -> Iterator[tuple[str, Outcome]]:
    """All shapes in one notebook; a new one after a fault, because its kernel may be stuck."""
    notebook: Notebook | None = None
    for shape in options.shapes:
        if notebook is None:
            notebook = Notebook.open(browser, server, kernel=kernel, cells=CELLS)
            notebook.run(0, timeout=60)
        outcome = click_through(notebook, shape, options.clicks)
        yield shape, outcome
        if outcome.faults:
            notebook.close()
            notebook = None
    if notebook is not None:
        notebook.close()


def _row(outcome: Outcome) -> str:
    """Return the figures: clicks that arrived, then milliseconds from the click to its call."""
    arrived = f"{len(outcome.latencies)}/{outcome.clicks}"
    figures = [outcome.median, outcome.p95, max(outcome.latencies)] if outcome.latencies else []
    return " ".join([f"{arrived:>9}", *(f"{1000 * figure:5.0f} ms" for figure in figures), *outcome.faults])


if __name__ == "__main__":
    sys.exit(main())
