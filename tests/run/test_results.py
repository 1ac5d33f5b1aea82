"""Results of calls as they are sent to a model: data as JSON text, blocks and pictures unchanged, with a limit.

The event of the result has all of it.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas as pd
import pytest
from PIL import Image
from pydantic import BaseModel

from agentnb import Agent, ExecutionLoop, SessionLoop, Snapshot, Store, restore, tool
from agentnb.core.events import CallEnd
from agentnb.testing import ScriptedLLM, call

DESIGNS = [SessionLoop, Agent]


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, kind)
    return file.getvalue()


PNG = encoded("PNG")
DATA = base64.b64encode(PNG).decode()
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}


def told_of(result: Any, design: Any = SessionLoop) -> Any:
    """Return the content of a result as it is sent to the model."""

    @tool
    def look() -> object:
        return result

    llm = ScriptedLLM([[call("look")], "end"])
    design(llm, [look]).start("go").result(10)
    return llm.requests[1].messages[-1]["content"]


class Feature(BaseModel):
    type: str
    name: str


RECORDS = {
    "files": [{"type": "file", "name": "a.txt"}, {"type": "dir", "name": "data"}],
    "features": [{"type": "Feature", "id": 1, "name": "Elbe"}],
    "models": [Feature(type="Feature", name="Elbe")],
    "rows": pd.DataFrame({"type": ["text", "image"], "n": [1, 2]}).to_dict("records"),
    "a text without text": [{"type": "text", "value": 4211}],
    "a text with a place": [{"type": "text", "text": "Elbe", "bbox": [1, 2, 3, 4]}],
    "a number for a text": [{"type": "text", "text": 5}],
    "a call": [{"type": "tool_use", "id": "x", "name": "rm", "input": {}}],
    "a thought": [{"type": "thinking", "thinking": "so", "signature": "s"}],
    "a result of a call": [{"type": "tool_result", "tool_use_id": "x", "content": "done"}],
    "a picture by its address alone": [{"type": "image", "url": "http://x/marker.png"}],
    "a picture that is none": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}],
    "bytes that are none": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}],
    "a document without content": [{"type": "document", "title": "Annual report"}],
    "a block beside a record": [{"type": "text", "text": "two files"}, {"type": "file", "name": "a.txt"}],
}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS)
def test_records_with_a_key_named_type_are_data(records: Any, design: Any) -> None:
    told = told_of(records, design)
    assert json.loads(told) == [dict(record) for record in records]


async def test_records_in_the_answer_of_a_person_are_data() -> None:
    llm = ScriptedLLM([[call("look", id="c")], "end"])
    run = SessionLoop(llm, [tool(approve=True, name="look")(lambda: None)]).start("go")
    async for event in run:
        if event.type == "approval_request":
            run.answer("c", RECORDS["features"])
    assert json.loads(llm.requests[1].messages[-1]["content"]) == RECORDS["features"]


BLOCKS = [
    [{"type": "text", "text": "two files"}],
    [{"type": "text", "text": "a plot"}, PICTURE],
    [{"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}],
    [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "The report."}}],
    [{"type": "search_result", "source": "a.txt", "title": "A", "content": [{"type": "text", "text": "found"}]}],
]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_known_blocks_are_sent_unchanged(blocks: Any, design: Any) -> None:
    assert told_of(blocks, design) == blocks


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": DATA, "mimeType": "image/png"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": DATA}},
    ],
)
def test_pictures_in_other_forms_are_sent_in_one_form(block: Any) -> None:
    assert told_of([block]) == [PICTURE]


class Shown:
    """An object that shows itself as a picture, as IPython's do."""

    def _repr_png_(self) -> bytes:
        return PNG


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("made", [PNG, Shown(), PICTURE], ids=["bytes", "shown", "block"])
def test_a_picture_is_sent_as_a_block(made: Any, design: Any) -> None:
    assert told_of(made, design) == [PICTURE]


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (Image.new("RGB", (2, 2)), "image/png"),
        (Image.new("CMYK", (2, 2)).convert("P"), "image/png"),
        (encoded("JPEG"), "image/jpeg"),
        (encoded("GIF"), "image/gif"),
        (encoded("WEBP"), "image/webp"),
        (matplotlib.figure.Figure(), "image/png"),
        (matplotlib.figure.Figure().subplots(), "image/png"),
    ],
)
def test_a_picture_object_of_a_library_is_sent_as_a_block(made: Any, kind: str) -> None:
    (block,) = told_of(made)
    assert block["source"]["media_type"] == kind
    assert Image.open(io.BytesIO(base64.b64decode(block["source"]["data"])))


