"""Overrides of policies in the ledger: each change one step, journalled, and none lost (EMS-9)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery

from celery_poison import Quarantine, guarded
from celery_poison.errors import ConfigurationError, MessageNotFound, PolicyConflict
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.plugin import plugin_of


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys())


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("unit", broker=redis_url, set_as_current=False)

    @guarded(max_failures=7)
    @app.task(shared=False, name="shop.convert")
    def convert() -> None: ...

    return app


def test_EMS_9_every_change_raises_the_version_and_is_journalled(ledger: Ledger) -> None:
    assert policies.read(ledger, ledger.keys.policy)[:2] == (0, {})
    first = ledger.rules.set("shop.convert", '{"max_crashes": 1}', 0, "ann", "set max_crashes=1: why")
    assert policies.read(ledger, ledger.keys.policy)[:2] == (first, {"shop.convert": b'{"max_crashes": 1}'})
    second = ledger.rules.set("shop.convert", "", first, "bob", "unset everything")
    assert policies.read(ledger, ledger.keys.policy)[:2] == (second, {})
    assert policies.version(ledger, ledger.keys.policy) == second > first
    told = [(entry["event"], entry["task"], entry["actor"], entry["note"]) for entry in ledger.read.journal()]
    assert told == [
        ("policy_changed", "shop.convert", "ann", "set max_crashes=1: why"),
        ("policy_changed", "shop.convert", "bob", "unset everything"),
    ]


def test_EMS_9_a_change_from_an_older_version_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    version = ledger.rules.set("*", '{"max_crashes": 1}', 0, "ann", "")
    for expected in (0, version - 1, version + 1):
        with pytest.raises(PolicyConflict, match=rf"the version is {version}, not {expected}"):
            ledger.rules.set("*", '{"max_crashes": 2}', expected, "bob", "")
    assert policies.read(ledger, ledger.keys.policy)[:2] == (version, {"*": b'{"max_crashes": 1}'})
    assert len(ledger.read.journal()) == 1


def test_EMS_9_a_version_that_redis_lost_is_not_given_out_again(ledger: Ledger) -> None:
    lost = ledger.rules.set("*", '{"max_crashes": 1}', 0, "ann", "")
    ledger.client.delete(ledger.keys.policy)
    assert ledger.rules.set("*", '{"max_crashes": 2}', 0, "ann", "") >= lost > 10**12
    ahead = 10**14
    ledger.client.hset(ledger.keys.policy, "version", ahead)
    assert ledger.rules.set("*", '{"max_crashes": 3}', ahead, "ann", "") == ahead + 1


@pytest.mark.parametrize("garbage", ["", "abc", "-3", "1e9"])
def test_EMS_9_garbage_for_a_version_counts_as_none_and_is_repaired_by_the_next_change(
    garbage: str, ledger: Ledger
) -> None:
    ledger.client.hset(ledger.keys.policy, "version", garbage)
    assert policies.version(ledger, ledger.keys.policy) == 0
    version = ledger.rules.set("*", '{"max_crashes": 1}', 0, "ann", "")
    assert policies.version(ledger, ledger.keys.policy) == version > 0


# --- an app's policies ---------------------------------------------------------------------------------


def test_EMS_9_people_who_change_at_the_same_time_lose_nothing(app: Celery, ledger: Ledger) -> None:
    app.finalize()

    def change(n: int) -> int:
        return Quarantine(app).set_policy(f"shop.t{n % 4}", {"max_crashes": n + 1}, force=True).version

    with ThreadPoolExecutor(4) as pool:
        versions = list(pool.map(change, range(12)))
    assert len(set(versions)) == 12
    assert policies.version(ledger, ledger.keys.policy) == max(versions)
    assert set(policies.read(ledger, ledger.keys.policy)[1]) == {f"shop.t{n}" for n in range(4)}


def test_EMS_9_a_set_keeps_what_it_does_not_name_and_an_unset_too(app: Celery) -> None:
    quarantine = Quarantine(app)
    quarantine.set_policy("shop.convert", {"max_crashes": 1})
    assert quarantine.set_policy("shop.convert", {"max_failures": 3}).options == {
        "max_crashes": 1,
        "max_failures": 3,
    }
    assert quarantine.unset_policy("shop.convert", ["max_crashes"]).options == {"max_failures": 3}
    assert quarantine.unset_policy("shop.convert").options == {}
    with pytest.raises(MessageNotFound, match="nothing is overridden"):
        quarantine.unset_policy("shop.convert")


def test_EMS_9_a_conflict_is_told_only_to_who_named_a_version(app: Celery) -> None:
    quarantine = Quarantine(app)
    version = quarantine.set_policy("*", {"max_crashes": 1}, if_version=0).version
    with pytest.raises(PolicyConflict):
        quarantine.set_policy("*", {"max_crashes": 3}, if_version=0)
    with pytest.raises(PolicyConflict):
        quarantine.unset_policy("*", if_version=version - 1)
    assert quarantine.set_policy("*", {"max_crashes": 3}).options == {"max_crashes": 3}


def test_garbage_can_be_seen_and_taken_away(app: Celery, ledger: Ledger) -> None:
    quarantine = Quarantine(app)
    quarantine.set_policy("shop.convert", {"max_crashes": 1})
    ledger.client.hset(ledger.keys.policy, "shop.convert", '{"max_crashes": 1, "x": 2}')
    ledger.client.hset(ledger.keys.policy, "*", "{")
    assert len(quarantine.policies().ignored) == 2
    assert quarantine.unset_policy("shop.convert", ["x"]).options == {"max_crashes": 1}
    quarantine.unset_policy("*")
    assert quarantine.policies().ignored == []


def test_a_task_that_the_hash_has_no_place_for_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="the name is taken"):
        Quarantine(app).set_policy("version", {"max_crashes": 1}, force=True)


def test_EMS_9_a_plugin_reads_again_only_what_has_changed(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = plugin_of(app)

    def limits() -> tuple[int, int]:
        policy = plugin.policies["shop.convert"][0]
        return policy.max_crashes, policy.max_failures

    assert not plugin.refresh_policies(ledger)
    Quarantine(app).set_policy("shop.convert", {"max_crashes": 1})
    assert plugin.refresh_policies(ledger)
    assert limits() == (1, 7)
    with monkeypatch.context() as patch:
        patch.delattr(policies, "read")
        assert not plugin.refresh_policies(ledger)
    Quarantine(app).unset_policy("shop.convert")
    assert plugin.refresh_policies(ledger)
    assert limits() == (2, 7)
