"""Executors: where the workers of a study come from.

Each kind of executor has an adapter, which knows its workers by places, starts the work of a study at a place, and
calls a function on each worker. An adapter never drives a run: that is `agentnb.studies.worker`, the same for all.

Before the first run starts, `check_workers` calls a function on each worker, which finds another version of Python or
agentnb, a store that the worker cannot see, and a notebook that it cannot reach.
"""

from __future__ import annotations

import concurrent.futures
import secrets
import signal
import socket
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from agentnb.core.errors import UsageError, WorkersLost, printable
from agentnb.core.lazy import optional_module
from agentnb.run import host as hosting
from agentnb.run.validation import shown
from agentnb.store import Store
from agentnb.studies.channel import Connection, Listener, Ticket, route_to
from agentnb.studies.worker import begin_work, check, this_process, work
from agentnb.threads import THREADS

Ended = Callable[[BaseException | None], object]
"""Called when the work at a place has ended, with its error."""

CHECK_SECONDS = 60.0
"""The seconds that the workers have to answer before the first run starts."""

APPEAR_SECONDS = 15.0
"""The seconds in which a Dask cluster without workers may get one before the first run starts."""

CONNECT_SECONDS = 5.0
"""The seconds that a Dask scheduler, which was given by its address, has to answer."""

LOCAL = "127.0.0.1"

# A text for `eval`, which every Python has: a worker may have another agentnb, or none.
_VERSIONS = (
    "(__import__('platform').python_version(),"
    " getattr(__import__('agentnb'), '__version__', None) if __import__('importlib.util').util.find_spec('agentnb')"
    " else None, __import__('socket').gethostname())"
)


