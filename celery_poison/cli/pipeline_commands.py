"""What the commands of ``celery poison pipeline`` do; ``publish`` is in ``pipeline_publish``.

``options`` are what was typed, by name; those that a caller leaves out are at their defaults.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import click

from celery_poison.basics.text import clean
from celery_poison.cli.pipeline_forecast import of_limit, of_task
from celery_poison.errors import ConfigurationError
from celery_poison.pipeline import maintain as keeping
from celery_poison.pipeline import sink
from celery_poison.pipeline.backtest import WEIGHT, Replayed, as_dict, say
from celery_poison.pipeline.backtest import backtest as back_test
from celery_poison.pipeline.blame import DIMENSIONS, is_accused
from celery_poison.pipeline.derived import STORED, Derived
from celery_poison.pipeline.forecast import MEASURES
from celery_poison.pipeline.forecast import forecast as forecasting
from celery_poison.pipeline.ingest.ingest import Ingest, Ingested, Wanted
from celery_poison.pipeline.lake import Lake, LakeError, LeftOut
from celery_poison.pipeline.replay import InForce
from celery_poison.pipeline.report import as_json, gather, render, top
from celery_poison.pipeline.session import suit, together

_warn = partial(click.echo, err=True)


def _tell(options: Mapping[str, Any], told: Any, words: str) -> None:
    click.echo(json.dumps(told, indent=2) if options.get("as_json") else words)


def ingest(session: Any, lake: Lake, options: Mapping[str, Any]) -> Ingested:
    """Ingest, batch by batch told on stderr, and say what was done; raises what ``Ingest.once`` raises.

    Into a lake of no journal nothing is ingested, which is said.
    """
    done = _ingested(session, lake, options)
    _tell(options, asdict(done), _summary(done))
    return done


def _ingested(session: Any, lake: Lake, options: Mapping[str, Any]) -> Ingested:
    if what := lake.of_no_journal():
        _warn(f"{lake.root} holds {what}, no journal belongs to it: nothing is ingested")
        return Ingested()
    if not options.get("url"):
        raise ConfigurationError("which Redis? --redis redis://…, or celery -A proj poison pipeline …")
    context = session.sparkContext if hasattr(session, "_jvm") else None
    wanted = Wanted(
        options["url"],
        options.get("namespace") or "poison",
        options.get("master_name") or "",
        options.get("app_name") or "",
        4 if context is None else max(2, int(context.defaultParallelism)),
        options.get("max_rows") or 1_000_000,
    )
    work = Ingest(
        lake,
        wanted,
        keep_hours=options.get("trim_after"),
        compacting=options.get("compact", True),
        moved=bool(options.get("moved")),
        progress=_warn,
    )
    if options.get("once", True):
        _suit(session, lake, options, wanted.stream().tip().length)
        return work.once()
    stopped = list[int]()  # no Event: its lock may be held by what a second signal interrupts
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    return work.follow(lambda: bool(stopped), options.get("every", 60.0))


def _suit(session: Any, lake: Lake, options: Mapping[str, Any], more: int = 0) -> None:
    """Set the session up for the rows of the lake, and for as many as may come."""
    rows = more + (lake.journal.delta.count() if lake.journal.exists else 0)
    suit(session, rows, [text.partition("=")[0] for text in options.get("conf") or ()])


def _summary(done: Ingested) -> str:
    told = f"{done.rows} entries in {done.batches} new batches"
    if done.upto:
        told += f", the lake reaches up to {done.upto}"
    if done.trimmed:
        told += f"; {done.trimmed} trimmed from Redis"
    return told


def check(session: Any, lake: Lake, options: Mapping[str, Any]) -> None:
    """Say what is in the journal of all apps, what of it cannot be read, and what never came into it.

    Raises:
        LakeError: a file cannot be read.
    """
    delta = lake.journal.delta
    damaged = [LeftOut(path, why, rows) for path, rows, why in sink.check(session, lake.journal.uri, delta)]
    left_out = tuple(damaged) if damaged else lake.left_out()
    told: dict[str, Any] = {"version": lake.journal.version, "rows": delta.count()}
    words = f"{told['rows']} entries, version {told['version']}"
    told |= {"left_out": [asdict(e) for e in left_out], "gaps": [asdict(e) for e in lake.gaps()]}
    _tell(options, told, words)
    if not options.get("as_json"):
        for sentence in map(str, (*left_out, *lake.gaps())):
            _warn(sentence)
    if damaged:
        raise LakeError(
            f"{len(damaged)} files of {lake.journal.uri} are damaged: bring them back from a copy; what Redis"
            " still holds can be ingested again after `pipeline maintain --restore VERSION`"
        )


def maintain(options: Mapping[str, Any]) -> None:
    """Do what is asked; nothing of it needs Spark."""
    lake = Lake(None, options["lake"], options.get("app_name") or "")
    told: dict[str, Any] = {}
    if options.get("history"):
        told["history"] = keeping.history(lake.journal)
    elif options.get("restore") is not None:
        back = keeping.restore(lake, options["restore"])
        told |= {"restored": options["restore"], "version": lake.journal.version, "back": back}
        for predicate in back:
            _warn(f"deleted since version {options['restore']}, and back now: {predicate}; delete it again")
    else:
        lake.journal.delta  # noqa: B018 - says what is wrong where there is none
        lakes = [Lake(None, lake.root, app) for app in lake.apps()]
        made = [one.table(name) for one in lakes for name in (*STORED, "blame")]
        tables = [lake.journal, *(table for table in made if table.exists)]
        if options.get("forget"):
            told["forgotten"] = keeping.forget(lake, tables, list(options["forget"]))
        if options.get("keep_days"):
            told["dropped"] = sum(keeping.keep_days(table, options["keep_days"]) for table in tables)
        told["fewer_files"] = sum(keeping.compact(table) for table in tables)
        told["deleted_files"] = sum(keeping.vacuum(table, options["keep_hours"]) for table in tables)
    rows = told.get("history") or [told]
    words = "\n".join("  ".join(f"{key}: {value}" for key, value in row.items()) for row in rows)
    _tell(options, told, words)


def tables(session: Any, lake: Lake, options: Mapping[str, Any]) -> Derived:
    """Make the tables; what the lake could not read is told on stderr."""
    derived = Derived(session, lake, _warn)
    if options.get("rebuild"):
        derived.make(rebuild=True, since=options.get("since") and date.fromisoformat(options["since"]))
    for sentence in derived.left_out:
        _warn(sentence)
    where = {name: lake.table(name).uri for name in STORED}
    as_of = {"version": derived.as_of.version, "upto": derived.as_of.upto}
    words = [f"as of version {as_of['version']} of the journal, up to {as_of['upto']}", *where.values()]
    _tell(options, {**as_of, "tables": where}, "\n".join(words))
    return derived


def blame(session: Any, lake: Lake, options: Mapping[str, Any]) -> Derived:
    """Judge every fingerprint, task, form, size, release, queue and host that was in a death; print it."""
    derived = Derived(session, lake, _warn)
    if options.get("new"):
        _blame_new(derived, options)
        return derived
    days = derived.window(options.get("since"), options.get("until"))
    told = top(derived.judge(days, options.get("cause")), options["top"])
    lines = [*filter(None, [days.says(), derived.as_of.says()])]
    for dimension in DIMENSIONS:
        rows = [row for row in told if row["dimension"] == dimension]
        lines += [dimension] if rows else []
        for row in rows:
            causes = f" ({row['causes']})" if row["causes"] else ""
            lines.append(f"  {clean(row['key'])}: {row['says']}{clean(causes)}")
    _tell(options, [as_json(row) for row in told], "\n".join(lines if told else [*lines, "nothing died"]))
    return derived


def _blame_new(derived: Derived, options: Mapping[str, Any]) -> None:
    """Print what is accused and was not printed by ``--new`` before; report it, and exit with 1."""
    blamed = derived.judge()
    found = [row for row in blamed if is_accused(row) and not row["told"]]
    sentences = [f"{row['dimension']} {clean(row['key'])}: {row['says']}" for row in found]
    _tell(options, [as_json(row) for row in found], "\n".join(sentences or ["nothing new is accused"]))
    if found:
        options.get("notify", lambda _: None)(sentences)
        # Only now: what a killed command did not report is new to the next one.
        derived.store([{**row, "told": is_accused(row) or None} for row in blamed])
        raise SystemExit(1)


def forecast(session: Any, lake: Lake, options: Mapping[str, Any]) -> None:
    """Print the chance of each task to need more than the limit, and what that limit would have done."""
    ((measure, limit),) = ((name, options[name]) for name in MEASURES if options.get(name) is not None)
    derived = Derived(session, lake, _warn)
    days = derived.window(options.get("since"), options.get("until"))
    rows = forecasting(derived.ask, measure, limit, days, options.get("release") or "")
    lines = [*filter(None, [days.says(), derived.as_of.says()])]
    for row in rows[: options["top"]]:
        name = " ".join(filter(None, (row["task"], row["size"])))
        lines.append(clean(f"{name}: {of_task(row, limit, MEASURES[measure][2])}"))
    says = [*of_limit(rows, measure, limit, MEASURES[measure][2])] or [f"the {measure} of no run is known"]
    told = {"measure": measure, "limit": limit, "rows": [as_json(row) for row in rows], "says": says}
    _tell(options, told, "\n".join([*lines, *map(clean, says)]))


def backtest(session: Any, lake: Lake, options: Mapping[str, Any]) -> None:
    """Replay the history under a grid of policies and print all outcomes, the recommended one last."""
    told = replayed(Derived(session, lake, _warn), options)
    lines = ["deaths  workers  lost_s  waiting  innocents  policy"]
    for each in sorted(told.outcomes, key=lambda each: (each.innocents, each.deaths)):
        numbers = f"{each.deaths:6}  {each.worker_deaths:7}  {each.lost_ms // 1000:6}"
        lines.append(f"{numbers}  {each.waiting:7}  {each.innocents:9}  {say(each.policy)}")
    lines += [f"recommended: {say(told.best.policy)}", *(f"  {reason}" for reason in told.reasons)]
    _tell(options, as_dict(told), "\n".join(lines))


def replayed(derived: Derived, options: Mapping[str, Any]) -> Replayed:
    """Replay the days that the options say, from the policy that the app's settings say."""
    days = derived.window(options.get("since"), options.get("until"))
    said = options.get("settings") or {}
    settings = InForce(**{name: said[name] for name in InForce._fields if name in said})
    return back_test(derived.ask, days, settings, options.get("weight", WEIGHT))


