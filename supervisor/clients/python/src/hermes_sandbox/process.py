"""A job with the interface of `subprocess.Popen`."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from typing import IO, Any

from .job import Job


class Process:
    """A job as far as terminal backends know `subprocess.Popen`: `poll wait kill terminate send_signal stdout returncode`.

    `stdout` is the reading end of a real pipe, so `fileno()` and `select` work; standard error is merged into it. A reader that
    pauses pauses the job, within the bounds that `Session` names: `wait` without reading ends all the same, and loses output.
    `returncode` is the job's status: 128+n, not -n, when signal n ended it, and 255 when the session ended first. `pid` is None:
    processes of the sandbox have no number outside.
    """

    stdin: None = None
    stderr: None = None
    pid: None = None

    def __init__(self, job: Job, args: Any, *, text: bool = False) -> None:
        """`job` must have `stream` and `merge` (or `pty`); with `text`, `stdout` gives str (UTF-8, U+FFFD for what is none)."""
        self.job = job
        self.args = args
        self.returncode: int | None = None
        read, write = os.pipe()
        self.stdout: IO[Any] = open(read, "r", encoding="utf-8", errors="replace") if text else io.open(read, "rb")
        threading.Thread(target=self._pump, args=(write,), name=f"job {job.number}", daemon=True).start()

    def _pump(self, write: int) -> None:
        try:
            with open(write, "wb", buffering=0) as pipe:
                for _, data in self.job:
                    while data:
                        data = data[pipe.write(data) :]
        except Exception:
            self.job.abandon()

    def poll(self) -> int | None:
        """The status, or None while it runs."""
        if self.returncode is None and self.job.ended:
            status = self.job.poll()
            self.returncode = 255 if status is None else status
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and gives the status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        try:
            self.job.wait(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
        except Exception:
            if not self.job.ended:
                raise
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        """Kills it and every process that it left."""
        self.job.kill()

    def terminate(self) -> None:
        """SIGTERM to its process group."""
        self.job.signal("TERM")

    def send_signal(self, signal: int) -> None:
        """Sends a signal to its process group."""
        self.job.signal(signal)
