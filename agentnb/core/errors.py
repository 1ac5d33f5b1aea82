"""All errors that agentnb raises on purpose, by their cause.

    AgentnbError
    ├── UsageError                  the request is not possible here
    │   ├── IllegalTransition       a phase that the loop's table does not allow after the current one
    │   ├── ImpossibleEvent         an event that cannot follow those before it
    │   ├── InvalidArguments        arguments that do not fit the tool's schema; names the argument
    │   ├── UnknownCall             no call with that id is waiting
    │   ├── UnknownName             agentnb has nothing of that name
    │   ├── ScriptEnded             a model of a test was asked for more answers than it has
    │   └── AlreadyDecided          that call has been decided; the first decision is kept
    ├── RunError                    a run without an output, raised where the output was requested
    │   ├── RunFailed               the model, the loop or agentnb itself failed
    │   ├── RunCancelled            the run was cancelled
    │   └── LimitReached            a limit of the run was reached
    ├── WaitTimeoutError            the time limit of a wait has passed; the run continues
    ├── ModelError                  a failure between agentnb and a model
    │   ├── ModelRequestError       the request is at fault (400, 404, 413, 422): repeating it will not help
    │   │   ├── AuthenticationError the key is missing, wrong or not permitted (401, 403)
    │   │   ├── ContextTooLong      the messages do not fit into the model's context
    │   │   └── ContentFiltered     the provider's content filter refused the request or its answer
    │   ├── ModelOverloaded         the server asks the client to wait (429, 529)
    │   ├── ModelUnavailable        the server or the connection to it failed (5xx, no connection, time-out)
    │   └── ModelProtocolError      the server violated its protocol, or stopped in mid-stream
    ├── ToolError                   a tool's own failure, sent to the model; raise it in a tool to choose the text
    └── StorageError                a failure between agentnb and a recording
        ├── NotSerializable         a value that is not JSON; gives the path to it
        ├── RecordingMissing        no file, store, run or snapshot of that name
        ├── RecordingCorrupt        a recording that has been changed or damaged; says where
        ├── VersionMismatch         a recording made by a newer agentnb
        ├── RecordingMismatch       a recording of another loop than the given one
        │   └── ReplayDiverged      the loop decides differently from the recording; has both events
        ├── StoreConflict           another process continues the same run
        └── StoreBusy               another process is writing to the store at the moment

A tool's failure is sent to the model as a result, a model's failure pauses the run, and a failure of agentnb ends it
with an error (ARCHITECTURE.md, 3. Three kinds of failure).
"""

from __future__ import annotations

from typing import Any, Self

from agentnb.core.unicode import printable

__all__ = [
    "AgentnbError",
    "AlreadyDecided",
    "AuthenticationError",
    "ContentFiltered",
    "ContextTooLong",
    "IllegalTransition",
    "ImpossibleEvent",
    "InvalidArguments",
    "LimitReached",
    "ModelError",
    "ModelOverloaded",
    "ModelProtocolError",
    "ModelRequestError",
    "ModelUnavailable",
    "NotSerializable",
    "RecordingCorrupt",
    "RecordingMismatch",
    "RecordingMissing",
    "ReplayDiverged",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "ScriptEnded",
    "StorageError",
    "StoreBusy",
    "StoreConflict",
    "ToolError",
    "UnknownCall",
    "UnknownName",
    "UsageError",
    "VersionMismatch",
    "WaitTimeoutError",
]


THROWN_IN = (KeyboardInterrupt, GeneratorExit)
"""The exceptions that end code from outside, as a cancellation does.

Any other exception that code outside of agentnb raises is that code's own failure, even if it is not an Exception: a
panic of a library written in Rust, `pytest.fail`, or `sys.exit()`, which ends that code and not the process. An event
loop that receives a SystemExit stops, and everything that waits in it would wait for ever.
"""


