"""Tools that say themselves, by a JSON schema, what they take: objects of other designs, and methods of `**arguments`.

Such an object is called by name where its method takes any name, and otherwise by place, as SessionLoop's design calls
its tools: `execute(id, args, signal, on_update)`, or as many of these as it takes. What a model says is
checked against the schema as far as that can be read here, and a text that stands for a number, a truth value, a list
or an object is that, as a function's arguments are.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from agentnb.core.errors import InvalidArguments
from agentnb.core.schemas import misfits
from agentnb.core.tools import Invocation, Progress, current_call
from agentnb.json_schema import JsonSchema, read_by
from agentnb.tools.called import called_in, words_of
from agentnb.tools.function import FunctionTool, in_thread
from agentnb.tools.progress import teller

_PLACES = 4
_OWN_NAMES = frozenset({"signal", "on_update"})


class Signal:
    """Whether the call has been broken off, for a tool that looks at it while it works."""

    aborted = False


class DescribedTool(FunctionTool):
    """A method with a JSON schema of its arguments; `by_place`: how many of the design's four it takes, 0 for names.

    model: a pydantic model of the arguments in place of a schema; the method gets the values of its fields.
    """

    source: str = ""
    """Where the tool comes from, in words that tell it apart from another of its name."""

    def __init__(
        self,
        method: Callable[..., Any],
        *,
        schema: Mapping[str, Any] | None = None,
        model: type[BaseModel] | None = None,
        by_place: int,
        **options: Any,
    ) -> None:
        said = options.pop("description", None)
        super().__init__(_any, description=said if said is not None else words_of(method)[0], **options)
        self.function = method
        given = dict(model.model_json_schema() if model is not None else schema or {})
        self._schema = JsonSchema(given)
        is_plain = self._schema.told == {name: part for name, part in given.items() if name != "$schema"}
        self.parameters = given if is_plain else self._schema.told
        self._model = model
        self._by_place = by_place

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """The call with these arguments, ready to run. Raises InvalidArguments."""
        if self._model is not None:
            return functools.partial(self._invoke, self._fields_of(self._model, arguments))
        values = self.read(arguments)
        try:
            faults = self._schema.faults(values)
        except ValueError as error:  # nested too deeply
            raise InvalidArguments(f"The arguments of {self.name} cannot be checked: {error}") from error
        if faults:
            raise InvalidArguments(f"Invalid arguments for {self.name}: {'; '.join(faults)}.")
        return functools.partial(self._invoke, values)

    def _fields_of(self, model: type[BaseModel], arguments: dict[str, Any]) -> dict[str, Any]:
        """The values of the model's fields. Raises InvalidArguments."""
        try:
            values = model.model_validate(self.read(arguments))
        except ValidationError as error:
            raise InvalidArguments(f"Invalid arguments for {self.name}: {misfits(error)}.") from error
        except Exception as error:  # a validator of the user's
            why = f"{type(error).__name__}: {error}"
            raise InvalidArguments(f"Invalid arguments for {self.name}: they cannot be checked ({why}).") from error
        return {name: getattr(values, name) for name in model.model_fields}

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the plain values that the method gets."""
        try:
            read: dict[str, Any] = read_by(self.parameters, arguments)
        except RecursionError:  # a text that is nested too deeply, where a list is wanted
            return arguments
        return read

    async def _invoke(self, values: dict[str, Any], progress: Progress) -> Any:
        signal = Signal()
        places = (_call_id(), values, signal, teller(progress))
        given = (values,) if self._by_place == 1 else places[: self._by_place]
        call = functools.partial(self.function, *given, **({} if given else values))
        try:
            return await (call() if inspect.iscoroutinefunction(self.function) else in_thread(call))
        except asyncio.CancelledError:
            signal.aborted = True
            raise


def _any(**arguments: Any) -> None:
    """The signature of a tool whose schema says what it takes."""


def _call_id() -> str:
    """The id of the call that this code runs for."""
    call = current_call.get()
    return call[2] if call is not None else ""


_ALL = frozenset({"args", "arguments", "kwargs", "params", "parameters", "tool_args", "tool_input", "input", "inputs"})
"""What a parameter is called that takes all the arguments of a call in one piece."""


def takes_all_in_one(method: Callable[..., Any]) -> bool:
    """Whether a method without a schema takes all the arguments of a call in one piece, as `execute(args: dict)` does.

    A parameter of another type, or without a type and with a name that any parameter may have, is one argument.
    """
    try:
        parameters = list(inspect.signature(called_in(method)).parameters.values())
        hints = get_type_hints(called_in(method))
    except (ValueError, NameError, TypeError):
        return False
    if inspect.ismethod(method) is False and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    if len(parameters) != 1 or (one := parameters[0]).name not in _ALL or one.default is not one.empty:
        return False
    if one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
        return False
    hint = hints.get(one.name)
    return one.name not in ("input", "inputs") if hint is None else (get_origin(hint) or hint) in (dict, Mapping)


def described_by(schema: Mapping[str, Any], method: Callable[..., Any]) -> int | None:
    """How many arguments the method takes by place, 0 for any by name; None where its own signature says what it takes.

    By place it is where the schema knows none of the arguments that it needs; a schema that knows none at all may only
    be incomplete, and then it is the design's own names that tell.
    """
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except ValueError:  # of some that are written in C
        return None
    if [one.kind for one in parameters] == [inspect.Parameter.VAR_KEYWORD]:
        return 0
    ordered = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    placed = [one for one in parameters if one.kind in ordered]
    taken = [one.name for one in placed]
    needed = [one.name for one in placed if one.default is inspect.Parameter.empty]
    known = schema.get("properties") or ([] if _OWN_NAMES.intersection(taken) else taken)
    if not needed or any(name in known for name in needed):
        return None
    return min(len(placed), _PLACES) if len(needed) > 1 else 1
