"""What a person pauses and resumes: queues and tasks (WAS-6, WAS-7)."""

from __future__ import annotations

from celery_poison.desk.owner import default_actor
from celery_poison.desk.rules import with_note
from celery_poison.desk.store import Store
from celery_poison.errors import ConfigurationError, MessageNotFound
from celery_poison.extensions.holds.pauses import HoldPauses, Pause, Scope, holding
from celery_poison.ledger import Ledger


class HoldDesk:
    """Pauses and resumes. ``Quarantine`` has these methods; raises, ``actor`` and ``note`` are as of that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pauses = HoldPauses(store.ledger)

    def pauses(self) -> list[Pause]:
        """Return the pauses in force, the oldest first."""
        self._store.check_owner()
        return holding(self._store.ledger)

    def pause_queue(self, queue: str, *, actor: str = "", note: str = "", force: bool = False) -> Pause:
        """Let no worker consume ``queue`` any more; its messages stay where they are.

        Args:
            force: even if no worker consumes such a queue and this app declares none.

        Raises:
            MessageNotFound: no such queue is known.
            ConfigurationError: ``poison_observe_only``.
        """
        self._refuse_if_observing()
        if not force:
            self._store.refuse_unless_known(queue, "--force pauses it all the same")
        return self._pause(Scope.QUEUE, queue, actor, note)

    def pause_task(self, task: str, *, actor: str = "", note: str = "", force: bool = False) -> Pause:
        """Let no message of ``task`` begin any more: they are parked in the ledger, without a slot.

        Args:
            force: even if this app guards no task of that name.

        Raises:
            MessageNotFound: this app guards no such task.
            ConfigurationError: ``poison_observe_only``.
        """
        self._refuse_if_observing()
        if not force:
            self._store.refuse_unless_guarded(task, "--force pauses it all the same")
        return self._pause(Scope.TASK, task, actor, note)

    def resume_queue(self, queue: str, *, worker: str = "", actor: str = "", note: str = "") -> list[Pause]:
        """Let ``queue`` be consumed again, also by suspended workers; return what is over now.

        Args:
            worker: name of a node: only its suspension ends, and a pause of the queue stays.

        Raises:
            MessageNotFound: nothing of that is paused.
        """
        actor = actor or default_actor()
        of_queues = (Scope.QUEUE, Scope.ENDPOINT)
        pauses = [pause for pause in self.pauses() if pause.name == queue and pause.scope in of_queues]
        if worker:
            pauses = [pause for pause in pauses if pause.worker == worker]
        for pause in pauses:
            if pause.scope is Scope.QUEUE:
                self._pauses.resume(
                    Scope.QUEUE, queue, actor=actor, journalled=with_note(f"queue {queue}", note)
                )
            else:
                self._pauses.end_suspension(pause.worker, queue, worker=pause.worker, actor=actor, note=note)
        if not pauses:
            whose = f" by {worker}" if worker else ""
            raise MessageNotFound(f"queue {queue} is not paused{whose}")
        return pauses

    def resume_task(self, task: str, *, actor: str = "", note: str = "") -> list[Pause]:
        """Let the messages of ``task`` go on; return the pause that is over now.

        Raises:
            MessageNotFound: it is not paused.
        """
        of_tasks = (Scope.TASK, Scope.VERSION)
        pauses = [pause for pause in self.pauses() if pause.name == task and pause.scope in of_tasks]
        for pause in pauses:
            said = with_note(f"task {task}" + (f" for {pause.version}" if pause.version else ""), note)
            who = {"actor": actor or default_actor(), "journalled": said}
            self._pauses.resume(pause.scope, task, **who, code_version=pause.version)
        if not pauses:
            raise MessageNotFound(f"task {task} is not paused")
        return pauses

    def _pause(self, scope: Scope, name: str, actor: str, note: str) -> Pause:
        if not name:
            raise ConfigurationError(f"name the {scope}")
        self._store.check_owner()
        actor, said = actor or default_actor(), with_note(f"{scope} {name}", note)
        self._pauses.pause(scope, name, actor=actor, note=note, journalled=said)
        now = self._store.queries.now_ms() / 1000
        return Pause(scope=scope, name=name, since=now, actor=actor, note=note)

    def _refuse_if_observing(self) -> None:
        if self._store.settings.observe_only:
            raise ConfigurationError(
                "poison_observe_only is set: workers hold nothing back, and pause nothing"
            )


# --- a blockade of sending that stops consuming, too --------------------------------------------------

#: How the note of a pause begins that came with a blockade, and ends with it.
_CONSUMING_TOO = "sending to it is blocked"


def begin_with_blockade(ledger: Ledger, queue: str, actor: str, note: str) -> None:
    """Pause a queue to which nothing is sent any more; a pause that it has stays."""
    if _pause_of(ledger, queue) is None:
        why = f"{_CONSUMING_TOO}: {note}" if note else _CONSUMING_TOO
        HoldPauses(ledger).pause(
            Scope.QUEUE, queue, actor=actor, note=why, journalled=f"queue {queue}: {why}"
        )


def end_with_blockade(ledger: Ledger, queue: str, actor: str) -> None:
    """End the pause that came with a blockade, and no other."""
    pause = _pause_of(ledger, queue)
    if pause is not None and pause.note.startswith(_CONSUMING_TOO):
        HoldPauses(ledger).resume(
            Scope.QUEUE, queue, actor=actor, journalled=f"queue {queue}: it is unblocked"
        )


def _pause_of(ledger: Ledger, queue: str) -> Pause | None:
    queues = (each for each in holding(ledger) if each.scope is Scope.QUEUE)
    return next((each for each in queues if each.name == queue), None)
