"""Approval policies: who decides about a call before a person is asked.

`approve=` of `start` is True (every call may run), False (none may), a callable of the call, rules, or the path of a
JSON file with rules. A rule is `{"tool": glob or globs, "arguments": {name: glob or value}, "decision": "approve" |
"reject" | "ask" | "terminate"}`; the first that matches wins, and no match means ask. `terminate` rejects the call and
ends the run. An argument that the call leaves out is what its tool takes then, and one that is made
something plain for the tool ("false" for a bool) is that. A rule may have a `reason`, and one that asks a `deadline` in
seconds, after which the answer is no. Without a policy only tools declared with `approve=True` ask.

The callable gets the call (`id`, `name`, `arguments`, `tool`), and where it takes a second argument, or one that is
called `context`, the context too: `messages` as the model was sent them, `calls` of the whole turn, `path`, `state` and
`decisions` (`agentnb.run.approvals.context`). It returns True, False, None (ask), a word
(`"approve"`, `"reject"`, `"ask"`, `"terminate"`), a mapping like a rule, or a mapping with `arguments` to run it with
others. It may be async. A policy that fails has not said yes: the person is asked, and told how it failed.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from agentnb.core.call_events import name_of_function
from agentnb.core.errors import THROWN_IN, UsageError
from agentnb.core.foreign import number_in
from agentnb.core.tools import Tool
from agentnb.core.unicode import mended
from agentnb.run.approvals.context import PolicyContext
from agentnb.run.approvals.kept import read_policy
from agentnb.run.portable import words_of
from agentnb.tools import FunctionTool

Word = Literal["approve", "reject", "ask", "edit", "terminate"]


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call as a policy sees it, with the arguments it would run with."""

    id: str
    name: str
    arguments: dict[str, Any]
    tool: Any


