"""An error in the body of an `async for` is the last line that a script prints, without other complaints."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, http.server, json, sys, threading, time
from agentnb import Agent, ExecutionLoop, LoopAgent, SessionLoop
from agentnb.llms import OpenAI

class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for word in range(100):
                said = json.dumps({"choices": [{"index": 0, "delta": {"content": f"{word} "}}]})
                self.wfile.write(f"data: {said}\\n\\n".encode())
                self.wfile.flush()
                time.sleep(0.01)
        except OSError:
            pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()

def events(llm):
    return {
        "run": lambda: SessionLoop(llm).start("go"),
        "session": lambda: SessionLoop(llm).run("go"),
        "agent": lambda: Agent(llm).execute("go"),
        "execution": lambda: ExecutionLoop(llm, native=True).start("go"),
        "loop_agent": lambda: LoopAgent("l", [SessionLoop(llm)], max_iterations=1).start("go"),
        "model": lambda: llm.stream([{"role": "user", "content": "go"}]),
    }[sys.argv[1]]()

async def main():
    llm = OpenAI("m", base_url=f"http://127.0.0.1:{server.server_port}/v1")
    kept = events(llm)
    seen = 0
    async for event in (kept if sys.argv[2] == "kept" else events(llm)):
        seen += 1
        if seen == 7:
            raise ValueError("mine")

asyncio.run(main())
"""


@pytest.mark.parametrize("kept", ["kept", "dropped"])
@pytest.mark.parametrize("what", ["run", "session", "agent", "execution", "loop_agent", "model"])
def test_an_error_in_the_body_of_async_for_is_the_last_line_without_other_complaints(what: str, kept: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, what, kept], capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: mine\n")
    assert done.stderr.count("Traceback") == 1
    assert "asynchronous generator" not in done.stderr
