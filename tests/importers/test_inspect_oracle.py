"""What is read of a log of Inspect equals what Inspect's own library reads, for logs that it writes here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.inspect_oracle import differences, write_logs


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_log_is_read_as_inspect_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("inspect_ai", reason="inspect_ai is not a dependency of the tests")
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    logs = write_logs(tmp_path)
    assert len(logs) == 10
    assert {log.name: differences(log) for log in logs} == {log.name: [] for log in logs}