class Executor(Protocol):
    """The adapter of an executor. All methods block; they are called in threads."""

    name: str
    """What it is, for messages: "the process pool"."""

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of this machine at which the workers may reach it."""

    def places(self) -> Sequence[str]:
        """Return the places at which workers are, or can be started."""

    def start(self, place: str, ticket: Ticket, ended: Ended) -> None:
        """Start the work of a study at a place. `ended` is called if it ends, if the executor can tell."""

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
        """Call a function on each worker, or on one of several equal ones: the worker and the result, or the error."""

    def end(self) -> None:
        """Return when the workers have ended the work of the study. No more work is started."""


# -- process pools -----------------------------------------------------------------------------------------------------


class Pool:
    """A `concurrent.futures.Executor`. Each worker has a task for as long as the study is driven.

    A process that dies breaks the whole pool. A ProcessPoolExecutor is then replaced by a new one of the same kind.
    """

    name = "the process pool"

    def __init__(self, pool: concurrent.futures.Executor) -> None:
        context = getattr(pool, "_mp_context", None)
        if isinstance(pool, concurrent.futures.ThreadPoolExecutor):
            raise UsageError(
                "executor= takes processes, not threads: without executor=, the runs of a study share this process"
                " already."
            )
        if context is not None and context.get_start_method() == "fork":
            raise UsageError(
                "executor= is a pool of forked processes, which would share the connections and locks of this one. Pass"
                ' ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")).'
            )
        self._pool = pool
        self._futures: set[Future[None]] = set()
        self._is_ours = False

    def addresses(self) -> tuple[str, ...]:
        """Return the address of this machine for its own processes."""
        return (LOCAL,)

    def places(self) -> Sequence[str]:
        """Return the numbers of its processes."""
        return [str(number) for number in range(getattr(self._pool, "_max_workers", 1))]

    def start(self, place: str, ticket: Ticket, ended: Ended) -> None:
        """Submit the work of a study as a task."""
        try:
            future = self._submit(ticket)
        except BrokenExecutor as error:
            self._replace(error)
            future = self._submit(ticket)
        except RuntimeError as error:  # it was shut down
            raise WorkersLost(
                f"{type(self._pool).__name__} takes no more tasks: {error}. Keep it open while the study runs, or make"
                " another one; agentnb.study with the same name and store, and that executor, continues."
            ) from error
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        future.add_done_callback(lambda future: ended(None if future.cancelled() else future.exception()))

    def _submit(self, ticket: Ticket) -> Future[None]:
        """Submit the work. The notebook's Stop button does not reach a process that is started for it (see `work`)."""
        if not hasattr(signal, "pthread_sigmask"):
            return self._pool.submit(work, ticket)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits this
        try:
            return self._pool.submit(work, ticket)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _replace(self, error: BrokenExecutor) -> None:
        """Go on with a new pool of the same kind. Raises WorkersLost if it is not known how to make one."""
        old = self._pool
        if type(old) is not ProcessPoolExecutor:
            raise WorkersLost(
                f"A process of the {type(old).__name__} has died, and it takes no more tasks: {error} Make another one;"
                " agentnb.study with the same name and store, and that executor, continues."
            ) from error
        if not self._is_ours:
            warnings.warn(
                "A process of the ProcessPoolExecutor has died, and Python has ended the other ones. The study"
                " continues in a new pool of the same size; the old one takes no more tasks.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._pool, self._is_ours = _like(old), True
        old.shutdown(wait=False)

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
        """Call a function in one of its processes: they are all of one kind."""
        try:
            return [("A process", self._pool.submit(function, *arguments).result(CHECK_SECONDS))]
        except TimeoutError:
            raise UsageError(
                f"No process of the executor was free for {CHECK_SECONDS:g} s. Wait for its other tasks, or make an"
                " executor for the study."
            ) from None
        except BrokenExecutor as error:
            raise UsageError(
                f"The processes of the executor do not start: {error} In a script, the code that makes the study must"
                ' be under `if __name__ == "__main__":`, because each process imports the script.'
            ) from error
        except Exception as error:
            return [("A process", error)]

    def end(self) -> None:
        """Wait until the tasks have ended, and shut down a pool that was made here."""
        futures = list(self._futures)
        for future in futures:
            future.cancel()
        concurrent.futures.wait(futures, CHECK_SECONDS)
        if self._is_ours:  # its processes are not needed any longer; another one is ready for the next start
            self._pool.shutdown(wait=False)
            self._pool = _like(self._pool)


def _like(pool: Any) -> ProcessPoolExecutor:
    """Return a pool of the same kind. It starts its processes when they are needed."""
    return ProcessPoolExecutor(
        pool._max_workers,
        pool._mp_context,
        pool._initializer,
        pool._initargs,
        max_tasks_per_child=pool._max_tasks_per_child,
    )


# -- Dask --------------------------------------------------------------------------------------------------------------


class Dask:
    """A client of a Dask cluster. The work goes on in the background of each worker, which stays free for tasks.

    It is no task of Dask's: a task that is bound to a worker waits for ever if that worker has died
    (dask/distributed issue 7346), and a new worker has a new address.
    """

    def __init__(self, client: Any) -> None:
        if client.asynchronous:
            raise UsageError("executor= takes a Dask client that is not asynchronous: distributed.Client(address).")
        where = getattr(client.scheduler, "address", None)
        self.name = f"the Dask cluster at {where}"
        if client.status != "running":
            raise UsageError(
                f"The Dask client is not connected to its scheduler (status: {client.status}). Start the scheduler, and"
                " pass a new distributed.Client."
            )
        self._client = client

    @classmethod
    def at(cls, address: str) -> Dask:
        """Connect to a scheduler. Raises UsageError if it does not answer within a few seconds."""
        distributed = optional_module("distributed", "A Dask cluster needs distributed", "dask")
        # In a thread: Dask waits for ever for a server that accepts the connection and does not answer.
        connected = THREADS.call(distributed.Client, address, timeout=CONNECT_SECONDS, set_as_default=False)
        try:
            client = connected.result(2 * CONNECT_SECONDS)
        except Exception as error:  # also of an address that is not valid
            why = _text(error) if str(error) else f"no answer for {2 * CONNECT_SECONDS:g} s"
            raise UsageError(
                f"No Dask scheduler answers at {address} ({why}). Start it: dask scheduler; and its workers: dask"
                f" worker {address}."
            ) from None
        return cls(client)

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of this machine from which the workers are reached."""
        return _routes({worker["host"] for worker in self._workers().values()})

    def places(self) -> Sequence[str]:
        """Return the addresses of the workers."""
        return list(self._workers())

    def _workers(self) -> dict[str, Any]:
        """Return what the scheduler knows about each worker, by its address. Raises ConnectionError if it has gone."""
        if self._client.status == "connecting":  # Dask tries this for half a minute
            return {}
        if self._client.status != "running":
            raise ConnectionError(f"the client has lost the scheduler (status: {self._client.status})")
        workers: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]  # some releases list 5 otherwise
        return workers

    def start(self, place: str, ticket: Ticket, ended: Ended) -> None:
        """Begin the work in the background of a worker.

        A thread of its own waits for the answer: if the worker has just died, Dask tries to connect for half a minute.
        """

        def begin() -> None:
            try:
                answers = list(self._client.run(begin_work, ticket, workers=[place], on_error="return").values())
            except Exception as error:  # the scheduler has gone
                answers = [error]
            for answer in answers:
                if answer is not None:
                    ended(answer)

        THREADS.call(begin)

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
        """Call a function on each worker."""
        try:
            self._client.wait_for_workers(1, timeout=APPEAR_SECONDS)
        except TimeoutError:
            raise UsageError(
                f"There are no workers at {self.name}. Start them: dask worker {self._client.scheduler.address}. If"
                " they are starting, wait for them: client.wait_for_workers(1)."
            ) from None
        found = self._client.run(function, *arguments, on_error="return")
        return [(f"The worker {address}", answer) for address, answer in found.items()]

    def end(self) -> None:
        """Do nothing: the workers have been told to end the work."""


# -- ipyparallel -------------------------------------------------------------------------------------------------------


class Engines:
    """The engines of an ipyparallel cluster. The work goes on in the background of each engine, which stays free.

    An engine that has died is replaced if the client was made by its `ipyparallel.Cluster`, which can start engines.
    """

    name = "the ipyparallel cluster"

    def __init__(self, client: Any, targets: Any = None) -> None:
        """targets: the engines of a view; None for all engines, also later ones."""
        if client._closed:
            raise UsageError("The ipyparallel client is closed. Connect another one: ipyparallel.Cluster(...).")
        self._client = client
        self._targets = targets if isinstance(targets, (list, tuple)) else None
        self._seen: set[int] = set()
        self._count = 0
        """The number of engines that there should be."""
        self._starting = 0
        """The number of engines that were started here and have not appeared yet."""

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of this machine from which the engines are reached."""
        names = [name for _, name in self.everywhere(eval, "__import__('socket').gethostname()")]
        return _routes({name for name in names if isinstance(name, str)})

    def places(self) -> Sequence[str]:
        """Return the numbers of the engines. New engines are started in place of those that have died."""
        ids = set(self._client.ids)
        self._starting -= min(self._starting, len(ids - self._seen))
        self._seen |= ids
        self._count = max(self._count, len(ids))
        missing = self._count - len(ids) - self._starting
        if missing and self._targets is None and self._client.cluster is not None:
            self._starting += missing
            self._client.cluster.start_engines_sync(n=missing)
        return [str(id) for id in sorted(ids) if self._targets is None or id in self._targets]

    def start(self, place: str, ticket: Ticket, ended: Ended) -> None:
        """Begin the work in the background of an engine."""

        def has_begun(result: Any) -> None:
            if (error := result.exception()) is not None:
                ended(error)

        self._client[int(place)].apply_async(begin_work, ticket).add_done_callback(has_begun)

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
        """Call a function on each engine."""
        places = self.places()
        if not places:
            raise UsageError("There are no engines in the ipyparallel cluster. Start them: cluster.start_engines(n=2).")
        view = self._client[[int(place) for place in places]]
        try:
            results = view.apply_async(function, *arguments).get(CHECK_SECONDS, return_exceptions=True)
        except TimeoutError:
            raise UsageError(
                f"The engines of the ipyparallel cluster were not free for {CHECK_SECONDS:g} s. Wait for their other"
                " tasks, or start a cluster for the study."
            ) from None
        return [(f"The engine {place}", result) for place, result in zip(places, results, strict=True)]

    def end(self) -> None:
        """Do nothing: the engines have been told to end the work."""


# -- choosing and checking -------------------------------------------------------------------------------------------


def executor_of(value: Any) -> Executor:
    """Return the adapter of an executor. Raises UsageError if it is not one."""
    package = type(value).__module__.partition(".")[0]
    if package == "distributed":
        client = getattr(value, "_client", value)  # of client.get_executor()
        if hasattr(client, "scheduler_info") and hasattr(client, "run"):
            return Dask(client)
    if package == "ipyparallel":
        view = getattr(value, "view", value)  # of client.executor()
        if hasattr(view, "load_balanced_view"):
            return Engines(view)
        if hasattr(view, "apply_async") and hasattr(view, "client"):
            return Engines(view.client, view.targets)
    if isinstance(value, str) and "://" in value:
        return Dask.at(value)
    if isinstance(value, concurrent.futures.Executor):
        return Pool(value)
    raise UsageError(
        "executor= takes a concurrent.futures.ProcessPoolExecutor, a Dask client (distributed.Client) or the address of"
        f' a Dask scheduler ("tcp://host:8786"), or a client or a view of ipyparallel, not {shown(value)}.'
    )


def _routes(hosts: Collection[str]) -> tuple[str, ...]:
    """Return the addresses of this machine from which these hosts are reached."""
    here = (LOCAL, "localhost", socket.gethostname())
    return tuple(sorted({LOCAL if host in here else route_to(host) for host in hosts})) or (LOCAL,)


def check_store(store: Store | None) -> Store:
    """Return the store of a study for workers. Raises UsageError if they could not see it."""
    if store is None:
        raise UsageError(
            'executor= needs a store, which keeps what the workers record: store=Store("runs.db") if they share a'
            ' folder with this process, or Store("postgresql://...").'
        )
    if _is_file(store) and not store.path.exists():
        is_in_memory = store.where == ":memory:"
        problem = "is in the memory of this process" if is_in_memory else "was deleted after it was opened"
        raise UsageError(
            f"executor= needs a store that the workers can open, and {store.where} {problem}."
            ' Pass store=Store("runs.db") in a folder that they share, or Store("postgresql://...").'
        )
    return store


def _is_file(store: Store) -> bool:
    return store.place_for_workers() == str(store.path)


def check_workers(executor: Executor, plan: bytes, store: Store) -> None:
    """Raise UsageError, which names the worker, the problem and what to do, if a worker could not drive a run."""
    our_python, our_version, _ = eval(_VERSIONS)
    for worker, found in executor.everywhere(eval, _VERSIONS):
        if isinstance(found, BaseException):
            raise UsageError(f"{worker} of {executor.name} cannot be used: {_text(found)}") from found
        python, version, _ = found
        if python.split(".")[:2] != our_python.split(".")[:2]:
            raise UsageError(
                f"{worker} of {executor.name} has Python {python}, and this process {our_python}. Functions"
                " can be sent between equal versions only (the first two numbers): start the workers in an environment"
                " like this one."
            )
        if version != our_version:
            has = f"agentnb {version}" if version else "no agentnb"
            raise UsageError(
                f"{worker} of {executor.name} has {has}, and this process {our_version}. Install"
                f" agentnb-toolkit=={our_version} there."
            )

    # Let each worker open the store, see a new file next to it, and connect to this process.
    token: Path | None = None
    if _is_file(store):
        token = store.path.with_name(f".{store.path.name}.{secrets.token_hex(8)}")
        token.touch()
    listener = Listener(_ignore)
    try:
        addresses = executor.addresses()
        hosting.host.submit(listener.open(addresses)).result()
        ticket = Ticket(addresses, listener.port, listener.key, "check", this_process())
        for worker, problem in executor.everywhere(check, ticket, plan, None if token is None else str(token)):
            if isinstance(problem, BaseException):
                raise UsageError(f"{worker} of {executor.name} cannot be used: {_text(problem)}")
            if problem is not None:
                raise UsageError(f"{worker} of {executor.name} {printable(problem)}.")
    finally:
        hosting.host.submit(listener.close()).result()
        if token is not None:
            token.unlink(missing_ok=True)


async def _ignore(connection: Connection) -> None:
    """Leave a worker alone that only shows that it can connect."""


def _text(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error}")
