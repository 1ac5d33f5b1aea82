"""Claude Code: the JSON lines of a session, with its thinking, its sub-agents and its compactions.

Each line is one block of an answer, one message or one note. Lines of the same answer have the same message id and are
joined. The lines form a tree: a conversation that was rewound has branches, of which the one that ends last is read. A
sub-agent's lines are in the same file (`isSidechain`), or in a file `agent-<id>.jsonl` of the same folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import anthropic_answer, anthropic_usage, content_of
from agentnb.importers.source import ForeignFile, decode
from agentnb.importers.writer import Writer, error_of, seconds

name = "Claude Code"

Line = Mapping[str, Any]

_NOTES = frozenset(
    {"summary", "file-history-snapshot", "queue-operation", "progress", "attachment", "custom-title", "ai-title",
     "last-prompt", "permission-mode", "agent-name", "mode", "pr-link", "tag", "saved_hook_context", "task-summary"}
)  # fmt: skip
"""Types of lines that are no part of the conversation. They are counted in `lost`."""


def recognises(file: ForeignFile) -> bool:
    """Return True for JSON lines of Claude Code."""
    first = file.first
    if not isinstance(first, Mapping):
        return False
    if "sessionId" in first and first.keys() & {"parentUuid", "uuid", "isSidechain"}:
        return True
    if str(first.get("type")) in _NOTES:
        return b'"sessionId"' in file.data and (b'"parentUuid"' in file.data or b'"uuid"' in file.data)
    return isinstance(first.get("loglines"), list)


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a session."""
    main: list[Line] = []
    side: list[Line] = []
    seen: set[str] = set()
    for number, line in _lines(file):
        kind, id = line.get("type"), line.get("uuid")
        if kind in ("user", "assistant", "system") and isinstance(id, str):
            if id in seen:
                file.damaged(f"line {number} repeats the uuid {id}", "repeated lines")
                continue
            seen.add(id)
            (side if line.get("isSidechain") else main).append(line)
        else:
            file.lost[f"lines of type {kind}"] += 1
    if not main:  # the file of a sub-agent
        main, side = side, []
    if not main:
        raise file.refused("it has no message of a session.")
    path = _branch(file, main)
    del main, seen
    first = path[0]
    about = {
        "version": first.get("version"),
        "id": first.get("sessionId"),
        "folder": first.get("cwd"),
        "git_branch": first.get("gitBranch"),
    }
    writer = Writer(file.lost, name="claude-code", about={key: value for key, value in about.items() if value})
    agents = _SubAgents(file, first.get("sessionId"), side)
    yield from _session(file, path, writer, agents)
    yield from writer.start()
    agents.count_unused()


def _lines(file: ForeignFile) -> Iterator[tuple[int, Line]]:
    """Yield the lines with their numbers. A session of the web has them in one object, and without ids."""
    given = file.document.get("loglines") if isinstance(file.document, Mapping) else None
    if not isinstance(given, list):
        yield from file.lines()
        return
    for number, line in enumerate(given, 1):
        if isinstance(line, Mapping):
            yield number, {"uuid": f"line {number}", **line}
        else:
            file.damaged(f"line {number} is not an object", "damaged lines")


def _branch(file: ForeignFile, lines: Sequence[Line]) -> list[Line]:
    """Return the lines of the branch that ends last. The lines of other branches are counted.

    A line whose parent is not in the file, because it was not a message or is damaged, follows the line before it.
    """
    parents: dict[str, str] = {}
    known: dict[str, Line] = {}
    before = ""
    for line in lines:
        id, parent = str(line["uuid"]), str(line.get("parentUuid") or line.get("logicalParentUuid") or "")
        parents[id] = parent if parent in known else before
        known[id] = line
        before = id
    # A parent always precedes its line here, so that there is no cycle.
    path, id = [], before
    while id:
        path.append(known[id])
        id = parents[id]
    if len(path) < len(lines):
        # Blocks of one answer, and results of its calls, may be siblings: they belong to the branch too.
        kept = {str(line["uuid"]) for line in path}
        answers = {_message_id(line) for line in path} - {""}
        calls = {id for line in lines if _message_id(line) in answers for id in _ids(line, "tool_use", "id")}
        for line in lines:
            if _message_id(line) in answers or set(_ids(line, "tool_result", "tool_use_id")) & calls:
                kept.add(str(line["uuid"]))
        file.lost["lines of other branches"] += len(lines) - len(kept)
        return [line for line in lines if str(line["uuid"]) in kept]
    path.reverse()
    return path


