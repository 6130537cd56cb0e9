"""What the index of groups must say, reckoned from the records themselves."""

from __future__ import annotations

from collections import defaultdict

from celery_poison.ledger import Ledger
from celery_poison.ledger.groups import GroupKind
from celery_poison.ledger.scripts import Script
from celery_poison.ledger.views import Views
from celery_poison.model import MessageRecord
from celery_poison.states import State


def hold_to_records(queries: Views, ledger: Ledger) -> None:
    """Assert that every group, and nothing else, is in Redis as the records say."""
    kept, keys, client = [*queries.kept(State.NDLV)], ledger.keys, ledger.client
    expected_keys = set()
    for kind in GroupKind:
        groups = defaultdict[tuple[str, str, str], list[MessageRecord]](list)
        for record in kept:
            groups[record.task, record.cause, getattr(record, kind)].append(record)
        counted = ledger.read.alike(kind)
        assert counted.total == len(counted.groups) == len(groups)
        assert counted.quarantined == len(kept)
        for found in counted.groups:
            alike = groups[found.task, found.cause, getattr(found, kind)]
            mids = {record.mid for record in alike}
            relapsed = {record.mid for record in alike if record.releases}
            assert (found.messages, found.relapsed) == (len(mids), len(relapsed))
            latest = max(record.quarantined_at or 0.0 for record in alike)
            assert found.newest in mids and found.last_seen == 1000 * latest
            key = keys.group(found.sha)
            assert {mid.decode() for mid in client.zrange(key, 0, -1)} == mids
            assert {mid.decode() for mid in client.smembers(f"{key}:relapsed")} == relapsed
            expected_keys |= {key} | ({f"{key}:relapsed"} if relapsed else set())
        expected_keys |= {f"{keys.groups}:{kind}"} if groups else set()
    assert {key.decode() for key in client.scan_iter(f"{keys.groups}:*")} == expected_keys


_ANEW = Script(
    "anew",
    """-- KEYS[1] quarantine zset
-- KEYS[2] groups prefix
-- ARGV[1] messages
local rows = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do enter_groups(KEYS[2], ARGV[1] .. rows[i], rows[i], rows[i + 1]) end
""",
)


def group_anew(ledger: Ledger) -> None:
    """Put everything in quarantine into its groups, after a test has written records by itself."""
    keys, client = ledger.keys, ledger.client
    client.delete(*client.scan_iter(f"{keys.groups}:*"))
    client.eval(_ANEW.text, 2, keys.quarantine, keys.groups, keys.message(""))
