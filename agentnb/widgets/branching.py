"""Branching: what a person does with branches in the panel: what if, open, compare, rename.

A branch is a fork (`run.fork`), played in the background, and is kept in `FORKS` under its name, for code. The
approvals in it are asked as in its parent; or each call that equals one that was decided in the parent gets the same
decision, and only the other calls ask. Nothing is made if the input is not valid.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from agentnb.core.errors import AgentnbError, UsageError
from agentnb.core.events import ApprovalDecision, ApprovalRequest, Event
from agentnb.core.json import repair_text
from agentnb.llms.description import described
from agentnb.run import Recording
from agentnb.run.approvals.pending import Pending
from agentnb.run.host import host
from agentnb.run.run import Run, runs_here
from agentnb.run.validation import check_name
from agentnb.widgets.handlers import FORKS, Message
from agentnb.widgets.text import as_json, one_line
from agentnb.widgets.views.branches import Branches
from agentnb.widgets.views.compare import compared, whole_pair
from agentnb.widgets.views.trace import Trace
from agentnb.widgets.views.whatif import Kind, Subject, default_name, editor, kind_of, options, read_json, value_of

MODELS: dict[str, Any] = {}
"""Models that What if… offers in addition to those of the runs in this process, by the name in its list."""
CHOICES = 30
"""The maximum number of models in the list."""

_SameCall = tuple[str, str, bytes]
"""What equal calls have in common: the path of their loop, the name of the tool, and the arguments as JSON."""


class BranchHandlers:
    """Handles the page's messages about branches of `run`. Each handler returns the fields of its answer.

    trace: the trace of the run. open_inside: makes a panel of another run inside this panel, and returns its state.
    """

    def __init__(
        self, run: Recording, branches: Branches, trace: Trace, open_inside: Callable[[Recording], dict[str, Any]]
    ) -> None:
        self._run = run
        self._branches = branches
        self._trace = trace
        self._open_inside = open_inside
        self._traces: dict[str, Trace] = {}  # of the branches that were compared
        self.handlers: dict[str, Callable[[Message], Mapping[str, Any]]] = {
            "whatif": self._options,
            "shape": lambda message: {"editor": editor(read_json(str(message.get("json", ""))))},
            "branch": self._start,
            "open": lambda message: self._open_inside(self._find(message)),
            "replay": lambda message: self._open_inside(self._run.at(-1)),
            "rename": self._rename,
            "compare": self._compare,
            "whole": self._whole,
        }

    def _options(self, message: Message) -> dict[str, Any]:
        """Return what can be changed at an event. Models are listed by their names."""
        made = options(self._run, self._trace, int(message["seq"]))
        models = _models(self._run)
        for kind in made["kinds"]:
            if kind.get("shape") == "models":
                kind["models"] = list(models)
                kind["by_name"] = isinstance(getattr(self._run.loop.llm, "model", None), str)
        return {"options": made}

    def _start(self, message: Message) -> dict[str, Any]:
        """Make a branch with the change in the message, and play it."""
        about, kind = kind_of(self._run, self._trace, int(message["seq"]), str(message.get("kind")))
        change, loop, steer, shown = self._change(about, kind, message)
        given = str(message.get("name") or "").strip()
        if given in self._branches.names() or given in FORKS:
            raise UsageError(f"There is a branch {given!r} already. Choose another name.")
        name = given or _new_name(default_name(about, kind.kind, shown))
        check_name("name", name)
        with_loop = {"loop": loop} if loop is not None else {}
        branch: Run = self._run.fork(at=kind.at, name=name, **change, **with_loop)
        if steer is not None:
            branch.steer(steer)
        FORKS[name] = branch
        if message.get("approvals") == "then":
            decide_as_in(self._run, branch)
        branch.play()
        self._branches.touch()
        return {"id": str(branch.id), "name": repair_text(name)}

    def _change(self, about: Subject, kind: Kind, message: Message) -> tuple[dict[str, Any], Any, str | None, Any]:
        """Return the change as arguments of fork(), the loop and the message of the branch, and what to name it by."""
        match kind.kind:
            case "result":
                value = value_of(message, kind.value)
                _refuse_same(value, kind.value)
                return {"result": value}, None, None, value
            case "arguments":
                arguments = _arguments(message, kind.value)
                _refuse_same(arguments, kind.value)
                return {"decision": {"decision": "edit", "arguments": arguments}}, None, None, arguments
            case "skip":
                reason = str(message.get("text") or "")
                return {"decision": {"decision": "reject", "reason": reason}}, None, None, reason
            case "decision":
                decision: dict[str, Any] = {"decision": str(message.get("decision") or "")}
                if decision["decision"] == "edit":
                    decision["arguments"] = _arguments(message, kind.value["arguments"])
                elif decision["decision"] == "reject":
                    decision["reason"] = str(message.get("reason") or "")
                return {"decision": decision}, None, None, decision["decision"]
            case "then":
                text = _text(message)
                return {}, None, text, text
            case "model":
                loop, name = self._loop_with(message)
                return {}, loop, None, name
            case "input":
                value = value_of(message, kind.value)
                _refuse_same(value, kind.value)
                return {"message": value}, None, None, value
            case _:  # an answer, or a message
                text = _text(message)
                _refuse_same(text, kind.value)
                return {"message": text}, None, None, text

    def _loop_with(self, message: Message) -> tuple[Any, str]:
        """Return a copy of the loop with the model that a person has chosen, and the model's name."""
        loop, name = self._run.loop, str(message.get("model") or "").strip()
        if not name:
            raise UsageError("Choose a model, or give the name of one.")
        llm = _models(self._run).get(name)
        if llm is None:
            if not isinstance(getattr(loop.llm, "model", None), str):
                raise UsageError(f"There is no model {name!r} here. agentnb.widgets.MODELS[{name!r}] = ... adds one.")
            llm = copy.copy(loop.llm)
            llm.model = name
        other = copy.copy(loop)
        other.llm = llm
        return other, name

    def _find(self, message: Message) -> Run:
        branch = self._branches.find(str(message.get("id")))
        if branch is None:
            raise UsageError("This branch is gone: nothing in this kernel refers to it any more.")
        return branch

    def _rename(self, message: Message) -> dict[str, Any]:
        """Give a branch another name, also in FORKS."""
        branch, name = self._find(message), str(message.get("name") or "").strip()
        check_name("name", name)
        if name != branch.name and (name in self._branches.names() or name in FORKS):
            raise UsageError(f"There is a branch {name!r} already. Choose another name.")
        kept = next((key for key, run in FORKS.items() if run is branch), None)
        branch.name = name
        if kept is not None:
            del FORKS[kept]
            FORKS[name] = branch
        self._branches.touch()
        return {"name": repair_text(name)}

    def _compare(self, message: Message) -> dict[str, Any]:
        """Return the comparison of the run with a branch."""
        branch = self._find(message)
        names = str(self._run.name or self._run.id), str(branch.name or branch.id)
        events = list(self._run.recording), list(branch.events)
        traces = self._trace, self._traces.setdefault(branch.id, Trace())
        return {"compared": compared(*events, names, _forked_at(branch), traces)}

    def _whole(self, message: Message) -> dict[str, Any]:
        """Return a pair of rows of the comparison whole. The message has their numbers in both traces, or null."""
        traces = self._trace, self._traces.setdefault(self._find(message).id, Trace())
        numbers = message["numbers"]
        rows = [None if n is None else trace.all[int(n)] for trace, n in zip(traces, numbers, strict=True)]
        return {"whole": whole_pair(rows[0], rows[1])}


