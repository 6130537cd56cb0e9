"""Celery on Redis, SQS, SQLAlchemy and celery-redis-plus, and with celery_poison."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from peer import BEST, NAMES, POISON, URL, run

KIND = os.environ["PEER_KIND"]
PREFETCH = 1 if BEST else 4

app = Celery("on_celery", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=PREFETCH,
)
if KIND == "sqs":
    app.conf.update(
        worker_enable_remote_control=False,
        broker_transport_options={
            "region": "us-east-1",
            "is_secure": False,
            "visibility_timeout": 5,
            "wait_time_seconds": 1,
            "polling_interval": 0.3,
        },
    )
if KIND == "sqlalchemy":
    app.conf.worker_enable_remote_control = False
if KIND == "plus":
    import celery_redis_plus  # noqa: F401

    if BEST:
        app.conf.broker_transport_options = {"visibility_timeout": 5, "delivery_limit": 3}
if KIND == "retry":
    app.conf.task_retry_on_worker_lost = True
if KIND == "poison":
    from celery_poison import install

    install(app, poison_guard_all=True)


@app.task(name="work", default_retry_delay=1)
def work(name: str) -> None:
    run(name)


def send() -> None:
    if KIND == "sqs":
        _make_queues()
    for name in NAMES:
        work.apply_async((name,), task_id=name)


def fate() -> str:
    if KIND == "poison":
        from celery_poison import Quarantine

        kept = [message.id for message in Quarantine(app).list()]
        return "in quarantine" if kept == [POISON] else f"kept: {kept}"
    return {"sqs": _dead_letters, "sqlalchemy": _rows}.get(KIND, _in_redis)()


def _in_redis() -> str:
    import redis

    client: Any = redis.Redis.from_url(URL.replace("valkey:", "redis:"), decode_responses=True)
    found = []
    for key in sorted(client.keys()):
        kind = client.type(key)
        if kind == "hash":
            held = str(client.hgetall(key))
        elif kind == "zset":
            held = str(client.zrange(key, 0, -1))
        else:
            held = str(client.lrange(key, 0, -1)) if kind == "list" else ""
        found += [key] * (f'"{POISON}"' in held or f"'{POISON}'" in held)
    return "held" if found else "gone"


def _rows() -> str:
    import sqlalchemy

    with sqlalchemy.create_engine(URL.removeprefix("sqla+")).connect() as connection:
        asked = "SELECT visible, payload FROM kombu_message"
        rows = connection.execute(sqlalchemy.text(asked)).all()
    seen = [bool(visible) for visible, payload in rows if f'"{POISON}"' in payload]
    return "waits" if any(seen) else "gone"


def _client() -> Any:
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    where = URL.split("@")[1].strip("/")
    return boto3.client("sqs", endpoint_url=f"http://{where}", region_name="us-east-1", **keys)


def _make_queues() -> None:
    client = _client()
    dead = client.create_queue(QueueName="dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": "3"}}'
    client.create_queue(QueueName="celery", Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "5"})


def _dead_letters() -> str:
    import base64
    import json

    client, names = _client(), set()
    url = client.get_queue_url(QueueName="dead")["QueueUrl"]
    while found := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        names |= {json.loads(base64.b64decode(each["Body"]))["headers"]["id"] for each in found}
    place = "dead letter" if POISON in names else "waits"
    return f"{place}, {len(names - {POISON})} healthy too"
