"""The panel, frozen: one piece of HTML that needs no kernel, no script and no network.

A saved notebook shows it wherever the notebook is opened, by whoever; so it is bounded in size, and everything in it
that a model, a tool or a person said is text, escaped here and nowhere else. It has the classes and the accessible
names of the live panel and carries the same style sheet. Where a viewer strips styles and drawings from HTML it does
not trust, what is left still reads from top to bottom.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from agentnb.core.events import ApprovalDecision, CallEnd, Event
from agentnb.core.messages import Message, ToolCall, text_of
from agentnb.widgets.diagram import diagram, mark, table_of
from agentnb.widgets.page import style_sheet
from agentnb.widgets.rows import clip, row
from agentnb.widgets.standing import Path, Waiting, standing, status
from agentnb.widgets.text import one_line, pretty, visible

FIRST, LAST = 40, 110
"""How many events of a long run are shown, from its beginning and its end."""
FIRST_SAID, LAST_SAID = 6, 24
"""How many messages."""
TEXT = 1500
"""Characters of any one text."""
LINE = 160
"""Characters of the line about an event."""
ROOM = 60_000
"""Characters of detail in all; beyond that there are only the lines."""


def plain_text(run: Any) -> str:
    """The run in one line of text."""
    name = one_line(visible(str(run.name or run.id)))
    return f"{name} ({run.loop.kind()}): {standing(run)}, phase {visible(str(run.phase))}, {run.state.position} events"


def static_html(run: Any, drawing: str | None = None) -> str:
    """The run as it stands now, as HTML text of less than 200 kB.

    drawing: its state diagram if you have it, empty for none; drawn by default, which takes a second the first time.
    """
    events = run.events
    path = Path()
    now = status(run, path)
    detail = _Detail()
    parts = [
        f"<style>{style_sheet()}</style>",
        _head(now, events),
        *_questions(run),
        '<div class="agentnb-columns"><div class="agentnb-main">',
        *_conversation(run.messages, events, detail),
        *_events(events, detail),
        "</div>",
        _diagram(run, now["path"], drawing),
        "</div>",
    ]
    return f'<div class="agentnb agentnb-static">{"".join(parts)}</div>'


class _Detail:
    """What stands behind a line, as long as there is room left."""

    def __init__(self) -> None:
        self._left = ROOM

    def of(self, label: str, value: Any) -> str:
        """A labelled block of text."""
        text = value if isinstance(value, str) else pretty(clip(value, TEXT, 20))
        block = f'<div class="agentnb-label-small">{_text(label)}</div><pre>{_long(text)}</pre>'
        if len(block) > self._left:
            return '<p class="agentnb-dim">Left out to keep this page small.</p>'
        self._left -= len(block)
        return block


def _text(text: object) -> str:
    return escape(visible(str(text)))


def _line(text: str) -> str:
    """Text cut to a line; to half of one where it is all brackets and ampersands, which escaping makes longer."""
    line = _text(one_line(text, LINE))
    return line if len(line) <= 2 * LINE else _text(one_line(text, LINE // 2))


def _long(text: str) -> str:
    cut = visible(text[:TEXT])
    note = f"\n… ({len(text):,} characters in all)" if len(text) > TEXT else ""
    return escape(cut + note)


def _head(now: Mapping[str, Any], events: Sequence[Event]) -> str:
    facts = [f"phase {now['phase']}", f"turn {now['turn']}", _count(now["calls"], "call"), _count(len(events), "event")]
    facts += [f"{name.replace('_', ' ')} {amount:,g}" for name, amount in now["usage"].items()]
    if len(events) > 1:
        facts.append(f"{events[-1].time - events[0].time:.1f} s")
    problem = f'<p class="agentnb-problem">{_text(now["problem"])}</p>' if now["problem"] else ""
    return (
        '<div class="agentnb-head"><div class="agentnb-title">'
        f'<strong class="agentnb-name">{_text(now["run"] or now["id"])}</strong> '
        f'<span class="agentnb-dim">{_text(now["loop"])}</span></div> '
        f'<span class="agentnb-chip" data-standing="{_text(now["standing"])}">{_text(now["standing"])}</span> '
        f'<span class="agentnb-facts">{_text(" · ".join(facts))}</span></div>{problem}'
    )


def _count(amount: int, what: str) -> str:
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def _questions(run: Any) -> Iterator[str]:
    for question in Waiting().questions(run):
        yield (
            f'<div class="agentnb-call" role="group" aria-label="{_text(question["name"])}">'
            f'<div class="agentnb-call-head"><code>{_text(question["name"])}</code> was waiting for a decision. '
            f"{_text(question['why'])}</div><pre>{_long(question['arguments'])}</pre></div>"
        )


def _diagram(run: Any, path: Sequence[Sequence[str]], drawing: str | None) -> str:
    table = table_of(run.loop.phases)
    drawing = diagram(table) if drawing is None else drawing
    marked = mark(drawing, table, run.phase, path) if drawing else ""
    return (
        f'<div class="agentnb-side"><div class="agentnb-diagram" role="img" aria-label="State diagram" '
        f'data-phase="{_text(run.phase or "")}">{marked}</div></div>'
    )


def _conversation(messages: Sequence[Message], events: Iterable[Event], detail: _Detail) -> Iterator[str]:
    if not messages:
        return
    calls = _Calls(events)
    yield '<div class="agentnb-heading">What was said</div><div class="agentnb-said">'
    for position, message in _ends(messages, FIRST_SAID, LAST_SAID):
        if message is None:
            yield f'<p class="agentnb-dim agentnb-gap">{position:,} messages left out</p>'
        elif message.role != "tool":  # a result stands with its call
            yield _said(message, calls, detail)
    yield "</div>"


class _Calls:
    """How each call was decided and how it came out."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.decisions: dict[str, ApprovalDecision] = {}
        self.ends: dict[str, CallEnd] = {}
        for event in events:
            if isinstance(event, ApprovalDecision):
                self.decisions[event.call_id] = event
            elif isinstance(event, CallEnd):
                self.ends[event.call_id] = event

    def show(self, call: ToolCall, detail: _Detail) -> str:
        """One call with its arguments, its decision and its result, to be opened."""
        decision, end = self.decisions.get(call.id), self.ends.get(call.id)
        outcome = end.outcome if end is not None else "no result yet"
        words = [outcome] if decision is None else [f"{decision.decision} by {decision.by}", outcome]
        blocks = [detail.of("arguments", call.malformed or call.arguments)]
        if decision is not None and (decision.arguments is not None or decision.reason):
            changed = {"name": decision.name, "arguments": decision.arguments, "reason": decision.reason}
            blocks.append(detail.of("decision", {key: value for key, value in changed.items() if value}))
        if end is not None:
            blocks.append(detail.of("result", end.result if end.result is not None else ""))
        group = "error" if end is not None and end.is_error else "call"
        return (
            f'<details class="agentnb-made" data-group="{group}"><summary><code>{_text(one_line(call.name))}</code> '
            f'<span class="agentnb-dim">{_text(" · ".join(words))}</span></summary>{"".join(blocks)}</details>'
        )


