"""Tools from functions: the schema is the signature, the words are the docstring.

`@tool` reads a function's parameters, their types and defaults into a pydantic model, and the descriptions from the
docstring (Google, NumPy or reST style). The model's arguments are checked against it before the function is called,
and an error names the argument, because it is the model that has to mend it.

Parameters called `progress` and `tool_context` are not the model's, unless their type is a value's (`float`): the
function gets a callback there and may tell how far it is, and the call it runs for (`agentnb.tools.context`). A sync
function runs in a worker thread, so that it cannot hold up the run; the threads grow with the calls, because asyncio's
own pool has six on two cores and a hundred calls would queue for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, cast, get_args, get_type_hints, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.json_data import is_json, same_json
from agentnb.core.loop import Design
from agentnb.core.maybe_async import listed, settled
from agentnb.core.schemas import misfits, why_none
from agentnb.core.threads import THREADS
from agentnb.core.tools import Invocation, Progress
from agentnb.core.unicode import printable
from agentnb.json_schema import read_by
from agentnb.tools.called import called_in, whole_of, words_of
from agentnb.tools.context import ToolContext, acted
from agentnb.tools.loop import LoopTool
from agentnb.tools.own_thread import own_thread_of
from agentnb.tools.parameters import checked_as, description_in, is_data
from agentnb.tools.progress import teller

_GIVEN = ("progress", "tool_context")
"""Parameters that the model is not asked for."""

Approve = bool | Callable[[Any], Any]
_NAME = r"[a-zA-Z0-9_-]{1,64}"  # what OpenAI and Anthropic both take


class FunctionTool:
    """A function as a tool; calling it calls the function. Made by `@tool`."""

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
    ) -> None:
        given: Any = function
        self._of_class = isinstance(given, classmethod)
        function = given.__func__ if self._of_class else given  # made again where it is asked of the class
        if not callable(function):
            raise UsageError(f"A tool is made from a function, not from {function!r:.80}.")
        yes_or_no = {"idempotent": idempotent, "sequential": sequential, "detached": detached}
        _check_options(timeout, yes_or_no)
        check_approve(approve)
        check_view(view)
        if thread not in ("pool", "own"):
            raise UsageError(f'@tool(thread=) is "pool" or "own", not {thread!r:.80}.')
        functools.update_wrapper(self, function)
        self.function = function
        self.name = _check_name(name or str(getattr(whole_of(function), "__name__", "")))
        words, parameter_words = words_of(function)
        self.description = description if description is not None else words
        self.approve = approve
        self.idempotent = idempotent
        self.timeout = timeout
        self.needs = _check_needs(needs)
        self.sequential = sequential
        self.detached = detached
        self.thread = thread
        self._in_thread = own_thread_of(function).call if thread == "own" else _called
        self.view = view
        adapter, self._gets = _arguments_of(function, self.name, parameter_words)
        self.takes_context = "tool_context" in self._gets
        """Whether the function has a parameter `tool_context`."""
        self._validate = adapter.validator.validate_python  # the adapter's own method adds a third to its cost
        self._is_async = inspect.iscoroutinefunction(called_in(function))
        if self._is_async and thread == "own":
            raise UsageError(
                f'{self.name} is async and runs in the event loop: @tool(thread="own") is for sync functions.'
            )
        self.parameters = _schema(adapter, self.name)
        self._options: dict[str, Any] = {
            **yes_or_no,
            "approve": approve,
            "thread": thread,
            "view": view,
            "name": name,
            "description": description,
            "timeout": timeout,
            "needs": self.needs,
        }

    def named(self, name: str) -> FunctionTool:
        """The same tool under another name."""
        renamed = copy.copy(self)
        renamed.name, renamed._options = _check_name(name), {**self._options, "name": name}
        return renamed

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        """A method as a tool of the object that it is asked of, as a function in a class becomes one of its methods."""
        if self._of_class:
            return FunctionTool(self.function.__get__(owner or type(instance)), **self._options)
        first = next(iter(inspect.signature(self.function).parameters), "")
        is_bound = first == "self" or (first == "cls" and isinstance(instance, type))
        if instance is None or not is_bound:
            return self
        return FunctionTool(self.function.__get__(instance, owner), **self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it were no tool."""
        return self.function(*args, **kwargs)

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """The call with these arguments, ready to run. Raises InvalidArguments that names each argument at fault."""
        try:
            values = self._values(arguments)
        except ValidationError as error:
            raise InvalidArguments(f"Invalid arguments for {self.name}: {misfits(error)}.") from error
        except Exception as error:  # a validator of the user's, which what the model says is the first to upset
            why = f"{type(error).__name__}: {error}"
            raise InvalidArguments(f"Invalid arguments for {self.name}: they cannot be checked ({why}).") from error
        return functools.partial(self._invoke, values)

    def bind_unchecked(self, arguments: dict[str, Any]) -> Invocation:
        """The call with exactly these arguments, which code has chosen that knows what the function takes."""
        return functools.partial(self._invoke, arguments)

    def _values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The values that the function gets. Raises what the validation raises."""
        values: dict[str, Any]
        try:
            values = self._validate(arguments)
        except ValidationError:
            # A list or an object may have come as JSON text.
            again = read_by({**self.parameters, "required": list(arguments)}, arguments)
            if again == arguments:
                raise
            values = self._validate(again)
        return values

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the plain values that the function gets: to a bool "false" is False, also in a policy.

        They are given up: a validator of the user's may change them.
        """
        try:
            values = self._values(arguments)
        except Exception:  # they fit no more, or a validator of the user's fails: `bind` says how
            return arguments
        return {**arguments, **{name: value for name, value in values.items() if value is not None and is_json(value)}}

    def _invoke(self, values: dict[str, Any], progress: Progress) -> Awaitable[Any]:
        if self._gets:
            context = ToolContext.of_this_call(self.name)
            given = {"progress": teller(progress), "tool_context": context}
            values = {**values, **{name: given[name] for name in self._gets}}
            if self.takes_context:
                return acted(self._called(values), context)
        return self._called(values)

    def _called(self, values: dict[str, Any]) -> Awaitable[Any]:
        if self._is_async:
            called: Awaitable[Any] = self.function(**values)
            return called
        return in_thread(functools.partial(self.function, **values), self._in_thread)

    def __repr__(self) -> str:
        return printable(f"<tool {self.name}>")


