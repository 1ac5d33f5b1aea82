"""The process that a test kills: it commits events, prints their number, and restarts its log continuously."""

from __future__ import annotations

import os
import sys

from agentnb import Store

if __name__ == "__main__":
    store = Store(sys.argv[1])
    store._database.write("PRAGMA wal_autocheckpoint=5")
    recorder = store.record_run(f"run-{os.getpid()}", None, "SessionLoop", [])
    for seq in range(1_000_000):
        recorder.record(seq, b'{"type":"call_end","call_id":"%d","result":"%s"}' % (seq, b"x" * (seq * 37 % 3000)))
        if seq % 3 == 2:
            recorder.flush()
            print(seq + 1, flush=True)
