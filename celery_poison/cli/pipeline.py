"""``celery poison pipeline …``, and ``celery-poison pipeline …`` without an app.

What the commands do is in ``pipeline_commands``, which needs Spark: it is imported when a command runs, not
before. A command's function gets what was typed, by name, and what the app says of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

from celery_poison.broker.identity import identity_of
from celery_poison.cli.command import WRONG_USAGE, CommandRefused, Option, plainly
from celery_poison.cli.pipeline_checks import check_options, conf_of, said_plainly
from celery_poison.extensions.notify.notifier import send_to_all
from celery_poison.plugin import plugin_of
from celery_poison.policy import OVERRIDABLE

_NEEDS = ("pyspark", "pyarrow", "deltalake", "scipy")
#: Packages that take Python a second and a half to load.
_HEAVY = ("pandas", "scipy.special", "deltalake", "pyarrow.dataset")

_COMMON = (
    click.option("--lake", envvar="POISON_LAKE", help="Directory, or s3://, gs://, abfss://.  [required]"),
    click.option(
        "--app-name", help="The app that is read, where several share the lake; default: that of celery -A."
    ),
    click.option("--redis", "url", help="URL of the ledger's Redis; default: the app's."),
    click.option("--namespace", help="The ledger's namespace; default: the app's, else 'poison'."),
    click.option("--master-name", help="The master that Sentinels watch, beside a sentinel:// URL."),
    click.option(
        "--master",
        envvar="POISON_MASTER",
        default="local[*]",
        help="Where Spark runs: local[N], spark://host:port, or sc://host:port (Spark Connect).",
    ),
    click.option("--memory", default="1g", help="Heap of Spark's driver."),
    click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting, e.g. of S3."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout."),
)
_INGEST = (
    click.option(
        "--trim-after",
        type=click.FloatRange(0),
        metavar="HOURS",
        help="Drop older entries from Redis once they are in the lake; without this, none.",
    ),
    click.option("--compact/--no-compact", default=True, help="Merge small files."),
    click.option(
        "--moved",
        is_flag=True,
        help="The app has another journal from now on: its Redis was emptied, or its broker moved.",
    ),
    click.option(
        "--max-rows", type=click.IntRange(1), default=1_000_000, help="About so many entries in one batch."
    ),
)
_DAYS = (
    click.option(
        "--since",
        metavar="DAY|Nd",
        help="Only from this day on (UTC), compared with all before: 2026-03-02, or 7d: the last seven days.",
    ),
    click.option("--until", metavar="DAY", help="Only days before this one."),
)
_REPORT = (
    click.option(
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path("poison-report.html"),
        help="The page; its figures go beside it, as .json.",
    ),
    *_DAYS,
)


@click.group(cls=DYMGroup, context_settings={"show_default": True})
def pipeline() -> None:
    """Learn from the journal with Spark: see docs/pipeline.md.

    \b
    celery -A proj poison pipeline ingest --lake /data/poison --once
    celery-poison pipeline ingest --redis redis://localhost/0 --lake /data/poison --follow

    Needs the extra celery-poison[spark] and Java 17 or newer.
    """


def _command(
    *own: Option, name: str | None = None
) -> Callable[[Callable[[dict[str, Any]], object]], click.Command]:
    """Make a command of a function: it runs in Spark under the function's name, unless that returns True."""

    def make(function: Callable[[dict[str, Any]], object]) -> click.Command:
        @plainly
        def callback(**options: Any) -> None:
            _fill_from_app(options)
            if not function(options):
                _in_spark(function.__name__, options)

        for option in reversed((*own, *_COMMON)):
            callback = option(callback)
        command: click.Command = pipeline.command(name or function.__name__, help=function.__doc__)(callback)
        return command

    return make


@_command(
    click.option("--once/--follow", default=True, help="Return when every entry is in the lake, or go on."),
    click.option(
        "--every",
        type=click.FloatRange(0, min_open=True),
        default=60.0,
        help="Seconds between two batches of --follow, of which each is a commit.",
    ),
    *_INGEST,
)
def ingest(options: dict[str, Any]) -> None:
    """Bring the journal into the lake, each entry once, even if this command is killed.

    \b
    celery -A proj poison pipeline ingest --lake /data/poison                     once, from cron
    celery -A proj poison pipeline ingest --lake /data/poison --follow            as a daemon
    celery -A proj poison pipeline ingest --lake /data/poison --trim-after 24     and keep Redis small
    """


@_command()
def check(options: dict[str, Any]) -> None:
    """Read every value of the lake's journal once; report damage and missing entries.

    Exit status: 1 if anything is unreadable.

    \b
    celery -A proj poison pipeline check --lake /data/poison
    """


@_command(
    click.option("--rebuild", is_flag=True, help="Rebuild all tables, even current ones."),
    click.option("--since", metavar="DAY", help="With --rebuild: only from this day on (UTC)."),
)
def tables(options: dict[str, Any]) -> None:
    """Bring the tables below LAKE/tables up to the end of the lake's journal.

    See docs/pipeline-tables.md. Only new entries are read, and the days that they concern.

    \b
    celery -A proj poison pipeline tables --lake /data/poison
    celery -A proj poison pipeline tables --lake /data/poison --rebuild --since 2026-03-02
    """


