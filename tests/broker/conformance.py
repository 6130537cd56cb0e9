"""What this package rests on in every broker: one suite of promises that all of them keep.

To try a broker, subclass ``Conformance`` with a ``bench`` of it, as ``test_conformance.py`` does. What a
broker cannot is said by its port (``broker/port.py``), and held here too: it does nothing of that by halves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import kombu
from celery import Celery

from celery_poison.broker.bounds import bounded_options
from celery_poison.broker.kinds import broker_of, depth, owners, put_back
from celery_poison.broker.port import Broker, NoSuchQueue, NotPublished, Parcel
from celery_poison.broker.publish import Publisher
from celery_poison.broker.transport import guarded_connection
from celery_poison.desk.queues import waiting_in
from celery_poison.model import StoredMessage

PATIENCE = 20.0


class Receiver:
    """One worker's receiving side."""

    def __init__(self, url: str, options: dict[str, Any], queue: str) -> None:
        self.boot_id = uuid4().hex[:16]
        self.connection: Any = guarded_connection(lambda: self.boot_id)(url, transport_options=options)
        self.channel: Any = self.connection.channel()
        self.messages: list[Any] = []
        declared = kombu.Queue(queue, exchange="", routing_key=queue)
        self.channel.basic_qos(0, 10, False)
        self.consumer = kombu.Consumer(
            self.channel, [declared], on_message=self.messages.append, accept=["json"], auto_declare=False
        )
        self.consumer.consume()

    def receive(self, count: int) -> list[Any]:
        until = time.monotonic() + PATIENCE
        while len(self.messages) < count:
            assert time.monotonic() < until, f"{len(self.messages)} of {count} messages came"
            self._drain()
        return self.messages

    def receives_nothing(self) -> bool:
        """Whether nothing comes in two looks; what was on its way would be there."""
        for _ in range(2):
            self._drain()
        return not self.messages

    def _drain(self) -> None:
        try:
            self.connection.drain_events(timeout=0.3)
        except TimeoutError:
            return

    def die(self) -> None:
        """Go without a word to the broker, as after SIGKILL."""
        qos = getattr(self.channel, "qos", None)
        if qos is None:  # a connection of amqp's: the socket alone goes
            self.connection._connection.transport.sock.close()
        else:
            qos._on_collect.cancel()
            self.channel.do_restore = False
            self.channel._announced = set()
            self.channel.close()

    def close(self) -> None:
        self.connection.close()


