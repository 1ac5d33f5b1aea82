"""Recorded answers of model servers, in the formats in which public projects keep them.

These are cassettes of VCR (Python, Ruby, Go, JSON), single recorded exchanges, files with the body of an answer (JSON,
server-sent events, or one event a line), recordings of llama-stack, and a folder with a `manifest.jsonl`.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SUFFIXES = {".yaml", ".yml", ".json", ".jsonl", ".sse", ".txt", ".gz"}
_HOSTS = (
    *(("api.openai.com", "openai"), ("api.anthropic.com", "anthropic"), ("generativelanguage.", "gemini")),
    *(("bedrock-mantle.", "bedrock-mantle"), ("bedrock-runtime.", "bedrock"), ("azure.com", "azure")),
    *(("openrouter.ai", "openrouter"), ("aiplatform.googleapis", "vertex"), ("groq.com", "groq"), ("x.ai", "xai")),
    *(("mistral.ai", "mistral"), ("deepseek.com", "deepseek"), ("perplexity.ai", "perplexity"), ("moonshot", "kimi")),
    *(("aliyuncs.com", "alibaba"), ("cerebras.ai", "cerebras"), ("together", "together"), ("fireworks", "fireworks")),
    *(("snowflake", "snowflake"), ("databricks", "databricks"), ("cloud.ibm.com", "watsonx"), ("z.ai", "zai")),
    *(("ai-gateway.vercel.sh", "vercel-gateway"), ("gateway.pydantic", "pydantic-gateway"), ("portkey", "portkey")),
    *(("ollama.com", "ollama-cloud"), ("avian.io", "avian"), ("crusoe", "crusoe"), ("cloudflare", "cloudflare")),
    *(("heroku", "heroku"), ("idealab", "idealab"), ("0.0.0.0", "local")),
    *(("localhost", "local"), ("127.0.0.1", "local"), ("11434", "local"), ("huggingface.co", "huggingface")),
)
_PATHS = (
    (re.compile(r"/chat/completions$"), "chat"),
    (re.compile(r"(?<!/threads)(?<!v1beta)/responses$"), "responses"),
    (re.compile(r"(?<!/batches)/v1/messages$|/anthropic/messages$"), "anthropic"),
)


@dataclass(frozen=True)
class Answer:
    """One recorded answer. `media_type` is that of the body; `file` and `number` say where it is."""

    provider: str
    dialect: str
    status: int
    media_type: str
    body: bytes
    file: Path
    number: int = 0

    @property
    def is_stream(self) -> bool:
        """True for an event stream, and for what is neither JSON nor HTML."""
        return self.media_type == "text/event-stream"

    @property
    def where(self) -> str:
        return f"{self.file}#{self.number}"


def answers(file: Path) -> Iterator[Answer]:
    """Yield the answers in a file. Nothing is yielded for a file that has none."""
    data = file.read_bytes()
    if file.suffix == ".gz":
        data = gzip.decompress(data)
    text = data.decode("utf-8", "replace")
    if file.name == "manifest.jsonl":
        yield from _of_manifest(file, text)
        return
    if (file.parent / "manifest.jsonl").exists() or (file.parent.parent / "manifest.jsonl").exists():
        return  # the manifest lists it
    if file.suffix in (".yaml", ".yml"):
        yield from _of_cassette(file, _yaml(text))
        return
    try:
        document = json.loads(text)
    except ValueError:
        yield from _of_body(file, text)
        return
    if isinstance(document, dict) and "response" in document and "request" in document:
        yield from _of_cassette(file, {"interactions": [document]})
    elif isinstance(document, dict) and ("interactions" in document or "http_interactions" in document):
        yield from _of_cassette(file, document)
    else:
        yield from _of_body(file, text)


def _yaml(text: str) -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Reads unknown tags as plain values."""

    def plain(loader: Any, suffix: str, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return loader.construct_scalar(node)
        return loader.construct_mapping(node) if isinstance(node, yaml.MappingNode) else loader.construct_sequence(node)

    Loader.add_multi_constructor("", plain)
    Loader.add_constructor("!binary", lambda loader, node: base64.b64decode(node.value))  # Ruby
    for tag in ("binary", "timestamp", "null", "bool", "int", "float", "str", "map", "seq"):
        known = yaml.SafeLoader.yaml_constructors.get(f"tag:yaml.org,2002:{tag}")
        Loader.add_constructor(f"tag:yaml.org,2002:{tag}", known if tag != "timestamp" else plain_scalar)
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError):
        return None


def plain_scalar(loader: Any, node: Any) -> Any:
    """Return a value of YAML as it is written."""
    return loader.construct_scalar(node)


def _of_cassette(file: Path, document: Any) -> Iterator[Answer]:
    if not isinstance(document, Mapping):
        return
    made = document.get("interactions") or document.get("http_interactions") or ()
    if not made and "response" in document:
        made = [document]
    for number, one in enumerate(made):
        if not isinstance(one, Mapping):
            continue
        request, response = one.get("request") or {}, one.get("response") or {}
        url = str(request.get("uri") or request.get("url") or "")
        if str(request.get("method") or "POST").upper() != "POST" or not isinstance(response, Mapping):
            continue
        path = urlsplit(url).path.rstrip("/")
        dialect = next((dialect for pattern, dialect in _PATHS if pattern.search(path)), None)
        if dialect is None:
            continue
        headers = {str(name).lower(): value for name, value in (response.get("headers") or {}).items()}
        body = _body(response, headers)
        if body is None or not body.strip():
            continue
        status = response.get("status", response.get("status_code", response.get("code", 200)))
        status = status.get("code", 200) if isinstance(status, Mapping) else status
        code = re.search(r"\d{3}", str(status))
        yield Answer(
            _provider(url, file), dialect, int(code[0]) if code else 200, _media_type(body), body, file, number
        )


