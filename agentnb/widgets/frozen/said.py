"""What was said, in a frozen panel: each loop's conversation, to be opened."""

from __future__ import annotations

from collections.abc import Iterator

from agentnb.run.recording import Recording
from agentnb.widgets.frozen.text import Detail, escaped, line
from agentnb.widgets.text import one_line
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.loops import Loops
from agentnb.widgets.views.said import Conversation, Made, Said

FIRST, LAST = 6, 24
"""How many messages of a long conversation are shown, from its beginning and its end."""
NESTED = 3
"""Of how many nested loops there is what was said in them."""
CALLS = 50


def conversations(run: Recording, loops: Loops, causes: Causes, detail: Detail) -> Iterator[str]:
    """The outermost loop's, and those of the nested loops that ran last."""
    yield from _conversation(Conversation(run, run.loop, causes), "", detail, LAST)
    for loop in loops.nested()[:NESTED]:
        yield from _conversation(Conversation(run, loop.design, causes, loop.path), loop.path, detail, LAST // 3)


def _conversation(conversation: Conversation, path: str, detail: Detail, last: int) -> Iterator[str]:
    total = len(conversation)
    if not total:
        return
    place = f' in <span class="agentnb-mono">{line(path)}</span>' if path else ""
    yield f'<details class="agentnb-fold" open><summary>What was said{place}</summary><div class="agentnb-said">'
    left = max(0, total - FIRST - last)
    for said in conversation.entries(0, FIRST if left else total):
        yield _said(said, detail)
    if left:
        yield f'<p class="agentnb-dim agentnb-gap">{left:,} messages left out</p>'
        for said in conversation.entries(FIRST + left, total):
            yield _said(said, detail)
    yield "</div></details>"


def _said(said: Said, detail: Detail) -> str:
    body = detail.of("", said.text) if said.text else ""
    if said.reasoning:
        told = detail.of("", said.reasoning)
        body = f'<details class="agentnb-reasoning"><summary>reasoning</summary>{told}</details>{body}'
    made = "".join(_made(call, detail) for call in said.calls[:CALLS])
    return (
        f'<div class="agentnb-message" data-role="{escaped(said.role)}">'
        f'<div class="agentnb-role">{escaped(said.role)}</div><div class="agentnb-body">{body}{made}</div></div>'
    )


def _made(call: Made, detail: Detail) -> str:
    """One call with its arguments, its decision and its result, to be opened."""
    blocks = [detail.of("arguments", call.arguments)]
    if call.decision:
        blocks.append(detail.of("decision", call.decision))
    if call.result is not None or call.position >= 0:
        blocks.append(detail.of("result", "" if call.result is None else call.result))
    return (
        f'<details class="agentnb-made" data-group="{"error" if call.failed else "call"}"><summary>'
        f"<code>{escaped(one_line(call.name))}</code> "
        f'<span class="agentnb-dim">{escaped(call.words)}</span></summary>{"".join(blocks)}</details>'
    )
