"""The lists in which kombu keeps a queue on Redis: what lies there, and what is pushed there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kombu.exceptions import InconsistencyError
from kombu.utils import json as kombu_json

from celery_poison.broker.envelope import envelope
from celery_poison.broker.port import Parcel, Push, Unroutable, WaitingMessage
from celery_poison.broker.redis.client import client_of
from celery_poison.ledger.in_step import keep_in_step


def oldest(channel: Any, queue: str, most: int) -> Iterator[WaitingMessage]:
    """Yield the oldest messages of a queue, of the least urgent priority first; not what cannot be read."""
    prefix, client = channel.global_keyprefix or "", channel.client
    for priority in reversed(channel.priority_steps):
        key = channel._q_for_pri(queue, priority)
        lying = client.lrange(key, -most, -1)
        most -= len(lying)
        for raw in reversed(lying):
            try:
                message = channel.Message(json.loads(raw), channel=channel)
            except (ValueError, TypeError, KeyError):
                continue
            yield WaitingMessage(message, partial(_remove, client, key, raw), Push(prefix + key, raw))
        if most <= 0:
            return


def _remove(client: Any, key: str, raw: Any) -> bool:
    return bool(client.lrem(key, -1, raw))


def publish_all(channel: Any, parcels: Sequence[Parcel]) -> list[Exception | None]:
    """Put messages into their queues in one round trip; return why each was refused."""
    refused: list[Exception | None] = []
    #: Key -> number of a parcel -> what is pushed there: one command for each key is enough.
    pushes = defaultdict[str, dict[int, str]](dict)
    for number, parcel in enumerate(parcels):
        try:
            message = envelope(channel, parcel)
            priority = channel._get_message_priority(message, reverse=False)
            pushes[channel._q_for_pri(parcel.queue, priority)][number] = kombu_json.dumps(message)
        except Exception as error:  # whatever is wrong with this one
            refused.append(error)
        else:
            refused.append(None)
    keep_in_step(channel.pool)
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
        for key, those in pushes.items():
            pipe.lpush(key, *those.values())
        replies = pipe.execute(raise_on_error=False)
    for those, reply in zip(pushes.values(), replies, strict=True):
        if isinstance(reply, Exception):
            refused = [reply if number in those else each for number, each in enumerate(refused)]
    return refused


def pushes_of(
    channel: Any, exchange: str, routing_key: str, body: bytes, parts: Mapping[str, Any]
) -> list[Push] | None:
    """Return kombu's pushes of a message, one for each queue that it goes to; None for a broadcast.

    Raises:
        Unroutable: it goes to no queue.
    """
    if exchange and channel.typeof(exchange).type == "fanout":
        return None
    pushes = []
    for queue in _routed_to(channel, exchange, routing_key):
        message = channel.prepare_message(body, **{**parts, "properties": {**parts["properties"]}})
        channel._inplace_augment_message(message, exchange, routing_key)
        priority = channel._get_message_priority(message, reverse=False)
        key = (channel.global_keyprefix or "") + channel._q_for_pri(queue, priority)
        pushes.append(Push(key, kombu_json.dumps(message)))
    return pushes


def _routed_to(channel: Any, exchange: str, routing_key: str) -> Sequence[str]:
    if not exchange:
        return [routing_key]
    try:
        table = channel.get_table(exchange)
    except (InconsistencyError, KeyError):
        table = []
    found: Sequence[str] = channel.typeof(exchange).lookup(table, exchange, routing_key, None)
    if not [*filter(None, found)]:
        raise Unroutable(f"no queue is bound to exchange {exchange!r} for {routing_key!r}")
    return found


def push(channel: Any, pushes: Iterable[Push]) -> None:
    """Push all of them in one step."""
    pipe = client_of(channel).pipeline(transaction=True)
    for each in pushes:
        pipe.lpush(each.key, each.payload)
    pipe.execute()
