"""Sessions: one sandbox that runs many jobs."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import itertools
import json
import logging
import os
import queue
import socket
import threading
from collections import deque
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from .errors import JobNotFound, ProtocolError, SandboxError, SessionClosed, from_answer
from .job import PIPE, WRITE_BYTES, Completed, Job, JobEvent, JobInfo, OutputQueue, decode, encode
from .process import Process
from .transport import ChildTransport, SocketTransport, Transport

PROTOCOL = 1
MESSAGE_BYTES = 16 << 20
EVENTS = 1024

Stdin = Union[bytes, str, int, None]
Pty = Union[bool, Tuple[int, int]]
Answer = concurrent.futures.Future[Any]

log = logging.getLogger("hermes_sandbox")


class Session:
    """A session, from `Session.start` or `Session.connect`. Any number of threads can use it at once.

    Leaving its `with` block closes it: a session that was started ends with all its jobs, one that was connected to goes on.

    Everything comes over one connection. Output of streamed jobs waits in a queue of `queue_bytes` for each of them. When
    one is full, reading pauses, and so do the server and the job: nothing is lost. If meanwhile somebody waits for an answer
    (also for the end of that job, or for other output), they get it `patience` seconds later at the latest, once for each
    full queue; what gives way is the output that nobody reads. It is left out and counted in `Job.dropped`, and nobody need
    be patient with that job again until half of its queue was read. The server still has its first and last bytes
    (`keep`). Where neither is acceptable, connect a second time.
    """

    queue_bytes = 1 << 20
    patience = 1.0

    def __init__(self, transport: Transport, timeout: float | None = None) -> None:
        """For `start` and `connect`. Raises as they do."""
        self._transport = transport
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._ids = itertools.count(1)
        self._open: Dict[int, Answer] = {}
        self._waiters = 0
        self._outputs: Dict[int, OutputQueue] = {}
        self._starting = 0
        self._early: deque[tuple[int, str, bytes]] = deque(maxlen=64)
        self._callback: Optional[Callable[[JobEvent], object]] = None
        self._events: queue.Queue[Optional[JobEvent]] = queue.Queue(EVENTS)
        self._reason: Optional[str] = None
        self._failure: Optional[str] = None
        self._gone: Optional[str] = None
        self._closing = False
        self._reader = threading.Thread(target=self._read, name="hermes-sandbox session", daemon=True)
        self._reader.start()
        try:
            hello = self._call("initialize", {"protocol": PROTOCOL}, timeout=timeout)
            if hello.get("protocol") != PROTOCOL:
                raise ProtocolError(f"the server answers with version {hello.get('protocol')!r} of the protocol")
        except concurrent.futures.TimeoutError:
            self._hang_up()
            raise TimeoutError(f"the server did not answer within {timeout} s") from None
        except BaseException:
            self._hang_up()
            raise
        self.version: str = hello.get("version", "")
        """The server's version."""
        self.name: Optional[str] = hello.get("session")
        """The session's name, where it has one."""
        self.tier: str = hello.get("tier", "")
        """The mechanism: `"namespaces"` or `"landlock"`."""
        self.lost: tuple[str, ...] = tuple(hello.get("lost", ()))
        """Names of the guarantees that could not be given."""

    @classmethod
    def start(
        cls,
        program: str = "hermes-sandbox",
        options: Sequence[str] = (),
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> Session:
        """Runs `PROGRAM serve OPTIONS` as a child, in directory `cwd` with environment `env`, and waits until it is ready.

        Raises OSError when the program cannot be run, SessionClosed (with what the server wrote) when it ends at once,
        VersionMismatch, and TimeoutError after `timeout` seconds.
        """
        return cls(ChildTransport([program, "serve", *options], cwd, env), timeout)

    @classmethod
    def connect(cls, path: str | os.PathLike[str], *, timeout: float = 60) -> Session:
        """Connects to the Unix socket of a session that runs. Raises OSError, VersionMismatch, SessionClosed, TimeoutError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(os.fspath(path))
        except BaseException:
            connection.close()
            raise
        return cls(SocketTransport(connection), timeout)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.name or ''} {'closed' if self.closed else 'open'}>"

    @property
    def closed(self) -> bool:
        """Whether it has ended or was closed."""
        return self._gone is not None

    @property
    def stderr(self) -> str:
        """The last 8 KiB that the server wrote to its standard error, also after the end; empty for one that was connected to."""
        return self._transport.stderr()

    def close(self) -> None:
        """Ends a session that was started (within 14 seconds, whatever its server does), leaves one that was connected to."""
        with self._lock:
            first, self._closing = not self._closing, True
        if first and self._transport.owns_server and not self.closed:
            with contextlib.suppress(SandboxError, concurrent.futures.TimeoutError):
                self._call("stop", {}, timeout=5)
        self._hang_up()

    def _hang_up(self) -> None:
        self._closing = True
        for output in list(self._outputs.values()):
            output.finish(discard=True)
        self._transport.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(5)

    # Requests

    def exec(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        pty: Pty = False,
        merge: bool = False,
        background: bool = False,
        keep: tuple[int, int] | None = None,
    ) -> Completed:
        """Runs a program, or a command line by `shell`, and waits for its end. When interrupted here, kills it.

        `stdin` is all of its input; `timeout` in seconds; `pty` a terminal (of rows and columns); `merge` puts standard error
        into standard output; with `background` processes that it leaves live on; `keep` is how many of the first and last
        bytes of each stream are kept, by default 20000 and 30000.

        A status that is not zero is no error. Raises JobNotStarted, NotAllowed, InvalidRequest, SessionClosed; ValueError for
        a message of more than 16 MiB. Arguments of any bytes are written as `os.fsdecode` does.
        """
        early, late = _divide(stdin)
        if early is PIPE and late is None:
            raise ValueError("exec needs all of the input; use start_job")
        job = self._start(
            argv,
            shell=shell,
            cwd=cwd,
            env=env,
            stdin=early,
            timeout=timeout,
            pty=pty,
            merge=merge,
            background=background,
            tied=not background,
            keep=keep,
        )
        try:
            if late is not None:
                _feed(job, late)
            return job.wait()
        except BaseException as error:
            if not isinstance(error, SandboxError) and not job.ended:
                with contextlib.suppress(SandboxError):
                    self._request("kill", {"job": job.number})
            raise

    def start_job(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        timeout: float | None = None,
        pty: Pty = False,
        merge: bool = False,
        background: bool = False,
        keep: tuple[int, int] | None = None,
        stream: bool = True,
        tied: bool = False,
    ) -> Job:
        """Starts a job and does not wait for it. As `exec`; `stdin` can be PIPE, too, and `stream` hands its output over.

        A job that is `tied` is killed, with what it left, when this connection ends; `exec` ties what it waits for.
        """
        early, late = _divide(stdin)
        job = self._start(
            argv,
            shell=shell,
            cwd=cwd,
            env=env,
            stdin=early,
            timeout=timeout,
            pty=pty,
            merge=merge,
            background=background,
            tied=tied,
            keep=keep,
            output=OutputQueue(self.queue_bytes, self.patience, lambda: self._waiters > 0) if stream else None,
        )
        if late is not None:
            threading.Thread(target=_feed, args=(job, late), name=f"job {job.number} stdin", daemon=True).start()
        return job

    def popen(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        timeout: float | None = None,
        background: bool = False,
        text: bool = False,
    ) -> Process:
        """As `start_job`, but with the interface of `subprocess.Popen`; standard error goes into `stdout`."""
        job = self.start_job(
            argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout=timeout, merge=True, background=background
        )
        return Process(job, shell if argv is None else argv, text=text)

    def _start(self, argv: Sequence[str] | None, *, output: OutputQueue | None = None, **options: Any) -> Job:
        if isinstance(argv, (str, bytes)):
            raise TypeError("argv is a list; use shell= for a command line")
        pty, keep, stdin = options.pop("pty"), options.pop("keep"), options.pop("stdin")
        params = {name: value for name, value in options.items() if value is not None and value is not False}
        if argv is not None:
            params["argv"] = [_word(word) for word in argv]
        for name in ("shell", "cwd"):
            if name in params:
                params[name] = _word(params[name])
        if "env" in params:
            params["env"] = {name: _word(value) for name, value in params["env"].items()}
        if stdin is not None:
            params["stdin"] = "pipe" if stdin is PIPE else encode(stdin)
        if pty:
            rows, columns = (24, 80) if pty is True else pty
            params["pty"] = {"rows": rows, "columns": columns}
        if keep is not None:
            params["keep"] = {"head": keep[0], "tail": keep[1]}
        if output is None:
            return Job(self, _field(self._call("start", params), "job", int))

        stream = output

        def started(answer: Answer) -> None:
            with self._lock:
                self._starting -= 1
            if answer.exception() is None:
                number = answer.result().get("job")
                self._outputs[number] = stream
                for job, name, data in list(self._early):
                    if job == number:
                        stream.put(name, data)
            if not self._starting:
                self._early.clear()

        with self._lock:
            self._starting += 1
        try:
            answer = self._request("start", {**params, "stream": True}, started)
        except ValueError:
            with self._lock:
                self._starting -= 1
            raise
        return Job(self, _field(self._await(answer), "job", int), stream)

    def job(self, number: int) -> Job:
        """The job of this number, to wait for or to kill, whoever started it. Its `wait` raises JobNotFound if there is none."""
        return Job(self, number)

    def list(self) -> List[JobInfo]:
        """All jobs that the server knows of."""
        return [JobInfo.parse(job) for job in _field(self._call("list", {}), "jobs", list)]

    def explain(self, what: str, subject: str) -> Dict[str, Any]:
        """What the policy decides for a `"path"`, `"host"`, `"syscall"` or `"env"`: as `hermes-sandbox explain --json`."""
        answer: Dict[str, Any] = self._call("explain", {"what": what, "subject": subject})
        return answer

    def stop(self) -> None:
        """Kills all jobs and ends the session, for everybody who is connected to it."""
        self._call("stop", {})

    def subscribe(self, callback: Callable[[JobEvent], object] | None) -> None:
        """Calls `callback` in a thread of its own whenever a job begins or ends; None ends that. It may use the session.

        Of events that it is too slow for, the newest 1024 wait. What it raises is logged.
        """
        with self._lock:
            first = self._callback is None and callback is not None
            self._callback = callback
        if first:
            threading.Thread(target=self._notify, name="hermes-sandbox events", daemon=True).start()
        self._call("subscribe", {"jobs": callback is not None})
        if callback is None:
            self._put_event(None)

    def _put_event(self, event: JobEvent | None) -> None:
        while True:
            try:
                return self._events.put_nowait(event)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._events.get_nowait()

    def _notify(self) -> None:
        while (event := self._events.get()) is not None:
            callback = self._callback
            try:
                if callback is not None:
                    callback(event)
            except Exception:
                log.exception("the callback for jobs failed")

    # The connection

    def _call(self, method: str, params: Dict[str, Any], *, timeout: float | None = None) -> Any:
        with self._waiting():
            return self._request(method, params).result(timeout)

    def _await(self, answer: Answer, timeout: float | None = None) -> Any:
        if answer.done():
            return answer.result()
        with self._waiting():
            return answer.result(timeout)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._lock:
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1

    def _request(self, method: str, params: Dict[str, Any], then: Callable[[Answer], None] | None = None) -> Answer:
        """Sends a request; `then` is called in the reader thread, before the next message is read."""
        answer: Answer = concurrent.futures.Future()
        if then is not None:
            answer.add_done_callback(then)
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        line = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > MESSAGE_BYTES:
            raise ValueError(f"a message of {len(line)} bytes is too long")
        with self._lock:
            if self._gone is not None:
                raise self._closed()
            self._open[number] = answer
        try:
            with self._waiting(), self._sending:
                self._transport.send(line)
        except (OSError, ValueError):
            self._reader.join(2)
            raise self._closed() from None
        return answer

    def _closed(self) -> SandboxError:
        if self._failure is not None:
            return ProtocolError(self._failure)
        if self._reason is not None:
            return SessionClosed(f"the session has ended: {self._reason}", reason=self._reason)
        if self._closing:
            return SessionClosed("the session was closed", reason="closed")
        return SessionClosed(self._gone or self._transport.obituary(), stderr=self.stderr)

    def _read(self) -> None:
        try:
            while (line := self._transport.reader.readline(MESSAGE_BYTES + 1)).endswith(b"\n"):
                self._handle(line)
            if len(line) > MESSAGE_BYTES:
                raise ProtocolError("the server sent a line that is too long")
        except (OSError, ValueError):
            pass
        except SandboxError as error:
            self._failure = str(error)
        except Exception as error:
            log.exception("reading failed")
            self._failure = f"reading failed: {error!r}"
        if self._failure is not None:
            self._transport.close()
        gone = self._transport.obituary()
        with self._lock:
            self._gone = gone
            unanswered = list(self._open.values())
            self._open.clear()
        for answer in unanswered:
            answer.set_exception(self._closed())
        self._put_event(None)
        with contextlib.suppress(OSError):
            self._transport.reader.close()

    def _handle(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ProtocolError(f"the server sent what is no message: {line[:200]!r}")
        if "method" in message:
            params = message.get("params")
            self._notification(message["method"], params if isinstance(params, dict) else {})
            return
        number = message.get("id")
        if number is None:
            raise ProtocolError(f"the server could not read a message: {from_answer(message.get('error'))}")
        with self._lock:
            answer = self._open.pop(number, None)
        if answer is None:
            return
        if "error" in message:
            answer.set_exception(from_answer(message["error"]))
        elif isinstance(message.get("result"), dict):
            answer.set_result(message["result"])
        else:
            answer.set_exception(ProtocolError(f"an answer without a result: {line[:200]!r}"))

    def _notification(self, method: Any, params: Dict[str, Any]) -> None:
        if method == "output":
            job, stream, data = params.get("job", -1), params.get("stream", "stdout"), decode(params)
            output = self._outputs.get(job)
            if output is not None:
                output.put(stream, data)
            elif self._starting:
                self._early.append((job, stream, data))
        elif method == "job":
            if self._callback is not None:
                self._put_event(JobEvent(params.get("job", -1), params.get("state", ""), params.get("status")))
        elif method == "closing":
            self._reason = str(params.get("reason"))

    def _forget(self, job: int) -> None:
        self._outputs.pop(job, None)


def _field(answer: Mapping[str, Any], name: str, kind: type) -> Any:
    value = answer.get(name)
    if not isinstance(value, kind):
        raise ProtocolError(f"an answer whose `{name}` is {value!r:.200}")
    return value


def _word(word: str) -> str | dict[str, str]:
    try:
        word.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(os.fsencode(word)).decode()}
    return word


def _divide(stdin: Stdin) -> tuple[Stdin, bytes | None]:
    """What goes with `start`, and what is written afterwards because one message cannot hold it."""
    if stdin is None or stdin is PIPE:
        return stdin, None
    if isinstance(stdin, int):
        raise ValueError("stdin is bytes, text, PIPE or None")
    data = stdin.encode() if isinstance(stdin, str) else stdin
    return (data, None) if len(data) <= 2 * WRITE_BYTES else (PIPE, data)


def _feed(job: Job, data: bytes) -> None:
    """Writes all of its input; a job that ends without it, or with its session, has no use for the rest."""
    with contextlib.suppress(JobNotFound, SessionClosed):
        job.write(data, eof=True)
