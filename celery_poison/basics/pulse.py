"""The pulse of a worker: a file that a thread of its own writes each second, and how it is judged (NEW-25).

It is read by a probe that may take milliseconds only: nothing is imported here that takes longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence

#: At the ends of the names of a worker's files, after its pid: its pulse; where its loop was when all of it
#: stood still; the note of a probe that called it beyond help.
PULSE, STOOD, CONDEMNED = ".alive", ".stood", ".condemned"

#: Stands in evidence for the signal of who asked a worker to leave, where this probe, or systemd, gave it up.
ALIVE = "alive"

#: Bytes of a pulse that are read, and written, at most.
SIZE = 4096
_END = b"\n.\n"
_TRIES = 3


class Pulse:
    """The last pulse of a worker. Moments are of the monotonic clock, which all processes of a machine share.

    Attributes:
        worker: its name in the ledger; node: the part of it that people know.
        born: when its process began, see :func:`born`; at: when this was written.
        patience: seconds for which any of what follows may last (``poison_restart_after``).
        since: what is amiss, and when that began: ``loop`` (its event loop stands), ``children`` (no process
            of its pool is up), ``slots`` (every slot is held by a task past its hard time limit).
        stack: where its loop stands, innermost call first.
        leaving: it was asked to end.
    """

    def __init__(
        self,
        worker: str,
        pid: int,
        born: int,
        at: float,
        patience: float,
        since: Mapping[str, float],
        stack: Sequence[str] = (),
        leaving: bool = False,
        file: str = "",
    ) -> None:
        self.worker, self.pid, self.born, self.at, self.patience = worker, pid, born, at, patience
        self.since, self.stack, self.leaving, self.file = since, stack, leaving, file
        self.node = worker.partition("/")[0]

    def encode(self) -> bytes:
        """Return the pulse as lines, the last of which says that none is missing."""
        head = f"{self.pid} {self.born} {self.at!r} {self.patience!r} {int(self.leaving)}"
        since = " ".join(f"{what}={at!r}" for what, at in self.since.items())
        lines = [head, self.worker, since, *self.stack]
        text = "\n".join(line.replace("\n", " ") for line in lines)
        return text.encode("utf-8", "replace")[: SIZE - len(_END)] + _END

    @classmethod
    def decode(cls, raw: bytes, file: str = "") -> Pulse | None:
        """Return the decoded pulse; None for any other text, and for one that is not wholly written yet."""
        if not raw.endswith(_END):
            return None
        try:
            head, worker, since, *stack = raw.removesuffix(_END).decode("utf-8", "replace").split("\n")
            pid, born, at, patience, leaving = head.split(" ")
            sinces = {what: float(at) for what, _, at in (each.partition("=") for each in since.split())}
            words = (int(pid), int(born), float(at), float(patience))
            return cls(worker, *words, sinces, stack, leaving == "1", file)
        except ValueError:
            return None


_WORDS = {
    "loop": "its event loop has stood for {}",
    "children": "no process of its pool has come up for {}",
    "slots": "every slot has been held for {} by a task past its hard time limit",
}


def beyond_help(pulse: Pulse, now: float) -> str:
    """Return why only a restart helps this worker, in words; the empty string: it is not so."""
    if pulse.leaving:
        return ""
    where = f" at {pulse.stack[0]}" if pulse.stack else ""
    if (silent := now - pulse.at) > pulse.patience:
        why = "it is stopped, or native code holds its interpreter"
        return f"it has not moved for {_span(silent)}{where}: {why}"
    for what, since in pulse.since.items():
        if (lasts := now - since) > pulse.patience and what in _WORDS:
            return _WORDS[what].format(_span(lasts)) + (where if what == "loop" else "")
    return ""


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def home() -> str:
    """Return the private directory of this user in which workers have theirs; empty where there is none."""
    user = os.geteuid()
    places = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for place in filter(None, [*places, "/tmp", "/var/tmp", "/usr/tmp"]):
        path = os.path.join(place, f"celery_poison-{user}")
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if found.st_uid == user and not found.st_mode & 0o077:
            return path
    return ""


def born(pid: int) -> int:
    """Return when a process began, in clock ticks since the machine did; 0: there is none, or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def pulses(directory: str = "") -> Iterator[Pulse]:
    """Yield the pulse of each worker of this user on this host whose process is there."""
    for file in _files(directory or home()):
        pulse = _read(file)
        if pulse is not None and born(pulse.pid) == pulse.born:
            yield pulse


def _files(directory: str) -> Iterator[str]:
    try:
        for each in os.scandir(directory) if directory else ():
            if each.is_dir(follow_symlinks=False):
                yield from (file.path for file in os.scandir(each.path) if file.name.endswith(PULSE))
    except OSError:  # it has just left
        return


def _read(file: str) -> Pulse | None:
    for _ in range(_TRIES):  # it may be being written
        try:
            with open(file, "rb") as opened:
                if (pulse := Pulse.decode(opened.read(SIZE), file)) is not None:
                    return pulse
        except OSError:  # it has just left
            return None
        time.sleep(0.001)
    return None


def condemn(pulse: Pulse, why: str) -> None:
    """Leave a note for that worker: who ends it now does not make its tasks guilty of that."""
    path = pulse.file.removesuffix(PULSE) + CONDEMNED
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as note:
            note.write(why)
    except OSError:
        return


def stood(worker: str) -> str:
    """Return the lines in which a worker on this host has noted where it stands still; empty: none."""
    for pulse in pulses():
        if pulse.worker == worker:
            try:
                with open(pulse.file.removesuffix(PULSE) + STOOD, "rb") as file:
                    return file.read(64 * 1024).decode("utf-8", "replace")
            except OSError:
                break
    return ""
