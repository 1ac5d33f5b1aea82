"""Two sessions of a coding agent as Claude Code records them, the project that it works on, and tools that work on it.

The sessions are made up. In both the agent has the same task. `write(folder)` writes them as JSON lines.
"""

import json
from pathlib import Path
from typing import Any

from agentnb import tool

TASK = "test_median fails. Find the mistake and correct it."

STATS = """\
def median(values):
    values = sorted(values)
    return values[len(values) // 2]
"""
TEST = """\
from stats import median


def test_median():
    assert median([1, 2, 3, 4]) == 2.5
"""
FAILED = "FAILED test_stats.py::test_median - assert 3 == 2.5"
PASSED = "1 passed"
REPORT = "report.py:12: # we print the upper median, see issue 8"
README = "README.md:7: median: the mean of the two middle values if their number is even"

CORRECTED = "return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2"
FIX = {"file_path": "stats.py", "old_string": "return values[len(values) // 2]", "new_string": CORRECTED}
OTHER_TEST = {"file_path": "test_stats.py", "old_string": "== 2.5", "new_string": "== 3"}

LOOK = [
    ("I run the tests first.", "Bash", {"command": "pytest -q"}, FAILED),
    ("Now the function.", "Read", {"file_path": "stats.py"}, STATS),
]
SEARCH = ("Which median is meant?", "Bash", {"command": "grep -rn median --include=*.md --include=*.py ."})

GOOD = [
    *LOOK,
    (*SEARCH, f"{README}\n{REPORT}"),
    ("The README says the mean of the two. I correct the function.", "Edit", FIX, "The file was changed."),
    ("I run the tests again.", "Bash", {"command": "pytest -q"}, PASSED),
]
BAD = [
    *LOOK,
    (*SEARCH, REPORT),
    ("The upper median is meant, so the test is wrong. I correct it.", "Edit", OTHER_TEST, "The file was changed."),
    ("I run the tests again.", "Bash", {"command": "pytest -q"}, PASSED),
]
ENDS = {"good": "median() now returns the mean of the two middle values.", "bad": "All tests pass now."}


def write(folder: Path) -> None:
    """Write the two sessions into a folder: good.jsonl and bad.jsonl."""
    for name, steps in (("good", GOOD), ("bad", BAD)):
        lines = [_line(0, "user", TASK)]
        for number, (text, used, arguments, result) in enumerate(steps, 1):
            call = {"type": "tool_use", "id": f"toolu_{number}", "name": used, "input": arguments}
            lines.append(_line(2 * number - 1, "assistant", [{"type": "text", "text": text}, call]))
            told = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": result}
            lines.append(_line(2 * number, "user", [told]))
        lines.append(_line(2 * len(steps) + 1, "assistant", [{"type": "text", "text": ENDS[name]}]))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _line(number: int, kind: str, content: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {"input_tokens": 800 + 120 * number, "output_tokens": 40}
        message |= {"id": f"msg_{number}", "type": "message", "model": "claude-made-up", "usage": usage}
    return {
        "uuid": f"u{number}",
        "parentUuid": f"u{number - 1}" if number else None,
        "sessionId": "made-up",
        "version": "2.0.0",
        "isSidechain": False,
        "type": kind,
        "message": message,
        "timestamp": f"2026-11-02T09:{number // 6:02}:{10 * (number % 6):02}.000Z",
    }


def tools() -> tuple[dict[str, str], list[Any]]:
    """Return the files of the project as they were, and the agent's tools, which work on these files only."""
    files = {"stats.py": STATS, "test_stats.py": TEST}

    @tool(name="Edit")
    def edit(file_path: str, old_string: str, new_string: str) -> str:
        """Replace text in a file."""
        files[file_path] = files[file_path].replace(old_string, new_string)
        return "The file was changed."

    @tool(name="Bash")
    def bash(command: str) -> str:
        """Run a command. Here it only knows how to run the tests."""
        if not command.startswith("pytest"):
            return f"{command.split()[0]}: not available here"
        namespace: dict[str, Any] = {}
        exec(files["stats.py"] + files["test_stats.py"].replace("from stats import median", ""), namespace)
        try:
            namespace["test_median"]()
        except AssertionError:
            return f"FAILED test_stats.py::test_median - median([1, 2, 3, 4]) is {namespace['median']([1, 2, 3, 4])}"
        return PASSED

    return files, [edit, bash]
