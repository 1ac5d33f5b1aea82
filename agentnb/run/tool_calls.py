"""Tool calls: the steps between an open call and its one result.

A call is checked first: does the tool exist, do the arguments fit, do the loop's hook and the policy allow the call? A
refusal becomes the result of the call, as a text that the model can act on. If the call may run, the executor records
its start; `perform` then runs the tool and records its result.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from msgspec import structs

from agentnb.core.call_events import name_of_function
from agentnb.core.errors import ImpossibleEvent, InvalidArguments, ToolError, UsageError
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallEnd, Delta, ErrorInfo, Event, checked
from agentnb.core.json import plain_number, same_json, to_json_data, to_plain
from agentnb.core.loop import Result
from agentnb.core.maybe_async import InnerGenerator, is_async, settled
from agentnb.core.place import act_for
from agentnb.core.protocols import loop_context
from agentnb.core.required_effects import Effect
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import CallState
from agentnb.core.tools import Acted, Invocation, Tool, current_call
from agentnb.run.approvals.context import LiveContexts, PolicyContext, contexts_at
from agentnb.run.approvals.policy import (
    FAILED,
    NO_POLICY,
    Policy,
    Verdict,
    call_with_context,
    may_block,
    proposed_call,
    reason_to_ask,
    takes_context,
)
from agentnb.run.event_data import decision_as_json, error_text, text_or_empty
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate
from agentnb.run.inline_task import is_thrown_in, show, task_here
from agentnb.run.journal import Journal
from agentnb.run.loop_context import context_of_loop
from agentnb.run.synthetic_results import Refusal, blocked, misfit, synthetic_end, unfit
from agentnb.run.tasks import InFlight
from agentnb.run.validation import shown
from agentnb.threads import THREADS, forget_call, working_for

PumpPace = Literal["pull", "drain"]


def check_not_within(journal: Journal) -> None:
    """Raise UsageError if the caller is the code of a call of that run: it would wait for its own end for ever.

    A task that the call has started may wait, because the call itself continues.
    """
    run_id, path, call_id, performed_in = current_call.get() or ("", "", "", None)
    frame = journal.frame_at(path) if run_id == journal.run_id else None
    call = frame.state.open.get(call_id) if frame is not None else None
    if call is not None and task_here() in (None, performed_in):
        raise UsageError(
            f"Deadlock: the call of {call.name} waits for its own run, which waits for that call. Return from the tool,"
            " and wait for the run in the code that started it."
        )


class ToolCalls:
    """Checks and performs the calls of one loop of a run."""

    def __init__(
        self,
        frame: Frame,
        journal: Journal,
        policy: Policy | None,
        contexts: LiveContexts,
        gate: Gate,
        inflight: InFlight,
    ) -> None:
        self._calls = frame.calls
        self._frame = frame
        self._journal = journal
        self._tools = frame.tools
        self._policy = policy
        self._contexts = contexts
        self._gate = gate
        self._inflight = inflight
        self._asked_before: asyncio.Event | None = None
        """Set once the last sync function that decides about calls has decided."""
        self._bound: dict[str, tuple[dict[str, Any], Invocation]] = {}
        self.failure: tuple[ErrorInfo | None, BaseException] | None = None
        """The error of the loop's own call that failed last, and the exception, as the cause of RunFailed."""

    def check(self, call: CallState, arguments: dict[str, Any]) -> Verdict | Refusal:
        """Return the verdict of the built-in checks, without the loop's hook and the policy."""
        if call.hidden and self._frame.is_own(call):
            return NO_POLICY
        tool = self._tools.get(call.name)
        if tool is None or call.malformed is not None:
            return misfit(call, self._tools)
        try:
            self.bind(call, tool, arguments)
        except InvalidArguments as error:
            return unfit(call, error)
        if tool.approve is True:
            return Verdict("ask", reason_to_ask(tool))
        return NO_POLICY

    async def check_with_hooks(
        self, call: CallState, arguments: dict[str, Any]
    ) -> Verdict | Refusal | ApprovalDecision:
        """Return the verdict of the built-in checks, the loop's hook, and the policy or the tool's own `approve`."""
        verdict = self.check(call, arguments)
        if isinstance(verdict, Refusal) or self._frame.is_own(call):
            return verdict
        if self._calls.before_call is not None and not call.is_as_a_hook_made_it(arguments):
            task = asyncio.current_task()
            try:
                seen = self._for_a_hook(call, arguments)
                given = to_plain(seen.arguments)
                said = await settled(self._calls.before_call(seen, self._frame.state))
                if isinstance(said, (ApprovalDecision, CallEnd)):
                    said = checked(said)
            except BaseException as error:  # a hook that fails must not leave the call without a result
                self._reraise_if_interrupted(call, error, task)
                return blocked(call, error_text(error))
            if isinstance(said, ApprovalDecision):
                # Code has decided, not a person: `human` is the default of a decision that names no one.
                by = name_of_function(self._calls.before_call) if said.by in ("human", "loop") else said.by
                return structs.replace(decision_as_json(said), by=by, recheck=said.is_checked_again)
            if isinstance(said, CallEnd):
                return Refusal(structs.replace(said, result=to_json_data(said.result)))
            if said is not None:
                return blocked(call, said)
            if not same_json(chosen := to_json_data(seen.arguments), given):
                by = name_of_function(self._calls.before_call)
                made = {"decision": "edit", "arguments": chosen, "recheck": True, "unchecked": True}
                return ApprovalDecision(call_id=call.id, by=by, **made)
        if self._policy is not None:
            return await self.put_to_policy(call, arguments)
        if callable(asks := self._tools[call.name].approve):
            return await self._ask_the_tool(call, arguments, asks)
        return verdict

    async def _ask_the_tool(self, call: CallState, arguments: dict[str, Any], asks: Callable[[Any], Any]) -> Verdict:
        """Return the verdict of the tool's own `approve` function; the person is asked if it fails."""
        tool, task = self._tools[call.name], asyncio.current_task()
        proposed = proposed_call(call.id, call.name, arguments, tool)

        def context() -> PolicyContext:
            with self._journal.lock:
                return self._contexts.of(self._frame, call)

        try:
            ask = partial(call_with_context, asks, takes_context(asks), proposed, context)
            said = plain_number(await settled(ask() if is_async(asks) else await self._in_turn(ask)))
        except BaseException as error:
            self._reraise_if_interrupted(call, error, task)
            return Verdict("ask", f"The approve= of {call.name} failed: {error_text(error)}")
        if said is False:
            return NO_POLICY
        if said is not True:
            return Verdict("ask", f"The approve= of {call.name} returned {shown(said)}, and not True or False.")
        needs = f" It needs {', '.join(tool.needs)}." if tool.needs else ""
        return Verdict("ask", f"{call.name} asks before a call with these arguments.{needs}")

    def _for_a_hook(self, call: CallState, arguments: dict[str, Any]) -> CallState:
        """Return a copy of the call for a hook, with the arguments as the tool's function gets them.

        They are plain values, converted to the types of the function: "false" becomes False for a bool.
        """
        seen = copy.copy(call)
        seen.arguments = proposed_call(call.id, call.name, arguments, self._tools[call.name]).arguments
        return seen

    async def put_to_policy(
        self, call: CallState, arguments: dict[str, Any], asked: ApprovalRequest | None = None
    ) -> Verdict:
        """Return the verdict of the policy about the call with these arguments. The policy and the tool must exist.

        asked: the question that a person was asked about the call before this run was restored, if there was one. The
        policy then gets the context of that question.
        """
        assert self._policy is not None
        tool, journal = self._tools[call.name], self._journal
        proposed = proposed_call(call.id, call.name, arguments, tool)
        seen = len(journal.events)

        def context() -> PolicyContext:
            nonlocal seen
            if asked is not None:
                place = (asked.seen if asked.seen is not None else asked.seq, self._frame.path, call.id)
                return contexts_at(journal.events, {place[0]: [place[1:]]})[place]
            with journal.lock:
                seen = len(journal.events)
                return self._contexts.of(self._frame, call)

        task = asyncio.current_task()
        try:
            ask = partial(self._policy, proposed, context)
            verdict = await settled(await self._in_turn(ask) if may_block(self._policy) else ask())
        except BaseException as error:  # a policy that fails has not approved the call
            self._reraise_if_interrupted(call, error, task)
            return Verdict("ask", f"{FAILED}{error_text(error)}", seen=seen)
        return replace(self._with_its_arguments(call, tool, verdict), seen=seen)

    async def _in_turn(self, ask: Callable[[], Any]) -> Any:
        """Call a sync function of the user in a thread, so that it holds up nothing else, after those asked before it.

        A policy may keep a count, or ask a person on the terminal, so it is never called twice at once.
        """
        before, mine = self._asked_before, asyncio.Event()
        self._asked_before = mine
        try:
            if before is not None:
                await before.wait()
            return await asyncio.wrap_future(THREADS.call(ask))
        finally:
            mine.set()

    def _with_its_arguments(self, call: CallState, tool: Tool, said: Verdict) -> Verdict:
        """Return the verdict with its arguments as JSON data, or the verdict "ask" if they do not fit the tool."""
        if said.arguments is None:
            return said
        try:
            self.bind(call, tool, said.arguments)
        except InvalidArguments as error:
            return Verdict("ask", f"{FAILED}{error}")
        return replace(said, arguments=to_json_data(said.arguments))

    def bind(self, call: CallState, tool: Tool, arguments: dict[str, Any]) -> Invocation:
        """Bind the call to its tool with these arguments. Raises InvalidArguments."""
        # A copy: a tool that changes its arguments must not change the history.
        copied = to_plain(arguments)
        bind_unchecked = getattr(tool, "bind_unchecked", None)
        if bind_unchecked is not None and call.is_as_a_hook_made_it(arguments):
            made: Invocation = bind_unchecked(copied)
        else:
            made = self._calls.bind(tool, call, copied, self._frame.state)
        self._bound[call.id] = (arguments, made)
        return made

    def make_ready(self, call: CallState, arguments: dict[str, Any]) -> None:
        """Bind the call before its start is published: a watcher could change the arguments."""
        tool = self._tools.get(call.name)
        if tool is not None and self._bound.get(call.id, _UNBOUND)[0] is not arguments:
            with suppress(InvalidArguments):  # raised again when it runs, as its result
                self.bind(call, tool, arguments)

    async def perform(self, call: CallState, *, inline: PumpPace | None = None) -> None:
        """Run the call and record its result, unless it has one by then.

        inline: the pace of the driver if it performs the call in place; None in a task of its own.
        """
        calls, journal, frame = self._calls, self._journal, self._frame
        # These variables belong to the call's own context.
        task = asyncio.current_task(self._inflight.wakeup.loop)  # three times as fast as without it
        current_call.set((journal.run_id, frame.path, call.id, task))
        working_for.set((journal.run_id, frame.path, call.id))
        act_for(journal, frame.path, frame.inside, call.id)
        is_own = call.hidden and frame.is_own(call)
        if is_own or getattr(self._tools.get(call.name), "takes_context", False):
            loop_context.set(context_of_loop(frame, journal.events))
        try:
            if is_own:
                fields = {"result": await self._perform_own(call, inline)}
            else:
                value = await self._invoke(call)
                actions = None
                if isinstance(value, Acted):
                    value, actions = value.result, value.actions
                fields = calls.outcome(value)
                if actions is not None:
                    details = fields.get("details")
                    said = details if isinstance(details, dict) else {}
                    fields["details"] = {**said, "actions": actions}
                    if actions.get("escalate") or actions.get("skip_summarization"):
                        fields["terminate"] = True
            for name, field in fields.items():
                if type(field) is not bool:
                    fields[name] = to_json_data(field)
            end = CallEnd(call_id=call.id, name=call.name, **fields)
        except _BrokenOff:
            end = synthetic_end(call, ABORTED, "aborted")
        except _TimedOut as error:
            end = synthetic_end(call, str(error), "timed_out", error.__cause__)
        except BaseException as error:  # ARCHITECTURE.md, 3. Three kinds of failure
            self._reraise_if_interrupted(call, error, task)
            end = self._raised(call, error)
        if calls.after_call is not None and not is_own:
            end = await self._after(call, end)
        journal.append(end, frame, call)

    def _reraise_if_interrupted(self, call: CallState, error: BaseException, task: asyncio.Task[Any] | None) -> None:
        """Raise the error again if it has interrupted the code from outside. Return if the code itself has failed."""
        if is_thrown_in(error, task):
            raise error
        state, here = self._frame.state, task_here()  # not `task`, if a consumer takes each event in another task
        is_wanted = state.cancelled is None and state.open.get(call.id) is call
        if isinstance(error, asyncio.CancelledError) and not (is_wanted and here is not None and not here.cancelling()):
            raise error

    async def _perform_own(self, call: CallState, inline: PumpPace | None) -> Any:
        """Run a call of the loop's own. Each event that it yields is recorded while it is suspended."""
        said = self._calls.perform(call, self._frame.state)
        if not hasattr(said, "__aiter__"):
            return await settled(said)
        result = None
        said = InnerGenerator(said)
        async with aclosing(said):
            await self._wait_at_gate(call, inline)
            async for item in said:
                if isinstance(item, Result):
                    result = item.value
                    continue
                if not isinstance(item, (Event, Delta)):
                    raise TypeError(f"{call.name} may only yield events, deltas and a Result, not {shown(item)}.")
                if not self._record_or_show(item, call) or self._frame.state.cancelled is not None:
                    raise _BrokenOff
                is_shown = inline == "pull" or (inline is None and isinstance(item, Event))
                await self._wait_at_gate(call, inline, until_taken=is_shown)
        return result

    async def _wait_at_gate(self, call: CallState, inline: PumpPace | None, *, until_taken: bool = False) -> None:
        """Suspend the call until the gate is open; with `until_taken`, at least until the driver's next pass."""
        while until_taken or not self._may_continue():
            until_taken = False
            if inline is not None:
                await show()
            else:
                await self._inflight.rest(Effect("call", call.id, self._frame.path), self._may_continue)

    def _may_continue(self) -> bool:
        return self._gate.is_open(self._journal.state, finishing=self._frame.finishes_calls)

    def _record_or_show(self, said: Event | Delta, call: CallState) -> bool:
        """Record or show an item that a call yields. Returns False if the call has ended meanwhile."""
        if not isinstance(said, Delta):
            return self._journal.append(checked(said), self._frame, call) is not None
        said.run_id, said.path = self._journal.run_id, self._frame.path
        with self._journal.lock:  # its result may be recorded by another thread
            if self._frame.state.open.get(call.id) is not call:
                return False
            self._journal.tell(said)
        return True

    def _invoke(self, call: CallState) -> Awaitable[Any]:
        tool = self._tools[call.name]
        arguments, invocation = self._bound.pop(call.id, _UNBOUND)
        if invocation is None or arguments is not call.arguments:
            invocation = self.bind(call, tool, call.arguments)
            del self._bound[call.id]
        progress = partial(self._progress, call)
        return invocation(progress) if tool.timeout is None else self._with_timeout(call, tool, invocation(progress))

    async def _with_timeout(self, call: CallState, tool: Tool, running: Awaitable[Any]) -> Any:
        clock = asyncio.timeout(tool.timeout)
        try:
            async with clock:
                return await running
        except TimeoutError as error:
            if clock.expired():  # otherwise it is the tool's own
                forget_call(self._journal.run_id, self._frame.path, call.id)  # its result says that it took too long
                error.args = (f"{call.name} took longer than {tool.timeout:g} s.",)  # it had no message
                raise _TimedOut(*error.args) from error
            raise

    async def _after(self, call: CallState, end: CallEnd) -> CallEnd:
        hook, task = self._calls.after_call, asyncio.current_task()
        assert hook is not None
        try:
            changed = await settled(hook(self._for_a_hook(call, call.arguments), end, self._frame.state))
        except BaseException as error:  # an error result
            self._reraise_if_interrupted(call, error, task)
            return self._raised(call, error)
        if not changed:
            return end
        try:
            return checked(structs.replace(end, **{name: to_json_data(value) for name, value in changed.items()}))
        except (TypeError, ImpossibleEvent) as error:  # not a mapping, an unknown field, or a value of a wrong type
            return self._raised(call, error)

    def _progress(self, call: CallState, data: Any) -> None:
        """Show progress of a call, unless the call has its result."""
        if self._record_or_show(Delta(type="call_delta", call_id=call.id, data=to_json_data(data)), call):
            self._inflight.wakeup.nudge()  # a consumer that pulls waits for it

    def _raised(self, call: CallState, error: BaseException) -> CallEnd:
        words = text_or_empty(error) if isinstance(error, ToolError) else error_text(error)
        end = synthetic_end(call, words, "raised", error)
        if self._frame.is_own(call):
            self.failure = end.error, error
        return end


_UNBOUND: tuple[None, None] = (None, None)


class _BrokenOff(Exception):
    """A call of the loop's own has yielded an item after its run, or the call, has ended."""


class _TimedOut(Exception):
    """A tool has exceeded its time limit."""