def report(session: Any, lake: Lake, options: Mapping[str, Any]) -> Path:
    """Write the page and return where it is."""
    return learn(Derived(session, lake, _warn), options)


def all_of_it(session: Any, lake: Lake, options: Mapping[str, Any]) -> Path:
    """Ingest what is new, bring all tables up to date, and write the report, in one session."""
    done = _ingested(session, lake, options)
    click.echo(_summary(done), err=bool(options.get("as_json")))  # the report's is all the JSON
    _suit(session, lake, options)
    return learn(Derived(session, lake, _warn), options)


def learn(derived: Derived, options: Mapping[str, Any]) -> Path:
    """Bring all tables up to date, judge and replay the days that the options say, and write the page."""
    for sentence in derived.left_out:
        _warn(sentence)
    days = derived.window(options.get("since"), options.get("until"))
    blamed, replay = together(lambda: derived.judge(days), lambda: replayed(derived, options))
    told = gather(
        derived.ask,
        blamed,
        window=days,
        replayed=replay,
        as_of=derived.as_of.says(),
        left_out=derived.left_out,
    )
    page: Path = options["out"]
    figures = page.with_suffix(".json")
    page.write_text(render(told), encoding="utf-8")
    figures.write_text(json.dumps(told, indent=1), encoding="utf-8")
    where = {"page": str(page), "figures": str(figures)}
    click.echo(json.dumps(where) if options.get("as_json") else str(page))
    return page
