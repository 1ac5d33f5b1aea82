"""The worker: the process that drives runs of a study which another process, the notebook, has started.

`work` is the task that an executor performs. It connects to the study, receives the recipe and the cells to run, and
drives their runs in the event loop of the host thread, many at the same time. Journals go to the store. Questions,
and how runs end, go to the study; decisions come back. The worker ends when the study says so. If the connection ends,
the study's process has died: the runs are abandoned, and a later study continues them from the store.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from agentnb.core.errors import StoreBusy, UsageError
from agentnb.run import Snapshot, environment, headless
from agentnb.run import host as hosting
from agentnb.run.approvals.decisions import decide_about
from agentnb.run.environment import PlainPython
from agentnb.store import Store
from agentnb.store.opening import is_address
from agentnb.store.questions import pending_from_json
from agentnb.studies.channel import LOST, Connection, Ticket, connect
from agentnb.studies.driving import AGAIN_SECONDS, PATIENCE_SECONDS, Followed, error_of, has_ended
from agentnb.studies.shipping import Plan, unpickled

LEFT = "the process of the study has gone"
"""The reason for which the runs of a worker are abandoned that has lost its study."""

SETTLING_SECONDS = 5.0
"""The seconds in which such runs must have ended."""

_sessions: set[concurrent.futures.Future[None]] = set()
"""The sessions of this process that have not ended. An event loop has only weak references to its tasks."""


def this_process() -> tuple[str, int]:
    """Return what identifies this process among those of all machines."""
    return socket.gethostname(), os.getpid()


def work(ticket: Ticket) -> None:
    """Drive runs until the study ends. This is the task of an executor whose tasks each occupy a worker."""
    before = _ignore_interrupts(ticket)
    if hasattr(signal, "pthread_sigmask"):  # the executor has started this process with interrupts held back
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        hosting.host.submit(_session(ticket)).result()
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # nobody would ever end this process
        os._exit(1)


def begin_work(ticket: Ticket) -> None:
    """Begin to drive runs in the background, until the study ends. For executors whose workers stay without a task."""
    _ignore_interrupts(ticket)
    session = hosting.host.submit(_session(ticket))
    _sessions.add(session)
    session.add_done_callback(_sessions.discard)


def _ignore_interrupts(ticket: Ticket) -> Any:
    """Ignore interrupts if those of the notebook's Stop button reach this process. Return the handler before, or None.

    Jupyter sends them to all processes of the kernel's group. A study in the background must not lose its workers when
    another cell is stopped, and a study that is waited for is cancelled by its own process.
    """
    host, process = ticket.study
    own = this_process()
    with suppress(AttributeError, OSError, ValueError):  # no process groups; no such process here; not the main thread
        if (host, process) != own and host == own[0] and os.getpgid(process) == os.getpgrp():
            return signal.signal(signal.SIGINT, signal.SIG_IGN)
    return None


def check(ticket: Ticket, plan: bytes, token: str | None) -> str | None:
    """Return what keeps this process from being a worker of a study; None if it can be one.

    token: the path of a file next to the store, which this process must see; None for a store on a server.
    """
    try:
        shipped = unpickled(plan)
    except Exception as error:
        return (
            f"cannot unpickle the study ({type(error).__name__}: {error}). Install what it imports on the workers, or"
            " define it in the notebook"
        )
    place = shipped.place
    if token is not None and not Path(token).exists():
        return (
            f"does not see the store {place}: no such file there. Use a folder that all workers share, or a store in"
            ' PostgreSQL: Store("postgresql://...")'
        )
    try:
        Store(place).close()
    except Exception as error:
        password = " The password of the store is not sent to workers: set PGPASSWORD there, or write ~/.pgpass"
        return f"cannot open the store ({type(error).__name__}: {error})" + password * is_address(place)
    try:
        shipped.recipe.grid.check_loops()
    except Exception as error:
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        return f"cannot make the loops of the study: {text.rstrip('.')}. Install what they need on the workers"
    try:
        hosting.host.submit(_greet(ticket)).result()
    except Exception as error:
        at = ", ".join(ticket.hosts)
        return (
            f"cannot connect to the notebook's process at {at} ({type(error).__name__}: {error}). Questions and"
            " decisions go over this connection: allow it in the firewall"
        )
    return None


async def _greet(ticket: Ticket) -> None:
    (await connect(ticket)).close()


async def _session(ticket: Ticket) -> None:
    connection = await connect(ticket)
    host, process = this_process()
    try:
        connection.send({"type": "hello", "place": ticket.place, "host": host, "process": process})
        plan = unpickled(await connection.receive_bytes())
        session = _Session(connection, plan, is_in_study=ticket.study == (host, process))
        await session.serve()
    except Exception as error:  # of the store, or of agentnb
        connection.send({"type": "failed", "error": f"{type(error).__name__}: {error}"})
    finally:
        connection.close()


class _Presence(PlainPython):
    """The environment of a worker: the person is at the notebook, if there is one."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def absence(self) -> str | None:
        return self.reason


