"""The panel, frozen: one piece of HTML that needs no kernel, no script and no network.

A saved notebook shows it wherever the notebook is opened, by whoever; so it is bounded in size, and everything in it
that a model, a tool or a person said is text, escaped here and nowhere else. It has the classes and the accessible
names of the live panel and carries the same style sheet. Where a viewer strips styles and drawings from HTML it does
not trust, what is left still reads from top to bottom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentnb.core.events import Event
from agentnb.run.recording import Recording
from agentnb.widgets.drawings.diagram import Table, diagram, mark
from agentnb.widgets.drawings.graph import dress
from agentnb.widgets.frozen.portable import portable
from agentnb.widgets.frozen.said import conversations
from agentnb.widgets.frozen.text import LINE, ROOM, TIMELINE_ROOM, Detail, ends, escaped, hung, line, long, path_of
from agentnb.widgets.frozen.timeline import chosen, drawing, summary, table
from agentnb.widgets.page import frozen_style_sheet
from agentnb.widgets.text import amount, duration, one_line, visible
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.decisions import RECENT, clock, rule_row
from agentnb.widgets.views.loops import Loops, Standing, breadcrumb, graph_name
from agentnb.widgets.views.rows import row
from agentnb.widgets.views.spans import Spans
from agentnb.widgets.views.standing import Waiting, standing, status


class Bounds(NamedTuple):
    """How much of a long run is shown."""

    first: int
    """Events from its beginning."""
    last: int
    """Events from its end."""
    detail: int
    """Characters of what stands behind the lines."""
    timeline: int
    """Characters of the timeline and the bill, which come after a conversation that may have taken all of that."""


WHOLE = Bounds(40, 110, ROOM, TIMELINE_ROOM)
SMALL = Bounds(10, 40, ROOM // 3, TIMELINE_ROOM // 2)
"""Of a page that stands beside a live panel, whose state may be saved with the notebook as well."""
QUESTIONS = 8_000
"""Characters of the questions that wait; of more of them there is the name."""
NAMED = 20
"""How many of those."""
ROWS = (80, 40, 15)
"""How many spans a timeline shows at most; fewer where there is no room for them."""


def plain_text(run: Recording) -> str:
    """The run in one line of text; of a replay, where in its recording it stands."""
    name = one_line(visible(str(run.name or run.id)))
    now = status(run, Loops(run.loop))
    phase = one_line(visible(breadcrumb(str(run.phase), now["nested"])))
    at = run.state.position
    if now["position"] is not None:
        total = len(run.recording)
        return visible(f"{name} ({run.loop.kind()}, recorded): {standing(run)}, phase {phase}, {at} of {total} events")
    return visible(f"{name} ({run.loop.kind()}): {standing(run)}, phase {phase}, {_count(at, 'event')}")


def static_html(run: Recording, drawing: str | None = None, bounds: Bounds = WHOLE, note: str = "") -> str:
    """The run as it stands now, as HTML text of less than 200 kB; within the bounds `SMALL` of less than 120 kB.

    drawing: its state diagram if you have it, empty for none; drawn by default, which takes a second the first time.
    note: what is to be said of the page itself.
    """
    events = run.events
    loops = Loops(run.loop, graphs=True)
    now = status(run, loops)
    detail = Detail(bounds.detail)
    spans = Spans().follow(events)
    parts = [
        _head(now, events),
        _departure(now["diverged"]),
        f'<p class="agentnb-note">{escaped(note)}</p>' if note else "",
        *_questions(run),
        *_remembered(run),
        *_graphs(loops, detail),
        '<div class="agentnb-columns"><div class="agentnb-main">',
        *conversations(run, loops, spans.causes, detail),
        *_timeline(spans, now["usage"], Detail(bounds.timeline)),
        *_events(events, spans.causes, detail, bounds),
        "</div>",
        *_diagrams(run, loops, now, drawing),
        "</div>",
    ]
    return portable("".join(parts), frozen_style_sheet())


def _head(now: Mapping[str, Any], events: Sequence[Event]) -> str:
    phase = one_line(breadcrumb(now["phase"], now["nested"]), LINE)
    facts = [f"phase {phase}", *_asked(now), _count(len(events), "event")]
    used = {name.replace("_", " "): amount(name, value) for name, value in now["usage"].items()}
    facts += [told if name == "cost" else f"{told} {name}" for name, told in used.items()]
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


def _asked(now: Mapping[str, Any]) -> list[str]:
    """How far its models and their calls are; nothing where no model is asked (head.js)."""
    if now["nested"]:
        return [_count(now["requests"], "model request"), _count(now["calls"], "call")]
    return [f"turn {now['turn']}", _count(now["calls"], "call")] if now["turn"] or now["calls"] else []


def _departure(sides: Mapping[str, Any] | None) -> str:
    """Where a replay stands before an event at which its loop does something else: both sides."""
    if sides is None:
        return ""
    told = "".join(
        f'<p><span class="agentnb-dim">{words}</span> <code>{line(sides[side]["type"])}</code></p>'
        f"<pre>{long(sides[side]['text'])}</pre>"
        for side, words in (("recorded", "recorded"), ("expected", "now"))
    )
    heading = f"{path_of(sides['path'])}Event {sides['seq']:,} is not what the loop does now."
    return f'<div class="agentnb-call"><p class="agentnb-error">{heading}</p>{told}</div>'


def _count(amount: int, what: str) -> str:
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def _questions(run: Recording) -> Iterator[str]:
    detail, left_out = Detail(QUESTIONS), []
    for question in Waiting().questions(run, everything=True):
        told = detail.spend(_question(question))
        if told:
            yield told
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
    """The decisions that hold for later calls too, with who made them and when."""
    told = "".join(
        f'<li data-decision="{escaped(rule["decision"])}"><span class="agentnb-dim agentnb-decided-kind">remembered'
        f"</span> <code>{escaped(rule['name'])}</code> <code>{escaped(rule['arguments'] or '')}</code> "
        f'<span class="agentnb-decided-words">{escaped(rule["words"])}</span> '
        f'<span class="agentnb-dim">{clock(rule["time"])}</span></li>'
        for rule in map(rule_row, run.remembered[-RECENT:])
    )
    if told:
        yield f'<div class="agentnb-decisions"><ul class="agentnb-decided" aria-label="Remembered">{told}</ul></div>'


def _graphs(loops: Loops, detail: Detail) -> Iterator[str]:
    for path, graph in loops.graphs():
        dresses = [(standing, words, one_line(sentence, LINE)) for standing, words, sentence in graph.dresses]
        told = "".join(f"<li>{line(sentence)}</li>" for _, _, sentence in dresses)
        drawn = detail.spend(dress(graph.shape, dresses)) if dresses else ""
        yield (
            f'<div class="agentnb-graph"><div class="agentnb-graph-head">{path_of(path)}'
            f'<span class="agentnb-graph-title">{escaped(graph.heading)}</span> '
            f'<span class="agentnb-dim">{escaped(graph.notes)}</span></div>'
            f'<div class="agentnb-graph-drawn" role="img" tabindex="0" aria-label="{escaped(graph_name(path))}">'
            f"{drawn}</div>"
            f'<ul class="agentnb-spoken" aria-label="Calls">{detail.spend(told)}</ul>'
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
        for loop, told in zip(loops.nested(), now["nested"], strict=False):
            yield _nested(loop, told, "" if drawing == "" or told["table"] < 0 else None)
        yield f'<li class="agentnb-dim">and {now["more"]:,} more</li></ul>' if now["more"] else "</ul>"
    yield "</div>"


def _drawn(table: Table | None, phase: str, arrows: Sequence[Sequence[str]], drawing: str | None) -> str:
    drawing = diagram(table) if drawing is None and table is not None else drawing
    return mark(drawing, table, phase, arrows) if drawing and table is not None else ""


def _nested(loop: Standing, told: Mapping[str, Any], drawing: str | None) -> str:
    path, phase = line(told["path"]), line(told["phase"])
    drawn = _drawn(loop.table, told["phase"], told["arrows"], drawing)
    image = f'<div class="agentnb-diagram" role="img" aria-label="Phases of {path}">{drawn}</div>' if drawn else ""
    ended = "" if told["running"] or not told["ended"] else f" ({escaped(told['ended'])})"
    return (
        f'<li class="agentnb-nested-loop{" agentnb-running" if told["running"] else ""}" data-path="{path}" '
        f'data-nested-phase="{phase}"><p class="agentnb-nested-head"><span class="agentnb-nested-path">{path}</span> '
        f'<span class="agentnb-nested-phase">{phase}{ended}</span></p>'
        f'<p class="agentnb-nested-input">{escaped(told["input"])}</p>{image}</li>'
    )


def _timeline(spans: Spans, usage: Mapping[str, Any], detail: Detail) -> Iterator[str]:
    for room in ROWS:
        rows, total = chosen(spans, room)
        drawn = detail.spend(drawing(rows, spans)) if rows else ""
        if drawn:
            some = f"{_count(total, 'row')}" if len(rows) == total else f"the {len(rows)} longest of {total:,} rows"
            yield (
                f'<details class="agentnb-fold"><summary>Timeline <span class="agentnb-dim">{some}</span></summary>'
                f'<div class="agentnb-chart-drawn" role="img" tabindex="0" aria-label="Timeline">{drawn}</div>'
                "</details>"
            )
            break
    spent = f'<p class="agentnb-dim">{line(summary(spans, usage))}</p><pre tabindex="0">{escaped(table(spans))}</pre>'
    if spans.requests and (told := detail.spend(spent)):
        yield f'<details class="agentnb-fold"><summary>Tokens, cost and time</summary>{told}</details>'


def _events(events: Sequence[Event], causes: Causes, detail: Detail, bounds: Bounds) -> Iterator[str]:
    yield '<div class="agentnb-heading">Events</div><div class="agentnb-log" role="log" aria-label="Events">'
    for position, event in ends(events, bounds.first, bounds.last):
        if event is None:
            yield f'<p class="agentnb-dim agentnb-gap">{position:,} events left out</p>'
        else:
            yield _event(row(event, causes), detail)
    if not events:
        yield '<p class="agentnb-dim agentnb-gap">Nothing has happened yet.</p>'
    yield "</div>"


def _event(made: Mapping[str, Any], detail: Detail) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(made["time"]))
    place = path_of(made.get("path", ""))
    body = detail.of("", made["data"]) if made["data"] else ""
    return (
        f'<details class="agentnb-event" data-group="{escaped(made["group"])}"><summary>'
        f'<span class="agentnb-seq">{made["seq"]}</span> <span class="agentnb-time">{clock}</span> '
        f'<span class="agentnb-type">{escaped(made["type"])}</span> '
        f'<span class="agentnb-summary">{place}{line(made["summary"])}</span></summary>{body}</details>'
    )
