from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentnb import widgets
from agentnb.core.events import ApprovalDecision, CallEnd
from agentnb.errors import UsageError
from agentnb.run.approvals.decisions import Decisions
from agentnb.testing import delay, text
from agentnb.widgets import (
    COMM_IDS,
    FORKS,
    PARTS,
    SNAPSHOTS,
    Approvals,
    Controls,
    EventStream,
    Messages,
    Panel,
    Progress,
    StateDiagram,
    Timeline,
    Trace,
    Usage,
)
from agentnb.widgets.comms import listen
from agentnb.widgets.views.rows import TAIL
from tests.widgets.support import (
    HOSTILE,
    Outbox,
    asking,
    asking_everywhere,
    asking_inside,
    engine,
    identified,
    results,
    session,
    until,
    waiting,
)


class Shown:
    """A panel whose messages are kept, and whose page is the test."""

    def __init__(self, run: Any, kind: Callable[[Any], Panel] = Panel) -> None:
        self.run, self.outbox = run, Outbox()
        outbox = self.outbox

        class Kept(Panel):
            def send(self, content: Any, buffers: Any = None) -> None:
                outbox.send(content)

        self.panel = Kept(run)

    def click(self, type: str, **message: Any) -> dict[str, Any]:
        """Send a message of the page's and give the answer to it."""
        token = f"t{len(self.outbox.messages)}"
        self.panel._receive(self.panel, {"type": type, "token": token, **message}, [])
        answers: list[dict[str, Any]] = []

        def answered() -> bool:
            answers[:] = [m for m in self.outbox.messages if m.get("token") == token]
            return bool(answers)

        self.outbox.until(answered)
        return answers[0]

    def decide(self, decision: str, number: int = 0, **more: Any) -> dict[str, Any]:
        question = self.panel._questions.waiting(self.run)[number]
        return self.click("decision", **identified(question), decision=decision, **more)

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition that follows from the events of the run is true."""
        self.panel.observe(lambda change: self.outbox.send({"type": "trait", "name": change["name"]}))
        self.panel._feed.wake()
        self.outbox.until(condition)


@pytest.fixture
def show() -> Iterator[Callable[[Any], Shown]]:
    made: list[Shown] = []

    def make(run: Any) -> Shown:
        made.append(Shown(run))
        return made[-1]

    yield make
    for shown in made:
        shown.run.cancel()
        shown.panel.close()


def test_the_status_follows_the_run(show: Callable[[Any], Shown]) -> None:
    run = session(["Hello."])
    shown = show(run)
    assert shown.panel.status["standing"] == "not started"
    assert shown.panel.status["can"]["Play"]
    run.result(30)
    shown.until(lambda: shown.panel.status["over"])
    status = shown.panel.status
    assert (status["standing"], status["phase"], status["turn"]) == ("completed", "done", 1)
    assert ["idle", "listening"] in status["path"]
    assert not any(status["can"][name] for name in ("Step", "Play", "Pause", "Cancel", "Steer", "Follow up"))


def waiting_inside(path: str = "/a", **arguments: Any) -> Any:
    run = asking_inside(path, **arguments)
    run.play()
    until(lambda: run.pending)
    return run


def test_the_status_includes_nested_loops_and_their_usage(show: Callable[[Any], Shown]) -> None:
    run = waiting_inside()
    shown = show(run)
    status = shown.panel.status
    [nested] = status["nested"]
    assert status["phase"] == "executing"
    assert (nested["path"], nested["phase"], nested["running"]) == ("worker", "acting", True)
    assert nested["input"] == "Write the draft"
    assert ["thinking", "acting"] in nested["arrows"]
    # Calls of the engine itself do not count; that of the worker waits, and was asked for.
    assert (status["turn"], status["requests"], status["calls"]) == (0, 1, 1)
    until(lambda: shown.panel.tables)
    table = shown.panel.tables[nested["table"]]
    assert table["phases"] == ["idle", "listening", "thinking", "acting", "done"]
    assert "listening" in table["diagram"]
    assert "context_fetching" in shown.panel.diagram
    assert "executing > worker: acting" in shown.panel._repr_mimebundle_()[0]["text/plain"]


def test_a_failing_nested_loop_is_named(show: Callable[[Any], Shown]) -> None:
    run = engine([{"type": "nonsense"}], "Drafted.", "Proof-read.")
    shown = show(run)
    shown.click("control", action="Play")
    shown.until(lambda: shown.panel.status["standing"] == "model failed")
    assert shown.panel.status["problem"].startswith("worker: ")


def test_a_nested_call_has_the_path_and_the_tools_of_its_loop(show: Callable[[Any], Shown]) -> None:
    shown = show(waiting_inside())
    [question] = shown.panel.pending
    assert (question["id"], question["path"], question["name"]) == ("c0", "worker", "delete_file")
    assert set(shown.panel.tools) == {"worker"}
    assert set(shown.panel.tools["worker"]) == {"delete_file", "move_file", "search"}


@pytest.mark.parametrize(
    ("decision", "more", "result"),
    [
        ("approve", {}, "deleted /a False 3"),
        ("edit", {"arguments": '{"path": "/b"}'}, "deleted /b False 3"),
        ("replace", {"name": "move_file", "arguments": '{"path": "/a", "to": "/b"}'}, "moved /a to /b"),
        ("reject", {"reason": "keep it"}, "Rejected: keep it"),
        ("answer", {"result": "gone"}, "gone"),
    ],
)
def test_a_nested_call_is_decided_like_any_other(
    show: Callable[[Any], Shown], decision: str, more: dict[str, Any], result: str
) -> None:
    run = waiting_inside()
    shown = show(run)
    assert shown.decide(decision, **more) == {"type": "decided", "token": "t0", "ok": True, "note": ""}
    run.result(30)
    assert [event.result for event in run.events if isinstance(event, CallEnd) and event.path == "worker"] == [result]
    shown.until(lambda: shown.panel.pending == [] and shown.panel.tools == {})


def test_calls_with_the_same_id_are_decided_separately(show: Callable[[Any], Shown]) -> None:
    run = asking_everywhere()
    run.play()
    until(lambda: len(run.pending) == 3)
    shown = show(run)
    questions = {question["path"]: question for question in shown.panel.pending}
    assert {path: question["id"] for path, question in questions.items()} == dict.fromkeys(
        ("", "critic", "critic:k2"), "c0"
    )
    for path, decision in (("critic:k2", "reject"), ("", "answer"), ("critic", "approve")):
        message = {**identified(questions[path]), "decision": decision}
        assert shown.click("decision", **message, result="mine")["ok"], path  # another person has decided before
        assert not shown.click("decision", **message)["ok"], path
    run.result(30)
    decided = {event.path: event.decision for event in run.events if isinstance(event, ApprovalDecision)}
    assert decided == {"": "answer", "critic": "approve", "critic:k2": "reject"}


def test_a_model_failure_is_shown_and_the_request_can_be_repeated(show: Callable[[Any], Shown]) -> None:
    run = session([[*text("Hel"), {"type": "nonsense"}], "Hello."])
    shown = show(run)
    shown.click("control", action="Play")
    shown.until(lambda: shown.panel.status["standing"] == "model failed")
    assert "nonsense" in shown.panel.status["problem"]
    shown.until(lambda: shown.panel.status["can"]["Play"])
    shown.click("control", action="Play")
    shown.until(lambda: shown.panel.status["standing"] == "completed")


def test_waiting_calls_are_sent_with_reason_arguments_and_form(show: Callable[[Any], Shown]) -> None:
    shown = show(waiting("/a", retries=12345678901234567891))
    [question] = shown.panel.pending
    assert (question["id"], question["name"]) == ("c0", "delete_file")
    assert question["values"] == [
        {"name": "path", "kind": "string", "text": "/a"},
        {"name": "retries", "kind": "json", "text": "12345678901234567891"},
    ]
    assert [field["label"] for field in question["fields"]] == ["path", "force", "retries"]
    assert set(shown.panel.tools[""]) == {"delete_file", "move_file", "search"}
    assert shown.panel.status["standing"] == "waiting for you"


def test_approve_runs_the_call(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a")
    shown = show(run)
    assert shown.decide("approve")["ok"]
    run.result(30)
    assert results(run) == ["deleted /a False 3"]
    shown.until(lambda: shown.panel.pending == [])


def test_reject_records_the_reason(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a")
    assert show(run).decide("reject", reason=HOSTILE.replace("\ud800", ""))["ok"]
    assert run.events[-2].reason.startswith("<script>")


def test_edited_arguments_arrive_exactly_and_are_checked(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a")
    shown = show(run)
    refused = shown.decide("edit", arguments='{"path": 3}')
    assert not refused["ok"]
    assert "path" in refused["error"]
    assert not shown.decide("edit", arguments='{"path": ')["ok"]
    assert not shown.decide("edit", arguments="[1]")["ok"]
    assert run.pending, "a refused edit decides nothing"
    assert shown.decide("edit", arguments='{"path": "/b", "retries": 12345678901234567891}')["ok"]
    run.result(30)
    assert results(run) == ["deleted /b False 12345678901234567891"]


def test_a_long_argument_that_was_not_sent_is_restored_in_an_edit(show: Callable[[Any], Shown]) -> None:
    run = waiting("/" + "x" * 100_000)
    assert show(run).decide("edit", arguments='{"force": true}', kept=[["path"]])["ok"]
    run.result(30)
    assert results(run) == [f"deleted /{'x' * 100_000} True 3"]


def test_another_tool_can_run_instead(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a")
    assert not show(run).decide("replace", name="nothing", arguments="{}")["ok"]
    assert show(run).decide("replace", name="move_file", arguments='{"path": "/a", "to": "/trash"}')["ok"]
    run.result(30)
    assert results(run) == ["moved /a to /trash"]


def test_a_person_can_give_the_result(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a", "/b")
    shown = show(run)
    assert shown.decide("answer", result='{"done": true}')["ok"]
    assert shown.decide("answer", result="it was gone already")["ok"]
    assert results(run) == [{"done": True}, "it was gone already"]


def test_the_first_of_two_clicks_decides(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a")
    shown = show(run)
    [question] = shown.panel.pending
    message = identified(question)
    assert shown.click("decision", decision="reject", **message)["ok"]
    second = shown.click("decision", decision="approve", **message)
    assert not second["ok"]
    assert "is already decided: a person rejected it at" in second["error"]
    assert [event.decision for event in run.events if isinstance(event, ApprovalDecision)] == ["reject"]


def test_a_decision_about_changed_arguments_is_refused(show: Callable[[Any], Shown]) -> None:
    shown = show(waiting("/a"))
    [question] = shown.panel.pending
    refused = shown.click("decision", **{**identified(question), "digest": "0" * 16}, decision="approve")
    assert not refused["ok"]
    assert "changed" in refused["error"]


def test_unknown_commands_are_refused_and_other_messages_are_ignored(show: Callable[[Any], Shown]) -> None:
    shown = show(waiting("/a"))
    assert not shown.decide("explode")["ok"]
    assert not shown.click("control", action="Explode")["ok"]
    assert not shown.click("control", action="Step", unit="mile")["ok"]
    for noise in ("text", None, {"type": "elsewhere"}, {}):
        shown.panel._receive(shown.panel, noise, [])


def test_an_exception_in_a_handler_is_returned_to_the_page_and_logged(
    show: Callable[[Any], Shown], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waiting("/a")
    shown = show(run)

    def broken(self: Any, id: str, **more: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(Decisions, "approve", broken)
    assert shown.decide("approve")["error"] == "ValueError: broken"
    assert "broken" in caplog.text


def test_a_step_continues_from_the_state_that_the_page_shows(show: Callable[[Any], Shown]) -> None:
    run = asking("/a")
    shown = show(run)
    run.submit_step("turn").result(30)
    shown.decide("approve")
    assert shown.click("control", action="Step", unit="event")["ok"]
    assert "call_start" in [event.type for event in run.events]


def test_steps_use_the_chosen_unit(show: Callable[[Any], Shown]) -> None:
    run = session(["Hello."])
    shown = show(run)
    assert shown.click("control", action="Step", unit="event")["ok"]
    assert len(run.events) == 1
    assert shown.click("control", action="Step", unit="turn")["ok"]
    assert run.events[-1].type == "model_end"


def test_the_controls_play_pause_and_cancel_work(show: Callable[[Any], Shown]) -> None:
    run = session([[*text("One two"), delay(30), *text(" three")]])
    shown = show(run)
    shown.click("control", action="Play")
    shown.until(lambda: shown.panel.status["can"]["Pause"])
    assert "in flight" in shown.click("control", action="Pause")["note"]
    assert shown.click("control", action="Cancel")["ok"]
    shown.until(lambda: shown.panel.status["over"])
    assert run.stop_reason == "cancelled"
    assert shown.click("control", action="Cancel")["note"] == "There was nothing to do."


def test_a_pending_pause_is_shown_and_can_be_withdrawn(show: Callable[[Any], Shown]) -> None:
    run = session([[*text("One two"), delay(30)]])
    shown = show(run)
    shown.click("control", action="Play")
    shown.until(lambda: shown.panel.status["requests"] == 1)  # a pause takes effect immediately if nothing is in flight
    shown.click("control", action="Pause")
    shown.until(lambda: shown.panel.status["standing"] == "pausing")
    assert [shown.panel.status["can"][name] for name in ("Pause", "Play")] == [False, True]
    shown.click("control", action="Play")
    shown.until(lambda: shown.panel.status["standing"] == "running")
    run.cancel()


def test_messages_are_added_to_the_chosen_queue(show: Callable[[Any], Shown]) -> None:
    run = session([[*text("One"), delay(30)]])
    shown = show(run)
    run.submit_step("event").result(30)
    shown.click("control", action="Steer", text="stop that")
    shown.click("control", action="Follow up", text="then this")
    assert [m.content for m in run.state.queues["steering"]] == ["stop that"]
    assert [m.content for m in run.state.queues["follow_up"]] == ["then this"]
    run.cancel()
    assert "has ended" in shown.click("control", action="Steer", text="too late")["error"]


def test_a_snapshot_has_the_name_that_is_shown(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a")
    note = show(run).click("control", action="Snapshot")["note"]
    name = f"tidy@{len(run.events)}"
    assert name in note
    assert SNAPSHOTS.pop(name).position == len(run.events)


def test_a_second_fork_at_an_event_does_not_replace_the_first(show: Callable[[Any], Shown]) -> None:
    shown = show(waiting("/a"))
    notes = [shown.click("control", action="Fork", at=2)["note"] for _ in range(3)]
    forks = [FORKS.pop(name) for name in ("tidy fork@2", "tidy fork@2 (2)", "tidy fork@2 (3)")]
    assert [fork.name in note for fork, note in zip(forks, notes, strict=True)] == [True] * 3


def test_show_all_fetches_the_whole_value_of_a_row(show: Callable[[Any], Shown]) -> None:
    run = waiting("/" + "x" * 50_000)
    shown = show(run)
    whole = shown.click("show", seq=run.events[-1].seq)
    assert "x" * 50_000 in whole["text"]
    [question] = shown.panel.pending
    assert "x" * 50_000 in shown.click("show", **identified(question))["values"][0]["text"]
    assert "no longer waits" in shown.click("show", **{**identified(question), "event": 0})["text"]
    assert question["length"] > 50_000 > len(question["values"][0]["text"])
    assert question["left"] == question["length"] - len("path") - len(question["values"][0]["text"])


def test_a_reloaded_page_gets_all_events(show: Callable[[Any], Shown]) -> None:
    run = session(["Hello."])
    shown = show(run)
    run.result(30)
    shown.outbox.until(lambda: len(shown.outbox.rows()) == len(run.events))
    shown.outbox.messages.clear()
    shown.panel._receive(shown.panel, {"type": "sync", "have": 0}, [])
    shown.outbox.until(lambda: len(shown.outbox.rows()) == len(run.events))


def test_a_ping_is_answered(show: Callable[[Any], Shown]) -> None:
    assert show(session(["Hello."])).click("ping")["type"] == "pong"


def test_the_tail_is_small_and_has_the_last_rows(show: Callable[[Any], Shown]) -> None:
    run = session([HOSTILE.replace("\ud800", "") * 2000])
    shown = show(run)
    run.result(30)
    shown.until(lambda: shown.panel.total == len(run.events))
    rows = json.loads(shown.panel.tail)
    assert [row["type"] for row in rows][-1] == "run_end"
    assert len(rows) <= TAIL
    assert all("data" not in row for row in rows)
    assert len(shown.panel.tail) < 10_000


def test_listeners_are_notified_of_the_comms_of_open_panels() -> None:
    seen: list[tuple[str, str]] = []
    first = Panel(session(["Hello."]))
    stop = listen(lambda id: seen.append(("open", id)), lambda id: seen.append(("close", id)))
    second = Panel(session(["Hello."]))
    assert {first.model_id, second.model_id} <= COMM_IDS
    ids = (first.model_id, second.model_id)
    first.close()
    stop()
    second.close()
    second.close()
    assert [entry for entry in seen if entry[1] in ids] == [("open", ids[0]), ("open", ids[1]), ("close", ids[0])]
    assert not COMM_IDS & set(ids)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (EventStream, ["events"]),
        (Trace, ["trace"]),
        (Timeline, ["timeline"]),
        (Messages, ["messages"]),
        (Progress, ["progress"]),
        (Usage, ["usage"]),
        (StateDiagram, ["diagram"]),
        (Controls, ["controls"]),
        (Approvals, ["approvals"]),
    ],
)
def test_each_part_is_a_separate_widget(kind: Callable[[Any], Panel], parts: list[str]) -> None:
    panel = kind(session(["Hello."]))
    assert panel.parts == parts
    until(lambda: bool(panel.diagram) == ("diagram" in parts))
    panel.close()


def test_the_readme_names_each_part_and_its_widget() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", readme, re.MULTILINE))
    assert sorted(told.values()) == sorted(PARTS)
    for name, part in told.items():
        panel = getattr(widgets, name)(session(["Hello."]))
        assert panel.parts == [part]
        panel.close()


async def test_the_error_for_a_panel_of_a_snapshot_suggests_replay() -> None:
    run = session(["Hello."])
    await run
    with pytest.raises(UsageError, match=r"agentnb.replay\(snapshot\) makes a run of a snapshot"):
        widgets.Timeline(run.snapshot())


def test_a_run_returns_the_same_panel_each_time_whole_or_in_parts() -> None:
    run = session(["Hello."])
    whole, some = run.panel(), run.panel(parts=["events", "timeline"])
    assert some.parts == ["events", "timeline"]
    assert run.panel() is whole
    assert run.panel(["events", "timeline"]) is some
    with pytest.raises(UsageError, match="no part 'clock'"):
        run.panel(parts=["clock"])
    whole.close()
    some.close()
    assert run.panel() is not whole
    run.panel().close()


def test_messages_are_sent_on_request(show: Callable[[Any], Shown]) -> None:
    run = session(["Hello."])
    shown = show(run)
    run.result(30)
    answer = shown.click("messages", path="", last=1)
    assert (answer["type"], answer["total"], answer["left"]) == ("messages", 2, 1)
    assert [message["text"] for message in answer["messages"]] == ["Hello."]
    assert shown.click("messages", path="nowhere")["messages"] == []


def test_a_panel_has_a_static_page_and_a_line_of_text() -> None:
    panel = Panel(session(["Hello."]))
    bundle, _ = panel._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert bundle["text/plain"] == "tidy (SessionLoop): not started, phase idle, 0 events"
    panel.close()
