"""How a session reaches its server: a child's pipes, or a Unix socket."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import threading
from typing import IO, Mapping, Protocol, Sequence

STDERR_BYTES = 8192


class Transport(Protocol):
    """A connection. `send` is called by one thread at a time, `reader` by one other; `close` by any, and it ends both."""

    reader: IO[bytes]
    owns_server: bool

    def send(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def obituary(self) -> str:
        """Why there is nothing more to read, as far as it can be told from here."""

    def stderr(self) -> str:
        """The end of the server's standard error."""


class SocketTransport:
    owns_server = False

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.reader: IO[bytes] = io.BufferedReader(connected.makefile("rb", buffering=0), 1 << 16)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def obituary(self) -> str:
        return "the server closed the connection"

    def stderr(self) -> str:
        return ""


class ChildTransport:
    owns_server = True

    def __init__(self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> None:
        self._child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=1 << 16,
            start_new_session=True,
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._stdin = self._child.stdin
        self._stderr = self._child.stderr
        self._sending = threading.Lock()
        self.reader: IO[bytes] = self._child.stdout
        self._tail = b""
        self._listener = threading.Thread(target=self._listen, name="hermes-sandbox stderr", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        with self._stderr:
            while piece := os.read(self._stderr.fileno(), STDERR_BYTES):
                self._tail = (self._tail + piece)[-STDERR_BYTES:]

    def send(self, data: bytes) -> None:
        with self._sending:
            while data:
                data = data[os.write(self._stdin.fileno(), data) :]

    def close(self) -> None:
        self._close_stdin(0.1)
        for end in (None, self._child.terminate, self._child.kill):
            if end is not None:
                end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(3)
                break
        self._close_stdin(1)

    def _close_stdin(self, timeout: float) -> None:
        """A sender that the server keeps waiting keeps the descriptor: it must not become somebody else's under it."""
        if self._sending.acquire(timeout=timeout):
            try:
                self._stdin.close()
            finally:
                self._sending.release()

    def obituary(self) -> str:
        try:
            status = self._child.wait(1)
        except subprocess.TimeoutExpired:
            return "the server closed its output"
        self._listener.join(1)
        return f"the server was ended by signal {-status}" if status < 0 else f"the server ended with status {status}"

    def stderr(self) -> str:
        return self._tail.decode(errors="replace").rstrip()
