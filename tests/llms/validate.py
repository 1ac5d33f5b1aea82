"""Validates the bodies of requests by the types of the official clients, or by OpenAI's published specification.

    AGENTNB_BODIES=/tmp/bodies pytest tests
    python -m tests.llms.validate /tmp/bodies [--spec openapi.yaml]

The types are those of the packages openai and anthropic, with no field that they do not have. The specification is the
file openapi.yaml or openapi.json of https://github.com/openai/openai-openapi.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

SCHEMAS = {"chat": "CreateChatCompletionRequest", "responses": "CreateResponse"}
"""The names of the bodies in OpenAI's specification."""


class Body(NamedTuple):
    """A body. why: the reason for which it is not valid. fields: the names of the fields that are not valid."""

    test: str
    path: str
    body: dict[str, Any]
    why: str = ""
    fields: tuple[str, ...] = ()

    @property
    def dialect(self) -> str:
        path = self.path.partition("?")[0]
        return "anthropic" if path.endswith("/messages") else "responses" if path.endswith("/responses") else "chat"


class Results(NamedTuple):
    """What a validation found.

    valid: the number of valid bodies, by their API. with_fields: those of them that have fields of other servers.
    other: bodies that are not valid on purpose. unchecked: the number of those for which there are no types.
    """

    valid: Counter[str]
    with_fields: int
    other: list[tuple[Body, str]]
    invalid: list[tuple[Body, str]]
    unchecked: int

    def __str__(self) -> str:
        by_dialect = ", ".join(f"{number} {dialect}" for dialect, number in sorted(self.valid.items()))
        counts = (
            f"{self.valid.total()} valid ({by_dialect}; {self.with_fields} of them without their fields of other"
            f" servers), {len(self.other)} invalid on purpose"
        )
        return f"{counts}, {len(self.invalid)} invalid" + f", {self.unchecked} not checked" * bool(self.unchecked)


def read(folder: Path) -> Iterator[Body]:
    """Yield the bodies in the files of a folder."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield Body(**json.loads(line))


def validated(bodies: Iterable[Body], problem_of: Callable[[Body], str | None] | None = None) -> Results:
    """Validate bodies. problem_of: returns what is wrong with one, "" for nothing, None if it cannot tell."""
    results, with_fields, unchecked = Results(Counter(), 0, [], [], 0), 0, 0
    known: dict[tuple[str, str], str | None] = {}  # many tests send equal bodies
    for body in bodies:
        without = _without(body.body, body.fields)
        key = body.dialect, json.dumps(without)
        if key not in known:
            known[key] = (problem_of or problem_by_types)(body._replace(body=without))
        problem = known[key]
        if problem is None:
            unchecked += 1
        elif not problem:
            results.valid[body.dialect] += 1
            with_fields += without != body.body
        else:
            (results.other if body.why and not body.fields else results.invalid).append((body, problem))
    return results._replace(with_fields=with_fields, unchecked=unchecked)


def _without(value: Any, fields: Iterable[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(one, fields) for name, one in value.items() if name not in fields}
    return [_without(one, fields) for one in value] if isinstance(value, list) else value


# The types of the official clients.


def problem_by_types(body: Body) -> str | None:
    """Return what the types of the official client refuse, "" for nothing, None if the client is not installed."""
    try:
        forms = _openai_types()[body.dialect] if body.dialect != "anthropic" else _anthropic_types()
    except ImportError:
        return None
    problems = [found for form in forms if (found := _refused(form, (body.body,)))]
    return problems[0] if len(problems) == len(forms) else ""


def _refused(form: TypeAdapter[Any], given: Any) -> str:
    """Return what a type refuses."""
    try:
        return "; ".join(_read_to_end(form.validate_python(given)))
    except ValidationError as error:
        # A union has the errors of all its members: the deepest ones are those of the member that was meant.
        errors = sorted(error.errors(include_url=False), key=lambda one: -len(one["loc"]))
        told = [f"{_location(one['loc'][1:])}: {one['msg']}, not {one['input']!r:.80}" for one in errors]
        return "; ".join(told[:3])


def _location(steps: tuple[str | int, ...]) -> str:
    return ".".join(str(step) for step in steps if "[" not in str(step))


def _read_to_end(value: Any) -> Iterator[str]:
    """Read all items of a validated value, and yield the fields that are not known.

    pydantic validates the items of an Iterable only when they are read. Anthropic's types of messages allow the models
    of answers too, which accept any field.
    """
    if isinstance(value, BaseModel):
        for name in value.model_extra or ():
            yield f"{type(value).__name__}.{name}: Extra inputs are not permitted"
        value = value.__dict__
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str):
        for item in value:
            yield from _read_to_end(item)


@functools.cache
def _openai_types() -> dict[str, list[TypeAdapter[Any]]]:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    return {"chat": _forms(CompletionCreateParamsStreaming), "responses": _forms(ResponseCreateParamsStreaming)}


@functools.cache
def _anthropic_types() -> list[TypeAdapter[Any]]:
    from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming as BetaStreaming
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    return _forms(MessageCreateParamsStreaming, BetaStreaming)


def _forms(*types: Any) -> list[TypeAdapter[Any]]:
    """Return validators of types, each in a tuple: a type alone takes no configuration."""
    return [TypeAdapter(tuple[one], config=ConfigDict(extra="forbid")) for one in types]


# OpenAI's specification.


def problem_by_specification(file: Path) -> Callable[[Body], str | None]:
    """Return a function that returns what OpenAI's specification in a file refuses; None for another dialect."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from jsonschema.validators import extend
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        specification = json.loads(text)
    else:
        import yaml

        specification = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    registry = Registry().with_resource("openapi", DRAFT202012.create_resource(specification))
    # Alternatives that overlap: a user's message is valid under two of them, in the examples of the specification too.
    validator_class = extend(Draft202012Validator, {"oneOf": Draft202012Validator.VALIDATORS["anyOf"]})
    validators = {
        dialect: validator_class({"$ref": f"openapi#/components/schemas/{name}"}, registry=registry)
        for dialect, name in SCHEMAS.items()
    }

    def problem_of(body: Body) -> str | None:
        if (validator := validators.get(body.dialect)) is None:
            return None
        error = best_match(validator.iter_errors(body.body))
        return f"{error.json_path}: {error.message:.400}" if error is not None else ""

    return problem_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.llms.validate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bodies", type=Path, help="the folder that AGENTNB_BODIES named")
    parser.add_argument("--spec", type=Path, help="OpenAI's specification: openapi.yaml or openapi.json")
    arguments = parser.parse_args()
    problem_of = problem_by_specification(arguments.spec) if arguments.spec else problem_by_types
    results = validated(read(arguments.bodies), problem_of)
    for body, problem in results.other:
        print(f"on purpose ({body.why}): {body.test}\n  {body.path} {problem}")
    for body, problem in results.invalid:
        print(f"INVALID: {body.test}\n  {body.path} {problem}")
    print(results)
    return bool(results.invalid)


if __name__ == "__main__":
    sys.exit(main())
