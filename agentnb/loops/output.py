"""Output: the type that the output of a loop must have, and how an answer of a model is checked against it.

The model is sent the JSON schema of the type with each request (`schema`), and the client passes it on in the way that
its server has. An answer that does not fit is mended once for each message of the user: the model is told what does not
fit. If the next answer does not fit either, the run ends with an error. The recording has the output as JSON data;
awaiting the run returns it as an object of the type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from agentnb.core.errors import UsageError
from agentnb.core.events import ErrorInfo, Event, MessageAdded, ModelEnd, RunEnd
from agentnb.core.loop import Design
from agentnb.core.messages import Message, text_of
from agentnb.core.state import State
from agentnb.json_schema import argument_faults, check_schema, no_schema_reason, schema_faults
from agentnb.llms.adapt import takes_schema
from agentnb.llms.conversion import close_objects, is_strict
from agentnb.tools.signature import checked_type

_WRAPPED = "value"
"""The only field of the object that is asked for if the type is not an object. Providers accept no other schema."""
_QUOTED = 300
"""The maximum number of characters of an answer in an error."""
_FORMS: Sequence[Mapping[str, Any]] = ({}, {"by_alias": True}, {"by_alias": True, "round_trip": True})
"""The forms in which an object can be recorded, as arguments of pydantic's `dump_python`."""
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.DOTALL)


class OutputType:
    """The type of a loop's output, given as a JSON schema or as a type that pydantic can validate, or None.

    Raises UsageError if it is neither.
    """

    def __init__(self, output: Any) -> None:
        self.schema: dict[str, Any] | None = None
        self._adapter: TypeAdapter[Any] | None = None
        try:
            if isinstance(output, Mapping):
                self.schema = dict(output)
                check_schema(self.schema)
            elif output is not None:
                self._adapter = output if isinstance(output, TypeAdapter) else TypeAdapter(checked_type(output))
                self.schema = self._adapter.json_schema()
        except Exception as error:  # pydantic raises several kinds for a type without a schema
            raise UsageError(
                f"output= takes a JSON schema, or a type that has one: {no_schema_reason(error)}."
            ) from None

    def validate(self, value: Any) -> tuple[Any, str | None]:
        """Return a value of JSON data as it is recorded, and the fault if it does not fit, else None."""
        if self._adapter is not None:
            try:
                return self._recorded(self.instance(value), value), None
            except ValidationError as error:
                return None, f"Invalid output: {argument_faults(error, 'output')}."
            except ValueError as error:  # of a user's serializer
                return None, f"Invalid output: {error}"
        if self.schema is not None and (faults := schema_faults(self.schema, value)):
            return None, f"Invalid output: {'; '.join(faults)}."
        return value, None

    def instance(self, recorded: Any) -> Any:
        """Return a recorded output as an object of the type; unchanged if the type was given as a JSON schema."""
        if self._adapter is None:
            return recorded
        try:
            text = to_json(recorded, inf_nan_mode="constants")
        except ValueError:  # half of a surrogate pair
            return self._adapter.validate_python(recorded)
        return self._adapter.validate_json(text)  # a strict type accepts a date in JSON as a string

    def _recorded(self, instance: Any, value: Any) -> Any:
        """Return an object of the type as it is recorded. value: the JSON data that it was made of."""
        assert self._adapter is not None
        return self._adapter.dump_python(instance, mode="json")


