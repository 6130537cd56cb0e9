"""``celery poison doctor``: checks everything that the plugin's promises rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import click
import redis
from celery import Celery
from celery.backends.base import DisabledBackend
from kombu.transport import pyamqp
from kombu.transport import redis as kombu_redis

from celery_poison import hooks
from celery_poison.broker.publish import bounded_connection
from celery_poison.cli import redis_checks
from celery_poison.cli.output import print_json
from celery_poison.cli.redis_checks import Finding, Level
from celery_poison.cli.session import REFUSED, UNREACHABLE, app_of, json_option, verb
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.failover.notifier import Wording
from celery_poison.failover.receivers import NotDelivered, Receiver
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.queries import Queries
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.producer.database import waiting_rows
from celery_poison.quarantine.overview import untried
from celery_poison.quarantine.owner import check_owner, without_secrets
from celery_poison.quarantine.spool import spooled_here
from celery_poison.quarantine.stranded import find_stranded
from celery_poison.settings import Settings
from celery_poison.text import clean, count_of, duration, when
from celery_poison.values import receivers_of

_VERIFY = "name who signed the server's certificate: ssl_ca_certs in the URL, or in broker_use_ssl"
_START = "start Redis, or correct poison_redis_url"
_COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


@verb(
    click.option("--notify", is_flag=True, help="Send a test to everything that poison_notify names."),
    json_option,
)
def doctor(ctx: click.Context, notify: bool, as_json: bool) -> None:
    """Check settings, Redis, permissions, clock, broker and result backend; each with its cure.

    Exit status: 0 nothing failed, 1 something did, 3 Redis is unreachable.

    \b
    celery -A proj poison doctor
    celery -A proj poison doctor --notify
    celery -A proj poison doctor --json | jq '.[] | select(.level != "ok")'
    """
    findings: list[Finding] = []
    for finding in chain(examine(app_of(ctx)), _notify(app_of(ctx)) if notify else ()):
        findings.append(finding)
        if not as_json:
            _say(ctx.obj, finding)
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    ctx.exit(_status(findings))


def _notify(app: Celery) -> Iterator[Finding]:
    """Send a test to each receiver that is not this very process."""
    with suppress(ConfigurationError):  # which is a finding already
        settings = plugin_of(app).settings
        test = Wording(app.main or "celery", settings.namespace).test()
        for receiver in (Receiver(each) for each in receivers_of(settings.notify) if each != "event"):
            try:
                receiver.tell(test.as_dict())
            except NotDelivered as error:
                cure = "correct it, or poison_notify; see docs/howto.md, Be told"
                yield Finding("notify", "FAIL", f"{receiver.name}: {error}", cure)
            else:
                yield Finding("notify", "ok", f"{receiver.name} took a test")


def _say(console: Any, finding: Finding) -> None:
    level = console.style(f"{finding.level:<4}", fg=_COLOURS[finding.level])
    console.echo(f"{level}  {finding.check:<13}{clean(finding.said)}")
    if finding.cure:
        console.echo(f"{'':19}cure: {clean(finding.cure)}")


def _status(findings: list[Finding]) -> int:
    failed = [finding for finding in findings if finding.level == "FAIL"]
    if any(finding.check == "reachable" for finding in failed):
        return UNREACHABLE
    return REFUSED if failed else 0


def examine(app: Celery) -> Iterator[Finding]:
    """Yield one finding after the other; what rests on something broken is left out."""
    try:
        plugin = plugin_of(app)
        found = _check_settings(plugin)
        ledger, url = plugin.open_ledger(), without_secrets(plugin.ledger_url)
    except ConfigurationError as error:
        cure = "correct the Celery configuration; with no -A there is none" if app.main == "default" else ""
        yield Finding("settings", "FAIL", str(error), cure or "correct the Celery configuration")
        return
    yield found
    yield _check_hooks()
    try:
        with clear_errors("examining Redis"):
            yield redis_checks.reachability(ledger.client, url)
            yield from _ledger(app, ledger, plugin.settings.durability)
            yield _check_stuck(app)
            if plugin.settings.trial == "queue":
                yield _check_trials(plugin.settings, Queries(ledger))
    except LedgerUnavailable as error:
        cure = _VERIFY if "CERTIFICATE_VERIFY_FAILED" in str(error) else _START
        yield Finding("reachable", "FAIL", str(error), cure)
    yield from _around(plugin)
    if directory := plugin.settings.spool_directory:
        yield _check_spool(directory)
    if rows := waiting_rows(plugin.settings.outbox_database):
        cure = "create its table, start the database, or correct poison_outbox_database; see docs/outbox.md"
        yield Finding("outbox", "ok" if not rows.error else "FAIL", str(rows), cure if rows.error else "")


def _ledger(app: Celery, ledger: Ledger, durability: str) -> Iterator[Finding]:
    yield redis_checks.encryption(ledger.client)
    yield from redis_checks.server(ledger.client)
    yield redis_checks.durability(ledger.client, durability)
    yield from redis_checks.rights(ledger.client, ledger.keys)
    yield from redis_checks.clock(ledger.client)
    yield _check_owner(app, Queries(ledger))


def _around(plugin: Plugin) -> Iterator[Finding]:
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: _check_tasks(plugin),
        lambda: _check_broker(plugin.app),
        lambda: _check_backend(plugin.app),
    )
    for check in checks:
        yield check()


def _check_settings(plugin: Plugin) -> Finding:
    """Check the settings.

    Raises:
        ConfigurationError: one is unknown or impossible.
    """
    return Finding("settings", "ok", f"namespace {plugin.settings.namespace}")


def _check_hooks() -> Finding:
    """Check that Celery and kombu are as this version knows them."""
    said = ", ".join(f"{package} {number}" for package, number in hooks.installed().items())
    misfits = hooks.misfits()
    if misfits:
        level: Level = "FAIL" if any(misfit.part is hooks.Part.GUARD for misfit in misfits) else "warn"
        follows = "; ".join(f"{misfit.what}: {misfit.part.value}" for misfit in misfits)
        return Finding("celery", level, follows, misfits[0].cure)
    if unread := hooks.unread():
        cure = "everything needed is there; run your own tests, see docs/versions.md"
        return Finding("celery", "warn", f"this version was not tried with {', '.join(unread)}", cure)
    return Finding("celery", "ok", said)


def _check_tasks(plugin: Plugin) -> Finding:
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


def _check_owner(app: Celery, queries: Queries) -> Finding:
    """Check whose ledger this is."""
    try:
        signed = check_owner(app, queries)
    except ConfigurationError as error:
        return Finding("owner", "FAIL", str(error), "give every app its own poison_namespace")
    return Finding("owner", "ok", "this app's" if signed else "nobody's yet: the first worker signs it")


def _check_trials(settings: Settings, queries: Queries) -> Finding:
    """Check that suspects are tried, where that takes a worker of its own."""
    workers = queries.workers(int(settings.activation_interval * 1000))
    if wrong := untried(settings, workers):
        return Finding("trials", "warn", *wrong)
    return Finding("trials", "ok", f"in the queue {settings.trial_queue}")


def _check_stuck(app: Celery) -> Finding:
    """Check that no message waits which nobody works on."""
    stranded = find_stranded(app)
    if not stranded.total:
        return Finding("stuck", "ok", "no message that nobody works on")
    oldest = stranded.oldest[0]
    whole = f"nobody works on {count_of(stranded.total, 'message')}"
    said = f"{whole}, on {oldest.id} since {when(oldest.since)} ({duration(oldest.age)}): {oldest.why}"
    return Finding("stuck", "warn", said, oldest.cure)


def _check_spool(directory: str) -> Finding:
    """Check that nothing waits on this machine for a Redis that takes it."""
    if said := spooled_here(directory):
        cure = "see that Redis takes writes, and run a worker on this machine: it brings them to quarantine"
        return Finding("spool", "warn", said, cure)
    return Finding("spool", "ok", f"nothing in {directory}")


def _check_broker(app: Celery) -> Finding:
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


def _check_backend(app: Celery) -> Finding:
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
