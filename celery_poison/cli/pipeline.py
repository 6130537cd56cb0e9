"""``celery poison pipeline …``, and ``celery-poison pipeline …`` without an app.

A command is a function ``run(session, lake, options)``. Its module may name more of its own in ``OPTIONS``,
a sequence of ``click.Option``; ``options`` has their values and those of the common ones, by name. Where some
of them need neither Spark nor a lake, ``run_without_spark(options)`` does those and says whether it did; with
``needs_spark=False`` it does so where Spark is not installed, too.
Spark is imported when a command is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

from celery_poison.cli.session import Misused, Refused, plainly
from celery_poison.plugin import plugin_of
from celery_poison.policy import OVERRIDABLE
from celery_poison.quarantine.owner import identity_of


@dataclass(frozen=True)
class Stage:
    """Where a command is to be found, and what --help says of it.

    Attributes:
        name: of its module in ``celery_poison.pipeline.stages``.
    """

    name: str
    help: str
    #: Whether there is nothing that it could do in an installation without Spark.
    needs_spark: bool = True

    @property
    def module(self) -> str:
        return f"celery_poison.pipeline.stages.{self.name}"


#: In the order of --help.
STAGES = {
    "ingest": Stage("run_ingest", "Bring the journal into the lake, each entry once."),
    "check": Stage("run_check", "Read the whole lake and say what cannot be read."),
    "tables": Stage("run_tables", "Write attempts, incidents and the other tables."),
    "blame": Stage("run_blame", "Who is guilty of deaths, who is suspected."),
    "backtest": Stage("run_backtest", "Replay history under other policies."),
    "report": Stage("run_report", "Write one HTML page about all of it."),
    "maintain": Stage("run_maintain", "Keep the lake small; forget, restore, take over."),
    "publish": Stage("run_publish", "Propose rules, apply them, roll back.", False),
    "all": Stage("run_all", "Ingest, and then all the others in one Spark session."),
}

_NEEDS = ("pyspark", "pyarrow", "deltalake", "scipy")
_CURE = "the pipeline needs PySpark: pip install 'celery-poison[spark]'"


def _common() -> list[click.Parameter]:
    return [
        click.Option(
            ["--lake"], envvar="POISON_LAKE", help="Directory, or s3://, gs://, abfss://.  [required]"
        ),
        click.Option(
            ["--app-name"], help="Whose rows, where several apps share the lake; default: the app's."
        ),
        click.Option(["--redis", "url"], help="URL of the ledger's Redis; default: the app's."),
        click.Option(["--namespace"], help="Of the ledger; default: the app's, else 'poison'."),
        click.Option(["--master-name"], help="Of the Sentinels' master, beside a sentinel:// URL."),
        click.Option(
            ["--master"],
            default="local[*]",
            show_default=True,
            help="Where Spark runs: local[N], spark://host:port, or sc://host:port (Spark Connect).",
        ),
        click.Option(["--memory"], default="1g", show_default=True, help="Heap of Spark's driver."),
        click.Option(["--conf"], multiple=True, metavar="NAME=VALUE", help="A Spark setting, e.g. of S3."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, and nothing else, on stdout."),
    ]


class _Stages(DYMGroup):
    """Finds a command's options when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, stage in STAGES.items() if find_spec(stage.module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        stage = STAGES.get(cmd_name)
        if stage is None or find_spec(stage.module) is None:
            return None
        if _lacking() and stage.needs_spark:
            return _explanation(cmd_name, stage)
        module = import_module(stage.module)
        own: Sequence[click.Parameter] = getattr(module, "OPTIONS", ())

        @plainly
        def callback(**options: Any) -> None:
            _run(module, options)

        return click.Command(
            cmd_name, help=getattr(module, "HELP", stage.help), callback=callback, params=[*own, *_common()]
        )


def _explanation(name: str, stage: Stage) -> click.Command:
    """Return what stands for a command in an installation without Spark."""

    def explain(words: Sequence[str]) -> None:
        raise Refused(_CURE)

    return click.Command(
        name,
        help=stage.help,
        callback=explain,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
    )


def _lacking() -> bool:
    return any(find_spec(name) is None for name in _NEEDS)


def _run(module: Any, options: dict[str, Any]) -> None:
    _fill_from_app(options)
    if hasattr(module, "run_without_spark") and module.run_without_spark(options):
        return
    if _lacking():
        raise Refused(_CURE)
    from celery_poison.pipeline.session import open_session

    if not options["lake"]:
        raise Misused("which lake? --lake DIRECTORY, or POISON_LAKE in the environment")
    conf = dict(_setting(text) for text in options["conf"])
    session = open_session(options["master"], options["memory"], conf)
    try:
        module.run(session, _lake(session, options), options)
    finally:
        session.stop()


def _lake(session: Any, options: dict[str, Any]) -> Any:
    from celery_poison.pipeline.lake import Lake

    lake = Lake(session, options["lake"], options["app_name"] or "")
    app = getattr(click.get_current_context().obj, "app", None)
    if app is not None and not options["app_name"] and len(lake.apps()) > 1:
        lake.app = identity_of(app)["app"]
    return lake


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise Misused(f"--conf {text}: NAME=VALUE is wanted")
    return name, value


def _fill_from_app(options: dict[str, Any]) -> None:
    """Complete what was not said by what the app of ``celery -A`` says."""
    app = getattr(click.get_current_context().obj, "app", None)
    if app is not None:
        said = plugin_of(app).settings
        options["settings"] = {name: getattr(said, name) for name in OVERRIDABLE} | {
            "trial": said.trial != "off"
        }
    if app is not None and not options["url"]:
        plugin = plugin_of(app)
        broker = dict(app.conf.broker_transport_options or {})
        options["url"] = plugin.ledger_url
        options["namespace"] = options["namespace"] or plugin.settings.namespace
        options["master_name"] = options["master_name"] or broker.get("master_name")
    options["namespace"] = options["namespace"] or "poison"


@click.group(cls=_Stages)
def pipeline() -> None:
    """Learn from the journal with Spark: see docs/pipeline.md.

    \b
    celery -A proj poison pipeline ingest --lake /data/poison --once
    celery-poison pipeline ingest --redis redis://localhost/0 --lake /data/poison --follow

    Needs the extra celery-poison[spark] and Java 17 or newer.
    """
