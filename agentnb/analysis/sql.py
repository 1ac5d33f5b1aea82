"""The tables of recordings in SQL: an open DuckDB connection (`connect`), and partitioned Parquet files (`to_parquet`).

The tables and their columns are those of `agentnb.analysis.frames`. Data (arguments, results, outputs, tags) are JSON,
of which `output->>'$.name'` returns a part. A missing value is NULL. The files are partitioned by the column `study`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentnb.analysis import frames
from agentnb.analysis.frames import data_columns
from agentnb.analysis.rows import CallRow, DecisionRow, EventRow, MessageRow
from agentnb.analysis.run_rows import RunRow
from agentnb.analysis.sources import sources
from agentnb.core.errors import UsageError
from agentnb.core.lazy import optional_module
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.validation import check_path, expanded, shown
from agentnb.store import is_address, is_store
from agentnb.widgets.text import as_json

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pandas import DataFrame

TABLES = {"runs": RunRow, "calls": CallRow, "events": EventRow, "decisions": DecisionRow, "messages": MessageRow}
"""The tables, each with the class of its rows."""


def connect(of: Any, *, tables: Sequence[str] = tuple(TABLES)) -> DuckDBPyConnection:
    """Return a DuckDB connection that has the tables of recordings.

        database = connect(store)
        database.sql("SELECT tool, count(*), avg(took) FROM calls GROUP BY tool").df()

    of: a store, a study or other recordings, whose tables are read into memory as they are now; or a folder that
    `to_parquet` wrote, whose files are read by each query. tables: the tables to read; `messages` takes the longest.

    Raises UsageError if a table does not exist, or if DuckDB is not installed.
    """
    _check_tables(tables)
    connection: DuckDBPyConnection = _duckdb().connect()
    try:
        if isinstance(of, (str, Path)) and (folder := Path(of)).is_dir() and _tables_in(folder):
            for name in _tables_in(folder):
                if name in tables:
                    files = str(folder / name / "**" / "*.parquet").replace("'", "''")
                    options = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
                    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{files}', {options})")
        else:
            for name, frame in _frames(of, tables):
                with _registered(connection, name, frame) as select:
                    connection.execute(f"CREATE TABLE {name} AS {select}")
    except BaseException:
        connection.close()
        raise
    return connection


def to_parquet(of: Any, folder: str | Path, *, tables: Sequence[str] = tuple(TABLES)) -> Path:
    """Write the tables of recordings as Parquet files, and return the folder.

    Each table is a folder, with a folder for each study in it: `calls/study=levelled/data_0.parquet`. pandas, Polars,
    DuckDB and Spark read such a folder as one table.

    of: a store, a study or other recordings. folder: a new or an empty folder. It is complete when it is there: the
    files are written to a temporary folder next to it. Its owner alone can open it, because the tables hold
    conversations; `folder.chmod(0o755)` shares it.

    Raises UsageError if the folder is not empty, if a table does not exist, or if DuckDB is not installed.
    """
    _check_tables(tables)
    check_path("to_parquet(of, folder)", folder)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder. Choose another one, or delete it first.")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"{folder.absolute().parent} is not a folder. Create it first.")
    duckdb = _duckdb()
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        with duckdb.connect() as connection:
            for name, frame in _frames(of, tables):
                target = str(made / name).replace("'", "''")
                with _registered(connection, name, frame) as select:
                    if len(frame):
                        options = "FORMAT parquet, COMPRESSION zstd, PARTITION_BY (study)"
                    else:  # one file that has only the columns: without rows there are no partitions
                        Path(made / name).mkdir()
                        target, options = f"{target}/data_0.parquet", "FORMAT parquet"
                    connection.execute(f"COPY ({select}) TO '{target}' ({options})")
        made.replace(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return folder


def _frames(of: Any, tables: Sequence[str]) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name and the frame of each table."""
    if isinstance(of, (str, Path)):  # a file is read once, and not for each table again
        named = [(source.name, source.events) for source in sources(of)] if _is_one_file(of) else []
        of = [Snapshot(tuple(events), name) for name, events in named] or of
    elif hasattr(of, "__next__"):
        of = list(of)
    for name in tables:
        yield name, getattr(frames, name)(of)


def _is_one_file(of: str | Path) -> bool:
    """Return True for the path of a file with recordings, and not of a store, whose tables are read in bulk."""
    path = expanded(of)
    return not is_address(of) and path.is_file() and not is_store(path)


@contextmanager
def _registered(connection: DuckDBPyConnection, table: str, frame: DataFrame) -> Iterator[str]:
    """Make a frame known to DuckDB, and yield the statement that selects its rows."""
    # Data are passed as JSON, and the labels of an arm, which may have several types, as texts.
    data = set(data_columns(TABLES[table]))
    texts: dict[str, Any] = {}
    for name in map(str, frame):
        if name in data:
            texts[name] = [None if value is None else as_json(value).decode() for value in frame[name]]
        elif frame[name].dtype == object:
            texts[name] = [
                None if missing else str(value) for value, missing in zip(frame[name], frame[name].isna(), strict=True)
            ]
    as_json_type = ", ".join(f'"{name}"::JSON AS "{name}"' for name in texts if name in data)
    connection.register("frame_of_a_table", frame.assign(**texts))
    try:
        yield f"SELECT * {f'REPLACE ({as_json_type})' if as_json_type else ''} FROM frame_of_a_table"
    finally:
        connection.unregister("frame_of_a_table")


def _tables_in(folder: Path) -> list[str]:
    """Return the tables that a folder has, as `to_parquet` writes them."""
    return [name for name in TABLES if next((folder / name).glob("**/*.parquet"), None) is not None]


def _check_tables(tables: Sequence[str]) -> None:
    if isinstance(tables, str) or not isinstance(tables, Sequence):
        raise UsageError(f"tables= must be a list of names, not {shown(tables)}.")
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"There is no table {shown(name)}; the tables are {', '.join(TABLES)}.")


def _duckdb() -> Any:
    return optional_module("duckdb", "SQL and Parquet need DuckDB", "duckdb")
