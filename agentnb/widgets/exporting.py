"""The exported file: a run in one HTML file, which replays it without a kernel and without a network.

The file has the page of the panel (`bundle`), the rows of all events as the feed sends them, and what the page asks a
kernel for: the messages of each loop, what each event changed in the state of its loop, and the ends of the steps.
`page/file.js` answers the page from these. The call graphs are those at the end of the recording.

Code, style and data are compressed. A Content-Security-Policy allows the two scripts of the file, by their hashes, and
nothing else: no request, no other script. Pictures of messages are allowed if the file has some, as part of its data.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from base64 import b64encode, b85encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from math import inf
from pathlib import Path
from stat import S_IMODE
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.core.evolve import evolve, nested
from agentnb.core.json import repair_text
from agentnb.core.state import State
from agentnb.run import Recording
from agentnb.run.gate.gate import Unit
from agentnb.run.past.cursor import ends_of
from agentnb.run.validation import expanded
from agentnb.widgets.bundle import file_module, file_style_sheet
from agentnb.widgets.drawings.diagram import diagram, table_of
from agentnb.widgets.drawings.graph import draw
from agentnb.widgets.text import as_json, one_line
from agentnb.widgets.views.about import QUESTION, input_text
from agentnb.widgets.views.loops import Loops, diagrams_of, graph_status, phases_of
from agentnb.widgets.views.rows import encode_row
from agentnb.widgets.views.status import state_data, status
from agentnb.widgets.views.trace import Trace
from agentnb.widgets.views.transcript import Transcript, transcript_data

PARTS = ("position", "graph", "trace", "events", "messages", "usage", "diagram", "detail")
"""The parts of the panel that the file has: those that need no kernel."""
LIMITS = (64 * 1024, 16 * 1024, 4096, 1024, 256, 64)
"""The maximum sizes of an event's data, in bytes of JSON. The first one with which the data has room is used."""
ROOM, ROOM_OF_EVENT = 128 * 1024, 92
"""The room of the compressed data, in bytes: so much, and so much for each event."""
PICTURES = 2_000_000
"""The maximum number of characters of the pictures in the messages, in addition to the room."""
BATCH = 500
"""The number of rows that the page reads at once."""
SAMPLES, SAMPLE = 8, 60
"""The number of places, and of events at each, from which the size of a long run is estimated."""
LOOPS = 200
"""The maximum number of loops whose messages the file has."""
UNITS: tuple[Unit, ...] = ("call", "turn", "phase")
"""The units of a step whose ends the file has."""

