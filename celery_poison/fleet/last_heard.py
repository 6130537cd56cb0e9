"""What is known of a worker that has died as a whole: nobody of it is left to say it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from celery_poison.basics.frames import frames_in, is_waiting
from celery_poison.basics.numbers import moment, whole
from celery_poison.basics.pulse import ALIVE, stood
from celery_poison.causes import NEAR, Evidence
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet import Silence
from celery_poison.ledger.rows import strings


def last_heard(ledger: Ledger, worker: str, how: Silence, looks: Iterable[int] = ()) -> Evidence:
    """Return the evidence about a worker that is about to be declared dead.

    Args:
        looks: when this monitor looked at all workers, in ms of Redis' clock.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the last heartbeat of a worker"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hmget(ledger.keys.worker(worker), "vitals", "stack")
        pipe.zscore(ledger.keys.leases, worker)
        pipe.hget(ledger.keys.gone, worker)
        pipe.time()
        (vitals, stack), beat, gone, (seconds, micros) = pipe.execute()
    ended = whole(gone) if how is Silence.GONE and gone else seconds * 1000 + micros // 1000
    heard_ms = max(0, ended - moment(beat)) if beat is not None else None
    evidence = Evidence(noticed=how, heard_ms=heard_ms)
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # another version's, or none
        last_words = json.loads(vitals or b"{}")
        used, limit = last_words["used_kb"], last_words["limit_kb"]
        evidence = replace(
            evidence,
            used_kb=used or None,
            limit_kb=limit or None,
            limit_of=last_words["limit_of"] if limit else "",
            near_limit=used >= NEAR * limit if limit else None,
            asked=last_words.get("asked", ""),
            asked_ms=last_words["asked_ms"] + (heard_ms or 0) if "asked_ms" in last_words else None,
        )
    if how is Silence.FROZEN or evidence.asked == ALIVE:
        # What froze it where this host can tell, else where its loop stood before.
        evidence = replace(evidence, stack=_where_it_stands(worker) or strings(stack))
    if beat is None or how is Silence.FROZEN:  # no process died
        return evidence
    # Until its connections were gone, every look has seen them.
    seen = max((look for look in looks if look < ended), default=0) if how is Silence.GONE else 0
    return replace(evidence, after_ms=max(moment(beat), seen), by_ms=ended)


def _where_it_stands(worker: str) -> tuple[str, ...]:
    """Return where the loop of a worker on this host is that stands still; () where nobody here knows."""
    stack = frames_in(stood(worker))
    return () if is_waiting(stack) else stack
