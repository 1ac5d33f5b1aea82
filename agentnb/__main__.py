"""`python -m agentnb`: open, verify, export and list recordings of agentnb and of other tools, from a shell.

    python -m agentnb open FILE [--run NAME] [-o PAGE.html] [--no-browser]
    python -m agentnb verify FILE...
    python -m agentnb export FILE OUT --format FORMAT [--run NAME]
    python -m agentnb ls FOLDER|STORE|FILE

Nothing in a recording is executed. The exit code is 0 if all went well, 1 if a file cannot be read or is damaged, and 2
if the command is wrong. An error is one line on the standard error output.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from agentnb.core.errors import AgentnbError, RecordingCorrupt, RecordingMissing, UsageError, printable
from agentnb.exporters import FORMATS
from agentnb.run import Replay, Snapshot, replay
from agentnb.run.files import EXPORT, read_bytes
from agentnb.run.past.folders import advice_about, files_of
from agentnb.store import Store, exchange, is_address, is_store


def main(words: Sequence[str] | None = None) -> int:
    """Run the command in `words` (default: those of the process), and return its exit code."""
    parser = _parser()
    given = parser.parse_args(words)
    with _warnings_in_one_line() as warned:
        try:
            code = _COMMANDS[given.command](given)
        except AgentnbError as error:
            _complain(error)
            return 2 if isinstance(error, UsageError) else 1
        except BrokenPipeError:  # of `ls | head`
            sys.stdout = None  # Python would flush it at its exit
            return 0
    return code or (1 if warned and given.command == "verify" else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agentnb", description="Open, verify, export and list recordings of agentnb and of other tools."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    opens = commands.add_parser("open", help="write a recording as one HTML file and open it in the browser")
    opens.add_argument("file", help="a recording, or a store (with --run)")
    opens.add_argument("-o", "--output", help="the path of the page; without it, a new temporary folder has the page")
    opens.add_argument("--no-browser", action="store_true", help="only write the page and print its path")
    _add_run(opens)

    verifies = commands.add_parser("verify", help="check that recordings can be read and were not changed")
    verifies.add_argument("files", nargs="+", metavar="file", help="a recording, an export, a store or a folder")

    exports = commands.add_parser("export", help="write a recording in the format of another tool")
    exports.add_argument("file", help="a recording, or a store (with --run)")
    exports.add_argument("out", help="the path of the file to write")
    exports.add_argument("--format", required=True, choices=sorted(FORMATS), help="the format of the file")
    _add_run(exports)

    lists = commands.add_parser("ls", help="list the recordings in a folder, a store or a file")
    lists.add_argument("place", nargs="?", default=".", help="the folder, store or file; without it, this folder")
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="NAME", help="the name or id of one recording, if the file has several")


def _complain(message: object) -> None:
    print(f"agentnb: {' '.join(printable(str(message)).split())}", file=sys.stderr)  # noqa: T201


def _say(text: str) -> None:
    print(printable(text))  # noqa: T201


@contextmanager
def _warnings_in_one_line() -> Iterator[list[str]]:
    """Print each warning as one line. Yields the list of their texts."""
    texts: list[str] = []

    def show(message: Warning | str, *_: object, **__: object) -> None:
        texts.append(str(message))
        _complain(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show
        yield texts


# -- the commands ------------------------------------------------------------------------------------------------------


def _open(given: argparse.Namespace) -> int:
    recording = _chosen(given.file, given.run)
    page = Path(given.output) if given.output else _new_page(recording)
    page = recording.export_html(page).absolute()
    _say(str(page))
    if given.no_browser:
        return 0
    import webbrowser  # only this command needs it

    if not webbrowser.open(page.as_uri()):
        _complain("No browser was found. Open the page yourself.")
    return 0


def _new_page(recording: Replay) -> Path:
    """Return the path of a page in a new temporary folder, which only this user may read."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in recording.name or "run")
    return Path(tempfile.mkdtemp(prefix="agentnb-")) / f"{name[:80]}.html"


def _verify(given: argparse.Namespace) -> int:
    code = 0
    for place in given.files:
        folder = None if is_address(place) else files_of(Path(place))
        for file in [place] if folder is None else folder:
            if str(file).endswith(("-wal", "-shm")):  # parts of an open database
                continue
            try:
                for line in _verified(file):
                    _say(f"{file}: {line}")
            except AgentnbError as error:
                _complain(error if str(file) in str(error) else f"{file}: {error}")
                code = 1
    return code


