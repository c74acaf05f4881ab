"""Runs commands in a hermes-sandbox session: one sandbox, many jobs.

    with Session.start(options=["--workspace", "."]) as session:
        print(session.exec(["git", "status"]).stdout)
"""

from .errors import (
    InvalidRequest,
    JobNotFound,
    JobNotStarted,
    NotAllowed,
    ProtocolError,
    SandboxError,
    ServerError,
    SessionClosed,
    VersionMismatch,
)
from .job import PIPE, Advice, Completed, Job, JobEvent, JobInfo, Omitted, Retained
from .process import Process
from .session import Session

__all__ = [
    "PIPE",
    "Advice",
    "Completed",
    "InvalidRequest",
    "Job",
    "JobEvent",
    "JobInfo",
    "JobNotFound",
    "JobNotStarted",
    "NotAllowed",
    "Omitted",
    "Process",
    "ProtocolError",
    "Retained",
    "SandboxError",
    "ServerError",
    "Session",
    "SessionClosed",
    "VersionMismatch",
]