def test_bytes_that_are_not_a_picture_are_sent_as_text() -> None:
    assert told_of("Grüße".encode()) == "Grüße"


def test_texts_between_pictures_are_sent_as_text_blocks() -> None:
    assert told_of(["before", PNG, "after"]) == [
        {"type": "text", "text": "before"},
        PICTURE,
        {"type": "text", "text": "after"},
    ]


def test_pictures_inside_data_follow_the_data_which_contains_their_numbers() -> None:
    told = told_of({"rows": 3, "plots": [PNG, PNG]})
    assert told == [{"type": "text", "text": '{"rows":3,"plots":["[image 1]","[image 2]"]}'}, PICTURE, PICTURE]


def test_a_picture_in_the_context_of_an_execution_loop_is_sent_as_a_block() -> None:
    turns = [{"calls": [{"_tool": "draw", "_outputPath": "†state.plot"}]}, {"output": "end"}]
    llm = ScriptedLLM([json.dumps(turn) for turn in turns])
    ExecutionLoop(llm, [{"_tool": "draw"}], activities={"draw": lambda *_: PNG}).start(None).result(10)
    told = [message["content"] for message in llm.requests[1].messages if isinstance(message["content"], list)]
    assert [block for blocks in told for block in blocks][-1] == PICTURE


MOST = 100_000


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("result", ["long " * 50_000, ["long"] * 50_000, [{"type": "text", "text": "long " * 50_000}]])
def test_a_model_is_sent_at_most_100_000_characters_of_a_result(result: Any, design: Any) -> None:
    told = told_of(result, design)
    text = told if isinstance(told, str) else told[0]["text"]
    assert 99_000 < len(text) <= MOST
    assert text.endswith("characters of this result are left out here.]")


def test_the_model_of_an_execution_loop_is_sent_at_most_that_many_characters() -> None:
    turns = [{"calls": [{"_tool": "read", "_outputPath": "†state.text"}]}, {"output": "end"}]
    llm = ScriptedLLM([json.dumps(turn) for turn in turns])
    ExecutionLoop(llm, [{"_tool": "read"}], activities={"read": lambda *_: "long " * 50_000}).start(None).result(10)
    assert max(len(message["content"]) for message in llm.requests[1].messages) <= MOST


def long_run(store: Store | None = None, **options: Any) -> Any:
    loop = SessionLoop(ScriptedLLM([[call("read")], "end"]), [tool(name="read")(lambda: "long " * 50_000)])
    for name, value in options.items():
        setattr(loop, name, value)
    run = loop.start("go", store=store, name="long" if store is not None else None)
    run.result(10)
    return run


def test_the_event_and_the_store_have_the_whole_long_result(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    long_run(store)
    (end,) = (event for event in store.load("long").events if isinstance(event, CallEnd))
    assert len(end.result) == 250_000


def test_max_result_chars_is_an_option_of_the_loop() -> None:
    assert 900 < len(long_run(max_result_chars=1000).messages[2].content) <= 1000
    assert len(long_run(max_result_chars=None).messages[2].content) == 250_000


def test_a_restored_run_sends_results_with_the_same_limit(tmp_path: Path) -> None:
    run = long_run(max_result_chars=1000)
    run.snapshot().save(tmp_path / "run.json")
    again = restore(Snapshot.load(tmp_path / "run.json"), SessionLoop(ScriptedLLM([]), [tool(name="read")(lambda: "")]))
    assert again.messages == run.messages
