"""LangGraph: the history of a thread's states (a JSON list), and the SQLite database of a checkpointer.

Each state repeats the messages of earlier ones. A message gets the time of the first state that has it; the other
values of a state are values of the run, at each state that changes them. An interrupt
about a call is a question to a person; the answer is in a database (`__resume__`), and not in a history of states.
Objects in a database are read as data: no class is imported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentnb.core.events import Decision, Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import content_of, openai_answer, openai_usage
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Writer, seconds

name = "LangGraph"

_DATABASE = b"SQLite format 3\0"
_ROLES = {"human": "user", "HumanMessage": "user", "SystemMessage": "system", "system": "system"}
_DECISIONS: dict[str, Decision] = {"approve": "approve", "accept": "approve", "reject": "reject", "ignore": "reject"}

State = Mapping[str, Any]


def recognises(file: ForeignFile) -> bool:
    """Return True for a list of states, and for a database with the tables of a checkpointer."""
    if file.data.startswith(_DATABASE):
        return b"checkpoint_ns" in file.data and b"parent_checkpoint_id" in file.data
    states = file.document
    first = states[0] if isinstance(states, list) and states else None
    return isinstance(first, Mapping) and {"values", "config", "created_at"} <= first.keys()


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of the threads, one after the other."""
    threads = _stored(file) if file.data.startswith(_DATABASE) else _history(file)
    if not threads:
        raise file.refused("it has no state with messages.")
    for thread, states in threads.items():
        file.begin()
        yield from _thread(file, thread, states)


def _history(file: ForeignFile) -> dict[str, list[State]]:
    """Return the states of each thread, the oldest first."""
    threads: dict[str, list[State]] = {}
    for number, state in enumerate(file.document, 1):
        if not isinstance(state, Mapping) or not isinstance(state.get("values"), Mapping):
            file.damaged(f"state {number} has no values", "damaged states")
            continue
        config = state.get("config")
        place = config.get("configurable") if isinstance(config, Mapping) else None
        where: Mapping[str, Any] = place if isinstance(place, Mapping) else {}
        if where.get("checkpoint_ns"):
            file.lost["states of sub-graphs"] += 1
            continue
        threads.setdefault(str(where.get("thread_id") or ""), []).insert(0, state)
    return threads


def _stored(file: ForeignFile) -> dict[str, list[State]]:
    """Return the states of each thread in a database, the oldest first. The file is not opened, only its content."""
    threads: dict[str, list[State]] = {}
    database = sqlite3.connect(":memory:")
    try:
        # Of a database with a write-ahead log, only the file is read: these bytes say that it needs no log.
        database.deserialize(file.data[:18] + b"\1\1" + file.data[20:])
        _guard(file, database)
        rows = database.execute(
            "SELECT thread_id, checkpoint_ns, checkpoint_id, type, checkpoint FROM checkpoints ORDER BY checkpoint_id"
        ).fetchall()
        writes = database.execute(
            "SELECT thread_id, checkpoint_ns, checkpoint_id, channel, type, value FROM writes"
            " WHERE channel IN ('__interrupt__', '__resume__') ORDER BY checkpoint_id, idx"
        ).fetchall()
    except sqlite3.Error as error:
        raise file.refused(f"it is a damaged database: {error}.") from error
    finally:
        database.close()
    marks: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for thread, space, id, channel, kind, value in writes:
        found = _decoded(file, kind, value, f"write of checkpoint {id}")
        if not space and found is not None:
            marks.setdefault((str(thread), str(id)), {}).setdefault(str(channel), []).append(found)
    for thread, space, id, kind, value in rows:
        if space:
            file.lost["states of sub-graphs"] += 1
            continue
        checkpoint = _decoded(file, kind, value, f"checkpoint {id}")
        if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("channel_values"), Mapping):
            own = marks.get((str(thread), str(id)), {})
            flat = [
                one for given in own.get("__interrupt__", []) for one in (given if isinstance(given, list) else [given])
            ]
            state = {"values": checkpoint["channel_values"], "created_at": checkpoint.get("ts"), "interrupts": flat}
            threads.setdefault(str(thread), []).append({**state, "resumed": own.get("__resume__", [])})
    return threads


def _guard(file: ForeignFile, database: sqlite3.Connection) -> None:
    """Refuse a database whose tables are something else: a view runs code of the file. Bound what a query may do."""
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    kinds = database.execute("SELECT type, name, sql FROM sqlite_master WHERE name IN ('checkpoints', 'writes')")
    for kind, table, sql in kinds.fetchall():
        if kind != "table" or not str(sql).upper().startswith("CREATE TABLE") or " GENERATED " in str(sql).upper():
            raise file.refused(f"{table} is not a plain table of a checkpointer.")
    left = iter(range(10_000 + len(file.data)))
    database.set_progress_handler(lambda: next(left, None) is None, 1000)


