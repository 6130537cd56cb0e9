"""A ledger on a cluster: the owner of its slot is found as a Sentinel finds a master (NEW-24).

All keys of a ledger share one hash tag: they are in one slot, which one node owns at a time. What names that
node takes a Sentinel's place in redis-py's own pool; whoever uses it speaks to a single Redis, as ever.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
import redis.sentinel
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.crc import key_slot
from redis.retry import Retry

from celery_poison.basics.text import decoded
from celery_poison.ledger.credentials import without_provider
from celery_poison.ledger.in_step import keep_in_step
from celery_poison.ledger.tls import divided, joined, without_tls
from celery_poison.ledger.urls import fit_for_redis

#: Older nodes do not tell a subscriber that its slot has left them.
MINIMUM_VERSION = (7, 0)

#: Of the connections by which nodes are asked: there are others to ask.
_QUICK: dict[str, Any] = {"socket_connect_timeout": 0.5, "socket_timeout": 0.5, "retry": None}

#: Seconds that one search takes, and without any after one that failed: starts and publishers wait.
LONGEST_SEARCH, REST = 1.5, 1.0

_OPTION, _YES = "cluster", ("true", "yes", "1")
_EPOCH = re.compile(r"cluster_my_epoch:(\d+)")

Address = tuple[str, int]


class _Answer(NamedTuple):
    """A node's answer: of itself for certain, of others by hearsay.

    Attributes:
        owner: address of the slot's owner; None where it has none.
        is_owner: that is this node.
        epoch: this node's; where two claim a slot, the higher one is right.
        is_well: it is in touch with the greater part of the cluster, and all slots have an owner.
        nodes: addresses of the masters that have slots, and of their replicas.
    """

    owner: Address | None
    is_owner: bool
    epoch: int
    is_well: bool
    nodes: frozenset[Address]


class SlotOwner:
    """Finds the owner of one slot; stands where redis-py's pool has its Sentinels.

    A node is believed about itself only: what it has heard of others may be a second old, and may name a
    wrong owner with a higher epoch. A frozen node costs a whole time-out: it is asked last.

    Args:
        seeds: addresses of some nodes; these name the others.
        kind: of redis-py's connections, with TLS or without.
        options: of connections to any node.
    """

    def __init__(self, seeds: Sequence[Address], slot: int, kind: Any, options: Mapping[str, Any]) -> None:
        self._seeds, self._slot = [*seeds], slot
        self._kind, self._options = kind, {**options, **_QUICK}
        self._clients: dict[Address, redis.Redis] = {}
        self._learned: frozenset[Address] = frozenset()
        self._owner: Address | None = None
        #: The node that is asked beside the owner.
        self._witness: Address | None = None
        self._epoch: int | None = None
        self._refusal = ""
        self._until = self._rests_until = 0.0

    @property
    def sentinels(self) -> list[redis.Redis]:
        """The clients that ask nodes; redis-py's name for those of Sentinels."""
        return [*self._clients.values()]

    def discover_master(self, service_name: str) -> Address:
        """Return the address of the slot's owner.

        Raises:
            redis.sentinel.MasterNotFoundError: no node that answers in time owns it at this moment.
        """
        now = time.monotonic()
        if now < self._rests_until:
            raise self._not_found()
        self._until = now + LONGEST_SEARCH
        answers: dict[Address, _Answer | None] = {}
        witness = self._ask(self._choose_witness(), answers)
        if witness is not None and witness.owner is not None and witness.is_well and not witness.is_owner:
            # Whoever thaws says that it owns the slot which it has lost; nobody else says so.
            itself = self._ask(witness.owner, answers)
            if itself is not None and itself.is_owner:
                return self._believe(witness.owner, itself)
        return self._ask_everyone(answers)

    def _choose_witness(self) -> Address:
        others = self._learned - {self._owner}
        if self._witness not in others:
            self._witness = random.choice([*others] or self._seeds)
        return self._witness

    def _ask_everyone(self, answers: dict[Address, _Answer | None]) -> Address:
        self._witness = None
        while not self._has_newer_owner(answers) and time.monotonic() < self._until:
            at = next((at for at in self._in_order(answers) if at not in answers), None)
            if at is None:
                break
            self._ask(at, answers)
        claims = [answer for answer in answers.values() if answer is not None and answer.is_owner]
        answer = max(claims, key=lambda answer: answer.epoch, default=None)
        if answer is None or answer.owner is None:
            self._rests_until = time.monotonic() + REST
            raise self._not_found()
        return self._believe(answer.owner, answer)

    def _not_found(self) -> redis.sentinel.MasterNotFoundError:
        said = f"no node of the cluster says that it owns slot {self._slot}{self._refusal}"
        return redis.sentinel.MasterNotFoundError(said)

    def _has_newer_owner(self, answers: Mapping[Address, _Answer | None]) -> bool:
        """Whether a node owns the slot by a later vote than the last owner: that one need not be asked."""
        before = self._epoch
        given = (answer for answer in answers.values() if answer is not None and answer.is_owner)
        return before is not None and any(answer.epoch > before for answer in given)

    def _in_order(self, answers: Mapping[Address, _Answer | None]) -> Iterator[Address]:
        named = [
            answer.owner for answer in answers.values() if answer is not None and answer.owner is not None
        ]
        # By chance: a search that ran out of time before it met a node that answers goes on elsewhere.
        others = random.sample([*self._learned], len(self._learned))
        yield from (at for at in (*named, *others, *self._seeds) if at != self._owner)
        if self._owner is not None:
            yield self._owner

    def _believe(self, owner: Address, answer: _Answer) -> Address:
        self._owner, self._epoch = owner, answer.epoch
        return owner

    def _ask(self, at: Address, answers: dict[Address, _Answer | None]) -> _Answer | None:
        answers[at] = None
        try:
            with self._client(at).pipeline(transaction=False) as pipe:
                for what in ("MYID", "INFO", "SLOTS"):
                    pipe.execute_command("CLUSTER", what)  # type: ignore[no-untyped-call]
                me, info, slots = pipe.execute()
        except (redis.RedisError, OSError) as error:
            self._refusal = f": {at[0]}:{at[1]}: {error}"
            return None
        answers[at] = answer = _read(at, me, decoded(info), slots, self._slot)
        self._learned = answer.nodes or self._learned
        return answer

    def _client(self, at: Address) -> redis.Redis:
        client = self._clients.get(at)
        if client is None:
            pool = redis.ConnectionPool(self._kind, host=at[0], port=at[1], **self._options)
            client = self._clients[at] = redis.Redis(connection_pool=pool)
        return client