def _provider(url: str, file: Path) -> str:
    host = urlsplit(url).netloc.lower()
    known = next((name for part, name in _HOSTS if part in host), None)
    return known or host.removeprefix("api.") or (_folder(file) if not url else "local")  # `<OLLAMA_URL>/chat`


def _folder(file: Path) -> str:
    """Return the provider that the folder of a file names: `packages/groq/src/__fixtures__/a.json`."""
    parts = [part.lower() for part in file.parts]
    for mark in ("packages", "fixtures", "cassettes", "vcr_cassettes", "testdata"):
        if mark in parts[:-2]:
            return parts[parts.index(mark) + 1]
    return "unknown"


def _body(response: Mapping[str, Any], headers: Mapping[str, Any]) -> bytes | None:
    """Return the body of a response, decoded."""
    if "parsed_body" in response:
        parsed = response["parsed_body"]
        return parsed.encode() if isinstance(parsed, str) else json.dumps(parsed, default=str).encode()
    body = response.get("body", response.get("content"))
    if isinstance(body, Mapping) and "base64_string" in body:
        body = base64.b64decode(body["base64_string"])
    elif isinstance(body, Mapping) and "string" in body:
        body = body["string"]
    elif isinstance(body, Mapping) and "__data__" in body:  # llama-stack
        return json.dumps(body["__data__"]).encode()
    elif isinstance(body, list) and all(isinstance(one, Mapping) and "__data__" in one for one in body):
        return _as_stream([one["__data__"] for one in body])
    elif isinstance(body, Mapping):
        return json.dumps(body).encode()
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    if not isinstance(body, bytes):
        return None
    return _decompressed(body, str(headers.get("content-encoding", "")))


def _decompressed(body: bytes, encoding: str) -> bytes | None:
    if body[:2] == b"\x1f\x8b":
        return gzip.decompress(body)
    try:
        if "deflate" in encoding:
            return zlib.decompress(body)
        if "br" in encoding and body[:1] not in (b"{", b"[", b"d", b"e", b":"):
            import brotli

            plain: bytes = brotli.decompress(body)
            return plain
    except (ImportError, ValueError, zlib.error, RuntimeError):
        return None
    return body


def _as_stream(events: list[Any]) -> bytes:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if isinstance(event, Mapping) and event.get("type") else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n")
    is_chat = any(isinstance(event, Mapping) and "choices" in event for event in events)
    return "".join([*lines, "data: [DONE]\n\n" * is_chat]).encode()


def _media_type(body: bytes) -> str:
    start = body.lstrip()[:1]
    return "application/json" if start in (b"{", b"[") else "text/html" if start == b"<" else "text/event-stream"


def _of_body(file: Path, text: str) -> Iterator[Answer]:
    """Yield the answer that a file is: JSON, server-sent events, or one event a line."""
    stripped = text.strip()
    if stripped.startswith(("data:", "event:", ":")):
        first = next((line[5:] for line in text.splitlines() if line.startswith("data:")), "")
        try:
            dialect = _dialect(json.loads(first))
        except ValueError:
            return
        if dialect is not None:
            yield Answer(_folder(file), dialect, 200, _media_type(text.encode()), text.encode(), file)
        return
    try:
        document = json.loads(stripped)
    except ValueError:
        lines = [line.removeprefix("data:").strip() for line in stripped.splitlines() if line.strip()]
        try:
            events = [json.loads(line) for line in lines if line != "[DONE]"]
        except ValueError:
            return
        # A file may have the answers of several turns.
        starts = [n for n, one in enumerate(events) if isinstance(one, dict) and one.get("type") in _FIRST_EVENTS]
        for number, (start, end) in enumerate(pairwise([*(starts if len(starts) > 1 else [0]), len(events)])):
            if (dialect := _dialect(events[start])) is not None:
                body = _as_stream(events[start:end])
                yield Answer(_folder(file), dialect, 200, _media_type(body), body, file, number)
        return
    if (dialect := _dialect(document)) is not None:
        yield Answer(_folder(file), dialect, 200, "application/json", stripped.encode(), file)


_FIRST_EVENTS = ("message_start", "response.created")


def _dialect(event: Any) -> str | None:
    """Return the dialect of an answer by its first event."""
    if not isinstance(event, dict):
        return None
    kind, form = str(event.get("type", "")), event.get("object")
    if isinstance(event.get("choices"), list) and form in ("chat.completion", "chat.completion.chunk"):
        return "chat"
    if form == "response" or kind.startswith("response."):
        return "responses"
    return "anthropic" if kind == "message_start" or (kind == "message" and "content" in event) else None


def _of_manifest(file: Path, text: str) -> Iterator[Answer]:
    for number, line in enumerate(text.splitlines()):
        one = json.loads(line)
        body = (file.parent / one["file"]).read_bytes()
        dialect = "chat" if one["dialect"] == "openai" else one["dialect"]
        where = file.parent / one["file"]
        yield Answer(one["provider"], dialect, one["status"], _media_type(body), body, where, number)