@dataclass
class Bench:
    """A broker that is tried.

    Args:
        away: URL of such a broker that nobody answers.
        refuses: it says of a queue that there is none.
    """

    url: str
    away: str
    options: dict[str, Any] = field(default_factory=dict)
    refuses: bool = False
    queue: str = field(default_factory=lambda: f"q{uuid4().hex[:8]}")
    receivers: list[Receiver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app = Celery(broker=self.url, set_as_current=False)
        self.app.conf.broker_transport_options = self.options
        with Publisher(self.app) as publisher:
            publisher.declare(self.queue)

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.close()
        self.app.close()

    def receiver(self) -> Receiver:
        self.receivers.append(Receiver(self.url, self.options, self.queue))
        return self.receivers[-1]

    def parcel(self, name: str) -> Parcel:
        headers = {
            "id": f"id-{name}",
            "task": "t",
            "poison_mid": f"m{name}",
            "lang": "py",
            "depth": [1, None],
        }
        properties: dict[str, Any] = {
            "delivery_mode": 2,
            "correlation_id": f"id-{name}",
            "body_encoding": "base64",
        }
        properties["delivery_info"] = {"exchange": "", "routing_key": self.queue}
        stored = StoredMessage(
            body=f'["{name} ü"]'.encode(),
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            properties=properties,
        )
        return Parcel(stored, self.queue, headers)

    def send(self, *names: str) -> None:
        with Publisher(self.app) as publisher:
            refused = publisher.publish_each([self.parcel(name) for name in names])
        assert refused == [None] * len(names)

    def ask(self, question: Callable[[Broker, Any], Any]) -> Any:
        with self.app.connection_for_write(transport_options=bounded_options(self.app)) as connection:
            return question(broker_of(connection), connection)


def _names(messages: list[Any]) -> list[str]:
    return [message.headers["poison_mid"].removeprefix("m") for message in messages]


class Conformance:
    """The promises. A subclass brings the fixture ``bench``."""

    def test_NEW_30_it_is_of_one_kind_by_whatever_it_is_asked(self, bench: Bench) -> None:
        receiver = bench.receiver()
        kind = broker_of(receiver.connection)
        assert broker_of(receiver.channel) is broker_of(type(receiver.connection.transport)) is kind
        assert bench.ask(lambda broker, _: broker) is kind and kind.title

    def test_NEW_6_an_original_arrives_with_body_and_headers_as_they_were(self, bench: Bench) -> None:
        bench.send("a")
        (message,) = bench.receiver().receive(1)
        parcel = bench.parcel("a")
        body = message.body if isinstance(message.body, bytes) else message.body.encode()
        assert body == parcel.stored.body
        assert message.headers.items() >= parcel.headers.items()
        assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
        assert message.properties["correlation_id"] == "id-a"
        assert not message.delivery_info.get("redelivered")
        message.ack()

    def test_MSG_1_it_counts_what_waits_or_says_that_it_cannot(self, bench: Bench) -> None:
        bench.send("a", "b", "c")
        if bench.ask(lambda broker, _: broker.counts):
            assert waiting_in(bench.app, [bench.queue]) == {bench.queue: 3}
            assert bench.ask(lambda _, connection: depth(connection, f"no-{bench.queue}")) == 0
        else:
            assert waiting_in(bench.app, [bench.queue]) == {}

    def test_EMS_6_what_a_dead_worker_held_comes_back_once_and_flagged(self, bench: Bench) -> None:
        bench.send("a", "b", "c")
        dead = bench.receiver()
        dead.receive(3)
        dead.messages[0].ack()
        dead.die()
        back = put_back(bench.app, dead.boot_id, [bench.queue])
        assert back == put_back(bench.app, dead.boot_id, [bench.queue]), "the next monitor is told the same"
        assert back.mids in (None, {"mb", "mc"})
        heir = bench.receiver()
        messages = [*heir.receive(2)]
        assert sorted(_names(messages)) == ["b", "c"]
        assert all(message.delivery_info.get("redelivered") for message in messages)
        for message in messages:
            message.ack()
        heir.messages.clear()
        assert heir.receives_nothing()

    def test_WAS_3_what_is_put_back_comes_again_and_flagged_and_what_is_rejected_does_not(
        self, bench: Bench
    ) -> None:
        bench.send("a")
        first = bench.receiver()
        first.receive(1)[0].reject(requeue=True)
        again = first.receive(2)[1]
        assert _names([again]) == ["a"] and again.delivery_info.get("redelivered")
        again.reject()
        first.messages.clear()
        assert first.receives_nothing()

    def test_EMS_6_it_knows_who_holds_a_message_or_puts_it_back_by_itself(self, bench: Bench) -> None:
        bench.send("a")
        holder = bench.receiver()
        holder.receive(1)

        def held(broker: Broker, connection: Any) -> Any:
            found = broker.unacknowledged(connection, -60.0, 10)
            return None if found is None else [(each.owner, each.read()) for each in found]

        here = bench.ask(held)
        if here is None:
            assert owners(bench.app) == set()
            assert put_back(bench.app, holder.boot_id, [bench.queue]).mids is None
        else:
            assert owners(bench.app) == {holder.boot_id}
            assert here == [(holder.boot_id, ("id-a", bench.queue))]
        holder.messages[0].ack()

    def test_MSG_5_the_oldest_can_be_taken_out_unless_a_worker_was_faster_or_none_can(
        self, bench: Bench
    ) -> None:
        bench.send("a", "b", "c")

        def take(broker: Broker, connection: Any) -> list[str]:
            waiting = broker.oldest(connection, bench.queue, 2)
            return [*_names([each.message for each in waiting if each.remove()])]

        taken = bench.ask(take)
        assert taken in (["a", "b"], [])
        left = bench.receiver().receive(3 - len(taken))
        assert sorted(_names(left) + taken) == ["a", "b", "c"]

    def test_NEW_6_what_it_does_not_take_is_an_error_of_ours(self, bench: Bench) -> None:
        nobody = Celery(broker=bench.away, set_as_current=False)
        nobody.conf.broker_transport_options = {**bench.options, "max_retries": 1}
        with Publisher(nobody) as publisher:
            (error,) = publisher.publish_each([bench.parcel("a")])
        assert isinstance(error, NotPublished)
        if bench.refuses:
            with Publisher(bench.app) as publisher:
                (error,) = publisher.publish_each([bench.parcel("a")._replace(queue="nowhere")])
            assert isinstance(error, NoSuchQueue)

    def test_EMS_7_it_has_one_name_for_all_or_none(self, bench: Bench) -> None:
        names = {bench.ask(lambda broker, connection: broker.name_of_server(connection)) for _ in range(2)}
        assert len(names) == 1

    def test_NEW_30_doctor_names_it_and_what_it_lacks(self, bench: Bench) -> None:
        broker = bench.ask(lambda broker, _: broker)
        finding, *_ = bench.ask(lambda broker, connection: [*broker.examine(bench.app, connection)])
        assert finding.check == "broker" and broker.title in finding.said
        assert (broker.lacks in finding.said) and (bool(finding.cure) is bool(broker.lacks))

    def test_WAS_4_whether_a_queue_may_be_written_to_is_known_or_not_claimed(self, bench: Bench) -> None:
        words = {bench.queue: f"queue {bench.queue}"}
        found = bench.ask(lambda broker, connection: [*broker.may_write(bench.app, connection, words)])
        assert [each.said for each in found] in ([], [f"queue {bench.queue} may be written to"])
