"""A worker's pulse, written by a thread that waits for no server, no lock of the user's, and no log.

``celery poison alive`` and systemd read it to learn whether a restart is the cure: they ask when nothing else
answers any more, neither Redis nor the broker, nor the event loop. See :mod:`celery_poison.basics.pulse`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from celery_poison.basics.frames import is_waiting
from celery_poison.basics.pulse import CONDEMNED, PULSE, STOOD, Pulse, beyond_help, born
from celery_poison.cells.trial import PoolFacts
from celery_poison.worker.crash_reports import where_is
from celery_poison.worker.freezes import LoopTimer
from celery_poison.worker.heartbeat import Shutdown
from celery_poison.worker.lease import clock
from celery_poison.worker.self_portrait import SelfPortrait
from celery_poison.worker.site import Site
from celery_poison.worker.threads import start_real_thread

#: Seconds between two beats, and after which a loop that does not turn is looked at.
BEAT, LOOK = 1.0, 2.0
#: Seconds for which it is told where all of the worker stood.
TELL = 600.0


class WorkerPulse:
    """The pulse of one worker.

    Args:
        directory: of its files; empty: there is none, and nothing is written.

    Attributes:
        condemned_at: when a probe, or systemd, called it beyond help and is about to end it, by
            :func:`celery_poison.worker.lease.clock`; None: nobody does.
        portrait: drawn at each beat.
        stack: where its loop stands, or stood a while ago when all of it did; innermost call first.
    """

    condemned_at: float | None = None
    stack: tuple[str, ...] = ()

    def __init__(self, site: Site, pool: PoolFacts, shutdown: Shutdown, directory: str) -> None:
        self._me, self._patience = site.me, site.settings.restart_after
        self._shutdown = shutdown
        self.portrait = SelfPortrait(site, pool, site.loop.clock)
        self._path = Path(directory, str(site.me.pid)) if directory else None
        self._born = born(site.me.pid)
        self._file = -1
        self._slots_since: float | None = None
        self._stood_at = 0.0
        self._timer: LoopTimer | None = None
        self._loop = 0
        self._watchdog = watchdog_of(os.environ, site.me.pid)

    def start(self) -> None:
        """Begin (in the thread of the event loop, once the pool has forked)."""
        if self._loop:
            return
        self._loop = threading.get_ident()
        if self._path is not None:
            self._timer = LoopTimer.of_this_thread(f"{self._path}{STOOD}")
        start_real_thread(self._work, "poison-pulse")

    def _work(self) -> None:
        while not self._shutdown.is_over:
            with suppress(Exception):  # nothing may be logged here: the lock of the log may be what is held
                self.beat()
            time.sleep(BEAT)
        if self._timer is not None:
            self._timer.end()

    def beat(self) -> None:
        """Look at the worker, and write down how it is."""
        stood = self._timer.again(BEAT + LOOK) if self._timer is not None else ()
        if stood and not is_waiting(stood):
            self.stack, self._stood_at = stood, time.monotonic()
        pulse = self._look()
        why = beyond_help(pulse, pulse.at)
        if self._path is not None:
            self._heed(bool(why))
            self._write(pulse)
        if self._watchdog and not why:
            notify(self._watchdog, b"WATCHDOG=1")

    def _look(self) -> Pulse:
        now, seen = time.monotonic(), self.portrait.draw()
        since = {}
        ago = seen.loop_turned_ago or 0.0
        if ago > LOOK and not (seen.tasks_stop_loop and seen.slots_busy):
            stack = where_is(self._loop)
            if not is_waiting(stack):
                self.stack, self._stood_at = stack, now
                since["loop"] = now - ago
        elif self.stack and now - self._stood_at > TELL:
            self.stack = ()
        if seen.children_expected and not seen.children and seen.childless:
            since["children"] = now - seen.childless
        is_stuck = 0 < seen.slots <= seen.slots_past
        self._slots_since = (self._slots_since or now) if is_stuck else None
        if self._slots_since is not None:
            since["slots"] = self._slots_since
        stack = self.stack if "loop" in since else ()
        leaving = self._shutdown.is_begun
        return Pulse(self._me.worker, self._me.pid, self._born, now, self._patience, since, stack, leaving)

    def _heed(self, is_lost: bool) -> None:
        """Read the note of a probe: as long as no restart has come, and it would help, it holds."""
        note = Path(f"{self._path}{CONDEMNED}")
        if is_lost and (self._watchdog or note.exists()):
            self.condemned_at = self.condemned_at or clock()
        elif not is_lost:
            self.condemned_at = None
            note.unlink(missing_ok=True)

    def _write(self, pulse: Pulse) -> None:
        path = Path(f"{self._path}{PULSE}")
        try:
            if self._file < 0:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            written = pulse.encode()
            os.pwrite(self._file, written, 0)
            os.ftruncate(self._file, len(written))
        except OSError:  # an old one would accuse it: better none
            path.unlink(missing_ok=True)
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


# --- systemd -----------------------------------------------------------------------------------------


def watchdog_of(environment: Mapping[str, str], pid: int) -> str:
    """Return the socket at which systemd awaits a sign of life (``WatchdogSec=``); empty: it awaits none."""
    if not environment.get("WATCHDOG_USEC") or environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return ""
    return environment.get("NOTIFY_SOCKET", "")


def notify(address: str, word: bytes) -> None:
    """Tell systemd; nobody waits."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(word, "\0" + address[1:] if address.startswith("@") else address)