def _content(line: Line) -> Any:
    message = line.get("message")
    return message.get("content") if isinstance(message, Mapping) else None


def _message_id(line: Line) -> str:
    message = line.get("message")
    return str(message.get("id") or "") if isinstance(message, Mapping) and line.get("type") == "assistant" else ""


def _ids(line: Line, kind: str, field: str) -> list[str]:
    content = _content(line)
    blocks = content if isinstance(content, list) else ()
    return [str(block.get(field)) for block in blocks if isinstance(block, Mapping) and block.get("type") == kind]


class _SubAgents:
    """The conversations of sub-agents, by the ids of the agents, or of their first prompts."""

    def __init__(self, file: ForeignFile, session: Any, side: Sequence[Line]) -> None:
        self._file = file
        self._session = session
        self._by_agent: dict[str, list[Line]] = {}
        self._other_files: dict[str, bytes] | None = None
        roots: dict[str, str] = {}
        for line in side:
            id, parent = str(line["uuid"]), str(line.get("parentUuid") or "")
            root = roots[id] = str(line.get("agentId") or roots.get(parent) or id)
            self._by_agent.setdefault(root, []).append(line)

    def take(self, agent: str, prompt: Any) -> list[Line]:
        """Return the lines of a sub-agent, and forget them. prompt: the text that it was started with."""
        if agent in self._by_agent:
            return self._by_agent.pop(agent)
        for key, lines in self._by_agent.items():
            if prompt and content_of(_content(lines[0])) == prompt:
                return self._by_agent.pop(key)
        return self._of_a_file(agent)

    def _of_a_file(self, agent: str) -> list[Line]:
        """Return the lines of the file of a sub-agent in the same folder."""
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", agent):
            return []
        if self._other_files is None:
            self._other_files = dict(self._file.in_folder("agent-*.jsonl"))
        data = self._other_files.pop(f"agent-{agent}.jsonl", None)
        if data is None:
            return []
        lines = []
        for number, text in enumerate(data.splitlines(), 1):
            try:
                line = decode(text) if text.strip() else {}
            except ValueError as error:
                self._file.damaged(f"agent-{agent}.jsonl line {number}: {error}", "damaged lines")
                continue
            if isinstance(line, Mapping) and line.get("uuid") and line.get("sessionId") == self._session:
                lines.append(line)
        return lines

    def count_unused(self) -> None:
        """Count the sub-agents that no call has started."""
        if self._by_agent:
            self._file.lost["sub-agents that no call refers to"] += len(self._by_agent)


def _session(file: ForeignFile, lines: list[Line], writer: Writer, agents: _SubAgents) -> Iterator[Event]:
    """Yield the events of a session. The lines are forgotten on the way, so that a long file needs less memory."""
    position = forgotten = 0
    while position < len(lines):
        lines[forgotten:position] = [{}] * (position - forgotten)
        forgotten = position
        line = lines[position]
        time = seconds(line.get("timestamp"), file.lost)
        if line.get("type") == "assistant":
            # The lines of an answer with the same id are its blocks; results may be between them.
            end = position + 1
            parts = [line]
            skipped: list[Line] = []
            id = _message_id(line)
            while (
                id
                and end < len(lines)
                and (_message_id(lines[end]) == id or _ids(lines[end], "tool_result", "tool_use_id"))
            ):
                (parts if _message_id(lines[end]) == id else skipped).append(lines[end])
                end += 1
            yield from _answer(file, parts, writer, time)
            for between in skipped:
                yield from _user(file, between, writer, agents)
            position = end
            continue
        if line.get("type") == "user":
            yield from _user(file, line, writer, agents)
        else:
            yield from _system(file, line, writer, time)
        position += 1