class AgentnbError(Exception):
    """The base of all errors that agentnb raises on purpose.

    `str(error)` is safe to print in a terminal: unprintable characters from a model or a tool are displayed as escapes.
    `args` has the original text.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), but="\n\t")


class UsageError(AgentnbError):
    """A request that is not possible here; nothing was changed."""


class IllegalTransition(UsageError):
    """A phase that the loop's table does not allow after the run's current phase."""


class ImpossibleEvent(UsageError):
    """An event that cannot follow those before it, for example an answer of a model that was not asked."""


class InvalidArguments(UsageError, ValueError):
    """Arguments that do not fit the tool's schema; the message names each argument at fault."""


class UnknownCall(UsageError, KeyError):
    """An id for which no call is waiting for a decision."""

    def __str__(self) -> str:
        return printable(str(self.args[0]), but="\n\t") if self.args else ""  # KeyError would show the repr


class UnknownName(UsageError, AttributeError):
    """A name that agentnb does not have."""


class ScriptEnded(UsageError, AssertionError):
    """A request to a scripted or recorded model that has no more answers."""


class AlreadyDecided(UsageError):
    """A decision about a call that has been decided already; the first decision is kept."""


class RunError(AgentnbError):
    """The end of a run without an output."""


class RunFailed(RunError):
    """A failure of the model, the loop or agentnb; `__cause__` is the original exception if it is still available."""


class RunCancelled(RunError):
    """The cancellation of a run; the message is the reason that was given."""


class LimitReached(RunError):
    """The end of a run at a limit on turns, calls, seconds, tokens or cost."""


class WaitTimeoutError(AgentnbError, TimeoutError):
    """The end of a wait at its time limit; the run continues."""


class ModelError(AgentnbError):
    """A failure between agentnb and a model.

    `status` is the HTTP status, `retry_after` the seconds that the server asked the client to wait. `code` is the
    server's code for the error, or its type if it has no code; `param` the part of the request that the server names;
    `request_id` the id by which the provider finds the request; `body` the server's answer, parsed if it is a JSON
    object. Each is None if the server did not give it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        body: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.code = code
        self.param = param
        self.request_id = request_id
        self.body = body

    def reworded(self, message: str) -> Self:
        """Return the same error with another message."""
        again = type(self)(message)
        again.__dict__.update(self.__dict__)
        return again


class ModelRequestError(ModelError):
    """A request that is at fault; sending it again would have the same result."""


class AuthenticationError(ModelRequestError):
    """A key that is missing, wrong, or not permitted to make this request."""


class ContextTooLong(ModelRequestError):
    """Messages that, alone or with the requested answer, do not fit into the model's context."""


class ContentFiltered(ModelRequestError):
    """A refusal by the provider's content filter of the request, or of the rest of its answer."""


class ModelOverloaded(ModelError):
    """A server that asks the client to slow down (429, 529)."""


class ModelUnavailable(ModelError):
    """A failure of the server or of the connection to it: 5xx, no connection, time-out."""


class ModelProtocolError(ModelError):
    """A violation of the protocol by the server, or a stream that ended before it was complete."""


class ToolError(AgentnbError):
    """A tool's own failure, with a text for the model, which is sent unchanged."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class StorageError(AgentnbError):
    """A failure between agentnb and a recording."""


class NotSerializable(StorageError, TypeError):
    """A value that is not JSON; the message gives the path to it."""


class RecordingMissing(StorageError, FileNotFoundError):
    """A name without a recording; the message lists those that exist."""


class RecordingCorrupt(StorageError):
    """A recording that was changed or damaged; the message says where."""


class VersionMismatch(StorageError):
    """A recording that was made by a newer agentnb than this one."""


class RecordingMismatch(StorageError):
    """A recording that belongs to another loop than the given one."""


class ReplayDiverged(RecordingMismatch):
    """A loop that decides differently from its recording; `recorded` and `expected` are the two events."""

    def __init__(self, message: str, recorded: Any, expected: Any) -> None:
        super().__init__(message)
        self.recorded = recorded
        self.expected = expected


class StoreConflict(StorageError):
    """Another process has continued the same run."""


class StoreBusy(StorageError):
    """Another process holds the store's lock; nothing was written, and the caller can try again."""
