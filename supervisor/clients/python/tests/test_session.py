"""What a session does, with the fake server and, when HERMES_SANDBOX_BIN names it, with the real program."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from hermes_sandbox import (  # noqa: E402
    PIPE,
    InvalidRequest,
    JobEvent,
    JobNotFound,
    JobNotStarted,
    Session,
    SessionClosed,
)
from hermes_sandbox import hermes  # noqa: E402

FAKE = str(Path(__file__).parent / "fake_server.py")
REAL = os.environ.get("HERMES_SANDBOX_BIN")


def setUpModule() -> None:
    if not REAL:
        print("HERMES_SANDBOX_BIN is not set: skipped with the real program", file=sys.stderr)


if TYPE_CHECKING:
    TestCase = unittest.TestCase
else:
    TestCase = object


class Contract(TestCase):
    """The tests; mixed into one class for each server."""

    program: str
    session: Session

    def open(self) -> Session:
        return Session.start(self.program, cwd=self.directory)

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory(dir=os.path.expanduser("~") if self.program != FAKE else None)
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        self.session = self.open()
        self.addCleanup(self.session.close)

    def test_initialize(self) -> None:
        self.assertIn(self.session.tier, ("namespaces", "landlock"))
        self.assertIsInstance(self.session.lost, tuple)
        self.assertTrue(self.session.version)

    def test_exec(self) -> None:
        end = self.session.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
        self.assertEqual((end.status, end.stdout, end.stderr), (3, "out\n", "err\n"))
        self.assertFalse(end.timed_out)
        self.assertIsNone(end.signal)
        self.assertEqual(tuple(end.omitted), (0, 0))

    def test_not_found(self) -> None:
        with self.assertRaises(JobNotStarted) as caught:
            self.session.exec(["no-such-program"])
        self.assertEqual((caught.exception.status, caught.exception.code), (127, -32003))

    def test_wrong_use(self) -> None:
        with self.assertRaises(TypeError):
            self.session.exec("ls")
        with self.assertRaises(InvalidRequest):
            self.session.exec()
        with self.assertRaises(InvalidRequest):
            self.session.explain("weather", "today")
        with self.assertRaises(ValueError):
            self.session.exec(["echo", "x" * (17 << 20)])

    def test_stdin(self) -> None:
        self.assertEqual(self.session.exec(["cat"]).stdout, "")
        self.assertEqual(self.session.exec(["cat"], stdin="Grüße\n").stdout, "Grüße\n")
        self.assertEqual(self.session.exec(["od", "-An", "-tx1"], stdin=b"\xff\x00").stdout, " ff 00\n")
        self.assertEqual(self.session.exec(["wc", "-c"], stdin=b"\xff" * 5_000_000).stdout.strip(), "5000000")
        self.assertEqual(self.session.exec(["true"], stdin=b"x" * 5_000_000).status, 0)

    def test_env_and_cwd(self) -> None:
        end = self.session.exec(["sh", "-c", "echo $GREETING; pwd"], env={"GREETING": "hello"}, cwd="/tmp")
        self.assertEqual(end.stdout, "hello\n/tmp\n")

    def test_shell_goes_on(self) -> None:
        end = self.session.exec(shell="cd /usr && export COLOUR=red")
        self.assertEqual(end.cwd, "/usr")
        self.assertEqual(self.session.exec(shell="echo $COLOUR; pwd").stdout, "red\n/usr\n")

    def test_timeout(self) -> None:
        end = self.session.exec(["sh", "-c", "echo begun; sleep 60"], timeout=0.5)
        self.assertEqual((end.status, end.timed_out, end.stdout), (124, True, "begun\n"))
        self.assertIn("timed out", end.note or "")

    def test_merge(self) -> None:
        end = self.session.exec(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], merge=True)
        self.assertEqual((end.stdout, end.stderr), ("1\n2\n3\n", None))

    def test_terminal(self) -> None:
        # From its first moment: a program that asks at once must not see another size.
        for _ in range(20):
            end = self.session.exec(["sh", "-c", "test -t 0 && test -t 2 && stty size"], pty=(31, 97))
            self.assertEqual(end.stdout, "31 97\r\n")
        with self.session.start_job(["sh", "-c", "read line; stty size"], pty=True, stdin=PIPE) as job:
            job.resize(10, 20)
            job.write("go\n")
            self.assertIn("10 20", job.wait(10).stdout)

    def test_keep(self) -> None:
        end = self.session.exec(["sh", "-c", "printf aaaa; printf bbbbbb; printf cccc"], keep=(4, 4))
        self.assertEqual(end.omitted.stdout, 6)
        self.assertTrue(end.stdout.startswith("aaaa") and end.stdout.endswith("cccc"))
        self.assertIn("6 bytes omitted", end.stdout)

    def test_conversation(self) -> None:
        with self.session.start_job(["cat"], stdin=PIPE) as job:
            for text in ("one\n", "zwölf\n", "\U0001f980\n"):
                job.write(text)
                piece = job.read(10)
                self.assertEqual(piece, ("stdout", text.encode()))
            self.assertIsNone(job.poll())
            job.close_stdin()
            self.assertEqual(list(job), [])
            self.assertEqual((job.wait(10).status, job.poll()), (0, 0))
            with self.assertRaises(JobNotFound):
                job.write("too late")

    def test_bytes_of_streams(self) -> None:
        job = self.session.start_job(["sh", "-c", r"printf 'a\377\000\303'; printf '\274' >&2"])
        pieces = list(job)
        self.assertEqual(b"".join(data for stream, data in pieces if stream == "stdout"), b"a\xff\x00\xc3")
        self.assertEqual(b"".join(data for stream, data in pieces if stream == "stderr"), b"\xbc")
        self.assertEqual(job.wait().stdout, "a\ufffd\0\ufffd")

    def test_character_across_pieces(self) -> None:
        job = self.session.start_job(["sh", "-c", r"printf '\303'; sleep 0.3; printf '\274'"])
        self.assertEqual(b"".join(data for _, data in job).decode(), "ü")

    def test_much_output(self) -> None:
        job = self.session.start_job(["sh", "-c", "head -c 20000000 /dev/zero"])
        self.assertEqual(sum(len(data) for _, data in job), 20_000_000)
        self.assertEqual(job.dropped, 0)
        self.assertEqual(job.wait().omitted.stdout, 20_000_000 - 50_000)

    def test_slow_reader_loses_nothing(self) -> None:
        job = self.session.start_job(["sh", "-c", "head -c 6000000 /dev/zero"])
        time.sleep(self.session.patience + 0.5)
        self.assertIsNone(job.poll())
        self.assertEqual(sum(len(data) for _, data in job), 6_000_000)
        self.assertEqual(job.dropped, 0)

    def test_reader_that_never_reads(self) -> None:
        job = self.session.start_job(["yes"])
        time.sleep(0.5)
        began = time.monotonic()
        for _ in range(3):
            self.assertEqual(self.session.exec(["echo", "hello"]).stdout, "hello\n")
        self.assertLess(time.monotonic() - began, self.session.patience + 4)
        self.assertGreater(job.dropped, 0)
        job.kill()
        self.assertEqual(job.wait(10).signal, "KILL")
        self.assertLessEqual(sum(len(data) for _, data in job), self.session.queue_bytes)

    def test_signals(self) -> None:
        job = self.session.start_job(["sleep", "60"], stream=False)
        job.signal("INT")
        self.assertEqual(job.wait(10).status, 130)
        job = self.session.start_job(["sleep", "60"], stream=False)
        with self.assertRaises(TimeoutError):
            job.wait(0.1)
        job.signal(signal.SIGTERM)
        self.assertEqual((job.wait(10).status, job.wait().signal), (143, "TERM"))
        job.kill()
        job.signal("SIGTERM")

    def test_background(self) -> None:
        self.assertEqual(self.session.exec(shell="sleep 60 >/dev/null & echo $! > pid", background=True).status, 0)
        self.assertEqual(self.session.exec(shell="kill $(cat pid)").status, 0)

    def test_bytes_that_are_no_text(self) -> None:
        odd = os.fsdecode(b"a\xffb")
        end = self.session.start_job(["sh", "-c", 'printf %s "$1$V"', "sh", odd], env={"V": odd})
        self.assertEqual(b"".join(data for _, data in end), b"a\xffba\xffb")

    def test_other_jobs(self) -> None:
        job = self.session.start_job(["sh", "-c", "echo hello; sleep 60"])
        self.assertEqual(job.read(10), ("stdout", b"hello\n"))
        self.assertEqual(job.output(), (b"hello\n", 0))
        listed = {info.job: info for info in self.session.list()}[job.number]
        self.assertEqual((listed.state, listed.argv[0], listed.end), ("running", "sh", None))
        self.assertLess(abs(listed.started - time.time()), 60)
        same = self.session.job(job.number)
        same.kill()
        self.assertEqual(same.wait(10).status, job.wait(10).status)
        listed = {info.job: info for info in self.session.list()}[job.number]
        self.assertEqual(listed.end and listed.end.signal, "KILL")
        with self.assertRaises(JobNotFound):
            self.session.job(999_999).wait(10)

    def test_threads(self) -> None:
        def work(number: int) -> None:
            self.assertEqual(self.session.exec(["echo", str(number)]).stdout, f"{number}\n")
            job = self.session.start_job(["cat"], stdin=f"input {number}")
            self.assertEqual(b"".join(data for _, data in job), f"input {number}".encode())

        with ThreadPoolExecutor(24) as pool:
            list(pool.map(work, range(120)))

    def test_subscribe(self) -> None:
        events: list[JobEvent] = []
        ended = threading.Event()

        def note(event: JobEvent) -> None:
            events.append(event)
            if event.state == "ended":
                self.session.list()
                ended.set()
                raise RuntimeError("logged, and no more")

        with self.assertLogs("hermes_sandbox", "ERROR"):
            self.session.subscribe(note)
            end = self.session.exec(["sh", "-c", "exit 5"])
            self.assertTrue(ended.wait(10))
            self.session.subscribe(None)
        self.assertEqual(events, [JobEvent(end.job, "started"), JobEvent(end.job, "ended", 5)])
        self.session.exec(["true"])
        self.assertEqual(len(events), 2)

    def test_explain(self) -> None:
        self.assertIsInstance(self.session.explain("path", "/etc/shadow"), dict)

    def test_readme(self) -> None:
        readme = (Path(__file__).parent.parent / "README.md").read_text()
        example = readme.split("```python\n")[1].split("```")[0]
        os.symlink(os.path.abspath(self.program), f"{self.directory}/hermes-sandbox")
        source = Path(__file__).parent.parent / "src"
        environment = {**os.environ, "PATH": f"{self.directory}:{os.environ['PATH']}", "PYTHONPATH": str(source)}
        ran = subprocess.run([sys.executable, "-c", example], cwd=self.directory, env=environment, capture_output=True, text=True)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout.splitlines()[-2:], ["red", "HELLO"])

    def test_stop(self) -> None:
        job = self.session.start_job(["sleep", "60"])
        self.session.stop()
        with self.assertRaises(SessionClosed) as caught:
            job.wait(10)
            self.session.exec(["true"])
        self.assertEqual((caught.exception.reason, caught.exception.code), ("stopped", -32005))

    def test_close_ends_readers(self) -> None:
        job = self.session.start_job(["yes"])
        reader = threading.Thread(target=lambda: self.assertRaises(SessionClosed, lambda: [None for _ in job]))
        reader.start()
        time.sleep(0.2)
        self.session.close()
        reader.join(10)
        self.assertFalse(reader.is_alive())
        with self.assertRaises(SessionClosed):
            self.session.exec(["true"])

    def test_interrupt_kills(self) -> None:
        main = threading.main_thread().ident or 0
        timer = threading.Timer(0.7, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            self.session.exec(["sleep", "61"])
        deadline = time.monotonic() + 5
        while any(info.state == "running" for info in self.session.list()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_popen(self) -> None:
        process = self.session.popen(shell="echo out; echo err >&2; exit 4", text=True)
        self.assertEqual(sorted(process.stdout), ["err\n", "out\n"])
        self.assertEqual((process.wait(10), process.returncode), (4, 4))
        process.stdout.close()
        process = self.session.popen(["sh", "-c", "echo begun; sleep 60"])
        self.assertIsNone(process.poll())
        self.assertEqual(select.select([process.stdout.fileno()], [], [], 10)[0], [process.stdout.fileno()])
        self.assertEqual(os.read(process.stdout.fileno(), 100), b"begun\n")
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.kill()
        self.assertEqual(process.stdout.read(), b"")
        self.assertEqual(process.wait(10), 137)
        process.stdout.close()
        process = self.session.popen(["yes"])
        process.stdout.close()
        process.terminate()
        self.assertEqual(process.wait(10), 143)

    def test_hermes(self) -> None:
        created = hermes.SandboxProvider().create_environment(
            cwd=self.directory, timeout=20, task_id="t", image=None, backend_config={"program": self.program}, later=True
        )
        self.addCleanup(created.cleanup)
        result = created.execute("echo out; echo err >&2; exit 3", rewrite_compound_background=False)
        self.assertEqual((result["output"], result["returncode"], result["exit_code"]), ("out\nerr\n", 3, 3))
        result = created.execute("cat > note; cd /usr; export A=b", stdin_data="content\n")
        self.assertEqual((result["returncode"], result["cwd"], created.cwd), (0, "/usr", "/usr"))
        self.assertEqual(created.execute(f"cat {self.directory}/note; echo $A")["output"], "content\nb\n")
        self.assertEqual(created.execute("pwd", cwd="~")["output"], created.execute("echo $HOME")["output"])
        self.assertEqual(created.execute("head -c 300000 /dev/zero | tr '\\0' x")["output"], "x" * 300_000)
        self.assertIn("bytes omitted", created.execute("head -c 300000 /dev/zero", bounded_capture=True)["output"])
        for bounded in (False, True):
            result = created.execute("echo begun; sleep 60", timeout=1, bounded_capture=bounded)
            self.assertEqual(result["output"], "begun\n\n[Command timed out after 1s]")
            self.assertEqual(result["returncode"], 124)
        self.assertEqual(created.execute("sleep 60", timeout=1)["output"], "[Command timed out after 1s]")
        result = created.execute("nohup sleep 60 > /dev/null 2>&1 & echo $!")
        self.assertEqual(created.execute(f"kill {result['output']}")["returncode"], 0)
        with created._run_bash("exit 7").stdout as stdout:
            self.assertEqual(stdout.read(), b"")
        created.cleanup()
        result = created.execute("echo again")
        self.assertEqual((result["output"], result["environment_recreated"]), ("again\n", True))


class WithFakeServer(Contract, unittest.TestCase):
    program = FAKE


@unittest.skipUnless(REAL, "HERMES_SANDBOX_BIN is not set")
class WithRealProgram(Contract, unittest.TestCase):
    program = REAL or ""


class Sockets(unittest.TestCase):
    def test_two_clients(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/s"
            server = subprocess.Popen([FAKE, "serve", "--socket", path])
            try:
                while not os.path.exists(path):
                    time.sleep(0.02)
                with Session.connect(path) as first:
                    number = first.start_job(["sleep", "60"]).number
                with Session.connect(path) as second:
                    self.assertEqual([info.state for info in second.list()], ["running"])
                    second.job(number).kill()
                    environment = hermes.SandboxProvider().create_environment(backend_config={"socket": path})
                    self.assertEqual(environment.execute("echo here")["output"], "here\n")
                    environment.cleanup()
                    second.stop()
                self.assertEqual(server.wait(10), 0)
                with self.assertRaises(OSError):
                    Session.connect(path)
            finally:
                server.kill()
                server.wait()


if __name__ == "__main__":
    unittest.main()
