"""confirm: the loop's own question about each call, right before its launch (SEMANTICS.md, 7. Confirmation).

It is asked about a copy of the call with its data, call by call, while the others go on (where it is not async, in a
thread), and before any policy or person is.
Only True lets a call run; a failure of `confirm` and every answer that is none are a no. A call that it puts in the
place of another is looked at again like any (it may be blocked, it may not fit its tool, a person may be asked about
it), and not confirmed again: it is itself the decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from agentnb.core.call_events import ApprovalDecision, name_of_function
from agentnb.core.errors import THROWN_IN
from agentnb.core.foreign import number_in
from agentnb.core.json_data import same_json
from agentnb.core.state import CallState, State
from agentnb.loops import functions
from agentnb.loops.execution_loop.references import copied
from agentnb.loops.execution_loop.values import Call, Reject

Confirm = Callable[[Call], Any]

_KEPT = ("_outputPath", "_outputMethod", "_instance")
"""What a replacement that names no path of its own keeps of the call: those who wait for its result still get it."""


def confirmation(confirm: Confirm) -> Callable[[CallState, State], Any]:
    """`confirm` as the core asks it: None lets the call run, a decision does not."""
    by = name_of_function(confirm)

    async def ask(call: CallState, state: State) -> ApprovalDecision | None:
        if call.decision is not None and call.decision.is_checked_again:
            return None
        asked = Call.of(call)
        try:
            return _decision(asked, await functions.call(confirm, Call(copied(asked), id=call.id)), by)
        except THROWN_IN:
            raise
        except BaseException as error:  # it has not said yes
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # the question itself is cancelled, and not what `confirm` has waited for
            return _reject(call.id, f"confirm failed: {type(error).__name__}: {error}", by)

    return ask


def _decision(asked: Call, said: Any, by: str) -> ApprovalDecision | None:
    if isinstance(yes := number_in(said), bool):  # what a comparison of columns gives
        said = yes
    if said is True:
        return None
    if isinstance(said, Mapping):
        fields = to_jsonable_python(dict(said), serialize_unknown=True)
        return None if same_json(fields, asked) else _replace(asked, fields, by)
    if said is False:
        return _reject(asked.id, "", by)
    if isinstance(said, Reject):
        return _reject(asked.id, said.reason, by)
    return _reject(asked.id, f"confirm returned {said!r}, which is no decision", by)


def _replace(asked: Call, fields: dict[str, Any], by: str) -> ApprovalDecision:
    if set(fields) <= {"id", "name", "arguments"} and "name" in fields:
        fields = {"_tool": fields["name"], **fields.get("arguments", {})}
    kept = () if "_outputPath" in fields else _KEPT
    fields = {**{name: asked[name] for name in kept if name in asked}, "_tool": asked.name, **fields}
    name = str(fields.pop("_tool"))
    return ApprovalDecision(call_id=asked.id, decision="replace", by=by, name=name, arguments=fields, recheck=True)


def _reject(call_id: str, reason: str, by: str) -> ApprovalDecision:
    return ApprovalDecision(call_id=call_id, decision="reject", by=by, reason=reason)
