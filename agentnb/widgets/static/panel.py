"""The static panel: one piece of HTML that needs no kernel, no script, no style sheet and no network.

A saved notebook shows it to any reader. JupyterLab removes `<style>` and inline SVG from HTML that it does not trust,
so it consists of inline styles and of pictures in `data:` URLs (`pictures`). Its text inherits the colour of the page,
and its marks can be seen on white and on black. Without any style it still reads as an outline from top to bottom.

From top to bottom: what the run is and how it stands, its question, the strip, its sums, what it waits for, the state
diagram, and the trace (`rows`). Roles and accessible names are those of the live panel; JupyterLab drops them, too.
Its size is bounded, and all text of models, tools and persons is escaped (`html`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentnb.core.events import Event
from agentnb.run import Recording
from agentnb.widgets.static.html import (
    Budget,
    block,
    count,
    escaped,
    fold,
    hung,
    line,
    path_of,
    portable,
    quoted,
    thumbnails,
)
from agentnb.widgets.static.pictures import (
    CALL,
    LINE,
    MODEL,
    PERSON,
    graph_picture,
    image,
    phases_in_words,
    phases_picture,
    strip_in_words,
    strip_picture,
)
from agentnb.widgets.static.rows import mark, row_html, rows_html
from agentnb.widgets.text import amount, duration, for_reading, one_line, used, visible
from agentnb.widgets.views.about import Sign, display_name, input_content, input_text
from agentnb.widgets.views.decisions import RECENT, clock, rule_row
from agentnb.widgets.views.loops import Loops, LoopView, breadcrumb
from agentnb.widgets.views.questions import Questions
from agentnb.widgets.views.rows import ROW_LIMIT
from agentnb.widgets.views.status import status
from agentnb.widgets.views.strip import Strip, strip
from agentnb.widgets.views.trace import Trace

STYLE = (
    "font:13px/21px system-ui,sans-serif;border:1px solid #838b96;border-radius:8px;max-width:920px;padding:10px 14px;"
    "word-wrap:break-word"
)
SIDE = "float:right;display:flex;flex-wrap:wrap;gap:8px;margin:0 0 8px 16px"
PICTURES, QUESTIONS, GRAPHS = 30_000, 10_000, 20_000
"""Bytes of the pictures of the strip and the phases, of the waiting questions, of the call graphs."""
THUMBNAILS = 200_000
"""Bytes of the pictures in messages and results, in addition to all else."""
QUESTION = 400
"""Characters of the question of the run that are shown without unfolding it."""
NAMED = 20
"""Questions that are named, of those that are not shown."""
DRAWN = 2
"""Loops inside the outermost whose phases are drawn."""
QUEUED = 20

_SIGNS: Mapping[Sign, str] = {
    "ready": "○",
    "running": "●",
    "waiting": "◆",
    "paused": "❚❚",
    "failed": "✕",
    "done": "✓",
    "stopped": "■",
}
_GROUNDS: Mapping[Sign, str] = {"waiting": "#8a5a00", "failed": "#b3261e", "running": "#1c6fc9"}
"""The grounds of the word for the state of a run, on which white text can be read; #59626e for all others."""


def plain_text(run: Recording) -> str:
    """Return the run in one line of text; for a replay, with its position in the recording."""
    name = visible(display_name(run))
    now = status(run, Loops(run.loop))
    phase = one_line(visible(breadcrumb(str(run.phase), now["nested"])))
    recorded, events = "", count(run.state.position, "event")
    if now["position"] is not None:
        recorded, events = ", recorded", f"{run.state.position} of {len(run.recording)} events"
    return visible(f"{name} ({run.loop.kind()}{recorded}): {now['standing']}, phase {phase}, {events}")


def static_html(run: Recording, note: str = "") -> str:
    """Return the current state of the run as HTML of less than 180 kB, and at most 200 kB of pictures in its messages.

    note: a sentence about the page itself.
    """
    events = run.events
    loops = Loops(run.loop, graphs=True)
    now = status(run, loops)
    trace = Trace().follow(events)
    drawn = strip(events, trace.spans)
    pictures, shown_pictures = Budget(PICTURES), Budget(THUMBNAILS)
    rows = trace.rows()
    answers = [row for row in rows if row.kind == "answer"]
    shown = rows[: len(rows) - len(answers)]
    listed = rows_html(shown, shown_pictures, folded=len(events) >= 200, imported=bool(now["imported"]))
    parts = [
        _head(now, events, drawn),
        _problem(now),
        _asked(input_text(run)),
        thumbnails(input_content(run)[0], shown_pictures),
        f'<div style="margin:4px 0">{escaped(note)}</div>' if note else "",
        _divergence(now["diverged"]),
        _strip(drawn, pictures),
        _sums(drawn, now["usage"]),
        *_questions(run),
        *_remembered(run),
        *_graphs(loops, Budget(GRAPHS)),
        _diagrams(loops, now["name"], now["phase"], pictures),
        f'<div role="log" aria-label="Events">{listed}</div>',
        *_queued(run),
        *(row_html("○", MODEL, "<b>Answer</b>", row.result) for row in answers),
        _foot(len(events)),
    ]
    return portable("".join(parts), STYLE)