def _arguments(message: Message, current: Mapping[str, Any]) -> dict[str, Any]:
    arguments = value_of(message, current)
    if not isinstance(arguments, dict):
        raise UsageError("The arguments must be a JSON object.")
    return arguments


def _text(message: Message) -> str:
    text = str(message.get("text") or "")
    if not text.strip():
        raise UsageError("The message is empty.")
    return text


def _refuse_same(value: Any, current: Any) -> None:
    if as_json(value) == as_json(current):
        raise UsageError("Nothing is changed yet.")


def _new_name(plain: str) -> str:
    names = (plain, *(f"{plain} {number}" for number in range(2, len(FORKS) + 3)))
    return next(name for name in names if name not in FORKS)


def _models(run: Recording) -> dict[str, Any]:
    """Return the models that a branch may ask, by name: those in MODELS, and those of other runs in this process."""
    found: dict[str, Any] = dict(MODELS)
    known = {id(run.loop.llm), *map(id, found.values())}
    for other in runs_here():
        llm = other.loop.llm
        if llm is None or id(llm) in known or len(found) >= CHOICES:
            continue
        known.add(id(llm))
        words = described(llm, {})
        plain = one_line(" ".join(word for word in (words.provider, words.model) if word), 60) or type(llm).__name__
        names = (plain, *(f"{plain} ({number})" for number in range(2, len(found) + 3)))
        found[next(name for name in names if name not in found)] = llm
    return found


