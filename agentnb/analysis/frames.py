"""Tidy tables of recordings: one row for each event, call, message or decision (pandas).

Each function takes a run (which may still be running), a replay, a snapshot, a store, the path of a snapshot or a
store, a mapping of names to these, or a sequence of these. The column `run` identifies the recording. Times are seconds
since the first event of the run, NaN if the event has not happened. `COLUMNS` has the meaning and the unit of each
column; a frame has the same texts in `frame.attrs["columns"]`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints

from agentnb.analysis.rows import (
    CallRow,
    DecisionRow,
    EventRow,
    MessageRow,
    call_rows,
    decision_rows,
    event_rows,
    message_rows,
)
from agentnb.analysis.run_rows import RunRow, arm_of, row_without_events, run_row, tagged_sources
from agentnb.analysis.sources import Source, outlined_sources, sources
from agentnb.core.json import to_plain
from agentnb.core.lazy import optional_module

if TYPE_CHECKING:
    from pandas import DataFrame

_WHERE = {
    "run": "the recording: its name, or else the run's id",
    "path": 'the path of the nested loop it happened in, "" for the outermost loop',
    "loop": "the name of the loop it happened in",
    "turn": "the number of the model request it belongs to, from 1; 0 before the first",
}
_ARM = "of a run of a study: "
_INHERITED = "whether it happened in the run that this run was forked from; if both are read, it is counted only there"
COLUMNS: dict[str, dict[str, str]] = {
    "events": {
        "run": _WHERE["run"],
        "seq": "the event's position in the recording, from 0",
        "time": "the time at which it happened, UTC",
        "seconds": "the time at which it happened, in s since the run's first event",
        "path": _WHERE["path"],
        "loop": _WHERE["loop"],
        "type": "the event's type: run_start, model_end, call_start, ...",
        "phase": "the phase of the loop after the event",
        "turn": _WHERE["turn"],
        "call_id": "the id of the call it concerns, if any",
        "tool": "that call's tool",
        "text": "the content in short form: a message, a reason, or arguments and results as JSON",
        "provider": "of a request: the provider, for example openai",
        "model": "of a request: the requested model; of an answer: the model that answered, as reported by the server",
        "finish_reason": "of an answer: the reason for its end, in the server's vocabulary",
        "inherited": _INHERITED,
    },
    "calls": {
        "run": _WHERE["run"],
        "path": _WHERE["path"],
        "loop": _WHERE["loop"],
        "turn": _WHERE["turn"],
        "call_id": "the call's id, unique in its loop's turn",
        "tool": "the tool that ran, or that would have run",
        "own": "whether the loop made the call itself (retrieval, a sub-agent), not the model",
        "arguments": "the arguments it ran with, or was proposed with; a dict",
        "decision": "the last decision: approve, reject, edit, replace, answer, ask; missing if there was none",
        "by": "who decided: human, code, rule, remembered, deadline, headless, fork, or a function's name",
        "outcome": "the origin of its result: returned, raised, timed_out, invalid, rejected, answered, aborted, ...",
        "is_error": "whether the model received the result as an error",
        "result": "its result, a JSON value",
        "error": "the type of the exception, if one was raised",
        "attempts": "the number of its starts",
        "proposed": "when it was proposed, s",
        "asked": "when a person was asked, s",
        "decided": "when it was decided, s",
        "started": "when it was started last, s",
        "ended": "when it had its result, s",
        "waited": "from the question to the decision, s",
        "took": "from its start to its result, s; NaN if its duration is unknown",
        "arguments_text": "the arguments as JSON text, for grouping",
        "tries": "the number of calls so far that its loop made of this tool with these arguments, from 1",
        "inherited": _INHERITED,
    },
    "messages": {
        "run": _WHERE["run"],
        "seq": "the position of the event that added it to the history",
        "seconds": "the time of that event, s",
        "path": _WHERE["path"],
        "turn": _WHERE["turn"],
        "role": "system, user, assistant, tool, or a user-defined role",
        "origin": "its origin: input, steering, follow_up, loop, history; missing for answers and results",
        "content": "its text",
        "calls": "the number of calls it makes",
        "call_id": "the id of the call of which it is the result",
        "input_tokens": "of an answer: the tokens that the model read",
        "output_tokens": "of an answer: the tokens that it wrote",
        "cost": "of an answer: its cost in US dollars, as reported by the model, or else estimated",
        "cost_is_estimated": "of an answer: whether the cost is estimated from the prices of the package genai-prices",
        "cache_read_tokens": "of an answer: the part of input_tokens that the server has read from its cache",
        "took": "of an answer: from the request to its end, s",
        "stop_reason": "of an answer: the reason for its end; error or aborted if it was interrupted",
        "finish_reason": "of an answer: the reason for its end, in the server's vocabulary",
        "provider": "of an answer: the provider, for example openai",
        "model_asked": "of an answer: the requested model",
        "options": "of an answer: the options of its request, without secrets; a dict",
        "model": "of an answer: the model that answered, as reported by the server",
        "response_id": "of an answer: the id that the server assigned",
        "fingerprint": "of an answer: the server's name of the configuration that the model ran with",
        "service_tier": "of an answer: the service tier",
        "upstream": "of an answer: the provider behind a gateway",
        "attempts": "of an answer: the number of requests that were made for it",
        "inherited": _INHERITED,
    },
    "decisions": {
        "run": _WHERE["run"],
        "seq": "the event's position in the recording",
        "seconds": "the time of the decision, s",
        "path": _WHERE["path"],
        "call_id": "the id of the call",
        "tool": "the call's tool",
        "arguments": "the arguments that the call was going to run with; a dict",
        "decision": "approve, reject, edit, replace, answer; ask if an earlier decision was withdrawn",
        "by": "who decided: human, code, rule, remembered, deadline, headless, fork, or a function's name",
        "reason": "the given reason",
        "instead": "of an edit or a replacement: the new arguments",
        "remember": "tool or arguments, if the decision applies to later calls too",
        "asked": "when a person was asked, s",
        "waited": "from the question to the decision, s; NaN if no person was asked, or a fork decided",
        "question": "the position of the question that it answers; missing if no person was asked",
        "reviewer": "the person's name, if it was declared",
        "shown": "the digest of the question as it was shown",
        "took": "of a person's decision: from the display of the question to the decision, s",
        "arguments_text": "the arguments as JSON text, for grouping",
        "inherited": _INHERITED,
    },
    "runs": {
        "run": _WHERE["run"],
        "id": "the id of the run",
        "study": f"{_ARM}the name of the study",
        "loop": "the kind of the loop",
        "outcome": "done, failed, cancelled, open (not ended), or not started",
        "stop_reason": "the reason for the end: completed, limit, max_turns, error, ...; missing for an open run",
        "output": "the output, a JSON value",
        "error": "the type and the message of the error that the run failed with",
        "turns": "the number of requests to models, without repeated attempts",
        "calls": "the number of calls that were started",
        "retries": "the number of those that repeat an earlier call: the same tool with the same arguments",
        "call_errors": "the number of results that the model received as errors",
        "model_errors": "the number of failures of the model",
        "input_tokens": "the tokens that the models read; NaN if none were reported",
        "output_tokens": "the tokens that they wrote; NaN if none were reported",
        "cost": "the cost in US dollars, as reported by the models, or else estimated; NaN if it is not known",
        "cost_is_estimated": "whether a part of the cost is estimated from the prices of the package genai-prices",
        "without_price": "the models without a reported cost and a known price; their part of the cost is missing",
        "cache_read_tokens": "the part of input_tokens that the servers have read from their caches",
        "cache_saved": "the estimated cost that these caches have saved, less what writing to them has cost",
        "began": "the time of the first event, UTC",
        "seconds": "from the first to the last event, s",
        "waited": "the time in which at least one question waited for a decision, s",
        "decisions": "the number of decisions about calls",
        "by_human": "those by a person with a panel",
        "by_code": "those by code that decides for a person",
        "by_policy": "those by rules, functions, deadlines and remembered decisions",
        "model": "the models that answered, as reported by the servers",
        "events": "the number of events",
        "tags": "the tags, a list",
        "options": "the options of its model requests that it was started, restored or forked with; a dict",
        "arm": f"{_ARM}the labels of its arm as text; each factor also has a column of its own, arm_FACTOR",
        "input": f"{_ARM}the number of its input, from 0",
        "repeat": f"{_ARM}the number of its repeat, from 0",
        "seed": f"{_ARM}its seed",
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


def runs(of: Any) -> DataFrame:
    """Return a row for each run, oldest first; of a study, in its order. `COLUMNS["runs"]` describes the columns.

        table = agentnb.analysis.runs(study)
        table.groupby("arm_model").cost.mean()

    Each factor of a study has a column of its own, `arm_` and its name. A run of a study that was not started, or whose
    loop could not be made, has a row too.

    of: a study, a store, or any other recording or recordings. Raises UsageError as `events` does.
    """
    pandas = _pandas()
    found, without_events = tagged_sources(of)
    rows = [run_row(one.source, one.tags) for one in found]
    arms = [arm_of(one.source) for one in found]
    rows += [row_without_events(run, of.name) for run in without_events]
    arms += [run.arm for run in without_events]
    frame = frame_of(rows, RunRow, COLUMNS["runs"])
    frame["began"] = pandas.to_datetime(frame["began"], unit="s", utc=True).dt.as_unit("ns")
    for factor in dict.fromkeys(factor for arm in arms for factor in arm):
        frame[f"arm_{factor}"] = [arm.get(factor) for arm in arms]
        frame.attrs["columns"][f"arm_{factor}"] = f"the label of the factor {factor}"
    return frame


def frame_of(rows: Sequence[Any], row: type, columns: Mapping[str, str]) -> DataFrame:
    """Return a frame with a row for each of `rows`, which are objects of one dataclass.

    row: the dataclass; its type hints determine the column types, also if there are no rows. columns: the description
    of each column, for `frame.attrs`. Raises UsageError if pandas is not installed.
    """
    pandas = _pandas()
    text = pandas.Series([""]).dtype  # the text type of the installed pandas version
    types = {str: text, int: "int64", float: "float64", bool: "bool", bool | None: "boolean", int | None: "Int64"}
    columns_of: dict[str, Any] = {}
    data = set(data_columns(row))
    for name, hint in get_type_hints(row).items():
        values = list(map(attrgetter(name), rows))
        if name in data:  # copies: a change of a row must not change the recording
            values = list(map(to_plain, values))
        columns_of[name] = pandas.Series(values, dtype=object if name in data else types[_without_none(hint)])
    frame: DataFrame = pandas.DataFrame(columns_of)
    frame.attrs["columns"] = dict(columns)
    return frame


def data_columns(row: type) -> list[str]:
    """Return the columns of a table that have data: dicts, lists, and values of any type. row: the dataclass."""
    plain = (str, int, float, bool, bool | None, int | None)
    return [name for name, hint in get_type_hints(row).items() if _without_none(hint) not in plain]


def _without_none(hint: Any) -> Any:
    """Return the type of a column: str for a literal and for optional text, the hint itself otherwise."""
    if get_origin(hint) is Literal or hint == str | None:
        return str
    return hint


def _frame(kind: str, of: Any, rows_of: Callable[[Source], Iterable[Any]], row: type) -> DataFrame:
    read = sources if kind == "messages" else outlined_sources
    with _collector_paused():
        return frame_of([one for source in read(of) for one in rows_of(source)], row, COLUMNS[kind])


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: it would visit all rows again and again, and rows are never part of a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _pandas() -> Any:
    return optional_module("pandas", "Frames need pandas", "analysis")