@_command(
    click.option("--top", type=click.IntRange(1), default=5, help="Rows of each kind."),
    click.option("--cause", help="Only deaths of this cause, as `oom` or `signal:11`."),
    click.option(
        "--new",
        is_flag=True,
        help="Only new accusations; if there are any, exit 1 and notify poison_notify.",
    ),
    *_DAYS,
)
def blame(options: dict[str, Any]) -> None:
    """Name the guilty and the suspects of workers' deaths, with the evidence.

    Only a trial proves guilt. One model compares everything else together, so that a bad task does not
    colour its host: it prints the expected deaths, and the chance of so many.

    \b
    celery -A proj poison pipeline blame --lake /data/poison --since 7d     the last week against before
    celery -A proj poison pipeline blame --lake /data/poison --cause oom    only deaths by lack of memory
    celery -A proj poison pipeline blame --lake /data/poison --new          every night, from cron
    """


@_command(
    click.option("--peak", type=click.FloatRange(0), metavar="MIB", help="Peak memory of a run."),
    click.option("--runtime", type=click.FloatRange(0), metavar="SECONDS", help="Time from start to end."),
    click.option(
        "--wait", type=click.FloatRange(0), metavar="SECONDS", help="Time from publish to first start."
    ),
    click.option("--latency", type=click.FloatRange(0), metavar="SECONDS", help="Time from publish to end."),
    click.option("--release", help="Compare its runs with those of all others; default: the newest release."),
    click.option("--top", type=click.IntRange(1), default=10, help="Number of tasks."),
    *_DAYS,
)
def forecast(options: dict[str, Any]) -> None:
    """Forecast how often runs of each task will exceed a limit: memory, run time, wait or latency.

    Each chance has an interval, which is tested on the last days. Then come the runs that the limit would
    have ended, and the tasks that a new release made slower or larger. Give one of the four limits; all but
    --runtime need entries of journal schema 3.

    \b
    celery -A proj poison pipeline forecast --lake /data/poison --peak 512      a lane for larger runs
    celery -A proj poison pipeline forecast --lake /data/poison --runtime 300   another time limit
    celery -A proj poison pipeline forecast --lake /data/poison --wait 30       an SLO, by task
    """


@_command(
    click.option(
        "--weight",
        type=click.FloatRange(0),
        default=10.0,
        help="How many deaths are as bad as one innocent in quarantine.",
    ),
    *_DAYS,
)
def backtest(options: dict[str, Any]) -> None:
    """Replay history under other policies, and recommend the cheapest one.

    \b
    celery -A proj poison pipeline backtest --lake /data/poison --since 30d
    """


@_command(*_REPORT)
def report(options: dict[str, Any]) -> None:
    """Write a report of all days or some as one HTML page, with the same figures as JSON beside it.

    \b
    celery -A proj poison pipeline report --lake /data/poison --since 7d
    """


@_command(
    click.option(
        "--keep-hours",
        type=click.FloatRange(0),
        default=24.0,
        help="How long replaced files stay: longer than the longest reader takes.",
    ),
    click.option("--keep-days", type=click.IntRange(1), help="Drop rows that are older than this many days."),
    click.option("--forget", multiple=True, metavar="ID", help="Remove all rows of a task id."),
    click.option(
        "--restore", type=click.IntRange(0), metavar="VERSION", help="Bring this version of the journal back."
    ),
    click.option("--history", is_flag=True, help="Only print the newest versions of the journal."),
)
def maintain(options: dict[str, Any]) -> bool:
    """Merge small files, and delete those that no reader needs. Needs no Java.

    \b
    celery -A proj poison pipeline maintain --lake /data/poison        every day, from cron
    pipeline maintain --lake /data/poison --keep-days 90               and drop older days
    pipeline maintain --lake /data/poison --forget ID --keep-hours 0   remove all rows of a task id, for good
    pipeline maintain --lake /data/poison --history                    versions of the journal
    pipeline maintain --lake /data/poison --restore VERSION            bring that version back

    Ingest and readers may go on meanwhile, except with --keep-hours 0: then no reader may.
    """
    _need_lake_and_spark("maintain", options)
    from celery_poison.cli import pipeline_commands as commands

    with said_plainly():
        commands.maintain(options)
    return True


