"""What a session does with servers that are unusual, wrong or dying: scripts on the other end of a socket pair."""

from __future__ import annotations

import abc
import base64
import json
import os
import socket
import stat
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Callable
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from hermes_sandbox import (  # noqa: E402
    JobNotFound,
    NotAllowed,
    ProtocolError,
    ServerError,
    Session,
    SessionClosed,
    VersionMismatch,
)
from hermes_sandbox import hermes  # noqa: E402
from hermes_sandbox.transport import SocketTransport  # noqa: E402

END = {"status": 0, "timed_out": False, "stdout": "", "stderr": "", "omitted": {"stdout": 0, "stderr": 0}}


class Peer:
    """The server's side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines: IO[bytes] = connection.makefile("rb")

    def read(self, method: str) -> Any:
        """The next request, which must be for `method`."""
        request = json.loads(self.lines.readline())
        assert request["jsonrpc"] == "2.0" and request["method"] == method, request
        return request

    def write(self, **message: Any) -> None:
        self.connection.sendall(self.line(**message))

    @staticmethod
    def line(**message: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"

    def answer(self, request: Any, **result: Any) -> None:
        self.write(id=request["id"], result=result)

    def error(self, request: Any, code: int, message: str, **data: Any) -> None:
        self.write(id=request["id"], error={"code": code, "message": message, "data": data})

    def hello(self, **more: Any) -> None:
        request = self.read("initialize")
        assert request["params"] == {"protocol": 1}
        self.answer(request, protocol=1, version="0.1.0", session="work", tier="landlock", lost=["limits"], **more)

    def start(self, number: int) -> Any:
        """Answers `start`, and gives the `wait` that follows."""
        self.answer(self.read("start"), job=number)
        return self.read("wait")


class Scripted(unittest.TestCase):
    def open(self, script: Callable[[Peer], None], *, hello: bool = True) -> Session:
        ours, theirs = socket.socketpair()
        failures: list[BaseException] = []

        def run() -> None:
            with theirs:
                try:
                    peer = Peer(theirs)
                    if hello:
                        peer.hello(unknown={"field": 1})
                    script(peer)
                except OSError:
                    pass
                except BaseException as error:
                    failures.append(error)
                finally:
                    peer.lines.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def finish() -> None:
            thread.join(10)
            self.assertFalse(thread.is_alive() or failures, failures)

        self.addCleanup(finish)
        session = Session(SocketTransport(ours), 10)
        self.addCleanup(session.close)
        return session

    def test_hello(self) -> None:
        session = self.open(lambda peer: None)
        self.assertEqual((session.version, session.name, session.tier), ("0.1.0", "work", "landlock"))
        self.assertEqual(session.lost, ("limits",))

    def test_wrong_version(self) -> None:
        with self.assertRaises(VersionMismatch) as caught:
            self.open(lambda peer: peer.error(peer.read("initialize"), -32001, "2 is spoken here", hint="update"), hello=False)
        self.assertEqual((caught.exception.code, caught.exception.hint), (-32001, "update"))
        with self.assertRaises(ProtocolError):
            self.open(lambda peer: peer.answer(peer.read("initialize"), protocol=2), hello=False)

    def test_no_answer(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, self.assertRaises(TimeoutError):
            Session(SocketTransport(ours), 0.2)

    def test_out_of_order(self) -> None:
        def script(peer: Peer) -> None:
            requests = [peer.read("explain") for _ in range(8)]
            for request in reversed(requests):
                peer.answer(request, subject=request["params"]["subject"])

        session = self.open(script)
        answers: dict[int, Any] = {}

        def ask(number: int) -> None:
            answers[number] = session.explain("path", str(number))["subject"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        self.assertEqual(answers, {number: str(number) for number in range(8)})

    def test_pieces_of_lines(self) -> None:
        def script(peer: Peer) -> None:
            line = peer.line(id=peer.read("explain")["id"], result={"path": "/ü"})
            for byte in line:
                peer.connection.sendall(bytes([byte]))
                time.sleep(0.001)
            first, second = peer.read("explain"), peer.read("explain")
            peer.connection.sendall(peer.line(id=second["id"], result={"n": 2}) + peer.line(id=first["id"], result={"n": 1}))

        session = self.open(script)
        self.assertEqual(session.explain("path", "/ü"), {"path": "/ü"})
        first = session._request("explain", {"what": "path", "subject": "1"})
        second = session._request("explain", {"what": "path", "subject": "2"})
        self.assertEqual((first.result(10), second.result(10)), ({"n": 1}, {"n": 2}))

    def test_long_lines(self) -> None:
        text = "ä" * 1_000_000

        def script(peer: Peer) -> None:
            wait = peer.start(1)
            peer.write(method="output", params={"job": 1, "stream": "stdout", "data": text})
            peer.answer(wait, job=1, **{**END, "stdout": text})

        job = self.open(script).start_job(["x"])
        self.assertEqual(job.read(10), ("stdout", text.encode()))
        self.assertEqual(job.wait(10).stdout, text)

    def test_too_long_line(self) -> None:
        def script(peer: Peer) -> None:
            peer.read("list")
            peer.connection.sendall(b" " * (17 << 20))

        with self.assertRaisesRegex(ProtocolError, "too long"):
            self.open(script).list()

    def test_unknown_messages(self) -> None:
        def script(peer: Peer) -> None:
            request = peer.read("list")
            peer.write(method="weather", params={"sun": True})
            peer.write(method="output", params={"job": 99, "stream": "stdout", "data": "of a job that nobody knows"})
            peer.write(method="news")
            peer.write(id=4711, result={})
            peer.write(id="text", method="question", params=[1])
            peer.answer(request, jobs=[], more=None)

        self.assertEqual(self.open(script).list(), [])

    def test_output_before_its_job(self) -> None:
        def script(peer: Peer) -> None:
            request = peer.read("start")
            self.assertEqual(request["params"], {"argv": ["x"], "stream": True})
            peer.write(method="output", params={"job": 7, "stream": "stdout", "data": "early "})
            peer.answer(request, job=7)
            peer.write(method="output", params={"job": 7, "stream": "stderr", "base64": base64.b64encode(b"\xff").decode()})
            peer.answer(peer.read("wait"), job=7, **END)
            peer.write(method="output", params={"job": 7, "stream": "stdout", "data": "too late"})

        job = self.open(script).start_job(["x"])
        self.assertEqual(list(job), [("stdout", b"early "), ("stderr", b"\xff")])

    def test_parameters(self) -> None:
        def script(peer: Peer) -> None:
            request = peer.read("start")
            self.assertEqual(
                request["params"],
                {
                    "shell": "x",
                    "cwd": "/",
                    "env": {"A": "b"},
                    "stdin": {"base64": "/w=="},
                    "timeout": 1.5,
                    "pty": {"rows": 24, "columns": 80},
                    "merge": True,
                    "background": True,
                    "keep": {"head": 0, "tail": 9},
                },
            )
            peer.answer(request, job=1)
            end = {"job": 1, "status": 137, "signal": "KILL", "note": "n", "cwd": "/", "stdout": "", "future": [1]}
            peer.answer(peer.read("wait"), advice=[{"kind": "k", "message": "m", "more": 1}], **end)

        session = self.open(script)
        end = session.exec(
            shell="x", cwd="/", env={"A": "b"}, stdin=b"\xff", timeout=1.5, pty=True, merge=True, background=True, keep=(0, 9)
        )
        self.assertEqual((end.status, end.signal, end.note, end.cwd, end.stderr), (137, "KILL", "n", "/", None))
        self.assertEqual(end.advice, (("k", "m"),))

    def test_errors(self) -> None:
        def script(peer: Peer) -> None:
            peer.error(peer.read("list"), -32004, "no", hint="ask")
            peer.error(peer.read("list"), -32002, "gone")
            peer.error(peer.read("list"), -1, "new")
            peer.error(peer.read("list"), -32005, "over")
            peer.write(id=peer.read("list")["id"])
            peer.answer(peer.read("list"), jobs=[{}])
            peer.answer(peer.read("list"))
            peer.answer(peer.read("start"), job=None)

        session = self.open(script)
        for kind, code, hint in (
            (NotAllowed, -32004, "ask"),
            (JobNotFound, -32002, None),
            (ServerError, -1, None),
            (SessionClosed, -32005, None),
            (ProtocolError, None, None),
            (ProtocolError, None, None),
            (ProtocolError, None, None),
        ):
            with self.assertRaises(kind) as caught:
                session.list()
            self.assertEqual((type(caught.exception), caught.exception.code, caught.exception.hint), (kind, code, hint))
        with self.assertRaises(ProtocolError):
            session.start_job(["x"])

    def test_nonsense(self) -> None:
        gave_up = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}\n'
        for line in (b"hello\n", b"[]\n", b"\xff\n", b"[" * 100_000 + b"\n", gave_up):

            def script(peer: Peer, line: bytes = line) -> None:
                peer.read("list")
                peer.connection.sendall(line)
                peer.lines.readline()

            session = self.open(script)
            with self.assertRaises(ProtocolError):
                session.list()
            with self.assertRaises(ProtocolError):
                session.list()

    def test_death(self) -> None:
        def script(peer: Peer) -> None:
            peer.start(1)
            peer.write(method="output", params={"job": 1, "stream": "stdout", "data": "last words"})
            peer.read("list")
            peer.connection.sendall(b'{"jsonrpc":"2.0","id":3,"resu')

        session = self.open(script)
        job = session.start_job(["x"])
        self.assertEqual(job.read(10), ("stdout", b"last words"))
        with self.assertRaises(SessionClosed) as caught:
            session.list()
        self.assertIsNone(caught.exception.reason)
        for use in (job.read, job.wait, job.kill, session.list, lambda: session.exec(["x"])):
            with self.assertRaises(SessionClosed):
                use()
        self.assertIsNone(job.poll())
        self.assertTrue(session.closed)

    def test_closing(self) -> None:
        for reason in ("idle", "ttl", "failed"):

            def script(peer: Peer, reason: str = reason) -> None:
                peer.read("list")
                peer.write(method="closing", params={"reason": reason})

            session = self.open(script)
            with self.assertRaises(SessionClosed) as caught:
                session.list()
            self.assertEqual(caught.exception.reason, reason)

    def test_full_queue(self) -> None:
        """Reading stops while one queue is full, and goes on after a while when somebody waits for an answer."""
        sent = 0
        piece = "x" * 65536

        def script(peer: Peer) -> None:
            nonlocal sent
            wait = peer.start(1)
            for sent in range(100):
                peer.write(method="output", params={"job": 1, "stream": "stdout", "data": piece})
            peer.answer(peer.read("list"), jobs=[])
            peer.answer(wait, job=1, **END)

        session = self.open(script)
        job = session.start_job(["x"])
        time.sleep(session.patience + 0.5)
        held = sent
        self.assertLess(held, 99)
        began = time.monotonic()
        self.assertEqual(session.list(), [])
        self.assertGreaterEqual(time.monotonic() - began, session.patience - 0.1)
        self.assertLess(time.monotonic() - began, session.patience + 1)
        data = b"".join(data for _, data in job)
        self.assertEqual(len(data) + job.dropped, 100 * 65536)
        self.assertLessEqual(len(data), session.queue_bytes)


class Children(unittest.TestCase):
    def program(self, body: str) -> str:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "program")
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n{body}\n")
        os.chmod(path, stat.S_IRWXU)
        return path

    def test_refusal(self) -> None:
        with self.assertRaises(SessionClosed) as caught:
            Session.start(self.program('echo "$@" >&2; echo "no user namespaces" >&2; exit 125'), ["--net", "off"])
        self.assertIn("status 125", str(caught.exception))
        self.assertEqual(caught.exception.stderr, "serve --net off\nno user namespaces")

    def test_crash(self) -> None:
        hello = '{"jsonrpc":"2.0","id":1,"result":{"protocol":1}}'
        session = Session.start(self.program(f"read a; echo '{hello}'; read b; head -c 100000 /dev/zero >&2; kill -9 $$"))
        self.addCleanup(session.close)
        with self.assertRaises(SessionClosed) as caught:
            session.list()
        self.assertIn("signal 9", str(caught.exception))
        self.assertEqual(caught.exception.stderr, session.stderr)
        self.assertEqual(len(session.stderr), 8192)

    def test_no_program(self) -> None:
        with self.assertRaises(FileNotFoundError):
            Session.start("/no/such/program")

    def test_server_that_does_not_end(self) -> None:
        hello = '{"jsonrpc":"2.0","id":1,"result":{"protocol":1}}'
        stop = '{"jsonrpc":"2.0","id":2,"result":{}}'
        session = Session.start(self.program(f"read a; echo '{hello}'; read b; echo '{stop}'; exec sleep 60 </dev/null"))
        began = time.monotonic()
        session.close()
        self.assertLess(time.monotonic() - began, 8)
        session.close()


class Hermes(unittest.TestCase):
    """The plugin against stand-ins for the modules of Hermes that it looks for."""

    def modules(self, interrupted: Callable[[], bool]) -> dict[str, ModuleType]:
        def module(name: str, **content: Any) -> ModuleType:
            made = ModuleType(name)
            made.__dict__.update(content)
            return made

        class Base:
            def __init__(self, cwd: str, timeout: int, env: Any = None) -> None:
                self.cwd, self.timeout, self.env = cwd, timeout, env or {}

            def cleanup(self) -> None:
                raise NotImplementedError

            def fetch_realpath(self) -> str:
                return "inherited"

        class Provider(abc.ABC):
            @property
            @abc.abstractmethod
            def name(self) -> str: ...

            @property
            def skip_container_guards(self) -> bool:
                return True

            @abc.abstractmethod
            def is_available(self) -> bool: ...

            @abc.abstractmethod
            def create_environment(self, *, cwd: str, timeout: int, **_unknown: Any) -> Any: ...

            def validated_config(self, config: Any) -> Any:
                return self.resolve_config(dict(config))  # type: ignore[attr-defined]

        return {
            "agent": module("agent"),
            "agent.terminal_env_provider": module("agent.terminal_env_provider", TerminalEnvironmentProvider=Provider),
            "tools": module("tools"),
            "tools.interrupt": module("tools.interrupt", is_interrupted=interrupted),
            "tools.environments": module("tools.environments"),
            "tools.environments.base": module(
                "tools.environments.base", BaseEnvironment=Base, touch_activity_if_due=lambda state, label: None
            ),
        }

    def test_register(self) -> None:
        registered: list[Any] = []

        class Context:
            register_terminal_environment_provider = registered.append

        fake = str(Path(__file__).parent / "fake_server.py")
        began = time.monotonic()
        with mock.patch.dict(sys.modules, self.modules(lambda: time.monotonic() > began + 1.5)):
            hermes.register(Context)
            (provider,) = registered
            self.assertEqual((provider.name, provider.is_container, provider.skip_container_guards), (hermes.NAME, False, False))
            self.assertTrue(provider.check_requirements({"backend_config": {"program": fake}}))
            config = provider.validated_config({"program": fake, "options": "--ro '/a b'"})
            self.assertEqual(config["options"], ["--ro", "/a b"])
            environment = provider.create_environment(cwd="/tmp", timeout=30, backend_config=config)
            self.addCleanup(environment.cleanup)
            self.assertEqual(environment.fetch_realpath(), "inherited")
            self.assertEqual(environment.execute("pwd")["output"], "/tmp\n")
            for command, bounded in (("echo begun; sleep 60", False), ("trap '' INT; echo begun; sleep 60", True)):
                result = environment.execute(command, bounded_capture=bounded)
                self.assertEqual((result["output"], result["returncode"]), ("begun\n\n[Command interrupted]", 130))

    def test_without_hermes(self) -> None:
        hermes.register(object())
        with self.assertRaises(ImportError):
            hermes.provider()
        self.assertEqual(hermes.SandboxProvider().probe_with_config({"program": "no-such"})[0], "needs_setup")
        self.assertEqual(hermes.SandboxProvider().probe_with_config({"socket": "/no/such"})[0], "unavailable")

    def test_sandbox_that_ends(self) -> None:
        fake = str(Path(__file__).parent / "fake_server.py")
        environment = hermes.SandboxProvider().create_environment(timeout=20, backend_config={"program": fake})
        self.addCleanup(environment.cleanup)
        result = environment.execute("kill -9 $PPID; sleep 10")
        self.assertEqual(result["returncode"], 125)
        self.assertIn("signal 9", result["output"])
        self.assertTrue(environment.execute("true")["environment_recreated"])


if __name__ == "__main__":
    unittest.main()
