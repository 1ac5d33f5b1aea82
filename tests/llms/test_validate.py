"""The validation of the bodies of requests: what it refuses, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.llms.validate import Body, problem_by_specification, problem_by_types, validated

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
USER = {"role": "user", "content": [{"type": "text", "text": "a"}]}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "stream": True, "messages": [USER]},
    "responses": {"model": "m", "stream": True, "input": [{"role": "user", "content": "a"}]},
    "anthropic": {"model": "m", "stream": True, "max_tokens": 5, "messages": [USER]},
}


@pytest.mark.sampled(1000)  # to import the packages takes seconds
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dialect", PATHS)
def test_a_body_is_refused_for_a_wrong_field_and_for_one_too_many(dialect: str) -> None:
    pytest.importorskip("anthropic" if dialect == "anthropic" else "openai")
    body = Body("test", PATHS[dialect], BODIES[dialect])
    assert problem_by_types(body) == ""
    inside = json.loads(json.dumps(body.body).replace('"a"', '"a", "odd": 1', 1))
    for wrong in (body.body | {"odd": 1}, inside):
        assert "odd: Extra inputs are not permitted" in str(problem_by_types(body._replace(body=wrong)))
        assert problem_by_types(body._replace(body=wrong)) is not None
        assert len(validated([body._replace(body=wrong)]).invalid) == 1
        assert validated([body._replace(body=wrong, fields=("odd",))]).with_fields == 1
        assert len(validated([body._replace(body=wrong, why="a test of it")]).other) == 1


def test_a_body_is_validated_by_a_specification(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    message = {"type": "object", "required": ["role"]}
    request = {"properties": {"messages": {"items": {"oneOf": [{"$ref": "#/components/schemas/Message"}, message]}}}}
    schemas = {"CreateChatCompletionRequest": request, "CreateResponse": {}, "Message": message}
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps({"components": {"schemas": schemas}}))
    problem_of = problem_by_specification(file)
    body = Body("test", PATHS["chat"], BODIES["chat"])
    assert problem_of(body) == ""  # it is valid under both alternatives
    assert problem_of(body._replace(path=PATHS["anthropic"])) is None
    assert "$.messages[0]" in str(problem_of(body._replace(body={"messages": [{}]})))
