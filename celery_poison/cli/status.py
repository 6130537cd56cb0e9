"""``celery poison status | ready | workers | incidents``: how things are."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import click

from celery_poison import causes
from celery_poison.basics.sparkline import sparkline
from celery_poison.basics.text import (
    clean,
    clock,
    command,
    count_of,
    duration,
    first_of,
    some_of,
    span,
    utc,
    when,
)
from celery_poison.cli.command import (
    REFUSED,
    CommandRefused,
    app_of,
    json_option,
    open_quarantine,
    utc_option,
    verb,
)
from celery_poison.cli.output import answer, answer_table, print_json, print_wrapped, say, wants_json
from celery_poison.cli.rule_verbs import gate_line
from celery_poison.desk.overview import Level, Lost, Overview
from celery_poison.desk.queues import Backlog, find_deaf
from celery_poison.desk.survey import LOST_NAMED, last_ended, lost_workers, overview
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.fleet_model import Incident, WorkerRecord
from celery_poison.plugin import plugin_of
from celery_poison.portrait import Condition


@verb(
    click.option("--check", is_flag=True, help="For monitoring: exit status 0 well, 1 to decide, 2 broken."),
    click.option("--watch", is_flag=True, help="Redraw every two seconds, until Ctrl-C."),
    json_option,
)
def status(ctx: click.Context, check: bool, watch: bool) -> None:
    """Show decisions to take and faults, the next command, and the number of messages in each place.

    \b
    celery -A proj poison status
    """
    if watch and (check or wants_json()):
        raise click.UsageError("--watch redraws until Ctrl-C: leave out --json and --check")
    if watch:
        _watch(ctx)
    # A probe asks often, and its exit status hangs on no depth.
    seen = overview(app_of(ctx), queues=not check)
    if wants_json():
        print_json(seen.as_dict())
    else:
        _tell(ctx, seen)
    if check:
        ctx.exit([*Level].index(seen.level))


_HOUR = 3600
#: Seconds between two looks.
_LOOK_EVERY = 2.0


def _watch(ctx: click.Context) -> NoReturn:
    """Redraw until Ctrl-C, also while Redis is away."""
    with suppress(KeyboardInterrupt):
        while True:
            try:
                seen = overview(app_of(ctx), queues=True)
            except LedgerUnavailable as error:
                click.clear()
                say(str(error), err=True)
            else:
                click.clear()
                _tell(ctx, seen)
            time.sleep(_LOOK_EVERY)
    ctx.exit(0)


_COLOURS = {Level.WELL: "green", Level.DECIDE: "yellow", Level.BROKEN: "red"}


def _tell(ctx: click.Context, seen: Overview) -> None:
    console: Any = ctx.obj
    first, *others = (
        console.style(clean(sentence), fg=_COLOURS[seen.level], bold=True) for sentence in seen.verdict
    )
    # Whether it goes on is asked first: whatever else is said, it is said in the second line.
    for line in (first, *_deaths_line(seen), *others):
        console.echo(line)
    for typed in seen.next:
        console.echo(f"  {clean(typed)}")
    console.echo("")
    for name, value in _lines(seen, plugin_of(app_of(ctx)).settings.quarantine_queue):
        console.echo(f"{name:<12}{clean(value)}")
    for warning in seen.warnings:
        console.echo(console.style("WARNING", fg="red", bold=True) + f"  {clean(warning)}")
    if not seen.next:
        say(f"next: {command('poison journal tail')}", err=True)


def _lines(seen: Overview, quarantine: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each row; what is zero, and a gate that is open, has none."""
    yield from _time_lines(seen, quarantine)
    yield from _message_lines(seen)
    yield from ((panel.name, panel.line) for panel in seen.panels if panel.line)
    yield from _fleet_lines(seen)
    yield "monitor", seen.monitor or "none"
    yield "journal", f"{seen.journal} entries"
    yield "ledger", f"{seen.ledger}, namespace {seen.namespace}"