class StructuredOutput(OutputType):
    """The output of a loop whose last answer is the output.

    output: a JSON schema, or a type that pydantic can validate. Raises UsageError if it is neither.
    """

    def __init__(self, output: Any) -> None:
        super().__init__(output)
        assert self.schema is not None
        self._is_wrapped = self.schema.get("type") != "object"
        self.request_schema = self.schema
        """The schema that the model is sent."""
        if self._is_wrapped:
            inside = dict(self.schema)
            definitions: dict[str, Any] = {
                name: inside.pop(name) for name in ("$defs", "definitions") if name in inside
            }
            self.request_schema = {
                "type": "object",
                "properties": {_WRAPPED: inside},
                "required": [_WRAPPED],
                "additionalProperties": False,
                **definitions,
            }
        # Pydantic leaves objects open, and OpenAI enforces only closed ones.
        if self._adapter is not None:
            closed = close_objects(self.request_schema)
            self.request_schema = closed if is_strict(closed) else self.request_schema

    def instructions(self, llm: Any) -> str | None:
        """Return the text that asks for the output, for a model that takes no schema; None for any other model."""
        return None if takes_schema(llm) else f"{_ANSWER} {json.dumps(self.request_schema)}"

    def next_event(self, state: State, reply: ModelEnd, *, may_ask: bool) -> Event:
        """Return the end of the run with the output, or the message that tells the model what does not fit.

        reply: an answer without calls. may_ask: False if the model cannot be asked again.
        """
        if reply.cut_off is not None:
            words = text_of(reply.message.content).strip()
            said = f" It was: {words[:_QUOTED]}" if words else ""
            return _failed(f"The answer was cut off ({reply.cut_off}), so it has no output.{said}")
        value, fault = self._read(text_of(reply.message.content))
        if fault is None:
            return RunEnd(reason="completed", output=value)
        last = next((message for message in reversed(state.messages) if message.role == "user"), None)
        if not may_ask or (last is not None and "output_fault" in last):
            return _failed(fault)
        text = f"{fault} {_AGAIN} {json.dumps(self.request_schema)}"
        return MessageAdded(message=Message(role="user", content=text, output_fault=fault))

    def partial(self, reply: ModelEnd | None) -> Any:
        """Return the output in the last answer of a run that ends early; None if it has none."""
        if reply is None or reply.message.tool_calls:
            return None
        return self._read(text_of(reply.message.content))[0]

    def _recorded(self, instance: Any, value: Any) -> Any:
        """Return the first form of an object that can be read again: a type may have aliases or computed fields."""
        assert self._adapter is not None
        whole = self._adapter.dump_json(instance)
        for options in _FORMS:
            form = self._adapter.dump_python(instance, mode="json", **options)
            with suppress(ValidationError):
                if self._adapter.dump_json(self.instance(form)) == whole:
                    return form
        return value

    def _read(self, text: str) -> tuple[Any, str | None]:
        """Return the output in an answer as it is recorded, and the fault if there is none or it does not fit."""
        fenced = _FENCE.search(text)
        for found in (text, fenced[1] if fenced else "", text[text.find("{") : text.rfind("}") + 1]):
            try:
                value = json.loads(found, strict=False)  # a model may write line ends into texts as they are
                json.dumps(value, allow_nan=False)  # JSON has no NaN, and 1e999 is read as infinity
            except (ValueError, RecursionError):
                continue
            break
        else:
            if self._is_wrapped and (said := self.validate(text.strip()))[1] is None:
                return said  # a text or a date, without quotation marks
            return None, "Invalid output: the answer is not JSON."
        if self._is_wrapped:
            if self.schema == {"type": "string"} and not isinstance(value, (str, Mapping)):
                return text.strip(), None  # a text that happens to be JSON
            if isinstance(value, Mapping) and set(value) == {_WRAPPED}:
                return self.validate(value[_WRAPPED])
            read, fault = self.validate(value)  # from a model that has ignored the object around it
            return read, fault and f"{fault} The answer must be an object with the field {_WRAPPED!r}."
        return self.validate(value)


def schema_of(output: StructuredOutput | None) -> dict[str, Any]:
    """Return the option of a request that has the schema of the output; empty without an output."""
    return {"schema": output.request_schema} if output is not None else {}


def prompt_for(output: StructuredOutput | None, loop: Design) -> str | None:
    """Return the system prompt of a loop, with instructions if its model takes no schema."""
    added = output.instructions(loop.llm) if output is not None else None
    return "\n\n".join(part for part in (loop.system_prompt, added) if part) if added else loop.system_prompt


_ANSWER = "Answer with one JSON object and nothing else. It must follow this schema:"
_AGAIN = "Answer again, with one JSON object and nothing else. It must follow this schema:"


def _failed(message: str) -> RunEnd:
    return RunEnd(reason="error", error=ErrorInfo(type="InvalidOutput", message=message))
