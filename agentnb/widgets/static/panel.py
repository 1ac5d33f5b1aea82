"""The static panel: one piece of HTML that needs no kernel, no script and no network.

A saved notebook shows it to any reader, so its size is bounded and all text of models, tools and persons is escaped
(`html`). It has the classes and the accessible names of the live panel and carries the same style sheet. If a viewer
strips styles and drawings from HTML that it does not trust, the rest still reads from top to bottom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentnb.core.events import Event
from agentnb.run.recording import Recording
from agentnb.widgets.bundle import static_style_sheet
from agentnb.widgets.drawings.diagram import Table, diagram, mark
from agentnb.widgets.drawings.graph import dress
from agentnb.widgets.static.html import LINE, Budget, count, ends, escaped, hung, line, long, path_of, portable
from agentnb.widgets.static.timeline import chosen, drawing, summary, table
from agentnb.widgets.text import amount, duration, one_line, visible
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.decisions import RECENT, clock, rule_row
from agentnb.widgets.views.loops import Loops, LoopView, breadcrumb, graph_name
from agentnb.widgets.views.rows import row
from agentnb.widgets.views.spans import Spans
from agentnb.widgets.views.status import Questions, status
from agentnb.widgets.views.transcript import CallEntry, Entry, Transcript


class Bounds(NamedTuple):
    """How much of a long run is shown."""

    first: int
    """Events from its beginning."""
    last: int
    """Events from its end."""
    detail: int
    """Characters of messages, data and drawings."""
    timeline: int
    """Characters of the timeline and the usage, which come after messages that may have used all of the detail."""


WHOLE = Bounds(40, 110, 40_000, 20_000)
SMALL = Bounds(10, 40, 13_000, 10_000)
"""For a page next to a live panel, whose state may be saved with the notebook as well."""
QUESTIONS = 8_000
"""Characters of the waiting questions; further ones are only named."""
NAMED = 20
"""Questions that are named."""
FIRST, LAST = 6, 24
"""Messages of a long transcript that are shown, from its beginning and its end."""
NESTED = 3
"""Nested loops whose transcripts are shown."""
CALLS = 50
"""Calls of one message."""
ROWS = (80, 40, 15)
"""Spans of the timeline at most; the next lower number if there is no room for them."""


def plain_text(run: Recording) -> str:
    """Return the run in one line of text; for a replay, with its position in the recording."""
    name = one_line(visible(str(run.name or run.id)))
    now = status(run, Loops(run.loop))
    phase = one_line(visible(breadcrumb(str(run.phase), now["nested"])))
    recorded, events = "", count(run.state.position, "event")
    if now["position"] is not None:
        recorded, events = ", recorded", f"{run.state.position} of {len(run.recording)} events"
    return visible(f"{name} ({run.loop.kind()}{recorded}): {now['standing']}, phase {phase}, {events}")


def static_html(run: Recording, drawing: str | None = None, bounds: Bounds = WHOLE, note: str = "") -> str:
    """Return the current state of the run as HTML of less than 200 kB; within the bounds `SMALL`, less than 120 kB.

    drawing: the state diagram, if there is one already; empty for none; drawn by default.
    note: a sentence about the page itself.
    """
    events = run.events
    loops = Loops(run.loop, graphs=True)
    now = status(run, loops)
    detail = Budget(bounds.detail)
    spans = Spans().follow(events)
    parts = [
        _head(now, events),
        _divergence(now["diverged"]),
        f'<p class="agentnb-note">{escaped(note)}</p>' if note else "",
        *_questions(run),
        *_remembered(run),
        *_graphs(loops, detail),
        '<div class="agentnb-columns"><div class="agentnb-main">',
        *_transcript(Transcript(run, run.loop, spans.causes), "", detail, LAST),
    ]
    for loop in loops.nested()[:NESTED]:
        parts += _transcript(Transcript(run, loop.design, spans.causes, loop.path), loop.path, detail, LAST // 3)
    parts += [
        *_timeline(spans, now["usage"], Budget(bounds.timeline)),
        *_events(events, spans.causes, detail, bounds),
        "</div>",
        *_diagrams(run, loops, now, drawing),
        "</div>",
    ]
    return portable("".join(parts), static_style_sheet())


def _head(now: Mapping[str, Any], events: Sequence[Event]) -> str:
    phase = one_line(breadcrumb(now["phase"], now["nested"]), LINE)
    facts = [f"phase {phase}"]
    # The turn of a single loop, the requests of nested ones; nothing if no model is asked (as in page/head.js).
    if now["nested"]:
        facts += [count(now["requests"], "model request"), count(now["calls"], "call")]
    elif now["turn"] or now["calls"]:
        facts += [f"turn {now['turn']}", count(now["calls"], "call")]
    facts.append(count(len(events), "event"))
    used = {name.replace("_", " "): amount(name, value) for name, value in now["usage"].items()}
    facts += [words if name == "cost" else f"{words} {name}" for name, words in used.items()]
    if len(events) > 1:
        facts.append(duration(events[-1].time - events[0].time))
    recorded = ", recorded" if now["position"] is not None else ""
    problem = f'<p class="agentnb-problem">{escaped(now["problem"])}</p>' if now["problem"] else ""
    if now["paused_for"].startswith("breakpoint"):
        problem += f'<p class="agentnb-stopped">Stopped by the {line(now["paused_for"])}</p>'
    return (
        '<div class="agentnb-head"><div class="agentnb-title">'
        f'<strong class="agentnb-name">{escaped(now["run"] or now["id"])}</strong> '
        f'<span class="agentnb-dim">{escaped(now["loop"])}{recorded}</span></div> '
        f'<span class="agentnb-chip" data-standing="{escaped(now["standing"])}">{escaped(now["standing"])}</span> '
        f'<span class="agentnb-facts">{escaped(" · ".join(facts))}</span></div>{problem}'
    )


def _divergence(sides: Mapping[str, Any] | None) -> str:
    """Return both sides of the event at which the loop of a replay does something else."""
    if sides is None:
        return ""
    both = "".join(
        f'<p><span class="agentnb-dim">{words}</span> <code>{line(sides[side]["type"])}</code></p>'
        f"<pre>{long(sides[side]['text'])}</pre>"
        for side, words in (("recorded", "recorded"), ("expected", "now"))
    )
    heading = f"{path_of(sides['path'])}Event {sides['seq']:,} is not what the loop does now."
    return f'<div class="agentnb-call"><p class="agentnb-error">{heading}</p>{both}</div>'


def _questions(run: Recording) -> Iterator[str]:
    budget, left_out = Budget(QUESTIONS), []
    for question in Questions().waiting(run, everything=True):
        if html := budget.spend(_question(question)):
            yield html
        else:
            left_out.append(f"{path_of(question['path'])}<code>{line(question['name'])}</code>")
    if left_out:
        more = f" and {len(left_out) - NAMED:,} more" if len(left_out) > NAMED else ""
        yield f'<p class="agentnb-dim">waiting for a decision as well: {", ".join(left_out[:NAMED])}{more}</p>'


def _question(question: Mapping[str, Any]) -> str:
    view = f'<p class="agentnb-view">{long(question["view"])}</p>' if question["view"] else ""
    return (
        f'<div class="agentnb-call" role="group" aria-label="{escaped(question["name"])}">'
        '<div class="agentnb-call-head">'
        f"<span>{path_of(question['path'])}<code>{escaped(question['name'])}</code></span> "
        f"was waiting for a decision. {escaped(question['why'])}</div>"
        f"{view}<pre>{hung(question['arguments'])}</pre></div>"
    )


def _remembered(run: Recording) -> Iterator[str]:
    """List the decisions that apply to later calls, with who made them and when."""
    rules = "".join(
        f'<li data-decision="{escaped(rule["decision"])}"><span class="agentnb-dim agentnb-decided-kind">remembered'
        f"</span> <code>{escaped(rule['name'])}</code> <code>{escaped(rule['arguments'] or '')}</code> "
        f'<span class="agentnb-decided-words">{escaped(rule["words"])}</span> '
        f'<span class="agentnb-dim">{clock(rule["time"])}</span></li>'
        for rule in map(rule_row, run.remembered[-RECENT:])
    )
    if rules:
        yield f'<div class="agentnb-decisions"><ul class="agentnb-decided" aria-label="Remembered">{rules}</ul></div>'


def _graphs(loops: Loops, detail: Budget) -> Iterator[str]:
    for path, graph in loops.graphs():
        dresses = [(status, words, one_line(sentence, LINE)) for status, words, sentence in graph.dresses]
        sentences = "".join(f"<li>{line(sentence)}</li>" for _, _, sentence in dresses)
        drawn = detail.spend(dress(graph.shape, dresses)) if dresses else ""
        yield (
            f'<div class="agentnb-graph"><div class="agentnb-graph-head">{path_of(path)}'
            f'<span class="agentnb-graph-title">{escaped(graph.heading)}</span> '
            f'<span class="agentnb-dim">{escaped(graph.notes)}</span></div>'
            f'<div class="agentnb-graph-drawn" role="img" tabindex="0" aria-label="{escaped(graph_name(path))}">'
            f"{drawn}</div>"
            f'<ul class="agentnb-spoken" aria-label="Calls">{detail.spend(sentences)}</ul>'
            f'<p class="agentnb-dim">{escaped(graph.more)}</p></div>'
        )


def _diagrams(run: Recording, loops: Loops, now: Mapping[str, Any], drawing: str | None) -> Iterator[str]:
    phase = run.phase or ""
    yield (
        f'<div class="agentnb-side"><div class="agentnb-diagram" role="img" aria-label="State diagram" '
        f'data-phase="{escaped(phase)}">{_drawn(loops.root.table, phase, now["path"], drawing)}</div>'
    )
    if now["nested"]:
        yield '<ul class="agentnb-nested" aria-label="Loops inside">'
        for loop, entry in zip(loops.nested(), now["nested"], strict=False):
            yield _nested(loop, entry, "" if drawing == "" or entry["table"] < 0 else None)
        yield f'<li class="agentnb-dim">and {now["more"]:,} more</li></ul>' if now["more"] else "</ul>"
    yield "</div>"


def _drawn(table: Table | None, phase: str, arrows: Sequence[Sequence[str]], drawing: str | None) -> str:
    drawing = diagram(table) if drawing is None and table is not None else drawing
    return mark(drawing, table, phase, arrows) if drawing and table is not None else ""


def _nested(loop: LoopView, entry: Mapping[str, Any], drawing: str | None) -> str:
    path, phase = line(entry["path"]), line(entry["phase"])
    drawn = _drawn(loop.table, entry["phase"], entry["arrows"], drawing)
    image = f'<div class="agentnb-diagram" role="img" aria-label="Phases of {path}">{drawn}</div>' if drawn else ""
    ended = "" if entry["running"] or not entry["ended"] else f" ({escaped(entry['ended'])})"
    return (
        f'<li class="agentnb-nested-loop{" agentnb-running" if entry["running"] else ""}" data-path="{path}" '
        f'data-nested-phase="{phase}"><p class="agentnb-nested-head"><span class="agentnb-nested-path">{path}</span> '
        f'<span class="agentnb-nested-phase">{phase}{ended}</span></p>'
        f'<p class="agentnb-nested-input">{escaped(entry["input"])}</p>{image}</li>'
    )


def _transcript(transcript: Transcript, path: str, detail: Budget, last: int) -> Iterator[str]:
    """Show the messages of a loop, to be unfolded."""
    total = len(transcript)
    if not total:
        return
    place = f' in <span class="agentnb-mono">{line(path)}</span>' if path else ""
    yield f'<details class="agentnb-fold" open><summary>What was said{place}</summary><div class="agentnb-said">'
    left = max(0, total - FIRST - last)
    for entry in transcript.entries(0, FIRST if left else total):
        yield _message(entry, detail)
    if left:
        yield f'<p class="agentnb-dim agentnb-gap">{left:,} messages left out</p>'
        for entry in transcript.entries(FIRST + left, total):
            yield _message(entry, detail)
    yield "</div></details>"


def _message(entry: Entry, detail: Budget) -> str:
    body = detail.block("", entry.text) if entry.text else ""
    if entry.reasoning:
        reasoning = detail.block("", entry.reasoning)
        body = f'<details class="agentnb-reasoning"><summary>reasoning</summary>{reasoning}</details>{body}'
    calls = "".join(_call(call, detail) for call in entry.calls[:CALLS])
    return (
        f'<div class="agentnb-message" data-role="{escaped(entry.role)}">'
        f'<div class="agentnb-role">{escaped(entry.role)}</div><div class="agentnb-body">{body}{calls}</div></div>'
    )


def _call(call: CallEntry, detail: Budget) -> str:
    """Show a call, to be unfolded: its arguments, its decision and its result."""
    blocks = [detail.block("arguments", call.arguments)]
    if call.decision:
        blocks.append(detail.block("decision", call.decision))
    if call.result is not None or call.position >= 0:
        blocks.append(detail.block("result", "" if call.result is None else call.result))
    return (
        f'<details class="agentnb-made" data-group="{"error" if call.failed else "call"}"><summary>'
        f"<code>{escaped(one_line(call.name))}</code> "
        f'<span class="agentnb-dim">{escaped(call.words)}</span></summary>{"".join(blocks)}</details>'
    )


def _timeline(spans: Spans, usage: Mapping[str, Any], detail: Budget) -> Iterator[str]:
    for room in ROWS:
        rows, total = chosen(spans, room)
        drawn = detail.spend(drawing(rows, spans)) if rows else ""
        if drawn:
            some = f"{count(total, 'row')}" if len(rows) == total else f"the {len(rows)} longest of {total:,} rows"
            yield (
                f'<details class="agentnb-fold"><summary>Timeline <span class="agentnb-dim">{some}</span></summary>'
                f'<div class="agentnb-chart-drawn" role="img" tabindex="0" aria-label="Timeline">{drawn}</div>'
                "</details>"
            )
            break
    spent = f'<p class="agentnb-dim">{line(summary(spans, usage))}</p><pre tabindex="0">{escaped(table(spans))}</pre>'
    if spans.requests and (html := detail.spend(spent)):
        yield f'<details class="agentnb-fold"><summary>Tokens, cost and time</summary>{html}</details>'


def _events(events: Sequence[Event], causes: Causes, detail: Budget, bounds: Bounds) -> Iterator[str]:
    yield '<div class="agentnb-heading">Events</div><div class="agentnb-log" role="log" aria-label="Events">'
    for position, event in ends(events, bounds.first, bounds.last):
        if event is None:
            yield f'<p class="agentnb-dim agentnb-gap">{position:,} events left out</p>'
        else:
            yield _event(row(event, causes), detail)
    if not events:
        yield '<p class="agentnb-dim agentnb-gap">Nothing has happened yet.</p>'
    yield "</div>"


def _event(made: Mapping[str, Any], detail: Budget) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(made["time"]))
    place = path_of(made.get("path", ""))
    body = detail.block("", made["data"]) if made["data"] else ""
    return (
        f'<details class="agentnb-event" data-group="{escaped(made["group"])}"><summary>'
        f'<span class="agentnb-seq">{made["seq"]}</span> <span class="agentnb-time">{clock}</span> '
        f'<span class="agentnb-type">{escaped(made["type"])}</span> '
        f'<span class="agentnb-summary">{place}{line(made["summary"])}</span></summary>{body}</details>'
    )
