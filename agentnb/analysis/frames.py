"""Tidy tables of recordings: one row for each event, call, message or decision (pandas).

Each function takes a run (which may still be running), a replay, a snapshot, a store, the path of a snapshot or a
store, a mapping of names to these, or a sequence of these. The column `run` identifies the recording. Times are seconds
since the first event of the run, NaN if the event has not happened. `COLUMNS` has the meaning and the unit of each
column; a frame has the same texts in `frame.attrs["columns"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints

from agentnb.analysis.call_rows import CallRow, DecisionRow, call_rows, decision_rows
from agentnb.analysis.event_rows import EventRow, event_rows
from agentnb.analysis.message_rows import MessageRow, message_rows
from agentnb.analysis.sources import Source, sources
from agentnb.core.errors import UsageError
from agentnb.core.json import to_plain

if TYPE_CHECKING:
    from pandas import DataFrame

_WHERE = {
    "run": "the recording: its name, or else the run's id",
    "path": 'where in nested loops it happened, "" for the outermost',
    "loop": "the name of the loop it happened in",
    "turn": "the request to the model it belongs to, from 1; 0 before the first",
}
_INHERITED = "whether it happened in the run this one was forked from; read together, it is counted in that one alone"
COLUMNS: dict[str, dict[str, str]] = {
    "events": {
        "run": _WHERE["run"],
        "seq": "the event's position in the recording, from 0",
        "time": "when it happened, UTC",
        "seconds": "when it happened, in s since the run's first event",
        "path": _WHERE["path"],
        "loop": _WHERE["loop"],
        "type": "what happened: run_start, model_end, call_start, ...",
        "phase": "the phase the loop is in from here on",
        "turn": _WHERE["turn"],
        "call_id": "the call it is about, if any",
        "tool": "that call's tool",
        "text": "what was said, or what it says in short: arguments and results as JSON",
        "provider": "a request's: who was asked, openai for one",
        "model": "a request's: the model that was asked for; an answer's: the model that answered, as the server says",
        "finish_reason": "an answer's: why it ended, in the server's own word",
        "inherited": _INHERITED,
    },
    "calls": {
        "run": _WHERE["run"],
        "path": _WHERE["path"],
        "loop": _WHERE["loop"],
        "turn": _WHERE["turn"],
        "call_id": "the call's id, unique in its loop's turn",
        "tool": "the tool that ran, or that would have",
        "own": "whether it is a call of the loop's own (retrieval, a sub-agent) and not one of the model's",
        "arguments": "what it ran with, or what it was proposed with; a dict",
        "decision": "what was decided last: approve, reject, edit, replace, answer, ask; missing where nobody did",
        "by": "who decided: human, code, rule, remembered, deadline, headless, fork, or a function's name",
        "outcome": "how its result came about: returned, raised, timed_out, invalid, rejected, answered, aborted, ...",
        "is_error": "whether the model was told that it failed",
        "result": "its result, a JSON value",
        "error": "the type of the exception, where one was raised",
        "attempts": "how often it was started",
        "proposed": "when it was proposed, s",
        "asked": "when a person was asked, s",
        "decided": "when it was decided, s",
        "started": "when it was started last, s",
        "ended": "when it had its result, s",
        "waited": "from the question to the decision, s",
        "took": "from its start to its result, s; NaN where nobody knows how long it ran",
        "arguments_text": "the arguments as JSON text, to group by",
        "tries": "which time its loop called this tool with these arguments, from 1",
        "inherited": _INHERITED,
    },
    "messages": {
        "run": _WHERE["run"],
        "seq": "the event it entered the history with",
        "seconds": "when that was, s",
        "path": _WHERE["path"],
        "turn": _WHERE["turn"],
        "role": "system, user, assistant, tool, or a role of your own",
        "origin": "where it came from: input, steering, follow_up, loop, history; missing for answers and results",
        "content": "its text",
        "calls": "how many calls it makes",
        "call_id": "the call it is the result of",
        "input_tokens": "an answer's: tokens the model read",
        "output_tokens": "an answer's: tokens it wrote",
        "cost": "an answer's: what it cost, as the model told it",
        "took": "an answer's: from the request to its end, s",
        "stop_reason": "an answer's: why it ended; error or aborted where it broke off",
        "finish_reason": "an answer's: why it ended, in the server's own word",
        "provider": "an answer's: who was asked, openai for one",
        "model_asked": "an answer's: the model that was asked for",
        "model": "an answer's: the model that answered, as the server says",
        "response_id": "an answer's: the id that the server gave it",
        "fingerprint": "an answer's: the server's word for the configuration the model ran with",
        "service_tier": "an answer's: the tier that served it",
        "upstream": "an answer's: the provider behind a gateway",
        "attempts": "an answer's: how often the model was asked for it",
        "inherited": _INHERITED,
    },
    "decisions": {
        "run": _WHERE["run"],
        "seq": "the event's position in the recording",
        "seconds": "when it was decided, s",
        "path": _WHERE["path"],
        "call_id": "the call",
        "tool": "the call's tool",
        "arguments": "what the call was going to run with; a dict",
        "decision": "approve, reject, edit, replace, answer; ask where an earlier one was taken back",
        "by": "who decided: human, code, rule, remembered, deadline, headless, fork, or a function's name",
        "reason": "the reason that was given",
        "instead": "an edit's: what it runs with instead",
        "remember": "tool or arguments, where it holds for later calls too",
        "asked": "when a person was asked, s",
        "waited": "from the question to the decision, s; NaN where nobody was asked, or a fork decided",
        "question": "the position of the question that it answers; missing where nobody was asked",
        "reviewer": "the person's name, where it was declared",
        "shown": "the digest of the question as it was shown",
        "took": "a person's: from when the question was shown to the decision, s",
        "arguments_text": "the arguments as JSON text, to group by",
        "inherited": _INHERITED,
    },
}
"""The meaning of each column of each frame, with its unit (s: seconds)."""


def events(of: Any) -> DataFrame:
    """Return a row for each event, in order. `COLUMNS["events"]` describes the columns.

    of: one recording or several. Raises UsageError if `of` is not a recording, or if pandas is not installed.
    """
    frame = _frame("events", of, event_rows, EventRow)
    frame["time"] = _pandas().to_datetime(frame["time"], unit="s", utc=True).dt.as_unit("ns")
    return frame


def calls(of: Any) -> DataFrame:
    """Return a row for each call, in the order of their proposals. `COLUMNS["calls"]` describes the columns.

    of: one recording or several. Raises UsageError as `events` does.
    """
    return _frame("calls", of, call_rows, CallRow)


def messages(of: Any) -> DataFrame:
    """Return a row for each message of each loop's history. `COLUMNS["messages"]` describes the columns.

    of: one recording or several. Raises UsageError as `events` does.
    """
    return _frame("messages", of, message_rows, MessageRow)


def decisions(of: Any) -> DataFrame:
    """Return a row for each decision about a call, in order. `COLUMNS["decisions"]` describes the columns.

    Decisions of people, policies and code are included, also those that were withdrawn.

    of: one recording or several. Raises UsageError as `events` does.
    """
    return _frame("decisions", of, decision_rows, DecisionRow)


def frame_of(rows: Sequence[Any], row: type, columns: Mapping[str, str]) -> DataFrame:
    """Return a frame of rows of one dataclass. The type hints of `row` determine the column types, also without rows.

    columns: the description of each column, for `frame.attrs`. Raises UsageError if pandas is not installed.
    """
    pandas = _pandas()
    text = pandas.Series([""]).dtype  # the text type of the installed pandas version
    types = {str: text, int: "int64", float: "float64", bool: "bool", bool | None: "boolean", int | None: "Int64"}
    frame: DataFrame = pandas.DataFrame(
        {
            name: pandas.Series(  # copies: a change of a row must not change the recording
                [to_plain(getattr(one, name)) for one in rows], dtype=types.get(_without_none(hint), object)
            )
            for name, hint in get_type_hints(row).items()
        }
    )
    frame.attrs["columns"] = dict(columns)
    return frame


def _without_none(hint: Any) -> Any:
    """Return the type of a column: str for a literal and for optional text, the hint itself otherwise."""
    if get_origin(hint) is Literal or hint == str | None:
        return str
    return hint


def _frame(kind: str, of: Any, rows_of: Callable[[Source], Iterable[Any]], row: type) -> DataFrame:
    return frame_of([one for source in sources(of) for one in rows_of(source)], row, COLUMNS[kind])


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("Frames need pandas: pip install 'agentnb-toolkit[analysis]'.") from None
    return pandas
