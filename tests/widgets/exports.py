"""A notebook without a kernel: the exports of nbconvert, rendered Markdown, and GitHub."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import mistune
import nh3
from markdown_it import MarkdownIt
from nbconvert import HTMLExporter, MarkdownExporter

# Requests of nbconvert's own page. In CI there is no network.
OWN_REQUESTS = ("https://cdnjs.cloudflare.com/", "https://cdn.jsdelivr.net/", "https://unpkg.com/")

# html-pipeline, which GitHub is built with, lib/html_pipeline/sanitization_filter.rb: no style, class or SVG.
_ELEMENTS = """
h1 h2 h3 h4 h5 h6 br b i strong em a pre code img tt div ins del sup sub p picture ol ul table thead tbody tfoot
blockquote dl dt dd kbd q samp var hr ruby rt rp li tr td th s strike summary details caption figure figcaption abbr bdo
cite dfn mark small source span time wbr
"""
_ATTRIBUTES = """
abbr align alt aria-describedby aria-hidden aria-label aria-labelledby border cellpadding cellspacing char charset
colspan compact datetime dir height hspace id itemprop lang name open role rowspan span start summary tabindex title
type valign value width
"""
GITHUB_ELEMENTS = set(_ELEMENTS.split())
GITHUB_ATTRIBUTES = {"*": set(_ATTRIBUTES.split()), "a": {"href"}, "img": {"src"}}


def html_of(notebook: Any, **options: Any) -> str:
    """As `jupyter nbconvert --to html` gives it; `theme="dark"`, `template_name="webpdf"`."""
    page, _ = HTMLExporter(**options).from_notebook_node(notebook)
    return str(page)


def markdown_of(notebook: Any) -> str:
    """As `jupyter nbconvert --to markdown` gives it."""
    text, _ = MarkdownExporter().from_notebook_node(notebook)
    return str(text)


def commonmark(text: str) -> str:
    """Return Markdown as HTML by the standard, with HTML in it unchanged, as site generators do."""
    return _page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def other_markdown(text: str) -> str:
    """Return Markdown as HTML by a parser with other rules."""
    return _page(str(mistune.create_markdown(escape=False, plugins=["table", "math", "url"])(text)))


def github(html: str) -> str:
    """Return HTML as GitHub filters it."""
    clean = nh3.clean(html, tags=GITHUB_ELEMENTS, attributes=GITHUB_ATTRIBUTES, url_schemes={"http", "https"})
    return _page(clean)


_RULES = re.compile(
    r'allowedTags:\[("a","abbr".*?)\],.*?allowedAttributes:\{(.*?)\},.*?allowedStyles:\{"\*":\{(.*?)\}\}'
)


@cache
def _rules_of_jupyterlab() -> tuple[set[str], dict[str, set[str]], set[str]]:
    """Return the elements, attributes and properties of styles that the sanitizer of the installed JupyterLab keeps."""
    folder = Path(sys.prefix) / "share" / "jupyter" / "lab" / "static"
    sources = (script.read_text(encoding="utf-8") for script in folder.glob("*.js"))
    rules = next(filter(None, map(_RULES.search, sources)), None)
    if rules is None:
        raise LookupError(f"no sanitizer in {folder}")
    elements, attributes, styles = rules.groups()
    names = re.compile(r'"([^"]+)"')
    always = re.sub(r"\.\.\.[^?]*\?\[[^\]]*\]:\[\],?", "", attributes)  # without what only an option keeps
    of_element = re.findall(r'(?:"(\*)"|(\w+)):\[([^\]]*)\]', always)
    kept = {every or one: set(names.findall(listed)) for every, one, listed in of_element}
    return set(names.findall(elements)), kept, set(re.findall(r'"?([a-z-]+)"?:\[', styles))


def jupyterlab(html: str) -> str:
    """Return HTML as JupyterLab filters it in a notebook that is not trusted."""
    elements, attributes, styles = _rules_of_jupyterlab()
    return nh3.clean(
        html,
        tags=elements,
        attributes={**attributes, "a": attributes.get("a", set()) - {"rel"}},
        url_schemes={"http", "https", "data"},
        filter_style_properties=styles,
    )


def github_markdown(text: str) -> str:
    """Return Markdown as on GitHub: tags that GFM 6.11 forbids become text, and other HTML is filtered."""
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    return github(_forbidden().sub("&lt;", rendered))


@cache
def _forbidden() -> re.Pattern[str]:
    names = "title|textarea|style|xmp|iframe|noembed|noframes|script|plaintext"
    return re.compile(rf"<(?=/?(?:{names})\b)", re.IGNORECASE)


def _page(body: str) -> str:
    return f"<!doctype html><meta charset=utf-8><title>page</title><body>{body}</body>"
