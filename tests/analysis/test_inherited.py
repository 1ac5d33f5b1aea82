"""Events that a fork inherits are counted once: in the run in which they happened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentnb import Run, SessionLoop, Snapshot, Store
from agentnb.analysis import backtest, calls, decisions, dwell_times, events, messages, tokens
from agentnb.testing import ScriptedLLM, text
from tests.analysis.recordings import decided_run, read, researcher, used, write


def writer() -> SessionLoop:
    """Return the researcher with only its last answer in the script."""
    return SessionLoop(ScriptedLLM([[*text("Otherwise."), used(300, 10, 0.03)]]), [read, write], name="researcher")


async def forks(of: Run, at: int, count: int = 4, **options: Any) -> list[Run]:
    """Forks of a run, each played to its end."""
    made = [of.fork(at=at, loop=writer(), **options) for _ in range(count)]
    for fork in made:
        await fork
    return made


def after_the_writes(run: Run) -> int:
    """Return the number of the last event before the request for the answer."""
    return max(event.seq for event in run.events if event.type == "model_start") - 1


async def test_events_that_a_fork_inherits_are_marked() -> None:
    run = await decided_run()
    at = after_the_writes(run)
    (fork,) = await forks(run, at, 1)
    assert [event.inherited for event in fork.events] == [event.seq <= at for event in fork.events]
    assert not any(event.inherited for event in run.events)


async def test_the_changed_event_belongs_to_the_fork() -> None:
    run = await decided_run()
    answer = next(event.seq for event in run.events if event.type == "model_end")
    fork = run.fork(at=answer, message="Wait.", loop=researcher())
    assert [event.inherited for event in fork.events] == [True] * answer + [False]


async def test_in_a_store_a_run_and_its_forks_count_each_call_message_and_decision_once(tmp_path: Any) -> None:
    store = Store(tmp_path / "runs.db")
    run = await decided_run()
    store.record_run(run.id, run.name, "SessionLoop", run.events)
    made = await forks(run, after_the_writes(run), store=store)
    assert len(events(store)) == len(run.events) + sum(not e.inherited for fork in made for e in fork.events)
    assert list(calls(store).call_id) == list(calls(run).call_id)
    assert list(decisions(store).call_id) == list(decisions(run).call_id)
    said = messages(store)
    assert list(said[said.inherited].content) == []
    assert [content for content in said.content if content == "Otherwise."] == ["Otherwise."] * 4
    assert len(said) == len(messages(run)) + 4
    assert backtest(True, store).prompts == backtest(True, run).prompts


async def test_a_fork_read_alone_has_its_inherited_rows_marked() -> None:
    run = await decided_run()
    (fork,) = await forks(run, after_the_writes(run), 1)
    assert len(events(fork)) == len(fork.events)
    assert calls(fork).inherited.all()
    assert decisions(fork).inherited.all()
    assert backtest(True, fork).frame.inherited.all()
    assert list(messages(fork).inherited) == [True] * (len(messages(fork)) - 1) + [False]
    assert not calls(run).inherited.any()


async def test_a_call_with_another_result_in_the_fork_counts_in_both_runs() -> None:
    run = await decided_run()
    asked = next(event.seq for event in run.events if event.type == "approval_request" and event.call_id == "w1")
    fork = run.fork(at=asked, decision="approve", loop=researcher(), approve=True)
    await fork
    both = calls({"run": run, "fork": fork})
    assert list(both[both.call_id == "w1"].outcome) == ["rejected", "returned"]
    assert list(both[both.call_id == "w1"].inherited) == [False, False]
    assert list(both[both.call_id == "r1"].run) == ["run"]


@pytest.mark.parametrize("order", [1, -1])
async def test_a_fork_of_a_fork_counts_only_its_own_events(order: int) -> None:
    run = await decided_run()
    (first,) = await forks(run, after_the_writes(run), 1)
    end = next(event.seq for event in reversed(first.events) if event.type == "model_start")
    (second,) = await forks(first, end, 1)
    own = len(run.events) + sum(not e.inherited for fork in (first, second) for e in fork.events)
    assert len(events([run, first, second][::order])) == own
    assert len(events([run, second])) == len(run.events) + len(second.events) - after_the_writes(run) - 1
    assert len(events([first, second])) == len(first.events) + sum(not e.inherited for e in second.events)


async def test_without_the_origin_the_first_fork_counts_the_shared_events() -> None:
    run = await decided_run()
    one, other = await forks(run, after_the_writes(run), 2)
    assert list(calls([one, other]).call_id) == list(calls(run).call_id)
    assert calls([one, other]).inherited.all()


async def test_the_usage_of_a_fork_excludes_inherited_requests() -> None:
    run = await decided_run()
    made = await forks(run, after_the_writes(run))
    assert [fork.usage for fork in made] == [{"input_tokens": 300, "output_tokens": 10, "cost": 0.03}] * 4
    assert made[0].state.usage == run.usage
    table = messages([run, *made])
    assert table.input_tokens.sum() == sum(one.usage["input_tokens"] for one in (run, *made))


async def test_an_answer_written_by_a_person_has_no_usage() -> None:
    run = await decided_run()
    answer = next(event.seq for event in run.events if event.type == "model_end")
    fork = run.fork(at=answer, message={"role": "assistant", "content": "Done."}, loop=researcher())
    await fork
    assert fork.usage == {}


async def test_figures_count_inherited_events_once() -> None:
    run = await decided_run()
    made = await forks(run, after_the_writes(run), 1)
    lines = {line.get_label(): line.get_xdata() for line in tokens([run, *made]).lines}
    assert sorted(len(x) for x in lines.values()) == [1, 1, 3, 3]
    assert dwell_times([run, *made]) is not None


async def test_inherited_events_in_older_recordings_without_marks_are_counted_once() -> None:
    run = await decided_run()
    (fork,) = await forks(run, after_the_writes(run), 1)
    lines = [json.loads(event.model_dump_json()) for event in fork.events]
    for line in lines:
        del line["inherited"]
        line.pop("ancestors", None)
    older = Snapshot.of([type(event).model_validate(line) for event, line in zip(fork.events, lines, strict=True)])
    assert list(calls([run, older]).call_id) == list(calls(run).call_id)
    assert calls(older).inherited.all()


async def test_calls_can_be_grouped_by_arguments_and_have_the_number_of_tries() -> None:
    table = calls([await decided_run("a"), await decided_run("b")])
    grouped = table.groupby("arguments_text").size()
    assert grouped['{"table": "a"}'] == 2
    assert (table.attempts.max(), table.tries.max()) == (1, 1)
    assert len(decisions(await decided_run()).groupby("arguments_text")) == 4