def propose(id: str, name: str, arguments: Mapping[str, Any], tool: Any) -> ProposedCall:
    """The call for a policy: a copy, because what that does to it must not happen to the call.

    A model may say "false", and a function that takes a bool runs with False: whoever forbids that means both.
    """
    copied = copy.deepcopy(dict(arguments))
    return ProposedCall(id, name, tool.read(copied) if isinstance(tool, FunctionTool) else copied, tool)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says about a call; `by` as in `ApprovalDecision`, and None where nobody had to decide.

    `seen` is how many events there were when the policy was asked.
    """

    decision: Word
    reason: str = ""
    deadline: float | None = None
    arguments: dict[str, Any] | None = None
    by: str | None = "rule"
    seen: int | None = None


Policy = Callable[[ProposedCall, Callable[[], PolicyContext]], "Verdict | Awaitable[Verdict]"]
"""Judges a call. The context is made only where the policy asks for it."""

FAILED = "The policy failed: "
"""What the reason begins with of a verdict that a policy did not come to."""

NO_POLICY = Verdict("approve", by=None)
_WORDS = {
    "approve": "",
    "reject": "Rejected by the policy.",
    "ask": "The policy leaves it to you.",
    "terminate": "The policy has ended the run.",
}
"""What a policy may decide, each with the reason where it gives none."""
_RULE_KEYS = frozenset({"tool", "arguments", "needs", "decision", "reason", "deadline"})


def why_it_asks(tool: Tool) -> str:
    """What a person is told of a tool that is declared to ask, without a policy."""
    needs = f" It needs {', '.join(tool.needs)}." if tool.needs else ""
    return f"{tool.name} asks before every call.{needs}"


def make_policy(approve: Any) -> Policy | None:
    """The policy that `approve=` means. Raises UsageError where it means none."""
    approve = read_policy(approve)
    if approve is None:
        return None
    if isinstance(approve, bool):
        verdict = Verdict("approve") if approve else Verdict("reject", "The policy of this run approves no calls.")
        return lambda call, context: verdict
    if isinstance(approve, Mapping):
        approve = [approve]
    if isinstance(approve, Sequence) and not isinstance(approve, str):
        rules = [_check_rule(rule, number) for number, rule in enumerate(approve)]
        return lambda call, context: _first_match(rules, call)
    if callable(approve):
        by, how = name_of_function(approve), takes_context(approve)
        return lambda call, context: _ask_callable(approve, how, call, context, by)
    raise UsageError(f"approve= takes True, False, a callable or rules, not {approve!r}.")


def _check_rule(rule: Any, number: int) -> Mapping[str, Any]:
    where = f"approve rule {number}"
    if not isinstance(rule, Mapping):
        raise UsageError(f"{where} must be a mapping with tool, arguments and decision, not {rule!r}.")
    if unknown := set(rule) - _RULE_KEYS:
        raise UsageError(f"{where} has unknown keys {sorted(unknown)}; it may have {sorted(_RULE_KEYS)}.")
    decision = rule.get("decision", "ask")
    if not isinstance(decision, bool | str) or (isinstance(decision, str) and decision not in _WORDS):
        raise UsageError(f"{where}: decision must be 'approve', 'reject', 'ask' or 'terminate', not {decision!r}.")
    if not isinstance(rule.get("needs", ""), str):
        raise UsageError(f"{where}: needs must be a text, not {rule['needs']!r}; write a rule for each.")
    if not all(isinstance(glob, str) for glob in _globs(rule)):
        raise UsageError(f"{where}: tool must be a glob or a list of globs, not {rule['tool']!r}.")
    if not isinstance(rule.get("arguments", {}), Mapping):
        raise UsageError(f"{where}: arguments must map names to values or globs, not {rule['arguments']!r}.")
    _check_reason(rule.get("reason") or "")
    _check_deadline(rule.get("deadline"))
    return rule


def _first_match(rules: Sequence[Mapping[str, Any]], call: ProposedCall) -> Verdict:
    for rule in rules:
        if _matches(rule, call):
            return _verdict({name: value for name, value in rule.items() if name != "arguments"})  # they are patterns
    return Verdict("ask", "No rule of the policy matches this call.")


def _globs(rule: Mapping[str, Any]) -> Sequence[Any]:
    """The tools that a rule is for."""
    tools = rule.get("tool", "*")
    return tools if isinstance(tools, list | tuple) else [tools]


def _matches(rule: Mapping[str, Any], call: ProposedCall) -> bool:
    if not any(fnmatchcase(call.name, glob) for glob in _globs(rule)):
        return False
    if "needs" in rule and rule["needs"] not in getattr(call.tool, "needs", ()):
        return False
    patterns = rule.get("arguments", {})
    runs_with = {**_defaults(call.tool), **call.arguments} if patterns else {}
    return all(name in runs_with and _matches_value(pattern, runs_with[name]) for name, pattern in patterns.items())


def _defaults(tool: Any) -> dict[str, Any]:
    """What a call runs with where it does not say, as far as the tool's schema tells."""
    fields: Mapping[str, Any] = getattr(tool, "parameters", {}).get("properties", {})
    return {
        name: field["default"] for name, field in fields.items() if isinstance(field, Mapping) and "default" in field
    }


def _matches_value(pattern: Any, value: Any) -> bool:
    if isinstance(pattern, str) and isinstance(value, str):
        return fnmatchcase(value, pattern)
    return isinstance(pattern, bool) is isinstance(value, bool) and bool(pattern == value)  # to Python 1 is True


async def _await_verdict(said: Awaitable[Any], by: str) -> Verdict:
    try:
        return _verdict(await said, by)
    except (asyncio.CancelledError, *THROWN_IN):
        raise
    except BaseException as error:  # a policy that fails has not said yes
        return _failed(error)