def _time_lines(seen: Overview, quarantine: str) -> Iterator[tuple[str, str]]:
    """Yield the workers that are lost, and whether the others are served.

    Args:
        quarantine: its name among the queues; what is in there waits for a person.
    """
    if seen.lost:
        named = [
            f"{lost.worker.partition('/')[0]} {lost.how} since {clock(lost.since)}" for lost in seen.lost
        ]
        yield "lost", first_of(named, 3)
    queues = [each for each in seen.queues if each.queue != quarantine]
    waits = any(each.waiting for each in queues)
    if waits or seen.ended_at:
        served = [f"a task ended {span(seen.at - seen.ended_at)} ago"] if seen.ended_at else []
        yield "served", "; ".join([*served, _waiting_line(queues)])


def _deaths_line(seen: Overview) -> Iterator[str]:
    """Yield whether it goes on: when a task and a worker died last, the later first; how often lately."""
    last, newest = seen.lately.last, next(iter(seen.worker_deaths), None)
    since = newest.died_at if newest is not None else None
    words = _worker_death(seen, newest) if newest is not None and since else ""
    if not last:
        yield from filter(None, [words])
        return
    *_, before, hour = seen.lately.by_hour
    ago = span(seen.at - last)
    row = f"  {sparkline(seen.lately.by_hour)} 24 h" if any(seen.lately.by_hour) else ""
    often = f"{hour} in the last hour, {before} in the one before{row}"
    task = clean(seen.lately.task)
    if words and since and since > last:
        yield f"{words}, {task or 'a task'} {ago} ago; {often}"
    elif hour or before:
        worker = f", {words}" if since and seen.at - since < _HOUR else ""
        of = f", of {task}" if task else ""
        yield f"the last death {ago} ago{of}{worker}; {often}"
    else:
        yield f"no death for {ago}{row}"


def _worker_death(seen: Overview, newest: Incident) -> str:
    """Return which worker died last, and when, whether it has come back or not."""
    ago = seen.at - (newest.died_at or seen.at)
    in_hour = sum(seen.at - (each.died_at or 0.0) < _HOUR for each in seen.worker_deaths)
    least = "at least " if in_hour == LOST_NAMED else ""  # no more are looked at
    more = f" ({least}{in_hour} workers in the last hour)" if in_hour > 1 else ""
    how = "froze" if newest.how == "frozen" else "died"
    return f"worker {newest.worker.partition('/')[0]} {how} {span(ago)} ago{more}"


def _waiting_line(queues: Sequence[Backlog]) -> str:
    """Return how much waits, the longest queue first; that nothing does only if each was counted.

    For how long is not said: neither a list in Redis nor a queue of AMQP knows when its messages came.
    """
    counted = sorted((-each.waiting, each.queue) for each in queues if each.waiting)
    if counted:
        return f"waiting: {first_of([f'{-number} in {queue}' for number, queue in counted], 4)}"
    if queues and all(each.waiting == 0 for each in queues):
        return "nothing waits in a queue"
    return "how much waits is not known"


def _message_lines(seen: Overview) -> Iterator[tuple[str, str]]:
    if seen.observe_only or seen.would_quarantine:
        kinds = (f"{number} {causes.short(cause)}" for cause, number in seen.would_quarantine.items())
        yield "observed", f"would have been quarantined so far: {', '.join(kinds) or 'nothing'}"
    stuck, messages = seen.stranded, partial(count_of, noun="message")
    kinds = (f"{number} {kind}" for kind, number in stuck.counts.items() if number)
    rows = (
        ("quarantine", seen.quarantined, messages(seen.quarantined)),
        ("leaving", seen.leaving, f"{messages(seen.leaving)} that leave by themselves; show ID has the time"),
        ("given up", seen.failed, messages(seen.failed)),
        ("candidates", seen.candidates, _suspects_line(seen)),
        ("running", seen.running, messages(seen.running)),
        ("parked", seen.parked, f"{messages(seen.parked)} in the ledger; see `list --state TBDL`"),
        ("stuck", stuck.total, f"no worker works on {messages(stuck.total)}: {', '.join(kinds)}"),
        ("blocked", seen.blocked, count_of(seen.blocked, "rule")),
    )
    yield from ((name, text) for name, number, text in rows if number)
    for wish in seen.asked:
        since, left = when(wish.since), span(wish.until - seen.at)
        yield "asked for", f"{since}: {wish.story}; within {left} {wish.how}"