class _Session:
    """The runs that this process drives for one study."""

    def __init__(self, connection: Connection, plan: Plan, *, is_in_study: bool) -> None:
        self._connection = connection
        self._recipe = plan.recipe
        self._store = Store(plan.place)
        self._active: dict[int, Followed] = {}
        """The active runs by the numbers of their cells."""
        self._again: dict[int, asyncio.TimerHandle] = {}
        """The runs that begin when the store can be read again."""
        self._ended = asyncio.Event()
        self._waits = False
        self._holds = False
        """True while the limit of the study is reached: no request to a model starts."""
        self._presence = _Presence()
        if not is_in_study:
            headless.headless(plan.policy, after=plan.after)
            environment.use_environment(self._presence)

    async def serve(self) -> None:
        """Do what the study asks for, until it ends the work or the connection ends."""
        try:
            while True:
                message = await self._connection.receive()
                match message["type"]:
                    case "run":
                        self._begin(message["cell"], message["id"])
                    case "decide":
                        self._decide(message)
                    case "resume":
                        self._resume(message["cell"])
                    case "hold":
                        self._hold(holds=message["holds"])
                    case "presence":
                        self._note_presence(message["waits"], message["absence"])
                    case "cancel":
                        self._cancel(message["reason"], message["cells"])
                    case "stop":
                        return
                    case other:
                        raise AssertionError(f"the study has sent {other!r}")
        except LOST:
            self._abandon()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING_SECONDS):
                    while self._active:
                        self._ended.clear()
                        await self._ended.wait()
        finally:
            self._abandon()
            self._store.close()

    def _abandon(self) -> None:
        """Leave the runs that have not ended to another worker, which continues them from the store."""
        for timer in self._again.values():
            timer.cancel()
        for followed in list(self._active.values()):
            followed.run.abandon(LEFT)

    def _begin(self, number: int, id: str | None, since: float | None = None) -> None:
        """Start the run of a cell, or continue it from the store. id: of the run that the store has.

        since: the time (of `time.monotonic`) since which the store is away.
        """
        cell = self._recipe.grid.cells[number]
        try:
            recording = None if id is None else Snapshot.of(self._store.events(id), name=cell.name)
            run = self._recipe.make(cell, self._store, recording)
        except Exception as error:  # of the factory, or of the store: the other runs continue
            since = since or time.monotonic()
            if isinstance(error, StoreBusy) and time.monotonic() - since < PATIENCE_SECONDS:
                again = partial(self._begin, number, id, since)
                self._again[number] = asyncio.get_running_loop().call_later(AGAIN_SECONDS, again)
                return
            self._send_end(number, id, None, f"{type(error).__name__}: {error}")
            return
        self._connection.send({"type": "started", "cell": number, "id": run.id})
        followed = self._active[number] = Followed(
            run, partial(self._look, number), partial(self._send_spent, number), lambda: self._holds
        )
        if self._waits:
            followed.waited_for(True)
        run.play(stays_paused=True)

    def _look(self, number: int) -> None:
        """Send the status and the questions of an active run, or its end."""
        followed = self._active.get(number)
        if followed is None:
            return
        run = followed.run
        if not run.settled:
            with run.lock:
                pending = [dataclasses.asdict(item) for item in run.pending]
            status = {"status": followed.status, "paused": followed.is_paused, "pending": pending}
            self._connection.send({"type": "status", "cell": number, **status})
            return
        del self._active[number]
        followed.close()
        self._send_end(number, run.id, run.stop_reason, error_of(run))
        self._ended.set()

    def _send_spent(self, number: int, tokens: float, cost: float, unpriced: str | None) -> None:
        spent = {"tokens": tokens, "cost": cost, "unpriced": unpriced}
        self._connection.send({"type": "spent", "cell": number, **spent})

    def _hold(self, *, holds: bool) -> None:
        """Start no more requests to models, or start again what was held."""
        self._holds = holds
        for number, followed in list(self._active.items()):
            followed.run.look_again()
            self._look(number)

    def _send_end(self, number: int, id: str | None, stop_reason: str | None, error: str | None) -> None:
        self._connection.send({"type": "end", "cell": number, "id": id, "stop_reason": stop_reason, "error": error})

    def _decide(self, message: Mapping[str, Any]) -> None:
        """Decide about a call, and send the study the error, or None."""
        item = pending_from_json(message["item"])
        followed = self._active.get(message["cell"])
        error: list[str] | None = None
        try:
            if followed is None:
                name = self._recipe.grid.cells[message["cell"]].name
                raise has_ended(item, name, Snapshot.of(self._store.events(item.run_id), name=name))
            decide_about(followed.run, item, message["method"], message["arguments"])
        except Exception as failed:
            error = [type(failed).__name__, str(failed)]
        self._connection.send({"type": "decided", "number": message["number"], "error": error})

    def _resume(self, number: int) -> None:
        """Let a run continue that is paused. One that has ended meanwhile stays as it is."""
        followed = self._active.get(number)
        if followed is not None and followed.is_paused:
            followed.run.resume()

    def _cancel(self, reason: str, cells: Collection[int] | None) -> None:
        """Cancel the active runs of these cells; None for all."""
        for number, followed in list(self._active.items()):
            if cells is None or number in cells:
                followed.run.cancel(reason)

    def _note_presence(self, waits: bool, absence: str | None) -> None:
        self._presence.reason = absence
        if waits != self._waits:
            self._waits = waits
            for followed in self._active.values():
                followed.waited_for(waits)
