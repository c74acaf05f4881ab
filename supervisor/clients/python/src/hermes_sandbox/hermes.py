"""A terminal backend for Hermes Agent, from the versions that have `register_terminal_environment_provider`.

Once this package is installed beside Hermes, `hermes plugins enable hermes_sandbox` and in its `config.yaml`:

    terminal:
      backend: hermes_sandbox
      backends:
        hermes_sandbox:
          program: hermes-sandbox       # the default
          options: [--net, "off"]       # of `hermes-sandbox serve`
          workspace: /home/me/project   # default: the directory that Hermes names
          socket: ""                    # instead of all these: a session that runs

Commands, file tools and execute_code of Hermes then run in one sandbox. Its prompts before dangerous commands stay on.
The module can be imported without Hermes.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import threading
import time
from typing import Any, Callable, Mapping

from .errors import JobNotStarted, SandboxError, ServerError, SessionClosed
from .job import Completed, Job
from .process import Process
from .session import Session

NAME = "hermes_sandbox"
TICK = 0.1
BACKSTOP = 15.0


def _of_hermes(module: str, name: str, default: Any) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return default


class SandboxEnvironment:
    """What Hermes calls an environment: `execute`, `cleanup` and the attributes `cwd` and `timeout`. Safe for threads.

    The session begins with the first command. When it has ended, the next command begins another one and says so
    (`environment_recreated`). Working directory and exported variables pass from command to command.
    """

    is_local = False
    cwd: str
    timeout: float

    def __init__(self, open_session: Callable[[], Session], cwd: str = "", timeout: float = 180) -> None:
        """`timeout` in seconds, for commands that have none of their own."""
        self.cwd = cwd
        self.timeout = timeout
        self._open_session = open_session
        self._session: Session | None = None
        self._began = False
        self._lock = threading.Lock()

    def get_temp_dir(self) -> str:
        """The sandbox's own."""
        return "/tmp"

    def _connected(self) -> tuple[Session, bool]:
        """The session, and whether it replaces one that has ended."""
        with self._lock:
            if self._session is not None and not self._session.closed:
                return self._session, False
            if self._session is not None:
                self._session.close()
            self._session = self._open_session()
            again, self._began = self._began, True
            return self._session, again

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: float | None = None,
        stdin_data: str | bytes | None = None,
        bounded_capture: bool = False,
        **_unknown: Any,
    ) -> dict[str, Any]:
        """Runs a shell command; `output` (both streams), `returncode` and `exit_code` (the same), `cwd` afterwards.

        124 after `timeout` seconds and 130 after an interrupt of Hermes, each with a last line that says so; 125 to 127 when it
        could not be started or the sandbox ended. `bounded_capture` keeps the first 20000 and the last 30000 bytes, otherwise
        all is kept. Raises SandboxError or OSError when no session can be had.
        """
        limit = timeout or self.timeout
        session, recreated = self._connected()
        directory = cwd or self.cwd
        if directory.startswith("~"):
            home, slash, rest = directory.partition("/")
            command = f"cd -- {home}{slash}{shlex.quote(rest) if rest else ''} || exit 126\n{command}"
            directory = ""
        try:
            job = session.start_job(
                shell=command,
                cwd=directory or None,
                stdin=stdin_data,
                timeout=limit,
                merge=True,
                background=True,
                stream=not bounded_capture,
            )
            result = self._follow(job, limit, bounded_capture)
        except JobNotStarted as error:
            result = _result(str(error), error.status)
        except ServerError as error:
            result = _result(f"{error}\n{error.hint}" if error.hint else str(error), 126)
        except SessionClosed as error:
            result = _result(f"[The sandbox has ended: {error}]", 125)
        if recreated:
            result["environment_recreated"] = True
        return result

    def _follow(self, job: Job, limit: float, bounded: bool) -> dict[str, Any]:
        interrupted = _of_hermes("tools.interrupt", "is_interrupted", lambda: False)
        active = _of_hermes("tools.environments.base", "touch_activity_if_due", lambda state, label: None)
        began = time.monotonic()
        activity = {"last_touch": began, "start": began}
        pieces: list[bytes] = []
        try:
            while True:
                end = _step(job, pieces, bounded, TICK)
                if end is not None:
                    break
                if interrupted():
                    job.signal("INT")
                    end = _drain(job, pieces, bounded, 1.0)
                    if end is None:
                        job.kill()
                        end = _drain(job, pieces, bounded, 5.0)
                    return _result(_text(pieces, end, bounded, job), 130, "[Command interrupted]")
                if time.monotonic() > began + limit + BACKSTOP:
                    self.cleanup()
                    return _result(_text(pieces, None, bounded, job), 124, f"[Command timed out after {limit}s]")
                active(activity, "terminal command running")
        except (KeyboardInterrupt, SystemExit):
            job.kill()
            raise
        output = _text(pieces, end, bounded, job)
        if end.timed_out:
            return _result(output, 124, f"[Command timed out after {limit}s]")
        result = _result(output, end.status)
        if end.cwd:
            self.cwd = end.cwd
            result.update(cwd=end.cwd, cwd_observed=True)
        return result

    def _run_bash(
        self, cmd_string: str, *, login: bool = False, timeout: float = 120, stdin_data: str | None = None
    ) -> Process:
        """A process of its own for `cmd_string`, which the caller follows and ends."""
        session, _ = self._connected()
        return session.popen(
            ["bash", *(["-l"] if login else []), "-c", cmd_string], stdin=stdin_data, timeout=timeout, background=True
        )

    def cleanup(self) -> None:
        """Ends the session, or leaves it to others if it was connected to. The next command begins another one."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    stop = cleanup


def _step(job: Job, pieces: list[bytes], bounded: bool, seconds: float) -> Completed | None:
    try:
        if bounded:
            return job.wait(seconds)
        piece = job.read(seconds)
        if piece is None:
            return job.wait()
        pieces.append(piece[1])
    except TimeoutError:
        pass
    return None


def _drain(job: Job, pieces: list[bytes], bounded: bool, seconds: float) -> Completed | None:
    deadline = time.monotonic() + seconds
    end = None
    while end is None and time.monotonic() < deadline:
        end = _step(job, pieces, bounded, TICK)
    return end


def _text(pieces: list[bytes], end: Completed | None, bounded: bool, job: Job) -> str:
    if bounded:
        return end.stdout if end is not None else ""
    text = b"".join(pieces).decode(errors="replace")
    return f"{text}\n[... {job.dropped} bytes omitted ...]" if job.dropped else text


def _result(output: str, status: int, note: str | None = None) -> dict[str, Any]:
    if note is not None:
        output = f"{output}\n{note}" if output else note
    return {"output": output, "returncode": status, "exit_code": status}


class SandboxProvider:
    """What `provider` makes a `TerminalEnvironmentProvider` of Hermes from."""

    name = NAME
    display_name = "hermes-sandbox"
    description = "Run commands in an OS-level sandbox on this machine."
    env_description = "an OS-level sandbox on this Linux machine; what is outside of the workspace is mostly hidden or read-only"
    is_remote = True
    """Not another machine; but Hermes should look inside, not around itself, for what commands can see."""
    is_container = False
    """Paths are the host's."""
    skip_container_guards = False
    """The workspace is real, so its prompts stay on."""
    session_isolated_when_nonpersistent = False
    cache_path_base = None
    strip_env_keys: frozenset[str] = frozenset()

    def is_available(self) -> bool:
        """Whether the program is on PATH."""
        return shutil.which("hermes-sandbox") is not None

    def check_requirements(self, config: Mapping[str, Any]) -> bool:
        """Whether what the configuration names is there."""
        return self.probe_with_config(config.get("backend_config") or {})[0] == "ready"

    def probe(self) -> tuple[str, str]:
        """`("ready", "")`, or what is missing."""
        return self.probe_with_config({})

    def probe_with_config(self, config: Mapping[str, Any]) -> tuple[str, str]:
        """`("ready", "")`, or what is missing. Starts nothing."""
        resolved = self.resolve_config(config)
        if resolved["socket"]:
            there = os.path.exists(resolved["socket"])
            return ("ready", "") if there else ("unavailable", f"no session listens on {resolved['socket']}")
        if shutil.which(resolved["program"]) is None:
            return "needs_setup", f"{resolved['program']} is not on PATH"
        return "ready", ""

    def setup_instructions(self) -> list[str]:
        """For `hermes setup`."""
        return ["Install hermes-sandbox, then run `hermes-sandbox doctor`: it says what this machine can enforce."]

    def doctor_checks(self) -> list[tuple[bool, str, str]]:
        """For `hermes doctor`."""
        status, detail = self.probe()
        return [(status == "ready", "hermes-sandbox backend", f"({detail or 'found'})")]

    def get_config_schema(self) -> dict[str, dict[str, Any]]:
        """Of `terminal.backends.hermes_sandbox`."""
        return {
            "program": {"type": "string", "description": "Name or path of hermes-sandbox", "default": "hermes-sandbox"},
            "options": {"type": "list", "description": "Options of `hermes-sandbox serve`, such as --net host"},
            "workspace": {"type": "string", "description": "Directory to work in; default: the one that Hermes names"},
            "socket": {"type": "string", "description": "Socket of a session that runs, instead of starting one"},
        }

    def resolve_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """With defaults; `options` may be one string, too."""
        options = config.get("options") or []
        return {
            "program": str(config.get("program") or "hermes-sandbox"),
            "options": shlex.split(options) if isinstance(options, str) else [str(option) for option in options],
            "workspace": os.path.expanduser(str(config.get("workspace") or "")),
            "socket": os.path.expanduser(str(config.get("socket") or "")),
        }

    def create_environment(
        self,
        *,
        cwd: str = "",
        timeout: float = 180,
        backend_config: Mapping[str, Any] | None = None,
        **_unknown: Any,
    ) -> SandboxEnvironment:
        """An environment of `SandboxEnvironment`, which is a `BaseEnvironment` of Hermes where that exists."""
        config = self.resolve_config(backend_config or {})
        workspace = config["workspace"] or (cwd if os.path.isdir(cwd) else "")

        def open_session() -> Session:
            if config["socket"]:
                return Session.connect(config["socket"])
            return Session.start(config["program"], config["options"], cwd=workspace or None)

        return _environment_class()(open_session, cwd or workspace, timeout)


def _environment_class() -> Callable[[Callable[[], Session], str, float], SandboxEnvironment]:
    base = _of_hermes("tools.environments.base", "BaseEnvironment", None)
    if base is None:
        return SandboxEnvironment

    def init(self: Any, open_session: Callable[[], Session], cwd: str, timeout: float) -> None:
        SandboxEnvironment.__init__(self, open_session, cwd, timeout)
        base.__init__(self, cwd, timeout)

    return type("HermesSandboxEnvironment", (SandboxEnvironment, base), {"__init__": init})


def provider() -> Any:
    """The provider, an instance of Hermes's ABC. Raises ImportError without a Hermes that has it."""
    base = importlib.import_module("agent.terminal_env_provider").TerminalEnvironmentProvider
    return type("HermesSandboxProvider", (SandboxProvider, base), {})()


def register(ctx: Any) -> None:
    """Called by Hermes when the plugin is loaded; does nothing in versions without pluggable backends."""
    if hasattr(ctx, "register_terminal_environment_provider"):
        ctx.register_terminal_environment_provider(provider())
