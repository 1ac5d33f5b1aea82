"""Approval policies: automatic decisions about calls, before a person is asked.

`approve=` of `start` is True (approve every call), False (reject every call), a callable, rules, or the path of a JSON
file with rules. Without a policy, only tools declared with `approve=True` ask.

A rule is `{"tool": glob or globs, "arguments": {name: glob or value}, "decision": "approve" | "reject" | "ask" |
"terminate"}`. The first rule that matches is applied; if none matches, a person is asked. `terminate` rejects the call
and ends the run. Rules are compared with the arguments that the tool would run with: omitted arguments have their
defaults, and values are converted to the types of the tool ("false" to False for a bool). A rule may have a `reason`,
and a rule that asks may have a `deadline` in seconds, after which the call is rejected.

The `reason` is shown to the person; that of a rejection is also told to the agent, which reads "Not approved." if it is
empty. A `note` is only recorded: a score or a thought that the agent must not learn belongs there. A rejection with a
note and without a reason has an empty one.

A callable is called with the call (`id`, `name`, `arguments`, `tool`). If it has a second argument without a default,
or an argument named `context`, it is also passed the context: the `messages` that the model was sent, the `calls` of
the turn, `path`, `state` and `decisions` (`agentnb.run.approvals.context`). It returns True, False, None (ask), a word
(`"approve"`, `"reject"`, `"ask"`, `"terminate"`), a mapping like a rule, or a mapping with `arguments`, which runs the
call with those. It may be async. A function that is not runs in a thread, and decides about one call of a loop at a
time. If a policy raises, the call is not approved: a person is asked, and shown the error.
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
from agentnb.core.json import number_in, repair_text
from agentnb.core.maybe_async import is_async
from agentnb.core.tools import Tool
from agentnb.run.approvals.context import PolicyContext
from agentnb.run.approvals.recorded_policy import read_policy
from agentnb.run.event_data import error_text
from agentnb.tools import FunctionTool

PolicyDecision = Literal["approve", "reject", "ask", "edit", "terminate"]


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call as it is passed to a policy, with the arguments that it would run with."""

    id: str
    name: str
    arguments: dict[str, Any]
    tool: Any


