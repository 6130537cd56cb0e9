"""Blocking tasks and fingerprints, and letting them run again (NEW-3).

The command line and Flower share this class, as they share :class:`~celery_poison.quarantine.Quarantine`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from celery import Celery

from celery_poison.blocks import Kind, Rule, read_rules
from celery_poison.errors import ConfigurationError, MessageNotFound
from celery_poison.ledger import policies as stored
from celery_poison.ledger.queries import Queries
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.lookup import Lookup
from celery_poison.quarantine.owner import check_owner, default_actor
from celery_poison.task import PoisonTask

_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSheet:
    """The block list of one moment.

    Attributes:
        version: raised by every change; 0: there was none.
        ignored: what Redis has that is not usable, as sentences.
    """

    version: int
    rules: Sequence[Rule]
    ignored: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        rules = [rule.as_dict() for rule in self.rules]
        return {"version": self.version, "rules": rules, "ignored": [*self.ignored]}


class Blocks:
    """The block list of one app.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and ``SchemaMismatch`` when
    the ledger belongs to another app.

    >>> Blocks(app).block_task("shop.convert", seconds=3600, actor="ann", note="supplier is down")
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._ledger = plugin_of(app).open_ledger()
        self._queries = Queries(self._ledger)

    def read(self) -> BlockSheet:
        """Return what is blocked, the newest rule first."""
        check_owner(self._app, self._queries)
        version, raw, now = stored.read_blocks(self._ledger)
        rules, complaints = read_rules(raw, now)
        newest_first = sorted(rules.values(), key=lambda rule: -rule.since)
        return BlockSheet(version=version, rules=newest_first, ignored=[str(each) for each in complaints])

    def block_task(
        self, task: str, *, seconds: float | None = None, actor: str = "", note: str = "", force: bool = False
    ) -> Rule:
        """Send every new message of ``task`` to quarantine on arrival.

        Args:
            seconds: for how long; None: until somebody unblocks it.
            force: even if this app guards no task of that name.

        Raises:
            MessageNotFound: this app guards no such task.
        """
        if not force:
            self._refuse_unless_guarded(task)
        return self._block(Kind.TASK, task, task, seconds, actor, note)

    def block_fingerprint(
        self,
        fingerprint: str,
        *,
        task: str = "",
        seconds: float | None = None,
        actor: str = "",
        note: str = "",
    ) -> Rule:
        """Send new messages that bear ``fingerprint`` to quarantine on arrival.

        Args:
            task: whose messages can bear it; without it workers compute the fingerprints of all tasks.
            seconds: for how long; None: until somebody unblocks it.

        Raises:
            ConfigurationError: it is no fingerprint.
        """
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise ConfigurationError(f"{fingerprint!r} is no fingerprint: `list --json` shows them")
        return self._block(Kind.FINGERPRINT, fingerprint, task, seconds, actor, note)

    def unblock(self, kind: Kind, name: str, *, actor: str = "", note: str = "") -> int:
        """Let messages of a task, or of a fingerprint, run again; return the list's new version.

        What is in quarantine stays there. Convictions of the fingerprint are forgotten.

        Raises:
            MessageNotFound: it is not blocked.
        """
        check_owner(self._app, self._queries)
        return self._ledger.unblock(kind, name, actor=actor or default_actor(), said=_said(kind, name, note))

    def fingerprint_of(self, id: str) -> tuple[str, str]:
        """Return fingerprint and task of a message in quarantine.

        Raises:
            MessageNotFound: there is none of that id, or it has no fingerprint.
            AmbiguousId: there are several.
        """
        record = Lookup(self._queries).find(id)
        if not record.fingerprint:
            raise MessageNotFound(f"message {id!r} is not in quarantine: only there a fingerprint is known")
        return record.fingerprint, record.task

    def _block(self, kind: Kind, name: str, task: str, seconds: float | None, actor: str, note: str) -> Rule:
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ConfigurationError(f"a block cannot last {seconds} seconds")
        check_owner(self._app, self._queries)
        actor, lasts_ms = actor or default_actor(), max(1, round(seconds * 1000)) if seconds else 0
        said = _said(kind, name, note, f" for {seconds:g} s" if seconds else "")
        self._ledger.block(kind, name, task=task, lasts_ms=lasts_ms, actor=actor, note=note, said=said)
        now = self._queries.now_ms() / 1000
        until = now + seconds if seconds else None
        return Rule(kind=kind, name=name, task=task, since=now, until=until, actor=actor, note=note)

    def _refuse_unless_guarded(self, task: str) -> None:
        # What a worker would load at its start.
        self._app.loader.import_default_modules()
        guarded = [name for name, found in self._app.tasks.items() if isinstance(found, PoisonTask)]
        if task not in guarded:
            near = get_close_matches(task, guarded, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise MessageNotFound(f"this app guards no task {task!r}{hint} (force blocks it all the same)")


def _said(kind: Kind, name: str, note: str, how_long: str = "") -> str:
    return f"{kind} {name}{how_long}" + (f": {note}" if note else "")
