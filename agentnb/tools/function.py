"""Tools from functions: `@tool`.

The model's arguments are checked by the function's signature before the call, and an error names the argument, because
the model has to correct it. A sync function runs in a worker thread, so that it cannot block the run. The pool of
threads grows with the calls: asyncio's own has six threads on two cores, and a hundred calls would queue for them.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, overload

from pydantic import ValidationError

from agentnb.core.errors import InvalidArguments, UsageError, printable
from agentnb.core.json import is_json
from agentnb.core.loop import Design
from agentnb.core.tools import Invocation, ReportProgress
from agentnb.json_schema import argument_faults, read_by
from agentnb.tools.context import ToolContext, progress_callback, with_actions
from agentnb.tools.loop import LoopTool
from agentnb.tools.signature import Signature, code_of, unwrapped
from agentnb.tools.threads import call_in_pool, in_thread, own_thread_of

Approve = bool | Callable[[Any], Any]
_NAME = r"[a-zA-Z0-9_-]{1,64}"  # names that both OpenAI and Anthropic accept


class FunctionTool:
    """A function as a tool, made by `@tool`. Calling the tool calls the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        approve: Approve = False,
        idempotent: bool = False,
        timeout: float | None = None,
        needs: Iterable[str] | str = (),
        sequential: bool = False,
        detached: bool = False,
        thread: Literal["pool", "own"] = "pool",
        view: Callable[[dict[str, Any]], str] | None = None,
        strict: bool = False,
        cache: bool = False,
    ) -> None:
        # A class method has no class yet: `__get__` makes a tool of the bound method.
        original: Any = function
        self._is_classmethod = isinstance(original, classmethod)
        function = original.__func__ if self._is_classmethod else original
        if not callable(function):
            raise UsageError(f"A tool is made from a function, not from {function!r:.80}.")

        # Check the options.
        booleans = {
            "idempotent": idempotent,
            "sequential": sequential,
            "detached": detached,
            "strict": strict,
            "cache": cache,
        }
        for option, value in booleans.items():
            if not isinstance(value, bool):
                raise UsageError(f"@tool({option}=) must be True or False, not {value!r:.80}.")
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout > 0):
            raise UsageError(
                f"@tool(timeout=) must be a positive number of seconds, or None for no limit, not {timeout!r:.80}."
            )
        if not isinstance(approve, bool) and not callable(approve):
            raise UsageError(
                "@tool(approve=) must be True, False, or a function that takes the call and returns one of them, not"
                f" {approve!r:.80}. Pass rules to the run: start(..., approve=...)."
            )
        if view is not None and not callable(view):
            raise UsageError(
                f"@tool(view=) must be a function that takes the arguments and returns a string, not {view!r:.80}."
            )
        if thread not in ("pool", "own"):
            raise UsageError(f'@tool(thread=) must be "pool" or "own", not {thread!r:.80}.')
        needed = (needs,) if isinstance(needs, str) or not isinstance(needs, Iterable) else tuple(needs)
        if not all(isinstance(need, str) for need in needed):
            raise UsageError(f"@tool(needs=) must be a string or a list of strings, not {needs!r:.80}.")

        functools.update_wrapper(self, function)
        self.function = function
        self.name = _check_name(name or str(getattr(unwrapped(function), "__name__", "")))
        self.approve = approve
        self.idempotent = idempotent
        self.timeout = timeout
        self.needs = needed
        self.sequential = sequential
        self.detached = detached
        self.thread = thread
        self.view = view
        self.strict: bool | None = strict or None
        self.cache_control: dict[str, Any] | None = {"type": "ephemeral"} if cache else None
        self._call_in_thread = own_thread_of(function).call if thread == "own" else call_in_pool
        self._is_async = inspect.iscoroutinefunction(code_of(function))
        if self._is_async and thread == "own":
            raise UsageError(
                f'{self.name} is async and runs in the event loop: @tool(thread="own") is for sync functions.'
            )
        self._signature = Signature(function, self.name)
        self.takes_context = "tool_context" in self._signature.injected
        """True if the function has a parameter `tool_context`; the run then prepares the context for it."""
        self._description = description
        self._parameters: dict[str, Any] | None = None
        self._options: dict[str, Any] = {
            **booleans,
            "approve": approve,
            "thread": thread,
            "view": view,
            "name": name,
            "description": description,
            "timeout": timeout,
            "needs": needed,
        }

    @property
    def description(self) -> str:
        """The description for the model: by default the docstring's, which is parsed at the first use."""
        return self._signature.description if self._description is None else self._description

    @description.setter
    def description(self, description: str) -> None:
        self._description = description

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments: by default the signature's, which is built at the first use."""
        return self._signature.schema if self._parameters is None else self._parameters

    @parameters.setter
    def parameters(self, schema: dict[str, Any]) -> None:
        self._parameters = schema

    def named(self, name: str) -> FunctionTool:
        """Return a copy of the tool with another name."""
        renamed = copy.copy(self)
        renamed.name, renamed._options = _check_name(name), {**self._options, "name": name}
        return renamed

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        """Return a tool of the bound method, if the function is a method in a class body."""
        if self._is_classmethod:
            return FunctionTool(self.function.__get__(owner or type(instance)), **self._options)
        if instance is None or not self._is_method_of(instance):
            return self
        return FunctionTool(self.function.__get__(instance, owner), **self._options)

    def _is_method_of(self, instance: Any) -> bool:
        """Return True if the function is written in the class of this object, or in this class.

        A function of another place that is an attribute of the class is no method, unless it takes `self`.
        """
        if isinstance(self.function, staticmethod):
            return False
        first = next(iter(inspect.signature(self.function).parameters), "")
        body = getattr(self.function, "__qualname__", "").rpartition(".")[0]
        classes = [*type(instance).__mro__, *(instance.__mro__ if isinstance(instance, type) else ())]
        return first == "self" or bool(first and any(base.__qualname__ == body for base in classes))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Return the call with these arguments, ready to run.

        Raises InvalidArguments, which names each invalid argument.
        """
        try:
            values = self._values(arguments)
        except ValidationError as error:
            raise InvalidArguments(f"Invalid arguments for {self.name}: {argument_faults(error)}.") from error
        except Exception as error:  # a user's validator fails, for example at a type that it does not expect
            reason = f"{type(error).__name__}: {error}"
            raise InvalidArguments(f"Invalid arguments for {self.name}: they cannot be checked ({reason}).") from error
        return functools.partial(self._invoke, values)

    def bind_unchecked(self, arguments: dict[str, Any]) -> Invocation:
        """Return the call with exactly these arguments, which were chosen by code and not by a model."""
        return functools.partial(self._invoke, arguments)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function gets them, for a policy: for example, False for "false".

        Arguments that are not valid are returned unchanged; `bind` reports them. The caller must not use `arguments`
        afterwards: a user's validator may change them.
        """
        try:
            values = self._values(arguments)
        except Exception:  # not valid, or a user's validator failed: `bind` raises the same error for the call
            return arguments
        return {**arguments, **{name: value for name, value in values.items() if value is not None and is_json(value)}}

    def _values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the values for the function. Raises ValidationError, or what a user's validator raises."""
        try:
            return self._signature.validate(arguments)
        except ValidationError:
            # Some models write a list or an object as a string of JSON.
            parsed = read_by({**self.parameters, "required": list(arguments)}, arguments)
            if parsed == arguments:
                raise
            return self._signature.validate(parsed)

    def _invoke(self, values: dict[str, Any], progress: ReportProgress) -> Awaitable[Any]:
        injected = self._signature.injected
        if not injected:
            return self._run(values)
        context = ToolContext.of_this_call(self.name)
        available = {"progress": progress_callback(progress), "tool_context": context}
        running = self._run({**values, **{name: available[name] for name in injected}})
        return with_actions(running, context) if self.takes_context else running

    def _run(self, values: dict[str, Any]) -> Awaitable[Any]:
        if self._is_async:
            running: Awaitable[Any] = self.function(**values)
            return running
        return in_thread(functools.partial(self.function, **values), self._call_in_thread)

    def __repr__(self) -> str:
        return printable(f"<tool {self.name}>")


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise UsageError(
            f"A tool's name has up to 64 letters, digits, _ and -, not {name!r}; pass a valid one as name=."
        )
    return name


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(function: Design, /) -> LoopTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approve: Approve = False,
    idempotent: bool = False,
    timeout: float | None = None,
    needs: Iterable[str] | str = (),
    sequential: bool = False,
    detached: bool = False,
    thread: Literal["pool", "own"] = "pool",
    view: Callable[[dict[str, Any]], str] | None = None,
    strict: bool = False,
    cache: bool = False,
) -> Callable[[Callable[..., Any] | Design], FunctionTool | LoopTool]: ...


