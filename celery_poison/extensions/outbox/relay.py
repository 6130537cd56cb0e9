"""Sends what waits in the outbox: one relay in every worker, others standalone (TP1-1 to TP1-7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from celery.utils.log import get_logger

from celery_poison import signals
from celery_poison.basics.forking import no_fork
from celery_poison.broker.capture import Outgoing
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.extensions.outbox.database import Mover
from celery_poison.extensions.outbox.handover import Handover
from celery_poison.extensions.outbox.lanes import Copy, LaneLease, Lanes, SendingFailure, Taken
from celery_poison.extensions.outbox.packing import unpack
from celery_poison.extensions.outbox.send_failures import Cause, NotSent, error_transactions, send_failed
from celery_poison.extensions.outbox.settings import OutboxSettings
from celery_poison.ledger import Ledger, policies
from celery_poison.ledger.connection import bound
from celery_poison.plugin import Plugin
from celery_poison.rules.blocks import RuleKind, read_rules
from celery_poison.rules.reports import Report
from celery_poison.upstream import hooks

logger = get_logger("celery_poison")

#: Seconds for which a relay may work on what it took; longer than connecting, declaring and confirming take.
LEASE = 15.0
#: Messages that are sent together at most.
MOST = 100
#: Seconds between two looks at a store that seems empty, and of who serves the lanes in trouble.
PAUSE = 1.0
TROUBLED_PAUSE = 0.1
#: While nothing waits at all, each pause is twice as long as the last, up to this. A message that comes ends
#: it at once, unless the relay dies that was woken. Less than Redis may take for an answer.
QUIET = 4.0
#: Seconds after which a connection is given up that nothing is sent on: what is between may have cut it.
IDLE = 30.0
#: Seconds that a command of who moves rows may take; more than waiting for rows does, three times.
MOVER_BOUND = 6.0


class Relay:
    """Takes what is due and brings it to the broker.

    What it took and did not finish is due again after ``LEASE``.

    Lanes whose last sending failed are served by a thread of their own: waiting for a broker that does not
    answer for one queue keeps no other queue waiting.

    Args:
        complain: is told of every error of the ledger.
    """

    def __init__(self, plugin: Plugin, complain: Callable[[Exception], object] = lambda error: None) -> None:
        self._plugin = plugin
        self._complain = complain
        self._stop = threading.Event()
        #: Name of its thread -> what that does, and whether nothing is being sent by it.
        self._rounds: dict[str, tuple[Rounds | Mover, threading.Event]] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Send from now on, in the background. Safe to call again."""
        if not self._rounds and hooks.fits(hooks.Area.OUTBOX):
            self._begin("poison-relay", lambda: self._make(trouble=False))
            self._begin_moving()

    def run(self) -> None:
        """Send until :meth:`stop` is called from a signal handler or another thread."""
        self._begin_moving()
        self._rounds["poison-relay"] = mine = self._make(trouble=False), threading.Event()
        self._work(*mine)
        self.finish(PAUSE)

    def stop(self) -> None:
        """Take nothing more; called from a signal handler, too."""
        self._stop.set()
        for rounds, _ in [*self._rounds.values()]:
            if isinstance(rounds, Rounds):
                rounds.wake()

    def finish(self, patience: float) -> None:
        """Stop, and wait at most so many seconds for what is being sent at this moment."""
        self.stop()
        until = time.monotonic() + patience
        for rounds, is_idle in self._rounds.values():
            is_idle.wait(max(0.0, until - time.monotonic()))
            if isinstance(rounds, Mover):
                rounds.leave()

    def join(self, patience: float) -> None:
        """Wait at most so many seconds until its threads have ended and closed their connections."""
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _make(self, *, trouble: bool) -> Rounds:
        return Rounds(self._plugin, trouble=trouble, in_trouble=self._begin_trouble)

    def _begin_trouble(self) -> None:
        self._begin("poison-relay-trouble", lambda: self._make(trouble=True))

    def _begin_moving(self) -> None:
        if database := self._plugin.settings.of(OutboxSettings).outbox_database:
            ledger = self._plugin.open_ledger()
            bound(ledger.client, MOVER_BOUND)
            self._begin("poison-relay-rows", lambda: Mover(ledger, database))

    def _begin(self, name: str, make: Callable[[], Rounds | Mover]) -> None:
        if name in self._rounds:
            return
        self._rounds[name] = make(), threading.Event()
        thread = threading.Thread(target=self._work, args=self._rounds[name], name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, rounds: Rounds | Mover, is_idle: threading.Event) -> None:
        while not self._stop.is_set():
            is_idle.clear()
            try:
                with no_fork():
                    pause = rounds.once()
                is_idle.set()
                if pause > 0:
                    rounds.wait(pause, self._stop)
            except LedgerUnavailable as error:
                if not self._stop.is_set():
                    self._complain(error)
                self._stop.wait(PAUSE)
            except Exception:
                logger.exception("celery_poison: the relay failed; it goes on with its next round")
                self._stop.wait(PAUSE)
        is_idle.set()
        rounds.close()