@_command(
    click.option("--show", is_flag=True, help="Only show the waiting proposal."),
    click.option("--apply", type=click.IntRange(1), metavar="VERSION", help="Put this proposal in force."),
    click.option("--dismiss", type=click.IntRange(1), metavar="VERSION", help="Drop this proposal."),
    click.option("--rollback", is_flag=True, help="Undo every proposal that is in force."),
    click.option("--rules-only", is_flag=True, help="With --apply: leave the policy alone."),
    click.option("--replaced", is_flag=True, help="With --apply: even if there is a newer proposal."),
    click.option("--at-once", is_flag=True, help="Apply the rules without waiting for a person."),
    click.option("--again", is_flag=True, help="Also propose rules that a person dismissed."),
    click.option(
        "--hours",
        type=click.FloatRange(0, min_open=True),
        default=168.0,
        help="How long a proposal waits, and how long its rules hold.",
    ),
    click.option(
        "--least",
        type=click.IntRange(1),
        default=2,
        help="Messages of a fingerprint that trials must have proven guilty.",
    ),
    click.option(
        "--max-age",
        type=click.FloatRange(0),
        metavar="HOURS",
        default=24.0,
        help="Propose nothing if the tables are further behind the journal.",
    ),
    click.option(
        "--accept-missing", is_flag=True, help="Propose although entries are missing; needs a --note."
    ),
    click.option("--note", default="", help="The reason; it is journalled."),
    click.option("--actor", help="The person who acts; default: your login."),
)
def publish(options: dict[str, Any]) -> bool:
    """Propose block rules for proven fingerprints; a person applies exactly the version that was shown.

    \b
    celery -A proj poison pipeline publish --lake /data/poison     propose, and show the rules
    celery -A proj poison pipeline publish --show                  the waiting proposal
    celery -A proj poison pipeline publish --apply VERSION         apply it, within a heartbeat
    celery -A proj poison pipeline publish --dismiss VERSION       drop it, for 30 days
    celery -A proj poison pipeline publish --rollback              undo all its rules

    A fingerprint gets no rule if any of its messages ever ended alive. No rule is proposed where such
    ends may be missing: healthy runs that are only counted, missing entries, old tables.
    """
    from celery_poison.cli.pipeline_publish import decide

    return decide(options)


@_command(*_INGEST, *_REPORT, name="all")
def all_of_it(options: dict[str, Any]) -> None:
    """Ingest new entries, bring all tables up to date, and write the report: once, as from cron.

    It proposes no rules: `pipeline publish` does.

    \b
    celery -A proj poison pipeline all --lake /data/poison
    """


@pipeline.command("quick-start")
@click.option("--memory", default="1g", help="Heap of Spark's driver.")
@plainly
def quick_start(memory: str) -> None:
    """Make an archive of Java's classes, with which all later commands start sooner.

    Once for each Java and PySpark, and again after an update of either. To undo it, delete the file.

    \b
    celery -A proj poison pipeline quick-start
    """
    _need_spark()
    from celery_poison.cli.pipeline_quick_start import make

    with said_plainly():
        archive = make(memory)
    click.echo(f"{archive}: {archive.stat().st_size / 2**20:.0f} MiB; all later commands use it")


def _in_spark(name: str, options: dict[str, Any]) -> None:
    """Run what a command does, in a Spark session of its own."""
    _need_lake_and_spark(name, options)
    from celery_poison.pipeline import session

    with said_plainly(), ThreadPoolExecutor(1) as beside:
        # While Java starts. None of them imports PySpark: two threads in its circles would see halves.
        loading = beside.submit(lambda: [*map(import_module, _HEAVY)])
        spark = session.open_session(options["master"], options["memory"], conf_of(options))
        loading.result()

    try:
        from celery_poison.cli import pipeline_commands as commands
        from celery_poison.cli import pipeline_publish as publish
        from celery_poison.pipeline.lake import Lake

        lake = Lake(spark, options["lake"], options["app_name"] or "")
        app = getattr(click.get_current_context().obj, "app", None)
        if app is not None and not options["app_name"] and len(lake.apps()) > 1:
            lake.app = identity_of(app)["app"]
        with said_plainly():
            getattr(publish if name == "publish" else commands, name)(spark, lake, options)
    finally:
        spark.stop()


def _need_lake_and_spark(name: str, options: dict[str, Any]) -> None:
    if not options["lake"]:
        raise CommandRefused("which lake? --lake DIRECTORY, or POISON_LAKE in the environment", WRONG_USAGE)
    check_options(name, options)
    _need_spark()


def _need_spark() -> None:
    if any(find_spec(name) is None for name in _NEEDS):
        raise CommandRefused("the pipeline needs PySpark: pip install 'celery-poison[spark]'")


def _notify(app: Any, sentences: list[str]) -> None:
    """Send what is newly accused to each receiver of ``poison_notify``; a failure is one line on stderr."""
    for name, error in send_to_all(plugin_of(app), lambda wording: wording.blame(sentences)):
        if error:
            click.echo(f"celery poison: {name}: {error}", err=True)


def _fill_from_app(options: dict[str, Any]) -> None:
    """Complete what was not said by what the app of ``celery -A`` says."""
    app = getattr(click.get_current_context().obj, "app", None)
    if app is not None:
        plugin = plugin_of(app)
        said = plugin.settings
        options["settings"] = {name: getattr(said, name) for name in OVERRIDABLE}
        options["settings"]["trial"] = said.trial != "off"
        options["notify"] = partial(_notify, app)
        if not options["url"]:
            broker = dict(app.conf.broker_transport_options or {})
            options["url"] = plugin.ledger_url
            options["namespace"] = options["namespace"] or said.namespace
            options["master_name"] = options["master_name"] or broker.get("master_name")
    options["namespace"] = options["namespace"] or "poison"