def _read(at: Address, me: bytes, info: str, slots: Sequence[Any], slot: int) -> _Answer:
    owner, is_owner, nodes = None, False, set[Address]()
    for first, last, *servers in slots:
        # No host, or "?" for one: the host at which the node was asked.
        addresses = [(_host(host) or at[0], int(port)) for host, port, *_ in servers]
        nodes.update(addresses)
        if first <= slot <= last:
            owner, is_owner = addresses[0], servers[0][2] == me
    epoch = _EPOCH.search(info)
    is_well = "cluster_state:ok" in info
    return _Answer(owner, is_owner, int(epoch[1]) if epoch else 0, is_well, frozenset(nodes))


def _host(endpoint: bytes | str | None) -> str:
    host = decoded(endpoint) if isinstance(endpoint, bytes) else endpoint or ""
    return "" if host == "?" else host


def is_cluster(url: str) -> bool:
    """Whether a URL says that its Redis is a cluster: ``?cluster=true``."""
    return any(divided(part)[1].get(_OPTION, "").lower() in _YES for part in url.split(";"))


def owner_of(pool: Any) -> SlotOwner | None:
    """Return the :class:`SlotOwner` of a pool; None where no cluster is meant."""
    manager = getattr(pool, "sentinel_manager", None)
    return manager if isinstance(manager, SlotOwner) else None


def ask_subscribers(pipe: Any, *channels: str) -> None:
    """Ask, in a pipeline, how many processes are subscribed to each of some workers' channels."""
    is_sharded = owner_of(pipe.connection_pool) is not None
    (pipe.pubsub_shardnumsub if is_sharded else pipe.pubsub_numsub)(*channels)


def open_cluster(url: str, key: str, timeouts: Mapping[str, Any]) -> redis.Redis:
    """Return a client for the owner of the slot in which ``key`` is; nothing is connected yet.

    Args:
        url: ``redis://user:password@host:port;host:port?cluster=true``; the login, and options anywhere, are
            those of all nodes.

    Raises:
        ConfigurationError: an option means nothing.
        ValueError: the URL makes no sense.
    """
    parts = [divided(part) for part in url.split(";")]
    query = {name: value for _, options in parts for name, value in options.items() if name != _OPTION}
    first, tls = without_tls(joined(parts[0][0], query))
    first, provider = without_provider(first)
    parse: Any = parse_url
    options: dict[str, Any] = {**timeouts, **parse(fit_for_redis(first)), **tls, **provider}
    seeds = [(options.pop("host", "localhost"), options.pop("port", 6379))]
    for address, _ in parts[1:]:
        place = urlsplit(address if "//" in address else f"//{address}")
        seeds.append((place.hostname or "localhost", place.port or 6379))
    kind = options.pop("connection_class", redis.Connection)
    slot = key_slot(key.encode())
    owner = SlotOwner(seeds, slot, kind, options)
    # One more attempt for a connection that was lost, and one for a slot that has moved.
    retry = Retry(NoBackoff(), 2, supported_errors=(redis.ConnectionError,))
    pool = redis.sentinel.SentinelConnectionPool(  # type: ignore[no-untyped-call]
        f"the owner of slot {slot}",
        owner,
        ssl=issubclass(kind, redis.SSLConnection),
        **{**options, "retry": retry},
    )
    keep_in_step(pool)
    return redis.Redis(connection_pool=pool)