# -- approvals as decided then -----------------------------------------------------------------------------------------


def decide_as_in(recorded: Recording, branch: Run) -> None:
    """Give each call of a branch that equals a decided one of the recorded run the same decision, as code decides.

    Calls are equal if their loop, their tool and their arguments are. Of several equal calls, the first gets the first
    decision. All other calls ask a person.
    """
    decisions = _decisions(recorded, _forked_at(branch) or 0)

    def decide() -> None:
        for item in branch.pending:
            made = decisions.get(_same_call(item.path, item.name, item.arguments))
            if made:
                with suppress(AgentnbError):  # it is decided already, or cannot be decided like this
                    _apply(branch, item, made[0])
                if len(made) > 1:
                    del made[0]

    async def decide_soon() -> None:
        decide()

    def receive(news: object) -> None:
        if isinstance(news, ApprovalRequest):
            host.submit(decide_soon())  # a watcher must not decide itself: others have not seen the question yet

    branch.watch(receive)
    decide()


def _decisions(recorded: Recording, at: int) -> dict[_SameCall, list[ApprovalDecision]]:
    """Return the decisions of people and code in a recording, by the calls that were asked about.

    Of each call these are the decisions after the event `at`; if there are none, the last one before.
    """
    asked: dict[tuple[str, str], ApprovalRequest] = {}
    found: dict[_SameCall, list[ApprovalDecision]] = {}
    event: Event
    for event in recorded.recording:
        if isinstance(event, ApprovalRequest):
            asked[event.path, event.call_id] = event
        elif isinstance(event, ApprovalDecision) and event.by in ("human", "code", "remembered"):
            question = asked.get((event.path, event.call_id))
            if question is not None and event.decision != "ask":
                found.setdefault(_same_call(event.path, question.name, question.arguments), []).append(event)
    return {call: [one for one in made if one.seq > at] or made[-1:] for call, made in found.items()}


def _forked_at(branch: Run) -> int | None:
    """Return the event of the other run at which this one was forked; None if it was not."""
    at = getattr(branch.events[0], "forked_from", "").rpartition("@")[2]
    return int(at) if at.isdecimal() else None


def _same_call(path: str, name: str, arguments: Mapping[str, Any]) -> _SameCall:
    return path, name, as_json({key: arguments[key] for key in sorted(arguments)})


def _apply(branch: Run, item: Pending, decision: ApprovalDecision) -> None:
    match decision.decision:
        case "approve":
            branch.approve(item, reviewer=decision.reviewer)
        case "reject":
            branch.reject(item, decision.reason, reviewer=decision.reviewer)
        case "edit":
            branch.edit(item, dict(decision.arguments or {}), reviewer=decision.reviewer)
        case "replace":
            branch.replace(item, str(decision.name), dict(decision.arguments or {}), reviewer=decision.reviewer)
        case _:
            branch.answer(item, decision.result, reviewer=decision.reviewer)