def takes_context(policy: Callable[..., Any]) -> Literal["second", "by name"] | None:
    """How a policy takes the context: as its second argument, if that has no default, or as one named `context`.

    None where it takes none. Raises UsageError where it can be called neither with the context nor without it.
    """
    try:
        signature = inspect.signature(policy)
    except (TypeError, ValueError):  # of some that are written in C
        return None
    parameters = signature.parameters
    by_position = [one for one in parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    second = by_position[1] if len(by_position) > 1 else None
    how: Literal["second", "by name"] | None = None
    given: tuple[list[Any], dict[str, Any]] = [None], {}
    if second is not None and (second.default is second.empty or second.name == "context"):
        how, given = "second", ([None, None], {})
    elif "context" in parameters and parameters["context"] not in by_position[:1]:
        bound = isinstance(policy, functools.partial) and "context" in policy.keywords
        how, given = (None, given) if bound else ("by name", ([None], {"context": None}))
    try:
        signature.bind(*given[0], **given[1])
    except TypeError as error:
        raise UsageError(
            "approve= takes a function of the call, or of the call and, as its second argument, the context;"
            f" {policy!r} is neither: {error}."
        ) from None
    return how


def call_with_context(
    policy: Callable[..., Any],
    how: Literal["second", "by name"] | None,
    call: ProposedCall,
    context: Callable[[], PolicyContext],
) -> Any:
    """Call a policy with the call, and with the context as it takes it (`takes_context`)."""
    if how == "second":
        return policy(call, context())
    return policy(call, context=context()) if how == "by name" else policy(call)


def _ask_callable(
    policy: Callable[..., Any],
    how: Literal["second", "by name"] | None,
    call: ProposedCall,
    context: Callable[[], PolicyContext],
    by: str,
) -> Verdict | Awaitable[Verdict]:
    try:
        said = call_with_context(policy, how, call, context)
        return _await_verdict(said, by) if inspect.isawaitable(said) else _verdict(said, by)
    except (asyncio.CancelledError, *THROWN_IN):
        raise
    except BaseException as error:  # a policy that fails has not said yes
        return _failed(error)


def _failed(error: BaseException) -> Verdict:
    return Verdict("ask", f"{FAILED}{words_of(error)}")


def _verdict(said: Any, by: str = "rule") -> Verdict:
    """What a policy has said, with a reason that can be a fact, and who decides by it."""
    verdict = said if isinstance(said, Verdict) else _read(said)
    _check_reason(verdict.reason)
    return replace(verdict, reason=mended(verdict.reason), by=by)


def _read(said: Any) -> Verdict:
    if isinstance(yes := number_in(said), bool):  # what a comparison of columns gives
        said = yes
    if isinstance(said, Mapping):
        return _verdict_of_mapping(said)
    word = _word("ask" if said is None else said)
    if word in ("approve", "reject", "ask", "terminate"):
        return Verdict(word, _WORDS[word])
    raise UsageError(f"A policy returns True, False, None, a word or a mapping, not {said!r}.")


def _word(decision: Any) -> Any:
    """True and False in a word."""
    return ("approve" if decision else "reject") if isinstance(decision, bool) else decision


def _verdict_of_mapping(said: Mapping[str, Any]) -> Verdict:
    if unknown := sorted(map(str, said.keys() - _RULE_KEYS)):  # `args` would run the call as it is
        raise UsageError(f"A policy's mapping may have {', '.join(sorted(_RULE_KEYS))}, and no {', '.join(unknown)}.")
    arguments = said.get("arguments")
    decision = _word(said.get("decision", "ask" if arguments is None else "edit"))
    if decision == "edit" or (decision == "approve" and arguments is not None):
        if not isinstance(arguments, Mapping):
            raise UsageError(f"A policy that edits a call gives its arguments as a mapping, not {arguments!r}.")
        return Verdict("edit", said.get("reason") or "", arguments=dict(arguments))
    if decision not in ("approve", "reject", "ask", "terminate"):
        raise UsageError(f"A policy decides 'approve', 'reject', 'ask', 'edit' or 'terminate', not {decision!r}.")
    return Verdict(decision, said.get("reason") or _WORDS[decision], _check_deadline(said.get("deadline")))


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str):
        raise UsageError(f"approve: a reason is a text, not {reason!r}.")


def _check_deadline(seconds: Any) -> float | None:
    if seconds is None or (isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0):
        return seconds
    raise UsageError(f"approve: a deadline is a number of seconds, not {seconds!r}.")