def _answer(file: ForeignFile, parts: Sequence[Line], writer: Writer, time: float) -> Iterator[Event]:
    """Yield the request and the answer that these lines have."""
    blocks: list[Any] = []
    for part in parts:
        content = _content(part)
        blocks += content if isinstance(content, list) else [{"type": "text", "text": content_of(content)}]
    last = parts[-1]
    given = last.get("message")
    message: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    if last.get("isApiErrorMessage"):
        text = content_of(blocks)
        yield from writer.failure(error_of(str(last.get("error") or "APIError"), text), time)
        return
    answer = anthropic_answer(blocks)
    answer.usage = anthropic_usage(message.get("usage"))
    named, reason, id = message.get("model"), message.get("stop_reason"), message.get("id")
    answer.model = named if isinstance(named, str) else None
    answer.finish_reason = reason if isinstance(reason, str) else None
    answer.response_id = id if isinstance(id, str) else None
    answer.provider = "anthropic"
    for number, call in enumerate(answer.calls):
        call.id = call.id or f"{last.get('uuid')}_{number + 1}"
    yield from writer.answer(answer, seconds(last.get("timestamp"), file.lost) or time)


def _user(file: ForeignFile, line: Line, writer: Writer, agents: _SubAgents) -> Iterator[Event]:
    """Yield the results and the message in a line of the user."""
    time = seconds(line.get("timestamp"), file.lost)
    content = _content(line)
    rest: list[Any] = []
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, Mapping) or block.get("type") != "tool_result":
            rest.append(block)
            continue
        id = str(block.get("tool_use_id") or "")
        about = line.get("toolUseResult")
        if isinstance(about, Mapping) and about.get("agentId"):
            yield from _sub_agent(file, id, about, writer, agents)
        refused = _refusal(block, about)
        if refused is not None and writer.is_open(id):
            yield from writer.question(id)
            yield from writer.decision(id, "reject", time, by="human", reason=refused)
            yield from writer.result(id, content_of(block.get("content")), time, is_error=True, outcome="rejected")
            continue
        details = about if isinstance(about, (Mapping, list)) else None
        yield from writer.result(
            id, content_of(block.get("content")), time, is_error=bool(block.get("is_error")), details=details
        )
    if isinstance(content, list) and not rest:
        return
    kept = content_of(rest if isinstance(content, list) else content)
    marks = [key for key in ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly") if line.get(key)]
    yield from writer.message(Message(role="user", content=kept, details={"marks": marks} if marks else None), time)


_REFUSED = "The user doesn't want to proceed with this tool use."


def _refusal(block: Mapping[str, Any], about: Any) -> str | None:
    """Return the user's reason if the user refused the call; None if it was not refused."""
    content = content_of(block.get("content"))
    if not block.get("is_error") or not isinstance(content, str) or not content.startswith(_REFUSED):
        return None
    _, _, said = content.partition("the user said:\n")
    return said


def _sub_agent(
    file: ForeignFile, id: str, about: Mapping[str, Any], writer: Writer, agents: _SubAgents
) -> Iterator[Event]:
    """Yield the events of the sub-agent that performed a call."""
    lines = agents.take(str(about["agentId"]), about.get("prompt"))
    if not lines:
        file.lost["sub-agents in other files"] += 1
        return
    if not writer.is_open(id):
        file.lost["sub-agents that no open call started"] += 1
        return
    yield from writer.begin(id)
    inside = writer.nested(id, str(about.get("agentType") or "agent"), {"id": str(about["agentId"])})
    if inside is not None:
        yield from _session(file, lines, inside, agents)
        yield from inside.end("completed")


def _system(file: ForeignFile, line: Line, writer: Writer, time: float) -> Iterator[Event]:
    """Yield the event of a line that the program wrote: a compaction, or a note."""
    kind = str(line.get("subtype") or "")
    if kind == "compact_boundary":
        values = {"compaction": line.get("compactMetadata") or {}, "compaction_text": line.get("content")}
        yield from writer.update(values, time)
    elif kind == "api_error":
        cause = line.get("error")
        text = cause.get("message") if isinstance(cause, Mapping) else cause
        yield from writer.failure(error_of("APIError", to_json_data(text or line.get("content") or cause)), time)
    else:
        file.lost[f"notes of the program ({kind})" if kind else "notes of the program"] += 1