def _decoded(file: ForeignFile, kind: Any, value: Any, place: str) -> Any:
    """Return the data in a value of the database; None if it is damaged or of another kind, which is counted."""
    try:
        if kind == "json":
            return msgspec.json.decode(value)
        if kind == "msgpack":
            return msgspec.msgpack.decode(value, ext_hook=_extension)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        file.damaged(f"{place}: {error}", "damaged states")
        return None
    file.lost[f"values of type {kind}"] += 1
    return None


def _extension(code: int, data: memoryview) -> Any:
    """Return the fields of an object: [module, class, fields, method]. The class is not imported."""
    found = msgspec.msgpack.decode(bytes(data), ext_hook=_extension)
    if isinstance(found, list) and len(found) >= 3 and isinstance(found[1], str):
        if isinstance(found[2], Mapping):
            return {"type": found[1], **found[2]}
        return found[2]
    return found


def _thread(file: ForeignFile, thread: str, states: Sequence[State]) -> Iterator[Event]:
    """Yield the events of a thread."""
    writer = Writer(file.lost, name="langgraph", about={"id": thread})
    seen: set[str] = set()
    last: dict[str, Any] = {}
    for state in states:
        time = seconds(state.get("created_at"), file.lost)
        values = state["values"]
        messages = values.get("messages")
        for number, given in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(given, Mapping) and isinstance(given.get("kwargs"), Mapping):  # LangChain's own format
                given = {"type": str((given.get("id") or [""])[-1]), **given["kwargs"]}
            if not isinstance(given, Mapping):
                file.lost["messages that are not objects"] += 1
                continue
            id = str(given.get("id") or number)
            if id not in seen:
                seen.add(id)
                yield from _message(file, given, writer, time)
        # The other values of the state, if they changed.
        own = {
            key: value
            for key, value in values.items()
            if key != "messages" and value not in (None, {}, []) and not str(key).startswith(("__", "branch:"))
        }
        if own != last:
            yield from writer.update({"values": own}, time)
            last = own
        yield from _interrupts(file, state, writer, time)
    yield from writer.start()


def _message(file: ForeignFile, given: Mapping[str, Any], writer: Writer, time: float) -> Iterator[Event]:
    kind = str(given.get("type") or given.get("role") or "")
    if kind in ("ai", "assistant", "AIMessage", "AIMessageChunk"):
        answer = openai_answer(given, file.lost)
        own = given.get("response_metadata")
        about: Mapping[str, Any] = own if isinstance(own, Mapping) else {}
        model, reason = about.get("model_name") or about.get("model"), about.get("finish_reason")
        answer.model = model if isinstance(model, str) else None
        answer.finish_reason = reason if isinstance(reason, str) else None
        answer.usage = openai_usage(given.get("usage_metadata"))
        for number, call in enumerate(answer.calls):
            call.id = call.id or f"{given.get('id')}_{number + 1}"
        yield from writer.answer(answer, time)
    elif kind in ("tool", "ToolMessage"):
        is_error = given.get("status") == "error"
        id, details = str(given.get("tool_call_id") or ""), given.get("artifact")
        yield from writer.result(id, content_of(given.get("content")), time, is_error=is_error, details=details)
    else:
        yield from writer.message(
            Message(role=_ROLES.get(kind, "user"), content=content_of(given.get("content"))), time
        )


def _interrupts(file: ForeignFile, state: State, writer: Writer, time: float) -> Iterator[Event]:
    """Yield the questions that a state has stopped at, and the answers to them if they are known."""
    asked: list[str] = []
    for interrupt in state.get("interrupts") or ():
        value = interrupt.get("value") if isinstance(interrupt, Mapping) else None
        requests = value.get("action_requests") if isinstance(value, Mapping) else None
        for request in requests if isinstance(requests, list) else ():
            called = request.get("name") or request.get("action") if isinstance(request, Mapping) else None
            found = (id for id in writer.open_calls if id not in asked and writer.name_of(id) == called)
            if (id := next(found, None)) is None:
                file.lost["questions about unknown calls"] += 1
                continue
            asked.append(id)
            yield from writer.question(id, time, str(request.get("description") or ""))
        if requests is None:
            file.lost["interrupts of other kinds"] += 1
    answers: list[Any] = []
    for resumed in state.get("resumed") or ():
        for one in resumed if isinstance(resumed, list) else [resumed]:
            given = one.get("decisions") if isinstance(one, Mapping) else None
            answers += given if isinstance(given, list) else []
    for id, answer in zip(asked, answers, strict=False):
        kind = str(answer.get("type")) if isinstance(answer, Mapping) else ""
        if kind == "edit":
            action = answer.get("edited_action")
            arguments = action.get("args") if isinstance(action, Mapping) else None
            fields: dict[str, Any] = {"arguments": to_json_data(arguments) if isinstance(arguments, Mapping) else {}}
            yield from writer.decision(id, "edit", by="human", **fields)
        elif kind in _DECISIONS:
            yield from writer.decision(id, _DECISIONS[kind], by="human", reason=str(answer.get("message") or ""))
        else:
            file.lost[f"decisions {kind}"] += 1
    if asked and not answers:
        file.lost["answers of a person"] += len(asked)
