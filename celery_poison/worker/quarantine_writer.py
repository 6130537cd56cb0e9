"""Puts messages into quarantine, and gathers what the journal tells about them."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.calling import within
from celery_poison.basics.text import clean
from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.errors import IllegalTransition, LedgerUnavailable, QuarantineFull, StaleDelivery
from celery_poison.headers import FAILURES, RELEASE, VERDICT
from celery_poison.keep.arguments import arguments, fingerprint_of, fingerprint_of_failure
from celery_poison.keep.room import Room
from celery_poison.keep.spool import Spooled, open_spool
from celery_poison.keep.stored_message import Identity, original, stored_fields
from celery_poison.ledger.messages import Known
from celery_poison.model import Start
from celery_poison.policy import Policy
from celery_poison.rules.destinations import SYSTEM_ROUTE, Route, route
from celery_poison.rules.failures import Failure, KeptFailure
from celery_poison.worker.blocklist import Fingerprints
from celery_poison.worker.health import Refresher
from celery_poison.worker.recorder import traits_of_message
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

logger = get_logger("celery_poison")

#: Seconds between two looks into the spool.
SPOOL_PAUSE = 1.0


@dataclass(eq=False, repr=False)
class QuarantineWriter:
    """Keeps messages for one worker; everything here waits for Redis.

    Args:
        policies: task name -> (policy, whether it diverts).
        recorder: knows the key of fingerprints.
    """

    site: Site
    fingerprints: Fingerprints
    refresher: Refresher

    def __post_init__(self) -> None:
        self._room = Room(self.site.settings, self.site.ledger, self.site.extensions)
        self._spool = open_spool(self.site.settings.spool_directory)

    def write(
        self,
        message: Any,
        mid: str,
        start: Start,
        cause: str,
        reason: str,
        failure: Failure | None = None,
        *,
        has_run: bool = False,
        proves_nothing: bool = False,
    ) -> None:
        """Store a message in quarantine; it may be acknowledged as soon as this returns.

        Args:
            failure: what it raised, if it is kept for that.
            has_run: a run of it has begun.
            proves_nothing: it is kept for that alone, and counts for no rule about its fingerprint.

        Raises:
            StaleDelivery: it runs elsewhere.
            LedgerUnavailable: it must not be acknowledged. With a spool that takes it, nothing is raised.
        """
        policy = self.site.policies[start.task][0].at(start.queue)
        is_conviction = cause not in causes.NO_CONVICTIONS and not proves_nothing
        words = self._words(message, start, cause, failure, policy, not_rerun=has_run and not policy.rerun)
        words |= {
            "cause": cause,
            "reason": reason,
            "block_after": (policy.block_fingerprint_after or 0) if is_conviction else None,
        }
        new = self._store(message, mid, start, words)
        if new:
            self._added(mid)
        if words["block_after"] and new is not None:
            self.refresher.blocks()  # here at once, elsewhere within a heartbeat

    def _store(self, message: Any, mid: str, start: Start, words: dict[str, Any]) -> bool | None:
        """Return whether a message is new in quarantine; None where the ledger does not take it."""
        cause = words["cause"]
        try:
            with self._quarantining(message, mid, start, cause, words["reason"]):
                new = self.site.ledger.quarantine.store(mid, start, **words, limit=self._room.most(cause))
        except IllegalTransition:
            return None  # a person gave this message up: one more copy of it adds nothing
        except QuarantineFull as error:
            logger.warning(
                "celery_poison: Task %s[%s] is not kept: %s", clean(start.task), clean(start.id), error
            )
            return None
        except LedgerUnavailable as error:
            if not self._spools(Spooled(mid, start, words), error):
                raise
            return None
        return new

    def _words(
        self,
        message: Any,
        start: Start,
        cause: str,
        failure: Failure | None,
        policy: Policy,
        *,
        not_rerun: bool,
    ) -> dict[str, Any]:
        """Return the stored fields of a message, its destination, and its fields in the journal."""
        evidence = failure.evidence if failure else NO_EVIDENCE
        fields = self._fields(message, start.task, cause, failure)
        return {
            "fields": fields | ({"not_rerun": "1"} if not_rerun else {}),
            "route": SYSTEM_ROUTE if not_rerun else self._route(message, start, cause, policy),
            "known": self.journal_fields(message, start.task, evidence),
        }

    def _route(self, message: Any, start: Start, cause: str, policy: Policy) -> Route:
        return route(
            policy.exception_destination,
            cause,
            blocked_retry_timeout=policy.blocked_retry_timeout,
            came_from=start.queue,
            was_sent=VERDICT in message.headers,
        )

    def _quarantining(
        self, message: Any, mid: str, start: Start, cause: str, reason: str
    ) -> AbstractContextManager[None]:
        hooks = self.site.extensions.quarantining
        return within(hook(self.site.ledger, message, mid, start, cause, reason) for hook in hooks)

    def _spools(self, message: Spooled, why: LedgerUnavailable) -> bool:
        """Keep on disk what the ledger cannot take; False where there is no place for it (WAS-8)."""
        if self._spool is None:
            return False
        try:
            self._spool.put(message)
        except OSError as error:
            logger.error("celery_poison: nor does the spool take it: %s", error)
            return False
        task, id, where = message.start.task, message.start.id, self._spool.path
        logger.warning("celery_poison: Task %s[%s] is kept in %s: %s", task, id, where, why)
        return True

    def bring_spooled(self) -> None:
        """Bring to quarantine what is in the spool of this machine, now and again.

        Raises:
            Retry: it looks again later.
            LedgerUnavailable: Redis takes nothing yet.
        """
        if self._spool is not None:
            for mid in self._spool.bring_to(self.site.ledger):
                logger.warning("celery_poison: message %s is in quarantine now, from the spool", mid)
                self._added(mid)
            raise Retry(SPOOL_PAUSE)

    def _fields(
        self, message: Any, task: str, cause: str, failure: Failure | None
    ) -> dict[str, str | bytes | int]:
        """Return the stored fields of a message."""
        # What died while it was being received may have died of this: it is not opened, nor the user asked.
        opened = cause != causes.RECEIVE
        shown = arguments(self.site.app, self.site.settings.redact, task, original(message)) if opened else ""
        secret = self.site.recorder.secret
        if failure is None:
            function = self.site.policies[task][0].fingerprint if opened else None
            return stored_fields(message, self.fingerprints.of(message, task, secret, function), shown)
        fingerprint = fingerprint_of_failure(secret, task, failure.exception, failure.calls)
        kept = KeptFailure.of(failure, message.headers.get(FAILURES)).encode()
        return {**stored_fields(message, fingerprint, shown), "failure": kept}

    def keep(
        self, message: Any, start: Start, identity: Identity, cause: str, reason: str, limit: int
    ) -> None:
        """Store a message that never reached a task, whatever it is (NEW-5); it may be acknowledged then.

        Args:
            start: the delivery that brought it.
            limit: messages in quarantine beyond which it is not kept.

        Raises:
            QuarantineFull: ``limit`` is reached.
            LedgerUnavailable: it must not be acknowledged.
        """
        mid, release = identity.mid, message.headers.get(RELEASE)
        shown = arguments(self.site.app, self.site.settings.redact, start.task, original(message))
        fields = stored_fields(message, fingerprint_of(message, start.task, self.site.recorder.secret), shown)
        fields |= {name: clean(fields[name]) for name in ("content_type", "content_encoding")}
        store = partial(
            self.site.ledger.quarantine.store,
            cause=cause,
            reason=reason,
            fields={**fields, "unprocessable": start.token},
            limit=self._room.most(cause, limit),
            limit_bytes=self.site.ledger.memory.at_most(self.site.settings.keep_unprocessable_bytes),
            known=self._known_of(message, start.task),
        )
        if type(release) is int:  # its operator may not have said yet that it was published
            with suppress(StaleDelivery, IllegalTransition):
                self.site.ledger.decisions.complete_release(mid, identity.id, release)
        new = False
        with suppress(IllegalTransition), self._quarantining(message, mid, start, cause, reason):
            new = store(mid, start)  # refused where a person gave it up
        kept_by = b"" if new else self.site.ledger.read.message(mid).get("unprocessable")
        # Else it is kept already: of this delivery, say, whose answer was lost.
        came_before = message.delivery_info.get("redelivered")
        if not (new or came_before or kept_by == start.token.encode()):
            mid = f"{mid}-{start.token}"  # no copy, but another message of the same name
            new = store(mid, start._replace(id=mid) if identity.by_content else start)
        if new:
            self._added(mid)

    def would_keep(self, message: Any, start: Start, identity: Identity, cause: str, reason: str) -> None:
        """Note that such a message would be kept, with ``poison_observe_only``."""
        known = self._known_of(message, start.task)
        self.site.ledger.quarantine.observe(identity.mid, start, cause=cause, reason=reason, known=known)

    def _known_of(self, message: Any, task: str) -> Known:
        traits = traits_of_message(message, task, self.site.recorder.secret, asks_user=False)
        return {**traits._asdict(), "release": self.site.settings.code_version}

    def _added(self, mid: str) -> None:
        if record := self.site.ledger.read.record(mid):
            self.site.loop.call_in_loop(partial(self.site.announce.quarantined, record))
        with suppress(LedgerUnavailable):  # it is kept
            self._room.make()

    def would_quarantine(
        self, message: Any, mid: str, start: Start, cause: str, reason: str, *, has_died: bool = False
    ) -> None:
        """Note what would become of a message, with ``poison_observe_only``.

        Args:
            has_died: just now, so that it is logged again. What comes back after that is the same news.
        """
        fields = self.journal_fields(message, start.task)
        new = self.site.ledger.quarantine.observe(mid, start, cause=cause, reason=reason, known=fields)
        if new or has_died:
            said = "celery_poison: Task %s[%s] would be quarantined: %s"
            logger.warning(said, clean(start.task), clean(start.id), clean(reason))

    def journal_fields(self, message: Any, task: str, evidence: Evidence = NO_EVIDENCE) -> Known:
        """Return the journal's fields of a message of this worker beside its start."""
        asks_user = self.site.policies[task][0].fingerprint is not None
        traits = traits_of_message(message, task, self.site.recorder.secret, asks_user=asks_user)
        ours = {"release": self.site.settings.code_version, "evidence": evidence.encode()}
        return {**traits._asdict(), **ours, "memory_kb": str(evidence.rss_kb or "")}
