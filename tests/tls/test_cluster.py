"""A ledger on a cluster that speaks TLS, and lets in whom its rules name (NEW-24)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.writer import Writer, command
from celery_poison.testing.servers import free_ports, wait_until
from tests.docs.pages import text
from tests.harness.cluster import find_binary
from tests.services import need
from tests.tls.server import Authority, TlsRedisServer, speaks_tls

KEYS = Keys()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRedisServer]:
    """A cluster of one node, with the user of docs/howto/servers.md."""
    need(speaks_tls(binary := find_binary()), "a redis-server that speaks TLS")
    options = {"cluster-enabled": "yes", "tls-cluster": "yes", "cluster-port": free_ports()[0]}
    server = TlsRedisServer(Authority(tmp_path_factory.mktemp("tls")), options)
    server.binary = binary or server.binary
    (rule,) = (line for line in text("howto/servers.md").splitlines() if "ACL SETUSER poison on" in line)
    with server, server.client() as admin:
        admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        admin.execute_command(*rule.split())
        wait_until(lambda: admin.execute_command("CLUSTER", "INFO").startswith("cluster_state:ok"), what="ok")
        yield server


def test_NEW_24_a_cluster_is_spoken_to_in_TLS_by_the_user_of_the_documentation(node: TlsRedisServer) -> None:
    url = f"{node.url().replace('rediss://', 'rediss://poison:SECRET@')}&cluster=true"
    client = open_redis(url, key=KEYS.prefix)
    writer = Writer(client, KEYS.channel("w/1"), news=KEYS.news)
    assert writer.send(command(b"SET", KEYS.meta.encode(), b"1")) and writer.run_id, "it is subscribed"
    wait_until(lambda: client.get(KEYS.meta), what="written")
    writer.close()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("&ssl_ca_certs=", "&ssl_ca_path=", "CERTIFICATE_VERIFY_FAILED"),
        ("rediss://", "rediss://poison:no@", "invalid"),
    ],
)
def test_NEW_24_a_cluster_that_lets_nobody_in_says_why(
    node: TlsRedisServer, old: str, new: str, says: str
) -> None:
    with pytest.raises(redis.ConnectionError, match=says):
        open_redis(f"{node.url().replace(old, new)}&cluster=true").ping()
