"""What a message died of, as short stable words and as sentences for people (NEW-2)."""

from __future__ import annotations

import re
import signal
from typing import Final

OOM: Final = "oom"
TIME_LIMIT: Final = "time_limit"
MEMORY_ERROR: Final = "memory_error"
SYSTEM_EXIT: Final = "system_exit"
WORKER_LOST: Final = "worker_lost"
RECEIVE: Final = "receive"
PAYLOAD: Final = "payload"
BLOCKED: Final = "blocked"
FAILURES: Final = "failures"
REJECTED: Final = "rejected"
REQUESTED: Final = "requested"
FROZEN: Final = "frozen"
SHUTDOWN: Final = "shutdown"
EVICTION: Final = "eviction"
UNKNOWN: Final = "unknown"

_SENTENCES: Final = {
    OOM: "was killed for using too much memory",
    TIME_LIMIT: "ran past its hard time limit and was put back",
    MEMORY_ERROR: "ran out of memory (MemoryError)",
    SYSTEM_EXIT: "called sys.exit() inside the worker",
    WORKER_LOST: "was running when its whole worker died",
    RECEIVE: "killed its worker while it was being received, before any task code ran",
    PAYLOAD: "could not be accepted: its payload is too large or cannot be unpacked",
    BLOCKED: "was blocked when it arrived",
    FAILURES: "was put back more often than max_failures allows",
    REJECTED: "failed and its task does not acknowledge failures",
    REQUESTED: "was sent to quarantine by its own task",
    FROZEN: "was running when its worker fell silent",
    SHUTDOWN: "was interrupted by a shutdown",
    EVICTION: "was interrupted when its worker was killed before its shutdown was over",
    UNKNOWN: "was lost for an unknown reason",
}
#: Deaths of whole workers that nobody on board is to blame for.
NOBODYS_FAULT: Final = frozenset({SHUTDOWN, EVICTION, FROZEN})
#: What starts die of, as far as it can be listed; of ``signal:N`` and ``exit:N`` the frequent ones.
DEATHS: Final = (
    *("signal:6", "signal:9", "signal:11", "exit:1"),
    *(OOM, TIME_LIMIT, MEMORY_ERROR, SYSTEM_EXIT, WORKER_LOST, RECEIVE, UNKNOWN),
)
#: Why a message may be in quarantine without having been convicted of anything.
NO_CONVICTIONS: Final = frozenset({PAYLOAD, BLOCKED, REJECTED, REQUESTED})

_EXIT_STATUS: Final = re.compile(r"exitcode (-?\d+)|signal (\d+)")


def from_exit_code(code: int) -> str:
    """Return the cause for a process's exit code as ``waitpid`` gives it (negative: a signal)."""
    return f"signal:{-code}" if code < 0 else f"exit:{code}"


def from_worker_lost(text: str) -> str:
    """Return the cause told by billiard's WorkerLostError, which knows it only as text."""
    match = _EXIT_STATUS.search(text)
    if match is None:
        return UNKNOWN
    code, signum = match.groups()
    return f"signal:{signum}" if signum else from_exit_code(int(code))


def describe(cause: str) -> str:
    """Return a sentence fragment that a person understands, e.g. *killed its process by SIGSEGV*."""
    if cause.startswith("signal:"):
        return f"killed its process by {signal_name(cause[7:])}"
    if cause.startswith("exit:"):
        return f"ended its process with exit code {cause[5:]}"
    return _SENTENCES.get(cause, cause or _SENTENCES[UNKNOWN])


def brief(cause: str) -> str:
    """Return a cause as a table has room for it: ``SIGSEGV`` for ``signal:11``, else the word itself."""
    name = signal_name(cause[7:]) if cause.startswith("signal:") else cause
    return cause if " " in name else name


def is_known(cause: str) -> bool:
    """Whether this is one of the words of docs/journal.md, numbers included: some hundreds at most."""
    kind, _, number = cause.partition(":")
    return cause in _SENTENCES or (kind in ("signal", "exit") and number.lstrip("-").isdecimal())


def signal_name(number: str) -> str:
    """Return what people call a signal, e.g. *SIGSEGV*."""
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return f"signal {number}"
