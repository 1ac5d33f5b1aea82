"""The errors that agentnb raises deliberately, grouped by the cause of the failure.

    AgentnbError
    ├── UsageError                  the caller asked for something that is not possible here
    │   ├── IllegalTransition       the loop's table has no transition from the current phase to the requested one
    │   ├── ImpossibleEvent         an event that cannot follow those before it
    │   ├── InvalidArguments        arguments that do not fit the tool's schema; names the argument
    │   ├── UnknownCall             no call with that id is waiting for a decision
    │   ├── UnknownName             agentnb has no attribute of that name
    │   ├── ScriptEnded             a test's model received more requests than it has answers
    │   └── AlreadyDecided          the call has been decided; the first decision remains valid
    ├── RunError                    a run ended without an output; raised when the output is requested
    │   ├── RunFailed               the model, the loop or agentnb itself failed
    │   ├── RunCancelled            the run was cancelled
    │   └── LimitReached            a limit of the run was reached
    ├── WaitTimeoutError            the timeout of a wait has passed; the run continues
    ├── WorkersLost                 a study has no workers left; its runs continue when it is started again
    ├── ModelError                  communication with a model failed
    │   ├── ModelRequestError       the request is at fault (400, 404, 413, 422): repeating it will not help
    │   │   ├── AuthenticationError the key is missing, wrong or without permission (401, 403)
    │   │   ├── ContextTooLong      the messages do not fit into the model's context
    │   │   └── ContentFiltered     the provider's content filter refused the request or its answer
    │   ├── ModelOverloaded         the server asks the client to wait (429, 529)
    │   ├── ModelUnavailable        the server or the connection to it failed (5xx, no connection, time-out)
    │   └── ModelProtocolError      the server violated its protocol, or the stream ended too early
    ├── ToolError                   a tool's own failure; raise it in a tool to choose the text that the model receives
    └── StorageError                reading or writing a recording failed
        ├── NotSerializable         a value that is not JSON; names its position in the value
        ├── RecordingMissing        no file, store, run or snapshot of that name
        ├── RecordingCorrupt        a recording that has been changed or damaged; names the position
        ├── VersionMismatch         a recording made by a newer agentnb
        ├── RecordingMismatch       a recording made by another loop than the one it was used with
        │   └── ReplayDiverged      the loop's decision differs from the recorded one; has both events
        ├── StoreConflict           another process has continued the same run
        └── StoreBusy               the store is locked, or its server is away

A tool's failure becomes a result that the model receives. A model's failure pauses the run. A failure of agentnb or of
the loop ends the run with an error (ARCHITECTURE.md, 3. Three kinds of failure).
"""

from __future__ import annotations

from typing import Any, Self

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
    "WorkersLost",
]


THROWN_IN = (KeyboardInterrupt, GeneratorExit)
"""Exceptions that end code from outside, as a cancellation does.

Any other exception raised by user-supplied code is a failure of that code, even if it is not an Exception: a panic of a
library written in Rust, `pytest.fail`, or `sys.exit()`, which ends that code and not the process. A SystemExit must not
reach an event loop: the event loop would stop, and everything that waits in it would wait forever.
"""


def printable(text: str, *, but: str = "") -> str:
    """Return `text` for a terminal, with unprintable and invisible characters displayed as escapes.

    but: characters that stay, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in but else repr(char)[1:-1] for char in text)


class AgentnbError(Exception):
    """The base class of all errors that agentnb raises deliberately.

    `str(error)` is safe to print in a terminal: control characters from a model or a tool are shown as escapes. `args`
    has the original text.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), but="\n\t")


class UsageError(AgentnbError):
    """An operation that is not possible here; nothing was changed."""


class IllegalTransition(UsageError):
    """A phase change that the loop's table does not allow from the current phase."""


class ImpossibleEvent(UsageError):
    """An event that cannot follow the previous events, for example a model's answer without a request."""


