"""Real Celery workers, as processes that can be killed, and what keeps them alive."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from celery_poison.basics import procfs

from .servers import PATIENCE, Running, wait_until


class Worker(Running):
    """`celery -A app worker` in a session, and so a process group, of its own.

    ::

        with Worker("shop.tasks", pool="prefork", concurrency=2, env={"BROKER_URL": url}) as worker:
            worker.wait_ready()
            os.kill(worker.child_pids()[0], signal.SIGKILL)

    The pool's children stay in the group, so that `kill_group()` ends all at once, as the kernel does
    with a container, and so that a task may do the same to itself without reaching any other process.

    `name` is the node's name (`name@test`); `args` are further arguments for `celery worker`; `env` is
    laid over this process's environment; `cwd` is where `app` can be imported from. The log goes to
    `log_path` (appended to), by default a file that disappears with this object.

    It starts without mingle and gossip: mingle waits a whole second for the answers of other workers, in
    each of hundreds of starts. With `defaults` it starts as Celery does, with both.
    """

    #: Starts its process; takes what `subprocess.Popen` takes.
    popen: ClassVar[Callable[..., Any]] = subprocess.Popen

    def __init__(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        name: str = "worker",
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        cwd: str | os.PathLike[str] | None = None,
        log_path: str | os.PathLike[str] | None = None,
        loglevel: str = "INFO",
        defaults: bool = False,
    ) -> None:
        self.app, self.pool, self.concurrency, self.name = app, pool, concurrency, name
        self.queues, self.args, self.loglevel = list(queues), list(args), loglevel
        self.defaults = defaults
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self.cwd = Path(cwd) if cwd is not None else Path.cwd()
        if log_path is None:
            self._log_directory = tempfile.TemporaryDirectory(prefix="poison-worker-")
            log_path = Path(self._log_directory.name) / f"{name}.log"
        self.log_path = Path(log_path)
        self._log_start = 0
        self._process: Any = None
        self._reaping = threading.Lock()

    # -- life

    def start(self) -> Self:
        """Start the process; `wait_ready()` waits until it consumes."""
        if self._process is not None:
            raise RuntimeError(f"{self.name} was started already: a Worker is one life")
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = self.popen(
                self.command(),
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "celery", "-A", self.app, "worker"]
        command += ["-P", self.pool, "-c", str(self.concurrency), "-n", self.hostname]
        command += ["--loglevel", self.loglevel]
        if not self.defaults:
            command += ["--without-gossip", "--without-mingle"]
        if self.queues:
            command += ["-Q", ",".join(self.queues)]
        return command + self.args

    @property
    def hostname(self) -> str:
        return f"{self.name}@test"

    def wait_ready(self, timeout: float = PATIENCE) -> Self:
        """Wait until it says that it is ready to receive tasks."""

        def ready() -> bool:
            if not self.is_alive():
                raise RuntimeError(f"{self.name} died before it was ready\n{self.log_text()}")
            return self.is_ready()

        wait_until(ready, timeout, what=lambda: f"{self.name} is ready\n{self.log_text()}")
        return self

    def is_ready(self) -> bool:
        return f"{self.hostname} ready." in self.log_text()

    def is_alive(self) -> bool:
        """Does the main process still run? Its children are not asked."""
        with self._reaping:
            return self._running() is not None

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the main process to end; its exit status (negative: the signal that killed it).

        Children that are left are killed then, as systemd or a container runtime would.
        """
        wait_until(lambda: not self.is_alive(), timeout, what=lambda: f"{self.name} ends\n{self.log_text()}")
        with self._reaping:
            process = self._started()
            if process.returncode is None:
                # In this order: until it is waited for, no other process can get its process group id.
                self._signal_group(process.pid, signal.SIGKILL)
                process.wait()
            return int(process.returncode)

    def stop(self, grace: float = 10.0) -> int:
        """Warm shutdown; what has not ended after `grace` seconds is killed."""
        if self._process is None:
            return 0
        self.terminate()
        try:
            return self.wait(grace)
        except AssertionError:
            self.kill_group()
            return self.wait()

    # -- ways to die

    def terminate(self) -> None:
        """SIGTERM: warm shutdown, running tasks finish."""
        self.send_signal(signal.SIGTERM)

    def quit(self) -> None:
        """SIGQUIT: cold shutdown, running tasks are given up."""
        self.send_signal(signal.SIGQUIT)

    def kill_main(self) -> None:
        """SIGKILL the main process only."""
        self.send_signal(signal.SIGKILL)

    def kill_group(self) -> None:
        """SIGKILL main process and children at once."""
        with self._reaping:
            process = self._started()
            if process.returncode is None:
                self._signal_group(process.pid, signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send any signal to the main process; nothing happens if it is dead already."""
        with self._reaping:
            process = self._running()
            if process is not None:
                os.kill(process.pid, number)

    # -- what one can see

    @property
    def has_started(self) -> bool:
        return self._process is not None

    @property
    def main_pid(self) -> int:
        return int(self._started().pid)

    def child_pids(self) -> list[int]:
        """The children of the main process in its session: the pool's, under prefork."""
        if self._process is None:
            return []
        those = set(procfs.members_of_session(self.main_pid))
        return [pid for pid in procfs.children_of(self.main_pid) if pid in those]

    def session_pids(self) -> list[int]:
        """Main process, children and theirs, unless they started a session of their own."""
        return procfs.members_of_session(self.main_pid)

    def log_text(self) -> str:
        """Return the log of the current life so far."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    # -- inside

    def _started(self) -> Any:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    def _running(self) -> Any:
        """The process while it runs. A dead one is noticed without reaping it, see `wait`."""
        process = self._started()
        if process.returncode is not None:
            return None
        dead = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if dead else process

    @staticmethod
    def _signal_group(group: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)


class Death(NamedTuple):
    worker: str
    status: int  #: exit status; negative: the signal that killed it


class Supervisor(Running):
    """`count` workers made by `make`, each started again when it dies, as systemd or Kubernetes would.

    ::

        with Supervisor(lambda name: Worker("shop.tasks", name=name), count=3) as fleet:
            fleet.wait_ready()
            ...
            assert fleet.deaths_by_worker() == {"w1": 1, "w2": 1}

    `make` receives the node's name (`w1`, `w2`, …) and returns a Worker that has not been started: one
    call for each life. After `give_up_after` deaths nothing is started again, so that a worker that
    cannot start does not keep the machine busy for ever: `gave_up` says so.
    """

    def __init__(
        self,
        make: Callable[[str], Worker],
        count: int = 1,
        *,
        restart_delay: float = 0.1,
        give_up_after: int = 100,
    ) -> None:
        self._make = make
        self._names = [f"w{number}" for number in range(1, count + 1)]
        self._restart_delay = restart_delay
        self._give_up_after = give_up_after
        self._workers: dict[str, Worker] = {}
        self._deaths: list[Death] = []
        self._past_logs: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> Self:
        for name in self._names:
            self._workers[name] = self._make(name).start()
        self._thread.start()
        return self

    def stop(self, grace: float = 10.0) -> None:
        """No more restarts; a warm shutdown of all at once, then SIGKILL for what is left."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.stop(grace)

    def wait_ready(self, timeout: float = PATIENCE) -> Self:
        """Wait until every present life consumes, however many died on the way there."""
        wait_until(
            lambda: all(worker.is_ready() for worker in self.workers),
            timeout,
            what=lambda: f"all workers are ready\n{self.log_text()}",
        )
        return self

    @property
    def workers(self) -> list[Worker]:
        """The present life of each."""
        return list(self._workers.values())

    @property
    def deaths(self) -> list[Death]:
        """Every death so far, in order. Those that `stop()` caused are not among them."""
        return list(self._deaths)

    def deaths_by_worker(self) -> Counter[str]:
        return Counter(death.worker for death in self._deaths)

    @property
    def gave_up(self) -> bool:
        return len(self._deaths) >= self._give_up_after

    def log_text(self) -> str:
        """Return the logs of all lives of all workers so far, the dead first."""
        return "\n".join([*self._past_logs, *(_titled(worker) for worker in self.workers)])

    def _watch(self) -> None:
        while not self._stopping.wait(self._restart_delay):
            for name in self._names:
                if not (dead := self._workers[name]).is_alive() and not self.gave_up:
                    self._deaths.append(Death(name, dead.wait()))
                    self._past_logs.append(_titled(dead))
                    self._workers[name] = self._make(name).start()


def _titled(worker: Worker) -> str:
    return f"--- {worker.hostname}\n{worker.log_text()}"
