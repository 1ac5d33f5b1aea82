"""Tools from functions: the schema is the signature, the words are the docstring.

`@tool` reads a function's parameters, their types and defaults into a pydantic model, and the descriptions from the
docstring (Google, NumPy or reST style). The model's arguments are checked against it before the function is called,
and an error names the argument, because it is the model that has to mend it.

A parameter called `progress` is not the model's, unless its type is a value's (`float`): the function gets a callback
there and may tell how far it is. A sync function runs in a worker thread, so that it cannot hold up the run; the
threads grow with the calls, because asyncio's own pool has six on two cores and a hundred calls would queue for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, cast, get_args, get_origin, get_type_hints, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.json_data import is_json
from agentnb.core.maybe_async import listed, settled
from agentnb.core.schemas import misfits, why_none
from agentnb.core.threads import THREADS
from agentnb.core.tools import Invocation, Progress
from agentnb.tools.called import called_in, whole_of, words_of
from agentnb.tools.progress import teller

_PLAIN = (bool, int, float, str)
_NAME = r"[a-zA-Z0-9_-]{1,64}"  # what OpenAI and Anthropic both take


class FunctionTool:
    """A function as a tool; calling it calls the function. Made by `@tool`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        approve: bool = False,
        idempotent: bool = False,
        timeout: float | None = None,
        needs: Iterable[str] | str = (),
        sequential: bool = False,
        detached: bool = False,
    ) -> None:
        if not callable(function):
            raise UsageError(f"A tool is made from a function, not from {function!r:.80}.")
        yes_or_no = {"approve": approve, "idempotent": idempotent, "sequential": sequential, "detached": detached}
        _check_options(timeout, yes_or_no)
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
        adapter, self._takes_progress = _arguments_of(function, self.name, parameter_words)
        self._validate = adapter.validator.validate_python  # the adapter's own method adds a third to its cost
        self._is_async = inspect.iscoroutinefunction(called_in(function))
        self.parameters = _schema(adapter, self.name)
        self._options: dict[str, Any] = {
            **yes_or_no,
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
        if instance is None or next(iter(inspect.signature(self.function).parameters), "") != "self":
            return self
        return FunctionTool(self.function.__get__(instance, owner), **self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it were no tool."""
        return self.function(*args, **kwargs)

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """The call with these arguments, ready to run. Raises InvalidArguments that names each argument at fault."""
        try:
            values = self._validate(arguments)
        except ValidationError as error:
            raise InvalidArguments(f"Invalid arguments for {self.name}: {misfits(error)}.") from error
        except Exception as error:  # a validator of the user's, which what the model says is the first to upset
            why = f"{type(error).__name__}: {error}"
            raise InvalidArguments(f"Invalid arguments for {self.name}: they cannot be checked ({why}).") from error
        return functools.partial(self._invoke, values)

    def bind_unchecked(self, arguments: dict[str, Any]) -> Invocation:
        """The call with exactly these arguments, which code has chosen that knows what the function takes."""
        return functools.partial(self._invoke, arguments)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the plain values that the function gets: to a bool "false" is False, also in a policy.

        They are given up: a validator of the user's may change them.
        """
        try:
            values = self._validate(arguments)
        except Exception:  # they fit no more, or a validator of the user's fails: `bind` says how
            return arguments
        return {**arguments, **{name: value for name, value in values.items() if value is not None and is_json(value)}}

    def _invoke(self, values: dict[str, Any], progress: Progress) -> Awaitable[Any]:
        if self._takes_progress:
            values = {**values, "progress": teller(progress)}
        if self._is_async:
            called: Awaitable[Any] = self.function(**values)
            return called
        return in_thread(functools.partial(self.function, **values))

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


def _check_options(timeout: Any, yes_or_no: Mapping[str, Any]) -> None:
    for option, value in yes_or_no.items():
        if not isinstance(value, bool):
            policy = " Who looks at each call is a policy: start(..., approve=...)." if option == "approve" else ""
            raise UsageError(f"@tool({option}=) is True or False, not {value!r:.80}.{policy}")
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout > 0):
        raise UsageError(f"@tool(timeout=) takes seconds, more than none, not {timeout!r:.80}.")


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
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approve: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    needs: Iterable[str] | str = (),
    sequential: bool = False,
    detached: bool = False,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool from a function, sync or async; of one that yields, the result is the list of what it yields.

    approve: ask a person before each call. idempotent: it may run again when nobody knows whether it ran. timeout: in
    seconds. needs: what it touches ("network", "write"), shown to the person and matched by policies. sequential: no
    other call runs beside it. detached: an ExecutionLoop goes on while it runs, and only the run's end waits for it.
    name, description: instead of the function's own.

    A parameter called `progress` is not the model's, unless its type is a number, a text or a bool: it is a function
    that tells how far the call is, by a number from 0 to 1, `(3, 8)`, `{"done": 3, "total": 8}`, or words, awaited or
    not. Of a result that JSON cannot say, a table for one, the model gets the text, as `print` shows it: long ones
    shortened, if that is what their library does.

    Raises UsageError where the signature cannot be a schema.
    """
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise UsageError(f"@tool has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}.")
    if function is None:
        return lambda function: FunctionTool(function, **options)
    return FunctionTool(function, **options)


_OPTIONS = tuple(inspect.signature(FunctionTool).parameters)[1:]


async def in_thread(function: Callable[[], Any]) -> Any:
    """What the function comes to, in a thread unless that is async or yields so."""
    return await listed(await settled(await _called(function)), _called)


def _called(function: Callable[[], Any]) -> Awaitable[Any]:
    return asyncio.wrap_future(THREADS.call(function))


def _arguments_of(
    function: Callable[..., Any], name: str, words: Mapping[str, str]
) -> tuple[TypeAdapter[dict[str, Any]], bool]:
    """What checks the arguments, and whether the function takes a progress callback.

    A TypedDict, not a model: its keys may have any name a parameter has, and what was not given stays out.
    """
    try:
        hints = get_type_hints(called_in(function), include_extras=True)
    except NameError as error:
        raise UsageError(f"The tool {name} has an annotation that cannot be resolved: {error}.") from error
    fields: dict[str, Any] = {}
    takes_progress, extra = False, False
    for parameter in _parameters(function, name):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = True
        elif parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            what = f"The tool {name} takes {parameter}, which a model cannot give by name"
            raise UsageError(f"{what}: wrap it in a function of your own.")
        elif parameter.name == "progress" and not _is_data(hints.get("progress")):
            takes_progress = True
        else:
            fields[parameter.name] = _field(parameter, hints, words)
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]  # its keys are not known before
    arguments.__pydantic_config__ = ConfigDict(extra="allow" if extra else "forbid")  # type: ignore[attr-defined]
    with _described(name):
        return TypeAdapter(cast("type[dict[str, Any]]", arguments)), takes_progress


@contextlib.contextmanager
def _described(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pydantic raises several kinds for a type it has no schema for
        raise UsageError(
            f"The tool {name} cannot be described by a JSON schema: {why_none(error)}. A parameter is a number, a text,"
            " a list, a dict, an enum, a dataclass or a pydantic model."
        ) from None


def _is_data(hint: Any) -> bool:
    """Whether this is the type of a value that a model gives, `float` or `float | None`, and not of a callback."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return any(_is_data(one) for one in get_args(hint))
    return hint in _PLAIN or get_origin(hint) is Literal


def _parameters(function: Callable[..., Any], name: str) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except ValueError:  # of some that are written in C
        raise UsageError(
            f"Nothing says what {name} takes: wrap it in a function of your own, with types and a docstring."
        ) from None


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any], words: Mapping[str, str]) -> Any:
    type_ = hints.get(parameter.name, Any)
    described: dict[str, Any] = {"description": said} if (said := words.get(parameter.name)) else {}
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
