"""What stands around the ledger: settings, tasks, the ledger's owner, the broker and the result backend."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery
from celery.backends.base import DisabledBackend
from kombu.transport import pyamqp
from kombu.transport import redis as kombu_redis

from celery_poison.broker.publish import bounded_connection
from celery_poison.cli.checks.finding import Finding
from celery_poison.errors import ConfigurationError
from celery_poison.ledger.queries import Queries
from celery_poison.plugin import Plugin
from celery_poison.quarantine.overview import untried, without_secrets
from celery_poison.quarantine.owner import check_owner
from celery_poison.quarantine.stranded import find_stranded
from celery_poison.settings import Settings
from celery_poison.text import count_of, duration, when


def settings(plugin: Plugin) -> Finding:
    """Check the settings.

    Raises:
        ConfigurationError: one is unknown or impossible.
    """
    inactive = plugin.settings.inactive()
    if inactive:
        said = f"set, but without effect in this version: {', '.join(inactive)}"
        return Finding("settings", "warn", said, "remove them, or wait for the version that acts on them")
    return Finding("settings", "ok", f"namespace {plugin.settings.namespace}")


def tasks(plugin: Plugin) -> Finding:
    """Check that the app's modules can be loaded, and that anything in them is guarded at all."""
    try:
        plugin.app.loader.import_default_modules()
        policies = plugin.policies
    except Exception as error:  # whatever the user's modules raise
        return Finding(
            "tasks", "FAIL", f"cannot be loaded: {error!r}", "a worker could not start either: repair it"
        )
    if not policies:
        cure = "put @guarded on tasks, or set poison_guard_all=True"
        return Finding("tasks", "warn", "no task of this app is guarded", cure)
    observed = sum(not diverts for _, diverts in policies.values())
    said = f"{len(policies)} guarded" + (f", {observed} of them only observed" if observed else "")
    return Finding("tasks", "ok", said)


def owner(app: Celery, queries: Queries) -> Finding:
    """Check whose ledger this is."""
    try:
        signed = check_owner(app, queries)
    except ConfigurationError as error:
        return Finding("owner", "FAIL", str(error), "give every app its own poison_namespace")
    return Finding("owner", "ok", "this app's" if signed else "nobody's yet: the first worker signs it")


def trials(settings: Settings, queries: Queries) -> Finding:
    """Check that suspects are tried, where that takes a worker of its own."""
    workers = queries.workers(int(settings.activation_interval * 1000))
    if wrong := untried(settings, workers):
        return Finding("trials", "warn", *wrong)
    return Finding("trials", "ok", f"in the queue {settings.trial_queue}")


def stuck(app: Celery) -> Finding:
    """Check that no message waits which nobody works on."""
    stranded = find_stranded(app)
    if not stranded.total:
        return Finding("stuck", "ok", "no message that nobody works on")
    oldest = stranded.oldest[0]
    whole = f"nobody works on {count_of(stranded.total, 'message')}"
    said = f"{whole}, on {oldest.id} since {when(oldest.since)} ({duration(oldest.age)}): {oldest.why}"
    return Finding("stuck", "warn", said, oldest.cure)


def broker(app: Celery) -> Finding:
    """Check that the broker answers, and whether receiving from it can lose a message."""
    try:
        with bounded_connection(app) as connection:
            channel = connection.default_channel
            if isinstance(channel, kombu_redis.Channel):
                return _redis_broker(channel)
            if isinstance(channel, pyamqp.Channel):
                about = connection.connection.server_properties
                product = f"{about.get('product', 'AMQP')} {about.get('version', '')}"
                return Finding("broker", "ok", f"{product}; {_heartbeat(app)}")
            kind = connection.transport.driver_type
    except Exception as error:  # each transport has errors of its own
        return Finding("broker", "FAIL", f"not usable: {error}", "start it, or correct broker_url")
    said = (
        f"{kind}: neither Redis nor RabbitMQ; bodies are kept after unpacking, failover is the broker's own"
    )
    return Finding("broker", "warn", said, "use Redis or RabbitMQ for all that celery_poison promises")


def _heartbeat(app: Celery) -> str:
    """Tell when a broker that puts back by itself gives up a worker that is frozen, and still connected."""
    seconds = app.conf.broker_heartbeat
    if not seconds:
        return "broker_heartbeat is off: it keeps what a frozen worker holds until that worker ends"
    return f"broker_heartbeat={seconds}: it keeps what a frozen worker holds for up to {2 * seconds} s"


def _redis_broker(channel: Any) -> Finding:
    probe = f"{channel.global_keyprefix or ''}poison.doctor"
    cure = "allow them, and use Redis 6.2 or newer: a worker killed while it receives may lose that message"
    with channel.conn_or_acquire() as client:
        try:
            client.ping()
            client.execute_command("EVAL", "return redis.call('EXISTS', KEYS[1])", 1, f"{probe}.a")
            client.execute_command("BLMOVE", f"{probe}.a", f"{probe}.b", "RIGHT", "LEFT", 0.01)
        except redis.exceptions.ResponseError as error:
            return Finding("broker", "warn", f"Redis refuses EVAL or BLMOVE: {error}", cure)
    return Finding("broker", "ok", "Redis; messages are received in one step")


def backend(app: Celery) -> Finding:
    """Check that there is a result backend to tell callers of a failure."""
    try:
        found = app.backend
        if isinstance(found, DisabledBackend):
            cure = "set result_backend: without it `fail` reaches errbacks, but no caller and no chord"
            return Finding("results", "warn", "no result backend", cure)
        url = without_secrets(found.as_uri())
        if url.startswith("rpc://"):
            return Finding("results", "ok", f"{url} (in the callers' own queues)")
        found._get_task_meta_for("celery-poison-doctor")
    except Exception as error:  # each backend has errors of its own
        return Finding("results", "FAIL", f"not usable: {error}", "start it, or correct result_backend")
    return Finding("results", "ok", url)
