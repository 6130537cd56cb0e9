"""Keeps workers alive, as systemd or Kubernetes would: the other half of every crash loop."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from .processes import Worker
from .waiting import PATIENCE, wait_until


class Death(NamedTuple):
    worker: str
    status: int  #: exit status; negative: the signal that killed it


class Supervisor:
    """`count` workers made by `make`, each started again when it dies.

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

    def start(self) -> Supervisor:
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

    def wait_ready(self, timeout: float = PATIENCE) -> Supervisor:
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
        """What all lives of all workers have logged, the dead first."""
        return "\n".join([*self._past_logs, *(_titled(worker) for worker in self.workers)])

    def _watch(self) -> None:
        while not self._stopping.wait(self._restart_delay):
            for name in self._names:
                if not self._workers[name].is_alive() and not self.gave_up:
                    self._replace(name)

    def _replace(self, name: str) -> None:
        dead = self._workers[name]
        self._deaths.append(Death(name, dead.wait()))
        self._past_logs.append(_titled(dead))
        self._workers[name] = self._make(name).start()

    def __enter__(self) -> Supervisor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _titled(worker: Worker) -> str:
    return f"--- {worker.hostname}\n{worker.log_text()}"
