"""Threads: a call reported as failed is not made later, and no call waits for a thread that does not exist."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

from agentnb.threads import Threads


@pytest.fixture
def exhausted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make the system refuse new threads until `undo` is called."""

    def refuse(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


def test_a_call_without_an_available_thread_is_refused_and_not_made_later(exhausted: pytest.MonkeyPatch) -> None:
    threads, made = Threads(1, "test"), []
    for name in ("first", "second"):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.call(made.append, name)
    exhausted.undo()
    threads.call(made.append, "third").result(10)
    assert made == ["third"]


def test_an_existing_thread_takes_the_calls_if_no_new_thread_can_start(request: pytest.FixtureRequest) -> None:
    threads, begun, released, made = Threads(2, "test"), threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        released.wait(10)

    threads.call(first)
    assert begun.wait(10)
    request.getfixturevalue("exhausted")
    second = threads.call(made.append, "second")
    released.set()
    second.result(10)
    assert made == ["second"]


def test_inline_threads_call_functions_in_the_callers_thread() -> None:
    threads = Threads(1, "test")
    threads.inline = True
    assert threads.call(threading.get_ident).result(timeout=0) == threading.get_ident()


def test_a_thread_holds_no_reference_to_a_call_when_its_callback_runs() -> None:
    class Thing:
        pass

    thing, may_end, told, gone = Thing(), threading.Event(), threading.Event(), []
    there = weakref.ref(thing)

    def tell(_: object) -> None:
        gone.append(there() is None)
        told.set()

    threads = Threads(1, "test")
    ended = threads.call(lambda _: may_end.wait(10), thing)
    del thing
    ended.add_done_callback(tell)
    may_end.set()
    assert told.wait(10)
    assert gone == [True]
