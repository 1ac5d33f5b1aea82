"""A client in a pickle has the names of environment variables, and no key."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from agentnb.core.errors import UsageError
from agentnb.llms import Anthropic, OpenAI

KEY = "a-key-that-stays-here"
URL = "http://server.example/v1"

KEYS: list[tuple[str, str, dict[str, Any]]] = [
    ("base_url", f"http://me:{KEY}@server.example/v1", {}),
    ("base_url", f"{URL}?key={KEY}", {}),
    ("base_url", f"{URL}?sig={KEY}&api-version=5", {}),
    ("headers", URL, {"headers": {"X-Api-Key": KEY}}),
    ("headers", URL, {"headers": {"X-Lab": f"Bearer {KEY}"}}),
    ("extra_body", URL, {"extra_body": {"clientSecret": KEY}}),
    ("tools", URL, {"tools": [{"type": "mcp", "authorization": KEY}]}),
    ("tools", URL, {"tools": [{"type": "mcp", "headers": {"X-Api-Key": KEY}}]}),
    ("tools", URL, {"tools": [{"type": "mcp", "server_url": f"https://me:{KEY}@x.example/mcp"}]}),
]


@pytest.mark.parametrize("kind", [OpenAI, Anthropic])
@pytest.mark.parametrize(("argument", "url", "options"), KEYS)
def test_a_key_that_was_given_as_text_is_not_pickled(
    kind: type[OpenAI | Anthropic], argument: str, url: str, options: dict[str, Any]
) -> None:
    llm = kind("m", url, **options)
    for given in (llm, llm.with_options(temperature=0)):
        with pytest.raises(UsageError, match=f"{argument}= has a key.*environment variable") as refused:
            pickle.dumps(given)
        assert KEY not in str(refused.value)


def test_a_key_of_a_variable_is_pickled_as_the_name_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", KEY)
    assert KEY.encode() not in pickle.dumps(OpenAI("m", URL, api_key_env="LAB_API_KEY"))


@pytest.mark.parametrize("url", [URL, f"{URL}?api-version=2025-01-01"])
@pytest.mark.parametrize("options", [{"headers": {"X-Title": "a lab"}}, {"extra_body": {"stop_token": "</end>"}}])
def test_a_client_without_keys_is_pickled(url: str, options: dict[str, Any]) -> None:
    llm = OpenAI("m", url, **options)
    assert repr(pickle.loads(pickle.dumps(llm))) == repr(llm)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_in_the_same_process_may_have_keys(copied: Any) -> None:
    llm = OpenAI("m", URL, headers={"X-Api-Key": KEY}, extra_body={"api_key": KEY})
    assert copied(llm).options == llm.options
