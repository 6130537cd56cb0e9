"""A ledger on a cluster: the owner of its slot is found, and followed (NEW-24)."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import pytest
import redis
import redis.sentinel

from celery_poison.basics.text import without_secrets
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.fleet.glances import Glances
from celery_poison.ledger import Ledger
from celery_poison.ledger.cluster import Address, SlotOwner, _Answer, is_cluster, owner_of
from celery_poison.ledger.connection import check_server, open_redis
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.writer import Writer, command
from celery_poison.testing.servers import find_wheel_binary, wait_until
from tests.harness.cluster import ClusterSet, find_binary
from tests.services import need

KEYS = Keys()
WORDS = f"{KEYS.prefix}words"


def _push(word: str) -> bytes:
    return command(b"RPUSH", WORDS.encode(), word.encode())


@pytest.fixture(scope="module", params=["redis", pytest.param("valkey", marks=pytest.mark.matrix)])
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterSet]:
    binary = find_binary() if request.param == "redis" else find_wheel_binary()
    need(binary is not None, "redis-server")
    with ClusterSet(binary) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: ClusterSet) -> Iterator[redis.Redis]:
    with open_redis(cluster.url(), key=KEYS.prefix) as client:
        client.delete(WORDS)
        yield client


@pytest.mark.parametrize(
    ("url", "seeds", "login"),
    [
        ("redis://a:1;b:2?cluster=true", [("a", 1), ("b", 2)], (None, None)),
        ("redis://u:p%2Fw@a;redis://b:2/?cluster=yes", [("a", 6379), ("b", 2)], ("u", "p/w")),
        ("redis://a:1?cluster=true;b:2", [("a", 1), ("b", 2)], (None, None)),
    ],
)
def test_NEW_24_a_URL_names_some_nodes_of_a_cluster(
    url: str, seeds: list[tuple[str, int]], login: tuple[str, str]
) -> None:
    pool = open_redis(url).connection_pool
    owner = owner_of(pool)
    assert owner is not None and owner._seeds == seeds
    assert tuple(pool.connection_kwargs.get(name) for name in ("username", "password")) == login
    assert not issubclass(pool.connection_class, redis.SSLConnection)


def test_NEW_24_TLS_goes_for_every_node_of_a_cluster() -> None:
    for url in ("rediss://a:1;b:2?cluster=true", "redis://a:1;b:2?cluster=true&ssl_cert_reqs=none"):
        pool = open_redis(url).connection_pool
        owner = owner_of(pool)
        assert owner is not None
        asking = owner._client(("b", 2)).connection_pool
        assert issubclass(pool.connection_class, redis.SSLConnection)
        assert issubclass(asking.connection_class, redis.SSLConnection)


@pytest.mark.parametrize("url", ["redis://u:pw@a:1;b:2?cluster=true", "redis://a:1;u:pw@b:2?cluster=true"])
def test_NEW_24_no_password_of_a_cluster_is_shown(url: str) -> None:
    assert without_secrets(url) == "redis://a:1;b:2"


def test_NEW_24_a_URL_without_that_word_is_no_cluster() -> None:
    assert not any(map(is_cluster, ("redis://a:1", "redis://a;redis://b", "redis://a?cluster=false")))
    with pytest.raises(ConfigurationError, match="host or port"):
        open_redis("redis://a:x;b?cluster=true")


def test_NEW_24_what_is_no_cluster_is_named(redis_url: str) -> None:
    with pytest.raises(redis.ConnectionError, match="cluster support disabled"):
        open_redis(f"{redis_url}?cluster=true").ping()


def test_NEW_24_nodes_that_swallow_what_they_are_asked_hold_nobody_up_for_longer_than_one_search() -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(12)]
        ports = [server.getsockname()[1] for server in silent]
        nodes = ";".join(f"127.0.0.1:{port}" for port in ports)
        client = open_redis(f"redis://{nodes}?cluster=true", key=KEYS.prefix)
        for _ in range(3):
            with pytest.raises(redis.ConnectionError, match="no node of the cluster"):
                client.ping()
        owner = owner_of(client.connection_pool)
        assert owner is not None
        asked = len(owner.sentinels)
    assert 1 <= asked <= 6, "three searches at most, though each call looks three times and there are twelve"


def test_NEW_24_a_slot_that_moves_is_followed_and_its_subscribers_notice(
    cluster: ClusterSet, client: redis.Redis
) -> None:
    check_server(client)
    news: list[str] = []
    writer = Writer(
        client,
        KEYS.channel("w/1"),
        news=KEYS.news,
        on_news=lambda: news.append("a worker has ended"),
        on_connect=lambda: _push("connected"),
    )
    assert writer.send(_push("one")) and writer.follows_master
    before, ledger = writer.run_id, Ledger(client, KEYS)
    ledger.fleet.beat("w/1", {"node": "w"}, first=True, run_id=before)
    seen = ledger.fleet.watch(60_000)
    assert (seen.counted, seen.channels) == (1, (KEYS.channel("w/1"),)), "its connection is counted"
    glances, lead = Glances(ledger, 2.0), partial(ledger.fleet.lead, ttl_ms=60_000, run_id=before)
    glances.saw(seen)
    assert glances.is_all_as_before() is not None, "at a glance, too"
    assert lead("w/1") and lead("w/2") is None and glances.is_held() and glances.is_held_still()
    cluster.move()
    wait_until(lambda: not writer.wait(0.0), what="its node says that the slot has gone")
    assert writer.send(_push("two")) and writer.run_id != before and not news
    wait_until(lambda: client.llen(WORDS) == 4, what="all four")
    assert client.lrange(WORDS, 0, -1) == [b"connected", b"one", b"connected", b"two"]
    client.publish(KEYS.news, "x")
    wait_until(lambda: writer.open() and news, what="news come from any node")
    assert writer.follow() is None
    before = writer.run_id
    cluster.fail_over()
    wait_until(lambda: writer.open() and writer.run_id not in ("", before), what="its replica is followed")
    assert client.info("replication")["role"] == "master"
    writer.close()
    cluster.wait_whole()


def test_NEW_24_a_script_in_a_slot_that_moves_is_refused_as_by_a_redis_that_is_away(
    cluster: ClusterSet, client: redis.Redis
) -> None:
    ledger, old, new = Ledger(client, KEYS), cluster.owner, cluster.another_master()
    ledger.fleet.beat("w/2", {"node": "w"}, first=True)
    new.ask("SETSLOT", cluster.slot, "IMPORTING", old.id)
    old.ask("SETSLOT", cluster.slot, "MIGRATING", new.id)
    with pytest.raises(LedgerUnavailable, match="another server has this key, or soon will"):
        ledger.fleet.beat("w/2", {"node": "w"})
    for node in (new, old):
        node.ask("SETSLOT", cluster.slot, "STABLE")
    assert ledger.fleet.beat("w/2", {"node": "w"}) > 0, "what was refused is counted"


# --- whom to believe ---------------------------------------------------------------------------------

OLD, NEW, OTHER, FOURTH = (("node", number) for number in range(1, 5))


class Nodes(SlotOwner):
    """Nodes that say what a test wants them to: the owner by their word, and their own epoch."""

    def __init__(self, says: Mapping[Address, tuple[Address, int] | None]) -> None:
        super().__init__([OTHER, OLD], 7, None, {})
        self.says, self.asked = dict(says), list[Address]()

    def _ask(self, at: Address, answers: dict[Address, _Answer | None]) -> _Answer | None:
        self.asked.append(at)
        owner, epoch = self.says[at] or (None, 0)
        answers[at] = answer = (
            _Answer(owner, owner == at, epoch, True, frozenset(self.says)) if owner else None
        )
        self._learned = frozenset(self.says)
        return answer

    def found(self) -> Address:
        self.asked.clear()
        return self.discover_master("")


ALL_IS_WELL: dict[Address, tuple[Address, int] | None] = {
    OLD: (OLD, 3),
    NEW: (OLD, 3),
    OTHER: (OLD, 2),
    FOURTH: (OLD, 4),
}


def test_NEW_24_at_a_heartbeat_two_nodes_are_asked_and_the_owner_last() -> None:
    nodes = Nodes(ALL_IS_WELL)
    assert nodes.found() == OLD
    assert nodes.found() == OLD and len(nodes.asked) == 2 and nodes.asked[1] == OLD
    assert nodes.found() == OLD and len(nodes.asked) == 2


@pytest.mark.parametrize("witness", [NEW, OTHER, FOURTH])
def test_NEW_24_an_owner_that_is_frozen_is_not_waited_for_once_another_has_taken_over(
    witness: Address,
) -> None:
    nodes = Nodes(ALL_IS_WELL)
    assert nodes.found() == OLD
    nodes._witness = witness
    nodes.says |= {OLD: None, NEW: (NEW, 5), OTHER: (NEW, 2), FOURTH: (NEW, 4)}
    assert nodes.found() == NEW and OLD not in nodes.asked
    nodes.says[OLD] = (OLD, 3)  # thawed, and knows nothing of it yet
    assert {nodes.found() for _ in range(10)} == {NEW}
    assert {Nodes(nodes.says).found() for _ in range(10)} == {NEW}, "nor does a process that comes new"


def test_NEW_24_what_others_have_heard_is_not_believed() -> None:
    nodes = Nodes(ALL_IS_WELL)
    assert nodes.found() == OLD
    nodes.says |= {OTHER: (FOURTH, 9), NEW: (FOURTH, 9), FOURTH: (OLD, 4)}
    assert nodes.found() == OLD
    nodes.says[OLD] = (NEW, 3)
    with pytest.raises(redis.sentinel.MasterNotFoundError, match="owns slot 7"):
        nodes.found()
