"""A survey of files of other tools: what opens, what is carried, what is lost, and where a run can continue.

    python -m tests.importers.survey FOLDER...

Prints a table in Markdown with a row for each format, then the files that were refused. Of each recording at most
`FORKS` forks, at events that are evenly spaced, are continued to their end by a scripted model, with the recording's
own tools.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agentnb
from agentnb import SessionLoop, Snapshot, tool
from agentnb.errors import AgentnbError
from agentnb.testing import ScriptedLLM

FORKS = 20
HEADS = (
    *("format", "files", "recordings", "events", "answers", "calls", "decisions", "sub-agents"),
    *("forked", "not carried"),
)


@dataclass
class Row:
    """What was found of one format."""

    files: int = 0
    recordings: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    forked: int = 0
    tried: int = 0
    lost: Counter[str] = field(default_factory=Counter)

    def cells(self, name: str) -> list[str]:
        """Return the row of the table."""
        lost = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.lost.items())) or "nothing"
        counts = (self.counts[kind] for kind in ("events", "model_end", "call_end", "approval_decision", "sub"))
        numbers = (self.files, self.recordings, *counts)
        return [name, *(f"{number:,}" for number in numbers), f"{self.forked:,} of {self.tried:,}", lost]


async def survey(files: Iterable[Path], forks: int = FORKS) -> tuple[dict[str, Row], dict[Path, str]]:
    """Return a row for each format, and the reason for each file that was refused."""
    rows: dict[str, Row] = {}
    refused: dict[Path, str] = {}
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # damaged parts are counted
                found = Snapshot.load_all(file)
        except AgentnbError as error:
            refused[file] = str(error)
            continue
        for number, snapshot in enumerate(found):
            recording = agentnb.replay(snapshot)
            row = rows.setdefault(str(recording.imported.get("format") or "agentnb"), Row())
            row.files += number == 0
            row.recordings += 1
            row.lost.update(recording.lost)
            row.counts["events"] += snapshot.position
            row.counts.update(event.type for event in snapshot.events)
            row.counts["sub"] += sum(bool(event.path) and event.type == "run_start" for event in snapshot.events)
            step = max(1, -(-snapshot.position // forks))
            for seq in range(0, snapshot.position, step):
                row.tried += 1
                row.forked += await continues(recording, seq)
    return rows, refused


async def continues(recording: agentnb.run.Replay, seq: int) -> bool:
    """Return True if a run continues from the event, up to its end."""
    llm = ScriptedLLM(["Continued."], repeat=True)
    tools = recording.tools(*sub_agents(recording, seq, llm).values(), at=seq)
    loop = SessionLoop(llm, tools)
    try:
        run = recording.fork(at=seq, loop=loop, approve=True)
    except AgentnbError:
        return False
    if not run.state.messages:  # nothing is asked yet
        run.steer("Continue.")
    await run
    return run.stop_reason == "completed"


def sub_agents(recording: agentnb.run.Replay, seq: int, llm: ScriptedLLM, above: str = "") -> dict[str, Any]:
    """Return tools for the sub-agents that run at an event: loops that continue them, by the name of the tool."""
    names: dict[str, str] = {}  # of the tools, by the calls of this loop
    open_calls: dict[str, str] = {}  # the paths of the sub-agents that perform them
    for event in recording.recording[: seq + 1]:
        if event.path == above and event.type == "call_start":
            names[event.call_id] = event.name
        elif event.path == above and event.type == "call_end":
            open_calls.pop(event.call_id, None)
        elif event.type == "run_start" and event.path and event.path.rpartition("/")[0] == above:
            open_calls[event.call] = event.path
    return {
        names[call]: tool(
            SessionLoop(llm, recording.tools(*sub_agents(recording, seq, llm, path).values(), at=seq)), name=names[call]
        )
        for call, path in open_calls.items()
        if call in names
    }


def table(rows: dict[str, Row]) -> str:
    """Return the rows as a table in Markdown, with their sum."""
    cells = [HEADS, ["---"] * len(HEADS), *(row.cells(name) for name, row in sorted(rows.items()))]
    return "\n".join(f"| {' | '.join(one)} |" for one in cells)


def main(words: Sequence[str] | None = None) -> int:
    """Print the survey of the files in the folders."""
    parser = argparse.ArgumentParser(prog="python -m tests.importers.survey", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    folders: list[Path] = parser.parse_args(words).folders
    files = sorted(file for folder in folders for file in folder.rglob("*") if file.is_file())
    rows, refused = asyncio.run(survey(files))
    print(table(rows))
    for file, why in refused.items():
        print(f"refused: {file}: {why[:160]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