def _fleet_lines(seen: Overview) -> Iterator[tuple[str, str]]:
    if seen.gate.closed or seen.gate.lifted_at is not None:
        yield "gate", gate_line(seen.gate)
    stuck = "".join(f", {number} {condition}" for condition, number in seen.stuck.items() if number)
    yield "workers", f"{seen.alive} alive, {seen.dead} silent, {seen.stopping} stopping{stuck}"
    if seen.alive:
        yield "tasks", _tasks_line(seen)
    if seen.unguarded or seen.ledger_errors:
        unguarded, errors = count_of(seen.unguarded, "task"), count_of(seen.ledger_errors, "ledger error")
        yield "errors", f"{unguarded} ran unguarded, {errors}"


def _tasks_line(seen: Overview) -> str:
    observed, unguarded = seen.observed_tasks, seen.unguarded_tasks
    kinds = [f"{max(0, seen.guarded_tasks - len(observed))} guarded"]
    if observed:
        kinds.append(f"{len(observed)} only observed, since they acknowledge early ({some_of(observed)})")
    kinds.append(f"{len(unguarded)} unguarded{f' ({some_of(unguarded)})' if unguarded else ''}")
    return ", ".join(kinds)


def _suspects_line(seen: Overview) -> str:
    since = f"; the oldest for {span(seen.at - seen.suspected_since)}" if seen.suspected_since else ""
    if seen.observe_only:
        return f"{seen.candidates}, only observed: they run as Celery runs them{since}"
    waiting = seen.candidates - seen.on_trial
    decide = "; `fail`, `discard` or `release` ID need not wait for a verdict"
    return f"{seen.candidates}: {seen.on_trial} on trial, {waiting} waiting{since}{decide}"


@verb(click.argument("node", default=""), json_option)
def ready(ctx: click.Context, node: str) -> None:
    """For a readiness probe: exit status 0 if workers live and consume, else 1.

    NODE is a worker's name, such as worker1@host; without it all workers of this host count. Not ready is a
    worker that is missing, silent, leaving or stuck, that consumes nothing though messages wait, or whose
    broker does not answer.

    \b
    celery -A proj poison ready
    celery -A proj poison ready worker1@example.com
    """
    app, queries = app_of(ctx), open_quarantine(ctx).queries
    records = queries.workers(int(plugin_of(app).settings.activation_interval * 1000))
    records += queries.frozen(records)
    host = socket.gethostname()
    # Of a node that was started again, the life before may not have been declared dead yet.
    records.sort(key=lambda worker: worker.started_at or 0.0)
    asked = {w.node: w for w in records if (w.node == node if node else w.host == host)}
    ended = last_ended(queries, lambda name: name == node if node else name.partition("@")[2] == host)
    reasons = [*_not_living([*asked.values()], node or f"host {host}", ended)]
    deaf, unheard = find_deaf(app, queries, asked.values())
    reasons += [*(each.story for each in deaf), *unheard]
    if reasons and not wants_json():
        raise CommandRefused("not ready: " + "; ".join(reasons))
    answered = {"ready": not reasons, "workers": sorted(asked), "reasons": reasons}
    answer(answered, f"ready: {', '.join(sorted(asked))}")
    ctx.exit(REFUSED if reasons else 0)


def _not_living(asked: list[WorkerRecord], whose: str, ended: str) -> Iterator[str]:
    if not asked and ended:
        yield f"no worker of {whose} is alive, the last one ended: {ended}; cure: start it"
    elif not asked:
        yield f"no worker of {whose} has reported to this ledger"
    for worker in asked:
        if worker.trouble:
            yield worker.trouble
        elif not worker.alive:
            yield f"worker {worker.worker} has been silent since {when(worker.last_beat)}; cure: restart it"
        elif worker.stopping:
            yield f"worker {worker.worker} is leaving"


