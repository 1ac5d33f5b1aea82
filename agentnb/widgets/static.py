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
from agentnb.core.evolve import nested as state_at
from agentnb.core.messages import Message, ToolCall, text_of
from agentnb.widgets.diagram import Table, diagram, mark
from agentnb.widgets.graph import dress
from agentnb.widgets.loops import Loops, Standing, breadcrumb, graph_name
from agentnb.widgets.page import style_sheet
from agentnb.widgets.portable import portable
from agentnb.widgets.rows import clip, row
from agentnb.widgets.standing import Waiting, standing, status
from agentnb.widgets.text import one_line, pretty, visible

FIRST, LAST = 40, 110
"""How many events of a long run are shown, from its beginning and its end."""
FIRST_SAID, LAST_SAID = 6, 24
"""How many messages."""
TEXT = 1500
"""Characters of any one text."""
LINE = 160
"""Characters of the line about an event."""
NESTED = 3
"""Of how many nested loops there is what was said in them."""
ROOM = 54_000
"""Characters of detail in all; beyond that there are only the lines."""


def plain_text(run: Any) -> str:
    """The run in one line of text."""
    name = one_line(visible(str(run.name or run.id)))
    phase = one_line(visible(breadcrumb(str(run.phase), status(run, Loops(run.loop))["nested"])))
    return f"{name} ({run.loop.kind()}): {standing(run)}, phase {phase}, {run.state.position} events"


def static_html(run: Any, drawing: str | None = None) -> str:
    """The run as it stands now, as HTML text of less than 200 kB.

    drawing: its state diagram if you have it, empty for none; drawn by default, which takes a second the first time.
    """
    events = run.events
    loops = Loops(run.loop, graphs=True)
    now = status(run, loops)
    detail = _Detail()
    calls = _Calls(events)
    parts = [
        _head(now, events),
        *_questions(run),
        *_graphs(loops, detail),
        '<div class="agentnb-columns"><div class="agentnb-main">',
        *_conversation(run.messages, "", calls, detail),
        *_nested_conversations(run, loops, calls, detail),
        *_events(events, detail),
        "</div>",
        *_diagrams(run, loops, now, drawing),
        "</div>",
    ]
    return portable("".join(parts), style_sheet())


class _Detail:
    """What stands behind a line, and drawings of calls, as long as there is room left."""

    def __init__(self) -> None:
        self._left = ROOM

    def of(self, label: str, value: Any) -> str:
        """A labelled block of text."""
        text = value if isinstance(value, str) else pretty(clip(value, TEXT, 20))
        block = f'<div class="agentnb-label-small">{_text(label)}</div><pre>{_long(text)}</pre>'
        return self.spend(block) or '<p class="agentnb-dim">Left out to keep this page small.</p>'

    def spend(self, html: str) -> str:
        """The HTML, or nothing where there is no room for it."""
        if len(html) > self._left:
            return ""
        self._left -= len(html)
        return html


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


def _path(path: str) -> str:
    return f'<span class="agentnb-path">{_line(path)}</span> ' if path else ""


def _head(now: Mapping[str, Any], events: Sequence[Event]) -> str:
    asked = _count(now["requests"], "model request") if now["nested"] else f"turn {now['turn']}"
    phase = one_line(breadcrumb(now["phase"], now["nested"]), LINE)
    facts = [f"phase {phase}", asked, _count(now["calls"], "call"), _count(len(events), "event")]
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
            '<div class="agentnb-call-head">'
            f"<span>{_path(question['path'])}<code>{_text(question['name'])}</code></span> "
            f"was waiting for a decision. {_text(question['why'])}</div><pre>{_long(question['arguments'])}</pre></div>"
        )


def _graphs(loops: Loops, detail: _Detail) -> Iterator[str]:
    for path, graph in loops.graphs():
        dresses = [(standing, words, one_line(sentence, LINE)) for standing, words, sentence in graph.dresses]
        told = "".join(f"<li>{_line(sentence)}</li>" for _, _, sentence in dresses)
        drawn = detail.spend(dress(graph.shape, dresses)) if dresses else ""
        yield (
            f'<div class="agentnb-graph"><div class="agentnb-graph-head">{_path(path)}'
            f'<span class="agentnb-graph-title">{_text(graph.heading)}</span> '
            f'<span class="agentnb-dim">{_text(graph.notes)}</span></div>'
            f'<div class="agentnb-graph-drawn" role="img" aria-label="{_text(graph_name(path))}">{drawn}</div>'
            f'<ul class="agentnb-spoken" aria-label="Calls">{detail.spend(told)}</ul>'
            f'<p class="agentnb-dim">{_text(graph.more)}</p></div>'
        )