def _head(now: Mapping[str, Any], events: Sequence[Event], drawn: Strip) -> str:
    recorded = ", recorded" if now["position"] is not None else ""
    design = " · ".join(part for part in (now["loop"] + recorded, now["model"], now["imported"]) if part)
    facts = []
    if now["requests"] or now["calls"]:
        facts += [count(now["requests"], "turn"), count(now["calls"], "call")]
    elif events:
        facts.append(count(len(events), "event"))
    facts += used(now["usage"])
    if drawn.seconds > 0:
        rest = drawn.paused + drawn.idle
        words = f" (and {duration(rest)} {'idle' if drawn.idle else 'paused'})" if rest else ""
        facts.append(duration(drawn.worked) + words)
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:0 8px">'
        f'<b style="background:{_GROUNDS.get(now["sign"], "#59626e")};color:#fff;border-radius:10px;padding:0 9px">'
        f"{_SIGNS[now['sign']]} {escaped(now['words'])}</b> "
        f'<b style="font-size:15px;min-width:0">{escaped(now["name"])}</b> '
        f'<span style="opacity:.72">{escaped(design)}</span> '
        f'<span style="margin-left:auto;opacity:.72">{escaped(" · ".join(facts))}</span></div>'
    )


def _problem(now: Mapping[str, Any]) -> str:
    """Show why the run failed, or where it stopped."""
    html = ""
    if now["problem"]:
        html = f'<div style="margin:4px 0">{mark("✕", "")} <b>{escaped(now["problem"])}</b></div>'
    if now["paused_for"].startswith("breakpoint"):
        html += f'<div style="margin:4px 0">Stopped by the {line(now["paused_for"])}</div>'
    return html