def _check_options(timeout: Any, yes_or_no: Mapping[str, Any]) -> None:
    for option, value in yes_or_no.items():
        if not isinstance(value, bool):
            raise UsageError(f"@tool({option}=) is True or False, not {value!r:.80}.")
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout > 0):
        raise UsageError(f"@tool(timeout=) takes seconds, more than none, not {timeout!r:.80}.")


def check_approve(approve: Any) -> None:
    """Raise UsageError where this says nothing of whether a person is asked."""
    if not isinstance(approve, bool) and not callable(approve):
        raise UsageError(
            f"@tool(approve=) is True, False, or a function of the call that returns one of them, not {approve!r:.80}."
            " Rules are a policy: start(..., approve=...)."
        )


def check_view(view: Any) -> None:
    """Raise UsageError where this is no function."""
    if view is not None and not callable(view):
        raise UsageError(f"@tool(view=) takes a function of the arguments that returns a text, not {view!r:.80}.")


def _check_needs(needs: Any) -> tuple[str, ...]:
    texts = (needs,) if isinstance(needs, str) or not isinstance(needs, Iterable) else tuple(needs)
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(f"@tool(needs=) takes a text or several, not {needs!r:.80}.")
    return texts


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise UsageError(f"A tool's name is up to 64 letters, digits, _ and -, not {name!r}; give it one by name=.")
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
) -> Callable[[Callable[..., Any] | Design], FunctionTool | LoopTool]: ...


def tool(function: Callable[..., Any] | Design | None = None, /, **options: Any) -> Any:
    """Make a tool from a function, sync or async; of one that yields, the result is the list of what it yields.

    A loop is made a tool too, with `name`, `description`, `approve`, `needs`, `sequential` and `view`.

    approve: ask a person before each call; or a function of the call that returns whether to ask,
    `lambda call: call.arguments["path"].startswith("/etc")` for one; it may take the context as a policy does
    (`agentnb.run.approvals.policy`). idempotent: it may run again when nobody knows
    whether it ran. timeout: in seconds. needs: what it touches ("network", "write"), shown to the person and matched by
    policies. sequential: no other call runs beside it. detached: an ExecutionLoop goes on while it runs, and only the
    run's end waits for it. thread: where a sync function runs; "own" is one thread for all calls of this tool, for
    objects that may be used in one thread only, such as those of sqlite3. view: makes from the arguments a text that is
    shown to the person beside them. name, description: instead of the function's own.

    A parameter called `progress` is not the model's, unless its type is a number, a text or a bool: it is a function
    that tells how far the call is, by a number from 0 to 1, `(3, 8)`, `{"done": 3, "total": 8}`, or words, awaited or
    not. Nor is one called `tool_context`: it is the call that the function runs for, and after
    `tool_context.actions.escalate = True` the loop agent around is left. A picture that the function returns is sent
    to the model as one. Of another result that JSON cannot say, a table for one, the model gets the text, as `print`
    shows it: long ones shortened, if that is what their library does.

    Raises UsageError where the signature cannot be a schema.
    """
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise UsageError(f"@tool has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}.")
    if function is None:
        return lambda function: _tool_of(function, options)
    return _tool_of(function, options)


def _tool_of(function: Any, options: dict[str, Any]) -> FunctionTool | LoopTool:
    return LoopTool(function, **options) if isinstance(function, Design) else FunctionTool(function, **options)


_OPTIONS = tuple(inspect.signature(FunctionTool).parameters)[1:]


def _called(function: Callable[[], Any]) -> Awaitable[Any]:
    return asyncio.wrap_future(THREADS.call(function))


