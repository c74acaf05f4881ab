"""Jobs: commands in a session, what they print and how they end."""

from __future__ import annotations

import base64
import codecs
import concurrent.futures
import contextlib
import signal as signals
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple

from .errors import JobNotFound, ProtocolError

if TYPE_CHECKING:
    from .session import Session

PIPE = subprocess.PIPE
"""For `stdin`: what `Job.write` sends."""

WRITE_BYTES = 1 << 20


class Omitted(NamedTuple):
    """Bytes that are missing in the middle of each stream."""

    stdout: int = 0
    stderr: int = 0


class Advice(NamedTuple):
    """A hint of the advisory layer. It never decides anything."""

    kind: str
    message: str


class Retained(NamedTuple):
    """What the server keeps of a stream by now, and how many bytes it has dropped from its middle."""

    data: bytes
    dropped: int


class JobEvent(NamedTuple):
    """A job began (`state` is `"started"`) or ended (`"ended"`, with its `status`)."""

    job: int
    state: str
    status: int | None = None


@dataclass(frozen=True)
class Completed:
    """How a job ended."""

    job: int
    status: int
    """Exit status; 124 when its time was up, 130 when it was interrupted, 128+n when signal n ended it."""
    stdout: str
    """Its first and last bytes with a line `[... N bytes omitted ...]` between; no UTF-8 becomes U+FFFD."""
    stderr: str | None = None
    """The same of standard error; None with `merge` or `pty`."""
    timed_out: bool = False
    signal: str | None = None
    """Name of the signal that ended it."""
    omitted: Omitted = Omitted()
    note: str | None = None
    """What people should be told, such as `[Command timed out after 5s]`."""
    cwd: str | None = None
    """For `shell`: where the next one begins."""
    advice: tuple[Advice, ...] = ()

    @classmethod
    def parse(cls, end: Mapping[str, Any]) -> Completed:
        """Reads the end of a job. Raises ProtocolError."""
        try:
            omitted = end.get("omitted") or {}
            return cls(
                job=end["job"],
                status=end["status"],
                stdout=end.get("stdout", ""),
                stderr=end.get("stderr"),
                timed_out=end.get("timed_out", False),
                signal=end.get("signal"),
                omitted=Omitted(omitted.get("stdout", 0), omitted.get("stderr", 0)),
                note=end.get("note"),
                cwd=end.get("cwd"),
                advice=tuple(Advice(each["kind"], each["message"]) for each in end.get("advice", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"not the end of a job: {error!r}") from error


@dataclass(frozen=True)
class JobInfo:
    """One job of `Session.list`."""

    job: int
    argv: tuple[str, ...]
    state: str
    """`"running"` or `"ended"`."""
    pty: bool
    background: bool
    started: float
    """Seconds since 1970."""
    end: Completed | None
    """None while it runs."""

    @classmethod
    def parse(cls, info: Mapping[str, Any]) -> JobInfo:
        """Reads one entry of the list. Raises ProtocolError."""
        try:
            return cls(
                job=info["job"],
                argv=tuple(info["argv"]),
                state=info["state"],
                pty=info.get("pty", False),
                background=info.get("background", False),
                started=info["started"] / 1000,
                end=Completed.parse(info) if info["state"] == "ended" else None,
            )
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"not a job of a list: {error!r}") from error


def encode(data: bytes | str) -> dict[str, str]:
    """`data` where it is text, else `base64`."""
    if isinstance(data, str):
        return {"data": data}
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def decode(message: Mapping[str, Any]) -> bytes:
    """The bytes of `data` or `base64`. Raises ProtocolError."""
    try:
        if "base64" in message:
            return base64.b64decode(message["base64"], validate=True)
        return codecs.encode(message["data"], "utf-8", "replace")
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"neither `data` nor `base64`: {error!r}") from error