def tool(function: Callable[..., Any] | Design | None = None, /, **options: Any) -> Any:
    """Make a tool from a function, which may be async, or from a loop.

    The result of a generator is the list of its items. A picture that the function returns is sent to the model as a
    picture. Another result that is not JSON, such as a table, is sent as the text that `print` shows; some libraries
    shorten long tables there. A loop as a tool has the options `name`, `description`, `approve`, `needs`, `sequential`
    and `view` only.

    name, description: in place of those of the function.
    approve: True to ask a person before each call; or a function that takes the call and returns True to ask, such as
        `lambda call: call.arguments["path"].startswith("/etc")`. As a second argument it may take the context, as a
        policy does (`agentnb.run.approvals.policy`).
    idempotent: True if the call may run again when it is unknown whether it ran.
    timeout: seconds for a call.
    needs: what the tool accesses ("network", "write"). A person sees it, and policies match it.
    sequential: True if no other call may run concurrently.
    detached: True if an ExecutionLoop continues while the call runs; only the end of the run waits for the call.
    thread: where a sync function runs: in the "pool", or in one thread of its "own" for all calls of the tool, for
        objects that may be used in one thread only, such as connections of sqlite3.
    view: a function that takes the arguments and returns a string, which a person sees next to them.
    strict: True if the server must make the model's arguments fit the schema (OpenAI, Anthropic). OpenAI's models then
        give every argument, also those with a default.
    cache: True if Anthropic's server is to keep the tools up to this one, and the system prompt of equal requests, for
        some minutes: the last tool of a long list is the one to mark. OpenAI's servers do this by themselves.

    Two parameters of the function are not shown to the model, unless their type is a number, str or bool. `progress` is
    a function that reports how far the call is: `progress(0.5)`, `progress(3, 8)`, `progress({"done": 3, "total": 8})`
    or `progress("reading")`, awaited or not. `tool_context` describes the call that the function runs for; setting
    `tool_context.actions.escalate = True` ends the loop agent in which the loop is nested.

    Raises UsageError if an option is not valid, or if the parameters cannot be described by a JSON schema.
    """
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise UsageError(f"@tool has no option {unknown[0]!r}; the options are {', '.join(_OPTIONS)}.")

    def make(function: Any) -> FunctionTool | LoopTool:
        return LoopTool(function, **options) if isinstance(function, Design) else FunctionTool(function, **options)

    return make if function is None else make(function)


_OPTIONS = tuple(inspect.signature(FunctionTool).parameters)[1:]
