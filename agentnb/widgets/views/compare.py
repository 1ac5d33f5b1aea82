"""Compare: two recordings side by side, as pairs of rows of their traces, and a sum of each.

The events are aligned as by `agentnb.analysis.diff`: with the same code (`agentnb.run.past.alignment`). Two rows of the
traces form a pair if events of theirs do. What differs is marked on the side of the second recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from agentnb.core.events import Event
from agentnb.core.json import repair_text
from agentnb.run.past.alignment import Pair, aligned, common_start
from agentnb.widgets.text import amount, brief, duration, for_reading, on_a_line, one_line
from agentnb.widgets.views.short import columns_of, output
from agentnb.widgets.views.spans import Spans
from agentnb.widgets.views.trace import Row, Trace

LINE = 240
"""The maximum number of characters of a row on one side."""
ROWS = 2000
"""The maximum number of rows that a page gets."""
SAME = 200
"""The maximum number of rows of the common part that a page gets."""
WHOLE, COMPARED = 100_000, 6_000
"""The maximum number of characters of a value that is shown whole, and of one in which the differences are marked."""
BEFORE = 20
"""The number of characters shown before the first difference of two results that look the same in short."""
FIELDS = 8
"""The maximum number of fields of an output that the sum lists."""

_WORDS = re.compile(r"-?\d+(?:[.,]\d+)*%?|\w+|\s+|[^\w\s]")
"""What is marked as a whole if it differs: a number, a word, blanks, another character."""
_MEASURED = frozenset(
    {"turns", "calls", "asked you", "time", "model", "tools", "input tokens", "output tokens", "cost"}
)
"""The lines of the sum that are measures of a run, and not what came of it: a difference is not marked."""


class _Place(NamedTuple):
    """A row of a trace, and how far it is indented. Its text is made only if a page gets it."""

    row: Row
    depth: int


class _Both(NamedTuple):
    """A row of each trace; None if this side lacks it. about: the events of each."""

    left: _Place | None
    right: _Place | None
    about: tuple[set[int], set[int]]

    @property
    def either(self) -> _Place:
        """The row of the left if there is one."""
        place = self.left or self.right
        assert place is not None
        return place


def compared(
    left: Sequence[Event],
    right: Sequence[Event],
    names: tuple[str, str],
    at: int | None = None,
    traces: tuple[Trace, Trace] | None = None,
) -> dict[str, Any]:
    """Return the comparison of two recordings, as the page gets it.

    names: of the recordings. at: the event at which the second one was forked from the first; None if it was not.
    traces: of both, if there are some, so that only new events are read.

    `same`: the rows of the common part before the first difference, and `words` about them. `rows`: the pairs after it.
    Each has `left` and `right`, a list of parts `[text, differs]` or None if the side lacks the row; `differs`;
    `waits`: whether a person is asked there, for each side; and `later` if the side that lacks it may still get there.
    `sum`: pairs of values by their name.
    """
    traces = traces if traces is not None else (Trace(), Trace())
    traces = traces[0].follow(left), traces[1].follow(right)
    begin = _inherited(left, right, at or 0)
    pairs = [Pair("same", *both) for both in zip(left[:begin], right[:begin], strict=True)]
    pairs += aligned(left[begin:], right[begin:])
    common = next((number for number, pair in enumerate(pairs) if pair.how != "same"), len(pairs))
    rows = list(_paired(pairs, list(_places(traces[0])), list(_places(traces[1])), traces))

    # The rows whose events are all in the common part are folded.
    before = next((n for n, row in enumerate(rows) if _ends(row) >= common), len(rows))
    same, differing = rows[:before], rows[before:]
    fork = next((n for n, row in enumerate(differing) if at in row.about[0]), -1)
    made = [_row(both) for both in differing[:ROWS]]
    for side, events in (("left", left), ("right", right)):
        if len(differing) <= ROWS and not (events and events[-1].terminal):
            _mark_later(made, side)
    return {
        "names": [one_line(repair_text(name), 80) for name in names],
        "at": at,
        "common": common,
        "words": _same_words(common, len(pairs), same),
        "same": [_row(both) for both in same[:SAME]],
        "rows": made,
        "more": max(0, len(differing) - ROWS),
        "fork": fork,
        "sum": list(_sum(left, right, traces)),
    }


def _inherited(left: Sequence[Event], right: Sequence[Event], at: int) -> int:
    """Return how many events before the event `at` the right has from the left: they need not be compared."""
    pairs = enumerate(zip(left[:at], right[:at], strict=False))
    own = (
        n
        for n, (one, other) in pairs
        if n and not (other.inherited and (one.type, one.time) == (other.type, other.time))
    )
    return next(own, min(at, len(left), len(right)))


def _same_words(common: int, total: int, rows: Sequence[_Both]) -> str:
    if not common:
        return "Nothing is the same in both from the start."
    turns = sum(both.either.row.kind == "turn" for both in rows)
    calls = sum(both.either.row.kind == "call" for both in rows)
    counts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((turns, "turn"), (calls, "call")) if n]
    which = "All events are" if common == total else "#0 is" if common == 1 else f"#0 to #{common - 1} are"
    return f"{which} the same in both{': ' if counts else ''}{', '.join(counts)}"


# -- pairs of rows -----------------------------------------------------------------------------------------------------


def _places(trace: Trace) -> Iterator[_Place]:
    """Return all rows of a trace, each before those inside it."""
    waiting = [(row, 0) for row in reversed(trace.rows())]
    while waiting:
        row, depth = waiting.pop()
        yield _Place(row, depth)
        waiting += [(inner, depth + 1) for inner in reversed(row.inside)]


def _call_text(row: Row, *, arguments: bool = True, result: bool = True) -> str:
    """Return a call on one line, with its arguments and its result, or one of them."""
    shown = output(row.result)
    gives = (row.text or shown.line or shown.words) if result else ""
    given = f"({row.shortened})" if arguments else ""
    return f"{row.name}{given}" + (f" → {brief(gives, LINE // 2)}" if gives else "")


def _paired(
    pairs: Sequence[Pair], left: list[_Place], right: list[_Place], traces: tuple[Trace, Trace]
) -> Iterator[_Both]:
    """Return the rows in pairs, in the order of the recordings."""
    about = _about(left, traces[0]), _about(right, traces[1])
    others: dict[int, int] = {}  # by the row of the left: the row of the right
    taken: set[int] = set()
    for pair in pairs:
        if pair.left is None or pair.right is None:
            continue
        one, other = about[0].get(pair.left.seq, -1), about[1].get(pair.right.seq, -1)
        if min(one, other) < 0 or one in others or other in taken:
            continue
        if left[one].row.kind == right[other].row.kind:
            others[one] = other
            taken.add(other)

    # Rows of the right that have no pair come where they are, before the next pair.
    events = _events_of(about[0]), _events_of(about[1])
    next_right = 0
    for number, place in enumerate(left):
        with_pair = others.get(number, -1)
        for alone in range(next_right, with_pair):
            if alone not in taken:
                yield _Both(None, right[alone], (set(), events[1].get(alone, set())))
        next_right = max(next_right, with_pair + 1)
        there = right[with_pair] if with_pair >= 0 else None
        yield _Both(place, there, (events[0].get(number, set()), events[1].get(with_pair, set())))
    for alone in range(next_right, len(right)):
        if alone not in taken:
            yield _Both(None, right[alone], (set(), events[1].get(alone, set())))


def _about(places: Sequence[_Place], trace: Trace) -> dict[int, int]:
    """Return the row that each event is about, by their numbers."""
    by_span = {row.span: number for number, (row, _) in enumerate(places) if row.span >= 0}
    by_position = {row.position: number for number, (row, _) in enumerate(places) if row.kind == "message"}
    found: dict[int, int] = {}
    for position, span in enumerate(trace.spans.causes.spans):
        number = by_position.get(position, by_span.get(span))
        if number is not None:
            found[position] = number
    return found


def _events_of(about: Mapping[int, int]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for position, number in about.items():
        found.setdefault(number, set()).add(position)
    return found


def _ends(both: _Both) -> int:
    """Return the last event of a row; one that only one side has is never in the common part."""
    one, other = both.about
    return max(one) if one and other else 1 << 60


def _row(both: _Both) -> dict[str, Any]:
    """Return a row of both traces, as the page gets it."""
    left, right = both.left, both.right
    row, depth = both.either
    waits = [place is not None and place.row.kind == "call" and place.row.status == "waiting" for place in both[:2]]
    texts = [_text(place.row) if place else "" for place in (left, right)]
    if left and right and row.kind == "call" and not any(waits):
        texts = _calls_apart(left.row, right.row)
    is_answer = row.kind == "turn" and not row.inside and row.status == "done"
    other = _call_text(left.row, result=False) if left and waits[1] else texts[0]  # a call that waits has no result yet
    marked = _marked(other, texts[1], left is not None) if right else None
    differs = not (left and right) or any(waits) or any(differs for _, differs in marked or ())
    return {
        "kind": "answer" if is_answer else row.kind,
        "person": row.by_person,
        "lead": repair_text(row.name) if row.kind != "call" else "",
        "depth": depth,
        "code": row.kind == "call",
        "failed": row.status == "failed",
        "numbers": [left.row.number if left else None, right.row.number if right else None],
        "positions": [left.row.position if left else None, right.row.position if right else None],
        "left": [[texts[0], False]] if left else None,
        "right": marked,
        "differs": differs,
        "waits": waits,
        "later": False,
    }


def _mark_later(rows: Sequence[dict[str, Any]], side: str) -> None:
    """Mark the rows that a recording which is not over may still get: those after its last one."""
    for row in reversed(rows):
        if row[side] is not None:
            return
        row["later"] = True


def whole(row: Row | None) -> list[tuple[str, str]]:
    """Return all that a row of a trace shows in short, as pairs of a word and a text."""
    if row is None:
        return []
    if row.kind != "call":
        return [("text", brief_text(row.text))]
    given = for_reading(dict(row.arguments or {}))
    made = [("arguments", given), ("error", row.text), ("result", output(row.result).text)]
    return [(name, brief_text(text)) for name, text in made if text]


def whole_pair(left: Row | None, right: Row | None) -> list[dict[str, Any]]:
    """Return all that a pair of rows shows in short, as the page gets it; what differs is marked on the right."""
    sides = dict(whole(left)), dict(whole(right))
    made: list[dict[str, Any]] = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(name) for side in sides)
        both = one is not None and other is not None and len(one) + len(other) <= COMPARED
        marked = _marked(one or "", other, both) if other is not None else None
        made.append({"name": name, "left": [[one, False]] if one is not None else None, "right": marked})
    return made


def brief_text(text: str) -> str:
    """Return a text as it is, up to a length at which a page still shows it without effort."""
    text = repair_text(text)
    return text if len(text) <= WHOLE else f"{text[:WHOLE]}\n… {len(text) - WHOLE:,} more characters"


def _text(row: Row) -> str:
    return _call_text(row) if row.kind == "call" else one_line(row.text, LINE)


def _calls_apart(left: Row, right: Row) -> list[str]:
    """Return two calls on one line each, without what is equal in both: their arguments, or their results."""
    given = left.arguments != right.arguments
    returned = (left.result, left.text) != (right.result, right.text)
    texts = [_call_text(row, arguments=given, result=returned or not given) for row in (left, right)]
    return _apart(left, right) if texts[0] == texts[1] and returned else texts


def _apart(left: Row, right: Row) -> list[str]:
    """Return two calls that look the same with what differs in their results: the first cell, or the first part."""
    results = left.result, right.result
    where, shown = "", [on_a_line(result) for result in results]
    if (cell := _first_cell(*results)) is not None:
        row, name = cell
        where = f" (row {row + 1}, {one_line(repair_text(str(name)), 40)})"
        shown = [brief(result[row][name], LINE // 4) for result in results]
    begin = max(0, common_start(*shown) - BEFORE) if not where else 0
    return [f"{left.name} → {'…' if begin else ''}{one_line(text[begin:], LINE // 2)}{where}" for text in shown]


def _first_cell(left: Any, right: Any) -> tuple[int, Any] | None:
    """Return the row and the field of the first value that differs, if both are records of the same form."""
    columns = columns_of(left)
    if columns is None or columns != columns_of(right) or len(left) != len(right):
        return None
    differing = ((n, name) for n, record in enumerate(left) for name in columns if record[name] != right[n][name])
    return next(differing, None)


def _marked(left: str, right: str, both: bool) -> list[list[Any]]:
    """Return the text of the right in parts, with a flag for each that is not in the text of the left."""
    if not both or left == right:
        return [[right, False]]
    words, theirs = _WORDS.findall(right), _WORDS.findall(left)
    parts: list[list[Any]] = []
    for what, _, _, begin, end in SequenceMatcher(None, theirs, words, autojunk=False).get_opcodes():
        text = "".join(words[begin:end])
        if text:
            parts.append([text, what != "equal"])
    if not any(differs for _, differs in parts):  # the right lacks something: all of it differs
        return [[right, True]]
    return parts


# -- the sum -----------------------------------------------------------------------------------------------------------


def _sum(left: Sequence[Event], right: Sequence[Event], traces: tuple[Trace, Trace]) -> Iterator[dict[str, Any]]:
    sides = [_totals(events, trace) for events, trace in zip((left, right), traces, strict=True)]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(name, "-") for side in sides)
        yield {"name": name, "left": one, "right": other, "differs": one != other and name not in _MEASURED}


def _totals(events: Sequence[Event], trace: Trace) -> dict[str, str]:
    """Return what is worth knowing of a recording, by its name, as text."""
    last = events[-1] if events else None
    ended = last if last is not None and last.terminal else None
    made: dict[str, str] = {"outcome": str(getattr(ended, "reason", "not over")).replace("_", " ")}
    answer = getattr(ended, "output", None)
    if isinstance(answer, Mapping):
        plain = {name: value for name, value in answer.items() if not isinstance(value, (Mapping, list))}
        for name in list(plain)[:FIELDS]:
            made[one_line(repair_text(str(name)), 40)] = brief(plain[name], 60)
    elif answer is not None:
        made["answer"] = one_line(answer, 200) if isinstance(answer, str) else brief(on_a_line(answer), 200)
    spans: Spans = trace.spans
    asked = sum(event.type == "approval_decision" and event.by == "human" for event in events)  # type: ignore[attr-defined]
    made["turns"] = str(spans.figures.turns)
    made["calls"] = str(spans.figures.calls)
    made["asked you"] = str(asked)
    made["time"] = duration(spans.figures.seconds)
    made["model"] = duration(spans.spent["model"])
    made["tools"] = duration(spans.spent["call"])
    tokens: dict[str, float] = {}
    for span in spans.requests:
        for name, value in span.usage.items():
            if name.endswith("_tokens") or name == "cost":
                tokens[name] = tokens.get(name, 0) + value
    for name in ("input_tokens", "output_tokens", "cost"):
        if name in tokens:
            made[name.replace("_", " ")] = amount(name, tokens[name])
    return made