def proposed_call(id: str, name: str, arguments: Mapping[str, Any], tool: Any) -> ProposedCall:
    """Return a call for a policy, with a copy of the arguments: a policy must not change those of the call.

    The arguments of a function tool are converted to its types, because the function runs with the converted values: a
    policy that forbids False for a bool must also match the text "false".
    """
    copied = copy.deepcopy(dict(arguments))
    return ProposedCall(id, name, tool.read(copied) if isinstance(tool, FunctionTool) else copied, tool)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy's decision about a call.

    `deadline` is in seconds. `arguments` are those of an edit. `by` is as in `ApprovalDecision`; None if no decision
    was needed. `seen` is the number of events that existed when the policy was asked.
    """

    decision: PolicyDecision
    reason: str = ""
    deadline: float | None = None
    arguments: dict[str, Any] | None = None
    by: str | None = "rule"
    seen: int | None = None
    note: str = ""


Policy = Callable[[ProposedCall, Callable[[], PolicyContext]], "Verdict | Awaitable[Verdict]"]
"""A function that decides about a call. It calls its second argument for the context, which is computed only then."""

FAILED = "The policy failed: "
"""The beginning of the reason in the verdict that is used if a policy has raised an error."""

NO_POLICY = Verdict("approve", by=None)
_WORDS = {
    "approve": "",
    "reject": "",
    "ask": "The policy leaves it to you.",
    "terminate": "The policy has ended the run.",
}
"""The decisions of a policy, each with the reason to record if the policy states none."""
_RULE_KEYS = frozenset({"tool", "arguments", "needs", "decision", "reason", "note", "deadline"})


def reason_to_ask(tool: Tool) -> str:
    """Return the reason to show for a tool that is declared to ask, in a run without a policy."""
    needs = f" It needs {', '.join(tool.needs)}." if tool.needs else ""
    return f"{tool.name} asks before every call.{needs}"


def make_policy(approve: Any) -> Policy | None:
    """Return the policy for `approve=`; None for None. Raises UsageError if the value is not a policy."""
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
        return functools.partial(_ask_callable, approve, takes_context(approve), by=name_of_function(approve))
    raise UsageError(f"approve= must be True, False, a callable or rules, not {approve!r}.")


def may_block(policy: Policy) -> bool:
    """Return True if a policy calls a sync function of the user, which may wait for a server. Rules never wait."""
    return isinstance(policy, functools.partial) and policy.func is _ask_callable and not is_async(policy.args[0])


def _check_rule(rule: Any, number: int) -> Mapping[str, Any]:
    where = f"approve rule {number}"
    if not isinstance(rule, Mapping):
        raise UsageError(f"{where} must be a mapping with tool, arguments and decision, not {rule!r}.")
    if unknown := set(rule) - _RULE_KEYS:
        raise UsageError(f"{where} has unknown keys {sorted(unknown)}; the keys of a rule are {sorted(_RULE_KEYS)}.")
    decision = rule.get("decision", "ask")
    if not isinstance(decision, bool | str) or (isinstance(decision, str) and decision not in _WORDS):
        raise UsageError(f"{where}: decision must be 'approve', 'reject', 'ask' or 'terminate', not {decision!r}.")
    if not isinstance(rule.get("needs", ""), str):
        raise UsageError(f"{where}: needs must be a string, not {rule['needs']!r}. Write one rule for each need.")
    if not all(isinstance(glob, str) for glob in _globs(rule)):
        raise UsageError(f"{where}: tool must be a glob or a list of globs, not {rule['tool']!r}.")
    if not isinstance(rule.get("arguments", {}), Mapping):
        raise UsageError(f"{where}: arguments must map names to values or globs, not {rule['arguments']!r}.")
    _check_text("reason", rule.get("reason") or "")
    _check_text("note", rule.get("note") or "")
    _check_deadline(rule.get("deadline"))
    return rule


def _first_match(rules: Sequence[Mapping[str, Any]], call: ProposedCall) -> Verdict:
    for rule in rules:
        if _matches(rule, call):
            return _verdict({name: value for name, value in rule.items() if name != "arguments"})  # patterns, no values
    return Verdict("ask", "No rule of the policy matches this call.")


def _globs(rule: Mapping[str, Any]) -> Sequence[Any]:
    """Return the tool globs of a rule."""
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
    """Return the default values of the tool's arguments, as far as its schema has them."""
    fields: Mapping[str, Any] = getattr(tool, "parameters", {}).get("properties", {})
    return {
        name: field["default"] for name, field in fields.items() if isinstance(field, Mapping) and "default" in field
    }


def _matches_value(pattern: Any, value: Any) -> bool:
    if isinstance(pattern, str) and isinstance(value, str):
        return fnmatchcase(value, pattern)
    return isinstance(pattern, bool) is isinstance(value, bool) and bool(pattern == value)  # in Python, 1 == True


async def _await_verdict(returned: Awaitable[Any], by: str) -> Verdict:
    try:
        return _verdict(await returned, by)
    except (asyncio.CancelledError, *THROWN_IN):
        raise
    except BaseException as error:  # a policy that raises must not approve the call
        return _failed(error)


def takes_context(policy: Callable[..., Any]) -> Literal["second", "by name"] | None:
    """Return how a policy takes the context: as its second argument, or by name as `context`; None if it takes none.

    A second argument with a default is passed only if it is named `context`. An argument `context` that is bound with
    `functools.partial` is not passed. Raises UsageError if the policy can be called neither with the context nor
    without it.
    """
    try:
        signature = inspect.signature(policy)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return None
    parameters = signature.parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_position = [parameter for parameter in parameters.values() if parameter.kind in positional]
    second = by_position[1] if len(by_position) > 1 else None
    passing: Literal["second", "by name"] | None = None
    arguments: tuple[list[Any], dict[str, Any]] = [None], {}
    if second is not None and (second.default is second.empty or second.name == "context"):
        passing, arguments = "second", ([None, None], {})
    elif "context" in parameters and parameters["context"] not in by_position[:1]:
        bound = isinstance(policy, functools.partial) and "context" in policy.keywords
        passing, arguments = (None, arguments) if bound else ("by name", ([None], {"context": None}))
    try:
        signature.bind(*arguments[0], **arguments[1])
    except TypeError as error:
        raise UsageError(
            "approve= must be a function of the call, or of the call and the context (its second argument)."
            f" {policy!r} is neither: {error}."
        ) from None
    return passing


