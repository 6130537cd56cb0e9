"""``celery poison doctor``: checks everything that the plugin's promises rest on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import click
from celery import Celery
from celery.backends.base import DisabledBackend

from celery_poison.basics.parts import Finding
from celery_poison.basics.rooms import rooms_with
from celery_poison.basics.text import command, count_of, duration, some_of, when, without_secrets
from celery_poison.broker.bounds import bounded_connection
from celery_poison.broker.kinds import broker_of
from celery_poison.cli import redis_checks
from celery_poison.cli.cluster_checks import cluster
from celery_poison.cli.command import REFUSED, UNREACHABLE, app_of, json_option, verb
from celery_poison.cli.destination_checks import destinations
from celery_poison.cli.output import print_json, print_wrapped, say, wants_json
from celery_poison.cli.pipeline_checks import connect_server
from celery_poison.desk.owner import check_owner, move_broker
from celery_poison.desk.queues import find_deaf
from celery_poison.desk.stranded import find_stranded
from celery_poison.desk.survey import missing_trial_worker
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.keep.spool import spooled_here
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet_model import WorkerRecord
from celery_poison.ledger.views import Views
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.settings import Settings
from celery_poison.upstream import hooks

_VERIFY = "name who signed the server's certificate: ssl_ca_certs in the URL, or in broker_use_ssl"
_START = "start Redis, or correct poison_redis_url"
_SPOOLED = "see that Redis takes writes, and run a worker on this machine: it brings them to quarantine"
_TRIALS = "see docs/known-limits.md, Trials: what differs there, and why"
_EARLY = "decorate them with @guarded, or set task_acks_late = True, if they are safe to run again"
#: Databases that every process has for itself.
_NO_FILE = ("sqlite:", "sqlite:///:memory:")
_SHARED = "set result_backend to one that all share: else `fail` reaches neither caller nor chord"
_COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}
_WORDS = {"FAIL": "failed", "warn": "with a warning", "ok": "well"}
#: Columns before what a check has found: its level and its name.
_LEFT = 19

#: What extensions check. ``TRIES``: an option of their own -> its help, and what it does and finds.
_ROOMS = rooms_with("checks")
_TRIES = {name: each for room in _ROOMS for name, each in getattr(room, "TRIES", {}).items()}


@verb(
    *(click.option(f"--{name}", is_flag=True, help=says) for name, (says, _) in _TRIES.items()),
    click.option("--broker-moved", is_flag=True, help="First sign the ledger for the broker's new address."),
    json_option,
)
def doctor(ctx: click.Context, broker_moved: bool, **chosen: bool) -> None:
    """Check settings, Redis, permissions, clock, broker and result backend; each with its cure.

    If the broker has moved with its messages: stop the workers, change broker_url, run this once with
    --broker-moved, start the workers. Another name of the same server, or a failover, needs nothing.

    Exit status: 0 nothing failed, 1 something did, 3 Redis is unreachable.

    \b
    celery -A proj poison doctor
    """
    if broker_moved:
        move_broker(app_of(ctx), plugin_of(app_of(ctx)).open_ledger())
    findings = [*examine(app_of(ctx))]
    with suppress(ConfigurationError):  # which is a finding already
        plugin = plugin_of(app_of(ctx))
        findings += [found for name in chosen if chosen[name] for found in _TRIES[name][1](plugin)]
    if wants_json():
        print_json([finding.as_dict() for finding in findings])
    else:
        _tell(ctx.obj, findings)
    broken = [finding.check for finding in findings if finding.broken]
    ctx.exit(UNREACHABLE if "reachable" in broken else REFUSED if broken else 0)


def _tell(console: Any, findings: Sequence[Finding]) -> None:
    """Print first what is wrong, then each finding with its cure, last what to type."""
    by_level = Counter(finding.level for finding in findings)
    wrong = [f"{by_level[level]} {word}" for level, word in _WORDS.items() if by_level[level]]
    say(f"{count_of(len(findings), 'check')}: {', '.join(wrong)}", err=True)
    for finding in findings:
        level = console.style(f"{finding.level:<4}", fg=_COLOURS[finding.level])
        print_wrapped(finding.said, f"{level}  {finding.check:<13}", _LEFT)
        if finding.cure:
            print_wrapped(f"cure: {finding.cure}", " " * _LEFT, _LEFT)
    again = command("poison doctor")
    advice = f"mend what is marked FAIL, then type {again}" if by_level["FAIL"] else command("poison status")
    say(f"next: {advice}", err=True)


def examine(app: Celery) -> Iterator[Finding]:
    """Yield one finding after the other; what rests on something broken is left out."""
    try:
        plugin = plugin_of(app)
        settings = plugin.settings
        ledger, url = plugin.open_ledger(), without_secrets(plugin.ledger_url)
    except ConfigurationError as error:
        cure = "correct the Celery configuration" + (
            "; with no -A there is none" if app.main == "default" else ""
        )
        yield Finding("settings", str(error), cure, broken=True)
        return
    only = ", observe only (poison_observe_only): nothing is diverted" if settings.observe_only else ""
    yield Finding("settings", f"namespace {settings.namespace}{only}")
    yield _check_hooks()
    try:
        with clear_errors("examining Redis"):
            yield redis_checks.reachability(ledger.client, url)
            yield from _examine_ledger(app, settings, ledger)
    except LedgerUnavailable as error:
        cure = _VERIFY if "CERTIFICATE_VERIFY_FAILED" in str(error) else _START
        yield Finding("reachable", str(error), cure, broken=True)
    yield from (_check_tasks(plugin), *_check_broker(app), *_check_queues(plugin))
    yield from (*destinations(plugin), _check_backend(app))
    if directory := settings.spool_directory:
        spooled = spooled_here(directory)
        yield Finding("spool", spooled or f"nothing in {directory}", _SPOOLED if spooled else "")
    for room in _ROOMS:
        yield from room.examine(plugin)
    yield from connect_server()


def _examine_ledger(app: Celery, settings: Settings, ledger: Ledger) -> Iterator[Finding]:
    """Yield what is found of a Redis that answers, and of what it says; LedgerUnavailable: it went away."""
    yield redis_checks.encryption(ledger.client)
    yield from redis_checks.server(ledger.client)
    yield redis_checks.durability(ledger.client, settings.durability)
    yield from cluster(ledger.client, settings.durability)
    yield from redis_checks.rights(ledger.client, ledger.keys)
    yield from redis_checks.clock(ledger.client)
    yield _check_owner(app, ledger.read)
    yield _check_stuck(app)
    queries = ledger.read
    workers = queries.workers(int(settings.activation_interval * 1000))
    yield from _check_workers(app, queries, workers + queries.frozen(workers))
    yield from _check_trials(settings, [worker for worker in workers if worker.alive])


def _check_hooks() -> Finding:
    if misfits := hooks.misfits():
        is_broken = any(misfit.part is hooks.Area.GUARD for misfit in misfits)
        follows = "; ".join(f"{misfit.what}: {misfit.part.value}" for misfit in misfits)
        return Finding("celery", follows, misfits[0].cure, broken=is_broken)
    if unread := hooks.untested_versions():
        cure = "everything needed is there; run your own tests, see docs/versions.md"
        return Finding("celery", f"this version was not tried with {', '.join(unread)}", cure)
    said = ", ".join(f"{package} {number}" for package, number in hooks.installed().items())
    return Finding("celery", said)


def _check_tasks(plugin: Plugin) -> Finding:
    try:
        plugin.app.loader.import_default_modules()
        guarded = plugin.guarded
        observed = plugin.observed
    except Exception as error:  # whatever the user's modules raise
        cure = "a worker could not start either: repair it"
        return Finding("tasks", f"cannot be loaded: {error!r}", cure, broken=True)
    if not guarded:
        cure = "put @guarded on tasks, or set poison_guard_all=True"
        return Finding("tasks", "no task of this app is guarded", cure)
    if observed:
        finding = f"{guarded - len(observed)} guarded, {len(observed)} only observed ({some_of(observed)})"
        return Finding("tasks", f"{finding}: they acknowledge early, and cannot be quarantined", _EARLY)
    return Finding("tasks", f"{guarded} guarded")


def _check_owner(app: Celery, queries: Views) -> Finding:
    try:
        signed = check_owner(app, queries)
    except ConfigurationError as error:
        cure = "give every app and broker its own poison_namespace; or --broker-moved, see --help"
        return Finding("owner", str(error), cure, broken=True)
    return Finding("owner", "this app's" if signed else "not signed yet: the first worker signs it")


def _check_workers(app: Celery, queries: Views, workers: list[WorkerRecord]) -> Iterator[Finding]:
    """Yield each worker that lives and does not work (NEW-25); else how many work."""
    deaf, _ = find_deaf(app, queries, workers)
    troubles = [worker.trouble or worker.idle_story for worker in workers]
    troubles = [*filter(None, troubles), *(each.story for each in deaf)]
    for trouble in troubles:
        why, _, cure = trouble.partition("; cure: ")
        yield Finding("workers", why, cure)
    if not troubles:
        yield Finding("workers", f"{sum(worker.alive for worker in workers)} alive, and each works")


def _check_trials(settings: Settings, workers: list[WorkerRecord]) -> Iterator[Finding]:
    if settings.trial == "queue":
        fault = missing_trial_worker(settings, workers)
        yield Finding("trials", *(fault or [f"in the queue {settings.trial_queue}"]))
    for lacks in sorted({worker.cells for worker in workers} - {""}):
        nodes = some_of(worker.node for worker in workers if worker.cells == lacks)
        yield Finding("trials", f"{nodes}: {lacks}", _TRIALS)


def _check_stuck(app: Celery) -> Finding:
    stranded = find_stranded(app)
    if not stranded.total:
        return Finding("stuck", "no message that no worker works on")
    oldest = stranded.oldest[0]
    whole = f"no worker works on {count_of(stranded.total, 'message')}"
    said = f"{whole}, on {oldest.id} since {when(oldest.since)} ({duration(oldest.age)}): {oldest.why}"
    return Finding("stuck", said, oldest.cure)


def _check_broker(app: Celery) -> list[Finding]:
    try:
        with bounded_connection(app) as connection:
            return [*broker_of(connection).examine(app, connection)]
    except Exception as error:  # each transport has errors of its own
        return [Finding("broker", f"not usable: {error}", "start it, or correct broker_url", broken=True)]


def _check_queues(plugin: Plugin) -> Iterator[Finding]:
    """Yield the queues of this app that RabbitMQ lets drop a message before its last death allowed."""
    allowed = max(2, plugin.settings.max_crashes)
    with suppress(Exception):  # what the user's modules raise is a finding of its own
        allowed = max(allowed, *(policy.max_crashes for policy, _ in plugin.policies.values()))
    for name, queue in plugin.app.amqp.queues.items():
        limit = (queue.queue_arguments or {}).get("x-delivery-limit")
        if isinstance(limit, int) and 0 <= limit <= allowed:
            said = f"{name}: x-delivery-limit={limit}: RabbitMQ drops what {allowed} deaths would quarantine"
            yield Finding(
                "delivery_limit", said, f"set it well above {allowed}, to 20 for example, in a new queue"
            )


def _check_backend(app: Celery) -> Finding:
    try:
        backend = app.backend
        if isinstance(backend, DisabledBackend):
            cure = "set result_backend: without it `fail` reaches errbacks, but no caller and no chord"
            return Finding("results", "no result backend", cure)
        url = without_secrets(backend.as_uri())
        if url.startswith("rpc://"):
            return Finding("results", f"{url} (in the callers' own queues)")
        if url.startswith("memory://") or url.rstrip("/") in _NO_FILE:
            return Finding("results", f"{url} is the memory of one process: no other sees a result", _SHARED)
        backend._get_task_meta_for("celery-poison-doctor")
    except Exception as error:  # each backend has errors of its own
        return Finding("results", f"not usable: {error}", "start it, or correct result_backend", broken=True)
    return Finding("results", url)
