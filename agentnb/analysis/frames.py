"""Tidy tables of recordings: one row for each event, call, message or decision (pandas).

Each function takes a run (which may still be running), a replay, a snapshot, a store, the path of a snapshot or a
store, a mapping of names to these, or a sequence of these. The column `run` identifies the recording. Times are seconds
since the first event of the run, NaN if the event has not happened; the column `time` is a time of day, UTC. Each table
says which study, arm, input and repeat a row belongs to. `COLUMNS` has the meaning and the unit of each column; a frame
has the same texts in `frame.attrs["columns"]`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints

from agentnb.analysis.places import input_numbers, place_of
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
from agentnb.analysis.run_rows import RunRow, imported, row_without_events, run_row, tagged_sources
from agentnb.analysis.sources import Source, outlined_sources, sources
from agentnb.core.json import to_plain
from agentnb.core.lazy import optional_module
from agentnb.studies import Study

if TYPE_CHECKING:
    from pandas import DataFrame

_WHERE = {
    "run": "the recording: its name, or else the run's id",
    "path": 'the path of the nested loop it happened in, "" for the outermost loop',
    "loop": "the name of the loop it happened in",
    "turn": "the number of the model request it belongs to, from 1; 0 before the first",
}
_ARM = "of a run of a study: "
_PLACE = {
    "study": f"{_ARM}the name of the study",
    "arm": f"{_ARM}the labels of its arm as text; each factor also has a column of its own, arm_FACTOR",
    "treatment": f"{_ARM}equal for runs with equal loops, prompts, tools, models, options, limits and policies",
    "input": f"{_ARM}the number of its input, from 0",
    "input_key": f"{_ARM}identifies the content of its input, also if the inputs were numbered in another order",
    "input_text": "what the run was started with: a text, or JSON",
    "repeat": f"{_ARM}the number of its repeat, from 0",
}
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
        **_PLACE,
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
        "attempts": "the number of its starts: more than 1 if agentnb made it again, after a crash or a failure",
        "time": "when it was proposed, UTC",
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
        **_PLACE,
    },
    "messages": {
        "run": _WHERE["run"],
        "seq": "the position of the event that added it to the history",
        "time": "the time of that event, UTC",
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
        **_PLACE,
    },
    "decisions": {
        "run": _WHERE["run"],
        "seq": "the event's position in the recording",
        "time": "the time of the decision, UTC",
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
        "unknown": "whether the outcome of the call was unknown: a process had started it and has exited",
        "reviewer": "the person's name, if it was declared",
        "shown": "the digest of the question as it was shown",
        "took": "of a person's decision: from the display of the question to the decision, s",
        "arguments_text": "the arguments as JSON text, for grouping",
        "inherited": _INHERITED,
        "note": "what the policy has said for the record, about the decision or its question",
        **_PLACE,
    },
    "runs": {
        "run": _WHERE["run"],
        "id": "the id of the run",
        "study": _PLACE["study"],
        "loop": "the kind of the loop",
        "outcome": "done, failed, cancelled, ended (in a file of another tool: how is not known) or open; of a run of a"
        " study its status: also running, waiting, paused, interrupted or not started",
        "stop_reason": "the reason for the end: completed, limit, max_turns, error, ...; missing for an open run",
        "output": "the output, a JSON value",
        "error": "the type and the message of the error that the run failed with",
        "turns": "the number of requests to models, without repeated attempts",
        "calls": "the number of calls that models asked for, also if they were rejected; without repeated attempts",
        "retries": "the number of those in which the model repeats an earlier call: the same tool and arguments",
        "repeated": "the number of attempts that agentnb repeated: of calls of unknown outcome after a crash, of calls"
        " that had ended a run, and of requests after a failure or a crash",
        "call_errors": "the number of results that the model received as errors",
        "model_errors": "the number of failures of the model",
        "input_tokens": "the tokens that the models read; NaN if none were reported",
        "output_tokens": "the tokens that they wrote; NaN if none were reported",
        "cost": "the cost in US dollars, as reported by the models, or else estimated; NaN if it is not known",
        "cost_is_estimated": "whether a part of the cost is estimated from the prices of the package genai-prices",
        "without_price": "the models without a reported cost and a known price; their part of the cost is missing",
        "cache_read_tokens": "the part of input_tokens that the servers have read from their caches",
        "cache_saved": "the estimated cost that these caches have saved, less what writing to them has cost",
        "time": "the time of the first event, UTC",
        "began": "the same as time",
        "seconds": "the time in which the agent worked, s: without the time in which it was paused or away, or in which"
        " a person was asked and nothing ran",
        "waited": "the time in which at least one question waited for a decision, s; something else may have run",
        "paused": "the time in which it was paused, s",
        "away": "the time in which nobody drove it, s: it was stopped, its process had exited, or nothing ran for more"
        " than half a second, as between two steps",
        "decisions": "the number of decisions about calls, also of those that were withdrawn later",
        "by_human": "those by a person with a panel",
        "by_code": "those by code that decides for a person",
        "by_policy": "those by a policy: its rules, a function, or a hook of the loop",
        "by_remembered": "those by a decision that a person, or code for a person, has made for later calls too",
        "by_deadline": "those by a deadline that has passed: nobody has answered",
        "by_absent": "those made because no person was present (agentnb.headless)",
        "by_fork": "those that a fork was made with",
        "withdrawn": "the number of decisions that were withdrawn",
        "reviewers": "the names of the people who decided, as far as they were declared",
        "model": "the models that answered, as reported by the servers",
        "events": "the number of events",
        "tags": "the tags, a list",
        "options": "the options of its model requests that it was started, restored or forked with; a dict",
        **{name: text for name, text in _PLACE.items() if name != "study"},
        "seed": f"{_ARM}its seed",
    },
}
"""The meaning of each column of each frame, with its unit (s: seconds)."""


def events(of: Any) -> DataFrame:
    """Return a row for each event, in order. `COLUMNS["events"]` describes the columns.

    of: one recording or several. Raises UsageError if `of` is not a recording, or if pandas is not installed.
    """
    return _frame("events", of, event_rows, EventRow)


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
    found, without_events = tagged_sources(of)
    numbers = input_numbers(of)
    places = [place_of(one.source, numbers) for one in found]
    rows = [run_row(one.source, place, one.tags) for one, place in zip(found, places, strict=True)]
    if isinstance(of, Study):  # one word for its runs, in the table, the panel and `counts`
        statuses = {run.id: run.status for run in of.runs}
        rows = [replace(row, outcome=statuses.get(row.id, row.outcome)) for row in rows]
    rows += [row_without_events(run, of.name) for run in without_events]
    frame = frame_of(rows, RunRow, COLUMNS["runs"])
    for name in ("time", "began"):
        frame[name] = _as_times(frame[name])
    _add_factors(frame, [*(place.arm for place in places), *(run.arm for run in without_events)], [1] * len(rows))
    _add_fields(frame, [imported(one.source.events[0]).get("fields") or {} for one in found])
    return frame


def _add_fields(frame: DataFrame, fields: Sequence[Mapping[str, Any]]) -> None:
    """Add a column for each value that files of other tools have beside the messages, such as a reward."""
    missing: list[Mapping[str, Any]] = [{}] * (len(frame) - len(fields))
    for name in dict.fromkeys(name for one in fields for name in one):
        column = name if name not in frame else f"file_{name}"
        frame[column] = [one.get(name) for one in (*fields, *missing)]
        frame.attrs["columns"][column] = f"the value of {name} in the file of another tool"


def frame_of(rows: Sequence[Any], row: type, columns: Mapping[str, str]) -> DataFrame:
    """Return a frame with a row for each of `rows`, which are objects of one dataclass.

    row: the dataclass; its type hints determine the column types, also if there are no rows. columns: the description
    of each column, for `frame.attrs`. Raises UsageError if pandas is not installed.
    """
    pandas = _pandas()
    types = {
        str: _text_type(),
        int: "int64",
        float: "float64",
        bool: "bool",
        bool | None: "boolean",
        int | None: "Int64",
    }
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
    pandas = _pandas()
    read = sources if kind == "messages" else outlined_sources
    with _collector_paused():
        found = read(of)
        rows = [list(rows_of(source)) for source in found]
        frame = frame_of([one for of_run in rows for one in of_run], row, COLUMNS[kind])
    frame["time"] = _as_times(frame["time"])

    # The place of each run is repeated in all of its rows.
    numbers, lengths = input_numbers(of), list(map(len, rows))
    places = [place_of(source, numbers) for source in found]
    values: dict[str, list[Any]] = {
        "study": [place.study for place in places],
        "arm": [place.arm_text for place in places],
        "treatment": [place.treatment for place in places],
        "input": [place.input for place in places],
        "input_key": [place.input_key for place in places],
        "input_text": [place.input_text for place in places],
        "repeat": [place.repeat for place in places],
    }
    for name, of_runs in values.items():
        dtype = "Int64" if name in ("input", "repeat") else _text_type()
        frame[name] = pandas.Series(of_runs, dtype=dtype).repeat(lengths).reset_index(drop=True)
    _add_factors(frame, [place.arm for place in places], lengths)
    return frame


def _add_factors(frame: DataFrame, arms: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> None:
    """Add a column for each factor of a study. lengths: the number of rows of each run; `arms` has the arm of each."""
    pandas = _pandas()
    for factor in dict.fromkeys(factor for arm in arms for factor in arm):
        labels = pandas.Series([arm.get(factor) for arm in arms])
        frame[f"arm_{factor}"] = labels.repeat(lengths).reset_index(drop=True)
        frame.attrs["columns"][f"arm_{factor}"] = f"the label of the factor {factor}"


def _as_times(seconds: Any) -> Any:
    """Return times in seconds since the epoch as times of day, UTC."""
    return _pandas().to_datetime(seconds, unit="s", utc=True).dt.as_unit("ns")


def _text_type() -> Any:
    """Return the text type of the installed version of pandas."""
    return _pandas().Series([""]).dtype


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
