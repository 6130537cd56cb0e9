"""Crash reports: what a process still says when it dies: its Python stack, and that it was asked to end.

Each pool process and each cell has a file of its own in a directory of its worker. The worker reads it when
the process has ended, and removes it. All these directories are in a private one of the user.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import signal
import stat
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from celery_poison.causes import REQUESTS_TO_END
from celery_poison.errors import ConfigurationError

#: Bytes that are read of a file; frames that are told of a stack, and characters of each name.
_READ, _FRAMES, _LENGTH = 64 * 1024, 20, 200
#: So deep a stack of so few functions has been used up by a recursion.
_DEEP, _FEW = 90, 5

_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?+) in (.*)$', re.MULTILINE)
#: Stands before the stack of an exception.
_RAISED = "raised\n"
#: Has a process write down its stack, which the kernel's own signals leave alone; and seconds for the answer.
DUMP, _ANSWER = signal.SIGRTMIN + 11, 0.25

_SIGNAL = re.compile(r"^signal (\d+)$", re.MULTILINE)


class CrashReport(NamedTuple):
    """What one process left behind.

    Attributes:
        signal: by which it was asked to end, during its last task; None for none.
        stack: innermost call first.
        raised: its task ended the process by an exception, of which the stack is.
    """

    signal: int | None = None
    stack: tuple[str, ...] = ()
    recursion: bool = False
    raised: bool = False


class CrashReports:
    """The directory of one worker.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self) -> None:
        home = _private_directory()
        for left in home.iterdir():
            with suppress(OSError):
                _remove_unused(left)
        self.path = tempfile.mkdtemp(dir=home)
        # Held as long as a process of this worker lives: so others know that it is still in use.
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def read(self, pid: int, *, forget: bool = True) -> CrashReport:
        """Return what the process said that has ended, or is about to, and forget it."""
        file = Path(self.path, str(pid))
        try:
            with file.open("rb") as opened:
                text = opened.read(_READ).decode("utf-8", "replace")
            if forget:
                file.unlink()
        except OSError:
            return CrashReport()
        frames = _FRAME.findall(text)
        told = _SIGNAL.findall(text)
        return CrashReport(
            int(told[0]) if told else None,
            _told(frames),
            len(frames) >= _DEEP and len({name for _, _, name in frames[:_DEEP]}) <= _FEW,
            _RAISED in text,
        )

    def ask(self, pid: int) -> bool:
        """Have a process that hangs write down where it is; return False if it has no place for that."""
        with suppress(OSError):
            if Path(self.path, str(pid)).exists():  # else it would be ended by such a signal
                os.kill(pid, DUMP)
                return True
        return False

    def where(self, pid: int) -> tuple[str, ...]:
        """Return where a process is that hangs, and is about to be killed; () if it does not answer."""
        over, file = time.monotonic() + _ANSWER, Path(self.path, str(pid))
        with suppress(OSError):
            is_asked = self.ask(pid)
            while is_asked and time.monotonic() < over:
                text = file.read_text("utf-8", "replace")[:_READ]
                if text.endswith("\n") and (frames := _FRAME.findall(text)):
                    return _told(frames)
                time.sleep(_ANSWER / 50)
        return ()

    def remove(self) -> None:
        with suppress(OSError):
            os.close(self._lock)
            _remove(Path(self.path))


def _told(frames: Sequence[tuple[str, str, str]]) -> tuple[str, ...]:
    return tuple(f"{name[:_LENGTH]} ({path[-_LENGTH:]}:{line})" for path, line, name in frames[:_FRAMES])


def open_crash_reports(complain: Callable[[Exception], object]) -> CrashReports | None:
    """Return the directory of a new worker; None where there is no place for it."""
    try:
        return CrashReports()
    except OSError as error:
        complain(ConfigurationError(f"no stack of a native crash will be known: {error}"))
        return None


def _private_directory() -> Path:
    """Return the one directory of this user that holds those of workers, and nothing else."""
    user = os.geteuid()
    path = Path(tempfile.gettempdir(), f"celery_poison-{user}")
    with suppress(FileExistsError):
        path.mkdir(0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        is_it = f"{path} is {stat.filemode(found.st_mode)} of user {found.st_uid}"
        raise PermissionError(f"{is_it}, not a private directory of user {user}: remove it, or set TMPDIR")
    return path


def _remove_unused(directory: Path) -> None:
    """Remove what a worker left that was killed."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(directory)
    finally:
        os.close(lock)


def _remove(directory: Path) -> None:
    """Remove the directory of a worker; nothing if it holds anything but files of processes."""
    files = list(directory.iterdir())
    if all(file.name.isdigit() for file in files):
        for file in files:
            file.unlink()
        directory.rmdir()


# --- in the process that may die ---------------------------------------------------------------------

#: False where the signal handlers of this process are still to be listened in on, or one was called and the
#: process lives on.
is_noting = True
_file = -1


def begin_report(path: str, *, notes_signals: bool = True) -> None:
    """Let this process write into its own file below ``path`` from now on; never raises.

    Where the user has enabled faulthandler already, its output stays where it goes.

    Args:
        notes_signals: its first task is to call :func:`note_signals`.
    """
    global _file, is_noting
    with suppress(OSError):
        name = os.path.join(path, str(os.getpid()))
        _file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        is_noting = not notes_signals
        if not faulthandler.is_enabled():
            faulthandler.enable(_file, all_threads=False)
        faulthandler.register(DUMP, _file, all_threads=False)


def stack_of(error: BaseException) -> list[tuple[str, str, str]]:
    """Return file, line and function of the calls in which an error was raised, innermost first."""
    frames, trace = deque[tuple[str, str, str]](maxlen=_FRAMES), error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.appendleft((code.co_filename, str(trace.tb_lineno), code.co_name))
        trace = trace.tb_next
    return [*frames]


def note_raised(error: BaseException) -> tuple[str, ...]:
    """Note in which calls the error was raised by which this process ends, or its task; return them.

    Never raises: there may be no memory for it.
    """
    with suppress(Exception):
        frames = stack_of(error)
        lines = (f'  File "{path}", line {line} in {name}\n' for path, line, name in frames)
        if _file >= 0:
            os.write(_file, (_RAISED + "".join(lines)).encode("utf-8", "replace"))
        return _told(frames)
    return ()


def note_signals() -> None:
    """Note from now on which signal asks this process to end. Pool processes set their handlers late."""
    global is_noting
    is_noting = True
    with suppress(OSError):
        os.ftruncate(_file, 0)
        os.lseek(_file, 0, os.SEEK_SET)
    for signum in REQUESTS_TO_END:
        handler = signal.getsignal(signum)
        if callable(handler) and not isinstance(handler, _Noting):
            with suppress(ValueError, OSError):  # not in the main thread
                signal.signal(signum, _Noting(handler))


class _Noting:
    """A signal handler that is called after the signal was noted."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self._handler, self._pid = handler, os.getpid()

    def __call__(self, signum: int, frame: Any) -> Any:
        global is_noting
        if os.getpid() == self._pid:  # and not a process that the task has started
            is_noting = False
            with suppress(OSError):
                os.write(_file, b"signal %d\n" % signum)
        return self._handler(signum, frame)