def _diagrams(run: Any, loops: Loops, now: Mapping[str, Any], drawing: str | None) -> Iterator[str]:
    phase = run.phase or ""
    yield (
        f'<div class="agentnb-side"><div class="agentnb-diagram" role="img" aria-label="State diagram" '
        f'data-phase="{_text(phase)}">{_drawn(loops.root.table, phase, now["path"], drawing)}</div>'
    )
    if now["nested"]:
        yield '<ul class="agentnb-nested" aria-label="Loops inside">'
        for loop, told in zip(loops.nested(), now["nested"], strict=False):
            yield _nested(loop, told, "" if drawing == "" or told["table"] < 0 else None)
        yield f'<li class="agentnb-dim">and {now["more"]:,} more</li></ul>' if now["more"] else "</ul>"
    yield "</div>"


def _drawn(table: Table | None, phase: str, arrows: Sequence[Sequence[str]], drawing: str | None) -> str:
    drawing = diagram(table) if drawing is None and table is not None else drawing
    return mark(drawing, table, phase, arrows) if drawing and table is not None else ""


def _nested(loop: Standing, told: Mapping[str, Any], drawing: str | None) -> str:
    path, phase = _line(told["path"]), _line(told["phase"])
    drawn = _drawn(loop.table, told["phase"], told["arrows"], drawing)
    image = f'<div class="agentnb-diagram" role="img" aria-label="Phases of {path}">{drawn}</div>' if drawn else ""
    ended = "" if told["running"] or not told["ended"] else f" ({_text(told['ended'])})"
    return (
        f'<li class="agentnb-nested-loop{" agentnb-running" if told["running"] else ""}" data-path="{path}" '
        f'data-nested-phase="{phase}"><p class="agentnb-nested-head"><span class="agentnb-nested-path">{path}</span> '
        f'<span class="agentnb-nested-phase">{phase}{ended}</span></p>'
        f'<p class="agentnb-nested-input">{_text(told["input"])}</p>{image}</li>'
    )


def _nested_conversations(run: Any, loops: Loops, calls: _Calls, detail: _Detail) -> Iterator[str]:
    for loop in loops.nested()[:NESTED]:
        yield from _conversation(state_at(run.state, loop.path).messages, loop.path, calls, detail)


def _conversation(messages: Sequence[Message], path: str, calls: _Calls, detail: _Detail) -> Iterator[str]:
    if not messages:
        return
    place = f' in <span class="agentnb-mono">{_line(path)}</span>' if path else ""
    yield f'<div class="agentnb-heading">What was said{place}</div><div class="agentnb-said">'
    for position, message in _ends(messages, FIRST_SAID, LAST_SAID if not path else LAST_SAID // 3):
        if message is None:
            yield f'<p class="agentnb-dim agentnb-gap">{position:,} messages left out</p>'
        elif message.role != "tool":  # a result stands with its call
            yield _said(message, path, calls, detail)
    yield "</div>"


class _Calls:
    """How each call was decided and how it came out, by the path of its loop and its id: two loops may use the same."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.decisions: dict[tuple[str, str], ApprovalDecision] = {}
        self.ends: dict[tuple[str, str], CallEnd] = {}
        for event in events:
            if isinstance(event, ApprovalDecision):
                self.decisions[event.path, event.call_id] = event
            elif isinstance(event, CallEnd):
                self.ends[event.path, event.call_id] = event

    def show(self, path: str, call: ToolCall, detail: _Detail) -> str:
        """One call with its arguments, its decision and its result, to be opened."""
        decision, end = self.decisions.get((path, call.id)), self.ends.get((path, call.id))
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


def _said(message: Message, path: str, calls: _Calls, detail: _Detail) -> str:
    text = text_of(message.content)
    body = detail.of("", text).replace('<div class="agentnb-label-small"></div>', "") if text else ""
    made = "".join(calls.show(path, call, detail) for call in message.tool_calls[:50])
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
    place = _path(made.get("path", ""))
    body = detail.of("", made["data"]).replace('<div class="agentnb-label-small"></div>', "") if made["data"] else ""
    return (
        f'<details class="agentnb-event" data-group="{_text(made["group"])}"><summary>'
        f'<span class="agentnb-seq">{made["seq"]}</span> <span class="agentnb-time">{clock}</span> '
        f'<span class="agentnb-type">{_text(made["type"])}</span> '
        f'<span class="agentnb-summary">{place}{_line(made["summary"])}</span></summary>{body}</details>'
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
