"""What can go wrong."""

from __future__ import annotations

from typing import Any, Mapping


class SandboxError(Exception):
    """Base of every error of this package; `str()` of it is a sentence for people."""

    code: int | None = None
    """The protocol's error code; None where the error did not come from the server."""
    hint: str | None = None
    """What to do about it, where there is a remedy."""


class ProtocolError(SandboxError):
    """The server sent what the protocol does not know, or a message is longer than it allows."""


class SessionClosed(SandboxError):
    """The session has ended: what was asked may or may not have been done."""

    code = -32005

    def __init__(self, message: str, *, reason: str | None = None, stderr: str = "") -> None:
        super().__init__(f"{message}\n{stderr}" if stderr else message)
        self.reason = reason
        """`"stopped"`, `"idle"`, `"ttl"`, `"failed"` as the server said, `"closed"` when this side closed it, else None."""
        self.stderr = stderr
        """The last 8 KiB that the server wrote to its standard error; empty for a session that was connected to."""


class ServerError(SandboxError):
    """The server answered a request with an error."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.data = data
        """Everything that the server said about it."""
        hint = data.get("hint")
        self.hint = hint if isinstance(hint, str) else None


class InvalidRequest(ServerError):
    """Unknown method or wrong parameters: the message says which."""


class VersionMismatch(ServerError):
    """The server does not speak this version of the protocol: the message names those that it does."""


class JobNotFound(ServerError):
    """There is no such job, or it has ended."""


class JobNotStarted(ServerError):
    """The command could not be started."""

    @property
    def status(self) -> int:
        """As of a shell: 127 not found, 126 not executable, 125 for what concerns the sandbox."""
        status = self.data.get("status")
        return status if isinstance(status, int) else 125


class NotAllowed(ServerError):
    """The policy does not allow it."""


_KINDS = {
    -32600: InvalidRequest,
    -32601: InvalidRequest,
    -32602: InvalidRequest,
    -32001: VersionMismatch,
    -32002: JobNotFound,
    -32003: JobNotStarted,
    -32004: NotAllowed,
}


def from_answer(error: Any) -> SandboxError:
    """The exception for the `error` of an answer."""
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        return ProtocolError(f"an error without a code: {error!r:.200}")
    code, message, data = error["code"], str(error.get("message", "")), error.get("data")
    if code == SessionClosed.code:
        return SessionClosed(message or "the sandbox has ended")
    return _KINDS.get(code, ServerError)(code, message, data if isinstance(data, dict) else {})
