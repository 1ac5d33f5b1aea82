"""The trace of a static panel: nested lists, each row with a mark, words and a time; results are unfolded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentnb.widgets.static.html import Budget, block, count, ends, escaped, fold, line, thumbnails
from agentnb.widgets.static.pictures import CALL, ERROR, LINE, MODEL, PERSON
from agentnb.widgets.text import duration, for_reading, used
from agentnb.widgets.views.short import output
from agentnb.widgets.views.trace import CallDecision, Row

FIRST, LAST = 10, 30
"""Rows of a long list that are shown, from its beginning and its end."""
CALLS = 50
"""Rows inside a turn."""
OUTER, INSIDE, DETAILS = 36_000, 25_000, 36_000
"""Bytes of the lines of the outermost rows, of the lines of all others, and of what is below lines."""
ERROR_LINE = 160
"""Characters of an error in the line of its row."""

FIRST_ROW = ";min-width:240px"
"""On a narrow page the first row, and so all others, are below the state diagram and not next to it."""

_LIST = "list-style:none;margin:0;padding:0"
_INSIDE = f"{_LIST} 0 0 18px"
_DEEP = "margin-left:18px"
_LONG = re.compile(r"\S{20}")
_FOLDED = re.compile(r"\s*[{\[]")


def mark(sign: str, colour: str) -> str:
    """Return a sign in a colour; a cross is an error's."""
    return f'<span style="color:{ERROR if sign == "✕" else colour}">{sign}</span>'


def rows_html(rows: Sequence[Row], pictures: Budget, *, folded: bool, imported: bool = False) -> str:
    """Return the trace, of less than 110 kB without the pictures in results.

    pictures: the room for them. folded: what is inside a turn is to be unfolded. imported: the recording is one of
    another tool: what took no time took an unknown time.
    """
    if not rows:
        return '<div style="opacity:.72">Nothing has happened yet.</div>'
    return _List(folded, pictures, imported).outer(rows)


def row_html(sign: str, colour: str, lead: str, value: Any) -> str:
    """Return a row of its own with a value: a text after the lead, anything else below it."""
    said = f" {_said(value)}" if isinstance(value, str) else block(for_reading(value))
    return f'<div style="display:flex;gap:6px">{mark(sign, colour)} <div style="min-width:0">{lead}{said}</div></div>'


