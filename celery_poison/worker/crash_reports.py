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
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from celery_poison.basics.frames import FRAME, FRAMES, lines_of
from celery_poison.causes import REQUESTS_TO_END
from celery_poison.errors import ConfigurationError
from celery_poison.worker.threads import start_real_thread

#: Bytes that are read of a file.
_READ = 64 * 1024
#: So deep a stack of so few functions has been used up by a recursion.
_DEEP, _FEW = 90, 5

#: Stands before the stack of an exception, of a native crash, and (there, too) of a process that was asked.
_RAISED, _FATAL, _STACK = "raised\n", "Fatal Python error", "Stack (most recent call first)"
#: At the end of the name of a pipe by which a thread of the process is asked.
_PIPE = ".ask"
#: A file of so many bytes is emptied before its process is asked again.
_LONG = 16 * 1024
#: Has a process write down its stack, which the kernel's own signals leave alone; and seconds for the answer.
DUMP, _ANSWER = signal.SIGRTMIN + 11, 0.25

_SIGNAL = re.compile(r"^signal (\d+)$", re.MULTILINE)


class CrashReport(NamedTuple):
    """The report that one process left behind.

    Attributes:
        signal: by which it was asked to end, during its last task; None for none.
        stack: innermost call first.
        raised: its task ended the process by an exception, of which the stack is.
        asked: it did not end there: the stack is where it was when it was asked last.
    """

    signal: int | None = None
    stack: tuple[str, ...] = ()
    recursion: bool = False
    raised: bool = False
    asked: bool = False


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
        """Return the report of a process that has ended, or is about to; ``forget`` deletes its file."""
        file = Path(self.path, str(pid))
        try:
            with file.open("rb") as opened:
                text = opened.read(_READ).decode("utf-8", "replace")
            if forget:
                file.unlink()
                file.with_name(file.name + _PIPE).unlink(missing_ok=True)
        except OSError:
            return CrashReport()
        told = _SIGNAL.findall(text)
        ended = max(text.rfind(_FATAL), text.rfind(_RAISED))
        frames = FRAME.findall(text, max(0, ended if ended >= 0 else text.rfind(_STACK)))
        return CrashReport(
            int(told[0]) if told else None,
            lines_of(frames),
            len(frames) >= _DEEP and len({name for _, _, name in frames[:_DEEP]}) <= _FEW,
            _RAISED in text,
            asked=bool(frames) and ended < 0,
        )

    def ask(self, pid: int) -> int | None:
        """Have a process write down where it is, unless it has no place for that: None.

        Returns:
            From where in its file the answer will stand, see :meth:`answer`.
        """
        with suppress(OSError):
            since = self._make_room(pid)  # without a file it would be ended by such a signal
            os.kill(pid, DUMP)
            return since
        return None

    def wake(self, pid: int) -> int | None:
        """As :meth:`ask`, without a signal: by a thread of that process, unless the task lets none run."""
        pipe = Path(self.path, f"{pid}{_PIPE}")
        with suppress(OSError):
            since = self._make_room(pid)
            opened = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(opened, b"?")
            finally:
                os.close(opened)
            return since
        return None

    def _make_room(self, pid: int) -> int:
        file = Path(self.path, str(pid))
        since = file.stat().st_size
        if since <= _LONG:
            return since
        os.truncate(file, 0)
        return 0

    def answer(self, pid: int, since: int) -> tuple[str, ...]:
        """Return where a process was that was asked, innermost call first; () if it has not answered."""
        with suppress(OSError), Path(self.path, str(pid)).open("rb") as file:
            file.seek(since)
            text = file.read(_READ).decode("utf-8", "replace")
            return lines_of(FRAME.findall(text)) if text.endswith("\n") else ()
        return ()

    def where(self, pid: int) -> tuple[str, ...]:
        """Return where a process is that hangs, and is about to be killed; () if it does not answer."""
        over, since = time.monotonic() + _ANSWER, self.ask(pid)
        while since is not None and time.monotonic() < over:
            if found := self.answer(pid, since):
                return found
            time.sleep(_ANSWER / 50)
        return ()

    def remove(self) -> None:
        with suppress(OSError):
            os.close(self._lock)
            _remove(Path(self.path))


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
    if all(file.name.partition(".")[0].isdigit() for file in files):
        for file in files:
            file.unlink()
        directory.rmdir()


# --- in the process that may die ---------------------------------------------------------------------

#: False where the signal handlers of this process are still to be listened in on, or one was called and the
#: process lives on.
is_noting = True
_file = -1
#: Where this process may leave more than its report; empty: it is no process of a pool, and no cell.
directory = ""


def begin_report(path: str, *, notes_signals: bool = True) -> None:
    """Let this process write into its own file below ``path`` from now on; never raises.

    Where the user has enabled faulthandler already, its output stays where it goes.

    Args:
        notes_signals: its first task is to call :func:`note_signals`.
    """
    global _file, is_noting, directory
    with suppress(OSError, RuntimeError):
        directory = path
        name = os.path.join(path, str(os.getpid()))
        # Appended to, since the worker may empty it meanwhile.
        _file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        is_noting = not notes_signals
        if not faulthandler.is_enabled():
            faulthandler.enable(_file, all_threads=False)
        faulthandler.register(DUMP, _file, all_threads=False)
        _answer_in_a_thread(name + _PIPE)


def _answer_in_a_thread(pipe: str) -> None:
    """Write down where the main thread is whenever somebody asks by a pipe; sleeps until then (NEW-19)."""
    os.mkfifo(pipe, 0o600)
    asked, main = os.open(pipe, os.O_RDWR | os.O_CLOEXEC), threading.main_thread().ident

    def answer() -> None:
        # A signal is for the main thread: here it would name this line, or interrupt no sleep of the task.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while os.read(asked, 64):
            with suppress(Exception):
                frames = _frames_of(sys._current_frames().get(main or 0))
                os.write(_file, f"{_STACK}:\n{_written(frames)}".encode("utf-8", "replace"))

    start_real_thread(answer, "poison-frames")


def _frames_of(frame: FrameType | None) -> list[tuple[str, str, str]]:
    """Return file, line and function of the calls that a thread is in, innermost first."""
    frames: list[tuple[str, str, str]] = []
    while frame is not None and len(frames) < FRAMES:
        frames.append((frame.f_code.co_filename, str(frame.f_lineno), frame.f_code.co_name))
        frame = frame.f_back
    return frames


def _written(frames: Sequence[tuple[str, str, str]]) -> str:
    return "".join(f'  File "{path}", line {line} in {name}\n' for path, line, name in frames)


def where_is(thread: int) -> tuple[str, ...]:
    """Return where a thread of this process is, innermost call first; () if there is none such."""
    return lines_of(_frames_of(sys._current_frames().get(thread)))


def stack_of(error: BaseException) -> list[tuple[str, str, str]]:
    """Return file, line and function of the calls in which an error was raised, innermost first."""
    frames, trace = deque[tuple[str, str, str]](maxlen=FRAMES), error.__traceback__
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
        if _file >= 0:
            os.write(_file, (_RAISED + _written(frames)).encode("utf-8", "replace"))
        return lines_of(frames)
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