async def in_thread(
    function: Callable[[], Any], called: Callable[[Callable[[], Any]], Awaitable[Any]] = _called
) -> Any:
    """What the function comes to, in a thread unless that is async or yields so."""
    return await listed(await settled(await called(function)), called)


def _arguments_of(
    function: Callable[..., Any], name: str, words: Mapping[str, str]
) -> tuple[TypeAdapter[dict[str, Any]], tuple[str, ...]]:
    """What checks the arguments, and which of the parameters the model is not asked for.

    A TypedDict, not a model: its keys may have any name a parameter has, and what was not given stays out.
    """
    try:
        hints = get_type_hints(called_in(function), include_extras=True)
    except NameError as error:
        raise UsageError(f"The tool {name} has an annotation that cannot be resolved: {error}.") from error
    parameters: dict[str, inspect.Parameter] = {}
    given: list[str] = []
    extra = False
    for parameter in _parameters(function, name):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = True
        elif parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            what = f"The tool {name} takes {parameter}, which a model cannot give by name"
            raise UsageError(f"{what}: wrap it in a function of your own.")
        elif parameter.name in _GIVEN and not is_data(hints.get(parameter.name)):
            given.append(parameter.name)
        else:
            parameters[parameter.name] = parameter
    config = ConfigDict(extra="allow" if extra else "forbid")
    fields = {name: _field(one, hints, words) for name, one in parameters.items()}
    adapter = _adapter(fields, config, name)
    # A declared default is valid, whatever the type says: `x: int = None` takes null.
    defaults = {name: _default(one.default) for name, one in parameters.items() if one.default is not one.empty}
    refused = _refused(adapter, {name: said["default"] for name, said in defaults.items() if said})
    if refused:
        fields |= {name: _with_default(fields[name], parameters[name].default) for name in refused}
        adapter = _adapter(fields, config, name)
    return adapter, tuple(given)


def _adapter(fields: dict[str, Any], config: ConfigDict, name: str) -> TypeAdapter[dict[str, Any]]:
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]  # its keys are not known before
    arguments.__pydantic_config__ = config  # type: ignore[attr-defined]
    with _described(name):
        return TypeAdapter(cast("type[dict[str, Any]]", arguments))


def _refused(adapter: TypeAdapter[dict[str, Any]], defaults: dict[str, Any]) -> list[str]:
    """The parameters whose own defaults do not fit their types."""
    if not defaults:
        return []
    try:
        adapter.validate_python(defaults)
    except ValidationError as error:
        places = {fault["loc"][0] for fault in error.errors(include_url=False) if fault["type"] != "missing"}
        return [name for name in defaults if name in places]
    except Exception:  # a validator of the user's
        return []
    return []


def _with_default(field: Any, default: Any) -> Any:
    """The type of a parameter that takes its default beside what its type takes."""
    said = _default(default)["default"]

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        return default if is_json(value) and same_json(value, said) else validate(value)

    (inside,) = get_args(field)  # of NotRequired
    type_, *more = get_args(inside)
    return NotRequired[Annotated[(type_, *more, WrapValidator(check))]]


@contextlib.contextmanager
def _described(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pydantic raises several kinds for a type it has no schema for
        raise UsageError(
            f"The tool {name} cannot be described by a JSON schema: {why_none(error)}. A parameter is a number, a text,"
            " a list, a dict, an enum, a dataclass or a pydantic model."
        ) from None


def _parameters(function: Callable[..., Any], name: str) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except ValueError:  # of some that are written in C
        raise UsageError(
            f"Nothing says what {name} takes: wrap it in a function of your own, with types and a docstring."
        ) from None


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any], words: Mapping[str, str]) -> Any:
    type_ = hints.get(parameter.name, Any)
    said = words.get(parameter.name) or description_in(type_)
    described: dict[str, Any] = {"description": said} if said else {}
    type_ = checked_as(type_)
    if isinstance(parameter.default, FieldInfo):  # Python itself would give the function that
        raise UsageError(
            f"The parameter {parameter.name} has a Field as its default. Where it belongs is the type, with the default"
            f" behind it: {parameter.name}: Annotated[{getattr(type_, '__name__', type_)}, Field(...)] = ..."
        )
    if parameter.default is inspect.Parameter.empty:
        return Annotated[type_, Field(**described)]
    return NotRequired[Annotated[type_, Field(**described, json_schema_extra=_default(parameter.default))]]


def _default(value: Any) -> dict[str, Any]:
    try:
        return {"default": to_jsonable_python(value, serialize_unknown=True)}
    except ValueError:  # bytes that are no text: the function has its default all the same
        return {}


def _schema(arguments: TypeAdapter[dict[str, Any]], name: str) -> dict[str, Any]:
    with _described(name):
        schema = arguments.json_schema()
    schema.pop("title", None)
    for described in schema.get("properties", {}).values():
        described.pop("title", None)
    schema.setdefault("properties", {})
    return schema