def call_with_context(
    policy: Callable[..., Any],
    passing: Literal["second", "by name"] | None,
    call: ProposedCall,
    context: Callable[[], PolicyContext],
) -> Any:
    """Call a policy with the call and, as `passing` defines (`takes_context`), the context. Returns its result."""
    if passing == "second":
        return policy(call, context())
    return policy(call, context=context()) if passing == "by name" else policy(call)


def _ask_callable(
    policy: Callable[..., Any],
    passing: Literal["second", "by name"] | None,
    call: ProposedCall,
    context: Callable[[], PolicyContext],
    by: str,
) -> Verdict | Awaitable[Verdict]:
    try:
        returned = call_with_context(policy, passing, call, context)
        return _await_verdict(returned, by) if inspect.isawaitable(returned) else _verdict(returned, by)
    except (asyncio.CancelledError, *THROWN_IN):
        raise
    except BaseException as error:  # a policy that raises must not approve the call
        return _failed(error)


def _failed(error: BaseException) -> Verdict:
    return Verdict("ask", f"{FAILED}{error_text(error)}")


def _verdict(returned: Any, by: str = "rule") -> Verdict:
    """Return the verdict for the result of a policy, with a reason that can be recorded, and its author.

    Raises UsageError if the result is not a decision.
    """
    verdict = returned if isinstance(returned, Verdict) else _read(returned)
    _check_text("reason", verdict.reason)
    _check_text("note", verdict.note)
    return replace(verdict, reason=repair_text(verdict.reason), note=repair_text(verdict.note), by=by)


def _read(returned: Any) -> Verdict:
    if isinstance(yes := number_in(returned), bool):  # a bool of another library, as from a comparison of columns
        returned = yes
    if isinstance(returned, Mapping):
        return _verdict_of_mapping(returned)
    decision = _decision_name("ask" if returned is None else returned)
    if decision in ("approve", "reject", "ask", "terminate"):
        return Verdict(decision, _WORDS[decision])
    raise UsageError(
        "A policy must return True, False, None, 'approve', 'reject', 'ask', 'terminate' or a mapping, not"
        f" {returned!r}."
    )


def _decision_name(decision: Any) -> Any:
    """Return the word for True or False; any other decision unchanged."""
    return ("approve" if decision else "reject") if isinstance(decision, bool) else decision


def _verdict_of_mapping(returned: Mapping[str, Any]) -> Verdict:
    if unknown := sorted(map(str, returned.keys() - _RULE_KEYS)):  # with `args`, the call would run unedited
        raise UsageError(
            f"A policy's mapping has unknown keys {', '.join(unknown)}; it may have {', '.join(sorted(_RULE_KEYS))}."
        )
    arguments, note = returned.get("arguments"), returned.get("note") or ""
    decision = _decision_name(returned.get("decision", "ask" if arguments is None else "edit"))
    if decision == "edit" or (decision == "approve" and arguments is not None):
        if not isinstance(arguments, Mapping):
            raise UsageError(f"A policy that edits a call must return its arguments as a mapping, not {arguments!r}.")
        return Verdict("edit", returned.get("reason") or "", arguments=dict(arguments), note=note)
    if decision not in ("approve", "reject", "ask", "terminate"):
        raise UsageError(
            f"A policy's decision must be 'approve', 'reject', 'ask', 'edit' or 'terminate', not {decision!r}."
        )
    is_told = decision in ("reject", "terminate") and (note or returned.get("reason") == "")
    reason = returned.get("reason") or ("" if is_told else _WORDS[decision])
    return Verdict(decision, reason, _check_deadline(returned.get("deadline")), note=note)


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise UsageError(f"approve: a {name} must be a string, not {text!r}.")


def _check_deadline(seconds: Any) -> float | None:
    if seconds is None or (isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0):
        return seconds
    raise UsageError(f"approve: a deadline must be a non-negative number of seconds, not {seconds!r}.")
