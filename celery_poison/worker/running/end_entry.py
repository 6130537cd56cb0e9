"""The journal entry of a run that ended by itself, laid out once: only words are filled in for each."""

from __future__ import annotations

from celery_poison.ledger.journal import FIELDS, SCHEMA_VERSION
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.writer import bulk

#: The fields whose words differ, in the order of the journal.
FILLED_IN = (
    *("id", "mid", "token", "task", "queue", "worker", "pid", "outcome", "deliveries", "runtime_ms", "note"),
    *("payload_bytes", "memory_kb", "fingerprint", "shape"),
)


class EndEntry:
    """Writes such entries for one worker.

    Args:
        maxlen: ``poison_journal_maxlen``.
        release: ``poison_release``.
    """

    def __init__(self, keys: Keys, maxlen: int, release: str) -> None:
        fixed = {"v": str(SCHEMA_VERSION), "event": "finished", "state": "DLVD", "release": release}
        words = [b"XADD", keys.journal.encode(), b"MAXLEN", b"~", b"%d" % maxlen, b"*"]
        self._template = b"*%d\r\n" % (len(words) + 2 * len(FIELDS)) + b"".join(map(bulk, words))
        for name in FIELDS:
            value = bulk(fixed.get(name, "").encode()).replace(b"%", b"%%")
            self._template += bulk(name.encode()) + (b"%b" if name in FILLED_IN else value)

    def command(self, *words: bytes) -> bytes:
        """Return the command that adds an entry, given the words of ``FILLED_IN``."""
        return self._template % tuple(map(bulk, words))
