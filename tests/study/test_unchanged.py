"""A study that has not changed is not refused: in all designs, in another process, with loops that depend on a seed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentnb import Store
from tests.study.unchanged import CASES, unchanged
from tests.worlds import until


async def test_an_unchanged_study_continues_in_another_process(tmp_path: Path) -> None:
    for case in CASES:
        study = unchanged(case, tmp_path, 2).start()
        await until(lambda study=study: all(run.id is not None for run in study))  # type: ignore[misc]
        study.cancel()
        study.result(20)
    command = [sys.executable, "-m", "tests.study.unchanged", str(tmp_path)]
    options: Any = {"capture_output": True, "text": True, "timeout": 120, "check": True}
    done = await asyncio.to_thread(subprocess.run, command, **options)
    assert done.stdout.splitlines() == [f"{case}: continues" for case in CASES]
    assert len(Store(tmp_path / "runs.db").find()) >= 2 * len(CASES)
