"""What a process does that a test will kill: it commits events, says how many, and begins its log anew all the time.

Its arguments: the store, and of how many commits a turn of the event loop is.
"""

from __future__ import annotations

import os
import sys

from agentnb import Store

if __name__ == "__main__":
    store, turn = Store(sys.argv[1]), int(sys.argv[2])
    store._database.write("PRAGMA wal_autocheckpoint=5")
    recorder = store.record_run(f"run-{os.getpid()}", None, "SessionLoop", [])
    for seq in range(1_000_000):
        recorder.record(seq, b'{"type":"call_end","call_id":"%d","result":"%s"}' % (seq, b"x" * (seq * 37 % 3000)))
        if seq % 3 == 2:
            recorder.flush(going_on=seq // 3 % turn != 0)
            print(seq + 1, flush=True)
