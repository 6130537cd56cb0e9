"""The book of a worker process against a model, on a real Redis that goes away at any command (NEW-9).

Every message is at every moment in exactly one of three places: in its queue, under one tag in unacked, or
acknowledged; and what is acknowledged does not come back, unless it is to be acknowledged again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from time import time
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.exceptions import ConnectionError

from celery_poison.broker.redis.book import AWAY, Book
from celery_poison.broker.redis.receiving import _FETCH
from tests.broker.kit import Fuse, Site, new_boot_id


@dataclass(eq=False)
class Channel:
    """As much of a channel as the book knows."""

    boot_id: str
    closed: bool = False

    def awaits(self, tag: str) -> bool:
        return False


@dataclass
class Delivery:
    tag: str
    mid: str
    raw: Any
    channel: Channel
    state: str = "received"  # begun, done, acknowledged, rejected, dropped


class Histories(RuleBasedStateMachine):
    site: ClassVar[Site]
    fuse: ClassVar[Fuse]

    def __init__(self) -> None:
        super().__init__()
        self.fuse.left = inf
        self.site.raw.flushdb()
        self.boot_id, self.numbers, self.sent = new_boot_id(), 0, 0
        self.deliveries: list[Delivery] = []
        self.channels: list[Channel] = []
        self.late: list[str] = []
        self.done: set[str] = set()
        connection = self.site.app.connection_for_read()
        self.book = Book(connection.default_channel, self._in_use)
        self.book._boot_ids.add(self.boot_id)
        self._disconnect = connection.close
        self.send(5)
        for state in ("begun", "begun", "received", "done"):
            self.channels = self.channels or [Channel(self.boot_id)]
            self._receive(self.channels[0], "received")
            if state != "received":
                self.deliveries[-1].state = "begun"
            if state == "done":
                self._end(self.deliveries[-1])

    def _in_use(self) -> set[str]:
        return {delivery.tag for delivery in self.deliveries if delivery.state == "begun"}

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Whoever looks from outside always reaches Redis."""
        left, self.fuse.left = self.fuse.left, inf
        try:
            yield
        finally:
            self.fuse.left = left

    def _pick(self, data: Any, state: str) -> Delivery | None:
        found = [d for d in self.deliveries if d.state == state and self.book.holds(d.tag)]
        return data.draw(st.sampled_from(found)) if found else None

    def _open(self, data: Any) -> Channel:
        found = [channel for channel in self.channels if not channel.closed]
        if not found:
            found = [Channel(self.boot_id)]
            self.channels += found
        return data.draw(st.sampled_from(found))

    def _next_tag(self) -> str:
        self.numbers += 1
        return f"{self.boot_id}-{self.numbers}"

    def _fetch(self, tag: str) -> Any:
        """What Redis does when the command gets there."""
        with self._looking():
            return self.site.raw.eval(
                _FETCH, 4, "nothing", "unacked", "unacked_index", "a", tag, time(), "a", "a"
            )

    # --- what happens --------------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        with self._looking():
            for _ in range(count):
                headers = {"id": f"i{self.sent}", "task": "t", "poison_mid": f"m{self.sent}"}
                message = {"body": "", "headers": headers, "properties": {"delivery_info": {}}}
                self.site.raw.lpush("a", json.dumps(message))
                self.sent += 1

    @rule()
    def connect(self) -> None:
        self.channels.append(Channel(self.boot_id))

    @rule(data=st.data(), how=st.sampled_from(["received", "received", "answer lost", "late"]))
    def receive(self, data: Any, how: str) -> None:
        self._receive(self._open(data), how)

    def _receive(self, channel: Channel, how: str) -> None:
        tag = self._next_tag()
        self.book.take(tag, channel)
        if how == "late" or not self.fuse.left:
            self.late.append(tag)  # it stays with the channel until that closes
            return
        reply = self._fetch(tag)
        if how == "answer lost":
            self.book.lost_sight_of(tag)
        elif reply is None:
            self.book.nothing_came(tag)
        else:
            mid = json.loads(reply[1])["headers"]["poison_mid"]
            with self._looking():
                raw = self.site.raw.hget("unacked", tag)
            self.deliveries.append(Delivery(tag, mid, raw, channel))

    @precondition(lambda self: self.late)
    @rule()
    def what_was_on_its_way_to_redis_gets_there(self) -> None:
        """After its connection was lost, or there would be an answer."""
        tag = self.late[-1]
        if tag in self.book.tags() and self.book._holders.get(tag) is not None:
            self._close_all()
        self.late.pop()
        self._fetch(tag)

    @rule(data=st.data())
    def begin(self, data: Any) -> None:
        if delivery := self._pick(data, "received"):
            delivery.state = "begun"

    @rule(data=st.data(), at_once=st.booleans())
    def end(self, data: Any, at_once: bool) -> None:
        if delivery := self._pick(data, "begun"):
            self._end(delivery)
            if at_once:
                self._acknowledge(delivery)

    def _end(self, delivery: Delivery) -> None:
        assert not self.book.note_done(delivery.tag), "what had begun was put back"
        delivery.state = "done"
        self.done.add(delivery.mid)

    def _acknowledge(self, delivery: Delivery) -> None:
        delivery.state = "acknowledged"
        self.book.acknowledge(delivery.tag)

    @rule()
    def acknowledge(self) -> None:
        for delivery in self.deliveries:
            if delivery.state == "done":
                self._acknowledge(delivery)

    @rule(data=st.data(), leftmost=st.booleans())
    def reject(self, data: Any, leftmost: bool) -> None:
        if delivery := self._pick(data, "begun"):
            self.book.put_back(delivery.tag, leftmost=leftmost)
            delivery.state = "rejected"

    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        """It will not run after all, and nobody says so."""
        if delivery := self._pick(data, "begun"):
            delivery.state = "dropped"

    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        self._close(self._open(data))

    def _close(self, channel: Channel) -> None:
        channel.closed = True
        self.book.leave(channel)

    def _close_all(self) -> None:
        for channel in self.channels:
            if not channel.closed:
                self._close(channel)

    @rule(data=st.data())
    def vanish(self, data: Any) -> None:
        """A channel is closed without a word."""
        channel = self._open(data)
        if not any(tag in self.book.tags() for tag in self.late):
            channel.closed = True

    @rule(commands=st.integers(0, 12))
    def redis_goes_away(self, commands: int) -> None:
        self.fuse.left = commands

    @rule()
    def redis_is_back(self) -> None:
        self.fuse.left = inf

    @rule(count=st.integers(1, 4))
    def redis_restarts_without_its_last_moments(self, count: int) -> None:
        """What it heard last, it has not heard: the last acknowledgements."""
        self._close_all()
        with self._looking():
            heard = [d for d in self.deliveries if d.tag in self.book._acknowledged]
            for delivery in heard[-count:]:
                self.site.raw.hset("unacked", delivery.tag, delivery.raw)
                self.site.raw.zadd("unacked_index", {delivery.tag: 1.0})
        self.book._gone_away(ConnectionError("restarted"))

    @rule()
    def renew_and_flush(self) -> None:
        try:
            self.book.renew()
            self.book.flush()
        except AWAY:
            assert self.fuse.left == 0

    # --- what must be so -----------------------------------------------------------------------

    def _where(self) -> tuple[Counter[str], Counter[str]]:
        with self._looking():
            queue = Counter(message["headers"]["poison_mid"] for message in self.site.waiting().get("a", []))
            entries = self.site.entries()
            assert set(entries) <= set(self.site.scores()), "an entry that nobody would find"
        return queue, Counter(entry[0]["headers"]["poison_mid"] for entry in entries.values())

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        queue, unacked = self._where()
        assert not self.done & set(queue), "what is done is not delivered again"
        for mid in (f"m{n}" for n in range(self.sent)):
            places = queue[mid] + unacked[mid]
            assert places <= 1 if mid in self.done else places == 1, (mid, queue, unacked)

    @invariant()
    def what_has_begun_is_held(self) -> None:
        assert all(self.book.holds(tag) for tag in self._in_use())

    def teardown(self) -> None:
        try:
            self.fuse.left = inf
            for _ in range(2):
                self.book.flush()
            self._everything_is_where_it_belongs()
        finally:
            self._disconnect()

    def _everything_is_where_it_belongs(self) -> None:
        queue, unacked = self._where()
        mine = {
            delivery.mid
            for delivery in self.deliveries
            if self.book.holds(delivery.tag) and (delivery.state == "begun" or not delivery.channel.closed)
        }
        everything = {f"m{n}" for n in range(self.sent)}
        assert set(unacked) == mine
        assert set(queue) == everything - mine - self.done
        assert self.book.tags() >= set(self.site.scores()), "nothing is under this name that it does not know"


@pytest.mark.parametrize("examples", [20, pytest.param(1500, marks=pytest.mark.matrix)])
def test_NEW_9_every_message_is_in_one_place_whatever_becomes_of_redis_and_of_the_connections(
    site: Site, examples: int
) -> None:
    fuse = Fuse(end=ConnectionError)
    machine = type("Machine", (Histories,), {"site": site, "fuse": fuse})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with fuse.installed():
        run_state_machine_as_test(machine, settings=chosen)
