"""Every error agentnb raises on purpose, and who is to blame for it.

    AgentnbError
    ├── UsageError                  you asked for something that is not possible here
    │   ├── IllegalTransition       a phase the loop's table does not allow from where it stands
    │   ├── ImpossibleEvent         an event that cannot follow those before it
    │   ├── InvalidArguments        arguments that do not fit the tool's schema; names the argument
    │   ├── UnknownCall             no call with that id is waiting
    │   ├── UnknownName             agentnb has nothing of that name
    │   ├── ScriptEnded             a model of a test was asked for more than it has
    │   └── AlreadyDecided          that call has been decided; the first decision stands
    ├── RunError                    how a run ended, raised where its output was asked for
    │   ├── RunFailed               the model, the loop or agentnb itself failed
    │   ├── RunCancelled            somebody stopped it
    │   └── LimitReached            a limit given to it was reached
    ├── WaitTimeoutError            the time given to a wait is up; the run goes on
    ├── ModelError                  between us and a model
    │   ├── ModelRequestError       the request is at fault (400, 404, 413, 422): repeating it will not help
    │   │   ├── AuthenticationError the key is missing, wrong or not allowed to (401, 403)
    │   │   ├── ContextTooLong      the messages do not fit into the model's context
    │   │   └── ContentFiltered     the provider's content filter refused the request or its answer
    │   ├── ModelOverloaded         the server asks us to wait (429, 529)
    │   ├── ModelUnavailable        the server or the way to it failed (5xx, no connection, time-out)
    │   └── ModelProtocolError      the server said something that is not its protocol, or stopped in mid-stream
    ├── ToolError                   a tool's own failure, told to the model; raise it in a tool to choose the words
    └── StorageError                between us and a recording
        ├── NotSerializable         a value that is not JSON; says where in the value it stands
        ├── RecordingMissing        no file, store, run or snapshot of that name
        ├── RecordingCorrupt        a recording that has been changed or damaged; says where
        ├── VersionMismatch         a recording made by a newer agentnb
        ├── RecordingMismatch       a recording of another loop than the one it was given
        │   └── ReplayDiverged      the loop decides otherwise than the recording; has both sides
        ├── StoreConflict           another process goes on with the same run
        └── StoreBusy               another process writes to the store just now

A tool's failure goes to the model as a result, a model's pauses the run, ours ends it loudly (ARCHITECTURE.md,
3. Three kinds of failure).
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
"""What ends code from outside, as a cancellation does. Whatever else code that is not agentnb's raises is its own
failure, also what is no Exception: a panic of a library written in Rust, `pytest.fail`, or `sys.exit()`, which ends
that code and not the process. An event loop that meets a SystemExit stops, and whoever waits for anything in it waits
for ever."""


class AgentnbError(Exception):
    """Base of everything agentnb raises on purpose.

    `str(error)` can be printed in a terminal: what a model or a tool put into it is shown as an escape where it is not
    text. `args` have it as it was.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), but="\n\t")


class UsageError(AgentnbError):
    """What was asked for is not possible here; nothing was changed."""


class IllegalTransition(UsageError):
    """The loop's table does not allow this phase from where the run stands."""


class ImpossibleEvent(UsageError):
    """An event that cannot follow those before it: the answer of a model that nobody has asked, for one."""


class InvalidArguments(UsageError, ValueError):
    """Arguments do not fit the tool's schema; the message names each argument at fault."""


class UnknownCall(UsageError, KeyError):
    """No call with that id is waiting for a decision."""

    def __str__(self) -> str:
        return printable(str(self.args[0]), but="\n\t") if self.args else ""  # KeyError would show the repr


class UnknownName(UsageError, AttributeError):
    """agentnb has nothing of that name."""


class ScriptEnded(UsageError, AssertionError):
    """A scripted or recorded model was asked more often than it has answers."""


class AlreadyDecided(UsageError):
    """The call has been decided already; the first decision stands."""


class RunError(AgentnbError):
    """A run ended without an output."""


class RunFailed(RunError):
    """The model, the loop or agentnb failed; `__cause__` is the original exception where it is still at hand."""


class RunCancelled(RunError):
    """The run was cancelled; the message is the reason that was given."""


class LimitReached(RunError):
    """A limit on turns, calls, seconds, tokens or cost was reached."""


class WaitTimeoutError(AgentnbError, TimeoutError):
    """The time that was given to a wait is up; the run goes on."""


class ModelError(AgentnbError):
    """Something went wrong between agentnb and a model.

    `status` is the HTTP status, `retry_after` the seconds the server asked us to wait. `code` is the server's code for
    the error, or its type where it has no code; `param` the part of the request that the server names; `request_id` the
    id by which the provider finds the request; `body` the server's answer, parsed where it is a JSON object. Each is
    None where the server gave none.
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
    """The request is at fault; sending it again would give the same answer."""


class AuthenticationError(ModelRequestError):
    """The key is missing, wrong, or not allowed to do this."""


class ContextTooLong(ModelRequestError):
    """The messages, or the messages and the answer that was asked for, do not fit into the model's context."""


class ContentFiltered(ModelRequestError):
    """The provider's content filter refused the request, or stopped its answer."""


class ModelOverloaded(ModelError):
    """The server asks us to slow down (429, 529)."""


class ModelUnavailable(ModelError):
    """The server, or the way to it, failed: 5xx, no connection, time-out."""


class ModelProtocolError(ModelError):
    """The server broke its protocol, or the stream ended before it was complete."""


class ToolError(AgentnbError):
    """A tool's own failure, in words meant for the model: it gets them as they are."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class StorageError(AgentnbError):
    """Something went wrong between agentnb and a recording."""


class NotSerializable(StorageError, TypeError):
    """A value is not JSON; the message gives the path to it."""


class RecordingMissing(StorageError, FileNotFoundError):
    """There is no recording of that name; the message says which there are."""


class RecordingCorrupt(StorageError):
    """A recording was changed or damaged; the message says where."""


class VersionMismatch(StorageError):
    """A recording was made by a newer agentnb than this one."""


class RecordingMismatch(StorageError):
    """A recording belongs to another loop than the one it was given."""


class ReplayDiverged(RecordingMismatch):
    """A loop decides otherwise than its recording says; `recorded` and `expected` are the two events."""

    def __init__(self, message: str, recorded: Any, expected: Any) -> None:
        super().__init__(message)
        self.recorded = recorded
        self.expected = expected


class StoreConflict(StorageError):
    """Another process has gone on with the same run."""


class StoreBusy(StorageError):
    """Another process holds the store's lock; nothing was written, and it can be tried again."""