def _asked(question: str) -> str:
    """Show what the run was started with; a long one is to be unfolded."""
    if not question:
        return ""
    short = " ".join(question.split()) if len(question) <= QUESTION else ""
    if short and short == question.strip():
        return f'<div style="margin:4px 0 8px;opacity:.72">{escaped(short)}</div>'
    return fold(line(question, QUESTION // 2), block(question), "margin:4px 0 8px")


def _divergence(sides: Mapping[str, Any] | None) -> str:
    """Return both sides of the event at which the loop of a replay does something else."""
    if sides is None:
        return ""
    both = "".join(
        f'<div><span style="opacity:.72">{words}</span> <samp>{line(sides[side]["type"])}</samp></div>'
        f"{block(sides[side]['text'])}"
        for side, words in (("recorded", "recorded"), ("expected", "now"))
    )
    heading = f"{path_of(sides['path'])}Event {sides['seq']:,} is not what the loop does now."
    return f'<div style="margin:4px 0 8px">{mark("✕", "")} <b>{heading}</b>{both}</div>'


def _strip(drawn: Strip, pictures: Budget) -> str:
    if not drawn.bars and not drawn.marks:
        return ""
    return pictures.spend(image(strip_picture(drawn), strip_in_words(drawn), drawn.width, "width:100%;margin:0"))


def _sums(drawn: Strip, usage: Mapping[str, Any]) -> str:
    """Show what the time and the tokens were spent on."""
    sums = [
        (sign, colour, name, seconds)
        for sign, colour, name, seconds in (
            ("●", MODEL, "model", drawn.spent_on_model),
            ("■", CALL, "calls", drawn.spent_on_calls),
            ("◆", PERSON, "you", drawn.waited),
            ("❚❚", "inherit", "paused", drawn.paused),
            ("○", LINE, "idle", drawn.idle),
        )
        if seconds
    ]
    parts = [f'<span style="color:{colour}">{sign}</span> {name} {duration(time)}' for sign, colour, name, time in sums]
    words = {"input_tokens": "tokens in", "output_tokens": "tokens out"}
    for name, value in usage.items():
        figure = amount(name, value)
        parts.append(escaped(figure if name == "cost" else f"{figure} {words.get(name, name.replace('_', ' '))}"))
    if not parts:
        return '<div style="margin:4px 0"></div>'
    spans = " ".join(f"<span>{part}</span>" for part in parts)
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 16px;margin:4px 0 10px">{spans}</div>'


def _questions(run: Recording) -> Iterator[str]:
    """Show the calls that wait for a decision, each with all that its question shows."""
    budget, left_out = Budget(QUESTIONS), []
    for item, question in Questions().asked(run, everything=True):
        if html := budget.spend(_question(question, for_reading(item.arguments)[:ROW_LIMIT])):
            yield html
        else:
            left_out.append(f"{path_of(question['path'])}<samp>{line(question['name'], 80)}</samp>")
    if left_out:
        more = f" and {len(left_out) - NAMED:,} more" if len(left_out) > NAMED else ""
        yield f'<div style="opacity:.72">waiting for a decision as well: {", ".join(left_out[:NAMED])}{more}</div>'


def _question(question: Mapping[str, Any], arguments: str) -> str:
    view = f'<div style="white-space:pre-wrap">{escaped(question["view"])}</div>' if question["view"] else ""
    why = question["why"] + (f" It needs {', '.join(question['needs'])}." if question["needs"] else "")
    return (
        f'<div role="group" aria-label="{quoted(one_line(question["name"], 80))}" '
        f'style="border:1px solid {PERSON};border-left:4px solid {PERSON};border-radius:6px;'
        f'padding:6px 12px;margin:0 0 10px">'
        f'<div><span style="color:{PERSON}">◆</span> {path_of(question["path"])}'
        f"<samp><b>{line(question['name'], 80)}</b></samp> was waiting for a decision. {escaped(why)}</div>"
        f'{view}<pre style="margin:2px 0;white-space:pre-wrap;font-size:13px;line-height:18px">'
        f"{hung(arguments)}</pre></div>"
    )


def _remembered(run: Recording) -> Iterator[str]:
    """Show the decisions that apply to later calls, with who made them and when."""
    for rule in map(rule_row, run.remembered[-RECENT:]):
        arguments = f" <samp>{escaped(rule['arguments'])}</samp>" if rule["arguments"] else ""
        yield (
            f'<div><span style="color:{PERSON}">◆</span> remembered <samp><b>{line(rule["name"], 80)}</b></samp>'
            f"{arguments}: {escaped(rule['words'])}, "
            f'<span style="opacity:.72">{clock(rule["time"])}</span></div>'
        )


def _graphs(loops: Loops, budget: Budget) -> Iterator[str]:
    """Show the call graphs: a picture, and to be unfolded a sentence for each call."""
    for path, graph in loops.graphs():
        heading = f"{path_of(path)}{escaped(graph.heading)}"
        drawn = ""
        if graph.dresses:
            svg, width = graph_picture(graph.shape, graph.dresses)
            alt = f"Call graph{f' of {visible(one_line(path, 60))}' if path else ''}: {graph.heading}"
            drawn = budget.spend(image(svg, alt, width, "max-width:none;margin:0;display:block"))
        sentences = budget.spend("".join(f"<li>{line(sentence)}</li>" for _, _, sentence in graph.dresses))
        listed = fold("each call in words", f'<ul style="margin:0">{sentences}</ul>') if sentences else ""
        notes = "".join(
            f'<div style="opacity:.72">{escaped(words)}</div>' for words in (graph.notes, graph.more) if words
        )
        yield (
            f'<div style="margin:0 0 10px"><b>{heading}</b>{notes}'
            f'<div style="overflow:auto">{drawn}{listed}</div></div>'
        )


def _diagrams(loops: Loops, run: str, phase: str, pictures: Budget) -> str:
    """Show the state diagram at the side, and those of loops inside with the name of each."""
    inside = [loop for loop in loops.nested() if loop.table is not None]
    shown: dict[Any, LoopView] = {}
    for loop in inside:
        shown.setdefault((loop.path.rpartition("/")[0], loop.table), loop)
    drawn = [(run if shown else "", _diagram(loops.root, phase, ""))]
    for loop in list(shown.values())[:DRAWN]:
        name = loop.path.rpartition("/")[2]
        drawn.append((name, _diagram(loop, loop.phase or "", name)))
    made = ""
    for name, picture in drawn:
        heading = f'<div style="text-align:center">{line(name, 24)}</div>' if name else ""
        made += f"<div>{heading}{pictures.spend(picture)}</div>"
    return f'<div role="group" aria-label="State diagram" style="{SIDE}">{made}</div>'


def _diagram(loop: LoopView, phase: str, name: str) -> str:
    if loop.table is None:
        return ""
    svg, width = phases_picture(loop.table, phase, loop.arrows)
    alt = phases_in_words(loop.table, phase, loop.arrows, name)
    marks = f' role="img" data-phase="{quoted(phase)}"'
    return image(svg, alt, width, "display:block;margin:0 auto", marks)


def _queued(run: Recording) -> Iterator[str]:
    """Show the messages that the run has not taken yet."""
    for queue, message in run.queued[:QUEUED]:
        text = message.content if isinstance(message.content, str) else str(message.content)
        yield (
            f'<div><span style="color:{PERSON}">◆</span> <b>You</b> {line(text)} '
            f'<span style="opacity:.72">queued: {escaped(queue.replace("_", "-"))}</span></div>'
        )


def _foot(events: int) -> str:
    return (
        f'<div style="clear:both;opacity:.72;border-top:1px solid {LINE};margin-top:8px;padding-top:6px">'
        f"Saved copy of {count(events, 'event')}. Run the cell to have the panel.</div>"
    )