class InvalidArguments(UsageError, ValueError):
    """Arguments that do not fit the tool's schema; the message names each invalid argument."""


class UnknownCall(UsageError, KeyError):
    """A call id for which no call is waiting for a decision."""

    def __str__(self) -> str:
        return printable(str(self.args[0]), but="\n\t") if self.args else ""  # KeyError would show the repr


class UnknownName(UsageError, AttributeError):
    """A name that agentnb does not have."""


class ScriptEnded(UsageError, AssertionError):
    """A request to a scripted or recorded model that has no answer left for it."""


class AlreadyDecided(UsageError):
    """A second decision about a call; the first decision remains valid."""


class RunError(AgentnbError):
    """The end of a run without an output."""


class RunFailed(RunError):
    """A failure of the model, the loop or agentnb; `__cause__` is the original exception if it is still available."""


class RunCancelled(RunError):
    """The cancellation of a run; the message is the reason that was given."""


class LimitReached(RunError):
    """The end of a run at a limit on turns, calls, seconds, tokens or cost."""


class WaitTimeoutError(AgentnbError, TimeoutError):
    """The timeout of a wait has passed; the run continues."""


class WorkersLost(AgentnbError):
    """A study has no workers left that could drive its runs. Nothing that was recorded is lost."""


class ModelError(AgentnbError):
    """A failure in the communication with a model.

    `status` is the HTTP status. `retry_after` is the time in seconds that the server asked the client to wait. `code`
    is the server's code for the error, or the error's type if it has no code. `param` is the part of the request that
    the server names. `request_id` is the id under which the provider knows the request. `body` is the server's answer,
    parsed if it is a JSON object. `should_retry` is the server's word whether to send the request again. Each is None
    if the server did not send it.
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
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.code = code
        self.param = param
        self.request_id = request_id
        self.body = body
        self.should_retry = should_retry

    def reworded(self, message: str) -> Self:
        """Return a copy of this error with another message."""
        again = type(self)(message)
        again.__dict__.update(self.__dict__)
        return again


class ModelRequestError(ModelError):
    """An invalid request; sending it again would have the same result."""


class AuthenticationError(ModelRequestError):
    """A key that is missing, wrong, or without permission for the request."""


class ContextTooLong(ModelRequestError):
    """Messages that do not fit into the model's context, alone or together with the requested answer."""


class ContentFiltered(ModelRequestError):
    """A request that the provider's content filter refused, or an answer that it stopped."""


class ModelOverloaded(ModelError):
    """A server that asks the client to wait (429, 529)."""


class ModelUnavailable(ModelError):
    """A failure of the server or of the connection to it: 5xx, no connection, time-out."""


class ModelProtocolError(ModelError):
    """An answer that violates the server's protocol, or a stream that ended before it was complete."""


class ToolError(AgentnbError):
    """A tool's own failure; the model receives the message unchanged."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class StorageError(AgentnbError):
    """A failure in reading or writing a recording."""


class NotSerializable(StorageError, TypeError):
    """A value that is not JSON; the message has the path to it."""


class RecordingMissing(StorageError, FileNotFoundError):
    """A file, store, run or snapshot that does not exist."""


class RecordingCorrupt(StorageError):
    """A recording that was changed or damaged; the message has the position."""


class VersionMismatch(StorageError):
    """A recording that was made by a newer agentnb than this one."""


class RecordingMismatch(StorageError):
    """A recording that was made by another loop than the one it is used with."""


class ReplayDiverged(RecordingMismatch):
    """A decision of a loop that differs from its recording; `recorded` and `expected` are the two events."""

    def __init__(self, message: str, recorded: Any, expected: Any) -> None:
        super().__init__(message)
        self.recorded = recorded
        self.expected = expected


class StoreConflict(StorageError):
    """A run that another process has continued."""


class StoreBusy(StorageError):
    """A store that another process has locked, or whose server is away. The operation can be repeated."""
