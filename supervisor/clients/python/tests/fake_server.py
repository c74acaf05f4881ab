#!/usr/bin/env python3
"""A server that follows docs/serve.md to the letter and confines nothing: `fake_server.py serve [--socket PATH]`."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from typing import IO, Any, Callable

GRACE = 0.5
START = {"argv", "shell", "cwd", "env", "stdin", "pty", "merge", "timeout", "background", "keep", "stream", "tied"}
PARAMETERS = {
    "initialize": {"protocol"},
    "exec": START,
    "start": START,
    "wait": {"job", "timeout"},
    "write": {"job", "data", "base64", "eof"},
    "resize": {"job", "rows", "columns"},
    "signal": {"job", "signal", "group"},
    "kill": {"job"},
    "output": {"job", "stream"},
    "list": set(),
    "subscribe": {"jobs"},
    "explain": {"what", "subject"},
    "stop": set(),
}


def word(value: Any) -> str:
    return value if isinstance(value, str) else os.fsdecode(base64.b64decode(value["base64"]))


class Refusal(Exception):
    def __init__(self, code: int, message: str, **data: Any) -> None:
        super().__init__(message)
        self.code, self.data = code, data


def encode(data: bytes) -> dict[str, str]:
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def decode(params: dict[str, Any]) -> bytes:
    return base64.b64decode(params["base64"]) if "base64" in params else str(params.get("data", "")).encode()


def cut_character(data: bytes) -> int:
    """Where a character begins that the end of `data` cuts, or its length."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            width = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 1
            return len(data) - back if width > back else len(data)
    return len(data)


class Kept:
    def __init__(self, head: int, tail: int) -> None:
        self.head_limit, self.tail_limit = head, tail
        self.head, self.tail, self.total = b"", b"", 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.head_limit - len(self.head)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-self.tail_limit :] if self.tail_limit else b""

    @property
    def dropped(self) -> int:
        return self.total - len(self.head) - len(self.tail)

    def text(self) -> str:
        middle = f"\n[... {self.dropped} bytes omitted ...]\n" if self.dropped else ""
        if not middle:
            return (self.head + self.tail).decode(errors="replace")
        return self.head.decode(errors="replace") + middle + self.tail.decode(errors="replace")