def _said(message: Message, calls: _Calls, detail: _Detail) -> str:
    text = text_of(message.content)
    body = detail.of("", text).replace('<div class="agentnb-label-small"></div>', "") if text else ""
    made = "".join(calls.show(call, detail) for call in message.tool_calls[:50])
    return (
        f'<div class="agentnb-message" data-role="{_text(message.role)}">'
        f'<div class="agentnb-role">{_text(message.role)}</div><div class="agentnb-body">{body}{made}</div></div>'
    )


def _events(events: Sequence[Event], detail: _Detail) -> Iterator[str]:
    yield '<div class="agentnb-heading">Events</div><div class="agentnb-log" role="log" aria-label="Events">'
    for position, event in _ends(events, FIRST, LAST):
        if event is None:
            yield f'<p class="agentnb-dim agentnb-gap">{position:,} events left out</p>'
        else:
            yield _event(row(event), detail)
    yield "</div>"


def _event(made: Mapping[str, Any], detail: _Detail) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(made["time"]))
    place = f'<span class="agentnb-path">{_line(made["path"])}</span> ' if "path" in made else ""
    body = detail.of("", made["data"]).replace('<div class="agentnb-label-small"></div>', "") if made["data"] else ""
    return (
        f'<details class="agentnb-event" data-group="{_text(made["group"])}"><summary>'
        f'<span class="agentnb-seq">{made["seq"]}</span> <span class="agentnb-time">{clock}</span> '
        f'<span class="agentnb-type">{_text(made["type"])}</span> {place}'
        f'<span class="agentnb-summary">{_line(made["summary"])}</span></summary>{body}</details>'
    )


def _ends(items: Sequence[Any], first: int, last: int) -> Iterator[tuple[int, Any]]:
    """The first and the last items with their positions; between them None, with how many are left out."""
    left_out = len(items) - first - last
    if left_out <= 0:
        yield from enumerate(items)
        return
    yield from enumerate(items[:first])
    yield left_out, None
    yield from enumerate(items[-last:], len(items) - last)