def _verified(file: str | Path) -> Iterator[str]:
    """Yield a line about each recording in a file. Raises the error of the first one that cannot be read."""
    if _is_store(file):
        with closing(Store(file)) as store:
            damaged = []
            for info in (runs := store.runs()):
                try:
                    Snapshot.from_json(store.load(info.id).to_json())  # also checks that a run can have these events
                except AgentnbError as error:
                    damaged.append(f"{info.name or info.id}: {error}")
            if damaged:
                raise RecordingCorrupt(f"{file}: {_counted(len(damaged), 'damaged run')}; the first is {damaged[0]}")
            yield f"a store, intact: {_counted(len(runs), 'run')}, {_counted(sum(i.events for i in runs), 'event')}"
        return
    path = Path(file)
    if path.is_file() and read_bytes(path).startswith(EXPORT):
        exported = exchange.read(path)
        events = sum(len(run.events) for run in exported)
        yield f"an export, unchanged: {_counted(len(exported), 'run')}, {_counted(events, 'event')}"
        return
    found = Snapshot.load_all(path)
    for snapshot in found:
        about = replay(snapshot)
        name = f"{snapshot.name}, " if len(found) > 1 else ""
        if not about.imported:
            yield f"{name}a snapshot, unchanged: {_counted(snapshot.position, 'event')}"
            continue
        lost = ", ".join(f"{kind} ({count:,})" for kind, count in about.lost.items())
        read = f"{name}{about.imported['format']}: {_counted(snapshot.position, 'event')}"
        yield f"{read}; not carried: {lost}" if lost else read


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _export(given: argparse.Namespace) -> int:
    _say(str(_chosen(given.file, given.run).export(given.out, format=given.format)))
    return 0


def _list(given: argparse.Namespace) -> int:
    place = given.place
    rows: list[tuple[str, ...]] = []
    if _is_store(place):
        with closing(Store(place)) as store:
            for info in store.runs():
                name, tags = info.name or info.id, ", ".join(info.tags)
                rows.append((name, info.loop, f"{info.events:,}", info.stop_reason or "", _date(info.created), tags))
        heads: tuple[str, ...] = ("run", "loop", "events", "stop reason", "began", "tags")
    else:
        for file in files_of(Path(place)) or [Path(place)]:
            if _is_store(file):
                with closing(Store(file)) as store:
                    runs = store.runs()
                rows.append((file.name, "", "store", f"{sum(run.events for run in runs):,}", f"{len(runs)} runs", ""))
                continue
            try:
                found = Snapshot.load_all(file)
            except AgentnbError:
                if file == Path(place):
                    raise
                continue  # a folder may have other files
            for snapshot in found:
                about, state = replay(snapshot), snapshot.state
                format, begun = str(about.imported.get("format") or "agentnb"), _date(snapshot.events[0].time)
                reason = state.stop_reason or ""
                name = snapshot.name or snapshot.run_id
                rows.append((file.name, name, format, f"{snapshot.position:,}", reason, begun))
        if not rows:
            raise RecordingMissing(f"No file in {place} is a recording.{advice_about(Path(place))}")
        heads = ("file", "run", "format", "events", "stop reason", "began")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        _say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _date(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M") if time else ""


_COMMANDS = {"open": _open, "verify": _verify, "export": _export, "ls": _list}


# -- which recording ---------------------------------------------------------------------------------------------------


def _is_store(place: str | Path) -> bool:
    return is_address(place) or is_store(Path(place))


def _chosen(file: str, name: str | None) -> Replay:
    """Return the recording with this name or id in a file or a store; without a name, the only one."""
    if _is_store(file):
        with closing(Store(file)) as store:
            if name is None:
                names = store.names()
                if len(names) != 1:
                    raise _several(file, names)
                (name,) = names
            return replay(store.load(name))
    found = Snapshot.load_all(file)
    if name is not None:
        named = [one for one in found if name in (one.name, one.run_id)]
        if not named:
            raise UsageError(f"{file} has no recording {name!r}. It has: {_names(found)}.")
        found = named[:1]
    if len(found) > 1:
        raise _several(file, [str(one.name) for one in found])
    return replay(found[0])


def _names(found: Sequence[Snapshot]) -> str:
    return ", ".join(str(one.name or one.run_id) for one in found[:20])


def _several(file: str, names: Sequence[str]) -> UsageError:
    shown = ", ".join(names[:20])
    return UsageError(f"{file} has {len(names)} recordings: {shown}. Choose one with --run NAME.")


if __name__ == "__main__":
    sys.exit(main())