class OutputQueue:
    """The output of one job between the reader thread and whoever consumes it; at most `limit` bytes, or one larger piece.

    While it is full the reader waits, so the server waits, and so does the job. When somebody waits for an answer meanwhile
    (`starving`), they get it after `patience` seconds at the latest: what this job prints is then dropped and counted. The
    next one need not be patient, until half of the queue has been consumed.
    """

    def __init__(self, limit: int, patience: float, starving: Callable[[], bool]) -> None:
        self._limit = limit
        self._patience = patience
        self._starving = starving
        self._pieces: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._lagging = False
        self._finished = False
        self._changed = threading.Condition()
        self.dropped = 0

    def put(self, stream: str, data: bytes) -> None:
        with self._changed:
            deadline = None
            while not self._finished and self._full(len(data)):
                if not self._starving():
                    deadline = None
                elif self._lagging or (deadline is not None and time.monotonic() >= deadline):
                    self._lagging = True
                    self.dropped += len(data)
                    return
                elif deadline is None:
                    deadline = time.monotonic() + self._patience
                self._changed.wait(0.02)
            if not self._finished:
                self._pieces.append((stream, data))
                self._bytes += len(data)
                self._changed.notify_all()

    def _full(self, more: int) -> bool:
        if self._lagging:
            self._lagging = self._bytes > self._limit // 2
        return bool(self._pieces) and (self._lagging or self._bytes + more > self._limit)

    def get(self, timeout: float | None = None) -> tuple[str, bytes] | None:
        """The next piece; None after the last one. Raises TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._pieces or self._finished, timeout):
                raise TimeoutError(f"no output within {timeout} s")
            if not self._pieces:
                return None
            piece = self._pieces.popleft()
            self._bytes -= len(piece[1])
            self._changed.notify_all()
            return piece

    def finish(self, *, discard: bool = False) -> None:
        """Nothing follows; with `discard`, what is there is of no use either."""
        with self._changed:
            self._finished = True
            if discard:
                self._pieces.clear()
                self._bytes = 0
            self._changed.notify_all()


class Job:
    """A command in a session.

    Iterating gives its output as pairs of stream (`"stdout"`, `"stderr"`) and bytes, until it ends; for a job with
    `stream`. Read it or leave the `with` block: see `Session` for what happens to others while nobody does.

    Used in a `with` statement it is killed at the end of the block if it still runs.
    """

    def __init__(self, session: Session, number: int, output: OutputQueue | None = None) -> None:
        self._session = session
        self._output = output
        self.number = number
        self._end = session._request("wait", {"job": number}, self._ended)

    def _ended(self, _end: concurrent.futures.Future[Any]) -> None:
        self._session._forget(self.number)
        if self._output is not None:
            self._output.finish()

    def __repr__(self) -> str:
        return f"<Job {self.number} {'running' if self.poll() is None else 'ended'}>"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.abandon()
        if not self.ended:
            self.kill()

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        while True:
            piece = self.read()
            if piece is None:
                return
            yield piece

    def read(self, timeout: float | None = None) -> tuple[str, bytes] | None:
        """The next piece of output, or None after the last one.

        Raises TimeoutError after `timeout` seconds, SessionClosed when the session ended before the job, and ValueError
        for a job without `stream`.
        """
        if self._output is None:
            raise ValueError("a job without `stream` gives its output when it ends")
        with self._session._waiting():
            piece = self._output.get(timeout)
        if piece is None:
            self._end.result()
        return piece

    @property
    def dropped(self) -> int:
        """Bytes of output that nobody read in time and that iteration therefore left out."""
        return self._output.dropped if self._output is not None else 0

    def abandon(self) -> None:
        """Nobody reads its output any more: the job goes on and what it prints is not handed over."""
        if self._output is not None:
            self._output.finish(discard=True)

    @property
    def ended(self) -> bool:
        """Whether it has ended, or the session has."""
        return self._end.done()

    def poll(self) -> int | None:
        """Its exit status; None while it runs or when the session ended first. Does not wait."""
        if not self.ended or self._end.exception() is not None:
            return None
        return self.wait().status

    def wait(self, timeout: float | None = None) -> Completed:
        """Waits until it ends. Raises TimeoutError after `timeout` seconds (the job goes on), and SessionClosed."""
        try:
            return Completed.parse(self._session._await(self._end, timeout))
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"job {self.number} still runs after {timeout} s") from None

    def write(self, data: bytes | str, *, eof: bool = False) -> None:
        """Writes to its standard input (`stdin=PIPE`, or `pty`), and returns when the job has taken it.

        Raises JobNotFound when it has ended.
        """
        if isinstance(data, str):
            data = data.encode()
        pieces = [data[start : start + WRITE_BYTES] for start in range(0, len(data), WRITE_BYTES)] or [b""]
        for piece in pieces[:-1]:
            self._session._call("write", {"job": self.number, **encode(piece)})
        self._session._call("write", {"job": self.number, **encode(pieces[-1]), **({"eof": True} if eof else {})})

    def close_stdin(self) -> None:
        """Closes its standard input: the job reads an end of file. Raises JobNotFound when it has ended."""
        self.write(b"", eof=True)

    def resize(self, rows: int, columns: int) -> None:
        """Gives its terminal another size. Raises JobNotFound when it has ended."""
        self._session._call("resize", {"job": self.number, "rows": rows, "columns": columns})

    def signal(self, signal: str | int = "TERM", *, group: bool = True) -> None:
        """Sends a signal by name (`"INT"`) or number to its process group, or to it alone. No error when it has ended."""
        name = signal if isinstance(signal, str) else signals.Signals(signal).name
        name = name[3:] if name.startswith("SIG") else name
        with contextlib.suppress(JobNotFound):
            self._session._call("signal", {"job": self.number, "signal": name, "group": group})

    def kill(self) -> None:
        """Kills it and every process that it left. No error when it has ended."""
        with contextlib.suppress(JobNotFound):
            self._session._call("kill", {"job": self.number})

    def output(self, stream: str = "stdout") -> Retained:
        """What the server keeps of its `"stdout"` or `"stderr"` by now, whether it runs or has ended."""
        answer = self._session._call("output", {"job": self.number, "stream": stream})
        return Retained(decode(answer), answer.get("dropped", 0))