_POLICY = (
    "default-src 'none'; script-src {scripts};{pictures} style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
html{{color-scheme:light dark;background:#fff}}
body{{margin:0;font:13px/18px system-ui,sans-serif}}
h1{{position:absolute;width:1px;height:1px;margin:0;overflow:hidden;clip-path:inset(50%)}}
main{{box-sizing:border-box;max-width:1600px;margin:0 auto;padding:12px}}
main .agentnb-panel.agentnb-framed{{height:max(320px,calc(100vh - 24px)) !important;margin:0}}
main .agentnb-handle{{display:none}}
@media (prefers-color-scheme:dark){{html{{background:#0e1013;color:#e5e8ec}}}}
@media (max-width:500px){{
main{{padding:0}}
main .agentnb-panel.agentnb-framed{{height:max(320px,100vh) !important}}
}}
</style>
</head>
<body>
<main id="here"><h1>{title}</h1><p id="wait">This page needs JavaScript, and a browser of 2023 or later.</p></main>
<script type="text/plain" id="style">{style}</script>
<script type="text/plain" id="data">{data}</script>
<script type="text/plain" id="code">{code}</script>
<script type="module">{start}</script>
</body>
</html>
"""
_BASE85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"  # of `b85encode`
_DIGITS = _BASE85.translate(bytes.maketrans(b"<>&`", b",.:/"))  # without those that mean something in HTML
_START = (
    """
const digits = "DIGITS";
const values = new Map([...digits].map((digit, value) => [digit.charCodeAt(0), value]));
const bytesOf = (text) => {
  const bytes = new DataView(new ArrayBuffer(4 * Math.ceil(text.length / 5)));
  for (let at = 0; at < text.length; at += 5) {
    let word = 0;
    for (let i = at; i < at + 5; i++) word = 85 * word + (values.get(text.charCodeAt(i)) ?? 84);
    bytes.setUint32((at / 5) * 4, word);
  }
  return bytes.buffer.slice(0, bytes.byteLength - ((5 - (text.length % 5)) % 5));
};
const unpack = (id) => {
  const bytes = bytesOf(document.getElementById(id).textContent);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
};
const [style, data, code] = await Promise.all(["style", "data", "code"].map(unpack));
for (const id of ["style", "data", "code", "wait"]) document.getElementById(id).remove();
globalThis.agentnbFile = data;
const sheet = document.createElement("style");
sheet.textContent = style;
document.head.append(sheet);
const script = document.createElement("script");
script.type = "module";
script.textContent = code;
document.body.append(script);
""".replace("DIGITS", _DIGITS.decode())
    .replace("\n  ", "\n")
    .replace("\n  ", "\n")
)


def export_html(run: Recording, path: str | os.PathLike[str]) -> Path:
    """Write the run as it is now into an HTML file, and return its path. `Recording.export_html` explains it."""
    return write_file(path, lambda: page_of(run))


def page_of(run: Recording) -> str:
    """Return the HTML file of the run as it is now; of a replay, the file of its whole recording."""
    run = run.at(len(run.recording) - 1)  # it does not change while the file is made
    loops = Loops(run.loop, graphs=True).follow(run.events)
    now = status(run, loops)
    compressed, has_pictures = _data(run, loops, now)
    code = file_module()
    return _PAGE.format(
        title=escape(f"{now['name']} \N{MIDDLE DOT} {now['loop']}"),
        policy=_POLICY.format(
            scripts=f"{_hash(_START)} {_hash(code)}", pictures=" img-src data:;" if has_pictures else ""
        ),
        style=_packed(zlib.compress(file_style_sheet().encode(), 9)),
        data=_packed(compressed),
        code=_packed(zlib.compress(code.encode(), 9)),
        start=_START,
    )


def file_name(run: Recording) -> str:
    """Return a name for the file of a run: the name of the run, as far as it can be in a file name everywhere."""
    name = "".join(letter if letter.isalnum() or letter in "-_ " else "-" for letter in repair_text(run.name or run.id))
    return f"{one_line(name, 60).strip(' -') or 'run'}.html"


def _data(run: Recording, loops: Loops, now: dict[str, Any]) -> tuple[bytes, bool]:
    """Return the compressed data of the file, and True if it has pictures.

    The data is a line with what the page's model has, then lines with batches of rows. Data of events and messages
    that is too long for the room of the file is cut.
    """
    events = run.events
    trace = Trace()
    trace.follow(events, len(events))
    table = table_of(run.loop.phases)
    graphs = loops.graphs()
    head = {
        "traits": {
            "key": "file",
            "parts": PARTS,
            "question": repair_text(input_text(run))[:QUESTION],
            "status": now,
            "phases": phases_of(table),
            "diagram": diagram(table),
            "tables": diagrams_of(loops),
            "total": len(events),
            "place": [len(events), 0],
            "graphs": [graph | {"notes": _at_the_end(graph["notes"])} for graph in graph_status(graphs)],
            "drawings": [draw(graph.shape) for _, graph in graphs],
        },
        "ends": _ends(events),
    }
    states = _States(events)
    said = _Said(run, loops, trace)
    first = as_json(head | {"loops": said.loops})
    pictures = said.size_of_pictures()
    room = ROOM + ROOM_OF_EVENT * len(events) + pictures
    *limits, least = (
        limit for limit in LIMITS if limit == LIMITS[-1] or _estimate(events, trace, states, limit) <= room
    )
    for limit in limits:
        if data := _compressed([first, *_batches(events, trace, states, said.by_event(limit // 4), limit)], room):
            return data, pictures > 0
    data = _compressed([first, *_batches(events, trace, states, said.by_event(least // 4), least)], None)
    return data, pictures > 0


def _at_the_end(notes: str) -> str:
    """Return the notes of a call graph, which a file has as it is at the end of the recording."""
    return ", ".join(filter(None, (notes, "at the end of the recording")))


def _estimate(events: Sequence[Event], trace: Trace, states: _States, limit: int) -> float:
    """Estimate the size of the compressed rows of all events from some of them."""
    if len(events) <= SAMPLES * SAMPLE:
        return 0
    starts = (len(events) * number // SAMPLES for number in range(SAMPLES))
    lines = [line for start in starts for line in _batches(events[start : start + SAMPLE], trace, states, {}, limit)]
    return len(_compressed(lines, None)) / (SAMPLES * SAMPLE) * len(events)


def _batches(
    events: Sequence[Event], trace: Trace, states: _States, said: Mapping[int, Any], limit: int
) -> Iterator[bytes]:
    """Yield the rows of the events in batches, each a line of JSON.

    A row has the messages that belong to its event, and what the event changed in the state of its loop.
    """
    lines: list[bytes] = []
    for event in events:
        line = encode_row(event, trace, limit)
        if event.seq in said:
            line = line[:-1] + b',"said":' + as_json(said[event.seq]) + b"}"
        if changed := states.changed[event.seq]:
            line = line[:-1] + b',"state":' + changed + b"}"
        lines.append(line)
        if len(lines) == BATCH or event is events[-1]:
            yield b"[" + b",".join(lines) + b"]"
            lines = []


def _ends(events: Sequence[Event]) -> str:
    """Return a digit for each event: the sum of 1 if it ends a call, 2 if a turn, and 4 if a phase."""
    ends = [ends_of(unit) for unit in UNITS]
    state, digits = State(), []
    for event in events:
        evolve(state, event)
        digits.append(str(sum(1 << bit for bit, is_end in enumerate(ends) if is_end(event, state))))
    return "".join(digits)


class _States:
    """What each event changed in the state of its loop. changed: as JSON, by the number of the event; empty if nothing.

    It has the facts and the values that are new or another, and null for those that are gone.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.changed: list[bytes] = []
        state, before = State(), dict[str, dict[str, dict[str, bytes]]]()
        for event in events:
            evolve(state, event)
            if event.type == "run_start":
                before.pop(event.path, None)
            self.changed.append(self._change(state, event, before))

    def _change(self, state: State, event: Event, before: dict[str, dict[str, dict[str, bytes]]]) -> bytes:
        try:
            own = nested(state, event.path)
        except KeyError:
            return b""
        data = state_data(own)
        now = {part: {name: as_json(value) for name, value in data[part].items()} for part in ("facts", "values")}
        last = before.get(event.path, {"facts": {}, "values": {}})
        before[event.path] = now
        parts = []
        for part in ("facts", "values"):
            made = {name: value for name, value in now[part].items() if last[part].get(name) != value}
            made |= dict.fromkeys(last[part].keys() - now[part].keys(), b"null")
            if made:
                fields = b",".join(as_json(str(name)) + b":" + value for name, value in made.items())
                parts.append(f'"{part}":'.encode() + b"{" + fields + b"}")
        return b"{" + b",".join(parts) + b"}" if parts else b""


class _Said:
    """The messages of the loops of a run, of each loop as they are at its end, or now.

    loops: of each loop its path, the number of its first event (None for the outermost loop) and a note.
    """

    def __init__(self, run: Recording, loops: Loops, trace: Trace) -> None:
        begun = (event for event in run.events if event.type == "run_start" and event.path)
        found = [("", None), *((event.path, event.seq) for event in islice(begun, LOOPS - 1))]
        causes = trace.spans.causes
        self._size_of_pictures: int | None = None
        self._transcripts = [Transcript(run, loops.design_at(path), causes, path, begun=seq) for path, seq in found]
        self.loops = [
            {"path": repair_text(path), "begun": seq, "note": transcript.note}
            for (path, seq), transcript in zip(found, self._transcripts, strict=True)
        ]

    def by_event(self, length: int) -> dict[int, list[Any]]:
        """Return the messages by the number of the event from which on they are shown, each with its loop's number.

        length: the maximum number of characters of a text.
        """
        said: dict[int, list[Any]] = {}
        left = PICTURES
        for number, transcript in enumerate(self._transcripts):
            at = self.loops[number]["begun"] or 0
            for message in transcript_data(transcript, len(transcript), most=length, room=inf)["messages"]:
                at = max(at, message["position"])
                said.setdefault(at, []).append([number, message])
                for part in (message, *message["calls"]):
                    if (size := sum(map(len, part.get("pictures", ())))) > left:
                        del part["pictures"]
                    else:
                        left -= size
        self._size_of_pictures = PICTURES - left
        return said

    def size_of_pictures(self) -> int:
        """Return the number of characters of all pictures in the messages."""
        if self._size_of_pictures is None:
            self.by_event(0)
        return self._size_of_pictures or 0


def _compressed(lines: Iterable[bytes], room: int | None) -> bytes:
    """Return the compressed lines; nothing if they need more than the room. None for any size."""
    packer = zlib.compressobj(9)
    parts: list[bytes] = []
    for line in lines:
        parts += packer.compress(line), packer.compress(b"\n")
        if room is not None and sum(map(len, parts)) > room:
            return b""
    return b"".join([*parts, packer.flush()])


def _packed(compressed: bytes) -> str:
    """Return bytes as text in base 85, which is shorter than base 64."""
    return b85encode(compressed).translate(bytes.maketrans(_BASE85, _DIGITS)).decode()


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def write_file(path: str | os.PathLike[str], content: Callable[[], str]) -> Path:
    """Write a text file whole or not at all, and return its path. `content` is called if the path can be a file.

    The file is made to be shared: a new one has the permissions of any new file (the umask), and one that exists keeps
    its own.

    Raises UsageError if the path is a folder, or its folder does not exist.
    """
    given: object = path
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise UsageError(f'The path of the file must be a text or a Path, got {path!r:.80}. For example "run.html".')
    target = expanded(path)
    if target.is_dir():
        raise UsageError(f"{target} is a folder. Pass the path of a file, for example {str(target / 'run.html')!r}.")
    folder = target.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"The folder {folder} {what}. Create it first, or pass the path of a file in another folder.")
    text = content()
    made = folder / f".{target.name}.{os.urandom(6).hex()}.part"
    try:
        with made.open("xb") as file:
            file.write(text.encode())
        if target.exists():
            made.chmod(S_IMODE(target.stat().st_mode))
        made.replace(target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    return target