class _List:
    """Draws rows as long as there is room; long texts have room of their own, so that they do not displace rows."""

    def __init__(self, folded: bool, pictures: Budget, imported: bool) -> None:
        self._pictures = pictures
        self._imported = imported
        self._outer, self._heads, self._details = Budget(OUTER), Budget(INSIDE), Budget(DETAILS)
        self._folded = folded

    def outer(self, rows: Sequence[Row]) -> str:
        """Return the list of the outermost loop. Its last rows are drawn first, because the answer is among them."""
        shown = list(ends(rows, FIRST, LAST))
        made: dict[int, str] = {}
        for place in reversed(range(len(shown))):
            position, row = shown[place]
            is_last = place == len(shown) - 1
            style = FIRST_ROW if place == 0 else ""
            made[place] = self._item(row, self._outer, is_last, style) if row is not None else self._gap(rows, position)
        return f'<ul style="{_LIST}">{_some([made[place] for place in range(len(shown))])}</ul>'

    def _gap(self, rows: Sequence[Row], left_out: int) -> str:
        between = rows[FIRST : FIRST + left_out]
        turns = sum(row.kind == "turn" for row in between)
        calls = sum((row.kind == "call") + row.count("call") for row in between)
        messages = all(row.kind == "message" for row in between)
        what = count(turns, "turn") if turns else count(left_out, "message" if messages else "row")
        omitted = f"{what} with {count(calls, 'call')}" if turns and calls else what
        return f'<li style="opacity:.72;padding:4px 0">… {omitted} left out</li>'

    def _inner(self, rows: Sequence[Row]) -> str:
        """Return the list inside a row."""
        items = []
        for position, row in ends(rows, CALLS // 5, CALLS - CALLS // 5):
            if row is None:
                items.append(f'<li style="opacity:.72">… {position:,} left out</li>')
            else:
                items.append(self._item(row, self._heads))
        return f'<ul style="{_INSIDE}">{_some(items)}</ul>'

    def _item(self, row: Row, room: Budget, is_last: bool = False, style: str = "") -> str:
        """Return a row with all that is inside it; empty if there is no room for it."""
        time = duration(row.seconds) if row.seconds is not None else "next" if row.status == "next" else ""
        if row.seconds is not None and row.seconds < 0.0005:
            time = "" if self._imported and not row.seconds else "<1 ms"
        elif row.at_most and time:
            time = f"≤ {time}"
        folds = self._folded and bool(row.inside)
        lead = _lead(row)
        if folds and row.kind == "turn":
            lead += f' <samp style="opacity:.72">{_names(row.inside)}</samp>'
        words = (mark(*_sign(row)), lead, time)
        head = room.spend(_summary(*words) if folds else _line(*words, style))
        if not head:
            return ""
        parts = [part for part in self._below(row, is_last) if part]
        if row.inside:
            parts.append(self._inner(row.inside))
        body = "".join(parts)
        return f"<li><details>{head}{body}</details></li>" if folds else f"<li>{head}{body}</li>"

    def _below(self, row: Row, is_last: bool) -> Iterator[str]:
        """Return the parts below the line of a row: the rest of a text, a result, decisions."""
        if row.kind in ("turn", "message") and row.status != "failed":
            yield from self._rest(row, is_last)
        if row.kind in ("call", "loop"):
            yield from self._call(row)

    def _rest(self, row: Row, is_last: bool) -> Iterator[str]:
        first, _, rest = row.text.strip().partition("\n")
        if row.reasoning:
            yield self._spend(fold("reasoning", block(row.reasoning), _DEEP))
        if _FOLDED.match(row.text) and row.inside:
            yield self._spend(fold("answer", block(row.text), _DEEP))
        elif is_last and len(row.text) <= 4000:
            yield self._spend("".join(_paragraph(each) for each in _lines(first, rest)))
        elif rest.strip() or len(first) > 240:
            label = count(row.text.strip().count("\n") + 1, "line") if rest.strip() else "all of it"
            yield self._spend(fold(label, block(row.text), _DEEP))

    def _call(self, row: Row) -> Iterator[str]:
        # Arguments of several lines: of a call that a person decided they are what the person was shown. A question
        # that waits is shown above the trace, with all of its arguments.
        given = dict(row.arguments or {}) if row.shortened and row.status != "waiting" else {}
        long = [value for value in given.values() if isinstance(value, str) and "\n" in value.strip("\n")]
        is_shown = len(long) == 1 and any(decided.by_person for decided in row.decided)
        if is_shown:
            yield self._spend(block(long[0]))

        # What the line has no room for; of a loop the last turn may say the result.
        hidden: list[tuple[str, str]] = []
        if given and not is_shown and ("…" in row.shortened or long):
            hidden.append(("arguments", for_reading(given)))
        made = output(row.result)
        if row.status == "failed":
            if not _is_refused(row) and (len(row.text) > ERROR_LINE or "\n" in row.text):
                hidden.append(("error", row.text))
        elif made.text and not made.line and not (row.inside and _says(row.inside[-1], row.result)):
            hidden.append((made.words, made.text))
        if hidden:
            words = ", ".join(words for words, _ in hidden)
            yield self._spend(fold(words, "".join(block(text) for _, text in hidden), _DEEP))
        yield thumbnails(row.result, self._pictures)

        # Who decided; that a rule let it run is not worth a line.
        for decided in row.decided:
            if decided.is_worth_a_line:
                yield self._spend(_decision(decided))

    def _spend(self, html: str) -> str:
        return self._details.spend(html, f'<div style="{_DEEP};opacity:.72">Left out to keep this small.</div>')


def _some(items: Sequence[str]) -> str:
    """Return the items for which there was room, and how many there are besides."""
    left_out = sum(not item for item in items)
    more = f'<li style="opacity:.72">… {left_out:,} left out to keep this small</li>' if left_out else ""
    return "".join(items) + more


def _line(sign: str, lead: str, time: str, style: str = "") -> str:
    """Return the line of a row."""
    narrow = ' style="min-width:0"' if _LONG.search(lead) else ""
    after = f' <span style="margin-left:auto;opacity:.72">{_unbroken(time)}</span>' if time else ""
    return f'<div style="display:flex;gap:6px{style}">{sign} <span{narrow}>{lead}</span>{after}</div>'


def _summary(sign: str, lead: str, time: str) -> str:
    """Return the line of a row to be unfolded. It has the triangle of a summary, which a flex box has not."""
    after = f' <span style="opacity:.72">{_unbroken(time)}</span>' if time else ""
    return f"<summary>{sign} {lead}{after}</summary>"


def _unbroken(time: str) -> str:
    return escaped(time).replace(" ", "&nbsp;")


def _sign(row: Row) -> tuple[str, str]:
    """Return the mark of a row: its shape says its kind, a cross that it failed, hollow that it has not begun."""
    if row.status == "failed":
        return "✕", ERROR
    if row.status == "waiting":
        return "◆", PERSON
    if row.kind == "message":
        return ("◆", PERSON) if row.by_person else ("○", LINE)
    if row.kind in ("loop", "pass"):
        return "○", LINE
    if row.kind == "turn":
        return "●", MODEL
    return ("□" if row.status == "next" else "■"), CALL


def _lead(row: Row) -> str:
    """Return the words of a row, as HTML."""
    if row.kind == "call":
        return _call_lead(row)
    if row.kind in ("loop", "pass"):
        return _loop_lead(row)
    first = row.text.strip().partition("\n")[0]
    words = "" if row.kind == "turn" and row.inside and _FOLDED.match(row.text) else line(first)
    state = ""
    if row.outcome:
        state = f' <span style="opacity:.72">{escaped(row.outcome)}</span>'
    elif row.status == "running":
        state = ' <span style="opacity:.72">running</span>'
    if cost := ", ".join(used(row.usage)):
        state += f' <span style="opacity:.72">{escaped(cost)}</span>'
    return f"<b>{line(row.name, 60)}</b>{' ' if words else ''}{words}{state}"


def _call_lead(row: Row) -> str:
    lead = f"<b>{line(row.name, 60)}</b>({line(row.shortened)})"
    made = output(row.result)
    if row.status == "failed":
        if _is_refused(row):  # the line below it says that
            return f"<samp>{lead}</samp>"
        why = line(row.text.partition(chr(10))[0], ERROR_LINE)
        return f"<samp>{lead}</samp> {escaped(row.outcome or 'failed')}: {why}"
    if made.line and row.status == "done":
        lead += f" → {escaped(made.line)}"
    words = {"waiting": "waits for a decision", "running": "running"}.get(row.status, row.outcome)
    return f"<samp>{lead}</samp>" + (f' <span style="opacity:.72">{escaped(words)}</span>' if words else "")


def _names(calls: Sequence[Row]) -> str:
    """Return the names of calls, each once; with a cross if one failed, and a diamond if a person decided about one."""
    signs: dict[str, set[str]] = {}
    for call in calls:
        signs.setdefault(call.name, set()).update(
            (["✕"] if call.status == "failed" else []) + (["◆"] if any(d.by_person for d in call.decided) else [])
        )
    return line(", ".join("".join(f"{sign} " for sign in sorted(own)) + name for name, own in signs.items()), 80)


def _loop_lead(row: Row) -> str:
    turns = sum((each.kind == "turn") + each.count("turn") for each in row.inside)
    calls = sum((each.kind == "call") + each.count("call") for each in row.inside)
    facts = ", ".join([count(turns, "turn"), *([count(calls, "call")] if calls else [])])
    words = {"waiting": "waits for you", "running": "running"}.get(row.status, row.outcome)
    arguments = f"<samp>({line(row.shortened)})</samp>" if row.shortened else ""
    facts += f", {words}" if words else ""
    asked = f" {line(row.text)}" if row.text and row.status != "failed" else ""
    lead = f'<b>{line(row.name, 60)}</b>{arguments}{asked} <span style="opacity:.72">{escaped(facts)}</span>'
    if row.status == "failed":
        return f"{lead} {line(row.text.partition(chr(10))[0], ERROR_LINE)}"
    return lead


def _decision(decided: CallDecision) -> str:
    after = f" after {duration(decided.after)}" if decided.after is not None else ""
    reason = f": {_said(decided.reason)}" if decided.reason else ""
    before = f", asked about <samp>{escaped(decided.before)}</samp>" if decided.before else ""
    return (
        f'<div style="{_DEEP}">{mark("◆", PERSON)} {escaped(decided.what)} by {line(decided.by, 80)}{after}'
        f"{before}{reason}</div>"
    )


def _is_refused(row: Row) -> bool:
    """Return whether a call was rejected by a decision, which is shown with its reason."""
    return row.outcome == "rejected" and any(decided.what == "rejected" for decided in row.decided)


def _says(row: Row, result: Any) -> bool:
    """Return whether a row says the same as a result."""
    return isinstance(result, str) and row.text.strip() == result.strip()


def _said(text: str) -> str:
    """Return a text: its first line, and the others as paragraphs; a long one is to be unfolded."""
    first, _, rest = text.strip().partition("\n")
    if len(text) > 2000 or len(first) > 600:
        return f"{line(first)}{fold('all of it', block(text))}"
    return escaped(first) + "".join(f"<div>{escaped(each)}</div>" for each in rest.split("\n") if each.strip())


def _lines(first: str, rest: str) -> list[str]:
    """Return the lines of a text after those that its row shows."""
    return [*([first] if len(first) > 240 else []), *(each for each in rest.split("\n") if each.strip())]


def _paragraph(text: str) -> str:
    return f'<div style="{_DEEP}">{escaped(text)}</div>'
