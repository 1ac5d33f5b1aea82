"""The questions of a store: those that wait for a person in any process, and the decisions that other processes make.

The process that drives a run publishes each open question here, as it would show it to a person, and it is the only one
that records decisions as events. Another process writes its decision into the row of the question. The first decision
that a row gets is the only one. The driving process applies it, and writes the outcome into the row.

The table is no part of the recordings: it is created by the first process that opens an inbox, and without it nothing
is published. A driving process waits on the channel `DECIDED`, an inbox on the channel `ASKED`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple
from zlib import crc32

from agentnb.core import errors
from agentnb.core.errors import AgentnbError
from agentnb.core.json import to_json_data
from agentnb.run import Pending
from agentnb.store.database import SPAN, Database, as_bytes, keys

Channel = Literal["agentnb_asked", "agentnb_decided"]
ASKED: Channel = "agentnb_asked"
DECIDED: Channel = "agentnb_decided"

TABLE = "questions"
STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS questions (key {key}, driver TEXT NOT NULL, question {bytes} NOT NULL,"
    " decision {bytes}, refusal {bytes}, outcome {bytes})",
    "CREATE INDEX IF NOT EXISTS open_questions ON questions (key) WHERE outcome IS NULL",
)
"""The statements that create the table. `key` is the key of the event of the question, `driver` names the process that
drives its run. The other columns are JSON with a checksum (`sealed`). A decision is kept with its outcome; a decision
that the run refuses is removed, and the reason is the `refusal`."""


class Question(NamedTuple):
    """A row of the table. A value is None if the row does not have it, or if it is damaged."""

    key: int
    driver: str
    question: dict[str, Any] | None
    decision: dict[str, Any] | None
    refusal: dict[str, Any] | None
    outcome: dict[str, Any] | None


def sealed(key: int, data: Mapping[str, Any]) -> bytes:
    """Return data as JSON, with a checksum before it that belongs to this row only."""
    text = json.dumps(to_json_data(dict(data)), sort_keys=True).encode()
    return b"%08x" % crc32(text, key & 0xFFFFFFFF) + text


def unsealed(key: int, value: object) -> dict[str, Any] | None:
    """Return the data that `sealed` wrote; None for an empty field or damaged data."""
    checksum, text = as_bytes(value)[:8], as_bytes(value)[8:]
    if checksum != b"%08x" % crc32(text, key & 0xFFFFFFFF):
        return None
    data = json.loads(text) if text else None
    return data if isinstance(data, dict) else None


def pending_from_json(data: Mapping[str, Any]) -> Pending:
    """Return the question that was sent as data (`dataclasses.asdict`)."""
    return Pending(**{**data, "needs": tuple(data["needs"])})


def error_from_json(error: Sequence[str]) -> Exception:
    """Return the error of a decision that another process has sent as the name of its class and its text."""
    name, text = error
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, AgentnbError):
        return kind(text)
    return RuntimeError(f"{name}: {text}")


# -- reading ---------------------------------------------------------------------------------------------------------


def read(database: Database, condition: str, *values: object) -> list[Question]:
    """Return the rows that meet a condition, in the order of runs and events."""
    sql = f"SELECT key, driver, question, decision, refusal, outcome FROM questions WHERE {condition} ORDER BY key"
    return [
        Question(key, driver, *(unsealed(key, value) for value in sealed_values))
        for key, driver, *sealed_values in database.query(sql, *values)
    ]


def of_run(database: Database, number: int) -> list[Question]:
    """Return the open questions of a run."""
    return read(database, "key BETWEEN ? AND ? AND outcome IS NULL", *keys(number))


def decided_for(database: Database, driver: str) -> list[Question]:
    """Return the open questions of a driving process about which another one has decided."""
    return read(database, "outcome IS NULL AND decision IS NOT NULL AND driver = ?", driver)


def at(database: Database, some: Sequence[int]) -> list[Question]:
    """Return the rows with these keys."""
    return read(database, f"key IN ({', '.join(map(str, some))})")


def waiting(database: Database, tags: Collection[str]) -> list[tuple[str, Pending]]:
    """Return the questions about which no process has decided, of the runs that have all these tags.

    Each comes with the name of its run, or its id. The run that was added to the store first is at the beginning.
    """
    has_tag = f" AND EXISTS (SELECT 1 FROM tags WHERE tags.run = key / {SPAN} AND tag = ?)"
    sql = (
        f"SELECT coalesce(name, id), key, question FROM questions JOIN runs ON runs.number = key / {SPAN}"
        f" WHERE outcome IS NULL AND decision IS NULL{has_tag * len(tags)} ORDER BY key"
    )
    found = [(str(name), unsealed(key, question)) for name, key, question in database.query(sql, *tags)]
    return [(name, pending_from_json(question)) for name, question in found if question is not None]


# -- writing, in a transaction ---------------------------------------------------------------------------------------


def publish(database: Database, key: int, driver: str, item: Pending) -> None:
    """Add an open question, in place of an older one with this key."""
    database.write(
        "INSERT INTO questions (key, driver, question) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
        " driver = excluded.driver, question = excluded.question, decision = NULL, refusal = NULL, outcome = NULL",
        *(key, driver, sealed(key, asdict(item))),
    )


def take_over(database: Database, key: int, driver: str) -> None:
    """Note that another process drives the run of a question now; a decision that the row has is kept."""
    database.write("UPDATE questions SET driver = ? WHERE key = ?", driver, key)


def decide(database: Database, key: int, decision: Mapping[str, Any]) -> None:
    """Write a decision into the row of a question, unless the row has one already."""
    database.write(
        "UPDATE questions SET decision = ?, refusal = NULL WHERE key = ? AND decision IS NULL AND outcome IS NULL",
        *(sealed(key, decision), key),
    )


def refuse(database: Database, key: int, refusal: Mapping[str, Any]) -> None:
    """Remove a decision that cannot be applied, and write the reason. The question is open again."""
    database.write("UPDATE questions SET decision = NULL, refusal = ? WHERE key = ?", sealed(key, refusal), key)


def close(database: Database, key: int, outcome: Mapping[str, Any]) -> None:
    """Write the outcome of a question, which is then no longer open."""
    database.write("UPDATE questions SET outcome = ? WHERE key = ?", sealed(key, outcome), key)