@verb(utc_option, json_option)
def workers(ctx: click.Context) -> None:
    """List the workers that guard messages, the longest silent first.

    NOTICED BY: a death is noticed in about a second (connection), or after poison_activation_interval
    (heartbeat). UNGUARDED counts tasks whose start or end never reached the ledger, ERRORS its faults; both
    are left out where all are 0. A narrow terminal leaves columns out; --json has all.

    \b
    celery -A proj poison workers
    """
    app, queries = app_of(ctx), open_quarantine(ctx).queries
    records = queries.workers(int(plugin_of(app).settings.activation_interval * 1000))
    records += queries.frozen(records)
    deaf = {each.worker for each in find_deaf(app, queries, records)[0]}
    now = queries.now_ms() / 1000
    troubled = any(worker.unguarded or worker.ledger_errors for worker in records)

    headings = ["WORKER", "STATE", "BEAT", "PID", "POOL", "SLOTS", "QUEUES"]
    headings += ["UNGUARDED", "ERRORS"] if troubled else []
    dead = lost_workers(queries.incidents(LOST_NAMED), records, now)
    ended = last_ended(queries)
    empty = f"no worker is alive, the last one ended: {ended}" if ended else "no worker has reported"
    answer_table(
        records,
        [*headings, "NOTICED BY", "STARTED"],
        partial(_worker_row, now=now, troubled=troubled, deaf=deaf),
        f"{empty}; cure: {command('worker')}",
        fit=True,
        title=_fleet_line(records),
    )
    if wants_json():
        return
    _print_dead(dead)
    say(f"next: {command('poison status')}", err=True)
    for each in records:
        if each.stack:
            where = next(filter(causes.is_users, each.stack), each.stack[0])
            print_wrapped(clean(f"{each.node}: its event loop stands, or stood lately, in {where}"), "", 0)


def _print_dead(dead: Sequence[Lost]) -> None:
    """Print the workers that died within a day and have not come back, each with what to type."""
    for lost in dead:
        if lost.incident:
            say(f"{lost.worker.partition('/')[0]} died at {clock(lost.since)} and has not come back")
            say(f"  {command(f'poison incidents show {lost.incident}')}")


def _worker_row(
    worker: WorkerRecord, *, now: float, troubled: bool, deaf: Collection[str]
) -> Sequence[object]:
    # The paused ones first: where a column is cut, its end is missing.
    queues = [f"{queue} (paused)" for queue in worker.paused.split(",") if queue]
    queues += worker.consumed
    return (
        worker.worker if utc.get() else worker.node,
        _state_word(worker, is_deaf=worker.worker in deaf),
        f"{duration(now - (worker.last_beat or now))} ago",
        worker.pid,
        worker.pool or "-",
        worker.concurrency,
        ", ".join(queues) or "-",
        *([worker.unguarded, worker.ledger_errors] if troubled else []),
        worker.noticed_by,
        clock(worker.started_at),
    )


def _state_word(worker: WorkerRecord, *, is_deaf: bool) -> str:
    """Return its condition; of one that works and runs nothing, that it is idle."""
    condition = worker.condition(is_deaf=is_deaf)
    seen = worker.portrait
    if condition is not Condition.WORKING or seen is None or not seen.slots:
        return condition
    return f"working {seen.slots_busy}/{seen.slots}" if seen.slots_busy else "idle"


def _fleet_line(workers: Sequence[WorkerRecord]) -> str:
    """Return how many workers there are, and how many of them are silent or leaving."""
    frozen = sum(worker.frozen_since is not None for worker in workers)
    silent = sum(not worker.alive for worker in workers) - frozen
    stopping = sum(worker.alive and worker.stopping for worker in workers)
    states = [f"{len(workers) - frozen - silent - stopping} alive"]
    others = ((stopping, "stopping"), (silent, "silent"), (frozen, "frozen"))
    states += [f"{number} {how}" for number, how in others if number]
    return f"{count_of(len(workers), 'worker')}: {', '.join(states)}"
