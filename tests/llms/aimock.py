"""The `@copilotkit/aimock` server, which mocks providers' APIs: installed once into tests/.cache, started once for
a session.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "@copilotkit/aimock@1.43.0"
HOME = Path(__file__).parents[1] / ".cache" / "aimock-1.43.0"

OPENAI_MODEL, RESPONSES_MODEL, ANTHROPIC_MODEL = (
    "o3",
    "o4-mini",
    "claude-sonnet-4-5",
)  # in strict mode only reasoning models reason
WEATHER = {"name": "get_weather", "arguments": {"city": "Zürich"}}
TIME = {"name": "get_time", "arguments": {"zone": "日本"}}
BUSY = {"error": {"message": "Slow down.", "type": "rate_limit_error"}, "status": 429}
FIXTURES = {
    "fixtures": [
        {"match": {"userMessage": "say hello"}, "response": {"content": "Grüezi, 世界! 👋 How are you?"}},
        {"match": {"userMessage": "two tools"}, "response": {"toolCalls": [WEATHER, TIME]}},
        {"match": {"userMessage": "think"}, "response": {"reasoning": "Let me see.", "content": "Forty-two."}},
        {"match": {"userMessage": "too long"}, "response": {"content": "It was a", "finishReason": "length"}},
        *(
            {"match": {"userMessage": "busy once", "model": model, "sequenceIndex": index}, "response": response}
            for model in (OPENAI_MODEL, RESPONSES_MODEL, ANTHROPIC_MODEL)
            for index, response in enumerate([BUSY, {"content": "Now."}])
        ),
        {
            "match": {"userMessage": "wrong key"},
            "response": {"error": {"message": "Bad key.", "type": "authentication_error"}, "status": 401},
        },
        {"match": {"userMessage": "garbled"}, "response": {"content": "x"}, "chaos": {"malformedRate": 1}},
        {"match": {"userMessage": "hang up"}, "response": {"content": "x"}, "chaos": {"disconnectRate": 1}},
        *(
            {
                "match": {"userMessage": "die", "model": model},
                "response": {"content": "This sentence is cut off in the middle of it."},
                "truncateAfterChunks": chunks,
                "latency": 30,  # without it, the connection is closed before the first chunk is sent
            }
            for model, chunks in ((OPENAI_MODEL, 5), (RESPONSES_MODEL, 12), (ANTHROPIC_MODEL, 5))
        ),
    ]
}


@dataclass(frozen=True)
class AIMock:
    url: str


@contextmanager
def running_aimock() -> Iterator[AIMock]:
    program = HOME / "node_modules" / ".bin" / "llmock"
    if not program.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(HOME), PACKAGE]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    with tempfile.TemporaryDirectory() as folder:
        fixtures = Path(folder) / "fixtures.json"
        fixtures.write_text(json.dumps(FIXTURES), encoding="utf-8")
        command = ["node", str(program), "-p", "0", "-f", str(fixtures), "-c", "8", "--strict"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                yield AIMock(_address(process))
            finally:
                process.terminate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "http://127.0.0.1:" in line:
            return "http://127.0.0.1:" + line.partition("http://127.0.0.1:")[2].split("/")[0].split()[0]
    raise AssertionError("aimock did not start: " + "".join(said))