class Job:
    def __init__(self, server: Server, number: int, params: dict[str, Any], client: Client) -> None:
        self.server, self.number, self.params = server, number, params
        self.client = client if params.get("stream") else None
        self.started = int(time.time() * 1000)
        self.shell = "shell" in params
        for name in ("shell", "cwd"):
            if name in params:
                params[name] = word(params[name])
        params["argv"] = [word(argument) for argument in params.get("argv", ())]
        params["env"] = {name: word(value) for name, value in params.get("env", {}).items()}
        self.argv = params["argv"] or ["bash", "-c", params["shell"]]
        self.timed_out = False
        self.end: dict[str, Any] | None = None
        self.ended = threading.Event()
        keep = params.get("keep", {"head": 20000, "tail": 30000})
        self.kept = {"stdout": Kept(keep["head"], keep["tail"])}
        self.single = bool(params.get("merge") or params.get("pty"))
        if not self.single:
            self.kept["stderr"] = Kept(keep["head"], keep["tail"])
        self.master: int | None = None
        self._start()

    def _start(self) -> None:
        env = {**os.environ, **self.params.get("env", {})}
        argv = self.argv
        if self.shell:
            trap = 'trap \'pwd -P >"$0/cwd"; export -p >"$0/env"\' EXIT; '
            argv = ["bash", "-c", f'[ -e "$0/env" ] && . "$0/env"; cd -- "$2" || exit 126; {trap} eval "$1"']
            argv += [self.server.state, self.params["shell"], self.params.get("cwd") or self.server.shell_cwd()]
        elif shutil.which(argv[0]) is None:
            raise Refusal(-32003, f"{argv[0]}: command not found", status=127)
        stdin = self.params.get("stdin", "null")
        options: dict[str, Any] = {"cwd": self.params.get("cwd"), "env": env, "start_new_session": True}
        if size := self.params.get("pty"):
            self.master, slave = pty.openpty()
            self.resize(size["rows"], size["columns"])
            options.update(stdin=slave, stdout=slave, stderr=slave)
            options["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        else:
            options["stdin"] = subprocess.DEVNULL if stdin == "null" else subprocess.PIPE
            options.update(stdout=subprocess.PIPE, stderr=subprocess.STDOUT if self.single else subprocess.PIPE)
        try:
            self.process = subprocess.Popen(argv, bufsize=0, **options)
        except OSError as error:
            raise Refusal(-32003, str(error), status=126) from None
        if self.master is not None:
            os.close(slave)
            sources: list[tuple[str, int]] = [("stdout", self.master)]
        else:
            sources = [("stdout", self.process.stdout.fileno())]  # type: ignore[union-attr]
            if not self.single:
                sources.append(("stderr", self.process.stderr.fileno()))  # type: ignore[union-attr]
        if isinstance(stdin, dict):
            threading.Thread(target=self.write, args=(decode(stdin), True), daemon=True).start()
        self.readers = [threading.Thread(target=self._read, args=source, daemon=True) for source in sources]
        threading.Thread(target=self._follow, daemon=True).start()

    def _read(self, stream: str, descriptor: int) -> None:
        rest = b""
        while True:
            try:
                data = os.read(descriptor, 1 << 16)
            except OSError:
                data = b""
            self.kept[stream].add(data)
            whole = rest + data
            cut = cut_character(whole) if data else len(whole)
            whole, rest = whole[:cut], whole[cut:]
            if whole and self.client is not None:
                self.client.notify("output", {"job": self.number, "stream": stream, **encode(whole)})
            if not data:
                return

    def _follow(self) -> None:
        for reader in self.readers:
            reader.start()
        try:
            status = self.process.wait(self.params.get("timeout"))
        except subprocess.TimeoutExpired:
            self.timed_out = True
            self.signal(signal.SIGTERM)
            try:
                status = self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                status = self.process.wait()
        if not self.params.get("background") or self.timed_out:
            self.signal(signal.SIGKILL)
        for reader in self.readers:
            reader.join(0.3 if self.params.get("background") else None)
        end: dict[str, Any] = {
            "job": self.number,
            "status": 124 if self.timed_out else 128 - status if status < 0 else status,
            "timed_out": self.timed_out,
            "omitted": {stream: kept.dropped for stream, kept in self.kept.items()},
            **{stream: kept.text() for stream, kept in self.kept.items()},
        }
        if self.timed_out:
            end["note"] = f"[Command timed out after {self.params['timeout']}s]"
        if status < 0:
            end["signal"] = signal.Signals(-status).name[3:]
        if self.shell:
            end["cwd"] = self.server.shell_cwd()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not any(reader.is_alive() for reader in self.readers):
                pipe.close()
        self.end = end
        self.ended.set()
        self.server.tell("job", {"job": self.number, "state": "ended", "status": end["status"]})

    def running(self) -> Job:
        if self.ended.is_set():
            raise Refusal(-32002, f"job {self.number} has ended")
        return self

    def write(self, data: bytes, eof: bool) -> None:
        descriptor = self.master if self.master is not None else self.process.stdin.fileno()  # type: ignore[union-attr]
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            self.ended.wait(1)
        if eof and self.process.stdin is not None:
            self.process.stdin.close()

    def signal(self, number: int, group: bool = True) -> None:
        try:
            (os.killpg if group else os.kill)(self.process.pid, number)
        except ProcessLookupError:
            pass

    def resize(self, rows: int, columns: int) -> None:
        if self.master is None:
            raise Refusal(-32602, "the job has no terminal")
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def info(self) -> dict[str, Any]:
        return {
            "job": self.number,
            "argv": self.argv,
            "state": "running" if self.end is None else "ended",
            "pty": self.master is not None,
            "background": bool(self.params.get("background")),
            "started": self.started,
            **(self.end or {}),
        }


class Server:
    def __init__(self) -> None:
        self.state = tempfile.mkdtemp(prefix="fake-session-")
        self.jobs: dict[int, Job] = {}
        self.clients: list[Client] = []
        self.lock = threading.Lock()
        self.over = threading.Event()

    def shell_cwd(self) -> str:
        try:
            with open(f"{self.state}/cwd") as file:
                return file.read().rstrip("\n")
        except FileNotFoundError:
            return os.getcwd()

    def tell(self, method: str, params: dict[str, Any]) -> None:
        for client in list(self.clients):
            if client.subscribed or method == "closing":
                client.notify(method, params)

    def end(self, reason: str) -> None:
        for job in list(self.jobs.values()):
            job.signal(signal.SIGKILL)
        self.tell("closing", {"reason": reason})
        shutil.rmtree(self.state, ignore_errors=True)
        self.over.set()


class Client:
    def __init__(self, server: Server, reader: IO[bytes], send: Callable[[bytes], None]) -> None:
        self.server, self.reader, self.send = server, reader, send
        self.lock = threading.Lock()
        self.greeted = self.subscribed = False
        server.clients.append(self)

    def write(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n"
        try:
            with self.lock:
                self.send(line)
        except OSError:
            pass

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.write({"method": method, "params": params})

    def serve(self) -> None:
        while line := self.reader.readline((16 << 20) + 1):
            try:
                request = json.loads(line)
            except ValueError:
                return self.write({"id": None, "error": {"code": -32700, "message": "not JSON"}})
            if request.get("method") == "initialize":
                self.answer(request)
            else:
                threading.Thread(target=self.answer, args=(request,), daemon=True).start()
        self.server.clients.remove(self)

    def answer(self, request: dict[str, Any]) -> None:
        try:
            method, params = request["method"], request.get("params", {})
            if method not in PARAMETERS:
                raise Refusal(-32601, f"unknown method {method}")
            if unknown := set(params) - PARAMETERS[method]:
                raise Refusal(-32602, f"unknown parameter {min(unknown)}")
            if not self.greeted and method != "initialize":
                raise Refusal(-32001, "the first request must be initialize")
            result = getattr(self, f"do_{method}")(**params)
            if method == "start":
                job = result
                result = {"job": job.number}
            self.write({"id": request["id"], "result": result})
            if method == "stop":
                self.server.end("stopped")
        except Refusal as refusal:
            error = {"code": refusal.code, "message": str(refusal), "data": refusal.data}
            self.write({"id": request["id"], "error": error})

    def job(self, number: int) -> Job:
        if number not in self.server.jobs:
            raise Refusal(-32002, f"there is no job {number}", hint="`list` names those there are")
        return self.server.jobs[number]

    def do_initialize(self, protocol: int) -> dict[str, Any]:
        if protocol != 1:
            raise Refusal(-32001, f"version {protocol} of the protocol is not spoken here, but 1")
        self.greeted = True
        return {"protocol": 1, "version": "0.0.0", "session": None, "tier": "namespaces", "lost": []}

    def do_start(self, **params: Any) -> Job:
        if ("argv" in params) == ("shell" in params):
            raise Refusal(-32602, "either `argv` or `shell`")
        with self.server.lock:
            number = len(self.server.jobs) + 1
            job = self.server.jobs[number] = Job(self.server, number, params, self)
        self.server.tell("job", {"job": number, "state": "started"})
        return job

    def do_exec(self, **params: Any) -> Any:
        job = self.do_start(**params)
        job.ended.wait()
        return job.end

    def do_wait(self, job: int, timeout: float | None = None) -> Any:
        found = self.job(job)
        if not found.ended.wait(timeout):
            raise Refusal(-32002, "the job still runs")
        return found.end

    def do_write(self, job: int, eof: bool = False, **data: str) -> dict[str, Any]:
        self.job(job).running().write(decode(data), eof)
        return {}

    def do_resize(self, job: int, rows: int, columns: int) -> dict[str, Any]:
        self.job(job).running().resize(rows, columns)
        return {}

    def do_signal(self, job: int, signal: str, group: bool = True) -> dict[str, Any]:
        found = self.job(job).running()
        number = getattr(sys.modules["signal"], f"SIG{signal}", None)
        if number is None:
            raise Refusal(-32602, f"no signal is called {signal}")
        found.signal(number, group)
        return {}

    def do_kill(self, job: int) -> dict[str, Any]:
        self.job(job).running().signal(signal.SIGKILL)
        return {}

    def do_output(self, job: int, stream: str) -> dict[str, Any]:
        kept = self.job(job).kept[stream]
        return {**encode(kept.head + kept.tail), "dropped": kept.dropped}

    def do_list(self) -> dict[str, Any]:
        return {"jobs": [job.info() for job in self.server.jobs.values()]}

    def do_subscribe(self, jobs: bool) -> dict[str, Any]:
        self.subscribed = jobs
        return {}

    def do_explain(self, what: str, subject: str) -> dict[str, Any]:
        if what not in ("path", "host", "syscall", "env"):
            raise Refusal(-32602, f"`what` is path, host, syscall or env, not {what}")
        return {"what": what, "subject": subject, "allowed": False}

    def do_stop(self) -> dict[str, Any]:
        return {}


def write_all(descriptor: int) -> Callable[[bytes], None]:
    def send(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return send


def main() -> None:
    server = Server()
    options = sys.argv[2:]
    if "--socket" not in options:
        client = Client(server, sys.stdin.buffer, write_all(1))

        def talk() -> None:
            client.serve()
            server.end("stopped")

        threading.Thread(target=talk, daemon=True).start()
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(options[options.index("--socket") + 1])
        listener.listen()

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                client = Client(server, connection.makefile("rb"), connection.sendall)
                threading.Thread(target=client.serve, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
    server.over.wait()
    shutil.rmtree(server.state, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