class Rounds:
    """The rounds of one thread of a relay."""

    def __init__(self, plugin: Plugin, *, trouble: bool, in_trouble: Callable[[], object]) -> None:
        self._plugin = plugin
        self._trouble = trouble
        self._in_trouble = in_trouble
        self._ledger: Ledger = plugin.open_ledger()
        self._lanes = Lanes(self._ledger)
        self._handover = Handover(plugin.app, self._ledger.client, plugin.extensions)
        #: Task whose messages would not be run where they arrive, and wait here (row 7) -> until when.
        self._blocked: dict[str, float | None] = {}
        self._blocks = -1
        self._sent_at = 0.0
        self._quiet = PAUSE
        #: Whether the last round found nothing that will ever be due; and whether no lane has anything.
        self._was_quiet = self._are_empty = False

    def once(self) -> float:
        """Send what is due in one lane; return for how many seconds there is nothing to do.

        Raises:
            LedgerUnavailable: Redis is away; what is due stays due.
        """
        self._are_empty = self._was_quiet and self._lanes.are_empty()
        if self._are_empty:
            return self._rest(None)
        self._refresh_blocked()
        notes = not self._handover.is_atomic
        lease, due = self._lanes.take(int(LEASE * 1000), MOST, trouble=self._trouble, notes=notes)
        if lease is None:
            return self._rest(due)
        self._quiet, self._was_quiet = PAUSE, False
        self._send(lease)
        self._sent_at = time.monotonic()
        return 0.0

    def _rest(self, due: float | None) -> float:
        self._was_quiet = due is None
        if time.monotonic() - self._sent_at > IDLE:
            self._handover.rest()
        return self._pause(due)

    def _refresh_blocked(self) -> None:
        """Look for changes; what was blocked and is not any more is due at once."""
        version = policies.version(self._ledger, self._ledger.keys.blocks)
        if version == self._blocks and not any(self._blocked.values()):
            return
        self._blocks, raw, now = policies.read(self._ledger, self._ledger.keys.blocks)
        rules, _ = read_rules(raw, now)
        blocked = {rule.name: rule.until for rule in rules.values() if rule.kind is RuleKind.TASK}
        for task in self._blocked.keys() - blocked.keys():
            self._lanes.resend(task=task)
        self._blocked = blocked

    def _pause(self, due: float | None) -> float:
        if self._trouble:  # nobody wakes this one
            return max(TROUBLED_PAUSE, min(PAUSE, PAUSE if due is None else due))
        if due is not None:
            self._quiet = PAUSE
            return max(0.02, min(PAUSE, due))
        pause, self._quiet = self._quiet, min(QUIET, 2 * self._quiet)
        return pause

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait for work, at most for ``seconds``."""
        if self._trouble:
            stop.wait(seconds)
            return
        if not self._are_empty and self._lanes.has_trouble():
            self._in_trouble()
        if self._lanes.wait(seconds, stop):
            self._was_quiet = False

    def wake(self) -> None:
        """End :meth:`wait`, whose ``stop`` is set; from any thread."""
        self._lanes.hang_up()

    def close(self) -> None:
        self._handover.close()
        self._ledger.disconnect()

    def _send(self, lease: LaneLease) -> None:
        over = [Copy(taken.seq, "") for taken in lease.messages if taken.note < 0]
        sendable = [taken for taken in lease.messages if taken.note >= 0]
        batch: list[tuple[int, int, Outgoing]] = []
        try:
            batch = self._readable(sendable)
            copies = self._handover.send(batch) if batch else []
            is_mine = self._lanes.note_sent(lease, [*over, *copies])
        except NotSent as error:
            self._handle_failure(lease, sendable, error)
            return
        except ConfigurationError as error:
            self._handle_failure(lease, sendable, NotSent(Cause.DEFINITION, str(error), reached=False))
            return
        if is_mine:
            sent = {copy.seq for copy in copies}
            self._handover.tell(message for seq, _, message in batch if seq in sent)
        else:
            logger.debug("celery_poison: another relay has lane %s by now", lease.lane)

    def _readable(self, taken: Sequence[Taken]) -> list[tuple[int, int, Outgoing]]:
        """Return the messages up to the first that may not be sent.

        Raises:
            NotSent: that is the first one already.
        """
        readable: list[tuple[int, int, Outgoing]] = []
        for seq, note, packed in taken:
            try:
                message = unpack(packed)
            except (ValueError, TypeError) as error:
                refusal = NotSent(Cause.BAD_MESSAGE, f"not to be read: {error}", reached=False)
            else:
                if message.task not in self._blocked:
                    readable.append((seq, note, message))
                    continue
                refusal = NotSent(Cause.TASK_BLOCKED, f"task {message.task} is blocked", reached=False)
            if not readable:
                raise refusal
            break
        return readable

    # --- what could not be sent --------------------------------------------------------------------

    def _handle_failure(self, lease: LaneLease, taken: Sequence[Taken], error: NotSent) -> None:
        if error.confirmed:  # the rest is taken again at once: nothing has failed yet
            self._lanes.note_sent(lease, error.confirmed)
            return
        cause, settings, lane = error.cause, self._plugin.settings.of(OutboxSettings), lease.lane
        self._in_trouble()
        head, last, note = taken[0], taken[-1].seq, error.detail
        # What is wrong with one message, nobody knows of which: each is sent by itself (TP1-7).
        if len(taken) > 1 and cause in (Cause.BAD_MESSAGE, Cause.DEFINITION):
            self._lanes.note_failure(lease, SendingFailure(verdict="again", wait_ms=0, single=last))
            return
        single = last if len(taken) > 1 and cause is not Cause.TASK_BLOCKED else 0
        if cause.row.retried and lease.tries < settings.outbox_retries:
            wait = int(settings.outbox_retry_interval * 1000)
            retry = SendingFailure(
                verdict="retry", wait_ms=wait, seq=head.seq, single=single, cause=cause.value
            )
            self._lanes.note_failure(lease, retry)
            return
        blocks = cause.blocks(lane.queue, settings.outbox_auto_block)
        is_told = lease.failed_seq == head.seq
        report = None if is_told else self._report(lease, head, error, blocks=blocks)
        failure = SendingFailure(
            verdict="failed",
            wait_ms=int(settings.outbox_resend_interval * 1000),
            seq=head.seq,
            single=single,
            cause=cause.value,
            scope="task" if cause.row.by_task else "queue",
            blocks=blocks,
            note=note,
        )
        errors = error_transactions(self._plugin, report) if report else []
        blocked = self._lanes.note_failure(lease, failure, errors)
        if not is_told:
            self._say(lease, head, error, blocked=blocked)

    def _report(self, lease: LaneLease, head: Taken, error: NotSent, *, blocks: bool) -> Report | None:
        try:
            message = unpack(head.packed)
        except (ValueError, TypeError):
            return None  # nobody can say what it was
        uncertain = error.cause.row.uncertain and error.reached
        return send_failed(
            message,
            lease.lane.queue,
            error.cause,
            seq=head.seq,
            detail=error.detail,
            blocked=blocks,
            uncertain=uncertain,
        )

    def _say(self, lease: LaneLease, head: Taken, error: NotSent, *, blocked: bool | None) -> None:
        lane, task = lease.lane, head.packed.partition(b"\t")[0].decode("utf-8", "replace")
        if blocked is None:
            return
        logger.error(
            "celery_poison: message %d of task %s to queue %s could not be sent (%s): %s",
            head.seq,
            task,
            lane.queue,
            error.cause.value,
            error,
        )
        if blocked:
            logger.error("celery_poison: sending to queue %s is blocked: `celery poison unblock`", lane.queue)
            signals.queue_blocked.send(sender=None, queue=lane.queue, cause=error.cause.value)
